//! The simulator can fail: each kind of bug, planted (planted.cu), is found, whatever the schedule.

use crate::simulator::{Arg, args, device};

/// Runs a kernel over 64 numbers; its output is not written before.
fn run(kernel: &str, blocks: usize, seed: u64) -> Option<Result<usize, String>> {
    let mut device = device()?;
    device.set_seed(seed);
    let x: Vec<f32> = (0..64).map(|i| i as f32).collect();
    let (x, out) = (device.upload(&x), device.room::<f32>(64));
    let x = if kernel == "bad_null" { Arg::Null } else { x.into() };
    let result = device.try_launch(kernel, [blocks, 1, 1], &[out.into(), x]);
    Some(result.map(|()| device.read_some::<f32>(out).1))
}

#[test]
fn cuda_planted_bugs_are_found_in_every_schedule() {
    let cases = [
        ("bad_missing_barrier", "race: read"),
        ("bad_write_after_read", "race: "),
        ("bad_missing_sync_warp", "race: read"),
        ("bad_read_past_end", "out of bounds: read of 4 bytes at offset 256 of device memory, which has 256 bytes"),
        ("bad_read_before_start", "out of bounds: read of 4 bytes at offset -4"),
        ("bad_write_past_shared", "out of bounds: write of 4 bytes at offset 252 of values"),
        ("bad_misaligned", "misaligned: read of 16 bytes"),
        ("bad_misaligned_shared", "misaligned: read of 16 bytes at offset"),
        ("bad_null", "read through a null pointer"),
        ("bad_uninitialised_shared", "uninitialised: read of element"),
        ("bad_uninitialised_memory", "uninitialised: read of element"),
        ("bad_divergent_barrier", "divergence: a barrier at"),
        ("bad_divergent_warp", "divergence: warp_"),
        ("bad_ended_lane", "ended"),
        ("bad_deadlock", "deadlock: 32 threads wait at a barrier, 16 lanes in warp_sum"),
        ("bad_copy_without_wait", "uninitialised: read of element"),
        ("bad_copy_without_commit", "uninitialised: read of element"),
        ("bad_copy_wait_too_short", "uninitialised: read of element"),
        ("bad_copy_without_barrier", "race: read"),
        ("bad_copy_over_what_is_read", "race: read"),
        ("bad_copy_misaligned", "misaligned: copy_async"),
        ("bad_copy_that_outlives_its_thread", "a thread ended before 1 of its copies"),
        ("bad_newer_copy", "uninitialised: read of element"),
        ("bad_divergent_mma", "divergence: mma_"),
        ("bad_matrices_without_barrier", "race: read"),
        ("bad_too_much_shared", "shared arrays of 49168 bytes"),
    ];
    for (kernel, text) in cases {
        for seed in 0..6 {
            let Some(result) = run(kernel, 1, seed) else { return };
            let error = result.expect_err(kernel);
            // Of a race either access may come first; that of a reader of fresh memory is a read of what nobody wrote.
            let others = [text.replace("race: read", "race: write"), text.replace("race: read", "uninitialised: read")];
            let is_told = error.contains(text) || others.iter().any(|text| error.contains(text));
            assert!(is_told, "{kernel}, seed {seed}: {error}");
            assert!(error.starts_with(kernel), "{error}");
        }
    }
}

#[test]
fn cuda_races_between_blocks_are_found() {
    for kernel in ["bad_race_of_blocks", "bad_block_reads_another"] {
        for seed in 0..6 {
            let Some(mut device) = device() else { return };
            device.set_seed(seed);
            let (out, x) = (device.upload(&[1.0_f32; 192]), device.upload(&[2.0_f32; 64]));
            let error = device.try_launch(kernel, [3, 1, 1], args![out, x]).expect_err(kernel);
            assert!(error.contains("race: "), "{error}");
            // One block alone is nobody's race.
            device.try_launch(kernel, [1, 1, 1], args![out, x]).expect("one block");
        }
    }
}

#[test]
fn cuda_kernels_without_a_bug_pass() {
    for kernel in ["good_shared_sum", "good_warp_exchange", "good_copy", "good_two_copies"] {
        for seed in 0..6 {
            let Some(result) = run(kernel, 1, seed) else { return };
            assert_eq!(result, Ok(64), "{kernel}");
        }
    }
}

#[test]
fn cuda_output_that_nobody_wrote_is_told() {
    let Some(result) = run("bad_forgotten_output", 1, 3) else { return };
    assert_eq!(result, Ok(63));
}

/// The order of a sum shows in its bits, and random schedules show the order.
#[test]
fn cuda_order_dependent_sum_has_other_bits_in_another_schedule() {
    let Some(mut device) = device() else { return };
    let x: Vec<f32> = (0..64).map(|i| 1.0 / (i as f32 + 3.0)).collect();
    let mut sums: Vec<u32> = Vec::new();
    for seed in 0..8 {
        device.set_seed(seed);
        let (out, x) = (device.upload(&[0.0_f32]), device.upload(&x));
        device.launch("bad_order_dependent", [1, 1, 1], args![out, x]);
        sums.push(device.read::<f32>(out)[0].to_bits());
    }
    sums.sort_unstable();
    sums.dedup();
    assert!(sums.len() > 1, "eight schedules, one sum: {sums:?}");
}

/// An error names the line of the kernel, where addr2line is installed.
#[test]
fn cuda_error_names_the_line() {
    if std::process::Command::new("addr2line").arg("--version").output().is_err() {
        println!("skipped: lines of simulated errors: no addr2line (package binutils)");
        return;
    }
    let Some(result) = run("bad_read_past_end", 1, 0) else { return };
    let source = include_str!("planted.cu");
    let line = source.lines().position(|line| line.contains("bad_read_past_end(")).expect("it is there") + 1;
    let error = result.expect_err("a bug");
    assert!(error.contains(&format!("planted.cu:{line}")), "{error}");
}
