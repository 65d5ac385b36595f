// Paged attention of many rows of a sequence on tensor cores: a block walks the segments that its pairs see. The bits of attention_fast_decode.cu and its merge.
//
// Shapes: queries, out [rows, n_heads * head_dim] f32; pool, table, spans as in pages.cuh, the pool in f16; head_dim is in the name. The rows' own keys and values
// are in the pages already; rows continue over whatever was cached before. Spans that `parts` (split.cuh) says are split are left out; null: none is.
// Work: a block takes 64 pairs, a warp sixteen; with heads of 256 dimensions 32, and two warps share sixteen. Keys and values are read once for all of
// them. What it computes and in which order: attention_fast.cuh. A warp whose rows see nothing of a tile only helps to bring it.
// Registers: o of the newest segment and of all before it, 64 each at 128 dimensions and above.
#include "attention_fast.cuh"

template <u32 D, u32 SETS>
DEV void fast_walk(Ptr<f32> all_out, Ptr<const f32> all_queries, Ptr<const u16> pool, Ptr<const u32> table, Ptr<const u32> spans,
                   Ptr<const u32> parts, const Attention& shape) {
    using Shared = FastShared<D, SETS>;
    constexpr u32 OWN = Shared::OWN, PARTS = Shared::PARTS;
    SHARED(Quad, queries, Shared::QUERIES);
    SHARED(Quad, keys, Tile<D>::SIZE);
    SHARED(Quad, values, Tile<D>::SIZE);
    SHARED(u64, cells, 2 * Tile<D>::KEYS);
    SHARED(u32, odd, 4);
    u32 span = blockIdx.z, head = blockIdx.y;
    if (parts && parts[2 * span] != WALKED) return;
    auto pairs = pairs_of<SETS * SET>(spans, span, head, blockIdx.x, shape);
    if (pairs.count == 0) return;
    table = table + (u64)span * shape.table_width;
    u32 lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, set = warp / PARTS;
    fast_queries<D, SETS>(queries, all_queries, pairs, shape.scale);
    Sight sight;
    sight.look(pairs, set, shape.window);
    Shared shared = {queries, keys, values, cells, odd};
    f32 total[OWN][4], all_most[2] = {-infinity(), -infinity()}, all_sum[2] = {0.0f, 0.0f};
    for (u32 column = 0; column < OWN; column++)
        for (u32 i = 0; i < 4; i++) total[column][i] = 0.0f;
    for (u32 segment = first_seen(pairs.lowest(), shape.window) / SEGMENT; segment <= pairs.highest() / SEGMENT; segment++) {
        u32 from, to;
        seen_range(segment, pairs, shape, from, to);
        f32 out[OWN][4], most[2], sum[2];
        fast_segment<D, SETS>(out, most, sum, shared, pool, table, from, to, head, sight, shape);
        for (u32 row = 0; row < 2; row++) {
            if (sum[row] == 0.0f) continue;
            f32 old_factor, new_factor;
            FastMerge::factors(all_most[row], most[row], old_factor, new_factor);
            all_sum[row] = merged(all_sum[row], old_factor, sum[row], new_factor);
            for (u32 column = 0; column < OWN; column++)
                for (u32 i = 2 * row; i < 2 * row + 2; i++)
                    total[column][i] = merged(total[column][i], old_factor, out[column][i], new_factor);
        }
    }
    for (u32 row = 0; row < 2; row++) {
        u32 pair = set * SET + lane / 4 + 8 * row;
        if (pair >= pairs.count) continue;
        u64 query = pairs.query(pair) * D;
        for (u32 column = 0; column < OWN; column++)
            for (u32 i = 0; i < 2; i++)
                all_out[query + 8 * (warp % PARTS * OWN + column) + lane % 4 * 2 + i] = total[column][2 * row + i] / all_sum[row];
    }
}

// grid: (chunks of 16 * sets pairs of the longest span, n_kv_heads, spans)
#define ATTENTION_FAST_PREFILL(name, D, sets)                                                                                         \
    KERNEL(128)                                                                                                                       \
    name(Ptr<f32> RESTRICT out, Ptr<const f32> RESTRICT queries, Ptr<const u16> RESTRICT pool, Ptr<const u32> RESTRICT table,         \
         Ptr<const u32> RESTRICT spans, Ptr<const u32> RESTRICT parts, u32 n_heads, u32 n_kv_heads, u32 page_size, u32 table_width,   \
         u32 window, f32 scale) {                                                                                                     \
        Attention shape = {n_heads, n_kv_heads, D, page_size, table_width, window, scale};                                            \
        fast_walk<D, sets>(out, queries, pool, table, spans, parts, shape);                                                           \
    }                                                                                                                                 \
    EXPORT(name, 128)

ATTENTION_FAST_PREFILL(ictus_attention_fast_prefill_64, 64, 4)
ATTENTION_FAST_PREFILL(ictus_attention_fast_prefill_96, 96, 4)
ATTENTION_FAST_PREFILL(ictus_attention_fast_prefill_128, 128, 4)
ATTENTION_FAST_PREFILL(ictus_attention_fast_prefill_256, 256, 2)
