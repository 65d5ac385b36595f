//! What is done element by element: gates, sums, rows of the embedding.

use super::exp::exp;
use super::unpack::unpack;
use crate::backend::Gate;
use crate::backend::cpu::memory::Matrix;
use crate::backend::cpu::simd::{Simd, per_isa};

per_isa! {
    /// `gate = act(gate) * up`.
    fn gate = gate_row(gate: &mut [f32], up: &[f32], act: Gate)
}

per_isa! {
    /// `out = row of table * scale`.
    fn embed = embed_row(table: &Matrix, row: usize, scale: f32, out: &mut [f32])
}

#[inline(always)]
fn gate_row<S: Simd>(gate: &mut [f32], up: &[f32], act: Gate) {
    match act {
        Gate::Silu => {
            for (gate, up) in gate.iter_mut().zip(up) {
                *gate = *gate / (1.0 + exp(-*gate)) * up;
            }
        }
        // 0.5 x (1 + tanh u) = x / (1 + e^(-2u)), which does not cancel for small u.
        Gate::GeluTanh => {
            // 2 sqrt(2 / pi)
            const TWICE_ROOT: f32 = 1.595_769_2;
            for (gate, up) in gate.iter_mut().zip(up) {
                let x = *gate;
                let u = TWICE_ROOT * (x + 0.044_715 * x * x * x);
                *gate = x / (1.0 + exp(-u)) * up;
            }
        }
    }
}

#[inline(always)]
fn embed_row<S: Simd>(table: &Matrix, row: usize, scale: f32, out: &mut [f32]) {
    unpack::<S>(table.dtype(), table.row(row), out);
    for out in out {
        *out *= scale;
    }
}
