//! What the plan says is what the process grows by.
//!
//! This file holds one test, so that nobody else's memory is counted.

#![allow(dead_code, reason = "the shared helpers have more than this file uses")]

#[path = "common/model.rs"]
mod model;

use ictus::backend::KvType;
use ictus::backend::cpu::CpuBackend;
use ictus::checkpoint::Checkpoint;
use ictus::runtime::{MemoryPlan, PagedOptions, Runtime};

/// What the plan leaves out: norms and biases in single precision, rows padded to cache lines, matrices padded to 16 rows and a few bytes
/// more of scales, a panel of decoded weights, tables of numbers, and the allocator's own granularity.
const SLACK_BYTES: u64 = 2 << 20;

/// Bytes of address space of this process; none where the system does not say.
fn address_space_bytes() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("VmSize:"))?;
    let kilobytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kilobytes << 10)
}

#[test]
fn address_space_grows_by_what_the_plan_says() {
    let checkpoint = Checkpoint::open(model::file("models/ictus-tiny.gguf")).expect("the model opens");
    // What is freed may stay with the process and be used again: nothing is freed.
    let mut kept = Vec::new();
    for (kv_type, pool_pages, pass_rows) in [(KvType::F32, 1000, 2000), (KvType::F16, 4000, 8), (KvType::F32, 16, 4000)]
    {
        let options = PagedOptions { kv_type, pool_pages, pass_rows, ..model::options(kv_type, 256) };
        let plan = MemoryPlan::new(checkpoint.config(), &options, checkpoint.tensor_bytes()).expect("it fits");
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
