//! Eight lanes of f32, and the instruction sets that have them.
//!
//! A kernel is written once over [`Simd`] and compiled once per instruction set by [`per_isa`]; [`Isa`] picks the instance, once, when
//! the backend is made.
//!
//! # Invariants
//! An [`Isa`] other than the portable one exists only where the processor was seen to have it.

/// Eight lanes of f32.
pub(super) trait Simd: Copy {
    /// A vector.
    type V: Copy;
    /// All lanes zero.
    fn zero() -> Self::V;
    /// All lanes `x`.
    fn splat(x: f32) -> Self::V;
    /// The lanes from memory.
    fn load(from: &[f32; 8]) -> Self::V;
    /// The lanes as an array.
    fn lanes(v: Self::V) -> [f32; 8];
    /// `a * b + c`: fused where the instruction set fuses.
    fn mul_add(a: Self::V, b: Self::V, c: Self::V) -> Self::V;
    /// A half as a single.
    fn half(bits: u16) -> f32;
    /// Eight halves as singles.
    fn halves(from: &[u16; 8]) -> Self::V;
}

/// The sum of eight lanes, always in this order.
#[inline(always)]
pub(super) fn sum_lanes(v: [f32; 8]) -> f32 {
    let four = [v[0] + v[4], v[1] + v[5], v[2] + v[6], v[3] + v[7]];
    (four[0] + four[2]) + (four[1] + four[3])
}

/// What every processor can do.
#[derive(Clone, Copy, Debug)]
pub(super) struct Portable;

impl Simd for Portable {
    type V = [f32; 8];

    #[inline(always)]
    fn zero() -> Self::V {
        [0.0; 8]
    }

    #[inline(always)]
    fn splat(x: f32) -> Self::V {
        [x; 8]
    }

    #[inline(always)]
    fn load(from: &[f32; 8]) -> Self::V {
        *from
    }

    #[inline(always)]
    fn lanes(v: Self::V) -> [f32; 8] {
        v
    }

    #[inline(always)]
    fn mul_add(a: Self::V, b: Self::V, c: Self::V) -> Self::V {
        core::array::from_fn(|i| a[i] * b[i] + c[i])
    }

    #[inline(always)]
    fn half(bits: u16) -> f32 {
        half::f16::from_bits(bits).to_f32_const()
    }

    #[inline(always)]
    fn halves(from: &[u16; 8]) -> Self::V {
        from.map(Self::half)
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use core::arch::x86_64::*;

    use super::Simd;

    /// AVX2, FMA and F16C. Its functions must be inlined into a function that enables the three.
    #[derive(Clone, Copy, Debug)]
    pub(in super::super) struct Avx2;

    // Each block below is one intrinsic. SAFETY, for all of them: the instruction exists on this processor, because kernels over
    // `Avx2` are reached only through `per_isa`, which matched an `Isa` that was detected.
    impl Simd for Avx2 {
        type V = __m256;

        #[inline(always)]
        fn zero() -> __m256 {
            // SAFETY: see above.
            unsafe { _mm256_setzero_ps() }
        }

        #[inline(always)]
        fn splat(x: f32) -> __m256 {
            // SAFETY: see above.
            unsafe { _mm256_set1_ps(x) }
        }

        #[inline(always)]
        fn load(from: &[f32; 8]) -> __m256 {
            // SAFETY: see above; the array is 32 readable bytes, and the load has no alignment.
            unsafe { _mm256_loadu_ps(from.as_ptr()) }
        }

        #[inline(always)]
        fn lanes(v: __m256) -> [f32; 8] {
            let mut lanes = [0.0; 8];
            // SAFETY: see above; the array is 32 writable bytes, and the store has no alignment.
            unsafe { _mm256_storeu_ps(lanes.as_mut_ptr(), v) };
            lanes
        }

        #[inline(always)]
        fn mul_add(a: __m256, b: __m256, c: __m256) -> __m256 {
            // SAFETY: see above.
            unsafe { _mm256_fmadd_ps(a, b, c) }
        }

        #[inline(always)]
        fn half(bits: u16) -> f32 {
            // SAFETY: see above.
            let bits = unsafe { _mm_cvtsi32_si128(i32::from(bits)) };
            // SAFETY: see above.
            let single = unsafe { _mm_cvtph_ps(bits) };
            // SAFETY: see above.
            unsafe { _mm_cvtss_f32(single) }
        }

        #[inline(always)]
        fn halves(from: &[u16; 8]) -> __m256 {
            // SAFETY: see above; the array is 16 readable bytes, and the load has no alignment.
            let bits = unsafe { _mm_loadu_si128(from.as_ptr().cast()) };
            // SAFETY: see above.
            unsafe { _mm256_cvtph_ps(bits) }
        }
    }
}

#[cfg(target_arch = "x86_64")]
pub(super) use x86::Avx2;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Portable,
    #[cfg(target_arch = "x86_64")]
    Avx2,
}

/// An instruction set that this processor has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Isa(pub(super) Kind);

impl Isa {
    /// What every processor can do.
    pub const PORTABLE: Self = Self(Kind::Portable);

    /// The best instruction set of this processor.
    pub fn detect() -> Self {
        #[cfg(target_arch = "x86_64")]
        if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") && is_x86_feature_detected!("f16c") {
            return Self(Kind::Avx2);
        }
        Self::PORTABLE
    }

    /// Its name.
    pub fn name(self) -> &'static str {
        match self.0 {
            Kind::Portable => "portable",
            #[cfg(target_arch = "x86_64")]
            Kind::Avx2 => "avx2",
        }
    }
}

/// Compiles a kernel once per instruction set: `name(isa, arguments)` runs the instance of `isa`.
macro_rules! per_isa {
    ($(#[$doc:meta])* fn $name:ident = $kernel:ident($($arg:ident: $type:ty),* $(,)?)) => {
        $(#[$doc])*
        pub(in super::super) fn $name(isa: crate::backend::cpu::simd::Isa, $($arg: $type),*) {
            use crate::backend::cpu::simd;
            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx2,fma,f16c")]
            fn avx2($($arg: $type),*) {
                $kernel::<simd::Avx2>($($arg),*)
            }
            match isa.0 {
                simd::Kind::Portable => $kernel::<simd::Portable>($($arg),*),
                #[cfg(target_arch = "x86_64")]
                simd::Kind::Avx2 => {
                    // SAFETY: an `Isa` of this kind is made by `Isa::detect` alone, after it saw all three features.
                    unsafe { avx2($($arg),*) }
                }
            }
        }
    };
}
pub(super) use per_isa;
