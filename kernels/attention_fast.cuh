// Attention over one segment of positions on tensor cores, for up to 16 SETS pairs of a row and a query head that read the same key and value head.
//
//   q' = f16(q * scale * log2 e),   score[pair][p] = q'[pair] . key[p]      for the positions p that the row sees, else -inf
//   tile by tile, ascending:  n = max(m, max_p score),  f = 2^(m - n),  weight[p] = 2^(score[p] - n)
//                             l = l f + sum_p weight[p],  o = o f + sum_p f16(weight[p]) value[p],  m = n
//
// from m = -inf, l = 0, o = 0 at each segment. Segments are those of attention.cuh, tiles are KEYS positions, both cut at absolute positions. A tile of which
// a row sees nothing leaves its state as it is to the bit: weights are 0 and f is exactly 1. So a row has the same bits whether its segments are blocks
// of their own or are walked, whatever its neighbours in a block are, and whether anybody looks at a tile that it does not see.
//
// Work: 128 threads, four warps. Each set of 16 pairs, the rows of an mma, is that of 4 / SETS warps, which compute the same scores and each a part of
// the dimensions of o. While keys are worked on their values are on the way, and while those are the next keys.
// Shared: queries, a tile of keys and one of values, in f16. Rows are padded by 16 bytes, so that the eight rows of a matrix lie in different banks.
// Numerics: products of f16 are exact, sums are in f32 as the tensor cores add; l is added by lane, then over the four lanes of a row. Nothing that a row does
// not see reaches it: its scores are replaced, and values that are NaN or infinite are taken out of the tile; a row that sees one becomes NaN as a whole.
// Positions that no pair of the block sees are not read.
// Roof: the tensor cores for many rows, bytes of the pages for few.
// Source: arXiv 1805.02867, 2205.14135, 2307.08691
#pragma once
#include "pages.cuh"
#include "split.cuh"

// A loop that stays one: unrolled, the assembler would have all of its loads under way at once and no registers left.
#ifdef __CUDACC__
#define ROLLED _Pragma("unroll 1")
#else
#define ROLLED
#endif

constexpr u32 FAST_THREADS = 128;
// Rows of an mma.
constexpr u32 SET = 16;
// In the place of an element offset: nobody sees the position.
constexpr u64 NOWHERE = ~(u64)0;

template <u32 D> struct Tile {
    static constexpr u32 KEYS = D > 128 ? 16 : 32;
    static constexpr u32 COLUMNS = D / 8;          // of 16 bytes
    static constexpr u32 STRIDE = COLUMNS + 1;     // of a row in shared memory
    static constexpr u32 SIZE = KEYS * STRIDE;
    static constexpr u32 QUADS = KEYS * COLUMNS / FAST_THREADS; // of a thread
    static_assert(KEYS * COLUMNS % FAST_THREADS == 0 && SEGMENT % KEYS == 0);
};

// 2^x for x <= 0 or a little above it, within three units in the last place: x = n + r, the Taylor sum of 2^r up to r^6, and 2^n. Exactly 1 at 0; exactly 0 from
// -126.5 on down to -infinity; NaN stays NaN.
DEV f32 two_to(f32 x) {
    constexpr f32 ROUND = 12582912.0f;
    x = x < -127.0f ? -127.0f : x;
    f32 shifted = x + ROUND, r = x - (shifted - ROUND);
    f32 sum = 1.5403530e-4f;
    sum = fused(sum, r, 1.3333558e-3f);
    sum = fused(sum, r, 9.6181291e-3f);
    sum = fused(sum, r, 5.5504109e-2f);
    sum = fused(sum, r, 2.4022651e-1f);
    sum = fused(sum, r, 6.9314718e-1f);
    sum = fused(sum, r, 1.0f);
    // The integer n is in the low bits of what was shifted; the exponent of 2^-127 is 0, which is the number 0.
    return sum * float_of((bits_of(shifted) << 23) + 0x3f800000u);
}

// By what both sides of a merge are multiplied; the larger of the two takes the place of `most`.
struct FastMerge {
    static DEV_MEMBER void factors(f32& most, f32 segment_most, f32& old_factor, f32& new_factor) {
        f32 next = segment_most > most ? segment_most : most;
        old_factor = two_to(most - next);
        new_factor = two_to(segment_most - next);
        most = next;
    }
};

DEV u32 two_halves(f32 low, f32 high) { return to_f16(low) | (u32)to_f16(high) << 16; }

// Of a word of two f16: 0xffff in the halves that are NaN or infinite.
DEV u32 not_finite(u32 word) {
    u32 low = (word & 0x7c00u) == 0x7c00u ? 0xffffu : 0u, high = (word & 0x7c000000u) == 0x7c000000u ? 0xffff0000u : 0u;
    return low | high;
}

// What a warp's set sees: rows g and g + 8 as a lane has them, g = lane / 4; and the positions that any of its rows sees.
struct Sight {
    u32 first[2], position[2]; // first > position: no such row
    u32 from, to;

    DEV_MEMBER bool sees(u32 row, u32 key) const { return key >= first[row] && key <= position[row]; }
    // Of the positions from `begin` on, 32 at most, a bit for each that the row sees.
    DEV_MEMBER u32 bits(u32 row, u32 begin, u32 count) const {
        u32 low = first[row] > begin ? first[row] - begin : 0, high = smaller(count, position[row] + 1 - smaller(begin, position[row] + 1));
        return low < high ? (0xffffffffu >> (32 - (high - low))) << low : 0;
    }
    template <class P> DEV_MEMBER void look(const P& pairs, u32 set, u32 window) {
        u32 g = threadIdx.x % WARP / 4;
        for (u32 row = 0; row < 2; row++) {
            u32 pair = set * SET + 8 * row + g;
            position[row] = pair < pairs.count ? pairs.position(pair) : 0;
            first[row] = pair < pairs.count ? first_seen(position[row], window) : 1;
        }
        from = to = 0;
        if (set * SET >= pairs.count) return;
        from = first_seen(pairs.position(set * SET), window);
        for (u32 pair = set * SET; pair < smaller(pairs.count, set * SET + SET); pair++) {
            u32 own = pairs.position(pair);
            from = smaller(from, first_seen(own, window));
            to = own + 1 > to ? own + 1 : to;
        }
    }
};

// The queries of all sets to shared memory; rows that are no pair are zeros.
template <u32 D, u32 SETS, class P> DEV void fast_queries(Ptr<Quad> queries, Ptr<const f32> all, const P& pairs, f32 scale) {
    f32 factor = scale * 1.44269504088896340736f;
    for (u32 i = threadIdx.x; i < SETS * SET * Tile<D>::COLUMNS; i += FAST_THREADS) {
        u32 pair = i / Tile<D>::COLUMNS, column = i % Tile<D>::COLUMNS;
        Quad quad = {0, 0, 0, 0};
        if (pair < pairs.count) {
            f32 x[8];
            load_eight(all + (pairs.query(pair) * D + 8 * column), x);
            for (u32 dim = 0; dim < 8; dim++) x[dim] *= factor;
            quad = {two_halves(x[0], x[1]), two_halves(x[2], x[3]), two_halves(x[4], x[5]), two_halves(x[6], x[7])};
        }
        store_quad(queries + (pair * Tile<D>::STRIDE + column), quad);
    }
}

// The element offsets of a tile's keys: of those positions from .. to that lie in it.
template <u32 D>
DEV void find_cells(Ptr<u64> cells, Ptr<const u32> table, u32 tile, u32 from, u32 to, u32 head, const Attention& shape) {
    if (threadIdx.x >= Tile<D>::KEYS) return;
    u32 position = tile * Tile<D>::KEYS + threadIdx.x;
    u64 cell = NOWHERE;
    if (position >= from && position < to) {
        u32 page = table[position / shape.page_size];
        cell = cell_of(page, head, 0, position % shape.page_size, shape.n_kv_heads, shape.page_size, D);
    }
    cells[threadIdx.x] = cell;
}

// Starts a thread's part of the copy of a tile: of the keys, or `behind` elements further of the values. Positions that nobody sees become zeros.
template <u32 D> DEV void bring(Ptr<Quad> tile, Ptr<const u16> pool, Ptr<u64> cells, u32 behind) {
    for (u32 i = 0; i < Tile<D>::QUADS; i++) {
        u32 at = threadIdx.x + i * FAST_THREADS, column = at % Tile<D>::COLUMNS;
        u64 cell = cells[at / Tile<D>::COLUMNS];
        bool is_seen = cell != NOWHERE;
        copy_async(tile + (at / Tile<D>::COLUMNS * Tile<D>::STRIDE + column), pool + (is_seen ? cell + behind + 8 * column : 0), is_seen ? 16 : 0);
    }
    copy_commit();
}

// Takes what is NaN or infinite out of the thread's part of a tile of values, once it is there: a bit for each position that had some.
template <u32 D> DEV u32 take_odd(Ptr<Quad> tile) {
    u32 positions = 0;
    for (u32 i = 0; i < Tile<D>::QUADS; i++) {
        u32 at = threadIdx.x + i * FAST_THREADS, key = at / Tile<D>::COLUMNS;
        Ptr<Quad> place = tile + (key * Tile<D>::STRIDE + at % Tile<D>::COLUMNS);
        Quad quad = load_quad(place);
        Quad odd = {not_finite(quad.x), not_finite(quad.y), not_finite(quad.z), not_finite(quad.w)};
        if ((odd.x | odd.y | odd.z | odd.w) == 0) continue;
        store_quad(place, Quad{quad.x & ~odd.x, quad.y & ~odd.y, quad.z & ~odd.z, quad.w & ~odd.w});
        positions |= 1u << key;
    }
    return positions;
}

// Products of a set's queries with the keys of a tile: of eight keys as an mma's c.
template <u32 D> DEV void fast_scores(f32 (&scores)[Tile<D>::KEYS / 8][4], Ptr<Quad> queries, Ptr<Quad> keys) {
    u32 lane = threadIdx.x % WARP;
    for (u32 j = 0; j < Tile<D>::KEYS / 8; j++)
        for (u32 i = 0; i < 4; i++) scores[j][i] = 0.0f;
    ROLLED for (u32 step = 0; step < D / 16; step++) {
        u32 a[4];
        load_matrices(a, queries + (lane % 16 * Tile<D>::STRIDE + 2 * step + lane / 16));
        for (u32 j = 0; j < Tile<D>::KEYS / 8; j += 2) {
            u32 b[4];
            load_matrices(b, keys + ((8 * j + lane / 16 * 8 + lane % 8) * Tile<D>::STRIDE + 2 * step + lane / 8 % 2));
            u32 one[2] = {b[0], b[1]}, two[2] = {b[2], b[3]};
            mma_f16(scores[j], a, one);
            mma_f16(scores[j + 1], a, two);
        }
    }
}

// Scores of the tile from `begin` on become weights, in the form of an mma's a; m, l and f of both rows.
template <u32 KEYS>
DEV void fast_weights(u32 (&weights)[KEYS / 16][4], f32 (&most)[2], f32 (&sum)[2], f32 (&factor)[2], f32 (&scores)[KEYS / 8][4], u32 begin,
                      const Sight& sight) {
    u32 column = threadIdx.x % 4 * 2;
    for (u32 row = 0; row < 2; row++) {
        f32 next = most[row];
        for (u32 j = 0; j < KEYS / 8; j++)
            for (u32 i = 0; i < 2; i++) {
                f32& score = scores[j][2 * row + i];
                score = sight.sees(row, begin + 8 * j + column + i) ? score : -infinity();
                next = score > next ? score : next;
            }
        for (u32 lanes = 1; lanes < 4; lanes *= 2) {
            f32 other = shuffle_xor(next, lanes);
            next = other > next ? other : next;
        }
        f32 base = next == -infinity() ? 0.0f : next;
        factor[row] = two_to(most[row] - base);
        f32 added = 0.0f;
        for (u32 j = 0; j < KEYS / 8; j++)
            for (u32 i = 0; i < 2; i++) {
                f32& score = scores[j][2 * row + i];
                score = two_to(score - base);
                added += score;
            }
        sum[row] = fused(sum[row], factor[row], added);
        most[row] = next;
    }
    for (u32 step = 0; step < KEYS / 16; step++)
        for (u32 i = 0; i < 4; i++) {
            f32(&pair)[4] = scores[2 * step + i / 2];
            weights[step][i] = two_halves(pair[i % 2 * 2], pair[i % 2 * 2 + 1]);
        }
}

// o takes up weights times the values of a tile, at N columns from `first` on.
template <u32 D, u32 N>
DEV void fast_values(f32 (&out)[N][4], const u32 (&weights)[Tile<D>::KEYS / 16][4], Ptr<Quad> values, u32 first) {
    // With 32 keys a load has both steps of one column, with 16 one step of two.
    constexpr u32 KEYS = Tile<D>::KEYS, STEPS = KEYS / 16, AT_ONCE = 2 / STEPS;
    u32 lane = threadIdx.x % WARP;
    for (u32 column = 0; column < N; column += AT_ONCE) {
        u32 b[4];
        load_matrices_transposed(b, values + (lane % KEYS * Tile<D>::STRIDE + first + column + lane / KEYS));
        u32 one[2] = {b[0], b[1]}, two[2] = {b[2], b[3]};
        mma_f16(out[column], weights[0], one);
        mma_f16(out[column + AT_ONCE - 1], weights[STEPS - 1], two);
    }
}

// What the threads of a block share.
template <u32 D, u32 SETS> struct FastShared {
    static constexpr u32 PARTS = 4 / SETS;                  // warps of a set
    static constexpr u32 OWN = Tile<D>::COLUMNS / PARTS;    // columns of eight dimensions of o that are a warp's
    static constexpr u32 QUERIES = SETS * SET * Tile<D>::STRIDE;
    static_assert(PARTS * SETS == 4 && OWN * PARTS == Tile<D>::COLUMNS);
    Ptr<Quad> queries, keys, values;
    Ptr<u64> cells; // of two tiles
    Ptr<u32> odd;   // of each warp the positions of the tile whose values were no numbers
};

// m, l and o of a warp's rows over the positions from .. to, which lie in one segment and are some. By all threads; the queries need no barrier before.
template <u32 D, u32 SETS>
DEV void fast_segment(f32 (&out)[FastShared<D, SETS>::OWN][4], f32 (&most)[2], f32 (&sum)[2], const FastShared<D, SETS>& shared,
                      Ptr<const u16> pool, Ptr<const u32> table, u32 from, u32 to, u32 head, const Sight& sight, const Attention& shape) {
    constexpr u32 KEYS = Tile<D>::KEYS, PARTS = FastShared<D, SETS>::PARTS, OWN = FastShared<D, SETS>::OWN;
    u32 warp = threadIdx.x / WARP, value_offset = shape.page_size * D;
    for (u32 row = 0; row < 2; row++) {
        most[row] = -infinity();
        sum[row] = 0.0f;
    }
    for (u32 column = 0; column < OWN; column++)
        for (u32 i = 0; i < 4; i++) out[column][i] = 0.0f;
    u32 last = (to - 1) / KEYS;
    sync_block(); // the tiles of the segment before were read
    find_cells<D>(shared.cells + from / KEYS % 2 * KEYS, table, from / KEYS, from, to, head, shape);
    sync_block();
    bring<D>(shared.keys, pool, shared.cells + from / KEYS % 2 * KEYS, 0);
    for (u32 tile = from / KEYS; tile <= last; tile++) {
        u32 begin = tile * KEYS;
        Ptr<u64> cells = shared.cells + tile % 2 * KEYS, next_cells = shared.cells + (tile + 1) % 2 * KEYS;
        bool is_seen = begin < sight.to && begin + KEYS > sight.from;
        if (tile < last) find_cells<D>(next_cells, table, tile + 1, from, to, head, shape);
        copy_wait<0>();
        sync_block(); // the keys are there, and the next tile's cells; the values of the tile before were read
        bring<D>(shared.values, pool, cells, value_offset);
        u32 weights[KEYS / 16][4];
        if (is_seen) {
            f32 scores[KEYS / 8][4], factor[2];
            fast_scores<D>(scores, shared.queries + warp / PARTS * SET * Tile<D>::STRIDE, shared.keys);
            fast_weights<KEYS>(weights, most, sum, factor, scores, begin, sight);
            for (u32 column = 0; column < OWN; column++)
                for (u32 i = 0; i < 4; i++) out[column][i] *= factor[i / 2];
        }
        copy_wait<0>();
        u32 odd = warp_or(take_odd<D>(shared.values));
        if (threadIdx.x % WARP == 0) shared.odd[warp] = odd;
        sync_block(); // the values are there; the keys were read
        if (tile < last) bring<D>(shared.keys, pool, next_cells, 0);
        if (!is_seen) continue;
        fast_values<D, OWN>(out, weights, shared.values, warp % PARTS * OWN);
        odd = shared.odd[0] | shared.odd[1] | shared.odd[2] | shared.odd[3];
        for (u32 row = 0; row < 2; row++)
            if (odd & sight.bits(row, begin, KEYS)) sum[row] = float_of(0x7fc00000u);
    }
    for (u32 row = 0; row < 2; row++)
        for (u32 lanes = 1; lanes < 4; lanes *= 2) sum[row] += shuffle_xor(sum[row], lanes);
}
