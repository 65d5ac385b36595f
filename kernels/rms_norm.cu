// RMSNorm, alone and behind a residual sum.
//
//   out[g][i] = x[g][i] * scale[g] * weight[i],   scale[g] = 1 / sqrt(mean_i x[g][i]^2 + epsilon)
//
// Shapes: x, delta, out [groups, width] f32, contiguous; weight [width] f32. A group is a row, or a head of a row. `out` may be `x`.
// Work: a block takes one group; a thread the elements t, t + 256, ... of it.
// Shared: 132 bytes. Numerics: each thread adds its squares in ascending order (fused), then the block in the order of block_sum; the scale in
// f64, rounded once. The order depends on `width` alone, so a group's bits do not depend on how many there are.
// Roof: bytes. x is read twice, the second time out of a cache; 8 or 16 bytes of memory traffic an element.
// Source: arXiv 1910.07467
#include "common.cuh"

constexpr u32 THREADS = 256;

// The scale of a group, to all threads, out of each thread's squares. One of them computes it: where double precision is rare (2 operations a cycle and
// processor from sm_86 on, but for 90 and 100) a block's 256 roots and divisions would take longer than the rest.
DEV f32 norm_scale(f32 squares, u32 width, f32 epsilon, Ptr<f32> scratch, Ptr<f32> place) {
    squares = block_sum<THREADS>(squares, scratch);
    if (threadIdx.x == 0) place[0] = (f32)(1.0 / root((f64)squares / (f64)width + (f64)epsilon));
    sync_block();
    return place[0];
}

// grid: groups
KERNEL(256) ictus_rms_norm(Ptr<f32> out, Ptr<const f32> x, Ptr<const f32> weight, u32 width, f32 epsilon) {
    SHARED(f32, scratch, 32);
    SHARED(f32, place, 1);
    u64 start = (u64)blockIdx.x * width;
    f32 squares = 0.0f;
    for (u32 i = threadIdx.x; i < width; i += THREADS) {
        f32 value = x[start + i];
        squares = fused(value, value, squares);
    }
    f32 scale = norm_scale(squares, width, epsilon, scratch, place);
    for (u32 i = threadIdx.x; i < width; i += THREADS) out[start + i] = x[start + i] * scale * weight[i];
}
EXPORT(ictus_rms_norm, 256)

// x = x + delta, then as ictus_rms_norm of x: the same bits as one after the other. grid: groups
KERNEL(256)
ictus_add_rms_norm(Ptr<f32> out, Ptr<f32> x, Ptr<const f32> delta, Ptr<const f32> weight, u32 width, f32 epsilon) {
    SHARED(f32, scratch, 32);
    SHARED(f32, place, 1);
    u64 start = (u64)blockIdx.x * width;
    f32 squares = 0.0f;
    for (u32 i = threadIdx.x; i < width; i += THREADS) {
        f32 value = x[start + i] + delta[start + i];
        x[start + i] = value;
        squares = fused(value, value, squares);
    }
    f32 scale = norm_scale(squares, width, epsilon, scratch, place);
    for (u32 i = threadIdx.x; i < width; i += THREADS) out[start + i] = x[start + i] * scale * weight[i];
}
EXPORT(ictus_add_rms_norm, 256)
