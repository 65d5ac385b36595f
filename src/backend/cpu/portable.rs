#![forbid(unsafe_code)]
//! The instance that runs everywhere: arrays, which the compiler vectorises as the target allows.
//!
//! What decodes weights is not inlined: it is long here, and this instance is for processors that no speed is asked of.
//!
//! Products and sums are rounded apart, because a fused operation in software is a hundred times slower.

use half::{bf16, f16};

use super::simd::{IntegerOp, Integers, LANES, Op, Simd, Wide};

/// Needs nothing.
#[derive(Clone, Copy, Debug)]
pub(super) struct Portable;

type V = [f32; LANES];

#[inline(always)]
fn map(a: V, f: impl Fn(f32) -> f32) -> V {
    let mut out = a;
    for x in &mut out {
        *x = f(*x);
    }
    out
}

#[inline(always)]
fn zip<T: Copy, const N: usize>(a: [T; N], b: [T; N], f: impl Fn(T, T) -> T) -> [T; N] {
    let mut out = a;
    for (x, &y) in out.iter_mut().zip(&b) {
        *x = f(*x, y);
    }
    out
}

/// Lane by lane from bytes, `N` of them a lane.
#[inline(always)]
fn lanes<T: Copy + Default, const N: usize>(from: &[u8], f: impl Fn([u8; N]) -> T) -> [T; 16] {
    let mut out = [T::default(); 16];
    for (x, bytes) in out.iter_mut().zip(from.as_chunks::<N>().0) {
        *x = f(*bytes);
    }
    out
}

impl Wide for Portable {
    type W = [f32; 16];
    type C = [u32; 16];

    const BYTE_FACTORS: [f32; 4] = [1.0; 4];
    const HOLDS_MANY: bool = false;

    #[inline(always)]
    fn splat_w(self, x: f32) -> [f32; 16] {
        [x; 16]
    }

    #[inline(always)]
    fn load_w(self, from: &[f32; 16]) -> [f32; 16] {
        *from
    }

    #[inline(always)]
    fn store_w(self, v: [f32; 16], to: &mut [f32; 16]) {
        *to = v;
    }

    #[inline(always)]
    fn load_w_f32(self, from: &[u8; 64]) -> [f32; 16] {
        lanes(from, f32::from_le_bytes)
    }

    #[inline(never)]
    fn load_w_f16(self, from: &[u8; 32]) -> [f32; 16] {
        lanes(from, |bits| f16::from_le_bytes(bits).to_f32())
    }

    #[inline(never)]
    fn load_w_bf16(self, from: &[u8; 32]) -> [f32; 16] {
        lanes(from, |bits| bf16::from_le_bytes(bits).to_f32())
    }

    #[inline(never)]
    fn load_w_i8(self, from: &[u8; 16]) -> [f32; 16] {
        lanes(from, |byte| f32::from(i8::from_le_bytes(byte)))
    }

    #[inline(always)]
    fn add_w(self, a: [f32; 16], b: [f32; 16]) -> [f32; 16] {
        zip(a, b, |a, b| a + b)
    }

    #[inline(always)]
    fn mul_w(self, a: [f32; 16], b: [f32; 16]) -> [f32; 16] {
        zip(a, b, |a, b| a * b)
    }

    #[inline(always)]
    fn fma_w(self, a: [f32; 16], b: [f32; 16], c: [f32; 16]) -> [f32; 16] {
        self.add_w(self.mul_w(a, b), c)
    }

    #[inline(always)]
    fn load_c(self, from: &[u8; 64]) -> [u32; 16] {
        lanes(from, u32::from_le_bytes)
    }

    #[inline(always)]
    fn store_c(self, v: [u32; 16], to: &mut [u8; 64]) {
        for (to, dword) in to.as_chunks_mut::<4>().0.iter_mut().zip(v) {
            *to = dword.to_le_bytes();
        }
    }

    #[inline(never)]
    fn widen_c(self, from: &[u8; 16]) -> [u32; 16] {
        lanes(from, |[byte]| u32::from(byte))
    }

    #[inline(always)]
    fn splat_c(self, byte: u8) -> [u32; 16] {
        [u32::from_le_bytes([byte; 4]); 16]
    }

    #[inline(always)]
    fn and_c(self, a: [u32; 16], b: [u32; 16]) -> [u32; 16] {
        zip(a, b, |a, b| a & b)
    }

    #[inline(always)]
    fn or_c(self, a: [u32; 16], b: [u32; 16]) -> [u32; 16] {
        zip(a, b, |a, b| a | b)
    }

    #[inline(always)]
    fn xor_c(self, a: [u32; 16], b: [u32; 16]) -> [u32; 16] {
        zip(a, b, |a, b| a ^ b)
    }

    #[inline(never)]
    fn shr_c(self, a: [u32; 16], n: u32) -> [u32; 16] {
        zip(a, [n & 31; 16], |a, n| a >> n)
    }

    #[inline(never)]
    fn shl_c(self, a: [u32; 16], n: u32) -> [u32; 16] {
        zip(a, [n & 31; 16], |a, n| a << n)
    }

    #[inline(never)]
    fn lookup_c(self, table: &[u8; 16], codes: [u32; 16]) -> [u32; 16] {
        let mut out = codes;
        for dword in &mut out {
            *dword = u32::from_le_bytes(dword.to_le_bytes().map(|code| table[usize::from(code & 15)]));
        }
        out
    }

    #[inline(never)]
    fn byte<const J: usize>(self, codes: [u32; 16]) -> [f32; 16] {
        let mut out = [0.0; 16];
        for (x, &dword) in out.iter_mut().zip(&codes) {
            *x = f32::from((dword >> (8 * J)) as u8);
        }
        out
    }
}

impl Integers for Portable {
    type I = [i32; 16];

    const IN_REGISTERS: bool = false;
    const LARGEST_CODE: u8 = 255;
    const DOT_ROWS: usize = 1;
    const DOT_PARTIES: usize = 1;

    #[inline(never)]
    fn run_integers<O: IntegerOp>(self, op: O) -> O::Output {
        op.run(self)
    }

    #[inline(always)]
    fn zero_i(self) -> [i32; 16] {
        [0; 16]
    }

    #[inline(always)]
    fn splat_i(self, x: i32) -> [i32; 16] {
        [x; 16]
    }

    #[inline(always)]
    fn dot(self, sum: [i32; 16], codes: [u32; 16], x: [i8; 4]) -> [i32; 16] {
        let mut out = sum;
        for (sum, &dword) in out.iter_mut().zip(&codes) {
            for (code, x) in dword.to_le_bytes().into_iter().zip(x) {
                *sum += i32::from(code) * i32::from(x);
            }
        }
        out
    }

    #[inline(always)]
    fn dot_signed(self, sum: [i32; 16], codes: [u32; 16], x: [i8; 4]) -> [i32; 16] {
        let mut out = sum;
        for (sum, &dword) in out.iter_mut().zip(&codes) {
            for (code, x) in dword.to_le_bytes().into_iter().zip(x) {
                *sum += i32::from(code.cast_signed()) * i32::from(x);
            }
        }
        out
    }

    #[inline(always)]
    fn numbers(self, v: [i32; 16]) -> [f32; 16] {
        let mut out = [0.0; 16];
        for (x, &v) in out.iter_mut().zip(&v) {
            *x = v as f32;
        }
        out
    }
}

impl Simd for Portable {
    type V = V;

    #[inline(never)]
    fn run<O: Op>(self, op: O) -> O::Output {
        op.run(self)
    }

    #[inline(always)]
    fn splat(self, x: f32) -> V {
        [x; LANES]
    }

    #[inline(always)]
    fn load(self, from: &[f32; 8]) -> V {
        *from
    }

    #[inline(always)]
    fn store(self, v: V, to: &mut [f32; 8]) {
        *to = v;
    }

    #[inline(always)]
    fn store_f16(self, v: V, to: &mut [u16; 8]) {
        for (bits, &x) in to.iter_mut().zip(&v) {
            *bits = f16::from_f32(x).to_bits();
        }
    }

    #[inline(always)]
    fn prefetch<T>(self, _: *const T) {}

    #[inline(always)]
    fn add(self, a: V, b: V) -> V {
        zip(a, b, |a, b| a + b)
    }

    #[inline(always)]
    fn sub(self, a: V, b: V) -> V {
        zip(a, b, |a, b| a - b)
    }

    #[inline(always)]
    fn mul(self, a: V, b: V) -> V {
        zip(a, b, |a, b| a * b)
    }

    #[inline(always)]
    fn div(self, a: V, b: V) -> V {
        zip(a, b, |a, b| a / b)
    }

    #[inline(always)]
    fn fma(self, a: V, b: V, c: V) -> V {
        self.add(self.mul(a, b), c)
    }

    #[inline(always)]
    fn max(self, a: V, b: V) -> V {
        zip(a, b, |a, b| if a > b { a } else { b })
    }

    #[inline(always)]
    fn min(self, a: V, b: V) -> V {
        zip(a, b, |a, b| if a < b { a } else { b })
    }

    #[inline(always)]
    fn pow2(self, n: V) -> V {
        map(n, |n| f32::from_bits(((n as i32).wrapping_add(127) as u32) << 23))
    }

    #[inline(always)]
    fn sum(self, v: V) -> f32 {
        ((v[0] + v[4]) + (v[2] + v[6])) + ((v[1] + v[5]) + (v[3] + v[7]))
    }

    #[inline(always)]
    fn largest(self, v: V) -> f32 {
        v.into_iter().fold(f32::NEG_INFINITY, f32::max)
    }
}
