// Weights of logits at a temperature, and their sum (T-116, T-121): the bits of src/sample/draw.rs.
//
//   weight[i] = e^(x[i] / temperature - best / temperature), 0 where that is below e^-36.7368
//
// Shapes: logits, weights [rows, vocab] f32; best [rows]: the largest logit, finite; temperatures [rows], above 0 (rows of others are left out).
// Work: weights: a thread an entry. Sum: a warp a row, whose lanes 0 to 15 are the sixteen chains of T-121: serial additions, vocab / 16 deep.
// Roof: bytes for the weights; latency of an addition for the sum.
#include "math.cuh"

// grid: (parts of 4096 entries, rows)
KERNEL(256)
ictus_weights(Ptr<f32> RESTRICT weights, Ptr<const f32> RESTRICT logits, Ptr<const f32> RESTRICT best, Ptr<const f32> RESTRICT temperatures, u32 vocab) {
    f32 temperature = temperatures[blockIdx.y];
    if (!(temperature > 0.0f)) return;
    f32 scale = 1.0f / temperature, most = best[blockIdx.y] * scale;
    u64 row = (u64)blockIdx.y * vocab;
    u32 end = smaller(vocab, (blockIdx.x + 1) * 4096);
    for (u32 i = blockIdx.x * 4096 + threadIdx.x; i < end; i += 256) {
        f32 below = logits[row + i] * scale - most;
        weights[row + i] = below > -36.7368f ? sampling_exponential(below) : 0.0f;
    }
}
EXPORT(ictus_weights, 256)

// grid: rows
KERNEL(32) ictus_weight_sum(Ptr<f32> RESTRICT sums, Ptr<const f32> RESTRICT weights, Ptr<const f32> RESTRICT temperatures, u32 vocab) {
    if (!(temperatures[blockIdx.x] > 0.0f)) return;
    u64 row = (u64)blockIdx.x * vocab;
    u32 lane = threadIdx.x, whole = vocab / 16 * 16;
    f32 sum = 0.0f;
    if (lane < 16)
        for (u32 i = lane; i < whole; i += 16) sum += weights[row + i];
    sum += shuffle_xor(sum, 4);
    sum += shuffle_xor(sum, 8);
    sum += shuffle_xor(sum, 1);
    sum += shuffle_xor(sum, 2);
    if (lane != 0) return;
    for (u32 i = whole; i < vocab; i++) sum += weights[row + i];
    sums[blockIdx.x] = sum;
}
EXPORT(ictus_weight_sum, 32)
