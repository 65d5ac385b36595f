// The best entries of a row, sorted: what the walk of a draw and lists of alternatives look at.
//
// Every entry has a key, larger is better, 0 is none; ties go to the lower id. A pivot is searched five bits at a time, by all parts of all rows at once:
// a pass (reach, one launch) counts in each part how many keys reach each of the 31 next pivots, and the pass behind it adds the parts up. What lies above
// the last pivot, and of those equal to it the lowest ids, one block a row gathers and sorts (bitonic).
// All of it is exact and integers only: no order matters, and there are no atomics.
//
// counts [2, rows, parts, 32] u32: passes take halves in turn; pivots [7, rows] u32: what the passes before the one have found.
#pragma once
#include "common.cuh"

constexpr u32 PART = 4096;
constexpr u32 REACH_THREADS = 256;
constexpr u32 REACH_EACH = PART / REACH_THREADS;
constexpr u32 DIGIT = 5;
constexpr u32 DIGITS = 32;
// Pass 0 looks at the two highest bits.
constexpr u32 PASSES = 7;

DEV u32 shift_of(u32 pass) { return DIGIT * (PASSES - 1 - pass); }

// Whole keys, so that one comparison ranks: the key, then the complement of the id.
DEV u64 ranked(u32 key, u32 id) { return (u64)key << 32 | (u32)~id; }
DEV u32 key_of(u64 entry) { return (u32)(entry >> 32); }
DEV u32 id_of(u64 entry) { return ~(u32)entry; }

// Where the counts and the pivots of a row lie.
struct Reached {
    Ptr<u32> counts, pivots;
    u32 row, rows, parts;

    DEV_MEMBER Ptr<u32> counts_of(u32 pass) const { return counts + ((u64)(pass % 2) * rows + row) * parts * DIGITS; }

    // The pivot behind `pass`: the largest one so far that at least `wanted` keys reach, 0 when fewer do. All threads get it; `scratch` has 32 places a
    // warp.
    template <u32 THREADS> DEV_MEMBER u32 pivot_behind(u32 pass, u32 wanted, Ptr<u32> scratch) const {
        u32 lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, sum = 0, total = 0;
        Ptr<u32> own = counts_of(pass);
        for (u32 part = warp; part < parts; part += THREADS / WARP) sum += own[part * DIGITS + lane];
        sync_block(); // whoever still reads the scratch has read it
        scratch[threadIdx.x] = sum;
        sync_block();
        for (u32 i = 0; i < THREADS / WARP; i++) total += scratch[i * WARP + lane];
        // Counts fall from pivot to pivot, and the last one is 0.
        u32 digit = warp_sum(total >= wanted ? 1u : 0u);
        return pivots[pass * rows + row] | digit << shift_of(pass);
    }
};

// One pass over a part; `pivot` is what the passes before have found. `scratch` as above.
DEV void reach(const u32 (&keys)[REACH_EACH], const Reached& reached, u32 pass, u32 pivot, Ptr<u32> scratch) {
    u32 lane = threadIdx.x % WARP, shift = shift_of(pass), mine = 0;
    UNROLL for (u32 j = 0; j < DIGITS - 1; j++) {
        u32 step = (j + 1) << shift, count = 0;
        // No key is as large as that, where there is no such digit.
        u32 least = step >> shift == j + 1 ? pivot | step : 0xffffffffu;
        UNROLL for (u32 i = 0; i < REACH_EACH; i++) count += keys[i] >= least ? 1 : 0;
        count = warp_sum(count);
        if (lane == j) mine = count;
    }
    sync_block();
    scratch[threadIdx.x] = mine;
    sync_block();
    if (threadIdx.x >= WARP) return;
    u32 total = 0;
    for (u32 i = 0; i < REACH_THREADS / WARP; i++) total += scratch[i * WARP + lane];
    reached.counts_of(pass)[blockIdx.x * DIGITS + lane] = total;
    if (blockIdx.x == 0 && lane == 0) reached.pivots[pass * reached.rows + reached.row] = pivot;
}

constexpr u32 HEAD_THREADS = 1024;
constexpr u32 HEAD_WARPS = HEAD_THREADS / WARP;
static_assert(HEAD_WARPS == WARP, "a lane for each warp");
// Groups of 32 entries that a warp loads at once.
constexpr u32 GROUPS = 8;

// The keys of GROUPS groups of entries from `base` on; 0 from `end` on.
template <class Keys> DEV void keys_from(u32 (&out)[GROUPS], const Keys& keys, u32 base, u32 end) {
    UNROLL for (u32 j = 0; j < GROUPS; j++) {
        u32 i = base + j * WARP + threadIdx.x % WARP;
        out[j] = i < end ? keys.at(i) : 0;
    }
}

// The sum over the warps before this one, each with one number, and over all of them in `total`. `scratch` has a place for each.
DEV u32 warps_before(u32 value, Ptr<u32> scratch, u32& total) {
    u32 lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    sync_block();
    if (lane == 0) scratch[warp] = value;
    sync_block();
    u32 other = scratch[lane];
    total = warp_sum(other);
    return warp_sum(lane < warp ? other : 0u);
}

// Fills `sorted` with the best SIZE entries, best first, and 0 behind them; answers how many entries have a key. `pivot`: the largest that SIZE keys reach,
// 0 when fewer do. A warp takes consecutive entries, so that ties come in the order of ids.
template <u32 SIZE, class Keys> DEV u32 head_of(const Keys& keys, u32 count, u32 pivot, Ptr<u64> sorted, Ptr<u32> scratch) {
    u32 lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, below = (1u << lane) - 1;
    u32 share = (count + HEAD_WARPS * WARP - 1) / (HEAD_WARPS * WARP) * WARP;
    u32 from = smaller(warp * share, count), to = smaller(from + share, count), own[GROUPS];
    for (u32 i = threadIdx.x; i < SIZE; i += HEAD_THREADS) sorted[i] = 0;
    u32 above = 0, equal = 0, present = 0;
    for (u32 base = from; base < to; base += GROUPS * WARP) {
        keys_from(own, keys, base, to);
        UNROLL for (u32 j = 0; j < GROUPS; j++) {
            above += own[j] > pivot ? 1 : 0;
            equal += own[j] == pivot && own[j] != 0 ? 1 : 0;
            present += own[j] != 0 ? 1 : 0;
        }
    }
    above = warp_sum(above);
    equal = warp_sum(equal);
    u32 total_above, total_equal;
    u32 above_at = warps_before(above, scratch, total_above);
    u32 equal_at = warps_before(equal, scratch, total_equal) + total_above;
    present = block_sum<HEAD_THREADS>(present, scratch);
    for (u32 base = from; base < to; base += GROUPS * WARP) {
        keys_from(own, keys, base, to);
        u32 any = 0;
        UNROLL for (u32 j = 0; j < GROUPS; j++) any |= own[j] >= pivot && own[j] != 0 ? 1u << j : 0u;
        any = warp_or(any);
        UNROLL for (u32 j = 0; j < GROUPS; j++) {
            if (!(any >> j & 1)) continue;
            u32 id = base + j * WARP + lane;
            u32 higher = warp_or(own[j] > pivot ? 1u << lane : 0u), same = warp_or(own[j] == pivot && own[j] != 0 ? 1u << lane : 0u);
            if (higher >> lane & 1) sorted[above_at + ones(higher & below)] = ranked(own[j], id);
            u32 place = equal_at + ones(same & below);
            if ((same >> lane & 1) && place < SIZE) sorted[place] = ranked(own[j], id);
            above_at += ones(higher);
            equal_at += ones(same);
        }
    }
    for (u32 run = 2; run <= SIZE; run *= 2) {
        for (u32 step = run / 2; step > 0; step /= 2) {
            sync_block();
            for (u32 pair = threadIdx.x; pair < SIZE / 2; pair += HEAD_THREADS) {
                u32 i = pair + (pair & ~(step - 1)), other = i + step;
                u64 a = sorted[i], b = sorted[other];
                bool is_descending = (i & run) == 0;
                if (is_descending == (a < b)) {
                    sorted[i] = b;
                    sorted[other] = a;
                }
            }
        }
    }
    sync_block();
    return present;
}
