// Paged attention of few rows, split by position: a block per segment, then a merge. Segments of pages that several sequences share are read once for
// as many of their rows as a block takes pairs.
//
// Shapes: queries, out [rows, n_heads * head_dim] f32; pool, table, spans as in pages.cuh; members, parts, tasks and the slots of partial and states as in
// split.cuh. n_heads is a multiple of n_kv_heads; head_dim a multiple of 8, at most 256. A block of whose segment nobody sees anything
// does nothing.
// What a block computes and in which order: attention.cuh.
#include "attention.cuh"

// Pairs of a block of shared segments: more than of one sequence, whose pairs are seldom more than its group.
constexpr u32 SHARED_PAIRS = 16;

template <class E, u32 N>
DEV void attend_segment(Ptr<f32> partial, Ptr<f32> states, Ptr<const f32> all_queries, Ptr<const E> pool, Ptr<const u32> table,
                        Ptr<const u32> all_members, const Members& members, u32 segment, u32 head, u32 chunk, const Attention& shape) {
    SHARED(f32, queries, N* MOST_DIMS);
    SHARED(f32, weights, N* SEGMENT);
    SHARED(f32, own_states, 2 * N);
    SHARED(u32, rows, N);
    SHARED(u32, positions, N);
    SHARED(u32, slots, N);
    MemberPairs<N> pairs;
    pairs.choose(members, head, chunk, shape);
    if (pairs.count == 0) return;
    pairs.rows = rows;
    pairs.positions = positions;
    pairs.slots = slots;
    pairs.load(all_members, members);
    u32 from, to;
    seen_range(segment, pairs, shape, from, to);
    if (from >= to) return;
    f32 out[N][2];
    load_queries(queries, all_queries, pairs, shape);
    sync_block();
    segment_scores<E>(weights, queries, pool, table, segment, from, to, pairs, shape);
    sync_block();
    segment_weights(weights, own_states, pairs);
    sync_block();
    segment_values<E>(out, weights, pool, table, segment, from, to, pairs, shape);
    for (u32 pair = 0; pair < N; pair++) {
        // A row has no slots behind its own position.
        if (pair >= pairs.count || segment > pairs.position(pair) / SEGMENT) continue;
        u64 place = pairs.place(pair, segment);
        if (threadIdx.x < 2) states[2 * place + threadIdx.x] = own_states[2 * pair + threadIdx.x];
        for (u32 half = 0; half < 2; half++) {
            u32 dim = threadIdx.x + half * ATTENTION_THREADS;
            if (dim < shape.head_dim) partial[place * shape.head_dim + dim] = out[pair][half];
        }
    }
}

// Segments of the spans' own. grid: (segments, n_kv_heads * chunks of eight pairs, spans)
#define ATTENTION_DECODE(name, type)                                                                                                  \
    KERNEL(128)                                                                                                                       \
    name(Ptr<f32> RESTRICT partial, Ptr<f32> RESTRICT states, Ptr<const f32> RESTRICT queries, Ptr<const type> RESTRICT pool,         \
         Ptr<const u32> RESTRICT table, Ptr<const u32> RESTRICT spans, Ptr<const u32> RESTRICT parts, Ptr<const u32> RESTRICT all,    \
         u32 n_heads, u32 n_kv_heads, u32 head_dim, u32 page_size, u32 table_width, u32 window, f32 scale) {                          \
        Attention shape = {n_heads, n_kv_heads, head_dim, page_size, table_width, window, scale};                                     \
        u32 segment = blockIdx.x, span = blockIdx.z;                                                                                  \
        Members members = {parts[2 * span], spans[3 * span + 1]};                                                                     \
        if (members.first == WALKED || segment < parts[2 * span + 1]) return;                                                         \
        attend_segment<type, PAIRS>(partial, states, queries, pool, table + (u64)span * table_width, all, members, segment,           \
                                    blockIdx.y % n_kv_heads, blockIdx.y / n_kv_heads, shape);                                         \
    }                                                                                                                                 \
    EXPORT(name, 128)

ATTENTION_DECODE(ictus_attention_decode_f16, u16)
ATTENTION_DECODE(ictus_attention_decode_f32, f32)

// Shared segments. Blocks that read the same keys are neighbours. grid: (tasks * chunks of sixteen pairs, n_kv_heads)
#define ATTENTION_SHARED(name, type)                                                                                                  \
    KERNEL(128)                                                                                                                       \
    name(Ptr<f32> RESTRICT partial, Ptr<f32> RESTRICT states, Ptr<const f32> RESTRICT queries, Ptr<const type> RESTRICT pool,         \
         Ptr<const u32> RESTRICT table, Ptr<const u32> RESTRICT tasks, Ptr<const u32> RESTRICT all, u32 chunks, u32 n_heads,          \
         u32 n_kv_heads, u32 head_dim, u32 page_size, u32 table_width, u32 window, f32 scale) {                                       \
        Attention shape = {n_heads, n_kv_heads, head_dim, page_size, table_width, window, scale};                                     \
        Ptr<const u32> task = tasks + 4 * (u64)(blockIdx.x / chunks);                                                                       \
        Members members = {task[2], task[3]};                                                                                         \
        attend_segment<type, SHARED_PAIRS>(partial, states, queries, pool, table + (u64)task[1] * table_width, all, members, task[0], \
                                           blockIdx.y, blockIdx.x % chunks, shape);                                                   \
    }                                                                                                                                 \
    EXPORT(name, 128)

ATTENTION_SHARED(ictus_attention_shared_f16, u16)
ATTENTION_SHARED(ictus_attention_shared_f32, f32)

// grid: (n_heads, members)
KERNEL(128)
ictus_attention_merge(Ptr<f32> RESTRICT out, Ptr<const f32> RESTRICT partial, Ptr<const f32> RESTRICT states, Ptr<const u32> RESTRICT members,
                      u32 head_dim, u32 window) {
    merge_segments<Merge>(out, partial, states, members, head_dim, window);
}
EXPORT(ictus_attention_merge, 128)
