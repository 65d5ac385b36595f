// Paged attention of few rows, split by position: a block per segment, then a merge.
//
// Shapes: queries [rows, n_heads * head_dim] f32; pool, table, spans as in pages.cuh; partial [rows, n_heads, segments, head_dim] f32;
// states [rows, n_heads, segments, 2] f32: m and l; out [rows, n_heads * head_dim] f32.
// n_heads is a multiple of n_kv_heads; head_dim a multiple of 8, at most 256. A segment that a row does not see gets l = 0 and no partial.
// What a block computes and in which order: attention.cuh.
#include "attention.cuh"

template <class E>
DEV void attend_segment(Ptr<f32> partial, Ptr<f32> states, Ptr<const f32> all_queries, Ptr<const E> pool, Ptr<const u32> table,
                        Ptr<const u32> spans, u32 segments, const Attention& shape) {
    SHARED(f32, queries, PAIRS* MOST_DIMS);
    SHARED(f32, weights, PAIRS* SEGMENT);
    SHARED(f32, own_states, 2 * PAIRS);
    u32 segment = blockIdx.x, span = blockIdx.z;
    Pairs pairs = pairs_of(spans, span, blockIdx.y % shape.n_kv_heads, blockIdx.y / shape.n_kv_heads, shape);
    if (pairs.count == 0) return;
    u32 from, to;
    seen_range(segment, pairs, shape, from, to);
    f32 out[PAIRS][2];
    if (from < to) {
        Ptr<const u32> own_table = table + (u64)span * shape.table_width;
        load_queries(queries, all_queries, pairs, shape);
        sync_block();
        segment_scores<E>(weights, queries, pool, own_table, segment, from, to, pairs, shape);
        sync_block();
        segment_weights(weights, own_states, pairs);
        sync_block();
        segment_values<E>(out, weights, pool, own_table, segment, from, to, pairs, shape);
    }
    for (u32 pair = 0; pair < PAIRS; pair++) {
        if (pair >= pairs.count) break;
        u64 place = ((u64)(pairs.first_row + pairs.row(pair)) * shape.n_heads + pairs.query_head(pair)) * segments + segment;
        if (threadIdx.x < 2) {
            f32 nothing = threadIdx.x == 0 ? -infinity() : 0.0f;
            states[2 * place + threadIdx.x] = from < to ? own_states[2 * pair + threadIdx.x] : nothing;
        }
        if (from >= to) continue;
        for (u32 half = 0; half < 2; half++) {
            u32 dim = threadIdx.x + half * ATTENTION_THREADS;
            if (dim < shape.head_dim) partial[place * shape.head_dim + dim] = out[pair][half];
        }
    }
}

// grid: (segments, n_kv_heads * chunks of eight pairs, spans)
#define ATTENTION_DECODE(name, type)                                                                                                  \
    KERNEL(128)                                                                                                                       \
    name(Ptr<f32> RESTRICT partial, Ptr<f32> RESTRICT states, Ptr<const f32> RESTRICT queries, Ptr<const type> RESTRICT pool,         \
         Ptr<const u32> RESTRICT table, Ptr<const u32> RESTRICT spans, u32 segments, u32 n_heads, u32 n_kv_heads, u32 head_dim,       \
         u32 page_size, u32 table_width, u32 window, f32 scale) {                                                                     \
        Attention shape = {n_heads, n_kv_heads, head_dim, page_size, table_width, window, scale};                                     \
        attend_segment<type>(partial, states, queries, pool, table, spans, segments, shape);                                          \
    }                                                                                                                                 \
    EXPORT(name, 128)

ATTENTION_DECODE(ictus_attention_decode_f16, u16)
ATTENTION_DECODE(ictus_attention_decode_f32, f32)

// Segments in ascending order into one. grid: (n_heads, rows)
KERNEL(128)
ictus_attention_merge(Ptr<f32> RESTRICT out, Ptr<const f32> RESTRICT partial, Ptr<const f32> RESTRICT states, u32 segments, u32 head_dim) {
    u64 pair = (u64)blockIdx.y * gridDim.x + blockIdx.x;
    for (u32 dim = threadIdx.x; dim < head_dim; dim += 128) {
        f32 most = -infinity(), sum = 0.0f, value = 0.0f;
        for (u32 segment = 0; segment < segments; segment++) {
            u64 place = pair * segments + segment;
            f32 segment_sum = states[2 * place + 1];
            if (segment_sum == 0.0f) continue;
            f32 old_factor, new_factor;
            merge_factors(most, states[2 * place], old_factor, new_factor);
            sum = merged(sum, old_factor, segment_sum, new_factor);
            value = merged(value, old_factor, partial[place * head_dim + dim], new_factor);
        }
        out[pair * head_dim + dim] = value / sum;
    }
}
EXPORT(ictus_attention_merge, 128)
