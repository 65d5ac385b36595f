// Paged attention of few rows on tensor cores, split by position: a block per segment, then a merge. Segments of pages that several sequences share are
// read once for as many of their rows as make sixteen pairs.
//
// Shapes: queries, out [rows, n_heads * head_dim] f32; pool as in pages.cuh, f16; table, spans as there; members, parts, tasks and the slots of partial and states
// as in split.cuh, m to the base of 2. head_dim is in the name: 64, 96, 128 or 256. A block of whose segment nobody sees anything does nothing.
// What a block computes and in which order: attention_fast.cuh. Its sixteen pairs are those of one set, the four warps take a quarter of the dimensions each.
#include "attention_fast.cuh"

template <u32 D>
DEV void fast_attend(Ptr<f32> partial, Ptr<f32> states, Ptr<const f32> all_queries, Ptr<const u16> pool, Ptr<const u32> table,
                     Ptr<const u32> all_members, const Members& members, u32 segment, u32 head, u32 chunk, const Attention& shape) {
    using Shared = FastShared<D, 1>;
    SHARED(Quad, queries, Shared::QUERIES);
    SHARED(Quad, keys, Tile<D>::SIZE);
    SHARED(Quad, values, Tile<D>::SIZE);
    SHARED(u64, cells, 2 * Tile<D>::KEYS);
    SHARED(u32, odd, 4);
    SHARED(u32, rows, SET);
    SHARED(u32, positions, SET);
    SHARED(u32, slots, SET);
    MemberPairs<SET> pairs;
    pairs.choose(members, head, chunk, shape);
    if (pairs.count == 0) return;
    pairs.rows = rows;
    pairs.positions = positions;
    pairs.slots = slots;
    pairs.load(all_members, members);
    u32 from, to;
    seen_range(segment, pairs, shape, from, to);
    if (from >= to) return;
    fast_queries<D, 1>(queries, all_queries, pairs, shape.scale);
    Sight sight;
    sight.look(pairs, 0, shape.window);
    Shared shared = {queries, keys, values, cells, odd};
    f32 out[Shared::OWN][4], most[2], sum[2];
    fast_segment<D, 1>(out, most, sum, shared, pool, table, from, to, head, sight, shape);
    u32 lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    for (u32 row = 0; row < 2; row++) {
        u32 pair = lane / 4 + 8 * row;
        // A row has no slots behind its own position.
        if (pair >= pairs.count || segment > pairs.position(pair) / SEGMENT) continue;
        u64 place = pairs.place(pair, segment);
        if (warp == 0 && lane % 4 < 2) states[2 * place + lane % 4] = lane % 4 == 0 ? most[row] : sum[row];
        for (u32 column = 0; column < Shared::OWN; column++)
            for (u32 i = 0; i < 2; i++)
                partial[place * D + 8 * (warp * Shared::OWN + column) + lane % 4 * 2 + i] = out[column][2 * row + i];
    }
}

// Segments of the spans' own: grid (segments, n_kv_heads * chunks of sixteen pairs, spans). Shared segments, blocks that read the same keys being
// neighbours: grid (tasks * chunks of sixteen pairs, n_kv_heads).
#define ATTENTION_FAST_DECODE(own, common, D)                                                                                                 \
    KERNEL(128)                                                                                                                            \
    own(Ptr<f32> RESTRICT partial, Ptr<f32> RESTRICT states, Ptr<const f32> RESTRICT queries, Ptr<const u16> RESTRICT pool,                \
        Ptr<const u32> RESTRICT table, Ptr<const u32> RESTRICT spans, Ptr<const u32> RESTRICT parts, Ptr<const u32> RESTRICT all,          \
        u32 n_heads, u32 n_kv_heads, u32 page_size, u32 table_width, u32 window, f32 scale) {                                              \
        Attention shape = {n_heads, n_kv_heads, D, page_size, table_width, window, scale};                                                 \
        u32 segment = blockIdx.x, span = blockIdx.z;                                                                                       \
        Members members = {parts[2 * span], spans[3 * span + 1]};                                                                          \
        if (members.first == WALKED || segment < parts[2 * span + 1]) return;                                                              \
        fast_attend<D>(partial, states, queries, pool, table + (u64)span * table_width, all, members, segment, blockIdx.y % n_kv_heads,    \
                       blockIdx.y / n_kv_heads, shape);                                                                                    \
    }                                                                                                                                      \
    EXPORT(own, 128)                                                                                                                       \
    KERNEL(128)                                                                                                                            \
    common(Ptr<f32> RESTRICT partial, Ptr<f32> RESTRICT states, Ptr<const f32> RESTRICT queries, Ptr<const u16> RESTRICT pool,             \
           Ptr<const u32> RESTRICT table, Ptr<const u32> RESTRICT tasks, Ptr<const u32> RESTRICT all, u32 chunks, u32 n_heads,             \
           u32 n_kv_heads, u32 page_size, u32 table_width, u32 window, f32 scale) {                                                        \
        Attention shape = {n_heads, n_kv_heads, D, page_size, table_width, window, scale};                                                 \
        Ptr<const u32> task = tasks + 4 * (u64)(blockIdx.x / chunks);                                                                      \
        Members members = {task[2], task[3]};                                                                                              \
        fast_attend<D>(partial, states, queries, pool, table + (u64)task[1] * table_width, all, members, task[0], blockIdx.y,              \
                       blockIdx.x % chunks, shape);                                                                                        \
    }                                                                                                                                      \
    EXPORT(common, 128)

ATTENTION_FAST_DECODE(ictus_attention_fast_decode_64, ictus_attention_fast_shared_64, 64)
ATTENTION_FAST_DECODE(ictus_attention_fast_decode_96, ictus_attention_fast_shared_96, 96)
ATTENTION_FAST_DECODE(ictus_attention_fast_decode_128, ictus_attention_fast_shared_128, 128)
ATTENTION_FAST_DECODE(ictus_attention_fast_decode_256, ictus_attention_fast_shared_256, 256)

// grid: (n_heads, members)
KERNEL(128)
ictus_attention_fast_merge(Ptr<f32> RESTRICT out, Ptr<const f32> RESTRICT partial, Ptr<const f32> RESTRICT states, Ptr<const u32> RESTRICT members,
                           u32 head_dim, u32 window) {
    merge_segments<FastMerge>(out, partial, states, members, head_dim, window);
}
EXPORT(ictus_attention_fast_merge, 128)
