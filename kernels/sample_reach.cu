// Which pivot the best entries of rows reach, a pass of five bits (head.cuh): of the probabilities that a draw is made from, and of logits.
//
// Shapes: weights [rows, vocab] f32 and sums [rows] of sample_weights.cu: the first pass leaves the probabilities in place of the weights; logits [rows,
// vocab] f32, shaped; counts [2, rows, parts, 32] u32, pivots [7, rows] u32.
// Work: a block of 256 takes a part of 4096 entries, a thread 16 of them, in registers; 31 comparisons each.
// Shared: 1 KB. Numerics: one rounded division an entry, as on the host; else integers. Roof: a launch; instructions, 150 an entry, over all processors.
#include "sample_head.cuh"

// Rows of temperature 0 are left out. Passes FIRST_OF_PROBABILITIES to PASSES - 1. grid: (parts, rows)
KERNEL(256)
ictus_reach(Ptr<u32> RESTRICT counts, Ptr<u32> RESTRICT pivots, Ptr<f32> RESTRICT weights, Ptr<const f32> RESTRICT sums,
            Ptr<const f32> RESTRICT temperatures, u32 vocab, u32 pass) {
    SHARED(u32, scratch, REACH_THREADS);
    u32 row = blockIdx.y;
    if (!(temperatures[row] > 0.0f) || !(sums[row] > 0.0f)) return;
    Reached reached = {counts, pivots, row, gridDim.y, gridDim.x};
    bool is_first = pass == FIRST_OF_PROBABILITIES;
    u32 pivot = is_first ? 0 : reached.pivot_behind<REACH_THREADS>(pass - 1, HEAD_OF_DRAWS, scratch);
    Ptr<f32> own = weights + (u64)row * vocab;
    f32 sum = sums[row];
    u32 keys[REACH_EACH];
    UNROLL for (u32 j = 0; j < REACH_EACH; j++) {
        u32 i = blockIdx.x * PART + j * REACH_THREADS + threadIdx.x;
        f32 probability = 0.0f;
        if (i < vocab) {
            probability = own[i];
            if (is_first) own[i] = probability = probability / sum;
        }
        keys[j] = bits_of(probability);
    }
    reach(keys, reached, pass, pivot, scratch);
}
EXPORT(ictus_reach, 256)

// Rows that nobody wants log-probabilities of (`wanted` not above 0) are left out. Passes 0 to PASSES - 1. grid: (parts, rows)
KERNEL(256)
ictus_reach_logits(Ptr<u32> RESTRICT counts, Ptr<u32> RESTRICT pivots, Ptr<const f32> RESTRICT logits, Ptr<const f32> RESTRICT wanted, u32 vocab,
                   u32 pass) {
    SHARED(u32, scratch, REACH_THREADS);
    u32 row = blockIdx.y;
    if (!(wanted[row] > 0.0f)) return;
    Reached reached = {counts, pivots, row, gridDim.y, gridDim.x};
    u32 pivot = pass == 0 ? 0 : reached.pivot_behind<REACH_THREADS>(pass - 1, HEAD_OF_LOGPROBS, scratch);
    Logits own = {logits + (u64)row * vocab};
    u32 keys[REACH_EACH];
    UNROLL for (u32 j = 0; j < REACH_EACH; j++) {
        u32 i = blockIdx.x * PART + j * REACH_THREADS + threadIdx.x;
        keys[j] = i < vocab ? own.at(i) : 0;
    }
    reach(keys, reached, pass, pivot, scratch);
}
EXPORT(ictus_reach_logits, 256)
