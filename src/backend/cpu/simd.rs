#![forbid(unsafe_code)]
//! The vector operations that kernels are written in.
//!
//! A kernel is an [`Op`]: a struct with its arguments and one generic function over [`Simd`]. An instruction set is a token that
//! implements [`Simd`]; [`Simd::run`] compiles an operation for it. All functions that a kernel is made of are
//! `#[inline(always)]`, closures are avoided in loops: code only gets the instruction set of the function it is inlined into.
//!
//! # Invariants
//! - A vector has 8 lanes in every instance, so reductions have one shape: lane `i` sums the elements `i` modulo 8, then the
//!   lanes are summed as `((0+4)+(2+6)) + ((1+5)+(3+7))`.
//! - [`Simd::max`] answers its second argument where either is not a number, so `max(bound, x)` keeps a NaN.

/// Lanes of a vector.
pub(super) const LANES: usize = 8;

/// A computation that is compiled once per instruction set.
pub(super) trait Op {
    /// What it answers.
    type Output;

    /// The computation; implementations are `#[inline(always)]`.
    fn run<S: Simd>(self, s: S) -> Self::Output;
}

/// An instruction set; a value of it is the proof that this processor has it.
pub(super) trait Simd: Copy + Send + Sync {
    /// 8 x f32.
    type V: Copy;
    /// 16 bytes.
    type B: Copy;

    /// Runs an operation compiled for this instruction set.
    fn run<O: Op>(self, op: O) -> O::Output;

    /// The same number in all lanes.
    fn splat(self, x: f32) -> Self::V;
    /// Eight numbers.
    fn load(self, from: &[f32; 8]) -> Self::V;
    /// Writes the lanes.
    fn store(self, v: Self::V, to: &mut [f32; 8]);
    /// Eight numbers from binary16.
    fn load_f16(self, from: &[u16; 8]) -> Self::V;
    /// Writes the lanes as binary16, ties to even.
    fn store_f16(self, v: Self::V, to: &mut [u16; 8]);
    /// Eight numbers from bfloat16.
    fn load_bf16(self, from: &[u16; 8]) -> Self::V;
    /// One number from binary16.
    fn half(self, bits: u16) -> f32;

    /// `a + b`
    fn add(self, a: Self::V, b: Self::V) -> Self::V;
    /// `a - b`
    fn sub(self, a: Self::V, b: Self::V) -> Self::V;
    /// `a * b`
    fn mul(self, a: Self::V, b: Self::V) -> Self::V;
    /// `a / b`
    fn div(self, a: Self::V, b: Self::V) -> Self::V;
    /// `a * b + c`, rounded once where the instruction set has it and twice elsewhere.
    fn fma(self, a: Self::V, b: Self::V, c: Self::V) -> Self::V;
    /// `a` where `a > b`, else `b`.
    fn max(self, a: Self::V, b: Self::V) -> Self::V;
    /// `a` where `a < b`, else `b`.
    fn min(self, a: Self::V, b: Self::V) -> Self::V;
    /// `2^n` for whole `n` in -126 ..= 127.
    fn pow2(self, n: Self::V) -> Self::V;

    /// The sum of the lanes, in the order of the module's invariant.
    fn sum(self, v: Self::V) -> f32;
    /// The sums of four vectors.
    fn sum4(self, v: [Self::V; 4]) -> [f32; 4];
    /// The sums of eight vectors, one in each lane.
    fn sum8(self, v: [Self::V; 8]) -> Self::V;

    /// Sixteen bytes.
    fn load_bytes(self, from: &[u8; 16]) -> Self::B;
    /// The same byte sixteen times.
    fn splat_byte(self, x: u8) -> Self::B;
    /// `a & b`
    fn and(self, a: Self::B, b: Self::B) -> Self::B;
    /// `a | b`
    fn or(self, a: Self::B, b: Self::B) -> Self::B;
    /// `a - b` of each byte, wrapping.
    fn sub_bytes(self, a: Self::B, b: Self::B) -> Self::B;
    /// 255 where the bytes are equal, else 0.
    fn equal_bytes(self, a: Self::B, b: Self::B) -> Self::B;
    /// Each byte shifted right by `n < 8`; zeros come in.
    fn shr_bytes(self, a: Self::B, n: u32) -> Self::B;
    /// Each byte shifted left by `n < 8`; zeros come in.
    fn shl_bytes(self, a: Self::B, n: u32) -> Self::B;
    /// Byte `i` is 255 where bit `i` is set, else 0.
    fn bits_to_bytes(self, bits: u16) -> Self::B;
    /// `table[index]` for each byte of `index`, all below 16.
    fn lookup(self, table: Self::B, index: Self::B) -> Self::B;
    /// Unsigned bytes as numbers: bytes 0 .. 8 and 8 .. 16.
    fn unsigned(self, b: Self::B) -> [Self::V; 2];
    /// Signed bytes as numbers.
    fn signed(self, b: Self::B) -> [Self::V; 2];
}

/// Up to eight numbers, the rest of the lanes 0.
#[inline(always)]
pub(super) fn load_part<S: Simd>(s: S, from: &[f32]) -> S::V {
    let mut lanes = [0.0; LANES];
    for (lane, &x) in lanes.iter_mut().zip(from) {
        *lane = x;
    }
    s.load(&lanes)
}

/// Writes as many lanes as fit.
#[inline(always)]
pub(super) fn store_part<S: Simd>(s: S, v: S::V, to: &mut [f32]) {
    let mut lanes = [0.0; LANES];
    s.store(v, &mut lanes);
    for (x, &lane) in to.iter_mut().zip(&lanes) {
        *x = lane;
    }
}

/// `N` bytes from `at` on; zeros where the slice ends before, which callers exclude.
#[inline(always)]
pub(super) fn part<const N: usize>(bytes: &[u8], at: usize) -> &[u8; N] {
    match bytes.get(at..) {
        Some(rest) => rest.first_chunk().unwrap_or(&[0; N]),
        None => &[0; N],
    }
}
