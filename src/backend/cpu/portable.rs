#![forbid(unsafe_code)]
//! The instance that runs everywhere: arrays, which the compiler vectorises as the target allows.
//!
//! Products and sums are rounded apart, because a fused operation in software is a hundred times slower.

use half::{bf16, f16};

use super::simd::{LANES, Op, Simd};

/// Needs nothing.
#[derive(Clone, Copy, Debug)]
pub(super) struct Portable;

type V = [f32; LANES];
type B = [u8; 16];

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

#[inline(always)]
fn widen(b: B, f: impl Fn(u8) -> f32) -> [V; 2] {
    let mut out = [[0.0; LANES]; 2];
    for (x, &byte) in out.as_flattened_mut().iter_mut().zip(&b) {
        *x = f(byte);
    }
    out
}

impl Simd for Portable {
    type V = V;
    type B = B;

    #[inline(always)]
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
    fn load_f16(self, from: &[u16; 8]) -> V {
        let mut out = [0.0; LANES];
        for (x, &bits) in out.iter_mut().zip(from) {
            *x = f16::from_bits(bits).to_f32();
        }
        out
    }

    #[inline(always)]
    fn store_f16(self, v: V, to: &mut [u16; 8]) {
        for (bits, &x) in to.iter_mut().zip(&v) {
            *bits = f16::from_f32(x).to_bits();
        }
    }

    #[inline(always)]
    fn load_bf16(self, from: &[u16; 8]) -> V {
        let mut out = [0.0; LANES];
        for (x, &bits) in out.iter_mut().zip(from) {
            *x = bf16::from_bits(bits).to_f32();
        }
        out
    }

    #[inline(always)]
    fn half(self, bits: u16) -> f32 {
        f16::from_bits(bits).to_f32()
    }

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
    fn sum4(self, v: [V; 4]) -> [f32; 4] {
        [self.sum(v[0]), self.sum(v[1]), self.sum(v[2]), self.sum(v[3])]
    }

    #[inline(always)]
    fn sum8(self, v: [V; 8]) -> V {
        let mut out = [0.0; LANES];
        for (x, &v) in out.iter_mut().zip(&v) {
            *x = self.sum(v);
        }
        out
    }

    #[inline(always)]
    fn load_bytes(self, from: &[u8; 16]) -> B {
        *from
    }

    #[inline(always)]
    fn splat_byte(self, x: u8) -> B {
        [x; 16]
    }

    #[inline(always)]
    fn and(self, a: B, b: B) -> B {
        zip(a, b, |a, b| a & b)
    }

    #[inline(always)]
    fn or(self, a: B, b: B) -> B {
        zip(a, b, |a, b| a | b)
    }

    #[inline(always)]
    fn sub_bytes(self, a: B, b: B) -> B {
        zip(a, b, u8::wrapping_sub)
    }

    #[inline(always)]
    fn equal_bytes(self, a: B, b: B) -> B {
        zip(a, b, |a, b| if a == b { 255 } else { 0 })
    }

    #[inline(always)]
    fn shr_bytes(self, a: B, n: u32) -> B {
        let mut out = a;
        for x in &mut out {
            *x >>= n & 7;
        }
        out
    }

    #[inline(always)]
    fn shl_bytes(self, a: B, n: u32) -> B {
        let mut out = a;
        for x in &mut out {
            *x <<= n & 7;
        }
        out
    }

    #[inline(always)]
    fn bits_to_bytes(self, bits: u16) -> B {
        let mut out = [0; 16];
        for (i, byte) in out.iter_mut().enumerate() {
            *byte = if bits >> i & 1 == 1 { 255 } else { 0 };
        }
        out
    }

    #[inline(always)]
    fn lookup(self, table: B, index: B) -> B {
        let mut out = index;
        for byte in &mut out {
            *byte = table[usize::from(*byte & 15)];
        }
        out
    }

    #[inline(always)]
    fn unsigned(self, b: B) -> [V; 2] {
        widen(b, f32::from)
    }

    #[inline(always)]
    fn signed(self, b: B) -> [V; 2] {
        widen(b, |byte| f32::from(byte.cast_signed()))
    }
}
