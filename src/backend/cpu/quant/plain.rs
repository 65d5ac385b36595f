#![forbid(unsafe_code)]
//! Single elements, 32 of them as a unit.

use super::Format;
use crate::backend::cpu::simd::{Simd, part};

/// IEEE binary32.
pub(in super::super) struct F32;
/// IEEE binary16.
pub(in super::super) struct F16;
/// bfloat16.
pub(in super::super) struct Bf16;

/// Eight little-endian 16-bit words.
#[inline(always)]
fn words(block: &[u8], at: usize) -> [u16; 8] {
    let bytes: &[u8; 16] = part(block, at);
    let mut words = [0; 8];
    for (word, pair) in words.iter_mut().zip(bytes.as_chunks().0) {
        *word = u16::from_le_bytes(*pair);
    }
    words
}

impl Format for F32 {
    const VALUES: usize = 32;
    const BYTES: usize = 128;

    #[inline(always)]
    fn group<S: Simd>(s: S, block: &[u8], _: usize) -> [S::V; 4] {
        let mut out = [s.splat(0.0); 4];
        for (i, v) in out.iter_mut().enumerate() {
            let bytes: &[u8; 32] = part(block, 32 * i);
            let mut values = [0.0; 8];
            for (value, four) in values.iter_mut().zip(bytes.as_chunks().0) {
                *value = f32::from_le_bytes(*four);
            }
            *v = s.load(&values);
        }
        out
    }
}

impl Format for F16 {
    const VALUES: usize = 32;
    const BYTES: usize = 64;

    #[inline(always)]
    fn group<S: Simd>(s: S, block: &[u8], _: usize) -> [S::V; 4] {
        let mut out = [s.splat(0.0); 4];
        for (i, v) in out.iter_mut().enumerate() {
            *v = s.load_f16(&words(block, 16 * i));
        }
        out
    }
}

impl Format for Bf16 {
    const VALUES: usize = 32;
    const BYTES: usize = 64;

    #[inline(always)]
    fn group<S: Simd>(s: S, block: &[u8], _: usize) -> [S::V; 4] {
        let mut out = [s.splat(0.0); 4];
        for (i, v) in out.iter_mut().enumerate() {
            *v = s.load_bf16(&words(block, 16 * i));
        }
        out
    }
}
