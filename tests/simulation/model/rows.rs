//! What follows a text (R-30 .. R-32, T-112 .. T-119): hashes where the runtime is the fake one, else what the model says of the whole
//! text by itself.

use ictus::record::constant::sampling;
use ictus::sample::{Logprobs, Penalty, SampleError, SampleRequest, Scratch, pick};

use super::{Lane, Model};
use crate::shape::END_IDS;

/// FNV-1a-64 (S-82) over a salt, the digest of an adapter if there is one, and the ids.
pub(crate) fn hash(tokens: &[u32], digest: &[u8], salt: u64) -> u64 {
    let ids = tokens.iter().flat_map(|token| token.to_le_bytes());
    salt.to_le_bytes()
        .into_iter()
        .chain(digest.iter().copied())
        .chain(ids)
        .fold(0xCBF2_9CE4_8422_2325, |hash: u64, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01B3))
}

/// The token after a list; a copy model repeats what followed the last token earlier, but for every fifth length.
fn token_after(tokens: &[u32], digest: &[u8], vocab: u32, copies: bool) -> u32 {
    if let (true, Some((last, earlier))) = (copies && !tokens.len().is_multiple_of(5), tokens.split_last())
        && let Some(at) = earlier.iter().rposition(|token| token == last)
    {
        return tokens[at + 1];
    }
    (hash(tokens, digest, 1) % u64::from(vocab - 1)) as u32
}

impl Model {
    /// The row after a list in a sequence with one of the shape's adapters, or none.
    pub(super) fn row_after(&self, tokens: &[u32], adapter: Option<usize>) -> Vec<f32> {
        if let Some(tiny) = &self.shape.tiny {
            return tiny.row_after(tokens, adapter);
        }
        let digest = adapter.map_or(vec![], |name| self.shape.adapter_digest(name).to_vec());
        let (vocab, salted) = (self.shape.vocab, hash(tokens, &digest, 2));
        let mut row: Vec<f32> =
            (1..=u64::from(vocab)).map(|i| (((salted.wrapping_mul(i)) >> 40) % 1000) as f32 / 1000.0 - 0.5).collect();
        row[token_after(tokens, &digest, vocab, self.shape.drafts > 0) as usize] = 10.0;
        row
    }

    /// The next token of a lane (T-112 .. T-119), picked from the row by the plain sampler that has tests of its own.
    pub(super) fn next_token(&self, lane: &Lane, tokens: &[u32]) -> Result<(u32, Option<Logprobs>), SampleError> {
        let mask = lane.grammar.as_ref().map(|cursor| cursor.mask(self.shape.vocab));
        // T-114.
        let exempt: &[u32] = if self.shape.speaks { &END_IDS } else { &[] };
        let request = SampleRequest {
            temperature: if lane.mode == sampling::GPU_GUMBEL { lane.params.temperature } else { 0.0 },
            top_k: lane.params.top_k,
            top_p: lane.params.top_p,
            min_p: lane.params.min_p,
            position: lane.base.wrapping_add(lane.drawn),
            bias: &lane.bias,
            penalty: Penalty::of(&lane.params, &lane.committed, exempt),
            mask: mask.as_deref(),
            logprobs: lane.logprobs.checked_sub(1).map(|k| u32::from(k.min(20))),
        };
        let mut row = self.row_after(tokens, self.adapter_name(lane.seq));
        let picked = pick(&mut row, &request, &mut Scratch::new())?;
        Ok((picked.token, picked.logprobs))
    }
}
