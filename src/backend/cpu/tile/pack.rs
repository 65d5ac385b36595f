#![forbid(unsafe_code)]
//! From the rows of a file to row groups.

use super::words::UNIT_WORDS;
use super::{BLOCK, Codes, LINE, Lines, Quant, ROWS, Unit, Words, with_quant};
use crate::tensor::DType;

/// Writes a row group.
///
/// # Shapes
/// `rows`: up to 16 rows as the file has them, all of the same size; `to`: [`group_bytes`](super::group_bytes), all zero before
pub(in super::super) fn pack(dtype: DType, rows: &[&[u8]], to: &mut [u8]) {
    with_quant!(dtype, Q => pack_codes::<Q>(rows, to), else match dtype.unit_bytes() {
        4 => pack_single::<4>(rows, to),
        _ => pack_single::<2>(rows, to),
    });
}

fn pack_codes<Q: Quant>(rows: &[&[u8]], to: &mut [u8]) {
    // Rows that are not there have codes like any other: what they mean is scaled by nothing.
    let mut all: [&[u8]; ROWS] = [&[]; ROWS];
    all.iter_mut().zip(rows).for_each(|(to, row)| *to = row);
    for (u, unit) in to.chunks_exact_mut(Q::BYTES).enumerate() {
        for (r, row) in rows.iter().take(ROWS).enumerate() {
            let from = row.get(u * Q::FILE_BYTES..(u + 1) * Q::FILE_BYTES);
            Q::file_scales(from.unwrap_or_default(), r, unit);
        }
        let mut codes = [Words::ZERO; UNIT_WORDS];
        Q::file_codes(Unit::new(&all, u * Q::FILE_BYTES), &mut codes);
        let lines = unit.get_mut(Q::SCALE_BYTES..).unwrap_or_default();
        for (codes, lines) in codes.as_chunks::<8>().0.iter().zip(lines.chunks_exact_mut(Q::Codes::BYTES)) {
            put_plane(codes, 0, Q::Codes::LOW, lines);
            if Q::Codes::HIGH > 0 {
                let upper = lines.get_mut(LINE * Q::Codes::LOW as usize..).unwrap_or_default();
                put_plane(codes, Q::Codes::LOW, Q::Codes::HIGH, upper);
            }
        }
    }
}

/// Bits `from .. from + bits` of the codes of a block, to the lines of their plane.
#[inline(always)]
fn put_plane(codes: &[Words; 8], from: u32, bits: u32, lines: &mut [u8]) {
    let mask = u32::from_le_bytes([((1_u32 << bits) - 1) as u8; 4]);
    let per_line = 8 / bits as usize;
    for (groups, line) in codes.chunks_exact(per_line).zip(lines.as_chunks_mut::<LINE>().0) {
        let mut words = Words::ZERO;
        for (place, &codes) in groups.iter().enumerate() {
            words |= (codes >> from & mask) << (bits * place as u32);
        }
        words.store(line);
    }
}

/// Elements of `N` bytes, transposed.
fn pack_single<const N: usize>(rows: &[&[u8]], to: &mut [u8]) {
    // By blocks of columns: their lines stay in the cache while the rows are gone through.
    for (block, to) in to.chunks_mut(BLOCK * ROWS * N).enumerate() {
        for (r, row) in rows.iter().take(ROWS).enumerate() {
            let from = row.get(block * BLOCK * N..).unwrap_or_default().as_chunks::<N>().0;
            for (element, column) in from.iter().zip(to.chunks_exact_mut(ROWS * N)) {
                if let Some(to) = column.as_chunks_mut::<N>().0.get_mut(r) {
                    *to = *element;
                }
            }
        }
    }
}
