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
//! - [`Wide`] has 16 lanes in every instance, and a lane never meets another one: what a lane computes is the same everywhere, but for
//!   [`Wide::fma_w`], which rounds twice where the instruction set does not fuse.

/// Lanes of a vector.
pub(super) const LANES: usize = 8;

/// A computation that is compiled once per instruction set.
pub(super) trait Op {
    /// What it answers.
    type Output;

    /// The computation; implementations are `#[inline(always)]`.
    fn run<S: Simd>(self, s: S) -> Self::Output;
}

/// A computation with products of bytes, likewise.
pub(super) trait IntegerOp {
    /// What it answers.
    type Output;

    /// The computation; implementations are `#[inline(always)]`.
    fn run<S: Integers>(self, s: S) -> Self::Output;
}

/// Operations on 16 lanes, each of which stands for an output: one row of weights of a tile (see `tile`).
///
/// Dwords are little-endian: byte `j` of a dword is bits `8 j .. 8 j + 8`. Memory needs no alignment.
pub(super) trait Wide: Copy + Send + Sync {
    /// 16 x f32.
    type W: Copy;
    /// 16 dwords of four codes of a byte: lane = row of weights, byte `j` = column `j` of four.
    type C: Copy;

    /// What [`Wide::byte`] has multiplied the byte by, by place: powers of two, taken back exactly by what it is multiplied with.
    const BYTE_FACTORS: [f32; 4];
    /// Whether registers hold some twenty vectors of 16 lanes, and not half as many.
    const HOLDS_MANY: bool;

    /// The same number in all lanes.
    fn splat_w(self, x: f32) -> Self::W;
    /// Sixteen numbers.
    fn load_w(self, from: &[f32; 16]) -> Self::W;
    /// Writes the lanes.
    fn store_w(self, v: Self::W, to: &mut [f32; 16]);
    /// Sixteen numbers from little-endian binary32.
    fn load_w_f32(self, from: &[u8; 64]) -> Self::W;
    /// Sixteen numbers from little-endian binary16.
    fn load_w_f16(self, from: &[u8; 32]) -> Self::W;
    /// Sixteen numbers from little-endian bfloat16.
    fn load_w_bf16(self, from: &[u8; 32]) -> Self::W;
    /// Sixteen numbers from signed bytes.
    fn load_w_i8(self, from: &[u8; 16]) -> Self::W;
    /// `a + b`
    fn add_w(self, a: Self::W, b: Self::W) -> Self::W;
    /// `a * b`
    fn mul_w(self, a: Self::W, b: Self::W) -> Self::W;
    /// `a * b + c`, rounded once where the instruction set has it and twice elsewhere.
    fn fma_w(self, a: Self::W, b: Self::W, c: Self::W) -> Self::W;

    /// Sixteen dwords.
    fn load_c(self, from: &[u8; 64]) -> Self::C;
    /// Writes the dwords.
    fn store_c(self, v: Self::C, to: &mut [u8; 64]);
    /// Byte `i` as dword `i`.
    fn widen_c(self, from: &[u8; 16]) -> Self::C;
    /// The same byte 64 times.
    fn splat_c(self, byte: u8) -> Self::C;
    /// `a & b`
    fn and_c(self, a: Self::C, b: Self::C) -> Self::C;
    /// `a | b`
    fn or_c(self, a: Self::C, b: Self::C) -> Self::C;
    /// `a ^ b`
    fn xor_c(self, a: Self::C, b: Self::C) -> Self::C;
    /// Each dword shifted right by `n < 32` bits; zeros come in, and bits pass from byte to byte.
    fn shr_c(self, a: Self::C, n: u32) -> Self::C;
    /// Each dword shifted left by `n < 32` bits; zeros come in, and bits pass from byte to byte.
    fn shl_c(self, a: Self::C, n: u32) -> Self::C;
    /// `table[code]` for each byte of `codes`, all below 16.
    fn lookup_c(self, table: &[u8; 16], codes: Self::C) -> Self::C;
    /// Byte `J < 4` of each dword, unsigned, times [`Wide::BYTE_FACTORS`]`[J]`.
    fn byte<const J: usize>(self, codes: Self::C) -> Self::W;
}

/// An instruction set; a value of it is the proof that this processor has it.
pub(super) trait Simd: Wide {
    /// 8 x f32.
    type V: Copy;

    /// Runs an operation compiled for this instruction set.
    fn run<O: Op>(self, op: O) -> O::Output;

    /// The same number in all lanes.
    fn splat(self, x: f32) -> Self::V;
    /// Eight numbers.
    fn load(self, from: &[f32; 8]) -> Self::V;
    /// Writes the lanes.
    fn store(self, v: Self::V, to: &mut [f32; 8]);
    /// Writes the lanes as binary16, ties to even.
    fn store_f16(self, v: Self::V, to: &mut [u16; 8]);
    /// Asks for the line of memory at an address, any address, to come into the second-level cache, where the instruction set has a way to.
    fn prefetch<T>(self, at: *const T);

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
    /// The largest lane, where all are numbers.
    fn largest(self, v: Self::V) -> f32;
}

/// An instruction set with products of bytes. One that has none of its own lets another one have them (see `dispatch`).
pub(super) trait Integers: Simd {
    /// 16 x i32: sums of integer products.
    type I: Copy;

    /// Whether codes are better unpacked in registers than into memory where they meet one row of `x`.
    const IN_REGISTERS: bool;
    /// Largest code that [`Integers::dot`] takes.
    const LARGEST_CODE: u8;
    /// Most rows of `x` whose sums are held in registers beside codes: 1, 2 or 4.
    const DOT_ROWS: usize;
    /// How many times so many rows codes stay in registers for, with the sums in memory in between: 1 or 4. 1 where codes do not stay.
    const DOT_PARTIES: usize;

    /// Runs an operation with products of bytes, compiled for this instruction set.
    fn run_integers<O: IntegerOp>(self, op: O) -> O::Output;

    /// Zeros.
    fn zero_i(self) -> Self::I;
    /// `sum[r] + sum_j codes[r][j] * x[j]`: exact for unsigned codes up to
    /// [`Integers::LARGEST_CODE`] and `x` in -127 ..= 127.
    fn dot(self, sum: Self::I, codes: Self::C, x: [i8; 4]) -> Self::I;
    /// As [`Integers::dot`], for codes that are signed bytes, all 256 values of them, and `x` in -127 ..= 127.
    fn dot_signed(self, sum: Self::I, codes: Self::C, x: [i8; 4]) -> Self::I;
    /// The same integer in all lanes.
    fn splat_i(self, x: i32) -> Self::I;
    /// For each of `M` rows of `x`: the products of `N` times four columns, added up. `codes` are unsigned bytes up to `largest`, and count
    /// `raised` less; `x` is in -127 ..= 127, and `x_sums` is [`SUM_UNIT`] times what each row of it adds up to.
    /// Exact in any order, as `16 N` products of 255 by 127 are far from 2^31.
    #[inline(always)]
    fn dots<const M: usize, const N: usize>(
        self,
        codes: [Self::C; N],
        [largest, raised]: [u8; 2],
        x: [&[[i8; 4]; N]; M],
        x_sums: [i32; M],
    ) -> [Self::I; M] {
        // Codes that the instruction does not take are taken 128 lower.
        let lowered: u8 = if largest > Self::LARGEST_CODE { 128 } else { 0 };
        let mut sums = self.first_sums(raised, lowered, x_sums);
        for n in 0..N {
            for m in 0..M {
                sums[m] = if largest > Self::LARGEST_CODE {
                    self.dot_signed(sums[m], self.xor_c(codes[n], self.splat_c(128)), x[m][n])
                } else {
                    self.dot(sums[m], codes[n], x[m][n])
                };
            }
        }
        sums
    }
    /// What the sums of [`Integers::dots`] begin with where codes of weights count `raised` less and are taken `lowered` less.
    #[inline(always)]
    fn first_sums<const M: usize>(self, raised: u8, lowered: u8, x_sums: [i32; M]) -> [Self::I; M] {
        let mut sums = [self.zero_i(); M];
        for m in 0..M {
            sums[m] = self.splat_i(first_sum(raised, lowered, x_sums[m]));
        }
        sums
    }
    /// The nearest numbers.
    fn numbers(self, v: Self::I) -> Self::W;
}

/// What a sum of codes of `x` is multiplied by before it is kept: the most frequent of what weights are raised by, so that it is read and not computed where
/// products begin.
pub(super) const SUM_UNIT: i32 = -16;

/// `lowered - raised` times the sum of the codes of `x`, of which `x_sum` is [`SUM_UNIT`] times as much.
#[inline(always)]
fn first_sum(raised: u8, lowered: u8, x_sum: i32) -> i32 {
    let times = i32::from(lowered) - i32::from(raised);
    // Divided at last where it has to be: that is exact, and small enough before.
    if times % SUM_UNIT == 0 { times / SUM_UNIT * x_sum } else { times * x_sum / SUM_UNIT }
}

/// Four bytes as a dword, the first one lowest.
#[inline(always)]
pub(super) fn dword(x: [i8; 4]) -> i32 {
    // Written out: a closure would be a function of its own, and a call in the innermost loop.
    i32::from_le_bytes([x[0].cast_unsigned(), x[1].cast_unsigned(), x[2].cast_unsigned(), x[3].cast_unsigned()])
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

#[cfg(test)]
mod tests {
    use super::{SUM_UNIT, first_sum};

    #[test]
    fn what_codes_are_raised_by_is_taken_off_whatever_it_is() {
        for raised in 0..=255 {
            for lowered in [0, 128] {
                // Of 16 columns, at most.
                for sum in [-16 * 127, -1000, -7, -1, 0, 1, 8, 999, 16 * 127] {
                    let expected = (i32::from(lowered) - i32::from(raised)) * sum;
                    assert_eq!(first_sum(raised, lowered, SUM_UNIT * sum), expected, "{raised} {lowered} {sum}");
                }
            }
        }
    }
}
