#![forbid(unsafe_code)]
//! The exponential function, in a form that compilers turn into vector code.

/// `e^x`, with a relative error below 2e-7; 0 below -87.3, and at most `e^88.7`, which is finite. NaN gives NaN.
///
/// `x = n ln 2 + r` with `|r| <= ln 2 / 2`; `e^r` by its Taylor polynomial of degree 7, whose remainder there is below 6e-9.
#[inline(always)]
pub(super) fn exp(x: f32) -> f32 {
    const LOG2_E: f32 = std::f32::consts::LOG2_E;
    // ln 2 in two parts; the first has 9 significant bits, so its product with n is exact.
    const LN_2_HIGH: f32 = 0.693_359_4;
    const LN_2_LOW: f32 = -2.121_944_4e-4;
    // Adding and subtracting 1.5 * 2^23 rounds to the nearest integer.
    const ROUND: f32 = 12_582_912.0;
    let bounded = if x > 88.7 { 88.7 } else { x };
    let n = (bounded * LOG2_E + ROUND) - ROUND;
    let r = (bounded - n * LN_2_HIGH) - n * LN_2_LOW;
    let mut sum = 1.0 / 5040.0;
    for coefficient in [1.0 / 720.0, 1.0 / 120.0, 1.0 / 24.0, 1.0 / 6.0, 0.5, 1.0, 1.0] {
        sum = sum * r + coefficient;
    }
    let scale = f32::from_bits((((n as i32) + 127) << 23) as u32);
    if x < -87.3 { 0.0 } else { sum * scale }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exp_is_within_its_stated_error_everywhere() {
        let mut x = -87.3f32;
        let mut worst = 0.0f64;
        while x < 88.7 {
            let truth = f64::from(x).exp();
            worst = worst.max((f64::from(exp(x)) - truth).abs() / truth);
            x += 0.000_917;
        }
        assert!(worst < 2e-7, "{worst}");
    }

    #[test]
    fn exp_at_its_edges() {
        assert_eq!(exp(0.0), 1.0);
        assert_eq!(exp(-200.0), 0.0);
        assert_eq!(exp(f32::NEG_INFINITY), 0.0);
        assert!(exp(f32::INFINITY).is_finite());
        assert!(exp(f32::NAN).is_nan());
    }
}
