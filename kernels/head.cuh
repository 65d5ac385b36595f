// The best entries of a row, sorted: what the walk of a draw and lists of alternatives look at.
//
// Every entry has a key, larger is better, 0 is none; ties go to the lower id. A pivot is searched four bits at a time: fifteen counts a pass,
// eight passes, no histogram and no atomics. What lies above it, and of those equal to it the lowest ids, is gathered and sorted (bitonic).
// All of it is exact and integers only: no order matters.
#pragma once
#include "common.cuh"

constexpr u32 HEAD_THREADS = 512;

// Whole keys, so that one comparison ranks: the key, then the complement of the id.
DEV u64 ranked(u32 key, u32 id) { return (u64)key << 32 | (u32)~id; }
DEV u32 key_of(u64 entry) { return (u32)(entry >> 32); }
DEV u32 id_of(u64 entry) { return ~(u32)entry; }

// The largest pivot that at least `wanted` keys reach; 0 when fewer have a key at all.
template <class Keys> DEV u32 pivot_of(const Keys& keys, u32 count, u32 wanted, Ptr<u32> scratch) {
    u32 pivot = 0;
    for (i32 shift = 28; shift >= 0; shift -= 4) {
        u32 reached[15];
        for (u32 j = 0; j < 15; j++) reached[j] = 0;
        for (u32 i = threadIdx.x; i < count; i += HEAD_THREADS) {
            u32 key = keys.at(i);
            for (u32 j = 0; j < 15; j++) reached[j] += key >= (pivot | (j + 1) << shift) ? 1 : 0;
        }
        u32 digit = 0;
        for (u32 j = 0; j < 15; j++)
            if (block_sum<HEAD_THREADS>(reached[j], scratch) >= wanted) digit = j + 1;
        pivot |= digit << shift;
    }
    return pivot;
}

// Fills `sorted` with the best SIZE entries, best first, and 0 behind them; answers how many entries have a key.
template <u32 SIZE, class Keys> DEV u32 head_of(const Keys& keys, u32 count, Ptr<u64> sorted, Ptr<u32> scratch) {
    u32 pivot = pivot_of(keys, count, SIZE, scratch);
    for (u32 i = threadIdx.x; i < SIZE; i += HEAD_THREADS) sorted[i] = 0;
    // Consecutive entries a thread, so that ties come in the order of ids.
    u32 share = (count + HEAD_THREADS - 1) / HEAD_THREADS;
    u32 from = smaller(threadIdx.x * share, count), to = smaller(from + share, count);
    u32 above = 0, equal = 0, present = 0;
    for (u32 i = from; i < to; i++) {
        u32 key = keys.at(i);
        above += key > pivot ? 1 : 0;
        equal += key == pivot && key != 0 ? 1 : 0;
        present += key != 0 ? 1 : 0;
    }
    u32 total_above, total_equal, total_present;
    u32 above_at = block_offset<HEAD_THREADS>(above, scratch, total_above);
    u32 equal_at = block_offset<HEAD_THREADS>(equal, scratch, total_equal) + total_above;
    block_offset<HEAD_THREADS>(present, scratch, total_present);
    for (u32 i = from; i < to; i++) {
        u32 key = keys.at(i);
        if (key > pivot) sorted[above_at++] = ranked(key, i);
        if (key == pivot && key != 0) {
            if (equal_at < SIZE) sorted[equal_at] = ranked(key, i);
            equal_at++;
        }
    }
    for (u32 run = 2; run <= SIZE; run *= 2) {
        for (u32 step = run / 2; step > 0; step /= 2) {
            sync_block();
            for (u32 i = threadIdx.x; i < SIZE; i += HEAD_THREADS) {
                u32 other = i ^ step;
                if (other < i) continue;
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
    return total_present;
}
