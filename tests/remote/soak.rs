//! A host that runs for long: admissions, ticks, forks, snapshots, restores, and workers that are killed. What it holds stays the same: memory
//! of host and worker, descriptors, mappings, children.
//!
//! `ICTUS_SOAK_SECONDS` says how long (20 in a usual run). It is accelerated: the fake runtime computes nothing, so a second has some
//! hundreds of ticks and as many tokens as an hour of a small model.

use std::time::{Duration, Instant};

use ictus::engine::Engine;
use ictus::record::TokenRange;
use ictus::record::constant::{op_state, sampling};
use ictus::worker::client::RemoteOptions;
use ictus::worker::socket::open_descriptors;

use crate::kills::{Run, Subject, in_its_own_process, left_behind, number};
use crate::options;
use crate::random::Random;
use crate::recovery::kill;

/// What the two processes hold.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
struct Held {
    host_kib: u64,
    /// The most that a worker held in this part.
    worker_kib: u64,
    descriptors: usize,
    segments: usize,
    children: usize,
}

/// Resident memory of a process in kilobytes; none when it is gone.
fn resident_kib(process: &str) -> Option<u64> {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).ok()?;
    let line = status.lines().find(|line| line.starts_with("VmRSS:"))?;
    line.split_whitespace().nth(1)?.parse().ok()
}

fn wait(run: &mut Run, op: u64) -> u8 {
    loop {
        let state = run.engine.op_poll(op).expect("known").state;
        if state >= op_state::DONE {
            return state;
        }
        run.engine.pump();
    }
}

/// Exports a lane, and takes the bytes in again beside it. A worker that dies meanwhile makes it come to nothing.
fn move_state(run: &mut Run, random: &mut Random) -> Option<u64> {
    let lanes: Vec<u64> = run
        .live
        .iter()
        .filter(|(_, it)| it.mode != sampling::HOST && !it.got.is_empty())
        .map(|(&tag, _)| tag)
        .collect();
    let lane = run.engine.lane_sequence(*lanes.get(random.below(lanes.len().max(1)))?)?;
    let boundary = run.engine.space_snapshot_boundary(lane, 1, u64::MAX).ok().filter(|&boundary| boundary > 0)?;
    let size = run.engine.space_export_size(lane, 1, TokenRange { start: 0, end: boundary }, 0).ok()?;
    let op = run.engine.space_snapshot(lane, 1, boundary, size.bytes, size.sizing_gen).ok()?;
    if wait(run, op) != op_state::DONE {
        return None;
    }
    // An output stays until somebody takes it, in process too: whoever leaves them holds more and more.
    let sealed = run.engine.take_op_output(op)?;
    let bare = run.engine.create_sequence().ok()?;
    let op = run.engine.space_restore(bare, 1, &sealed).ok()?;
    let restored = wait(run, op) == op_state::DONE;
    let _ = run.engine.free_sequence(bare);
    restored.then_some(sealed.len() as u64)
}

fn fork(run: &mut Run, random: &mut Random) -> Option<()> {
    let tags: Vec<u64> = run.live.keys().copied().collect();
    let lane = run.engine.lane_sequence(*tags.get(random.below(tags.len().max(1)))?)?;
    let child = run.engine.seq_fork(lane, 0).ok()?;
    let bias = run.engine.logit_bias_create(&[1, 2], &[1.0, -1.0]).ok();
    let _ = run.engine.free_sequence(child);
    bias.and_then(|bias| run.engine.logit_bias_free(bias).ok())
}

#[test]
#[ignore = "measures the whole process: alone, by `what_is_held_stays_the_same_over_a_long_run`"]
fn soak_in_a_process_of_its_own() {
    const PARTS: u32 = 8;
    let seconds = number("ICTUS_SOAK_SECONDS", 20).max(u64::from(PARTS));
    let mut random = Random::new("soak_in_a_process_of_its_own");
    let before = open_descriptors().expect("counted");
    let generous = RemoteOptions { restarts: 1000, backoff: Duration::from_millis(1), ..options() };
    let mut run = Run::new(Subject::fake(), generous);
    let (start, part) = (Instant::now(), Duration::from_secs(seconds) / PARTS);
    let (mut ticks, mut kills, mut moved, mut forks, mut bytes) = (0u64, 0u64, 0u64, 0u64, 0u64);
    let mut next_kill = part / 2;
    let mut all: Vec<Held> = Vec::new();
    let mut most_of_worker = 0;
    while all.len() < PARTS as usize {
        run.step(&mut random, true);
        run.retire(&mut random);
        ticks += 1;
        if random.below(10) == 0 {
            forks += u64::from(fork(&mut run, &mut random).is_some());
        }
        if random.below(15) == 0
            && let Some(size) = move_state(&mut run, &mut random)
        {
            moved += 1;
            bytes += size;
        }
        if ticks % 64 == 0 {
            let worker = run.engine.process_id().and_then(|worker| resident_kib(&worker.to_string()));
            most_of_worker = most_of_worker.max(worker.unwrap_or(0));
        }
        if start.elapsed() > next_kill {
            run.engine.process_id().into_iter().for_each(kill);
            kills += 1;
            next_kill += part.min(Duration::from_secs(3));
        }
        if start.elapsed() > part * (all.len() as u32 + 1) && run.engine.process_id().is_some() {
            let (segments, children) = left_behind();
            let host_kib = resident_kib("self").expect("this process lives");
            let descriptors = open_descriptors().expect("counted");
            all.push(Held { host_kib, worker_kib: most_of_worker, descriptors, segments, children });
            println!("{:4} s: {:?}", start.elapsed().as_secs(), all.last().expect("one"));
            most_of_worker = 0;
        }
    }
    println!(
        "{seconds} s: {ticks} ticks, {} requests, {} tokens, {forks} forks, {moved} moves of state ({} KiB), {kills} kills, {} workers, {} tokens from snapshots",
        run.finished,
        run.tokens,
        bytes >> 10,
        run.engine.started(),
        run.engine.restored_tokens(),
    );
    // The first parts warm up; then nothing grows but by what the allocator keeps.
    let (early, late) = (&all[1..4], &all[5..]);
    let most = |parts: &[Held], of: fn(&Held) -> u64| parts.iter().map(of).max().expect("parts");
    assert!(most(late, |held| held.host_kib) < most(early, |held| held.host_kib) + 8192, "the host grows");
    assert!(most(late, |held| held.worker_kib) < most(early, |held| held.worker_kib) + 16384, "the worker grows");
    // Buffers of exports come and go with their lanes: one for each at most.
    let most_descriptors = most(early, |held| held.descriptors as u64) + 64;
    assert!(most(late, |held| held.descriptors as u64) <= most_descriptors, "descriptors");
    assert!(most(late, |held| held.segments as u64) <= most(early, |held| held.segments as u64) + 64, "mappings");
    assert!(all.iter().all(|held| held.children == 1), "one worker at a time");
    assert!(kills >= 4 && run.engine.started() > kills / 2 && moved > 0 && forks > 0 && run.finished > 0);
    let _ = run.engine.close();
    assert_eq!(left_behind(), (0, 0), "segments and children");
    assert_eq!(open_descriptors().expect("counted"), before, "descriptors");
}

#[test]
fn what_is_held_stays_the_same_over_a_long_run() {
    in_its_own_process("soak::soak_in_a_process_of_its_own");
}
