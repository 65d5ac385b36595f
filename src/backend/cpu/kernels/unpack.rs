//! Stored weights to f32, in the form that compilers turn into vector code.
//!
//! # Numerics
//! The values are those of `tensor::dequantise_row`, bit for bit: a scale times an integer is exact, so a fused operation rounds no
//! differently. Types without a function here take that one.

use crate::backend::cpu::simd::Simd;
use crate::tensor::{DType, dequantise_row};

/// Unpacks whole units of a row.
///
/// # Shapes
/// `bytes`: `dtype.row_bytes(out.len())` bytes
#[inline(always)]
pub(super) fn unpack<S: Simd>(dtype: DType, bytes: &[u8], out: &mut [f32]) {
    match dtype {
        DType::F32 => {
            for (out, unit) in out.iter_mut().zip(bytes.as_chunks::<4>().0) {
                *out = f32::from_le_bytes(*unit);
            }
        }
        DType::F16 => halves::<S>(bytes, out),
        DType::BF16 => {
            for (out, unit) in out.iter_mut().zip(bytes.as_chunks::<2>().0) {
                *out = f32::from_bits(u32::from(u16::from_le_bytes(*unit)) << 16);
            }
        }
        DType::Q4_0 => blocks::<18, 32>(bytes, out, q4_0::<S>),
        DType::Q4_1 => blocks::<20, 32>(bytes, out, q4_1::<S>),
        DType::Q5_0 => blocks::<22, 32>(bytes, out, q5_0::<S>),
        DType::Q5_1 => blocks::<24, 32>(bytes, out, q5_1::<S>),
        DType::Q8_0 => blocks::<34, 32>(bytes, out, q8_0::<S>),
        DType::Q4_K => blocks::<144, 256>(bytes, out, q4_k::<S>),
        DType::Q6_K => blocks::<210, 256>(bytes, out, q6_k::<S>),
        _ => {
            let sized = dequantise_row(dtype, bytes, out);
            debug_assert!(sized.is_ok(), "the caller gave whole units");
        }
    }
}

#[inline(always)]
fn blocks<const BYTES: usize, const VALUES: usize>(
    bytes: &[u8],
    out: &mut [f32],
    block: impl Fn(&[u8; BYTES], &mut [f32; VALUES]),
) {
    for (bytes, out) in bytes.as_chunks::<BYTES>().0.iter().zip(out.as_chunks_mut::<VALUES>().0) {
        block(bytes, out);
    }
}

#[inline(always)]
fn halves<S: Simd>(bytes: &[u8], out: &mut [f32]) {
    let (eights, rest) = out.as_chunks_mut::<8>();
    let (stored, stored_rest) = bytes.as_chunks::<16>();
    for (out, bytes) in eights.iter_mut().zip(stored) {
        let bits = core::array::from_fn(|i| u16::from_le_bytes([bytes[2 * i], bytes[2 * i + 1]]));
        *out = S::lanes(S::halves(&bits));
    }
    for (out, bytes) in rest.iter_mut().zip(stored_rest.as_chunks::<2>().0) {
        *out = S::half(u16::from_le_bytes(*bytes));
    }
}

#[inline(always)]
fn half_at<S: Simd>(bytes: &[u8], at: usize) -> f32 {
    S::half(u16::from_le_bytes([bytes[at], bytes[at + 1]]))
}

#[inline(always)]
fn q4_0<S: Simd>(bytes: &[u8; 18], out: &mut [f32; 32]) {
    let d = half_at::<S>(bytes, 0);
    for i in 0..16 {
        let byte = bytes[2 + i];
        out[i] = d * (i32::from(byte & 15) - 8) as f32;
        out[16 + i] = d * (i32::from(byte >> 4) - 8) as f32;
    }
}

#[inline(always)]
fn q4_1<S: Simd>(bytes: &[u8; 20], out: &mut [f32; 32]) {
    let (d, m) = (half_at::<S>(bytes, 0), half_at::<S>(bytes, 2));
    for i in 0..16 {
        let byte = bytes[4 + i];
        out[i] = d * i32::from(byte & 15) as f32 + m;
        out[16 + i] = d * i32::from(byte >> 4) as f32 + m;
    }
}

/// The fifth bits of a block, one per value.
#[inline(always)]
fn fifth_bits(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

#[inline(always)]
fn q5_0<S: Simd>(bytes: &[u8; 22], out: &mut [f32; 32]) {
    let d = half_at::<S>(bytes, 0);
    let high = fifth_bits(bytes, 2);
    for i in 0..16 {
        let byte = u32::from(bytes[6 + i]);
        let low = (byte & 15) | ((high >> i) & 1) << 4;
        let top = (byte >> 4) | ((high >> (16 + i)) & 1) << 4;
        out[i] = d * (low as i32 - 16) as f32;
        out[16 + i] = d * (top as i32 - 16) as f32;
    }
}

#[inline(always)]
fn q5_1<S: Simd>(bytes: &[u8; 24], out: &mut [f32; 32]) {
    let (d, m) = (half_at::<S>(bytes, 0), half_at::<S>(bytes, 2));
    let high = fifth_bits(bytes, 4);
    for i in 0..16 {
        let byte = u32::from(bytes[8 + i]);
        let low = (byte & 15) | ((high >> i) & 1) << 4;
        let top = (byte >> 4) | ((high >> (16 + i)) & 1) << 4;
        out[i] = d * (low as i32) as f32 + m;
        out[16 + i] = d * (top as i32) as f32 + m;
    }
}

#[inline(always)]
fn q8_0<S: Simd>(bytes: &[u8; 34], out: &mut [f32; 32]) {
    let d = half_at::<S>(bytes, 0);
    for i in 0..32 {
        out[i] = d * f32::from(bytes[2 + i] as i8);
    }
}

/// Scale and minimum `i` of eight, 6 bits each in 12 bytes.
#[inline(always)]
fn six_bits(packed: &[u8], i: usize) -> (u8, u8) {
    if i < 4 {
        (packed[i] & 63, packed[i + 4] & 63)
    } else {
        let (low, high) = (packed[i + 4], i - 4);
        ((low & 15) | (packed[high] >> 6) << 4, (low >> 4) | (packed[high + 4] >> 6) << 4)
    }
}

#[inline(always)]
fn q4_k<S: Simd>(bytes: &[u8; 144], out: &mut [f32; 256]) {
    let (d, dmin) = (half_at::<S>(bytes, 0), half_at::<S>(bytes, 2));
    let (packed, quants) = (&bytes[4..16], &bytes[16..]);
    for part in 0..4 {
        let scaled = |i| {
            let (scale, minimum) = six_bits(packed, i);
            (d * f32::from(scale), dmin * f32::from(minimum))
        };
        let ((d0, m0), (d1, m1)) = (scaled(2 * part), scaled(2 * part + 1));
        let quants: &[u8] = &quants[32 * part..][..32];
        let out = &mut out[64 * part..][..64];
        for i in 0..32 {
            out[i] = d0 * f32::from(quants[i] & 15) - m0;
            out[32 + i] = d1 * f32::from(quants[i] >> 4) - m1;
        }
    }
}

#[inline(always)]
fn q6_k<S: Simd>(bytes: &[u8; 210], out: &mut [f32; 256]) {
    let d = half_at::<S>(bytes, 208);
    for half in 0..2 {
        let low = &bytes[64 * half..][..64];
        let high = &bytes[128 + 32 * half..][..32];
        let scales = &bytes[192 + 8 * half..][..8];
        let out = &mut out[128 * half..][..128];
        for i in 0..32 {
            let scale = |group: usize| d * f32::from(scales[2 * group + i / 16] as i8);
            let value = |low: u8, shift: u32| f32::from((low | (high[i] >> shift & 3) << 4) as i8 - 32);
            out[i] = scale(0) * value(low[i] & 15, 0);
            out[32 + i] = scale(1) * value(low[32 + i] & 15, 2);
            out[64 + i] = scale(2) * value(low[i] >> 4, 4);
            out[96 + i] = scale(3) * value(low[32 + i] >> 4, 6);
        }
    }
}
