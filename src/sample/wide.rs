//! Loops over rows, compiled a second time for wider vectors.
//!
//! The vectors of every x86-64 processor hold four numbers, those of AVX2 eight, and a row has a quarter of a million. A loop does the
//! same operations in the same order either way, none of them fused, so it gives the same bits.

/// A loop over a row, with what it needs.
pub(super) trait RowLoop {
    /// What it finds.
    type Output;

    /// The loop. Implementations are `#[inline(always)]`: code only gets the vectors of the function it is inlined into.
    fn run(self) -> Self::Output;
}

/// Runs a loop with the widest vectors that this processor has.
pub(super) fn widest<L: RowLoop>(work: L) -> L::Output {
    #[cfg(target_arch = "x86_64")]
    if std::arch::is_x86_feature_detected!("avx2") {
        // SAFETY: this processor has AVX2.
        return unsafe { with_avx2(work) };
    }
    work.run()
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn with_avx2<L: RowLoop>(work: L) -> L::Output {
    work.run()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample::draw::{Look, Weigh, WeightSum, uniform};

    /// Both instances of every loop on rows of all lengths.
    #[test]
    fn wider_vectors_give_the_same_bits() {
        for len in (0..70).chain([255, 256, 257, 5000]) {
            let row: Vec<f32> = (0..len).map(|i| (uniform(i) * 60.0 - 30.0) as f32).collect();
            let (looked, seen) = (Look(&row).run(), widest(Look(&row)));
            assert_eq!((looked.best.to_bits(), looked.is_finite), (seen.best.to_bits(), seen.is_finite));
            assert_eq!(looked.lowest(&row), seen.lowest(&row));
            let sum = |row| WeightSum { row, best: seen.best };
            assert_eq!(sum(&row).run().to_bits(), widest(sum(&row)).to_bits(), "{len}");
            let (mut narrow, mut wide) = (vec![0.0; row.len()], vec![0.0; row.len()]);
            let one = Weigh { row: &row, scale: 1.25, best: seen.best * 1.25, out: &mut narrow }.run();
            let other = widest(Weigh { row: &row, scale: 1.25, best: seen.best * 1.25, out: &mut wide });
            assert_eq!(one.to_bits(), other.to_bits(), "{len}");
            assert!(narrow.iter().zip(&wide).all(|(a, b)| a.to_bits() == b.to_bits()), "{len}");
        }
    }
}
