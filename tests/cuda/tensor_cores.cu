// Each operation of the tensor cores by itself: a [16][k], b [8][k] (a row of it is a column of the product), out [16][8], c beforehand.
#include "common.cuh"

// Two elements of 16 bits, or four of 8, from an address that is a multiple of 4.
template <class T> DEV u32 word_at(Ptr<const T> from) {
    u32 word = 0;
    for (u32 i = 0; i < 4 / sizeof(T); i++) word |= (u32)from[i] << i * 8 * sizeof(T);
    return word;
}

template <class C> DEV void load_sums(Ptr<const C> from, C (&c)[4]) {
    u32 g = threadIdx.x / 4, t = threadIdx.x % 4;
    for (u32 i = 0; i < 4; i++) c[i] = from[(g + i / 2 * 8) * 8 + 2 * t + i % 2];
}
template <class C> DEV void store_sums(Ptr<C> to, const C (&c)[4]) {
    u32 g = threadIdx.x / 4, t = threadIdx.x % 4;
    for (u32 i = 0; i < 4; i++) to[(g + i / 2 * 8) * 8 + 2 * t + i % 2] = c[i];
}

template <bool BF16> DEV void product_16(Ptr<f32> out, Ptr<const u16> a, Ptr<const u16> b, Ptr<const f32> before) {
    u32 g = threadIdx.x / 4, t = threadIdx.x % 4;
    f32 c[4];
    load_sums(before, c);
    u32 as[4] = {word_at(a + 16 * g + 2 * t), word_at(a + 16 * (g + 8) + 2 * t), word_at(a + 16 * g + 2 * t + 8), word_at(a + 16 * (g + 8) + 2 * t + 8)};
    u32 bs[2] = {word_at(b + 16 * g + 2 * t), word_at(b + 16 * g + 2 * t + 8)};
    if (BF16)
        mma_bf16(c, as, bs);
    else
        mma_f16(c, as, bs);
    store_sums(out, c);
}
KERNEL(32) good_mma_bf16(Ptr<f32> out, Ptr<const u16> a, Ptr<const u16> b, Ptr<const f32> c) { product_16<true>(out, a, b, c); }
EXPORT(good_mma_bf16, 32)
KERNEL(32) good_mma_f16(Ptr<f32> out, Ptr<const u16> a, Ptr<const u16> b, Ptr<const f32> c) { product_16<false>(out, a, b, c); }
EXPORT(good_mma_f16, 32)

KERNEL(32) good_mma_s8(Ptr<i32> out, Ptr<const u8> a, Ptr<const u8> b, Ptr<const i32> before) {
    u32 g = threadIdx.x / 4, t = threadIdx.x % 4;
    i32 c[4];
    load_sums(before, c);
    u32 as[4] = {word_at(a + 32 * g + 4 * t), word_at(a + 32 * (g + 8) + 4 * t), word_at(a + 32 * g + 4 * t + 16), word_at(a + 32 * (g + 8) + 4 * t + 16)};
    u32 bs[2] = {word_at(b + 32 * g + 4 * t), word_at(b + 32 * g + 4 * t + 16)};
    mma_s8(c, as, bs);
    store_sums(out, c);
}
EXPORT(good_mma_s8, 32)

// k = 16: two of them are one product of 32.
KERNEL(32) good_mma_s8_half(Ptr<i32> out, Ptr<const u8> a, Ptr<const u8> b, Ptr<const i32> before) {
    u32 g = threadIdx.x / 4, t = threadIdx.x % 4;
    i32 c[4];
    load_sums(before, c);
    for (u32 half = 0; half < 32; half += 16)
        mma_s8_half(c, word_at(a + 32 * g + 4 * t + half), word_at(a + 32 * (g + 8) + 4 * t + half), word_at(b + 32 * g + 4 * t + half));
    store_sums(out, c);
}
EXPORT(good_mma_s8_half, 32)

// A lane of the first 16 x 8 takes an element of its own per round.
KERNEL(32) good_dp4a(Ptr<i32> out, Ptr<const u8> a, Ptr<const u8> b, Ptr<const i32> before) {
    for (u32 element = threadIdx.x; element < 128; element += 32) {
        i32 sum = before[element];
        for (u32 k = 0; k < 32; k += 4) sum = dp4a(word_at(a + 32 * (element / 8) + k), word_at(b + 32 * (element % 8) + k), sum);
        out[element] = sum;
    }
}
EXPORT(good_dp4a, 32)

// out[0 .. 256] are four matrices of 8 x 8 as they were, out[256 .. 512] transposed.
KERNEL(32) good_matrices(Ptr<u16> out, Ptr<const u16> x) {
    SHARED_QUADS(u16, values, 256);
    u32 lane = threadIdx.x, g = lane / 4, t = lane % 4, words[2][4];
    copy_async(values + 8 * lane, x + 8 * lane);
    copy_commit();
    copy_wait<0>();
    load_matrices(words[0], values + 8 * lane);
    load_matrices_transposed(words[1], values + 8 * lane);
    for (u32 way = 0; way < 2; way++)
        for (u32 matrix = 0; matrix < 4; matrix++)
            for (u32 i = 0; i < 2; i++) out[256 * way + 64 * matrix + 8 * g + 2 * t + i] = (u16)(words[way][matrix] >> 16 * i);
}
EXPORT(good_matrices, 32)

KERNEL(32) good_to_bf16(Ptr<u16> out, Ptr<const f32> x) { out[threadIdx.x] = to_bf16(x[threadIdx.x]); }
EXPORT(good_to_bf16, 32)

KERNEL(32) good_warp_or(Ptr<u32> out, Ptr<const u32> in) { out[threadIdx.x] = warp_or(in[threadIdx.x]); }
EXPORT(good_warp_or, 32)
