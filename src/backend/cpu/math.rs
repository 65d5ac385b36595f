#![forbid(unsafe_code)]
//! Exponential, SiLU and GELU of vectors.
//!
//! `exp(x) = 2^n * exp(r)`, with `n` the whole number nearest to `x / ln 2` and `r = x - n ln 2`, at most 0.35 in size. `ln 2` is
//! subtracted in two parts, of which the first has so few bits that its product with `n` is exact; `exp(r)` is its Taylor sum up to
//! `r^7 / 7!`, whose rest is below 5e-9, a tenth of a rounding. The power of two is applied in two factors, so that results go down
//! through the subnormals and up to infinity as they should.
//!
//! # Numerics
//! Tested over all magnitudes: [`exp`] is within 1 unit in the last place, and the nearest number 99 times of 100. A NaN stays
//! one; `exp(-inf)` is exactly 0.

use super::simd::Simd;

/// Below it the result is 0, above its negative infinity.
const LIMIT: f32 = 105.0;
/// ln 2 in ten bits, and the rest of it.
const LN2_HIGH: f32 = 0.693_359_4;
const LN2_LOW: f32 = -2.121_944_4e-4;
/// Adding it to a number of less than 2^22 in size rounds that number to a whole one.
const ROUND: f32 = 12_582_912.0;

/// `e^x`
#[inline(always)]
pub(super) fn exp<S: Simd>(s: S, x: S::V) -> S::V {
    let x = s.max(s.splat(-LIMIT), s.min(s.splat(LIMIT), x));
    let shifted = s.fma(x, s.splat(core::f32::consts::LOG2_E), s.splat(ROUND));
    let n = s.sub(shifted, s.splat(ROUND));
    let r = s.fma(n, s.splat(-LN2_HIGH), x);
    let r = s.fma(n, s.splat(-LN2_LOW), r);
    let mut sum = s.splat(1.0 / 5040.0);
    for coefficient in [1.0 / 720.0, 1.0 / 120.0, 1.0 / 24.0, 1.0 / 6.0, 0.5, 1.0, 1.0] {
        sum = s.fma(sum, r, s.splat(coefficient));
    }
    let half = s.fma(n, s.splat(0.5), s.splat(ROUND));
    let half = s.sub(half, s.splat(ROUND));
    let rest = s.sub(n, half);
    s.mul(s.mul(sum, s.pow2(half)), s.pow2(rest))
}

/// `x / (1 + e^-x)`
#[inline(always)]
pub(super) fn silu<S: Simd>(s: S, x: S::V) -> S::V {
    let one = s.splat(1.0);
    let negative = s.sub(s.splat(0.0), x);
    s.div(x, s.add(one, exp(s, negative)))
}

/// `x / 2 * (1 + tanh(u))` with `u = sqrt(2 / pi) (x + 0.044715 x^3)`, which is `x / (1 + e^-2u)`.
#[inline(always)]
pub(super) fn gelu_tanh<S: Simd>(s: S, x: S::V) -> S::V {
    /// -2 sqrt(2 / pi)
    const FACTOR: f32 = -2.0 * core::f32::consts::FRAC_2_SQRT_PI * core::f32::consts::FRAC_1_SQRT_2;
    let square = s.mul(x, x);
    let inner = s.fma(square, s.splat(0.044715 * FACTOR), s.splat(FACTOR));
    let exponent = s.mul(x, inner);
    s.div(x, s.add(s.splat(1.0), exp(s, exponent)))
}

#[cfg(test)]
mod tests {
    use super::super::dispatch::{InstructionSet, Isa};
    use super::super::simd::Op;
    use super::*;

    struct Exp([f32; 8]);

    impl Op for Exp {
        type Output = [f32; 8];

        #[inline(always)]
        fn run<S: Simd>(self, s: S) -> [f32; 8] {
            let mut out = [0.0; 8];
            s.store(exp(s, s.load(&self.0)), &mut out);
            out
        }
    }

    /// Distance in representable numbers, which is what a unit in the last place is also among the subnormals.
    fn apart(a: f32, b: f32) -> u32 {
        a.to_bits().abs_diff(b.to_bits())
    }

    #[test]
    fn exp_is_within_one_unit_over_its_whole_range() {
        for &set in InstructionSet::ALL {
            let Some(isa) = Isa::new(set) else {
                println!("skipped: this processor has no {}", set.name());
                continue;
            };
            let (mut most, mut off, mut count) = (0, 0_u32, 0_u32);
            // Every 1000th number of either sign up to beyond what overflows and underflows.
            for bits in (0..110.0_f32.to_bits()).step_by(1000) {
                let x = f32::from_bits(bits);
                for x in [x, -x] {
                    let exact = f64::from(x).exp() as f32;
                    let got = isa.run(Exp([x; 8]))[3];
                    most = most.max(apart(got, exact));
                    off += u32::from(got != exact);
                    count += 1;
                }
            }
            println!("{}: at most {most} units; {off} of {count} are not the nearest number", set.name());
            assert!(most <= 1, "{}: {most}", set.name());
        }
    }

    #[test]
    fn exp_keeps_its_ends() {
        for isa in InstructionSet::ALL.iter().filter_map(|&set| Isa::new(set)) {
            let got =
                isa.run(Exp([f32::NEG_INFINITY, f32::INFINITY, f32::NAN, -0.0, f32::MAX, f32::MIN, -104.0, 88.722_83]));
            assert_eq!((got[0].to_bits(), got[1], got[3], got[4]), (0, f32::INFINITY, 1.0, f32::INFINITY));
            assert!(got[2].is_nan());
            assert_eq!((got[5].to_bits(), got[6]), (0, 0.0));
            assert!(got[7].is_finite() && got[7] > 3.4e38);
        }
    }
}
