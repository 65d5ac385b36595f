// What a block finds in its part of a row: the largest number and the lowest index that holds it.
//
// Flags of a part: NOT_FINITE, an entry of the model's row is a NaN or an infinity; EMPTY, the mask allows nothing of it.
#pragma once
#include "common.cuh"

constexpr u32 PART = 4096;
constexpr u32 NOT_FINITE = 1;
constexpr u32 EMPTY = 2;
constexpr u32 NOWHERE = 0xffffffffu;

// What a thread has seen; it looks at its entries in ascending order.
struct Seen {
    f32 most;
    u32 at;
    DEV_MEMBER void look(f32 x, u32 i) {
        if (x > most) {
            most = x;
            at = i;
        }
    }
};

// Writes what the threads of a block of 256 have seen of part (blockIdx.y, blockIdx.x). `values` and `words` have 32 places.
DEV void put_part(const Seen& seen, u32 part_flags, Ptr<f32> best, Ptr<u32> place, Ptr<u32> flags, Ptr<f32> values, Ptr<u32> words) {
    f32 most = block_max<256>(seen.most, values);
    u32 at = block_least<256>(seen.most == most ? seen.at : NOWHERE, words);
    if (threadIdx.x != 0) return;
    u64 part = (u64)blockIdx.y * gridDim.x + blockIdx.x;
    best[part] = most;
    place[part] = at;
    flags[part] = part_flags;
}
