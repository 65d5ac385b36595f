//! The instances for x86-64 processors with AVX-512 (F, BW, VL, DQ), without and with VNNI.
//!
//! What has 8 lanes is done as with AVX2, by the same instructions in their longer encoding, which names 32 registers.
//!
//! # Invariants
//! [`Avx512`] and [`Avx512Vnni`] are made by their `detect` only, which asks the processor: whoever holds one may execute these
//! instructions.

use core::arch::x86_64::*;

use super::avx2::Avx2;
use super::simd::{IntegerOp, Integers, Op, Simd, Wide, dword};

/// The proof that the processor has AVX-512 F, BW, VL and DQ, and what [`Avx2`] asks for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Avx512(Avx2);

/// The proof that it has the products of bytes of AVX-512 VNNI too.
#[derive(Clone, Copy, Debug)]
pub(super) struct Avx512Vnni(Avx512);

impl Avx512 {
    /// The instance, where this processor has the instructions.
    pub(super) fn detect() -> Option<Self> {
        let found = is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512vl")
            && is_x86_feature_detected!("avx512dq");
        Avx2::detect().filter(|_| found).map(Self)
    }

    /// What has 8 lanes; products of bytes too, which this instance has none of.
    #[inline(always)]
    pub(super) fn narrow(self) -> Avx2 {
        self.0
    }
}

impl Avx512Vnni {
    /// The instance that has all but the products of bytes: operations without them are compiled for it alone.
    pub(super) fn floats(self) -> Avx512 {
        self.0
    }

    /// The instance, where this processor has the instructions.
    pub(super) fn detect() -> Option<Self> {
        let found = is_x86_feature_detected!("avx512vnni");
        Avx512::detect().filter(|_| found).map(Self)
    }

    /// What has 8 lanes.
    #[inline(always)]
    fn narrow(self) -> Avx2 {
        self.0.narrow()
    }
}

#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq")]
#[inline(never)]
fn run_compiled<O: Op>(s: Avx512, op: O) -> O::Output {
    op.run(s)
}

#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
#[inline(never)]
fn run_integers_compiled<O: IntegerOp>(s: Avx512Vnni, op: O) -> O::Output {
    op.run(s)
}

/// Methods of [`Simd`] as [`Avx2`] has them.
macro_rules! as_avx2 {
    ($($name:ident($($arg:ident: $type:ty),*) -> $answer:ty;)*) => {
        $(
            #[inline(always)]
            fn $name(self, $($arg: $type),*) -> $answer {
                self.narrow().$name($($arg),*)
            }
        )*
    };
}

/// What the instances have in common.
macro_rules! methods {
    () => {
        type V = __m256;

        #[inline(always)]
        fn prefetch<T>(self, at: *const T) {
            self.narrow().prefetch(at);
        }

        as_avx2! {
            splat(x: f32) -> __m256;
            load(from: &[f32; 8]) -> __m256;
            store(v: __m256, to: &mut [f32; 8]) -> ();
            store_f16(v: __m256, to: &mut [u16; 8]) -> ();
            add(a: __m256, b: __m256) -> __m256;
            sub(a: __m256, b: __m256) -> __m256;
            mul(a: __m256, b: __m256) -> __m256;
            div(a: __m256, b: __m256) -> __m256;
            fma(a: __m256, b: __m256, c: __m256) -> __m256;
            max(a: __m256, b: __m256) -> __m256;
            min(a: __m256, b: __m256) -> __m256;
            pow2(n: __m256) -> __m256;
            sum(v: __m256) -> f32;
            largest(v: __m256) -> f32;
        }
    };
}

impl Simd for Avx512 {
    #[inline(always)]
    fn run<O: Op>(self, op: O) -> O::Output {
        // SAFETY: the processor has the instructions: the receiver is the proof.
        unsafe { run_compiled(self, op) }
    }

    methods!();
}

impl Simd for Avx512Vnni {
    #[inline(always)]
    fn run<O: Op>(self, op: O) -> O::Output {
        self.floats().run(op)
    }

    methods!();
}

/// One intrinsic in a method of an instance.
macro_rules! avx512 {
    ($call:expr) => {
        // SAFETY:
        // - the processor has the instruction: the method's receiver is the proof;
        // - an address, where there is one, is that of an array reference as long as the access, and the access needs no alignment.
        unsafe { $call }
    };
}

/// Sixteen bytes.
#[inline(always)]
fn load_bytes(from: &[u8; 16]) -> __m128i {
    // SAFETY:
    // - every x86-64 processor has the instruction;
    // - the address is that of an array of as many bytes, and the access needs no alignment.
    unsafe { _mm_loadu_si128(from.as_ptr().cast()) }
}

/// What [`Wide`] has in both instances: all but the products of bytes.
macro_rules! wide_methods {
    () => {
        type W = __m512;
        type C = __m512i;

        // A byte is masked where it stands and converted, the topmost too: there is a conversion of unsigned numbers.
        const BYTE_FACTORS: [f32; 4] = [1.0, 256.0, 65536.0, 16_777_216.0];
        const HOLDS_MANY: bool = true;

        #[inline(always)]
        fn splat_w(self, x: f32) -> __m512 {
            avx512!(_mm512_set1_ps(x))
        }

        #[inline(always)]
        fn load_w(self, from: &[f32; 16]) -> __m512 {
            avx512!(_mm512_loadu_ps(from.as_ptr()))
        }

        #[inline(always)]
        fn store_w(self, v: __m512, to: &mut [f32; 16]) {
            avx512!(_mm512_storeu_ps(to.as_mut_ptr(), v));
        }

        #[inline(always)]
        fn load_w_f32(self, from: &[u8; 64]) -> __m512 {
            avx512!(_mm512_loadu_ps(from.as_ptr().cast()))
        }

        #[inline(always)]
        fn load_w_f16(self, from: &[u8; 32]) -> __m512 {
            let bits = avx512!(_mm256_loadu_si256(from.as_ptr().cast()));
            avx512!(_mm512_cvtph_ps(bits))
        }

        #[inline(always)]
        fn load_w_bf16(self, from: &[u8; 32]) -> __m512 {
            let bits = avx512!(_mm256_loadu_si256(from.as_ptr().cast()));
            let wide = avx512!(_mm512_cvtepu16_epi32(bits));
            let shifted = avx512!(_mm512_slli_epi32::<16>(wide));
            avx512!(_mm512_castsi512_ps(shifted))
        }

        #[inline(always)]
        fn load_w_i8(self, from: &[u8; 16]) -> __m512 {
            let wide = avx512!(_mm512_cvtepi8_epi32(load_bytes(from)));
            avx512!(_mm512_cvtepi32_ps(wide))
        }

        #[inline(always)]
        fn add_w(self, a: __m512, b: __m512) -> __m512 {
            avx512!(_mm512_add_ps(a, b))
        }

        #[inline(always)]
        fn mul_w(self, a: __m512, b: __m512) -> __m512 {
            avx512!(_mm512_mul_ps(a, b))
        }

        #[inline(always)]
        fn fma_w(self, a: __m512, b: __m512, c: __m512) -> __m512 {
            avx512!(_mm512_fmadd_ps(a, b, c))
        }

        #[inline(always)]
        fn load_c(self, from: &[u8; 64]) -> __m512i {
            avx512!(_mm512_loadu_si512(from.as_ptr().cast()))
        }

        #[inline(always)]
        fn store_c(self, v: __m512i, to: &mut [u8; 64]) {
            avx512!(_mm512_storeu_si512(to.as_mut_ptr().cast(), v));
        }

        #[inline(always)]
        fn widen_c(self, from: &[u8; 16]) -> __m512i {
            avx512!(_mm512_cvtepu8_epi32(load_bytes(from)))
        }

        #[inline(always)]
        fn splat_c(self, byte: u8) -> __m512i {
            avx512!(_mm512_set1_epi8(byte.cast_signed()))
        }

        #[inline(always)]
        fn and_c(self, a: __m512i, b: __m512i) -> __m512i {
            avx512!(_mm512_and_si512(a, b))
        }

        #[inline(always)]
        fn or_c(self, a: __m512i, b: __m512i) -> __m512i {
            avx512!(_mm512_or_si512(a, b))
        }

        #[inline(always)]
        fn xor_c(self, a: __m512i, b: __m512i) -> __m512i {
            avx512!(_mm512_xor_si512(a, b))
        }

        #[inline(always)]
        fn shr_c(self, a: __m512i, n: u32) -> __m512i {
            let count = avx512!(_mm_cvtsi32_si128((n & 31).cast_signed()));
            avx512!(_mm512_srl_epi32(a, count))
        }

        #[inline(always)]
        fn shl_c(self, a: __m512i, n: u32) -> __m512i {
            let count = avx512!(_mm_cvtsi32_si128((n & 31).cast_signed()));
            avx512!(_mm512_sll_epi32(a, count))
        }

        #[inline(always)]
        fn lookup_c(self, table: &[u8; 16], codes: __m512i) -> __m512i {
            let all = avx512!(_mm512_broadcast_i32x4(load_bytes(table)));
            avx512!(_mm512_shuffle_epi8(all, codes))
        }

        #[inline(always)]
        fn byte<const J: usize>(self, codes: __m512i) -> __m512 {
            let mask = avx512!(_mm512_set1_epi32((0xff_u32 << (8 * J)).cast_signed()));
            avx512!(_mm512_cvtepu32_ps(self.and_c(codes, mask)))
        }
    };
}

impl Wide for Avx512 {
    wide_methods!();
}

impl Wide for Avx512Vnni {
    wide_methods!();
}

impl Integers for Avx512Vnni {
    type I = __m512i;

    const IN_REGISTERS: bool = true;
    const LARGEST_CODE: u8 = 255;
    const DOT_ROWS: usize = 4;
    const DOT_PARTIES: usize = 4;

    #[inline(always)]
    fn run_integers<O: IntegerOp>(self, op: O) -> O::Output {
        avx512!(run_integers_compiled(self, op))
    }

    #[inline(always)]
    fn zero_i(self) -> __m512i {
        avx512!(_mm512_setzero_si512())
    }

    #[inline(always)]
    fn splat_i(self, x: i32) -> __m512i {
        avx512!(_mm512_set1_epi32(x))
    }

    #[inline(always)]
    fn dot(self, sum: __m512i, codes: __m512i, x: [i8; 4]) -> __m512i {
        avx512!(_mm512_dpbusd_epi32(sum, codes, splat_dword(x)))
    }

    #[inline(always)]
    fn dot_signed(self, sum: __m512i, codes: __m512i, x: [i8; 4]) -> __m512i {
        // 128 is added to the codes, which makes them unsigned, and 128 times the sum of `x` taken back: the same for all lanes
        // and for every vector of codes that `x` meets.
        let x = splat_dword(x);
        let bias = self.splat_c(128);
        let above = avx512!(_mm512_dpbusd_epi32(self.zero_i(), bias, x));
        let dot = avx512!(_mm512_dpbusd_epi32(sum, self.xor_c(codes, bias), x));
        avx512!(_mm512_sub_epi32(dot, above))
    }

    #[inline(always)]
    fn numbers(self, v: __m512i) -> __m512 {
        avx512!(_mm512_cvtepi32_ps(v))
    }
}

/// Four bytes in all lanes.
#[inline(always)]
fn splat_dword(x: [i8; 4]) -> __m512i {
    // SAFETY: no address is involved; only methods of the instances come here, whose receivers are the proof of the instruction.
    unsafe { _mm512_set1_epi32(dword(x)) }
}
