// Tokens out of pages in eight or four bits an element, and back: the lossy encodings of src/transfer/encoding.rs, so that the small form travels.
//
// A token is [layer][kv_head][keys, values] vectors of head_dim numbers. A vector is cut into blocks of 32 numbers, the last one shorter, and each is
// written by itself, in words (head_dim is a multiple of 8):
//
//   q8   scale f32 | code i8 per element, four a word                  element = code * scale, code in -127 .. 127
//   q4   scale f32 | four bits per element, eight a word, lowest first   element = (code - 8) * scale, code in 1 .. 15
//
// Shapes: pool as in pages.cuh, from layer 0 on; table [logical page] u32 of one sequence; tokens [tokens, token_words] u32.
// Work: a block of 256 takes a token, a warp one quant block at a time, a lane an element.
// Numerics: the host's operations in its order: the same bytes. NaN becomes 0, an infinity the greatest code. Roof: bytes.
#include "pages.cuh"

constexpr u32 QUANT_BLOCK = 32;
constexpr u32 WARPS = 8;

struct FormQ8 {
    static constexpr u32 BITS = 8, A_WORD = 4;
    static constexpr f32 CODES = 127.0f;
    DEV u32 bits_of_code(i32 code) { return (u32)code & 255; }
    DEV f32 number(u32 bits) { return (f32)(i8)(u8)bits; }
};
struct FormQ4 {
    static constexpr u32 BITS = 4, A_WORD = 8;
    static constexpr f32 CODES = 7.0f;
    DEV u32 bits_of_code(i32 code) { return (u32)(code + 8); }
    DEV f32 number(u32 bits) { return (f32)bits - 8.0f; }
};

// Words of a quant block of so many elements.
template <class Form> DEV u32 block_words(u32 elements) { return 1 + elements / Form::A_WORD; }

// Where the quant blocks of a token lie.
struct Place {
    u32 elements; // of this block
    u32 word;     // its first word in the token
    u64 cell;     // its first element in the pool
};

template <class Form>
DEV Place place_of(u32 block, u32 page, u32 slot, u64 layer_elements, u32 n_kv_heads, u32 head_dim, u32 page_size) {
    u32 blocks = (head_dim + QUANT_BLOCK - 1) / QUANT_BLOCK;
    u32 vector = block / blocks, dim = block % blocks * QUANT_BLOCK;
    u32 part = vector % 2, head = vector / 2 % n_kv_heads, layer = vector / 2 / n_kv_heads;
    u32 vector_words = blocks + head_dim / Form::A_WORD;
    Place place;
    place.elements = smaller(QUANT_BLOCK, head_dim - dim);
    place.word = vector * vector_words + block % blocks * block_words<Form>(QUANT_BLOCK);
    place.cell = layer * layer_elements + cell_of(page, head, part, slot, n_kv_heads, page_size, head_dim) + dim;
    return place;
}

// The whole number next to value * inverse, ties to the even one.
DEV i32 code_of(f32 value, f32 inverse, f32 codes) {
    constexpr f32 ROUND = 12582912.0f;
    f32 exact = value * inverse;
    if (is_nan(exact)) return 0;
    exact = exact < -codes ? -codes : exact > codes ? codes : exact;
    return (i32)((exact + ROUND) - ROUND);
}

// tokens[block] is the token at position first + block. grid: tokens
template <class Form, class Element>
DEV void encode(Ptr<u32> tokens, Ptr<const Element> pool, Ptr<const u32> table, u32 first, u32 quant_blocks, u32 token_words, u64 layer_elements,
                u32 n_kv_heads, u32 head_dim, u32 page_size) {
    u32 position = first + blockIdx.x, page = table[position / page_size], lane = threadIdx.x % WARP;
    Ptr<u32> token = tokens + (u64)blockIdx.x * token_words;
    for (u32 block = threadIdx.x / WARP; block < quant_blocks; block += WARPS) {
        Place place = place_of<Form>(block, page, position % page_size, layer_elements, n_kv_heads, head_dim, page_size);
        f32 value = lane < place.elements ? element_value(pool[place.cell + lane]) : 0.0f;
        f32 most = warp_max(is_finite(value) ? float_of(bits_of(value) & 0x7fffffffu) : 0.0f);
        bool is_tiny = most <= 1e-30f;
        f32 scale = is_tiny ? 0.0f : most / Form::CODES, inverse = is_tiny ? 0.0f : Form::CODES / most;
        u32 word = Form::bits_of_code(code_of(value, inverse, Form::CODES)) << (lane % Form::A_WORD * Form::BITS);
        for (u32 step = 1; step < Form::A_WORD; step *= 2) word |= shuffle_xor(word, step);
        if (lane == 0) token[place.word] = bits_of(scale);
        if (lane % Form::A_WORD == 0 && lane < place.elements) token[place.word + 1 + lane / Form::A_WORD] = word;
    }
}

// The other way round, into pages that only this sequence holds. grid: tokens
template <class Form, class Element>
DEV void decode(Ptr<Element> pool, Ptr<const u32> tokens, Ptr<const u32> table, u32 first, u32 quant_blocks, u32 token_words, u64 layer_elements,
                u32 n_kv_heads, u32 head_dim, u32 page_size) {
    u32 position = first + blockIdx.x, page = table[position / page_size], lane = threadIdx.x % WARP;
    Ptr<const u32> token = tokens + (u64)blockIdx.x * token_words;
    for (u32 block = threadIdx.x / WARP; block < quant_blocks; block += WARPS) {
        Place place = place_of<Form>(block, page, position % page_size, layer_elements, n_kv_heads, head_dim, page_size);
        if (lane >= place.elements) continue;
        u32 bits = token[place.word + 1 + lane / Form::A_WORD] >> (lane % Form::A_WORD * Form::BITS) & ((1u << Form::BITS) - 1);
        put_element(pool, place.cell + lane, Form::number(bits) * float_of(token[place.word]));
    }
}

#define CODE_TOKENS(name, Form, Element)                                                                                                     \
    KERNEL(256)                                                                                                                              \
    ictus_gather_tokens_##name(Ptr<u32> RESTRICT tokens, Ptr<const Element> RESTRICT pool, Ptr<const u32> RESTRICT table, u32 first,         \
                               u32 quant_blocks, u32 token_words, u64 layer_elements, u32 n_kv_heads, u32 head_dim, u32 page_size) {         \
        encode<Form>(tokens, pool, table, first, quant_blocks, token_words, layer_elements, n_kv_heads, head_dim, page_size);                \
    }                                                                                                                                        \
    EXPORT(ictus_gather_tokens_##name, 256)                                                                                                  \
    KERNEL(256)                                                                                                                              \
    ictus_scatter_tokens_##name(Ptr<Element> RESTRICT pool, Ptr<const u32> RESTRICT tokens, Ptr<const u32> RESTRICT table, u32 first,        \
                                u32 quant_blocks, u32 token_words, u64 layer_elements, u32 n_kv_heads, u32 head_dim, u32 page_size) {        \
        decode<Form>(pool, tokens, table, first, quant_blocks, token_words, layer_elements, n_kv_heads, head_dim, page_size);                \
    }                                                                                                                                        \
    EXPORT(ictus_scatter_tokens_##name, 256)

CODE_TOKENS(q8_f16, FormQ8, u16)
CODE_TOKENS(q8_f32, FormQ8, f32)
CODE_TOKENS(q4_f16, FormQ4, u16)
CODE_TOKENS(q4_f32, FormQ4, f32)
