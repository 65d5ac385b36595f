// Keys and values of rows into the pages of one layer; keys turned on the way.
//
// Shapes: keys, values [rows, n_kv_heads * head_dim] f32; pool, table, spans as in pages.cuh; angles as in rope.cu, or null: keys as they are.
// Work: a block takes one row of one span; a thread the elements t, t + 128, ... of its keys and values.
// Numerics: as rope.cu; rounded to the pool's type once, to the nearest. Element by element.
// Roof: bytes, 4 read and 2 or 4 written an element.
#include "pages.cuh"
#include "rope.cuh"

template <class E>
DEV void kv_write(Ptr<E> pool, Ptr<const f32> keys, Ptr<const f32> values, Ptr<const f32> angles, Ptr<const u32> table, Ptr<const u32> spans,
                  u32 table_width, u32 n_kv_heads, u32 head_dim, u32 page_size, u32 pairs, u32 interleaved) {
    u32 span = blockIdx.y;
    if (blockIdx.x >= spans[3 * span + 1]) return;
    u32 row = spans[3 * span] + blockIdx.x, position = spans[3 * span + 2] + blockIdx.x;
    u32 page = table[(u64)span * table_width + position / page_size], width = n_kv_heads * head_dim;
    for (u32 i = threadIdx.x; i < width; i += 128) {
        u32 head = i / head_dim, dim = i % head_dim;
        u64 source = (u64)row * width + head * head_dim;
        f32 key = angles ? rotated(keys + source, dim, angles + (u64)row * 2 * pairs, pairs, interleaved) : keys[source + dim];
        put_element(pool, cell_of(page, head, 0, position % page_size, n_kv_heads, page_size, head_dim) + dim, key);
        put_element(pool, cell_of(page, head, 1, position % page_size, n_kv_heads, page_size, head_dim) + dim, values[source + dim]);
    }
}

// grid: (most rows of a span, spans)
#define KV_WRITE(name, type)                                                                                                              \
    KERNEL(128)                                                                                                                           \
    name(Ptr<type> RESTRICT pool, Ptr<const f32> RESTRICT keys, Ptr<const f32> RESTRICT values, Ptr<const f32> RESTRICT angles,           \
         Ptr<const u32> RESTRICT table, Ptr<const u32> RESTRICT spans, u32 table_width, u32 n_kv_heads, u32 head_dim, u32 page_size,      \
         u32 pairs, u32 interleaved) {                                                                                                    \
        kv_write(pool, keys, values, angles, table, spans, table_width, n_kv_heads, head_dim, page_size, pairs, interleaved);             \
    }                                                                                                                                     \
    EXPORT(name, 128)

KV_WRITE(ictus_kv_write_f16, u16)
KV_WRITE(ictus_kv_write_f32, f32)
