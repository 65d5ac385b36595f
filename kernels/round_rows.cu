// Activation rows as the fast products take them: rounded to 16 bits, or to signed bytes with a scale per 32 columns.
//
// Shapes: x [rows, columns] f32.
//   16 bits: out [rows, padded] bf16 or f16, padded = columns rounded up to 32, zeros behind the columns; scales [rows] f32, of f16 alone
//   bytes:   codes [rows, columns], of whole groups of 32; notes [groups][rows rounded up to 2] of 8 bytes: the scale, and the sums of the codes of both halves, 16 bits each
// The words of a group of codes stand in the order 0 4 1 5 2 6 3 7: a lane of a product takes two that lie side by side.
// Work: 16 bits: a block a row. Bytes: a warp a group, a lane a column.
// Numerics: 16 bits: to the nearest, ties to even; f16 after the row was multiplied by the power of two that brings its largest number between 2^14 and 2^15, so that it
// neither overflows nor loses small numbers. `scales` has the inverse of it. Bytes: scale = max |x| / 127, code = x 127 / max |x| to the nearest, ties to even; a group
// with an infinity or no number in it has no number for a scale. All of it depends on the row alone.
// Roof: bytes of x.
#include "common.cuh"

// The bits of the largest |x|; those of what is no number are above all others.
DEV u32 size_bits(f32 x) { return bits_of(x) & 0x7fffffffu; }

template <bool BF16> DEV void round_16(Ptr<u16> out, Ptr<f32> scales, Ptr<const f32> x, u32 columns, u32 padded) {
    SHARED(u32, scratch, WARP);
    Ptr<const f32> row = x + (u64)blockIdx.x * columns;
    Ptr<u16> to = out + (u64)blockIdx.x * padded;
    f32 factor = 1.0f;
    if (!BF16) {
        u32 most = 0;
        for (u32 column = threadIdx.x; column < columns; column += 256) {
            u32 size = size_bits(row[column]);
            most = size > most ? size : most;
        }
        most = ~block_least<256>(~most, scratch);
        u32 exponent = most >> 23 < 27 ? 27 : most >> 23; // below 2^-100 nothing is worth more
        if (exponent > 254) exponent = 127 + 14;          // an infinity, or no number: as it is
        factor = float_of((127 + 14 + 127 - exponent) << 23);
        if (threadIdx.x == 0) scales[blockIdx.x] = float_of((exponent - 14) << 23);
    }
    for (u32 column = threadIdx.x; column < padded; column += 256) {
        f32 value = column < columns ? row[column] * factor : 0.0f;
        to[column] = BF16 ? to_bf16(value) : to_f16(value);
    }
}

// grid: rows
KERNEL(256) ictus_round_bf16(Ptr<u16> RESTRICT out, Ptr<f32> RESTRICT scales, Ptr<const f32> RESTRICT x, u32 columns, u32 padded) {
    round_16<true>(out, scales, x, columns, padded);
}
EXPORT(ictus_round_bf16, 256)
KERNEL(256) ictus_round_f16(Ptr<u16> RESTRICT out, Ptr<f32> RESTRICT scales, Ptr<const f32> RESTRICT x, u32 columns, u32 padded) {
    round_16<false>(out, scales, x, columns, padded);
}
EXPORT(ictus_round_f16, 256)

// grid: (rows rounded up to 2, groups / 8 rounded up)
KERNEL(256) ictus_round_s8(Ptr<u8> RESTRICT codes, Ptr<u32> RESTRICT notes, Ptr<const f32> RESTRICT x, u32 rows, u32 columns) {
    constexpr u32 NOT_FINITE = 0x7f800000u;
    constexpr f32 SMALLEST = 1e-30f, ROUND = 12582912.0f;
    u32 lane = threadIdx.x % WARP, group = blockIdx.y * 8 + threadIdx.x / WARP, row = blockIdx.x;
    if (group * 32 >= columns) return; // a whole warp
    u64 at = (u64)row * columns + group * 32, note = 2 * ((u64)group * gridDim.x + row);
    if (row >= rows) { // it is there so that rows go in pairs
        if (lane < 2) notes[note + lane] = 0;
        return;
    }
    f32 value = x[at + lane];
    u32 most = ~warp_least(~size_bits(value));
    bool is_zero = float_of(most) < SMALLEST, is_lost = most >= NOT_FINITE;
    f32 rounded = is_zero || is_lost ? 0.0f : (value * (127.0f / float_of(most)) + ROUND) - ROUND;
    i32 code = (i32)rounded;
    // Sums of codes + 128, which are not negative: those of the first half in the lower bits.
    u32 sums = warp_sum((u32)(code + 128) << (lane < 16 ? 0 : 16));
    i32 first = (i32)(sums & 0xffff) - 16 * 128, second = (i32)(sums >> 16) - 16 * 128;
    u32 word = lane / 4, place = word < 4 ? 2 * word : 2 * word - 7;
    codes[at + 4 * place + lane % 4] = (u8)code;
    f32 scale = is_lost ? float_of(0x7fc00000u) : is_zero ? 0.0f : float_of(most) / 127.0f;
    if (lane == 0) notes[note] = bits_of(scale);
    if (lane == 1) notes[note + 1] = ((u32)first & 0xffff) | (u32)second << 16;
}
EXPORT(ictus_round_s8, 256)
