//! The instances for AArch64, whose vectors of 128 bits (NEON) are part of every target of the standard library: without and with
//! the products of four bytes (`dotprod`).
//!
//! A vector of 8 lanes is two registers, one of 16 lanes four. Conversions from and to binary16 and the products of four bytes are
//! written in assembly, because the oldest compiler that this crate accepts has no names for them.
//!
//! # Invariants
//! - The target has NEON wherever this module is compiled: its declaration asks for it.
//! - [`NeonDot`] is made by [`NeonDot::detect`] only, which asks the processor.
//!
//! # Limits
//! Compiled and tested in an emulator (qemu), never timed: [`Wide::HOLDS_MANY`] is counted in registers, not measured. That was with the constants and
//! `prefetch` as they were before December 2026: since then it was read, not compiled.

use core::arch::aarch64::{
    float32x2_t, float32x4_t, float32x4x2_t, float32x4x4_t, int8x8_t, int8x16_t, int16x4_t, int16x8_t, int32x4_t,
    uint8x8_t, uint8x16_t, uint8x16x4_t, uint16x4_t, uint16x8_t, uint32x4_t,
};
use core::arch::{aarch64, asm};

use super::simd::{IntegerOp, Integers, Op, Simd, Wide, dword};

/// Needs nothing beyond the target.
#[derive(Clone, Copy, Debug)]
pub(super) struct Neon;

/// The proof that the processor has `dotprod`.
#[derive(Clone, Copy, Debug)]
pub(super) struct NeonDot(());

impl NeonDot {
    /// The instance, where this processor has the instructions.
    pub(super) fn detect() -> Option<Self> {
        std::arch::is_aarch64_feature_detected!("dotprod").then_some(Self(()))
    }
}

#[target_feature(enable = "neon,dotprod")]
#[inline(never)]
fn run_integers_compiled<O: IntegerOp>(s: NeonDot, op: O) -> O::Output {
    op.run(s)
}

/// Lanes 0 .. 4 and 4 .. 8.
type V = [float32x4_t; 2];

/// Instructions from registers to a register, as functions that are safe to call; a constant is the only one that is used.
macro_rules! instructions {
    ($($name:ident $(::<$constant:literal>)? ($($arg:ident: $type:ty),*) -> $answer:ty;)*) => {
        $(
            #[inline(always)]
            fn $name($($arg: $type),*) -> $answer {
                // SAFETY: every processor of this target has NEON, by the module's invariant, and no address is involved.
                unsafe { aarch64::$name$(::<$constant>)?($($arg),*) }
            }
        )*
    };
}

instructions! {
    vdupq_n_f32(x: f32) -> float32x4_t;
    vaddq_f32(a: float32x4_t, b: float32x4_t) -> float32x4_t;
    vsubq_f32(a: float32x4_t, b: float32x4_t) -> float32x4_t;
    vmulq_f32(a: float32x4_t, b: float32x4_t) -> float32x4_t;
    vdivq_f32(a: float32x4_t, b: float32x4_t) -> float32x4_t;
    vfmaq_f32(a: float32x4_t, b: float32x4_t, c: float32x4_t) -> float32x4_t;
    vcgtq_f32(a: float32x4_t, b: float32x4_t) -> uint32x4_t;
    vcltq_f32(a: float32x4_t, b: float32x4_t) -> uint32x4_t;
    vbslq_f32(mask: uint32x4_t, a: float32x4_t, b: float32x4_t) -> float32x4_t;
    vget_low_f32(a: float32x4_t) -> float32x2_t;
    vget_high_f32(a: float32x4_t) -> float32x2_t;
    vadd_f32(a: float32x2_t, b: float32x2_t) -> float32x2_t;
    vpadds_f32(a: float32x2_t) -> f32;
    vmaxq_f32(a: float32x4_t, b: float32x4_t) -> float32x4_t;
    vmaxvq_f32(a: float32x4_t) -> f32;
    vreinterpretq_f32_u32(a: uint32x4_t) -> float32x4_t;
    vreinterpretq_f32_s32(a: int32x4_t) -> float32x4_t;
    vreinterpretq_u32_u8(a: uint8x16_t) -> uint32x4_t;
    vreinterpretq_u8_u32(a: uint32x4_t) -> uint8x16_t;
    vreinterpretq_s8_s32(a: int32x4_t) -> int8x16_t;
    vdupq_n_u32(x: u32) -> uint32x4_t;
    vandq_u32(a: uint32x4_t, b: uint32x4_t) -> uint32x4_t;
    vshlq_u32(a: uint32x4_t, by: int32x4_t) -> uint32x4_t;
    veorq_u8(a: uint8x16_t, b: uint8x16_t) -> uint8x16_t;
    vmull_s8(a: int8x8_t, b: int8x8_t) -> int16x8_t;
    vmull_high_s8(a: int8x16_t, b: int8x16_t) -> int16x8_t;
    vpaddq_s16(a: int16x8_t, b: int16x8_t) -> int16x8_t;
    vpadalq_s16(sum: int32x4_t, a: int16x8_t) -> int32x4_t;
    vdupq_n_s32(x: i32) -> int32x4_t;
    vaddq_s32(a: int32x4_t, b: int32x4_t) -> int32x4_t;
    vshlq_n_s32::<23>(a: int32x4_t) -> int32x4_t;
    vcvtnq_s32_f32(a: float32x4_t) -> int32x4_t;
    vcvtq_f32_s32(a: int32x4_t) -> float32x4_t;
    vcvtq_f32_u32(a: uint32x4_t) -> float32x4_t;
    vget_low_u16(a: uint16x8_t) -> uint16x4_t;
    vget_high_u16(a: uint16x8_t) -> uint16x4_t;
    vcombine_u16(a: uint16x4_t, b: uint16x4_t) -> uint16x8_t;
    vshll_n_u16::<16>(a: uint16x4_t) -> uint32x4_t;
    vmovl_u16(a: uint16x4_t) -> uint32x4_t;
    vget_low_s16(a: int16x8_t) -> int16x4_t;
    vget_high_s16(a: int16x8_t) -> int16x4_t;
    vmovl_s16(a: int16x4_t) -> int32x4_t;
    vdupq_n_u8(x: u8) -> uint8x16_t;
    vandq_u8(a: uint8x16_t, b: uint8x16_t) -> uint8x16_t;
    vorrq_u8(a: uint8x16_t, b: uint8x16_t) -> uint8x16_t;
    vqtbl1q_u8(table: uint8x16_t, index: uint8x16_t) -> uint8x16_t;
    vget_low_u8(a: uint8x16_t) -> uint8x8_t;
    vget_high_u8(a: uint8x16_t) -> uint8x8_t;
    vmovl_u8(a: uint8x8_t) -> uint16x8_t;
    vreinterpretq_s8_u8(a: uint8x16_t) -> int8x16_t;
    vreinterpretq_u16_u8(a: uint8x16_t) -> uint16x8_t;
    vget_low_s8(a: int8x16_t) -> int8x8_t;
    vget_high_s8(a: int8x16_t) -> int8x8_t;
    vmovl_s8(a: int8x8_t) -> int16x8_t;
}

#[inline(always)]
fn load_bytes(from: &[u8; 16]) -> uint8x16_t {
    // SAFETY: the address is that of an array of as many bytes.
    unsafe { aarch64::vld1q_u8(from.as_ptr()) }
}

/// Four numbers from binary16.
#[inline(always)]
fn widen_f16(bits: uint16x4_t) -> float32x4_t {
    let wide: float32x4_t;
    // SAFETY: an instruction of the base set, from a register to a register.
    unsafe {
        asm!("fcvtl {wide:v}.4s, {bits:v}.4h", wide = lateout(vreg) wide, bits = in(vreg) bits,
            options(pure, nomem, nostack, preserves_flags));
    }
    wide
}

/// Four numbers as binary16, ties to even, which is the mode that Rust assumes.
#[inline(always)]
fn narrow_f16(v: float32x4_t) -> uint16x4_t {
    let bits: uint16x4_t;
    // SAFETY: an instruction of the base set, from a register to a register.
    unsafe {
        asm!("fcvtn {bits:v}.4h, {v:v}.4s", bits = lateout(vreg) bits, v = in(vreg) v,
            options(pure, nomem, nostack, preserves_flags));
    }
    bits
}

/// An instruction for each of four registers.
macro_rules! each {
    ($f:ident, $a:expr) => {{
        let a = $a;
        [$f(a[0]), $f(a[1]), $f(a[2]), $f(a[3])]
    }};
    ($f:ident, $a:expr, $b:expr) => {{
        let (a, b) = ($a, $b);
        [$f(a[0], b[0]), $f(a[1], b[1]), $f(a[2], b[2]), $f(a[3], b[3])]
    }};
    ($f:ident, $a:expr, $b:expr, $c:expr) => {{
        let (a, b, c) = ($a, $b, $c);
        [$f(a[0], b[0], c[0]), $f(a[1], b[1], c[1]), $f(a[2], b[2], c[2]), $f(a[3], b[3], c[3])]
    }};
}

/// What [`Wide`] has in both instances: all but the products of bytes.
macro_rules! wide_methods {
    () => {
        type W = [float32x4_t; 4];
        type C = [uint8x16_t; 4];

        // A byte is masked where it stands and converted.
        const BYTE_FACTORS: [f32; 4] = [1.0, 256.0, 65536.0, 16_777_216.0];
        const HOLDS_MANY: bool = false;

        #[inline(always)]
        fn splat_w(self, x: f32) -> [float32x4_t; 4] {
            [vdupq_n_f32(x); 4]
        }

        #[inline(always)]
        fn load_w(self, from: &[f32; 16]) -> [float32x4_t; 4] {
            // SAFETY: the address is that of an array of as many numbers; the access needs no more alignment.
            let all = unsafe { aarch64::vld1q_f32_x4(from.as_ptr()) };
            [all.0, all.1, all.2, all.3]
        }

        #[inline(always)]
        fn store_w(self, v: [float32x4_t; 4], to: &mut [f32; 16]) {
            let all = float32x4x4_t(v[0], v[1], v[2], v[3]);
            // SAFETY: the address is that of an array of as many numbers, borrowed for writing; the access needs no more alignment.
            unsafe { aarch64::vst1q_f32_x4(to.as_mut_ptr(), all) };
        }

        #[inline(always)]
        fn load_w_f32(self, from: &[u8; 64]) -> [float32x4_t; 4] {
            let bits = self.load_c(from);
            each!(vreinterpretq_f32_u32, each!(vreinterpretq_u32_u8, bits))
        }

        #[inline(always)]
        fn load_w_f16(self, from: &[u8; 32]) -> [float32x4_t; 4] {
            let [low, high] = load_32(from);
            let fours = [vget_low_u16(low), vget_high_u16(low), vget_low_u16(high), vget_high_u16(high)];
            each!(widen_f16, fours)
        }

        #[inline(always)]
        fn load_w_bf16(self, from: &[u8; 32]) -> [float32x4_t; 4] {
            let [low, high] = load_32(from);
            let fours = [vget_low_u16(low), vget_high_u16(low), vget_low_u16(high), vget_high_u16(high)];
            each!(vreinterpretq_f32_u32, each!(vshll_n_u16, fours))
        }

        #[inline(always)]
        fn load_w_i8(self, from: &[u8; 16]) -> [float32x4_t; 4] {
            let bytes = vreinterpretq_s8_u8(load_bytes(from));
            let (low, high) = (vmovl_s8(vget_low_s8(bytes)), vmovl_s8(vget_high_s8(bytes)));
            let fours = [vget_low_s16(low), vget_high_s16(low), vget_low_s16(high), vget_high_s16(high)];
            each!(vcvtq_f32_s32, each!(vmovl_s16, fours))
        }

        #[inline(always)]
        fn add_w(self, a: [float32x4_t; 4], b: [float32x4_t; 4]) -> [float32x4_t; 4] {
            each!(vaddq_f32, a, b)
        }

        #[inline(always)]
        fn mul_w(self, a: [float32x4_t; 4], b: [float32x4_t; 4]) -> [float32x4_t; 4] {
            each!(vmulq_f32, a, b)
        }

        #[inline(always)]
        fn fma_w(self, a: [float32x4_t; 4], b: [float32x4_t; 4], c: [float32x4_t; 4]) -> [float32x4_t; 4] {
            each!(vfmaq_f32, c, a, b)
        }

        #[inline(always)]
        fn load_c(self, from: &[u8; 64]) -> [uint8x16_t; 4] {
            // SAFETY: the address is that of an array of as many bytes.
            let all = unsafe { aarch64::vld1q_u8_x4(from.as_ptr()) };
            [all.0, all.1, all.2, all.3]
        }

        #[inline(always)]
        fn store_c(self, v: [uint8x16_t; 4], to: &mut [u8; 64]) {
            let all = uint8x16x4_t(v[0], v[1], v[2], v[3]);
            // SAFETY: the address is that of an array of as many bytes, borrowed for writing.
            unsafe { aarch64::vst1q_u8_x4(to.as_mut_ptr(), all) };
        }

        #[inline(always)]
        fn widen_c(self, from: &[u8; 16]) -> [uint8x16_t; 4] {
            let bytes = load_bytes(from);
            let (low, high) = (vmovl_u8(vget_low_u8(bytes)), vmovl_u8(vget_high_u8(bytes)));
            let fours = [vget_low_u16(low), vget_high_u16(low), vget_low_u16(high), vget_high_u16(high)];
            each!(vreinterpretq_u8_u32, each!(vmovl_u16, fours))
        }

        #[inline(always)]
        fn splat_c(self, byte: u8) -> [uint8x16_t; 4] {
            [vdupq_n_u8(byte); 4]
        }

        #[inline(always)]
        fn and_c(self, a: [uint8x16_t; 4], b: [uint8x16_t; 4]) -> [uint8x16_t; 4] {
            each!(vandq_u8, a, b)
        }

        #[inline(always)]
        fn or_c(self, a: [uint8x16_t; 4], b: [uint8x16_t; 4]) -> [uint8x16_t; 4] {
            each!(vorrq_u8, a, b)
        }

        #[inline(always)]
        fn xor_c(self, a: [uint8x16_t; 4], b: [uint8x16_t; 4]) -> [uint8x16_t; 4] {
            each!(veorq_u8, a, b)
        }

        #[inline(always)]
        fn shr_c(self, a: [uint8x16_t; 4], n: u32) -> [uint8x16_t; 4] {
            let by = vdupq_n_s32(-((n & 31).cast_signed()));
            let moved = each!(vshlq_u32, each!(vreinterpretq_u32_u8, a), [by; 4]);
            each!(vreinterpretq_u8_u32, moved)
        }

        #[inline(always)]
        fn shl_c(self, a: [uint8x16_t; 4], n: u32) -> [uint8x16_t; 4] {
            let by = vdupq_n_s32((n & 31).cast_signed());
            let moved = each!(vshlq_u32, each!(vreinterpretq_u32_u8, a), [by; 4]);
            each!(vreinterpretq_u8_u32, moved)
        }

        #[inline(always)]
        fn lookup_c(self, table: &[u8; 16], codes: [uint8x16_t; 4]) -> [uint8x16_t; 4] {
            let tables = [load_bytes(table); 4];
            each!(vqtbl1q_u8, tables, codes)
        }

        #[inline(always)]
        fn byte<const J: usize>(self, codes: [uint8x16_t; 4]) -> [float32x4_t; 4] {
            let mask = vdupq_n_u32(0xff << (8 * J));
            let masked = each!(vandq_u32, each!(vreinterpretq_u32_u8, codes), [mask; 4]);
            each!(vcvtq_f32_u32, masked)
        }
    };
}

impl Wide for Neon {
    wide_methods!();
}

impl Wide for NeonDot {
    wide_methods!();
}

/// What [`Integers`] has in both instances: all but the products.
macro_rules! integer_methods {
    () => {
        type I = [int32x4_t; 4];

        const IN_REGISTERS: bool = true;
        const LARGEST_CODE: u8 = 127;
        const DOT_ROWS: usize = 4;
        const DOT_PARTIES: usize = 1;

        #[inline(always)]
        fn zero_i(self) -> [int32x4_t; 4] {
            [vdupq_n_s32(0); 4]
        }

        #[inline(always)]
        fn splat_i(self, x: i32) -> [int32x4_t; 4] {
            [vdupq_n_s32(x); 4]
        }

        #[inline(always)]
        fn dot(self, sum: [int32x4_t; 4], codes: [uint8x16_t; 4], x: [i8; 4]) -> [int32x4_t; 4] {
            // Up to 127 they are the same as signed bytes.
            self.dot_signed(sum, codes, x)
        }

        #[inline(always)]
        fn numbers(self, v: [int32x4_t; 4]) -> [float32x4_t; 4] {
            each!(vcvtq_f32_s32, v)
        }
    };
}

impl Integers for Neon {
    integer_methods!();

    #[inline(never)]
    fn run_integers<O: IntegerOp>(self, op: O) -> O::Output {
        op.run(self)
    }

    #[inline(always)]
    fn dot_signed(self, sum: [int32x4_t; 4], codes: [uint8x16_t; 4], x: [i8; 4]) -> [int32x4_t; 4] {
        let codes = each!(vreinterpretq_s8_u8, codes);
        each!(dot4, sum, codes, [splat_dword(x); 4])
    }
}

impl Integers for NeonDot {
    integer_methods!();

    #[inline(always)]
    fn run_integers<O: IntegerOp>(self, op: O) -> O::Output {
        // SAFETY: the processor has the instructions: the receiver is the proof.
        unsafe { run_integers_compiled(self, op) }
    }

    #[inline(always)]
    fn dot_signed(self, sum: [int32x4_t; 4], codes: [uint8x16_t; 4], x: [i8; 4]) -> [int32x4_t; 4] {
        let x = splat_dword(x);
        let mut out = sum;
        for (out, codes) in out.iter_mut().zip(codes) {
            // SAFETY: from registers to a register; the processor has the instruction: the receiver is the proof.
            unsafe {
                asm!("sdot {out:v}.4s, {codes:v}.16b, {x:v}.16b", out = inout(vreg) *out, codes = in(vreg) codes, x = in(vreg) x,
                    options(pure, nomem, nostack, preserves_flags));
            }
        }
        out
    }
}

/// Four bytes in all lanes.
#[inline(always)]
fn splat_dword(x: [i8; 4]) -> int8x16_t {
    vreinterpretq_s8_s32(vdupq_n_s32(dword(x)))
}

/// `sum` plus, in each dword, the products of the bytes: two of them are at most 2 * 128 * 127, which fits into 16 bits.
#[inline(always)]
fn dot4(sum: int32x4_t, codes: int8x16_t, x: int8x16_t) -> int32x4_t {
    let (low, high) = (vmull_s8(vget_low_s8(codes), vget_low_s8(x)), vmull_high_s8(codes, x));
    vpadalq_s16(sum, vpaddq_s16(low, high))
}

/// Sixteen words of 16 bits.
#[inline(always)]
fn load_32(from: &[u8; 32]) -> [uint16x8_t; 2] {
    // SAFETY: the address is that of an array of as many bytes; bytes are what the access needs no alignment for.
    let both = unsafe { aarch64::vld1q_u8_x2(from.as_ptr()) };
    [vreinterpretq_u16_u8(both.0), vreinterpretq_u16_u8(both.1)]
}

/// What [`Simd`] has in both instances.
macro_rules! methods {
    () => {
        type V = V;

        #[inline(always)]
        fn splat(self, x: f32) -> V {
            [vdupq_n_f32(x); 2]
        }

        #[inline(always)]
        fn load(self, from: &[f32; 8]) -> V {
            // SAFETY: the address is that of an array of as many numbers; the access needs no more alignment.
            let both = unsafe { aarch64::vld1q_f32_x2(from.as_ptr()) };
            [both.0, both.1]
        }

        #[inline(always)]
        fn store(self, v: V, to: &mut [f32; 8]) {
            // SAFETY: the address is that of an array of as many numbers, borrowed for writing; the access needs no more alignment.
            unsafe { aarch64::vst1q_f32_x2(to.as_mut_ptr(), float32x4x2_t(v[0], v[1])) };
        }

        #[inline(always)]
        fn store_f16(self, v: V, to: &mut [u16; 8]) {
            let bits = vcombine_u16(narrow_f16(v[0]), narrow_f16(v[1]));
            // SAFETY: the address is that of an array of as many numbers, borrowed for writing; the access needs no more alignment.
            unsafe { aarch64::vst1q_u16(to.as_mut_ptr(), bits) };
        }

        // The instruction is not in the stable part of the library yet.
        #[inline(always)]
        fn prefetch<T>(self, _: *const T) {}

        #[inline(always)]
        fn add(self, a: V, b: V) -> V {
            [vaddq_f32(a[0], b[0]), vaddq_f32(a[1], b[1])]
        }

        #[inline(always)]
        fn sub(self, a: V, b: V) -> V {
            [vsubq_f32(a[0], b[0]), vsubq_f32(a[1], b[1])]
        }

        #[inline(always)]
        fn mul(self, a: V, b: V) -> V {
            [vmulq_f32(a[0], b[0]), vmulq_f32(a[1], b[1])]
        }

        #[inline(always)]
        fn div(self, a: V, b: V) -> V {
            [vdivq_f32(a[0], b[0]), vdivq_f32(a[1], b[1])]
        }

        #[inline(always)]
        fn fma(self, a: V, b: V, c: V) -> V {
            [vfmaq_f32(c[0], a[0], b[0]), vfmaq_f32(c[1], a[1], b[1])]
        }

        // Not `vmaxq_f32`, which answers NaN where either is one.
        #[inline(always)]
        fn max(self, a: V, b: V) -> V {
            [vbslq_f32(vcgtq_f32(a[0], b[0]), a[0], b[0]), vbslq_f32(vcgtq_f32(a[1], b[1]), a[1], b[1])]
        }

        #[inline(always)]
        fn min(self, a: V, b: V) -> V {
            [vbslq_f32(vcltq_f32(a[0], b[0]), a[0], b[0]), vbslq_f32(vcltq_f32(a[1], b[1]), a[1], b[1])]
        }

        #[inline(always)]
        fn pow2(self, n: V) -> V {
            let bias = vdupq_n_s32(127);
            let bits = [vaddq_s32(vcvtnq_s32_f32(n[0]), bias), vaddq_s32(vcvtnq_s32_f32(n[1]), bias)];
            [vreinterpretq_f32_s32(vshlq_n_s32(bits[0])), vreinterpretq_f32_s32(vshlq_n_s32(bits[1]))]
        }

        #[inline(always)]
        fn sum(self, v: V) -> f32 {
            let four = vaddq_f32(v[0], v[1]);
            vpadds_f32(vadd_f32(vget_low_f32(four), vget_high_f32(four)))
        }

        #[inline(always)]
        fn largest(self, v: V) -> f32 {
            vmaxvq_f32(vmaxq_f32(v[0], v[1]))
        }
    };
}

impl Simd for Neon {
    #[inline(never)]
    fn run<O: Op>(self, op: O) -> O::Output {
        op.run(self)
    }

    methods!();
}

impl Simd for NeonDot {
    #[inline(always)]
    fn run<O: Op>(self, op: O) -> O::Output {
        // Operations without products of bytes are compiled for one instance alone.
        Neon.run(op)
    }

    methods!();
}
