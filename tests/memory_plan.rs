//! What the plan says is what the process grows by.
//!
//! This file holds one test, so that nobody else's memory is counted.

#![allow(dead_code, reason = "the shared helpers have more than this file uses")]

#[path = "common/model.rs"]
mod model;

use ictus::backend::cpu::CpuBackend;
use ictus::backend::{Arithmetic, Backend, KvType};
use ictus::checkpoint::Checkpoint;
use ictus::runtime::{MemoryPlan, PagedOptions, Runtime};
use ictus::tensor::{Bytes, DType, Tensor};

/// What the plan leaves out: rows padded to cache lines, a panel of decoded weights, tables of numbers, and the allocator's own
/// granularity.
const SLACK_BYTES: u64 = 1 << 20;

/// Bytes of address space of this process; none where the system does not say.
fn address_space_bytes() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("VmSize:"))?;
    let kilobytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kilobytes << 10)
}

/// What a matrix may take beside its tiles: a cache line, and the pages of the system at both ends.
const MATRIX_SLACK_BYTES: u64 = 16 << 10;

/// A matrix takes what [`CpuBackend::weights_bytes`] says.
fn matrices_take_what_is_said() {
    let backend = CpuBackend::new(1);
    // One row more than whole groups. Nothing is freed: what is could be used again, unseen.
    let (rows, cols) = (257, 1024);
    let zeros = vec![0; rows * cols * size_of::<f32>()];
    let mut kept = Vec::new();
    for dtype in [DType::F32, DType::F16, DType::Q4_0, DType::Q4_1, DType::Q5_0, DType::Q8_0, DType::Q4_K, DType::Q6_K]
    {
        let data = Bytes::copy_aligned(&zeros[..rows * dtype.row_bytes(cols).expect("whole units")]);
        let tensor = Tensor { dtype, rows, cols, data };
        let said = CpuBackend::weights_bytes(core::iter::once(&tensor));
        // The scratch of the threads comes with the first one.
        let first = backend.matrix(&tensor).expect("memory");
        let Some(before) = address_space_bytes() else { return };
        let matrix = backend.matrix(&tensor).expect("memory");
        let grown = address_space_bytes().expect("as before") - before;
        println!("{dtype:?}: said {said}, grew by {grown}");
        assert!(grown.abs_diff(said) <= MATRIX_SLACK_BYTES, "{dtype:?}: {grown}, not {said}");
        kept.push((tensor, first, matrix));
    }
    std::mem::forget((zeros, kept));
}

#[test]
fn address_space_grows_by_what_the_plan_says() {
    matrices_take_what_is_said();
    let checkpoint = Checkpoint::open(model::file("models/ictus-tiny.gguf")).expect("the model opens");
    // What is freed may stay with the process and be used again: nothing is freed.
    let mut kept = Vec::new();
    for (kv_type, pool_pages, pass_rows) in [(KvType::F32, 1000, 2000), (KvType::F16, 4000, 8), (KvType::F32, 16, 4000)]
    {
        let options = PagedOptions { kv_type, pool_pages, pass_rows, ..model::options(kv_type, 256) };
        let weights_bytes = CpuBackend::weights_bytes(checkpoint.tensors().map(|(_, tensor)| tensor));
        let mut plan = MemoryPlan::new(checkpoint.config(), &options, weights_bytes).expect("it fits");
        let widest = ictus::model::widest_input(checkpoint.config());
        plan.activation_bytes += CpuBackend::input_bytes(Arithmetic::Exact, pass_rows, widest);
        let Some(before) = address_space_bytes() else {
            println!("skipped: this system does not say how large a process is");
            return;
        };
        let mut runtime = model::runtime(CpuBackend::new(1), &checkpoint, &options);
        let loaded = address_space_bytes().expect("as before") - before;
        println!("{pool_pages} pages, {pass_rows} rows: planned {}, grew by {loaded}", plan.total_bytes());
        // The file is mapped already; its weights are held once more, in tiles.
        assert!(plan.allocated_bytes() > 4 * SLACK_BYTES, "large enough to tell");
        assert!(loaded.abs_diff(plan.total_bytes()) < SLACK_BYTES);
        let sequence = runtime.seq_create().expect("a slot");
        model::last_row(&mut runtime, sequence, &[1; 200]);
        let stepped = address_space_bytes().expect("as before") - before;
        assert!(stepped.abs_diff(plan.total_bytes()) < SLACK_BYTES, "a step takes no more: {stepped}");
        kept.push(runtime);
    }
}
