//! The instance for x86-64 processors with AVX2, FMA and F16C.
//!
//! # Invariants
//! [`Avx2`] is made by [`Avx2::detect`] only, which asks the processor: whoever holds one may execute these instructions.

use core::arch::x86_64::*;

use super::simd::{Op, Simd};

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
fn run_compiled<O: Op>(s: Avx2, op: O) -> O::Output {
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

impl Simd for Avx2 {
    type V = __m256;
    type B = __m128i;

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
    fn load_f16(self, from: &[u16; 8]) -> __m256 {
        let bits = avx2!(_mm_loadu_si128(from.as_ptr().cast()));
        avx2!(_mm256_cvtph_ps(bits))
    }

    #[inline(always)]
    fn store_f16(self, v: __m256, to: &mut [u16; 8]) {
        let bits = avx2!(_mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(v));
        avx2!(_mm_storeu_si128(to.as_mut_ptr().cast(), bits));
    }

    #[inline(always)]
    fn load_bf16(self, from: &[u16; 8]) -> __m256 {
        let bits = avx2!(_mm_loadu_si128(from.as_ptr().cast()));
        let wide = avx2!(_mm256_cvtepu16_epi32(bits));
        let shifted = avx2!(_mm256_slli_epi32::<16>(wide));
        avx2!(_mm256_castsi256_ps(shifted))
    }

    #[inline(always)]
    fn half(self, bits: u16) -> f32 {
        let bits = avx2!(_mm_cvtsi32_si128(i32::from(bits)));
        let wide = avx2!(_mm_cvtph_ps(bits));
        avx2!(_mm_cvtss_f32(wide))
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
    fn sum4(self, v: [__m256; 4]) -> [f32; 4] {
        // Halves of each vector are added first: [a, b] with four partial sums each, then pairs, then singles.
        let ab = self.sum_halves(v[0], v[1]);
        let cd = self.sum_halves(v[2], v[3]);
        let abcd = self.sum_quarters(ab, cd);
        let even = avx2!(_mm256_shuffle_ps::<0b10_00_10_00>(abcd, abcd));
        let odd = avx2!(_mm256_shuffle_ps::<0b11_01_11_01>(abcd, abcd));
        // Lanes: a c a c | b d b d.
        let sums = self.add(even, odd);
        let ac = avx2!(_mm256_castps256_ps128(sums));
        let bd = avx2!(_mm256_extractf128_ps::<1>(sums));
        let abcd = avx2!(_mm_unpacklo_ps(ac, bd));
        let mut out = [0.0; 4];
        avx2!(_mm_storeu_ps(out.as_mut_ptr(), abcd));
        out
    }

    #[inline(always)]
    fn sum8(self, v: [__m256; 8]) -> __m256 {
        // The first of a pair of halves ends in the lower lanes, so 0 .. 4 are paired with 4 .. 8.
        let ae = self.sum_halves(v[0], v[4]);
        let bf = self.sum_halves(v[1], v[5]);
        let cg = self.sum_halves(v[2], v[6]);
        let dh = self.sum_halves(v[3], v[7]);
        let aebf = self.sum_quarters(ae, bf);
        let cgdh = self.sum_quarters(cg, dh);
        let even = avx2!(_mm256_shuffle_ps::<0b10_00_10_00>(aebf, cgdh));
        let odd = avx2!(_mm256_shuffle_ps::<0b11_01_11_01>(aebf, cgdh));
        self.add(even, odd)
    }

    #[inline(always)]
    fn load_bytes(self, from: &[u8; 16]) -> __m128i {
        avx2!(_mm_loadu_si128(from.as_ptr().cast()))
    }

    #[inline(always)]
    fn splat_byte(self, x: u8) -> __m128i {
        avx2!(_mm_set1_epi8(x.cast_signed()))
    }

    #[inline(always)]
    fn and(self, a: __m128i, b: __m128i) -> __m128i {
        avx2!(_mm_and_si128(a, b))
    }

    #[inline(always)]
    fn or(self, a: __m128i, b: __m128i) -> __m128i {
        avx2!(_mm_or_si128(a, b))
    }

    #[inline(always)]
    fn sub_bytes(self, a: __m128i, b: __m128i) -> __m128i {
        avx2!(_mm_sub_epi8(a, b))
    }

    #[inline(always)]
    fn equal_bytes(self, a: __m128i, b: __m128i) -> __m128i {
        avx2!(_mm_cmpeq_epi8(a, b))
    }

    #[inline(always)]
    fn shr_bytes(self, a: __m128i, n: u32) -> __m128i {
        let count = avx2!(_mm_cvtsi32_si128((n & 7).cast_signed()));
        let shifted = avx2!(_mm_srl_epi16(a, count));
        self.and(shifted, self.splat_byte(255 >> (n & 7)))
    }

    #[inline(always)]
    fn shl_bytes(self, a: __m128i, n: u32) -> __m128i {
        let count = avx2!(_mm_cvtsi32_si128((n & 7).cast_signed()));
        let shifted = avx2!(_mm_sll_epi16(a, count));
        self.and(shifted, self.splat_byte(255 << (n & 7)))
    }

    #[inline(always)]
    fn bits_to_bytes(self, bits: u16) -> __m128i {
        const SOURCE: [u8; 16] = [0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1];
        const BIT: [u8; 16] = [1, 2, 4, 8, 16, 32, 64, 128, 1, 2, 4, 8, 16, 32, 64, 128];
        let all = avx2!(_mm_set1_epi16(bits.cast_signed()));
        let spread = avx2!(_mm_shuffle_epi8(all, self.load_bytes(&SOURCE)));
        let bit = self.load_bytes(&BIT);
        self.equal_bytes(self.and(spread, bit), bit)
    }

    #[inline(always)]
    fn lookup(self, table: __m128i, index: __m128i) -> __m128i {
        avx2!(_mm_shuffle_epi8(table, index))
    }

    #[inline(always)]
    fn unsigned(self, b: __m128i) -> [__m256; 2] {
        let upper = avx2!(_mm_unpackhi_epi64(b, b));
        let (low, high) = (avx2!(_mm256_cvtepu8_epi32(b)), avx2!(_mm256_cvtepu8_epi32(upper)));
        [avx2!(_mm256_cvtepi32_ps(low)), avx2!(_mm256_cvtepi32_ps(high))]
    }

    #[inline(always)]
    fn signed(self, b: __m128i) -> [__m256; 2] {
        let upper = avx2!(_mm_unpackhi_epi64(b, b));
        let (low, high) = (avx2!(_mm256_cvtepi8_epi32(b)), avx2!(_mm256_cvtepi8_epi32(upper)));
        [avx2!(_mm256_cvtepi32_ps(low)), avx2!(_mm256_cvtepi32_ps(high))]
    }
}

impl Avx2 {
    /// `[a.low + a.high, b.low + b.high]`
    #[inline(always)]
    fn sum_halves(self, a: __m256, b: __m256) -> __m256 {
        let low = avx2!(_mm256_permute2f128_ps::<0x20>(a, b));
        let high = avx2!(_mm256_permute2f128_ps::<0x31>(a, b));
        self.add(low, high)
    }

    /// In each half: lanes 0 and 1 plus lanes 2 and 3 of `a`, then of `b`.
    #[inline(always)]
    fn sum_quarters(self, a: __m256, b: __m256) -> __m256 {
        let low = avx2!(_mm256_shuffle_ps::<0b01_00_01_00>(a, b));
        let high = avx2!(_mm256_shuffle_ps::<0b11_10_11_10>(a, b));
        self.add(low, high)
    }
}
