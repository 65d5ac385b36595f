// Attention over one segment of positions, for up to eight pairs of a row and a query head that read the same key and value head.
//
//   score[pair][p] = scale * (query[pair] . key[p])           for the positions p that the row sees, else -inf
//   m = max_p score,  weight[p] = e^(score[p] - m),  l = sum_p weight[p],  o = sum_p weight[p] * value[p]
//   merge of (m, l, o) into (M, L, O):   N = max(M, m),  L = L e^(M - N) + l e^(m - N),  O = O e^(M - N) + o e^(m - N)
//
// A segment is 256 positions, cut at absolute positions; segments are merged in ascending order and the result is O / L. Decode runs segments as blocks
// of their own and merges later, prefill walks them: both by the functions of this file, so a row has the same bits by either way, whatever its
// batch, its chunk and its pages are.
//
// Work: 128 threads. Scores: a thread takes keys t and t + 128 for all pairs. Weights: a warp takes two pairs. Values: a thread takes dimensions t
// and t + 128 for all pairs, so a step reads a whole value side by side.
// Shared: 16.4 KB. Registers: 16 sums and 16 elements.
// Numerics: a score is one fused chain over ascending dimensions; l is added by lane (ascending positions of lane mod 32), then butterfly; o is one
// fused chain over ascending positions. A position that no row of the block sees is not read; one that a pair does not see has weight 0 and is not added.
// Roof: bytes of the pages read once per eight pairs. Large chunks want tensor cores, which this is not.
// Source: arXiv 1805.02867, 2205.14135
#pragma once
#include "math.cuh"
#include "pages.cuh"

constexpr u32 SEGMENT = 256;
constexpr u32 PAIRS = 8;
constexpr u32 MOST_DIMS = 256;
constexpr u32 ATTENTION_THREADS = 128;

// What a launch says of all its blocks.
struct Attention {
    u32 n_heads, n_kv_heads, head_dim, page_size, table_width;
    u32 window; // a row at p sees positions above p - window; 0 sees all up to p
    f32 scale;
};

// The pairs of a block: of one span and one key and value head.
struct Pairs {
    u32 head;               // key and value head
    u32 first_row, start;   // of the span
    u32 first, count;       // pair number i is row i / group, head i % group of its kv head
    u32 group;

    DEV_MEMBER u32 row(u32 pair) const { return (first + pair) / group; }
    DEV_MEMBER u32 query_head(u32 pair) const { return head * group + (first + pair) % group; }
    DEV_MEMBER u32 position(u32 pair) const { return start + row(pair); }
    DEV_MEMBER u32 last_position() const { return position(count - 1); }
};

DEV u32 first_seen(u32 position, u32 window) { return window == 0 || position + 1 < window ? 0 : position + 1 - window; }

// Pairs number PAIRS * chunk and the ones behind it of span `span`; count 0 when it has none.
DEV Pairs pairs_of(Ptr<const u32> spans, u32 span, u32 head, u32 chunk, const Attention& shape) {
    Pairs pairs;
    pairs.head = head;
    pairs.group = shape.n_heads / shape.n_kv_heads;
    pairs.first_row = spans[3 * span];
    pairs.start = spans[3 * span + 2];
    u32 total = spans[3 * span + 1] * pairs.group;
    pairs.first = PAIRS * chunk;
    pairs.count = pairs.first < total ? smaller(PAIRS, total - pairs.first) : 0;
    return pairs;
}

// Queries of the pairs to shared memory, so that each is read once.
DEV void load_queries(Ptr<f32> queries, Ptr<const f32> all, const Pairs& pairs, const Attention& shape) {
    for (u32 i = threadIdx.x; i < pairs.count * shape.head_dim; i += ATTENTION_THREADS) {
        u32 pair = i / shape.head_dim, dim = i % shape.head_dim;
        u64 row = (u64)(pairs.first_row + pairs.row(pair)) * shape.n_heads + pairs.query_head(pair);
        queries[pair * MOST_DIMS + dim] = all[row * shape.head_dim + dim];
    }
}

// Positions of segment `segment` that some pair sees: from .. to.
DEV void seen_range(u32 segment, const Pairs& pairs, const Attention& shape, u32& from, u32& to) {
    u32 begin = segment * SEGMENT, lowest = first_seen(pairs.position(0), shape.window);
    from = lowest > begin ? lowest : begin;
    to = smaller(begin + SEGMENT, pairs.last_position() + 1);
}

// Scores of the positions from .. to into weights[pair][position - segment start]; -inf where a pair does not see.
template <class E>
DEV void segment_scores(Ptr<f32> weights, Ptr<const f32> queries, Ptr<const E> pool, Ptr<const u32> table, u32 segment, u32 from, u32 to,
                        const Pairs& pairs, const Attention& shape) {
    for (u32 key = threadIdx.x; key < SEGMENT; key += ATTENTION_THREADS) {
        u32 position = segment * SEGMENT + key;
        if (position < from || position >= to) {
            for (u32 pair = 0; pair < pairs.count; pair++) weights[pair * SEGMENT + key] = -infinity();
            continue;
        }
        u32 page = table[position / shape.page_size];
        Ptr<const E> elements =
            pool + cell_of(page, pairs.head, 0, position % shape.page_size, shape.n_kv_heads, shape.page_size, shape.head_dim);
        f32 sums[PAIRS];
        for (u32 pair = 0; pair < PAIRS; pair++) sums[pair] = 0.0f;
        for (u32 dim = 0; dim < shape.head_dim; dim += 8) {
            f32 values[8];
            load_eight(elements + dim, values);
            for (u32 pair = 0; pair < PAIRS; pair++)
                if (pair < pairs.count)
                    for (u32 i = 0; i < 8; i++) sums[pair] = fused(queries[pair * MOST_DIMS + dim + i], values[i], sums[pair]);
        }
        for (u32 pair = 0; pair < PAIRS; pair++) {
            if (pair >= pairs.count) continue;
            u32 own = pairs.position(pair);
            bool is_seen = position <= own && position >= first_seen(own, shape.window);
            weights[pair * SEGMENT + key] = is_seen ? sums[pair] * shape.scale : -infinity();
        }
    }
}

// Scores become weights; states[2 pair] and states[2 pair + 1] become m and l. A pair that sees nothing has m = -inf and l = 0.
DEV void segment_weights(Ptr<f32> weights, Ptr<f32> states, const Pairs& pairs) {
    u32 lane = threadIdx.x % WARP;
    for (u32 pair = threadIdx.x / WARP; pair < pairs.count; pair += ATTENTION_THREADS / WARP) {
        f32 most = -infinity();
        bool has_nan = false;
        for (u32 key = lane; key < SEGMENT; key += WARP) {
            f32 score = weights[pair * SEGMENT + key];
            has_nan = has_nan || is_nan(score);
            most = score > most ? score : most;
        }
        most = warp_max(most);
        f32 sum = 0.0f;
        for (u32 key = lane; key < SEGMENT; key += WARP) {
            f32 score = weights[pair * SEGMENT + key];
            f32 weight = score == -infinity() ? 0.0f : exponential(score - most);
            weights[pair * SEGMENT + key] = weight;
            sum += weight;
        }
        sum = warp_sum(has_nan ? float_of(0x7fc00000u) : sum);
        if (lane == 0) {
            states[2 * pair] = most;
            states[2 * pair + 1] = sum;
        }
    }
}

// o of the pairs at dimensions t and t + 128.
template <class E>
DEV void segment_values(f32 (&out)[PAIRS][2], Ptr<const f32> weights, Ptr<const E> pool, Ptr<const u32> table, u32 segment, u32 from, u32 to,
                        const Pairs& pairs, const Attention& shape) {
    for (u32 pair = 0; pair < PAIRS; pair++) out[pair][0] = out[pair][1] = 0.0f;
    for (u32 position = from; position < to; position++) {
        u32 page = table[position / shape.page_size];
        u64 cell = cell_of(page, pairs.head, 1, position % shape.page_size, shape.n_kv_heads, shape.page_size, shape.head_dim);
        f32 values[2];
        for (u32 half = 0; half < 2; half++) {
            u32 dim = threadIdx.x + half * ATTENTION_THREADS;
            values[half] = dim < shape.head_dim ? element_value(pool[cell + dim]) : 0.0f;
        }
        for (u32 pair = 0; pair < PAIRS; pair++) {
            f32 weight = pair < pairs.count ? weights[pair * SEGMENT + position - segment * SEGMENT] : 0.0f;
            // What a pair does not see must not reach it, NaN and infinities included.
            if (weight == 0.0f) continue;
            for (u32 half = 0; half < 2; half++) out[pair][half] = fused(weight, values[half], out[pair][half]);
        }
    }
}

// By what both sides of a merge are multiplied; N takes the place of M.
DEV void merge_factors(f32& most, f32 segment_most, f32& old_factor, f32& new_factor) {
    f32 next = segment_most > most ? segment_most : most;
    old_factor = most == -infinity() ? 0.0f : exponential(most - next);
    new_factor = exponential(segment_most - next);
    most = next;
}
DEV f32 merged(f32 old_value, f32 old_factor, f32 new_value, f32 new_factor) { return fused(old_value, old_factor, new_value * new_factor); }
