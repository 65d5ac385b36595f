// What log-probabilities of a picked token and of the best alternatives are made of (T-122).
//
// Shapes: logits [rows, vocab] f32, shaped; counts and pivots of sample_reach.cu over them; tokens [rows] u32; best [rows] of sample_survey.cu or
// sample_shape.cu, sums [rows] of sample_weights.cu at temperature 1; of each row a record of 44 words:
//
//   0 best, 1 sum, 2 the token's logit (minus infinity past the row)      bits of f32
//   3 how many entries there are, 4.. their ids, 24.. their logits         best first, at most 20, NaN left out, ties to the lower id
//
// Work: a block of 1024 takes a row (head.cuh). Numerics: nothing is rounded here; the host takes the logarithm of the sum in f64.
// Roof: the row twice out of the cache.
#include "sample_head.cuh"

constexpr u32 TOP = 20;
constexpr u32 HEAD = HEAD_OF_LOGPROBS;
constexpr u32 RECORD = 4 + 2 * TOP;

// Rows that nobody wants them of (`wanted` not above 0) get zeros. grid: rows
KERNEL(1024)
ictus_logprobs(Ptr<u32> RESTRICT records, Ptr<const f32> RESTRICT logits, Ptr<u32> RESTRICT counts, Ptr<u32> RESTRICT pivots,
               Ptr<const u32> RESTRICT tokens, Ptr<const f32> RESTRICT best, Ptr<const f32> RESTRICT sums, Ptr<const f32> RESTRICT wanted, u32 vocab) {
    SHARED(u64, sorted, HEAD);
    SHARED(u32, scratch, HEAD_THREADS);
    u32 row = blockIdx.x;
    Ptr<u32> record = records + (u64)row * RECORD;
    if (!(wanted[row] > 0.0f)) {
        if (threadIdx.x < RECORD) record[threadIdx.x] = 0;
        return;
    }
    Logits keys = {logits + (u64)row * vocab};
    Reached reached = {counts, pivots, row, gridDim.x, (vocab + PART - 1) / PART};
    u32 pivot = reached.pivot_behind<HEAD_THREADS>(PASSES - 1, HEAD, scratch);
    u32 count = smaller(head_of<HEAD>(keys, vocab, pivot, sorted, scratch), TOP);
    if (threadIdx.x < TOP) {
        bool is_there = threadIdx.x < count;
        u32 id = is_there ? id_of(sorted[threadIdx.x]) : 0;
        record[4 + threadIdx.x] = id;
        record[4 + TOP + threadIdx.x] = is_there ? bits_of(keys.logits[id]) : 0;
    }
    if (threadIdx.x == 0) {
        u32 token = tokens[row];
        record[0] = bits_of(best[row]);
        record[1] = bits_of(sums[row]);
        record[2] = bits_of(token < vocab ? (f32)keys.logits[token] : -infinity());
        record[3] = count;
    }
}
EXPORT(ictus_logprobs, 1024)
