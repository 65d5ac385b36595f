// Fast products with weights of 16 bits in tensor cores: out[r][o] = sum_i x[r][i] * weight[o][i] (+ bias[o]).
//
// Shapes: x [rows, padded] of the weights' type (round_rows.cu), scales [rows] f32 (f16 alone), weight [outputs, inputs] with inputs a multiple of 8, padded = inputs rounded
// up to 32, bias [outputs] f32 or null, out [rows, outputs] f32.
// Work: m16: a block takes 16 outputs of up to 16 rows, its warp c chain c of the sums. Tiles: 64 x 64 and 128 x 128 of outputs and rows, a warp 32 x 32 or
//   64 x 32, block by block of 32 columns, which three stages of asynchronous copies bring.
// Fragments: of a block of 32 columns lane t of four takes the columns 8 t .. 8 t + 7, the first four for the first product of 16, the others for the second.
//   So weights and x come in loads of 16 bytes, and rows of 64 bytes in shared memory meet no bank twice.
// Shared memory: the chains' sums, 8 KiB; three stages of both operands, 24 and 48 KiB.
// Numerics: columns are cut into 8 chains of as many whole blocks, the last ones shorter or empty; a chain is added up in ascending steps of 16 columns from zero, by the
//   same instruction in every kernel; the chains are then added in order. So all kernels give the same bits.
// Roof: bytes of the weights at few rows, tensor cores at many.
#include "common.cuh"

constexpr u32 CHAINS = 8, BLOCK = 32;

struct ProductBF16 {
    static constexpr bool SCALED = false;
    DEV void multiply(f32 (&c)[4], const u32 (&a)[4], const u32 (&b)[2]) { mma_bf16(c, a, b); }
};
struct ProductF16 {
    static constexpr bool SCALED = true;
    DEV void multiply(f32 (&c)[4], const u32 (&a)[4], const u32 (&b)[2]) { mma_f16(c, a, b); }
};

struct Arrays {
    Ptr<f32> out;
    Ptr<const u16> x;
    Ptr<const f32> scales;
    Ptr<const u16> weight;
    Ptr<const f32> bias;
    u32 rows, inputs, padded, outputs;
};

// 32 columns of 16 outputs times those of 8 rows: `a` of outputs g and g + 8.
template <class Type> DEV void add_block(f32 (&sums)[4], const Quad& first, const Quad& second, const Quad& x) {
    u32 a[4] = {first.x, second.x, first.y, second.y}, b[2] = {x.x, x.y};
    Type::multiply(sums, a, b);
    u32 a_next[4] = {first.z, second.z, first.w, second.w}, b_next[2] = {x.z, x.w};
    Type::multiply(sums, a_next, b_next);
}

template <class Type> DEV void store_sum(const Arrays& arrays, u32 row, u32 output, f32 sum) {
    if (row >= arrays.rows || output >= arrays.outputs) return;
    if (Type::SCALED) sum = sum * arrays.scales[row];
    arrays.out[(u64)row * arrays.outputs + output] = arrays.bias ? sum + arrays.bias[output] : sum;
}

// 16 bytes of a row that has `columns`, zeros where there is nothing.
DEV Quad quad_or_zeros(Ptr<const u16> from, u32 row, u32 rows, u32 column, u32 columns) {
    if (row < rows && column < columns) return load_quad(from + ((u64)row * columns + column));
    return Quad{0, 0, 0, 0};
}

template <class Type> DEV void skinny(const Arrays& arrays) {
    SHARED(f32, parts, CHAINS * 256);
    u32 lane = threadIdx.x % WARP, chain = threadIdx.x / WARP, g = lane / 4, t = lane % 4;
    u32 first_output = blockIdx.x * 16, first_row = blockIdx.y * 16;
    u32 blocks = arrays.padded / BLOCK, per_chain = (blocks + CHAINS - 1) / CHAINS;
    f32 sums[2][4] = {};
    for (u32 block = chain * per_chain; block < smaller((chain + 1) * per_chain, blocks); block++) {
        u32 column = block * BLOCK + 8 * t;
        Quad first = quad_or_zeros(arrays.weight, first_output + g, arrays.outputs, column, arrays.inputs);
        Quad second = quad_or_zeros(arrays.weight, first_output + g + 8, arrays.outputs, column, arrays.inputs);
        for (u32 tile = 0; tile < 2; tile++) {
            Quad x = quad_or_zeros(arrays.x, first_row + 8 * tile + g, arrays.rows, column, arrays.padded);
            add_block<Type>(sums[tile], first, second, x);
        }
    }
    for (u32 tile = 0; tile < 2; tile++)
        for (u32 i = 0; i < 4; i++) parts[256 * chain + 16 * (8 * tile + 2 * t + i % 2) + g + i / 2 * 8] = sums[tile][i];
    sync_block();
    f32 sum = 0.0f;
    for (u32 c = 0; c < CHAINS; c++) sum += parts[256 * c + threadIdx.x];
    store_sum<Type>(arrays, first_row + threadIdx.x / 16, first_output + threadIdx.x % 16, sum);
}

// Starts copying 32 columns of COUNT rows of 64 bytes.
template <u32 COUNT, u32 THREADS> DEV void start_rows(Ptr<u16> to, Ptr<const u16> from, u32 first, u32 rows, u32 column, u32 columns) {
    for (u32 piece = threadIdx.x; piece < COUNT * 4; piece += THREADS) {
        u32 row = first + piece / 4, at = column + piece % 4 * 8;
        bool is_there = row < rows && at < columns;
        copy_async(to + 8 * piece, is_there ? from + ((u64)row * columns + at) : from, is_there ? 16 : 0);
    }
}

// A tile of WARPS_O * 16 M outputs and WARPS_R * 8 N rows.
template <class Type, u32 WARPS_O, u32 WARPS_R, u32 M, u32 N> DEV void tile(const Arrays& arrays) {
    constexpr u32 STAGES = 3, THREADS = WARP * WARPS_O * WARPS_R, OUTPUTS = WARPS_O * 16 * M, ROWS = WARPS_R * 8 * N;
    SHARED_QUADS(u16, weights, STAGES * OUTPUTS * BLOCK);
    SHARED_QUADS(u16, xs, STAGES * ROWS * BLOCK);
    u32 lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, g = lane / 4, t = lane % 4;
    u32 first_output = blockIdx.x * OUTPUTS, first_row = blockIdx.y * ROWS;
    u32 own_output = warp % WARPS_O * 16 * M, own_row = warp / WARPS_O * 8 * N;
    u32 blocks = arrays.padded / BLOCK, per_chain = (blocks + CHAINS - 1) / CHAINS;
    f32 sums[M][N][4] = {}, totals[M][N][4] = {};
    auto start = [&](u32 block) {
        if (block < blocks) {
            u32 stage = block % STAGES;
            start_rows<OUTPUTS, THREADS>(weights + stage * OUTPUTS * BLOCK, arrays.weight, first_output, arrays.outputs, block * BLOCK, arrays.inputs);
            start_rows<ROWS, THREADS>(xs + stage * ROWS * BLOCK, arrays.x, first_row, arrays.rows, block * BLOCK, arrays.padded);
        }
        copy_commit();
    };
    auto end_chain = [&] {
        UNROLL for (u32 m = 0; m < M; m++)
            UNROLL for (u32 n = 0; n < N; n++)
                UNROLL for (u32 i = 0; i < 4; i++) {
                    totals[m][n][i] += sums[m][n][i];
                    sums[m][n][i] = 0.0f;
                }
    };
    for (u32 block = 0; block < STAGES - 1; block++) start(block);
    for (u32 block = 0, left = per_chain; block < blocks; block++, left--) {
        copy_wait<STAGES - 2>();
        sync_block(); // this block's columns are there for all, and the stage before is no longer read
        start(block + STAGES - 1);
        if (left == 0) {
            end_chain();
            left = per_chain;
        }
        Ptr<u16> w = weights + (block % STAGES * OUTPUTS + own_output + g) * BLOCK + 8 * t;
        Ptr<u16> x = xs + (block % STAGES * ROWS + own_row + g) * BLOCK + 8 * t;
        Quad rows[N];
        UNROLL for (u32 n = 0; n < N; n++) rows[n] = load_quad(x + 8 * n * BLOCK);
        UNROLL for (u32 m = 0; m < M; m++) {
            Quad first = load_quad(w + 16 * m * BLOCK), second = load_quad(w + (16 * m + 8) * BLOCK);
            UNROLL for (u32 n = 0; n < N; n++) add_block<Type>(sums[m][n], first, second, rows[n]);
        }
    }
    end_chain();
    UNROLL for (u32 m = 0; m < M; m++)
        UNROLL for (u32 n = 0; n < N; n++)
            UNROLL for (u32 i = 0; i < 4; i++)
                store_sum<Type>(arrays, first_row + own_row + 8 * n + 2 * t + i % 2, first_output + own_output + 16 * m + g + i / 2 * 8, totals[m][n][i]);
}

// grid: (outputs / outputs of a block, rows / rows of a block), both rounded up
#define FAST(name, threads, body)                                                                                                                  \
    KERNEL(threads)                                                                                                                                \
    name(Ptr<f32> RESTRICT out, Ptr<const u16> RESTRICT x, Ptr<const f32> RESTRICT scales, Ptr<const u16> RESTRICT weight,                         \
         Ptr<const f32> RESTRICT bias, u32 rows, u32 inputs, u32 padded, u32 outputs) {                                                            \
        Arrays arrays = {out, x, scales, weight, bias, rows, inputs, padded, outputs};                                                             \
        body(arrays);                                                                                                                              \
    }                                                                                                                                              \
    EXPORT(name, threads)
#define FAST_TYPE(type, Type)                                                                                                                      \
    FAST(ictus_fast_##type##_m16, 256, (skinny<Type>))                                                                                             \
    FAST(ictus_fast_##type##_m64, 128, (tile<Type, 2, 2, 2, 4>))                                                                                   \
    FAST(ictus_fast_##type##_m128, 256, (tile<Type, 2, 4, 4, 4>))

FAST_TYPE(bf16, ProductBF16)
FAST_TYPE(f16, ProductF16)
