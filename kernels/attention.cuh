// Attention over one segment of positions, for some pairs of a row and a query head that read the same key and value head.
//
//   score[pair][p] = scale * (query[pair] . key[p])           for the positions p that the row sees, else -inf
//   m = max_p score,  weight[p] = e^(score[p] - m),  l = sum_p weight[p],  o = sum_p weight[p] * value[p]
//   merge of (m, l, o) into (M, L, O):   N = max(M, m),  L = L e^(M - N) + l e^(m - N),  O = O e^(M - N) + o e^(m - N)
//
// A segment is 256 positions, cut at absolute positions; segments are merged in ascending order and the result is O / L. Decode runs segments as blocks
// of their own and merges later, prefill walks them: both by the functions of this file, so a row has the same bits by either way, whatever its
// batch, its chunk, its pages and those that share them are.
//
// Work: 128 threads. Scores: a thread takes keys t and t + 128 for all pairs. Weights: a warp takes some of the pairs. Values: a thread takes
// dimensions t and t + 128 for all pairs, so a step reads a whole value side by side.
// Shared: 2 KB a pair. Registers: two sums a pair and 16 elements.
// Numerics: a score is one fused chain over ascending dimensions; l is added by lane (ascending positions of lane mod 32), then butterfly; o is one
// fused chain over ascending positions. A position that no row of the block sees is not read; one that a pair does not see has weight 0 and is not added.
// Roof: bytes of the pages read once for all pairs of a block. Large chunks want tensor cores, which this is not.
// Source: arXiv 1805.02867, 2205.14135
#pragma once
#include "math.cuh"
#include "pages.cuh"
#include "split.cuh"

// Pairs that a block of one sequence takes.
constexpr u32 PAIRS = 8;
constexpr u32 MOST_DIMS = 256;
constexpr u32 ATTENTION_THREADS = 128;

// Queries of the pairs to shared memory, so that each is read once.
template <class P> DEV void load_queries(Ptr<f32> queries, Ptr<const f32> all, const P& pairs, const Attention& shape) {
    for (u32 i = threadIdx.x; i < pairs.count * shape.head_dim; i += ATTENTION_THREADS) {
        u32 pair = i / shape.head_dim, dim = i % shape.head_dim;
        queries[pair * MOST_DIMS + dim] = all[pairs.query(pair) * shape.head_dim + dim];
    }
}

// Scores of the positions from .. to into weights[pair][position - segment start]; -inf where a pair does not see.
template <class E, class P>
DEV void segment_scores(Ptr<f32> weights, Ptr<const f32> queries, Ptr<const E> pool, Ptr<const u32> table, u32 segment, u32 from, u32 to,
                        const P& pairs, const Attention& shape) {
    for (u32 key = threadIdx.x; key < SEGMENT; key += ATTENTION_THREADS) {
        u32 position = segment * SEGMENT + key;
        if (position < from || position >= to) {
            for (u32 pair = 0; pair < pairs.count; pair++) weights[pair * SEGMENT + key] = -infinity();
            continue;
        }
        u32 page = table[position / shape.page_size];
        Ptr<const E> elements =
            pool + cell_of(page, pairs.head, 0, position % shape.page_size, shape.n_kv_heads, shape.page_size, shape.head_dim);
        f32 sums[P::MOST];
        for (u32 pair = 0; pair < P::MOST; pair++) sums[pair] = 0.0f;
        for (u32 dim = 0; dim < shape.head_dim; dim += 8) {
            f32 values[8];
            load_eight(elements + dim, values);
            for (u32 pair = 0; pair < P::MOST; pair++)
                if (pair < pairs.count)
                    for (u32 i = 0; i < 8; i++) sums[pair] = fused(queries[pair * MOST_DIMS + dim + i], values[i], sums[pair]);
        }
        for (u32 pair = 0; pair < P::MOST; pair++) {
            if (pair >= pairs.count) continue;
            u32 own = pairs.position(pair);
            bool is_seen = position <= own && position >= first_seen(own, shape.window);
            weights[pair * SEGMENT + key] = is_seen ? sums[pair] * shape.scale : -infinity();
        }
    }
}

// Scores become weights; states[2 pair] and states[2 pair + 1] become m and l. A pair that sees nothing has m = -inf and l = 0.
template <class P> DEV void segment_weights(Ptr<f32> weights, Ptr<f32> states, const P& pairs) {
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
template <class E, class P>
DEV void segment_values(f32 (&out)[P::MOST][2], Ptr<const f32> weights, Ptr<const E> pool, Ptr<const u32> table, u32 segment, u32 from, u32 to,
                        const P& pairs, const Attention& shape) {
    for (u32 pair = 0; pair < P::MOST; pair++) out[pair][0] = out[pair][1] = 0.0f;
    for (u32 position = from; position < to; position++) {
        u32 page = table[position / shape.page_size];
        u64 cell = cell_of(page, pairs.head, 1, position % shape.page_size, shape.n_kv_heads, shape.page_size, shape.head_dim);
        f32 values[2];
        for (u32 half = 0; half < 2; half++) {
            u32 dim = threadIdx.x + half * ATTENTION_THREADS;
            values[half] = dim < shape.head_dim ? element_value(pool[cell + dim]) : 0.0f;
        }
        for (u32 pair = 0; pair < P::MOST; pair++) {
            f32 weight = pair < pairs.count ? weights[pair * SEGMENT + position - segment * SEGMENT] : 0.0f;
            // What a pair does not see must not reach it, NaN and infinities included.
            if (weight == 0.0f) continue;
            for (u32 half = 0; half < 2; half++) out[pair][half] = fused(weight, values[half], out[pair][half]);
        }
    }
}

// By what both sides of a merge are multiplied; N takes the place of M.
struct Merge {
    static DEV_MEMBER void factors(f32& most, f32 segment_most, f32& old_factor, f32& new_factor) {
        f32 next = segment_most > most ? segment_most : most;
        old_factor = most == -infinity() ? 0.0f : exponential(most - next);
        new_factor = exponential(segment_most - next);
        most = next;
    }
};
