// Paged attention of many rows of a sequence: a block walks the segments that its pairs see. The bits of attention_decode.cu and its merge.
//
// Shapes: queries, out [rows, n_heads * head_dim] f32; pool, table, spans as in pages.cuh; head_dim a multiple of 8, at most 256. The rows'
// own keys and values are in the pages already; rows continue over whatever was cached before. Spans that `parts` (split.cuh) says are split are left
// out; null: none is.
// Work: a block takes eight pairs; keys and values are read once for them. CUDA cores, not tensor cores: for long chunks this is bound by
// arithmetic well below what the device can do.
#include "attention.cuh"

// The state of one pair takes up the newest segment's, which is empty where the pair sees nothing of it.
DEV void merge_state(Ptr<f32> running, Ptr<f32> factors, Ptr<const f32> states, u32 pair) {
    f32 segment_sum = states[2 * pair + 1];
    if (segment_sum == 0.0f) return;
    f32 most = running[2 * pair], old_factor, new_factor;
    Merge::factors(most, states[2 * pair], old_factor, new_factor);
    running[2 * pair] = most;
    running[2 * pair + 1] = merged(running[2 * pair + 1], old_factor, segment_sum, new_factor);
    factors[2 * pair] = old_factor;
    factors[2 * pair + 1] = new_factor;
}

template <class E>
DEV void attend_rows(Ptr<f32> out, Ptr<const f32> all_queries, Ptr<const E> pool, Ptr<const u32> table, Ptr<const u32> spans,
                     Ptr<const u32> parts, const Attention& shape) {
    SHARED(f32, queries, PAIRS* MOST_DIMS);
    SHARED(f32, weights, PAIRS* SEGMENT);
    SHARED(f32, states, 2 * PAIRS);
    u32 span = blockIdx.z;
    if (parts && parts[2 * span] != WALKED) return;
    auto pairs = pairs_of<PAIRS>(spans, span, blockIdx.y, blockIdx.x, shape);
    if (pairs.count == 0) return;
    Ptr<const u32> own_table = table + (u64)span * shape.table_width;
    load_queries(queries, all_queries, pairs, shape);
    // Of each pair M and L so far, and what the newest merge multiplies both sides by: one thread's work, for all to read.
    SHARED(f32, running, 2 * PAIRS);
    SHARED(f32, factors, 2 * PAIRS);
    if (threadIdx.x < PAIRS) {
        running[2 * threadIdx.x] = -infinity();
        running[2 * threadIdx.x + 1] = 0.0f;
    }
    f32 values[PAIRS][2];
    for (u32 pair = 0; pair < PAIRS; pair++) values[pair][0] = values[pair][1] = 0.0f;
    u32 first_segment = first_seen(pairs.lowest(), shape.window) / SEGMENT;
    for (u32 segment = first_segment; segment <= pairs.highest() / SEGMENT; segment++) {
        u32 from, to;
        seen_range(segment, pairs, shape, from, to);
        sync_block(); // the queries are there; weights and states of the segment before were read
        segment_scores<E>(weights, queries, pool, own_table, segment, from, to, pairs, shape);
        sync_block();
        segment_weights(weights, states, pairs);
        sync_block();
        if (threadIdx.x < pairs.count) merge_state(running, factors, states, threadIdx.x);
        f32 part[PAIRS][2];
        segment_values<E>(part, weights, pool, own_table, segment, from, to, pairs, shape);
        sync_block();
        for (u32 pair = 0; pair < PAIRS; pair++) {
            if (pair >= pairs.count || states[2 * pair + 1] == 0.0f) continue;
            f32 old_factor = factors[2 * pair], new_factor = factors[2 * pair + 1];
            for (u32 half = 0; half < 2; half++) values[pair][half] = merged(values[pair][half], old_factor, part[pair][half], new_factor);
        }
    }
    sync_block();
    for (u32 pair = 0; pair < PAIRS; pair++) {
        if (pair >= pairs.count) continue;
        u64 query = pairs.query(pair);
        for (u32 half = 0; half < 2; half++) {
            u32 dim = threadIdx.x + half * ATTENTION_THREADS;
            if (dim < shape.head_dim) out[query * shape.head_dim + dim] = values[pair][half] / running[2 * pair + 1];
        }
    }
}

// grid: (chunks of eight pairs of the longest span, n_kv_heads, spans)
#define ATTENTION_PREFILL(name, type)                                                                                                 \
    KERNEL(128)                                                                                                                       \
    name(Ptr<f32> RESTRICT out, Ptr<const f32> RESTRICT queries, Ptr<const type> RESTRICT pool, Ptr<const u32> RESTRICT table,        \
         Ptr<const u32> RESTRICT spans, Ptr<const u32> RESTRICT parts, u32 n_heads, u32 n_kv_heads, u32 head_dim, u32 page_size,      \
         u32 table_width, u32 window, f32 scale) {                                                                                    \
        Attention shape = {n_heads, n_kv_heads, head_dim, page_size, table_width, window, scale};                                     \
        attend_rows<type>(out, queries, pool, table, spans, parts, shape);                                                            \
    }                                                                                                                                 \
    EXPORT(name, 128)

ATTENTION_PREFILL(ictus_attention_prefill_f16, u16)
ATTENTION_PREFILL(ictus_attention_prefill_f32, f32)
