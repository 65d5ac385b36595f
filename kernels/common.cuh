// What every kernel of this folder is written in: integer names, checked pointers, shared arrays, barriers and warp operations.
//
// The same text is compiled twice. nvcc makes PTX of it, and there `Ptr<T>` is `T*`. A C++ compiler makes the simulator's copy of it
// (sim/device.h), and there a pointer knows its allocation: accesses outside of it, of bytes that nobody wrote, and races are errors.
//
// Rules (docs/kernels.md has the reasons):
// - entries are `KERNEL(threads) name(arguments) { }`, then `EXPORT(name, threads)`; arguments are pointers, u32, i32, u64 or f32
// - `threads` is a multiple of 32 and the block size of every launch; sizes are u32, offsets into memory u64
// - shared memory only by `SHARED`, and by `SHARED_QUADS` where more than an element is read or copied at once; warp operations by whole warps; a barrier by all threads of the block
// - no atomics, no warp-wide guess about order: every sum has an order that sizes alone decide
// - a multiplication and an addition are fused only where `fused` says so: nvcc is told not to (-fmad=false)
#pragma once

#ifdef __CUDACC__

using u8 = unsigned char;
using i8 = signed char;
using u16 = unsigned short;
using i32 = int;
using u32 = unsigned int;
using u64 = unsigned long long;
using f32 = float;
using f64 = double;

template <class T> using Ptr = T*;
struct alignas(16) Quad {
    u32 x, y, z, w;
};
struct alignas(8) Pair {
    u32 x, y;
};

// At least one block a processor: told nothing, the assembler aims at many and spills.
#define KERNEL(threads) extern "C" __global__ void __launch_bounds__(threads, 1)
#define EXPORT(name, threads)
#define DEV static __device__ __forceinline__
#define DEV_MEMBER __device__ __forceinline__
#define RESTRICT __restrict__
// Before a loop over arrays that must stay in registers.
#define UNROLL _Pragma("unroll")
#define SHARED(type, name, count) __shared__ type name[count]
// From a multiple of 16 on; other arrays begin wherever their elements may.
#define SHARED_QUADS(type, name, count) __shared__ __align__(16) type name[count]

DEV void sync_block() { __syncthreads(); }
DEV void sync_warp() { __syncwarp(); }
DEV f32 shuffle_xor(f32 value, u32 lanes) { return __shfl_xor_sync(0xffffffffu, value, lanes); }
DEV u32 shuffle_xor(u32 value, u32 lanes) { return __shfl_xor_sync(0xffffffffu, value, lanes); }
DEV u32 shuffle_up(u32 value, u32 lanes) { return __shfl_up_sync(0xffffffffu, value, lanes); }
DEV f32 shuffle_from(f32 value, u32 lane) { return __shfl_sync(0xffffffffu, value, lane); }

DEV f32 fused(f32 a, f32 b, f32 c) { return __fmaf_rn(a, b, c); }
DEV f64 root(f64 x) { return __dsqrt_rn(x); }
DEV u32 ones(u32 bits) { return (u32)__popc(bits); }
DEV u32 bits_of(f32 x) { return __float_as_uint(x); }
DEV f32 float_of(u32 bits) { return __uint_as_float(bits); }
// The f16 with these bits, and the bits of the f16 nearest to a number (ties to even); of a NaN 0x7fff.
DEV f32 from_f16(u16 bits) {
    f32 value;
    asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));
    return value;
}
DEV u16 to_f16(f32 value) {
    u16 bits;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(value));
    return bits;
}
// The bf16 nearest to a number (ties to even); of a NaN 0x7fff.
DEV u16 to_bf16(f32 value) {
    u16 bits;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(bits) : "f"(value));
    return bits;
}
// c + the four products of the signed bytes of two words.
DEV i32 dp4a(u32 a, u32 b, i32 c) {
    i32 sum;
    asm("dp4a.s32.s32 %0, %1, %2, %3;" : "=r"(sum) : "r"(a), "r"(b), "r"(c));
    return sum;
}
// 16 bytes from an address that is a multiple of 16.
template <class T> DEV Quad load_quad(const T* from) { return *reinterpret_cast<const Quad*>(from); }
template <class T> DEV void store_quad(T* to, const Quad& quad) { *reinterpret_cast<Quad*>(to) = quad; }
// 8, 4 and 2 bytes from an address that is a multiple of as many.
template <class T> DEV Pair load_pair(const T* from) { return *reinterpret_cast<const Pair*>(from); }
template <class T> DEV u32 load_word(const T* from) { return *reinterpret_cast<const u32*>(from); }
template <class T> DEV u32 load_half(const T* from) { return *reinterpret_cast<const u16*>(from); }
// The same memory as bytes.
template <class T> DEV const u8* bytes_of(const T* from) { return reinterpret_cast<const u8*>(from); }
// Byte i of the result is byte s of the eight of `low` and `high`, s being the four bits of `choice` from 4 i on, below 8.
DEV u32 choose_bytes(u32 low, u32 high, u32 choice) {
    u32 bytes;
    asm("prmt.b32 %0, %1, %2, %3;" : "=r"(bytes) : "r"(low), "r"(high), "r"(choice));
    return bytes;
}

// ---- tensor cores: c = a b + c by a whole warp; a [16, k], b [k, 8], c [16, 8] ----
//
// With g = lane / 4 and t = lane % 4 a lane holds, of 16-bit elements (k = 16, the lower half of a word first):
//   a[0] row g columns 2 t, 2 t + 1;  a[1] row g + 8;  a[2], a[3] the same, eight columns further
//   b[0] rows 2 t, 2 t + 1 of column g;  b[1] eight rows further
//   c[0], c[1] row g columns 2 t, 2 t + 1;  c[2], c[3] row g + 8
// and of signed bytes (k = 32) words of four: a[0] row g columns 4 t .. 4 t + 3, a[1] row g + 8, a[2], a[3] sixteen columns further;
// b[0] rows 4 t .. 4 t + 3 of column g, b[1] sixteen rows further. With k = 16 there are only a[0], a[1] and b.
//
// Volatile, though the result is a function of the operands alone: a whole warp must come to it, and a compiler that sees a function may move it into the branch
// that uses its result, where lanes part ways. (nvcc 13.5 does not, and but for the place of some loads writes the same text either way.)
//
// Integers are exact. How a device rounds inside of a sum of 16-bit products is its own business, and the same in each element of c.
DEV void mma_bf16(f32 (&c)[4], const u32 (&a)[4], const u32 (&b)[2]) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
DEV void mma_f16(f32 (&c)[4], const u32 (&a)[4], const u32 (&b)[2]) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
DEV void mma_s8(i32 (&c)[4], const u32 (&a)[4], const u32 (&b)[2]) {
    asm volatile("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
DEV void mma_s8_half(i32 (&c)[4], u32 a0, u32 a1, u32 b) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"
        : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
        : "r"(a0), "r"(a1), "r"(b));
}
// Four matrices of 8 x 8 elements of 16 bits out of shared memory, by a whole warp: lane l points to the 16 bytes of row l % 8 of matrix l / 8.
// In out[m] a lane gets of matrix m the elements 2 t and 2 t + 1 of row g; transposed, those of column g in rows 2 t and 2 t + 1.
template <class T> DEV void load_matrices(u32 (&out)[4], T* row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
                 : "r"((u32)__cvta_generic_to_shared(row))
                 : "memory");
}
template <class T> DEV void load_matrices_transposed(u32 (&out)[4], T* row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
                 : "r"((u32)__cvta_generic_to_shared(row))
                 : "memory");
}

// ---- copies behind the thread's back: 16 bytes from device memory to shared memory, both at multiples of 16 ----
//
// copy_async starts one, of which only the first `bytes` are read and the rest is zeros; copy_commit makes a group of all that this thread started since its last
// one (none is a group too); copy_wait<N> waits until no more than the newest N of the thread's groups are under way. Before that nobody may touch the place, and after it
// other threads need a barrier. A thread must not end before its copies have.
template <class T, class U> DEV void copy_async(T* to, const U* from, u32 bytes = 16) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"((u32)__cvta_generic_to_shared(to)), "l"(__cvta_generic_to_global(from)), "r"(bytes)
                 : "memory");
}
DEV void copy_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <u32 N> DEV void copy_wait() { asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory"); }

// The bits that any lane has.
DEV u32 warp_or(u32 value) { return __reduce_or_sync(0xffffffffu, value); }
// Sums and maxima over the lanes of a warp: of floats a butterfly, so every lane gets the same bits; of integers no order matters.
DEV f32 warp_sum(f32 value) {
    for (u32 step = 16; step > 0; step /= 2) value += shuffle_xor(value, step);
    return value;
}
DEV u32 warp_sum(u32 value) { return __reduce_add_sync(0xffffffffu, value); }
DEV f32 warp_max(f32 value) {
    for (u32 step = 16; step > 0; step /= 2) {
        f32 other = shuffle_xor(value, step);
        value = other > value ? other : value;
    }
    return value;
}
DEV u32 warp_least(u32 value) { return __reduce_min_sync(0xffffffffu, value); }

#else
#include "sim/device.h"
#endif

constexpr u32 WARP = 32;

// The bf16 with these bits.
DEV f32 from_bf16(u16 bits) { return float_of((u32)bits << 16); }
DEV f32 infinity() { return float_of(0x7f800000u); }
DEV bool is_nan(f32 x) { return !(x == x); }
DEV bool is_finite(f32 x) { return (bits_of(x) & 0x7f800000u) != 0x7f800000u; }
DEV u32 smaller(u32 a, u32 b) { return a < b ? a : b; }

// Sum over a block of THREADS threads: warps by butterfly, then the warps' sums, by butterfly too, which every warp does for itself.
// All threads get it. `scratch` has 32 places; nobody touches them between this call's barriers.
template <u32 THREADS, class T> DEV T block_sum(T value, Ptr<T> scratch) {
    static_assert(THREADS % WARP == 0 && THREADS <= WARP * WARP, "whole warps, and no more than one warp can add up");
    u32 lane = threadIdx.x % WARP;
    value = warp_sum(value);
    sync_block(); // whoever still reads the scratch of an earlier call has read it
    if (lane == 0) scratch[threadIdx.x / WARP] = value;
    sync_block();
    T part = lane < THREADS / WARP ? (T)scratch[lane] : (T)0;
    return warp_sum(part);
}

// As block_sum, the largest number of a block; NaN is ignored.
template <u32 THREADS> DEV f32 block_max(f32 value, Ptr<f32> scratch) {
    u32 lane = threadIdx.x % WARP;
    value = warp_max(is_nan(value) ? -infinity() : value);
    sync_block();
    if (lane == 0) scratch[threadIdx.x / WARP] = value;
    sync_block();
    f32 part = lane < THREADS / WARP ? (f32)scratch[lane] : -infinity();
    return warp_max(part);
}

// Of a block of THREADS threads the smallest number. `scratch` as in block_sum.
template <u32 THREADS> DEV u32 block_least(u32 value, Ptr<u32> scratch) {
    u32 lane = threadIdx.x % WARP;
    value = warp_least(value);
    sync_block();
    if (lane == 0) scratch[threadIdx.x / WARP] = value;
    sync_block();
    return warp_least(lane < THREADS / WARP ? (u32)scratch[lane] : 0xffffffffu);
}

// The sum over the threads before this one, and over all of them in `total`. `scratch` as in block_sum.
template <u32 THREADS> DEV u32 block_offset(u32 value, Ptr<u32> scratch, u32& total) {
    u32 lane = threadIdx.x % WARP, inclusive = value;
    for (u32 step = 1; step < WARP; step *= 2) {
        u32 other = shuffle_up(inclusive, step);
        if (lane >= step) inclusive += other;
    }
    sync_block();
    if (lane == WARP - 1) scratch[threadIdx.x / WARP] = inclusive;
    sync_block();
    u32 before = 0;
    total = 0;
    for (u32 warp = 0; warp < THREADS / WARP; warp++) {
        u32 part = scratch[warp];
        if (warp < threadIdx.x / WARP) before += part;
        total += part;
    }
    return before + inclusive - value;
}

// Eight elements from an address that is a multiple of 16.
DEV void load_eight(Ptr<const u16> from, f32 (&values)[8]) {
    Quad quad = load_quad(from);
    u32 words[4] = {quad.x, quad.y, quad.z, quad.w};
    for (u32 i = 0; i < 4; i++) {
        values[2 * i] = from_f16((u16)(words[i] & 0xffff));
        values[2 * i + 1] = from_f16((u16)(words[i] >> 16));
    }
}
DEV void load_eight(Ptr<const f32> from, f32 (&values)[8]) {
    for (u32 half = 0; half < 2; half++) {
        Quad quad = load_quad(from + 4 * half);
        values[4 * half] = float_of(quad.x);
        values[4 * half + 1] = float_of(quad.y);
        values[4 * half + 2] = float_of(quad.z);
        values[4 * half + 3] = float_of(quad.w);
    }
}
