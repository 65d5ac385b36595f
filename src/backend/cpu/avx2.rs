//! The instance for x86-64 processors with AVX2, FMA and F16C.
//!
//! # Invariants
//! [`Avx2`] is made by [`Avx2::detect`] only, which asks the processor: whoever holds one may execute these instructions.

use core::arch::x86_64::*;

use super::simd::{IntegerOp, Integers, Op, Simd, Wide, dword};

/// The proof that the processor has AVX2, FMA and F16C.
#[derive(Clone, Copy, Debug)]
pub(super) struct Avx2(());

impl Avx2 {
    /// The instance, where this processor has the instructions.
    pub(super) fn detect() -> Option<Self> {
        let found =
            is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") && is_x86_feature_detected!("f16c");
        found.then_some(Self(()))
    }
}

#[target_feature(enable = "avx2,fma,f16c")]
#[inline(never)]
fn run_compiled<O: Op>(s: Avx2, op: O) -> O::Output {
    op.run(s)
}

#[target_feature(enable = "avx2,fma,f16c")]
#[inline(never)]
fn run_integers_compiled<O: IntegerOp>(s: Avx2, op: O) -> O::Output {
    op.run(s)
}

/// One intrinsic in a method of [`Avx2`].
macro_rules! avx2 {
    ($call:expr) => {
        // SAFETY:
        // - the processor has the instruction: the method's receiver is the proof;
        // - an address, where there is one, is that of an array reference as long as the access, and the access needs no alignment.
        unsafe { $call }
    };
}

impl Wide for Avx2 {
    type W = [__m256; 2];
    type C = [__m256i; 2];

    // A byte is masked where it stands and converted; only the topmost is shifted down, because it would have a sign.
    const BYTE_FACTORS: [f32; 4] = [1.0, 256.0, 65536.0, 1.0];
    const HOLDS_MANY: bool = false;

    #[inline(always)]
    fn splat_w(self, x: f32) -> [__m256; 2] {
        [self.splat(x); 2]
    }

    #[inline(always)]
    fn load_w(self, from: &[f32; 16]) -> [__m256; 2] {
        let [low, high] = halves::<f32, 16, 8>(from);
        [self.load(low), self.load(high)]
    }

    #[inline(always)]
    fn store_w(self, v: [__m256; 2], to: &mut [f32; 16]) {
        let (low, high) = to.split_at_mut(8);
        avx2!(_mm256_storeu_ps(low.as_mut_ptr(), v[0]));
        avx2!(_mm256_storeu_ps(high.as_mut_ptr(), v[1]));
    }

    #[inline(always)]
    fn load_w_f32(self, from: &[u8; 64]) -> [__m256; 2] {
        let [low, high] = self.load_c(from);
        [avx2!(_mm256_castsi256_ps(low)), avx2!(_mm256_castsi256_ps(high))]
    }

    #[inline(always)]
    fn load_w_f16(self, from: &[u8; 32]) -> [__m256; 2] {
        let [low, high] = halves::<u8, 32, 16>(from);
        let (low, high) = (self.load_bytes(low), self.load_bytes(high));
        [avx2!(_mm256_cvtph_ps(low)), avx2!(_mm256_cvtph_ps(high))]
    }

    #[inline(always)]
    fn load_w_bf16(self, from: &[u8; 32]) -> [__m256; 2] {
        let [low, high] = halves::<u8, 32, 16>(from);
        let (low, high) = (self.load_bytes(low), self.load_bytes(high));
        let wide = [avx2!(_mm256_cvtepu16_epi32(low)), avx2!(_mm256_cvtepu16_epi32(high))];
        let shifted = self.shl_c(wide, 16);
        [avx2!(_mm256_castsi256_ps(shifted[0])), avx2!(_mm256_castsi256_ps(shifted[1]))]
    }

    #[inline(always)]
    fn load_w_i8(self, from: &[u8; 16]) -> [__m256; 2] {
        let bytes = self.load_bytes(from);
        let upper = avx2!(_mm_unpackhi_epi64(bytes, bytes));
        let wide = [avx2!(_mm256_cvtepi8_epi32(bytes)), avx2!(_mm256_cvtepi8_epi32(upper))];
        self.numbers(wide)
    }

    #[inline(always)]
    fn add_w(self, a: [__m256; 2], b: [__m256; 2]) -> [__m256; 2] {
        [self.add(a[0], b[0]), self.add(a[1], b[1])]
    }

    #[inline(always)]
    fn mul_w(self, a: [__m256; 2], b: [__m256; 2]) -> [__m256; 2] {
        [self.mul(a[0], b[0]), self.mul(a[1], b[1])]
    }

    #[inline(always)]
    fn fma_w(self, a: [__m256; 2], b: [__m256; 2], c: [__m256; 2]) -> [__m256; 2] {
        [self.fma(a[0], b[0], c[0]), self.fma(a[1], b[1], c[1])]
    }

    #[inline(always)]
    fn load_c(self, from: &[u8; 64]) -> [__m256i; 2] {
        let [low, high] = halves::<u8, 64, 32>(from);
        [avx2!(_mm256_loadu_si256(low.as_ptr().cast())), avx2!(_mm256_loadu_si256(high.as_ptr().cast()))]
    }

    #[inline(always)]
    fn store_c(self, v: [__m256i; 2], to: &mut [u8; 64]) {
        let (low, high) = to.split_at_mut(32);
        avx2!(_mm256_storeu_si256(low.as_mut_ptr().cast(), v[0]));
        avx2!(_mm256_storeu_si256(high.as_mut_ptr().cast(), v[1]));
    }

    #[inline(always)]
    fn widen_c(self, from: &[u8; 16]) -> [__m256i; 2] {
        let bytes = self.load_bytes(from);
        let upper = avx2!(_mm_unpackhi_epi64(bytes, bytes));
        [avx2!(_mm256_cvtepu8_epi32(bytes)), avx2!(_mm256_cvtepu8_epi32(upper))]
    }

    #[inline(always)]
    fn splat_c(self, byte: u8) -> [__m256i; 2] {
        [avx2!(_mm256_set1_epi8(byte.cast_signed())); 2]
    }

    #[inline(always)]
    fn and_c(self, a: [__m256i; 2], b: [__m256i; 2]) -> [__m256i; 2] {
        [avx2!(_mm256_and_si256(a[0], b[0])), avx2!(_mm256_and_si256(a[1], b[1]))]
    }

    #[inline(always)]
    fn or_c(self, a: [__m256i; 2], b: [__m256i; 2]) -> [__m256i; 2] {
        [avx2!(_mm256_or_si256(a[0], b[0])), avx2!(_mm256_or_si256(a[1], b[1]))]
    }

    #[inline(always)]
    fn xor_c(self, a: [__m256i; 2], b: [__m256i; 2]) -> [__m256i; 2] {
        [avx2!(_mm256_xor_si256(a[0], b[0])), avx2!(_mm256_xor_si256(a[1], b[1]))]
    }

    #[inline(always)]
    fn shr_c(self, a: [__m256i; 2], n: u32) -> [__m256i; 2] {
        let count = avx2!(_mm_cvtsi32_si128((n & 31).cast_signed()));
        [avx2!(_mm256_srl_epi32(a[0], count)), avx2!(_mm256_srl_epi32(a[1], count))]
    }

    #[inline(always)]
    fn shl_c(self, a: [__m256i; 2], n: u32) -> [__m256i; 2] {
        let count = avx2!(_mm_cvtsi32_si128((n & 31).cast_signed()));
        [avx2!(_mm256_sll_epi32(a[0], count)), avx2!(_mm256_sll_epi32(a[1], count))]
    }

    #[inline(always)]
    fn lookup_c(self, table: &[u8; 16], codes: [__m256i; 2]) -> [__m256i; 2] {
        let table = self.load_bytes(table);
        let both = avx2!(_mm256_broadcastsi128_si256(table));
        [avx2!(_mm256_shuffle_epi8(both, codes[0])), avx2!(_mm256_shuffle_epi8(both, codes[1]))]
    }

    #[inline(always)]
    fn byte<const J: usize>(self, codes: [__m256i; 2]) -> [__m256; 2] {
        let whole = if J == 3 {
            self.shr_c(codes, 24)
        } else {
            let mask = avx2!(_mm256_set1_epi32(0xff << (8 * J)));
            self.and_c(codes, [mask; 2])
        };
        [avx2!(_mm256_cvtepi32_ps(whole[0])), avx2!(_mm256_cvtepi32_ps(whole[1]))]
    }
}

/// The first and the last half of `N = 2 M` elements.
#[inline(always)]
fn halves<T: bytemuck::Pod, const N: usize, const M: usize>(from: &[T; N]) -> &[[T; M]; 2] {
    const { assert!(N == 2 * M) };
    bytemuck::cast_ref(from)
}

impl Simd for Avx2 {
    type V = __m256;

    #[inline(always)]
    fn run<O: Op>(self, op: O) -> O::Output {
        avx2!(run_compiled(self, op))
    }

    #[inline(always)]
    fn splat(self, x: f32) -> __m256 {
        avx2!(_mm256_set1_ps(x))
    }

    #[inline(always)]
    fn load(self, from: &[f32; 8]) -> __m256 {
        avx2!(_mm256_loadu_ps(from.as_ptr()))
    }

    #[inline(always)]
    fn store(self, v: __m256, to: &mut [f32; 8]) {
        avx2!(_mm256_storeu_ps(to.as_mut_ptr(), v));
    }

    #[inline(always)]
    fn store_f16(self, v: __m256, to: &mut [u16; 8]) {
        let bits = avx2!(_mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(v));
        avx2!(_mm_storeu_si128(to.as_mut_ptr().cast(), bits));
    }

    #[inline(always)]
    fn prefetch<T>(self, at: *const T) {
        // SAFETY: every x86-64 processor has the instruction, which does nothing at an address that cannot be read.
        unsafe { _mm_prefetch::<_MM_HINT_T1>(at.cast()) };
    }

    #[inline(always)]
    fn add(self, a: __m256, b: __m256) -> __m256 {
        avx2!(_mm256_add_ps(a, b))
    }

    #[inline(always)]
    fn sub(self, a: __m256, b: __m256) -> __m256 {
        avx2!(_mm256_sub_ps(a, b))
    }

    #[inline(always)]
    fn mul(self, a: __m256, b: __m256) -> __m256 {
        avx2!(_mm256_mul_ps(a, b))
    }

    #[inline(always)]
    fn div(self, a: __m256, b: __m256) -> __m256 {
        avx2!(_mm256_div_ps(a, b))
    }

    #[inline(always)]
    fn fma(self, a: __m256, b: __m256, c: __m256) -> __m256 {
        avx2!(_mm256_fmadd_ps(a, b, c))
    }

    #[inline(always)]
    fn max(self, a: __m256, b: __m256) -> __m256 {
        avx2!(_mm256_max_ps(a, b))
    }

    #[inline(always)]
    fn min(self, a: __m256, b: __m256) -> __m256 {
        avx2!(_mm256_min_ps(a, b))
    }

    #[inline(always)]
    fn pow2(self, n: __m256) -> __m256 {
        let whole = avx2!(_mm256_cvtps_epi32(n));
        let bias = avx2!(_mm256_set1_epi32(127));
        let exponent = avx2!(_mm256_add_epi32(whole, bias));
        let bits = avx2!(_mm256_slli_epi32::<23>(exponent));
        avx2!(_mm256_castsi256_ps(bits))
    }

    #[inline(always)]
    fn sum(self, v: __m256) -> f32 {
        let low = avx2!(_mm256_castps256_ps128(v));
        let high = avx2!(_mm256_extractf128_ps::<1>(v));
        let four = avx2!(_mm_add_ps(low, high));
        let upper = avx2!(_mm_movehl_ps(four, four));
        let two = avx2!(_mm_add_ps(four, upper));
        let odd = avx2!(_mm_movehdup_ps(two));
        let one = avx2!(_mm_add_ss(two, odd));
        avx2!(_mm_cvtss_f32(one))
    }

    #[inline(always)]
    fn largest(self, v: __m256) -> f32 {
        let low = avx2!(_mm256_castps256_ps128(v));
        let high = avx2!(_mm256_extractf128_ps::<1>(v));
        let four = avx2!(_mm_max_ps(low, high));
        let upper = avx2!(_mm_movehl_ps(four, four));
        let two = avx2!(_mm_max_ps(four, upper));
        let odd = avx2!(_mm_movehdup_ps(two));
        let one = avx2!(_mm_max_ss(two, odd));
        avx2!(_mm_cvtss_f32(one))
    }
}

impl Integers for Avx2 {
    type I = [__m256i; 2];

    const IN_REGISTERS: bool = true;
    const LARGEST_CODE: u8 = 127;
    const DOT_ROWS: usize = 4;
    const DOT_PARTIES: usize = 1;

    #[inline(always)]
    fn run_integers<O: IntegerOp>(self, op: O) -> O::Output {
        avx2!(run_integers_compiled(self, op))
    }

    #[inline(always)]
    fn zero_i(self) -> [__m256i; 2] {
        [avx2!(_mm256_setzero_si256()); 2]
    }

    #[inline(always)]
    fn splat_i(self, x: i32) -> [__m256i; 2] {
        [avx2!(_mm256_set1_epi32(x)); 2]
    }

    #[inline(always)]
    fn dots<const M: usize, const N: usize>(
        self,
        codes: [[__m256i; 2]; N],
        [largest, raised]: [u8; 2],
        x: [&[[i8; 4]; N]; M],
        x_sums: [i32; M],
    ) -> [[__m256i; 2]; M] {
        if largest > Self::LARGEST_CODE {
            return self.dots_of_bytes(codes, raised, x, x_sums);
        }
        // Two products of each of so many groups of four columns add up to what 16 bits hold.
        let together = (i16::MAX as usize / (2 * 127 * usize::from(largest.max(1)))).clamp(1, N);
        let mut sums = self.first_sums(raised, 0, x_sums);
        let mut pairs = [self.zero_i(); M];
        for n in 0..N {
            for m in 0..M {
                let x = self.splat_four(x[m][n]);
                for half in 0..2 {
                    let products = avx2!(_mm256_maddubs_epi16(codes[n][half], x));
                    pairs[m][half] =
                        if n % together == 0 { products } else { avx2!(_mm256_add_epi16(pairs[m][half], products)) };
                }
            }
            if n % together == together - 1 || n == N - 1 {
                for m in 0..M {
                    sums[m] = [self.add_pairs(sums[m][0], pairs[m][0]), self.add_pairs(sums[m][1], pairs[m][1])];
                }
            }
        }
        sums
    }

    #[inline(always)]
    fn dot(self, sum: [__m256i; 2], codes: [__m256i; 2], x: [i8; 4]) -> [__m256i; 2] {
        let x = self.splat_four(x);
        [self.dot_half(sum[0], codes[0], x), self.dot_half(sum[1], codes[1], x)]
    }

    #[inline(always)]
    fn dot_signed(self, sum: [__m256i; 2], codes: [__m256i; 2], x: [i8; 4]) -> [__m256i; 2] {
        let x = self.splat_four(x);
        // The sign goes over to `x`; the size of -128 is 128 as an unsigned byte, and 2 * 128 * 127 fits into 16 bits.
        let sizes = [avx2!(_mm256_abs_epi8(codes[0])), avx2!(_mm256_abs_epi8(codes[1]))];
        let signed = [avx2!(_mm256_sign_epi8(x, codes[0])), avx2!(_mm256_sign_epi8(x, codes[1]))];
        [self.dot_half(sum[0], sizes[0], signed[0]), self.dot_half(sum[1], sizes[1], signed[1])]
    }

    #[inline(always)]
    fn numbers(self, v: [__m256i; 2]) -> [__m256; 2] {
        [avx2!(_mm256_cvtepi32_ps(v[0])), avx2!(_mm256_cvtepi32_ps(v[1]))]
    }
}

impl Avx2 {
    #[inline(always)]
    fn load_bytes(self, from: &[u8; 16]) -> __m128i {
        avx2!(_mm_loadu_si128(from.as_ptr().cast()))
    }

    /// Four bytes in every dword.
    #[inline(always)]
    fn splat_four(self, x: [i8; 4]) -> __m256i {
        avx2!(_mm256_set1_epi32(dword(x)))
    }

    /// [`Integers::dots`] of codes of all 256 values: as signed bytes, 128 lower.
    #[inline(always)]
    fn dots_of_bytes<const M: usize, const N: usize>(
        self,
        codes: [[__m256i; 2]; N],
        raised: u8,
        x: [&[[i8; 4]; N]; M],
        x_sums: [i32; M],
    ) -> [[__m256i; 2]; M] {
        let mut sums = self.first_sums(raised, 128, x_sums);
        for n in 0..N {
            let signed = self.xor_c(codes[n], self.splat_c(128));
            for half in 0..2 {
                // The sign goes over to `x`; the size of -128 is 128 as an unsigned byte, and 2 * 128 * 127 fits into 16 bits.
                let size = avx2!(_mm256_abs_epi8(signed[half]));
                for m in 0..M {
                    let x = avx2!(_mm256_sign_epi8(self.splat_four(x[m][n]), signed[half]));
                    sums[m][half] = self.dot_half(sums[m][half], size, x);
                }
            }
        }
        sums
    }

    /// `sum` plus, in each dword, the products of unsigned bytes of `codes` and signed bytes of `x`, no two neighbours of which add up
    /// to more than 16 bits hold.
    #[inline(always)]
    fn dot_half(self, sum: __m256i, codes: __m256i, x: __m256i) -> __m256i {
        let pairs = avx2!(_mm256_maddubs_epi16(codes, x));
        self.add_pairs(sum, pairs)
    }

    /// `sum` plus, in each dword, both words of `pairs`.
    #[inline(always)]
    fn add_pairs(self, sum: __m256i, pairs: __m256i) -> __m256i {
        let ones = avx2!(_mm256_set1_epi16(1));
        let fours = avx2!(_mm256_madd_epi16(pairs, ones));
        avx2!(_mm256_add_epi32(sum, fours))
    }
}
