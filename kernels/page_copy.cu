// Pages to pages, and tokens to and from the form in which state travels.
//
// A token outside the pool is [layer][kv_head][keys, values][dim] elements: its bytes depend neither on its page nor on the size of pages.
// Shapes: pool as in pages.cuh, from layer 0 on; table [logical page] u32 of one sequence.
// Work: copies: a block a page of a layer, 16 bytes a thread and step. Tokens: a block a token, a thread the elements t, t + 256, ...
// Numerics: bits are moved. Roof: bytes.
#include "pages.cuh"

// Page pairs[2i + 1] becomes page pairs[2i], in every layer. A page has `page_elements` elements of a layer, a multiple of 16 bytes.
// No page is both written and read. grid: (pairs, layers)
KERNEL(256) ictus_copy_pages(Ptr<u32> pool, Ptr<const u32> RESTRICT pairs, u64 layer_words, u32 page_words) {
    u64 layer = (u64)blockIdx.y * layer_words;
    u64 from = layer + (u64)pairs[2 * blockIdx.x] * page_words, to = layer + (u64)pairs[2 * blockIdx.x + 1] * page_words;
    for (u32 i = 4 * threadIdx.x; i < page_words; i += 1024) store_quad(pool + to + i, load_quad(pool + from + i));
}
EXPORT(ictus_copy_pages, 256)

// Element `i` of a token, counted as it travels: where it lies in the pool.
DEV u64 place_of(u32 i, u32 page, u32 slot, u64 layer_elements, u32 n_kv_heads, u32 head_dim, u32 page_size) {
    u32 dim = i % head_dim, part = i / head_dim % 2, head = i / head_dim / 2 % n_kv_heads, layer = i / head_dim / 2 / n_kv_heads;
    return layer * layer_elements + cell_of(page, head, part, slot, n_kv_heads, page_size, head_dim) + dim;
}

#define MOVE_TOKENS(gather, scatter, type)                                                                                              \
    /* tokens[block] is the token at position first + block. grid: tokens */                                                            \
    KERNEL(256)                                                                                                                         \
    gather(Ptr<type> RESTRICT tokens, Ptr<const type> RESTRICT pool, Ptr<const u32> RESTRICT table, u32 first, u32 token_elements,      \
           u64 layer_elements, u32 n_kv_heads, u32 head_dim, u32 page_size) {                                                           \
        u32 position = first + blockIdx.x, page = table[position / page_size];                                                          \
        for (u32 i = threadIdx.x; i < token_elements; i += 256)                                                                         \
            tokens[(u64)blockIdx.x * token_elements + i] =                                                                              \
                pool[place_of(i, page, position % page_size, layer_elements, n_kv_heads, head_dim, page_size)];                         \
    }                                                                                                                                   \
    EXPORT(gather, 256)                                                                                                                 \
    /* The other way round, into pages that only this sequence holds. grid: tokens */                                                   \
    KERNEL(256)                                                                                                                         \
    scatter(Ptr<type> RESTRICT pool, Ptr<const type> RESTRICT tokens, Ptr<const u32> RESTRICT table, u32 first, u32 token_elements,     \
            u64 layer_elements, u32 n_kv_heads, u32 head_dim, u32 page_size) {                                                          \
        u32 position = first + blockIdx.x, page = table[position / page_size];                                                          \
        for (u32 i = threadIdx.x; i < token_elements; i += 256)                                                                         \
            pool[place_of(i, page, position % page_size, layer_elements, n_kv_heads, head_dim, page_size)] =                            \
                tokens[(u64)blockIdx.x * token_elements + i];                                                                           \
    }                                                                                                                                   \
    EXPORT(scatter, 256)

MOVE_TOKENS(ictus_gather_tokens_16, ictus_scatter_tokens_16, u16)
MOVE_TOKENS(ictus_gather_tokens_32, ictus_scatter_tokens_32, u32)
