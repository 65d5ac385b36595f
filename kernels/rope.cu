// Rotary embedding of heads.
//
// Shapes: x [rows, heads * head_dim] f32, in place; angles [rows, 2 * pairs] f32: cosines, then sines, made on the host in f64.
// Work: a block takes a row; a thread the pairs t, t + 128, ... of all its heads.
// Numerics: two products and a sum each, none fused; element by element, so nothing depends on the batch.
// Roof: bytes, 8 an element. Source: arXiv 2104.09864
#include "common.cuh"

// grid: rows
KERNEL(128) ictus_rope(Ptr<f32> x, Ptr<const f32> RESTRICT angles, u32 heads, u32 head_dim, u32 pairs, u32 interleaved) {
    u64 row = (u64)blockIdx.x * heads * head_dim;
    Ptr<const f32> cosines = angles + (u64)blockIdx.x * 2 * pairs;
    for (u32 i = threadIdx.x; i < heads * pairs; i += 128) {
        u32 head = i / pairs, pair = i % pairs;
        u64 one = row + head * head_dim + (interleaved ? 2 * pair : pair);
        u64 two = one + (interleaved ? 1 : pairs);
        f32 a = x[one], b = x[two], cosine = cosines[pair], sine = cosines[pairs + pair];
        x[one] = a * cosine - b * sine;
        x[two] = b * cosine + a * sine;
    }
}
EXPORT(ictus_rope, 128)
