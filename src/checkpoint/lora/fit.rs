#![forbid(unsafe_code)]
//! Fits the factors of an adapter to a model: pairs, shapes, ranks, the order of rows.
//!
//! # Invariants
//! Afterwards every change has both factors with the shapes of its matrix, all values are finite, and no matrix is changed twice.

use std::collections::BTreeMap;

use super::super::assemble::layer_name;
use super::super::config::{ModelConfig, RopePairing};
use super::error::LoraError;
use super::{Change, Factor, Raw, RawFactor, Target};
use crate::tensor::{Tensor, dequantise_row};

/// Largest rank accepted.
pub const MAX_RANK: usize = 1 << 12;

/// The two factors of a matrix, as far as they were found.
#[derive(Default)]
struct Pair {
    a: Option<RawFactor>,
    b: Option<RawFactor>,
}

/// Checks an adapter against a model.
pub(super) fn fit(raw: Raw, config: &ModelConfig) -> Result<Vec<Change>, LoraError> {
    let Raw { pairing, scale, stated_rank, factors } = raw;
    let mut pairs: BTreeMap<(usize, Target), Pair> = BTreeMap::new();
    for factor in factors {
        let place = place(&factor, config)?;
        let pair = pairs.entry(place).or_default();
        let half = if factor.factor == Factor::A { &mut pair.a } else { &mut pair.b };
        if half.is_some() {
            return Err(LoraError::Duplicate { tensor: factor.name });
        }
        *half = Some(factor);
    }
    if pairs.is_empty() {
        return Err(LoraError::Empty);
    }
    let exchange = exchange(pairing, config)?;
    let mut changes = Vec::with_capacity(pairs.len());
    for ((layer, target), pair) in pairs {
        let (a, b) = match pair {
            Pair { a: Some(a), b: Some(b) } => (a, b),
            Pair { a: Some(one), .. } | Pair { b: Some(one), .. } => return Err(LoraError::Alone { tensor: one.name }),
            Pair { a: None, b: None } => continue,
        };
        let rank = rank(&a, stated_rank)?;
        let (outputs, inputs) = target.shape(config);
        let a = values(&a, rank, inputs)?;
        let mut b = values(&b, outputs, rank)?;
        if let Some(exchange) = exchange.filter(|_| matches!(target, Target::Query | Target::Key)) {
            b = exchange.rows(&b, rank, config.head_dim);
        }
        let scale = scale.scale(rank);
        if !scale.is_finite() {
            return Err(LoraError::Scale { got: scale });
        }
        changes.push(Change { layer, target, rank, scale, a, b });
    }
    Ok(changes)
}

/// Layer and target of a factor.
fn place(factor: &RawFactor, config: &ModelConfig) -> Result<(usize, Target), LoraError> {
    let refused = |reason| LoraError::Target { tensor: factor.name.clone(), reason };
    let Some((layer, rest)) = layer_name(&factor.matrix) else {
        return Err(refused(match &*factor.matrix {
            "token_embd.weight" => "changes of the embedding are not computed",
            "output.weight" => "changes of the output matrix are not computed",
            _ => "this model has no such matrix",
        }));
    };
    if layer >= config.layers {
        return Err(refused("the model has fewer layers"));
    }
    let target = Target::ALL.into_iter().find(|target| target.name() == rest);
    target.map(|target| (layer, target)).ok_or_else(|| refused("this model has no such matrix, or it is a vector"))
}

/// The rank of a pair: the rows of `A`.
fn rank(a: &RawFactor, stated: Option<usize>) -> Result<usize, LoraError> {
    let got = a.tensor.rows;
    let refused = |expected: String| LoraError::Rank { place: a.name.clone(), got: got as u64, expected };
    if got == 0 || got > MAX_RANK {
        return Err(refused(format!("1 to {MAX_RANK} expected")));
    }
    match stated {
        Some(stated) if stated != got => Err(refused(format!("the document says {stated}"))),
        _ => Ok(got),
    }
}

fn values(factor: &RawFactor, rows: usize, cols: usize) -> Result<Vec<f32>, LoraError> {
    let Tensor { dtype, rows: got_rows, cols: got_cols, ref data } = factor.tensor;
    let tensor = || factor.name.clone();
    if (got_rows, got_cols) != (rows, cols) {
        return Err(LoraError::Shape { tensor: tensor(), rows, cols, got_rows, got_cols });
    }
    // The product of sizes that tensors of the model have, or that a file backs with its bytes.
    let mut values = vec![0.0; rows * cols];
    dequantise_row(dtype, data.as_slice(), &mut values).map_err(|_| LoraError::Shape {
        tensor: tensor(),
        rows,
        cols,
        got_rows,
        got_cols,
    })?;
    match values.iter().all(|value| value.is_finite()) {
        true => Ok(values),
        false => Err(LoraError::NotFinite { tensor: tensor() }),
    }
}

/// The exchange of rows that brings q and k of an adapter into the model's order; none when they have it.
fn exchange(adapter: Option<RopePairing>, config: &ModelConfig) -> Result<Option<Exchange>, LoraError> {
    let model = config.rope.pairing;
    let exchange = match (adapter, model) {
        (Some(RopePairing::Halves), RopePairing::Interleaved) => Exchange::Interleave,
        (Some(RopePairing::Interleaved), RopePairing::Halves) => Exchange::Split,
        _ => return Ok(None),
    };
    let (dims, head_dim) = (config.rope.dims, config.head_dim);
    if dims != head_dim {
        return Err(LoraError::PartialRotation { dims, head_dim });
    }
    Ok(Some(exchange))
}

/// How the rows of each head change places.
#[derive(Clone, Copy)]
enum Exchange {
    /// Row `i` of the first half and row `i` of the second become neighbours.
    Interleave,
    /// Neighbours part into the two halves.
    Split,
}

impl Exchange {
    fn rows(self, values: &[f32], cols: usize, head_dim: usize) -> Vec<f32> {
        let half = head_dim / 2;
        let mut out = Vec::with_capacity(values.len());
        for head in values.chunks(head_dim * cols) {
            for row in 0..head_dim {
                let from = match self {
                    Self::Interleave => row % 2 * half + row / 2,
                    Self::Split => row % half * 2 + row / half,
                };
                out.extend_from_slice(&head[from * cols..][..cols]);
            }
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exchanges_of_rows_undo_each_other() {
        let rows: Vec<f32> = (0..16).map(|i| i as f32).collect();
        let interleaved = Exchange::Interleave.rows(&rows, 2, 4);
        // Two heads of four rows of two: 0 1 2 3 become 0 2 1 3.
        assert_eq!(interleaved[..8], [0.0, 1.0, 4.0, 5.0, 2.0, 3.0, 6.0, 7.0]);
        assert_eq!(Exchange::Split.rows(&interleaved, 2, 4), rows);
    }
}
