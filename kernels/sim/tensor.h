// The tensor cores' operations and the copies behind a thread's back, as common.cuh describes them: twins for the simulator.
//
// Numerics of the 16-bit products: 16 of them and the old sum are added up in double precision, in the order of k, and rounded once. A device
// rounds in its own way (its sums are cut off at some bits below the largest term), so only bounds can be compared with it, never bits.
#pragma once

namespace sim {

// Elements of the fragments that the lanes hold: `a` [16][K], `b` [K][8]; words 0 to 3 of a lane are a, 4 and 5 b, 6 to 9 c.
template <u32 K, class E, class F> void gather_fragments(const Words& in, E (&a)[16][K], E (&b)[K][8], F element) {
    constexpr u32 PER_WORD = K == 16 && sizeof(E) == 8 ? 2 : 4, HALVES = K / (4 * PER_WORD);
    for (u32 lane = 0; lane < 32; lane++)
        for (u32 half = 0; half < HALVES; half++)
            for (u32 i = 0; i < PER_WORD; i++) {
                u32 g = lane / 4, k = 4 * PER_WORD * half + PER_WORD * (lane % 4) + i;
                a[g][k] = element(in[lane][2 * half], i);
                a[g + 8][k] = element(in[lane][2 * half + 1], i);
                b[k][g] = element(in[lane][4 + half], i);
            }
}

// c + a b, element by element; `c` word i of a lane is row g + i / 2 * 8, column 2 t + i % 2.
template <u32 K, class E, class C, class F> void multiply(const Words& in, Words& out, F element) {
    E a[16][K], b[K][8], sums[16][8];
    gather_fragments<K>(in, a, b, element);
    for (u32 lane = 0; lane < 32; lane++)
        for (u32 i = 0; i < 4; i++) sums[lane / 4 + i / 2 * 8][lane % 4 * 2 + i % 2] = (E)value_of<C>(in[lane][6 + i]);
    for (u32 row = 0; row < 16; row++)
        for (u32 k = 0; k < K; k++)
            for (u32 column = 0; column < 8; column++) sums[row][column] += a[row][k] * b[k][column];
    for (u32 lane = 0; lane < 32; lane++)
        for (u32 i = 0; i < 4; i++) out[lane][i] = word_of((C)sums[lane / 4 + i / 2 * 8][lane % 4 * 2 + i % 2]);
}

template <class C> void warp_multiply(const char* what, C (&c)[4], const u32 (&a)[4], const u32 (&b)[2], Combine combine, const char* file, int line) {
    u32 words[WORDS] = {a[0], a[1], a[2], a[3], b[0], b[1], word_of(c[0]), word_of(c[1]), word_of(c[2]), word_of(c[3])};
    const u32* sums = meet(what, file, line, words, WORDS, combine, 0);
    for (u32 i = 0; i < 4; i++) c[i] = value_of<C>(sums[i]);
}

inline f64 bf16_of(u32 word, u32 i) { return value_of<f32>(word >> 16 * i << 16); }
inline f64 f16_of(u32 word, u32 i) {
    u16 bits = (u16)(word >> 16 * i);
    _Float16 value;
    std::memcpy(&value, &bits, 2);
    return (f64)value;
}
inline i32 s8_of(u32 word, u32 i) { return (i8)(word >> 8 * i); }

} // namespace sim

DEV void mma_bf16(f32 (&c)[4], const u32 (&a)[4], const u32 (&b)[2], SIM_PLACE) {
    auto combine = [](const sim::Words& in, sim::Words& out, u32) { sim::multiply<16, f64, f32>(in, out, sim::bf16_of); };
    sim::warp_multiply("mma_bf16", c, a, b, combine, file, line);
}
DEV void mma_f16(f32 (&c)[4], const u32 (&a)[4], const u32 (&b)[2], SIM_PLACE) {
    auto combine = [](const sim::Words& in, sim::Words& out, u32) { sim::multiply<16, f64, f32>(in, out, sim::f16_of); };
    sim::warp_multiply("mma_f16", c, a, b, combine, file, line);
}
DEV void mma_s8(i32 (&c)[4], const u32 (&a)[4], const u32 (&b)[2], SIM_PLACE) {
    auto combine = [](const sim::Words& in, sim::Words& out, u32) { sim::multiply<32, i32, i32>(in, out, sim::s8_of); };
    sim::warp_multiply("mma_s8", c, a, b, combine, file, line);
}
DEV void mma_s8_half(i32 (&c)[4], u32 a0, u32 a1, u32 b, SIM_PLACE) {
    auto combine = [](const sim::Words& in, sim::Words& out, u32) { sim::multiply<16, i32, i32>(in, out, sim::s8_of); };
    sim::warp_multiply("mma_s8_half", c, {a0, a1, 0, 0}, {b, 0}, combine, file, line);
}

// Each lane reads the row that it points to, which is where its accesses are checked, and the words are handed round.
template <class T> void load_matrices_as(const char* what, u32 (&out)[4], Ptr<T> row, bool transposed, const char* file, int line) {
    Quad quad = load_quad(row);
    u32 words[4] = {quad.x, quad.y, quad.z, quad.w};
    auto exchange = [](const sim::Words& in, sim::Words& out, u32 transposed) {
        auto element = [&](u32 matrix, u32 row, u32 column) { return in[8 * matrix + row][column / 2] >> column % 2 * 16 & 0xffff; };
        for (u32 lane = 0; lane < 32; lane++)
            for (u32 matrix = 0; matrix < 4; matrix++) {
                u32 g = lane / 4, t = lane % 4 * 2;
                out[lane][matrix] = transposed ? element(matrix, t, g) | element(matrix, t + 1, g) << 16
                                               : element(matrix, g, t) | element(matrix, g, t + 1) << 16;
            }
    };
    const u32* got = sim::meet(what, file, line, words, 4, exchange, transposed);
    for (u32 i = 0; i < 4; i++) out[i] = got[i];
}
template <class T> void load_matrices(u32 (&out)[4], Ptr<T> row, SIM_PLACE) { load_matrices_as("load_matrices", out, row, false, file, line); }
template <class T> void load_matrices_transposed(u32 (&out)[4], Ptr<T> row, SIM_PLACE) {
    load_matrices_as("load_matrices_transposed", out, row, true, file, line);
}

template <class T, class U> void copy_async(Ptr<T> to, Ptr<U> from, u32 bytes = 16) { sim::copy_begin(to.home, to.at, from.home, from.at, bytes); }
DEV void copy_commit() { sim::copy_commit(); }
template <u32 N> void copy_wait() { sim::copy_wait(N); }
