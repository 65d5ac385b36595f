#![forbid(unsafe_code)]
//! An identity of the weights that is cheap for gigabytes.
//!
//! XXH3-128 with two seeds over: the documents that describe the model (the header of every GGUF shard, or `config.json`), then for
//! each tensor in name order its name, type, shape and *samples* of its bytes: all of them up to 1536 bytes, otherwise the
//! first, middle and last 512.
//!
//! It promises: the same files give the same identity, everywhere; files that differ in a description, in a tensor's name, type or
//! shape, or in a sampled byte give another, but for a chance of about 2^-128. It does not promise to see a change that touches
//! none of the samples, and it is no defence against a forger: XXH3 is no cryptographic hash.

use xxhash_rust::xxh3::Xxh3;

use crate::tensor::{Bytes, Tensor};

const SAMPLE_BYTES: usize = 512;

/// Computes the identity.
pub(super) fn identity<'a>(documents: &[Bytes], tensors: impl Iterator<Item = (&'a str, &'a Tensor)>) -> [u8; 32] {
    let mut pair = Pair([Xxh3::with_seed(0), Xxh3::with_seed(1)]);
    for document in documents {
        pair.sized(document.as_slice());
    }
    let mut sorted: Vec<_> = tensors.collect();
    sorted.sort_unstable_by_key(|&(name, _)| name);
    for (name, tensor) in sorted {
        pair.sized(name.as_bytes());
        pair.sized(format!("{:?} {} {}", tensor.dtype, tensor.rows, tensor.cols).as_bytes());
        pair.sampled(tensor.data.as_slice());
    }
    pair.finish()
}

/// Two hashes over the same input.
struct Pair([Xxh3; 2]);

impl Pair {
    fn update(&mut self, bytes: &[u8]) {
        self.0.iter_mut().for_each(|hash| hash.update(bytes));
    }

    fn sized(&mut self, bytes: &[u8]) {
        self.update(&(bytes.len() as u64).to_le_bytes());
        self.update(bytes);
    }

    fn sampled(&mut self, bytes: &[u8]) {
        let len = bytes.len();
        if len <= 3 * SAMPLE_BYTES {
            return self.sized(bytes);
        }
        self.update(&(len as u64).to_le_bytes());
        for start in [0, (len - SAMPLE_BYTES) / 2, len - SAMPLE_BYTES] {
            self.update(&bytes[start..start + SAMPLE_BYTES]);
        }
    }

    fn finish(&self) -> [u8; 32] {
        let mut out = [0; 32];
        for (half, hash) in out.chunks_exact_mut(16).zip(&self.0) {
            half.copy_from_slice(&hash.digest128().to_le_bytes());
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tensor::DType;
    use std::sync::Arc;

    fn one(len: usize, change: Option<usize>) -> [u8; 32] {
        let mut bytes = vec![7; len];
        if let Some(at) = change {
            bytes[at] ^= 1;
        }
        let data = Bytes::new(Arc::new(bytes));
        let tensor = Tensor { dtype: DType::BF16, rows: 1, cols: len / 2, data };
        identity(&[], [("t", &tensor)].into_iter())
    }

    #[test]
    fn a_change_in_a_sample_changes_the_identity() {
        assert_eq!(one(4096, None), one(4096, None));
        for at in [0, 511, 2000, 4095] {
            assert_ne!(one(4096, None), one(4096, Some(at)), "{at}");
        }
        assert_ne!(one(4096, None), one(4098, None));
        assert_ne!(one(1536, None), one(1536, Some(700)));
    }

    #[test]
    fn the_halves_differ() {
        let id = one(64, None);
        assert_ne!(id[..16], id[16..]);
    }
}
