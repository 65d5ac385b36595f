// Weights of logits at a temperature, and their sum (T-116, T-121): the bits of src/sample/draw.rs.
//
//   weight[i] = e^(x[i] / temperature - best / temperature), 0 where that is below e^-36.7368
//
// Shapes: logits, weights [rows, vocab] f32; best [rows]: the largest logit, finite; temperatures [rows], above 0 (rows of others are left out).
// Work: weights: a thread an entry. Sum: a block of 256 takes a row and brings it to shared memory, a tile ahead; lanes 0 to 15 of its first warp are the
// sixteen chains of T-121: serial additions, vocab / 16 deep, whose loads are a batch ahead.
// Shared: 32 KB. Roof: bytes for the weights; latency of an addition for the sum, which only another T-121 would lower.
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

constexpr u32 THREADS = 256;
constexpr u32 CHAINS = 16;
constexpr u32 TILE = 4096;
constexpr u32 EACH = TILE / THREADS;
// Entries of a chain that are loaded at once, and those that a tile has.
constexpr u32 BATCH = 16;
constexpr u32 DEEP = TILE / CHAINS;

// What a thread brings of the tile that begins at `from`. Zeros past `end` change no sum: it is not negative.
DEV void fetch(f32 (&own)[EACH], Ptr<const f32> row, u32 from, u32 end) {
    UNROLL for (u32 j = 0; j < EACH; j++) {
        u32 i = from + j * THREADS + threadIdx.x;
        own[j] = i < end ? (f32)row[i] : 0.0f;
    }
}

// The sum of one chain goes on over a tile.
DEV f32 along(Ptr<f32> tile, u32 chain, f32 sum) {
    f32 values[BATCH], next[BATCH];
    UNROLL for (u32 j = 0; j < BATCH; j++) values[j] = tile[j * CHAINS + chain];
    for (u32 from = BATCH; from <= DEEP; from += BATCH) {
        UNROLL for (u32 j = 0; j < BATCH; j++) next[j] = from < DEEP ? (f32)tile[(from + j) * CHAINS + chain] : 0.0f;
        UNROLL for (u32 j = 0; j < BATCH; j++) sum += values[j];
        UNROLL for (u32 j = 0; j < BATCH; j++) values[j] = next[j];
    }
    return sum;
}

// grid: rows
KERNEL(256) ictus_weight_sum(Ptr<f32> RESTRICT sums, Ptr<const f32> RESTRICT weights, Ptr<const f32> RESTRICT temperatures, u32 vocab) {
    SHARED(f32, tiles, 2 * TILE);
    if (!(temperatures[blockIdx.x] > 0.0f)) return;
    Ptr<const f32> row = weights + (u64)blockIdx.x * vocab;
    u32 whole = vocab / CHAINS * CHAINS, half = 0;
    f32 own[EACH], sum = 0.0f;
    fetch(own, row, 0, whole);
    for (u32 from = 0; from < whole; from += TILE) {
        // Nobody reads this half any more: its readers were at the barrier of the tile before.
        UNROLL for (u32 j = 0; j < EACH; j++) tiles[half + j * THREADS + threadIdx.x] = own[j];
        sync_block();
        fetch(own, row, from + TILE < whole ? from + TILE : whole, whole);
        if (threadIdx.x < CHAINS) sum = along(tiles + half, threadIdx.x, sum);
        half = TILE - half;
    }
    if (threadIdx.x >= WARP) return;
    sum += shuffle_xor(sum, 4);
    sum += shuffle_xor(sum, 8);
    sum += shuffle_xor(sum, 1);
    sum += shuffle_xor(sum, 2);
    // What is left behind the chains, one after another.
    f32 left = whole + threadIdx.x < vocab ? (f32)row[whole + threadIdx.x] : 0.0f;
    UNROLL for (u32 j = 0; j < CHAINS - 1; j++) sum += shuffle_from(left, j);
    if (threadIdx.x == 0) sums[blockIdx.x] = sum;
}
EXPORT(ictus_weight_sum, 256)
