//! The CUDA kernels without a device: kernels/*.cu compiled for the simulator (kernels/sim), each compared with the CPU's own room or with
//! plain sums in double precision, over odd shapes and in several schedules.
//!
//! Needs a C++ compiler, else every test says `skipped`. What the simulator can and cannot show: docs/kernels.md.

#![allow(dead_code, reason = "the shared helpers have more than this file uses")]

#[path = "cuda/attention.rs"]
mod attention;
#[path = "cuda/attention_fast.rs"]
mod attention_fast;
#[path = "cuda/columns.rs"]
mod columns;
#[path = "cuda/fast.rs"]
mod fast;
#[path = "cuda/linear.rs"]
mod linear;
#[path = "cuda/planted.rs"]
mod planted;
#[path = "cuda/ptx.rs"]
mod ptx;
#[path = "common/random.rs"]
mod random;
#[path = "cuda/rows.rs"]
mod rows;
#[path = "cuda/sampling.rs"]
mod sampling;
#[path = "cuda/simulator.rs"]
mod simulator;
#[path = "cuda/tensor_cores.rs"]
mod tensor_cores;
#[path = "common/weights.rs"]
mod weights;

use random::Random;
