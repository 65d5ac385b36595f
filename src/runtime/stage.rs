#![forbid(unsafe_code)]
//! Stages of a model that is split by layers (E-11): what goes into one and what comes out.
//!
//! Between two stages travel the rows of the residual stream, with a header that says of what:
//!
//! ```text
//! magic u64 | version u32 | layer u32 | rows u32 | hidden u32 | weights 32 bytes | content 32 bytes | checksum u64 | rows x hidden f32
//! ```
//! All little-endian. `content` is a digest of the tokens and the adapter, `checksum` XXH3-64 of the values. The bytes are
//! opaque to a host: another version of this crate need not read them.

use xxhash_rust::xxh3::{Xxh3, xxh3_64};

use super::RuntimeError;

const MAGIC: u64 = u64::from_le_bytes(*b"ICTSTAGE");
const VERSION: u32 = 1;
const HEADER_BYTES: usize = 8 + 4 * 4 + 32 + 32 + 8;

/// A run of layers `[first, end)` over all of a token list.
#[derive(Clone, Copy, Debug)]
pub struct Stage<'a> {
    /// The tokens, the same for every stage; at least one.
    pub tokens: &'a [u32],
    /// The adapter; 0 is the model alone.
    pub adapter: u64,
    /// First layer.
    pub first: u32,
    /// Layer behind the last one.
    pub end: u32,
    /// What the stage before gave; none for the first.
    pub incoming: Option<&'a [u8]>,
}

/// One stage's answer in a model split by layers (E-11).
#[derive(Clone, Debug, PartialEq)]
pub enum StageOutput {
    /// The last stage: the greedy token.
    Token(u32),
    /// An inner stage: opaque activation bytes for the next one.
    Hidden(Vec<u8>),
}

/// Why a stage did not run. Nothing changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StageError {
    /// Layers that the model does not have, or tokens outside its vocabulary or its context.
    #[error("layers or tokens are out of range")]
    Bounds,
    /// The incoming bytes are not what the stage before gave for these tokens.
    #[error("the activations are not those of the stage before")]
    Activations,
    /// The model gives no number for these tokens.
    #[error("the logits are not finite")]
    NotFinite,
    /// The runtime failed.
    #[error(transparent)]
    Runtime(#[from] RuntimeError),
}

impl From<StageError> for crate::record::Status {
    fn from(error: StageError) -> Self {
        match error {
            StageError::Bounds => Self::RejectBounds,
            StageError::Activations | StageError::NotFinite => Self::RejectBadStruct,
            StageError::Runtime(error) => error.into(),
        }
    }
}

/// What activations belong to.
pub(super) struct Activations<'a> {
    pub(super) layer: u32,
    pub(super) rows: usize,
    pub(super) hidden: usize,
    pub(super) weights: &'a [u8; 32],
    pub(super) tokens: &'a [u32],
    /// Digest of the adapter; zeros for none.
    pub(super) adapter: [u8; 32],
}

impl Activations<'_> {
    fn header(&self, checksum: u64) -> [u8; HEADER_BYTES] {
        let mut content = [0; 32];
        for (half, seed) in content.chunks_exact_mut(16).zip(0..) {
            let mut hash = Xxh3::with_seed(seed);
            self.tokens.iter().for_each(|token| hash.update(&token.to_le_bytes()));
            hash.update(&self.adapter);
            half.copy_from_slice(&hash.digest128().to_le_bytes());
        }
        let mut header = [0; HEADER_BYTES];
        let parts: [&[u8]; 8] = [
            &MAGIC.to_le_bytes(),
            &VERSION.to_le_bytes(),
            &self.layer.to_le_bytes(),
            &(self.rows as u32).to_le_bytes(),
            &(self.hidden as u32).to_le_bytes(),
            self.weights,
            &content,
            &checksum.to_le_bytes(),
        ];
        let bytes = parts.into_iter().flatten();
        header.iter_mut().zip(bytes).for_each(|(to, &byte)| *to = byte);
        header
    }

    /// The bytes of these rows.
    pub(super) fn seal(&self, values: &[f32]) -> Vec<u8> {
        let payload: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        let mut bytes = self.header(xxh3_64(&payload)).to_vec();
        bytes.extend(payload);
        bytes
    }

    /// The rows in the bytes.
    ///
    /// # Errors
    /// `Activations` when they are of anything else.
    pub(super) fn open(&self, bytes: &[u8]) -> Result<Vec<f32>, StageError> {
        let (header, payload) = bytes.split_at_checked(HEADER_BYTES).ok_or(StageError::Activations)?;
        let expected_bytes = self.rows.checked_mul(self.hidden).and_then(|values| values.checked_mul(4));
        if Some(payload.len()) != expected_bytes || header != self.header(xxh3_64(payload)) {
            return Err(StageError::Activations);
        }
        Ok(payload.as_chunks::<4>().0.iter().map(|&word| f32::from_le_bytes(word)).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_of_other_rows_are_refused() {
        let of = Activations { layer: 1, rows: 2, hidden: 2, weights: &[7; 32], tokens: &[1, 2], adapter: [0; 32] };
        let bytes = of.seal(&[1.0, 2.0, 3.0, 4.0]);
        assert_eq!(of.open(&bytes), Ok(vec![1.0, 2.0, 3.0, 4.0]));
        for at in 0..bytes.len() {
            let mut changed = bytes.clone();
            changed[at] ^= 1;
            assert_eq!(of.open(&changed), Err(StageError::Activations), "byte {at}");
            assert_eq!(of.open(&bytes[..at]), Err(StageError::Activations), "{at} bytes");
        }
        let others = [
            Activations { layer: 2, ..of },
            Activations { tokens: &[1, 3], ..of },
            Activations { adapter: [1; 32], ..of },
            Activations { weights: &[8; 32], ..of },
        ];
        for other in others {
            assert_eq!(other.open(&bytes), Err(StageError::Activations));
        }
    }
}
