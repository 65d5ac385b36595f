// Rows as wholes, and element by element: gate, sum, gather, scattered sum.
//
// Shapes: f32, [rows, width], contiguous. Work: a thread an element; grid-stride, so any number of blocks gives the same.
// Numerics: element by element; the gates as the CPU backend computes them. Roof: bytes, 8 to 12 an element.
// Source: arXiv 2002.05202 (gated feed-forward layers)
#include "math.cuh"

// gate = gate * sigmoid(gate) * up
KERNEL(256) ictus_gate_silu(Ptr<f32> RESTRICT gate, Ptr<const f32> RESTRICT up, u64 count) {
    for (u64 i = (u64)blockIdx.x * 256 + threadIdx.x; i < count; i += (u64)gridDim.x * 256) gate[i] = silu(gate[i]) * up[i];
}
EXPORT(ictus_gate_silu, 256)

// gate = gelu(gate) * up, the tanh form
KERNEL(256) ictus_gate_gelu_tanh(Ptr<f32> RESTRICT gate, Ptr<const f32> RESTRICT up, u64 count) {
    for (u64 i = (u64)blockIdx.x * 256 + threadIdx.x; i < count; i += (u64)gridDim.x * 256) gate[i] = gelu_tanh(gate[i]) * up[i];
}
EXPORT(ictus_gate_gelu_tanh, 256)

// x = x + y
KERNEL(256) ictus_add(Ptr<f32> RESTRICT x, Ptr<const f32> RESTRICT y, u64 count) {
    for (u64 i = (u64)blockIdx.x * 256 + threadIdx.x; i < count; i += (u64)gridDim.x * 256) x[i] = x[i] + y[i];
}
EXPORT(ictus_add, 256)

// Row i of out is row rows[i] of x. grid: number of rows
KERNEL(256) ictus_gather_rows(Ptr<f32> RESTRICT out, Ptr<const f32> RESTRICT x, Ptr<const u32> RESTRICT rows, u32 width) {
    u64 to = (u64)blockIdx.x * width, from = (u64)rows[blockIdx.x] * width;
    for (u32 i = threadIdx.x; i < width; i += 256) out[to + i] = x[from + i];
}
EXPORT(ictus_gather_rows, 256)

// Row rows[i] of x becomes itself plus row i of y; no row is named twice. grid: number of rows
KERNEL(256) ictus_add_rows(Ptr<f32> RESTRICT x, Ptr<const f32> RESTRICT y, Ptr<const u32> RESTRICT rows, u32 width) {
    u64 to = (u64)rows[blockIdx.x] * width, from = (u64)blockIdx.x * width;
    for (u32 i = threadIdx.x; i < width; i += 256) x[to + i] = x[to + i] + y[from + i];
}
EXPORT(ictus_add_rows, 256)
