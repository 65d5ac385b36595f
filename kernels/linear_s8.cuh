// Fast products with quantised weights, in integers: out[r][o] = sum_i x[r][i] * weight[o][i] (+ bias[o]).
//
// Shapes: codes [rows, inputs] and notes [inputs / 32][padded_rows] of x (round_rows.cu: padded_rows is even), weight [outputs, inputs] as its file has it, from a multiple of 16 on,
// bias [outputs] f32 or null, out [rows, outputs] f32.
// Work: m1: a warp an output of one row, four lanes a chain of the sums, dp4a. m16: a block 16 outputs of up to 16 rows, its warp c chain c, tensor cores.
//   m64: a block 64 outputs of 64 rows, a warp 16 of the outputs, tensor cores; weights are read by asynchronous copies as they are, SPAN columns at a time and two spans in
//   turn, and become codes in registers; x comes 64 columns at a time, three stages. A row of raw weights begins at any even byte, so whole 16-byte pieces around it are copied, and rows lie an
//   odd number of such pieces apart, which keeps the banks apart.
// Shared memory: m16 the chains' sums, 8 KiB; m64 33 to 45 KiB.
// Numerics: of 32 columns the products of codes are added up in integers, exactly and so in any order; then sum = fma(dot, weight's scale * x's scale, sum), and for a minimum
//   sum = fma(sum of x's codes, minimum * x's scale, sum). Groups are cut into 8 chains of as many, the last ones shorter or empty, each ascending from zero; the chains are
//   added in order. So all kernels give the same bits.
// Roof: bytes of the weights at few rows. At many, conversions and scales (12 operations for four results of 32 columns), not the tensor cores.
#pragma once
#include "codes.cuh"

constexpr u32 CHAINS = 8, GROUP = 32;

struct Arrays {
    Ptr<f32> out;
    Ptr<const u8> codes;
    Ptr<const u32> notes;
    Ptr<const u8> weight;
    Ptr<const f32> bias;
    u32 rows, padded_rows, inputs, outputs;
};

// One group more in a sum. Dot products of both halves, or of all in `first`; scale of x and sums of its codes, 16 bits each.
template <class Codes> DEV f32 add_group(f32 sum, i32 first, i32 second, const Factors& weight, u32 x_scale, u32 x_sums) {
    f32 scale = float_of(x_scale);
    i32 dot = Codes::HALVES ? weight.first * first + weight.second * second : first;
    sum = fused((f32)dot, weight.scale * scale, sum);
    if (Codes::MINIMUM) {
        i32 one = (i32)(x_sums << 16) >> 16, two = (i32)x_sums >> 16;
        i32 moment = Codes::HALVES ? weight.first_minimum * one + weight.second_minimum * two : one + two;
        sum = fused((f32)moment, weight.minimum * scale, sum);
    }
    return sum;
}

template <class Codes> DEV u64 row_bytes(const Arrays& arrays) { return (u64)(arrays.inputs / Codes::VALUES) * Codes::BYTES; }

// The quant block of a group of 32 columns, and the group's number in it.
template <class Codes> DEV Ptr<const u8> block_of(Ptr<const u8> row, u32 group) { return row + (u64)(group * GROUP / Codes::VALUES) * Codes::BYTES; }
template <class Codes> DEV u32 place_of(u32 group) { return group % (Codes::VALUES / GROUP); }

DEV void store_sum(const Arrays& arrays, u32 row, u32 output, f32 sum) {
    if (row >= arrays.rows || output >= arrays.outputs) return;
    arrays.out[(u64)row * arrays.outputs + output] = arrays.bias ? sum + arrays.bias[output] : sum;
}

template <class Codes> DEV void single(const Arrays& arrays) {
    u32 lane = threadIdx.x % WARP, chain = lane / 4, t = lane % 4, output = blockIdx.x * 4 + threadIdx.x / WARP;
    if (output >= arrays.outputs) return; // a whole warp
    Ptr<const u8> row = arrays.weight + output * row_bytes<Codes>(arrays);
    Ptr<const u8> x = arrays.codes + (u64)blockIdx.y * arrays.inputs;
    u32 groups = arrays.inputs / GROUP, per_chain = (groups + CHAINS - 1) / CHAINS;
    f32 sum = 0.0f;
    for (u32 i = 0; i < per_chain; i++) {
        u32 group = chain * per_chain + i;
        bool is_there = group < groups;
        i32 first = 0, second = 0;
        Ptr<const u8> block = block_of<Codes>(row, group);
        if (is_there) {
            u32 words[2];
            Codes::words(block, place_of<Codes>(group), t, words);
            Pair values = load_pair(x + (group * GROUP + 8 * t));
            first = dp4a(words[0], values.x, 0);
            if (Codes::HALVES)
                second = dp4a(words[1], values.y, 0);
            else
                first = dp4a(words[1], values.y, first);
        }
        for (u32 step = 1; step < 4; step *= 2) {
            first += (i32)shuffle_xor((u32)first, step);
            if (Codes::HALVES) second += (i32)shuffle_xor((u32)second, step);
        }
        if (is_there) {
            Pair note = load_pair(arrays.notes + 2 * ((u64)group * arrays.padded_rows + blockIdx.y));
            sum = add_group<Codes>(sum, first, second, Codes::factors(block, place_of<Codes>(group)), note.x, note.y);
        }
    }
    f32 total = 0.0f;
    for (u32 c = 0; c < CHAINS; c++) total += shuffle_from(sum, 4 * c);
    if (lane == 0) store_sum(arrays, blockIdx.y, output, total);
}

// A group of 32 columns of 16 outputs, of which a lane holds words and factors of g and g + 8, times eight rows of x: words `x` of row g, notes of rows 2 t and 2 t + 1.
template <class Codes> DEV void multiply_group(f32 (&sums)[4], const u32 (&words)[2][2], const Factors (&factors)[2], const Pair& x, const Quad& notes) {
    i32 first[4] = {}, second[4] = {};
    if constexpr (Codes::HALVES) {
        mma_s8_half(first, words[0][0], words[1][0], x.x);
        mma_s8_half(second, words[0][1], words[1][1], x.y);
    } else {
        u32 a[4] = {words[0][0], words[1][0], words[0][1], words[1][1]}, b[2] = {x.x, x.y};
        mma_s8(first, a, b);
    }
    UNROLL for (u32 i = 0; i < 4; i++)
        sums[i] = add_group<Codes>(sums[i], first[i], second[i], factors[i / 2], i % 2 ? notes.z : notes.x, i % 2 ? notes.w : notes.y);
}

template <class Codes> DEV void skinny(const Arrays& arrays) {
    SHARED(f32, parts, CHAINS * 256);
    u32 lane = threadIdx.x % WARP, chain = threadIdx.x / WARP, g = lane / 4, t = lane % 4;
    u32 first_output = blockIdx.x * 16, first_row = blockIdx.y * 16;
    u32 groups = arrays.inputs / GROUP, per_chain = (groups + CHAINS - 1) / CHAINS;
    f32 sums[2][4] = {};
    for (u32 group = chain * per_chain; group < smaller((chain + 1) * per_chain, groups); group++) {
        u32 words[2][2] = {};
        Factors factors[2] = {};
        UNROLL for (u32 half = 0; half < 2; half++) {
            u32 output = first_output + g + 8 * half;
            if (output < arrays.outputs) {
                Ptr<const u8> block = block_of<Codes>(arrays.weight + output * row_bytes<Codes>(arrays), group);
                Codes::words(block, place_of<Codes>(group), t, words[half]);
                factors[half] = Codes::factors(block, place_of<Codes>(group));
            }
        }
        UNROLL for (u32 tile = 0; tile < 2; tile++) {
            u32 row = first_row + 8 * tile + g, noted = first_row + 8 * tile + 2 * t;
            Pair x = {0, 0};
            Quad notes = {0, 0, 0, 0};
            if (row < arrays.rows) x = load_pair(arrays.codes + ((u64)row * arrays.inputs + group * GROUP + 8 * t));
            if (noted < arrays.padded_rows) notes = load_quad(arrays.notes + 2 * ((u64)group * arrays.padded_rows + noted));
            multiply_group<Codes>(sums[tile], words, factors, x, notes);
        }
    }
    UNROLL for (u32 tile = 0; tile < 2; tile++)
        UNROLL for (u32 i = 0; i < 4; i++) parts[256 * chain + 16 * (8 * tile + 2 * t + i % 2) + g + i / 2 * 8] = sums[tile][i];
    sync_block();
    f32 sum = 0.0f;
    for (u32 c = 0; c < CHAINS; c++) sum += parts[256 * c + threadIdx.x];
    store_sum(arrays, first_row + threadIdx.x / 16, first_output + threadIdx.x % 16, sum);
}

// How raw weights of a tile lie in shared memory, and how they come: a span in PARTS parts, one with each step of 64 columns but the span's last.
template <class Codes, u32 SPAN> struct Raw {
    static constexpr u32 UNIT = (Codes::BYTES & (0u - Codes::BYTES)) < 16 ? (Codes::BYTES & (0u - Codes::BYTES)) : 16;
    static constexpr u32 BYTES = SPAN / Codes::VALUES * Codes::BYTES;
    static constexpr u32 PIECES = (BYTES + 16 - UNIT + 15) / 16, STRIDE = 16 * (PIECES | 1);
    static constexpr u32 STEPS = SPAN / 64, PARTS = STEPS - 1;
    static constexpr u32 OUTPUTS = 64, THREADS = 128;
    static_assert(SPAN % Codes::VALUES == 0 && STEPS > 1, "whole quant blocks, and a step without copies");

    // Where the bytes of a span begin in the row of an output.
    DEV_MEMBER static u64 begin(const Arrays& arrays, u32 output, u32 span) { return output * row_bytes<Codes>(arrays) + span * BYTES; }

    DEV_MEMBER static void start(Ptr<u16> raw, const Arrays& arrays, u32 first_output, u32 span, u32 part) {
        constexpr u32 COUNT = (OUTPUTS * PIECES + PARTS - 1) / PARTS;
        u32 last = smaller((part + 1) * COUNT, OUTPUTS * PIECES);
        for (u32 piece = part * COUNT + threadIdx.x; piece < last; piece += THREADS) {
            u32 place = piece / PIECES, output = first_output + place, i = piece % PIECES;
            u64 from = 0;
            u32 bytes = 0;
            if (output < arrays.outputs) {
                u64 first = begin(arrays, output, span), end = first + BYTES, row_end = (output + 1) * row_bytes<Codes>(arrays);
                from = first / 16 * 16 + 16 * i;
                end = row_end < end ? row_end : end;
                bytes = from < end ? smaller(16, (u32)(end - from)) : 0;
            }
            copy_async(raw + ((span % 2 * OUTPUTS + place) * STRIDE + 16 * i) / 2, arrays.weight + (bytes > 0 ? from : 0), bytes);
        }
    }
};

template <class Codes, u32 SPAN> DEV void tile(const Arrays& arrays) {
    using Of = Raw<Codes, SPAN>;
    constexpr u32 STAGES = 3, ROWS = 64, THREADS = Of::THREADS, N = ROWS / 8;
    SHARED_QUADS(u16, raw, 2 * Of::OUTPUTS * Of::STRIDE / 2);
    SHARED_QUADS(u32, xs, STAGES * 2 * ROWS * 8);    // [stage][group][row] of 32 codes
    SHARED_QUADS(u32, notes, STAGES * 2 * ROWS * 2); // [stage][group][row]
    u32 lane = threadIdx.x % WARP, g = lane / 4, t = lane % 4, own_output = threadIdx.x / WARP * 16;
    u32 first_output = blockIdx.x * Of::OUTPUTS, first_row = blockIdx.y * ROWS;
    u32 groups = arrays.inputs / GROUP, per_chain = (groups + CHAINS - 1) / CHAINS, steps = (groups + 1) / 2, spans = (arrays.inputs + SPAN - 1) / SPAN;
    f32 sums[N][4] = {}, totals[N][4] = {};
    auto start_x = [&](u32 step) {
        if (step >= steps) return;
        u32 stage = step % STAGES * 2 * ROWS;
        for (u32 piece = threadIdx.x; piece < ROWS * 4; piece += THREADS) {
            u32 place = piece / 4, part = piece % 4, row = first_row + place, column = 64 * step + 16 * part;
            bool is_there = row < arrays.rows && column < arrays.inputs;
            copy_async(xs + (stage + part / 2 * ROWS + place) * 8 + part % 2 * 4, arrays.codes + (is_there ? (u64)row * arrays.inputs + column : 0), is_there ? 16 : 0);
        }
        if (threadIdx.x < ROWS) {
            u32 group = 2 * step + threadIdx.x / 32, place = threadIdx.x % 32 * 2, row = first_row + place;
            bool is_there = group < groups && row < arrays.padded_rows;
            copy_async(notes + (stage + threadIdx.x / 32 * ROWS + place) * 2, arrays.notes + (is_there ? 2 * ((u64)group * arrays.padded_rows + row) : 0), is_there ? 16 : 0);
        }
    };
    auto end_chain = [&] {
        UNROLL for (u32 n = 0; n < N; n++)
            UNROLL for (u32 i = 0; i < 4; i++) {
                totals[n][i] += sums[n][i];
                sums[n][i] = 0.0f;
            }
    };
    for (u32 part = 0; part < Of::PARTS; part++) Of::start(raw, arrays, first_output, 0, part);
    for (u32 step = 0; step < STAGES - 1; step++) {
        start_x(step);
        copy_commit();
    }
    u32 left = per_chain;
    for (u32 step = 0; step < steps; step++) {
        copy_wait<STAGES - 2>();
        sync_block(); // this step's columns are there for all, and what comes next is no longer read
        u32 span = step / Of::STEPS, part = step % Of::STEPS;
        start_x(step + STAGES - 1);
        if (span + 1 < spans && part < Of::PARTS) Of::start(raw, arrays, first_output, span + 1, part);
        copy_commit();
        for (u32 group = 2 * step; group < smaller(2 * step + 2, groups); group++, left--) {
            if (left == 0) {
                end_chain();
                left = per_chain;
            }
            u32 words[2][2];
            Factors factors[2];
            UNROLL for (u32 half = 0; half < 2; half++) {
                u32 place = own_output + g + 8 * half, shift = (u32)(Of::begin(arrays, first_output + place, span) % 16);
                Ptr<const u8> row = bytes_of(raw) + ((span % 2 * Of::OUTPUTS + place) * Of::STRIDE + (first_output + place < arrays.outputs ? shift : 0));
                Ptr<const u8> block = block_of<Codes>(row, group % (SPAN / GROUP));
                Codes::words(block, place_of<Codes>(group), t, words[half]);
                factors[half] = Codes::factors(block, place_of<Codes>(group));
            }
            u32 stage = step % STAGES * 2 * ROWS + group % 2 * ROWS;
            UNROLL for (u32 n = 0; n < N; n++) {
                Pair x = load_pair(xs + (stage + 8 * n + g) * 8 + 2 * t);
                Quad note = load_quad(notes + (stage + 8 * n + 2 * t) * 2);
                multiply_group<Codes>(sums[n], words, factors, x, note);
            }
        }
    }
    end_chain();
    UNROLL for (u32 n = 0; n < N; n++)
        UNROLL for (u32 i = 0; i < 4; i++) store_sum(arrays, first_row + 8 * n + 2 * t + i % 2, first_output + own_output + g + i / 2 * 8, totals[n][i]);
}

// grid: (outputs / outputs of a block, rows / rows of a block), both rounded up: 4 and 1, 16 and 16, 64 and 64
#define FAST(name, threads, body)                                                                                                                  \
    KERNEL(threads)                                                                                                                                \
    name(Ptr<f32> RESTRICT out, Ptr<const u8> RESTRICT codes, Ptr<const u32> RESTRICT notes, Ptr<const u8> RESTRICT weight,                        \
         Ptr<const f32> RESTRICT bias, u32 rows, u32 padded_rows, u32 inputs, u32 outputs) {                                                       \
        Arrays arrays = {out, codes, notes, weight, bias, rows, padded_rows, inputs, outputs};                                                     \
        body(arrays);                                                                                                                              \
    }                                                                                                                                              \
    EXPORT(name, threads)
#define FAST_TYPE(type, Codes, SPAN)                                                                                                               \
    FAST(ictus_fast_##type##_m1, 128, (single<Codes>))                                                                                             \
    FAST(ictus_fast_##type##_m16, 256, (skinny<Codes>))                                                                                            \
    FAST(ictus_fast_##type##_m64, 128, (tile<Codes, SPAN>))
