// Rows times weights, few rows at a time: out[r][o] = sum_i x[r][i] * weight[o][i] (+ bias[o]).
//
// Shapes: x [rows, inputs] f32, weight [outputs, inputs] of an element type, bias [outputs] f32 or null, out [rows, outputs] f32.
// Work: a warp takes one output of ROWS rows, a block of 128 threads four outputs. A lane decodes eight weights of every 256 once for all of
// the rows, so a launch reads each weight once per ROWS rows.
// Registers: ROWS sums, eight weights. No shared memory.
// Numerics: lane l adds, fused and ascending, the products of the columns with column / 8 % 32 = l; then the lanes in a butterfly, then the bias. One
// order for every type, for every ROWS and for any number of rows: a row's bits do not depend on its batch.
// Roof: bytes of the weights. The loads are not tuned, and large batches want tensor cores; see docs/kernels.md.
#pragma once
#include "quant.cuh"

template <class Type, u32 ROWS>
DEV void linear(Ptr<f32> out, Ptr<const f32> x, Ptr<const typename Type::ELEMENT> weight, Ptr<const f32> bias, u32 rows, u32 inputs,
                u32 outputs) {
    u32 lane = threadIdx.x % WARP, output = blockIdx.x * 4 + threadIdx.x / WARP, first = blockIdx.y * ROWS;
    if (output >= outputs) return; // a whole warp
    Ptr<const typename Type::ELEMENT> row = weight + (u64)output * Type::row_elements(inputs);
    f32 sums[ROWS];
    for (u32 r = 0; r < ROWS; r++) sums[r] = 0.0f;
    for (u32 column = 8 * lane; column < inputs; column += 8 * WARP) {
        f32 weights[8];
        Type::decode(row, column, inputs, weights);
        for (u32 r = 0; r < ROWS; r++) {
            // Past the last row the last one is computed again and not stored: cheaper than a branch.
            u64 from = (u64)smaller(first + r, rows - 1) * inputs + column;
            f32 values[8];
            if constexpr (Type::WHOLE_EIGHTS) {
                load_eight(x + from, values);
            } else {
                for (u32 i = 0; i < 8; i++) values[i] = column + i < inputs ? x[from + i] : 0.0f;
            }
            for (u32 i = 0; i < 8; i++) sums[r] = fused(values[i], weights[i], sums[r]);
        }
    }
    for (u32 r = 0; r < ROWS; r++) {
        f32 sum = warp_sum(sums[r]);
        if (lane == 0 && first + r < rows) out[(u64)(first + r) * outputs + output] = bias ? sum + bias[output] : sum;
    }
}

// grid: (outputs / 4, rows / ROWS), both rounded up
#define LINEAR_ROWS(type, Type, ROWS)                                                                                                \
    KERNEL(128)                                                                                                                      \
    ictus_linear_##type##_m##ROWS(Ptr<f32> RESTRICT out, Ptr<const f32> RESTRICT x, Ptr<const Type::ELEMENT> RESTRICT weight,        \
                                  Ptr<const f32> RESTRICT bias, u32 rows, u32 inputs, u32 outputs) {                                 \
        linear<Type, ROWS>(out, x, weight, bias, rows, inputs, outputs);                                                             \
    }                                                                                                                                \
    EXPORT(ictus_linear_##type##_m##ROWS, 128)
#define LINEAR(type, Type) LINEAR_ROWS(type, Type, 1) LINEAR_ROWS(type, Type, 4) LINEAR_ROWS(type, Type, 16)
