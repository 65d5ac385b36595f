// One look at rows of logits: whether all are finite, the largest number, and the lowest index that holds it (greedy picks, T-115).
//
// Shapes: logits [rows, vocab] f32; of each part of 4096 entries best f32, place u32, flags u32 (survey.cuh), each [rows, parts]; then of each row.
// Work: a block of 256 takes a part, a thread 16 entries; a warp merges the parts of a row. Rows that are changed first: sample_shape.cu.
// Numerics: maxima are exact and ties go to the lowest index, so no order matters. NaN is no candidate. A NaN in front, or nothing above minus
// infinity, gives index 0. Roof: bytes, 4 an entry.
#include "survey.cuh"

// grid: (parts, rows)
KERNEL(256)
ictus_survey(Ptr<f32> RESTRICT best, Ptr<u32> RESTRICT place, Ptr<u32> RESTRICT flags, Ptr<const f32> RESTRICT logits, u32 vocab) {
    SHARED(f32, values, 32);
    SHARED(u32, words, 32);
    u64 row = (u64)blockIdx.y * vocab;
    Seen seen = {-infinity(), NOWHERE};
    u32 off = 0, end = smaller(vocab, (blockIdx.x + 1) * PART);
    for (u32 i = blockIdx.x * PART + threadIdx.x; i < end; i += 256) {
        f32 x = logits[row + i];
        off |= is_finite(x) ? 0 : 1;
        seen.look(x, i);
    }
    off = block_sum<256>(off, words);
    put_part(seen, off > 0 ? NOT_FINITE : 0, best, place, flags, values, words);
}
EXPORT(ictus_survey, 256)

// Of a row: NOT_FINITE where a part is; EMPTY where all parts are. grid: rows
KERNEL(32)
ictus_survey_merge(Ptr<f32> RESTRICT row_best, Ptr<u32> RESTRICT token, Ptr<u32> RESTRICT row_flags, Ptr<const f32> RESTRICT best,
                   Ptr<const u32> RESTRICT place, Ptr<const u32> RESTRICT flags, Ptr<const f32> RESTRICT logits, u32 parts, u32 vocab) {
    u64 row = (u64)blockIdx.x * parts;
    Seen seen = {-infinity(), NOWHERE};
    u32 off = 0, empty = 0;
    for (u32 part = threadIdx.x; part < parts; part += WARP) {
        f32 x = best[row + part];
        u32 own = flags[row + part];
        off += own & NOT_FINITE ? 1 : 0;
        empty += own & EMPTY ? 1 : 0;
        seen.look(x, x > seen.most ? (u32)place[row + part] : NOWHERE);
    }
    f32 row_most = warp_max(seen.most);
    u32 at = warp_least(seen.most == row_most ? seen.at : NOWHERE);
    off = warp_sum(off);
    empty = warp_sum(empty);
    if (threadIdx.x == 0) {
        row_best[blockIdx.x] = row_most;
        token[blockIdx.x] = at == NOWHERE || is_nan(logits[(u64)blockIdx.x * vocab]) ? 0 : at;
        row_flags[blockIdx.x] = (off > 0 ? NOT_FINITE : 0) | (empty == parts ? EMPTY : 0);
    }
}
EXPORT(ictus_survey_merge, 32)
