//! The CPU backend's instances, for the tests of its kernels, and weights for them.

use ictus::backend::Backend;
use ictus::backend::cpu::{CpuBackend, InstructionSet};
use ictus::tensor::Tensor;

use super::random::Random;

#[path = "weights.rs"]
mod weights;
pub(crate) use weights::*;

/// The instances that this processor has; says which it has not.
pub(crate) fn instances() -> Vec<InstructionSet> {
    let all = InstructionSet::ALL.iter().copied();
    let (present, absent): (Vec<InstructionSet>, Vec<InstructionSet>) = all.partition(|set| set.is_available());
    for set in absent {
        println!("skipped: this processor has no {}", set.name());
    }
    present
}

pub(crate) fn backend(set: InstructionSet, threads: usize) -> CpuBackend {
    CpuBackend::with_instruction_set(threads, set).expect("the instance is there")
}

/// A buffer that holds these rows.
pub(crate) fn filled<B: Backend>(backend: &B, width: usize, values: &[f32]) -> B::Buffer {
    let rows = values.len() / width;
    let table = backend.matrix(&plain(rows, width, values)).expect("a matrix");
    let tokens: Vec<u32> = (0..rows as u32).collect();
    let mut out = sized(backend, width, rows);
    backend.embed(&table, &tokens, 1.0, &mut out);
    out
}

pub(crate) fn sized<B: Backend>(backend: &B, width: usize, rows: usize) -> B::Buffer {
    let mut buffer = backend.buffer(width);
    backend.resize(&mut buffer, rows).expect("memory");
    buffer
}

pub(crate) fn read<B: Backend>(backend: &B, buffer: &B::Buffer, len: usize) -> Vec<f32> {
    let mut out = vec![0.0; len];
    backend.read(buffer, 0, &mut out).expect("read");
    out
}

/// The product of rows with a weight.
pub(crate) fn product(backend: &CpuBackend, x: &[f32], weight: &Tensor, bias: Option<&[f32]>) -> Vec<f32> {
    let rows = x.len() / weight.cols;
    let matrix = backend.matrix(weight).expect("a matrix");
    let bias = bias.map(|bias| backend.vector(&plain(1, bias.len(), bias)).expect("a vector"));
    let mut out = sized(backend, weight.rows, rows);
    backend.linear(&filled(backend, weight.cols, x), &matrix, bias.as_ref(), &mut out);
    read(backend, &out, rows * weight.rows)
}
