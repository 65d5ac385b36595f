// One look at rows of logits: whether all are finite, the largest number, and the lowest index that holds it (greedy picks, T-115).
//
// Shapes: logits [rows, vocab] f32; of each part of 4096 entries best f32, place u32, flags u32, each [rows, parts]; then of each row.
// Work: a block of 256 takes a part, a thread 16 entries; a warp merges the parts of a row.
// Numerics: maxima are exact and ties go to the lowest index, so no order matters. NaN is no candidate. A NaN in front, or nothing above minus
// infinity, gives index 0. Roof: bytes, 4 an entry.
#include "common.cuh"

constexpr u32 PART = 4096;
constexpr u32 NOT_FINITE = 1;

// grid: (parts, rows)
KERNEL(256)
ictus_survey(Ptr<f32> RESTRICT best, Ptr<u32> RESTRICT place, Ptr<u32> RESTRICT flags, Ptr<const f32> RESTRICT logits, u32 vocab) {
    SHARED(f32, values, 32);
    SHARED(u32, words, 32);
    u64 row = (u64)blockIdx.y * vocab;
    f32 most = -infinity();
    u32 at = 0xffffffffu, off = 0, end = smaller(vocab, (blockIdx.x + 1) * PART);
    for (u32 i = blockIdx.x * PART + threadIdx.x; i < end; i += 256) {
        f32 x = logits[row + i];
        off |= is_finite(x) ? 0 : NOT_FINITE;
        if (x > most) {
            most = x;
            at = i;
        }
    }
    f32 block_most = block_max<256>(most, values);
    at = block_least<256>(most == block_most ? at : 0xffffffffu, words);
    off = block_sum<256>(off, words);
    if (threadIdx.x == 0) {
        u64 part = (u64)blockIdx.y * gridDim.x + blockIdx.x;
        best[part] = block_most;
        place[part] = at;
        flags[part] = off > 0 ? NOT_FINITE : 0;
    }
}
EXPORT(ictus_survey, 256)

// grid: rows
KERNEL(32)
ictus_survey_merge(Ptr<f32> RESTRICT row_best, Ptr<u32> RESTRICT token, Ptr<u32> RESTRICT row_flags, Ptr<const f32> RESTRICT best,
                   Ptr<const u32> RESTRICT place, Ptr<const u32> RESTRICT flags, Ptr<const f32> RESTRICT logits, u32 parts, u32 vocab) {
    u64 row = (u64)blockIdx.x * parts;
    f32 most = -infinity();
    u32 at = 0xffffffffu, off = 0;
    for (u32 part = threadIdx.x; part < parts; part += WARP) {
        f32 x = best[row + part];
        off |= flags[row + part];
        if (x > most) {
            most = x;
            at = place[row + part];
        }
    }
    f32 row_most = warp_max(most);
    at = warp_least(most == row_most ? at : 0xffffffffu);
    off = warp_sum(off);
    if (threadIdx.x == 0) {
        row_best[blockIdx.x] = row_most;
        token[blockIdx.x] = at == 0xffffffffu || is_nan(logits[(u64)blockIdx.x * vocab]) ? 0 : at;
        row_flags[blockIdx.x] = off > 0 ? NOT_FINITE : 0;
    }
}
EXPORT(ictus_survey_merge, 32)
