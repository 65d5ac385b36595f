//! Where the sums of products go: row groups of outputs that tasks share out among themselves.

use super::shared::Shared;
use super::simd::Simd;
use super::tile::ROWS;

/// Where outputs go.
#[derive(Clone, Copy)]
pub(super) struct Outputs<'a> {
    pub(super) values: Shared<'a, f32>,
    /// Elements of a row of the output.
    pub(super) width: usize,
    pub(super) bias: Option<&'a [f32]>,
}

impl<'a> Outputs<'a> {
    /// The outputs of row group `group` in row `row`.
    ///
    /// # Safety
    /// - While they are used, nobody else uses them.
    #[inline(always)]
    unsafe fn part(&self, row: usize, group: usize) -> &'a mut [f32] {
        let first = group * ROWS;
        // SAFETY: by the promise of the caller; a row group has outputs of its own, cut where the row ends.
        unsafe { self.values.part(row * self.width + first, ROWS.min(self.width - first)) }
    }

    /// Writes the sums of row group `group`, with their bias where they are whole.
    ///
    /// # Safety
    /// - Nobody else uses these outputs at this time.
    #[inline(always)]
    pub(super) unsafe fn write<S: Simd>(&self, s: S, row: usize, group: usize, sums: S::W, whole: bool) {
        // SAFETY: by the promise of the caller, and the part is dropped before this function returns.
        let to = unsafe { self.part(row, group) };
        let bias = self.bias.filter(|_| whole).and_then(|bias| bias.get(group * ROWS..));
        let mut sums = sums;
        if let Some(bias) = bias {
            sums = s.add_w(sums, load_cut(s, bias));
        }
        match to.first_chunk_mut() {
            Some(to) => s.store_w(sums, to),
            None => {
                let mut lanes = [0.0; ROWS];
                s.store_w(sums, &mut lanes);
                to.iter_mut().zip(lanes).for_each(|(to, lane)| *to = lane);
            }
        }
    }

    /// Whether all outputs of `groups` row groups from `group` on are there, and have nothing added.
    #[inline(always)]
    fn plain(&self, group: usize, groups: usize, whole: bool) -> bool {
        (group + groups) * ROWS <= self.width && !(whole && self.bias.is_some())
    }

    /// Writes the sums of a tile: of each of its rows, those of up to `N` row groups from `group` on.
    ///
    /// # Safety
    /// - Nobody else uses the outputs of the `present` row groups in these rows at this time.
    #[inline(always)]
    pub(super) unsafe fn write_tile<S: Simd, const M: usize, const N: usize>(
        &self,
        s: S,
        rows: &[usize; M],
        group: usize,
        present: usize,
        sums: &[[S::W; N]; M],
        whole: bool,
    ) {
        if present >= N && self.plain(group, N, whole) {
            for m in 0..M {
                // SAFETY: by the promise of the caller, and the part is dropped at the end of this round.
                let to = unsafe { self.values.part(rows[m] * self.width + group * ROWS, N * ROWS) };
                for (to, &sums) in to.as_chunks_mut().0.iter_mut().zip(&sums[m]) {
                    s.store_w(sums, to);
                }
            }
            return;
        }
        // Laid down first: what is indexed by numbers that the compiler does not know is not kept in registers, in the loops before either.
        let mut lanes = [[[0.0; ROWS]; N]; M];
        for m in 0..M {
            for n in 0..N {
                s.store_w(sums[m][n], &mut lanes[m][n]);
            }
        }
        for (&row, lanes) in rows.iter().zip(&lanes) {
            for (n, lanes) in lanes.iter().enumerate().take(present) {
                // SAFETY: by the promise of the caller.
                unsafe { self.write(s, row, group + n, s.load_w(lanes), whole) };
            }
        }
    }

    /// What [`Outputs::write_tile`] wrote before the last columns.
    ///
    /// # Safety
    /// - As for [`Outputs::write_tile`].
    #[inline(always)]
    pub(super) unsafe fn read_tile<S: Simd, const M: usize, const N: usize>(
        &self,
        s: S,
        rows: &[usize; M],
        group: usize,
        present: usize,
        sums: &mut [[S::W; N]; M],
    ) {
        if present >= N && self.plain(group, N, false) {
            for m in 0..M {
                // SAFETY: by the promise of the caller, and the part is dropped at the end of this round.
                let from = unsafe { self.values.part(rows[m] * self.width + group * ROWS, N * ROWS) };
                for (sum, from) in sums[m].iter_mut().zip(from.as_chunks().0) {
                    *sum = s.load_w(from);
                }
            }
            return;
        }
        let mut lanes = [[[0.0; ROWS]; N]; M];
        for (&row, lanes) in rows.iter().zip(&mut lanes) {
            for (n, lanes) in lanes.iter_mut().enumerate().take(present) {
                // SAFETY: by the promise of the caller, and the part is dropped at the end of this round.
                let from = unsafe { self.part(row, group + n) };
                lanes.iter_mut().zip(from).for_each(|(lane, from)| *lane = *from);
            }
        }
        for m in 0..M {
            for n in 0..N {
                sums[m][n] = s.load_w(&lanes[m][n]);
            }
        }
    }
}

/// Sixteen numbers, or what there is and zeros.
#[inline(always)]
fn load_cut<S: Simd>(s: S, from: &[f32]) -> S::W {
    match from.first_chunk() {
        Some(from) => s.load_w(from),
        None => {
            let mut lanes = [0.0; ROWS];
            lanes.iter_mut().zip(from).for_each(|(lane, from)| *lane = *from);
            s.load_w(&lanes)
        }
    }
}
