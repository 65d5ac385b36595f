//! What an engine costs that does nothing, and what more threads than processors cost.

use std::time::Duration;

use ictus::ModelOptions;

use crate::host::{Failure, Host, Source, tokens};

/// How long an engine is watched.
const WATCHED: Duration = Duration::from_secs(1);
/// What the threads of a pool are given to find out that there is no work, a hundred times what they take.
const SETTLED: Duration = Duration::from_millis(20);

/// Of all threads of this process but the one that watches.
pub struct Idle {
    /// Before the first tick, or behind one.
    pub state: &'static str,
    pub cpu_us: f64,
    /// How often a thread went to sleep: once for each time that it woke.
    pub sleeps: u64,
}

/// Processor time and sleeps of the other threads of this process so far; none where the system does not say. Asking takes time too, which is
/// why the one that asks is left out.
fn spent() -> Option<(Duration, u64)> {
    let asks = std::fs::read_link("/proc/thread-self").ok()?;
    let mut all = (Duration::ZERO, 0);
    for thread in std::fs::read_dir("/proc/self/task").ok()? {
        let path = thread.ok()?.path();
        if path.file_name() == asks.file_name() {
            continue;
        }
        let times = std::fs::read_to_string(path.join("schedstat")).ok()?;
        all.0 += Duration::from_nanos(times.split_whitespace().next()?.parse().ok()?);
        let status = std::fs::read_to_string(path.join("status")).ok()?;
        let sleeps = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"))?;
        all.1 += sleeps.trim().parse::<u64>().ok()?;
    }
    Some(all)
}

fn watch(state: &'static str) -> Option<Idle> {
    std::thread::sleep(SETTLED);
    let before = spent()?;
    std::thread::sleep(WATCHED);
    let after = spent()?;
    let cpu_us = after.0.saturating_sub(before.0).as_secs_f64() * 1e6;
    Some(Idle { state, cpu_us, sleeps: after.1.saturating_sub(before.1) })
}

/// An open engine with all its threads: before the first tick, and behind ticks that had work for each of them. None where the system
/// does not say.
pub fn idle(source: Source<'_>, options: &ModelOptions) -> Result<Option<[Idle; 2]>, Failure> {
    let mut host = Host::open(source, options)?;
    let Some(opened) = watch("opened") else { return Ok(None) };
    host.prompt(1, &tokens(64, host.vocab(), 1))?;
    host.steps(&[1], 4)?;
    Ok(watch("between ticks").map(|between| [opened, between]))
}

/// Threads for each processor.
pub const TIMES: [u32; 3] = [1, 2, 4];

/// Seconds of `steps` steps of one lane, of each run, with [`TIMES`] as many threads as processors. The engines are open side by side and take
/// turns, so that all of them meet the same moments of the machine.
pub fn oversubscription(
    source: Source<'_>,
    options: &ModelOptions,
    processors: u32,
    steps: usize,
    runs: usize,
) -> Result<[Vec<f64>; 3], Failure> {
    let open = |times: u32| Host::open(source, &ModelOptions { threads: times * processors, ..options.clone() });
    let mut hosts = [open(TIMES[0])?, open(TIMES[1])?, open(TIMES[2])?];
    let mut seconds = [const { Vec::new() }; 3];
    for run in 0..=runs {
        for (host, seconds) in hosts.iter_mut().zip(&mut seconds) {
            host.prompt(1, &tokens(1, host.vocab(), 1))?;
            let taken = host.steps(&[1], steps)?;
            host.retire(&[1])?;
            // The first is a warm-up.
            if run > 0 {
                seconds.push(taken);
            }
        }
    }
    Ok(seconds)
}
