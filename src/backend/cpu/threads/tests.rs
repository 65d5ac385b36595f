//! Jobs on threads of our own and of hosts, well-behaved ones and others.

use core::hint::spin_loop;
use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use super::{HostThreads, Lent, Threads};

/// As many as it says, even where there are fewer processors.
fn own(count: usize) -> Threads {
    Threads::with_most_awake(count, usize::MAX)
}

/// A host that starts a thread per call.
fn scoped() -> HostThreads {
    HostThreads::new(|calls, call| {
        std::thread::scope(|scope| (0..calls).for_each(|index| drop(scope.spawn(move || call(index)))));
    })
}

/// Runs `tasks` tasks and checks that each ran once, as a participant that there is.
fn check(threads: &Threads, tasks: usize) {
    let runs: Vec<AtomicUsize> = (0..tasks).map(|_| AtomicUsize::new(0)).collect();
    let participants = threads.count();
    threads.run(tasks, &|participant: usize, task: usize| {
        assert!(participant < participants);
        runs[task].fetch_add(1, Ordering::Relaxed);
    });
    assert!(runs.iter().all(|runs| runs.load(Ordering::Relaxed) == 1), "{tasks} tasks on {participants}");
}

#[test]
fn every_task_runs_once_whatever_the_number_of_threads() {
    for count in [0, 1, 2, 3, 8] {
        let threads = own(count);
        assert_eq!(threads.count(), count.max(1));
        let lent = Threads::of_host(count, scoped());
        for tasks in [0, 1, 2, 3, 7, 100, 1000] {
            check(&threads, tasks);
            check(&lent, tasks);
        }
        assert_eq!(lent.breach(), None);
    }
}

#[test]
fn short_jobs_in_a_row_lose_no_task() {
    let threads = own(3);
    let sum = AtomicUsize::new(0);
    for job in 0..20_000 {
        threads.run(2 + job % 5, &|_: usize, task: usize| {
            sum.fetch_add(task + 1, Ordering::Relaxed);
        });
    }
    let expected: usize = (0..20_000).map(|job| (1..=2 + job % 5).sum::<usize>()).sum();
    assert_eq!(sum.into_inner(), expected);
}

#[test]
fn no_participant_runs_two_tasks_at_a_time() {
    for threads in [own(4), Threads::of_host(4, scoped())] {
        let inside: Vec<AtomicBool> = (0..5).map(|_| AtomicBool::new(false)).collect();
        for _ in 0..100 {
            threads.run(20, &|participant: usize, _: usize| {
                assert!(!inside[participant].swap(true, Ordering::SeqCst));
                spin_loop();
                inside[participant].store(false, Ordering::SeqCst);
            });
        }
    }
}

#[test]
fn jobs_after_a_pause_find_sleeping_threads_again() {
    let threads = own(3);
    for pause_ms in [0, 1, 20, 0, 20] {
        std::thread::sleep(Duration::from_millis(pause_ms));
        // A task waits for the two others: they run at the same time, on three threads, or never.
        let inside = AtomicUsize::new(0);
        threads.run(3, &|_: usize, _: usize| {
            inside.fetch_add(1, Ordering::SeqCst);
            while inside.load(Ordering::SeqCst) < 3 {
                std::thread::yield_now();
            }
        });
    }
}

/// Workers that have not gone to sleep yet need no waking and may take part, so a busy machine gets several chances to let them sleep.
#[test]
fn no_more_threads_wake_than_may() {
    let threads = Threads::with_most_awake(6, 1);
    let takes_part = || {
        let seen = Mutex::new(std::collections::BTreeSet::new());
        for _ in 0..50 {
            threads.run(12, &|participant: usize, _: usize| {
                seen.lock().unwrap().insert(participant);
                std::thread::sleep(Duration::from_micros(200));
            });
        }
        seen.into_inner().unwrap()
    };
    let mut seen = takes_part();
    for chance in 1..=20 {
        if seen.len() == 2 && seen.contains(&0) {
            return;
        }
        std::thread::sleep(Duration::from_millis(50 * chance));
        seen = takes_part();
    }
    panic!("the caller and one worker: {seen:?}");
}

#[test]
fn a_panic_reaches_the_caller_after_the_others_have_ended() {
    for threads in [own(3), Threads::of_host(3, scoped())] {
        for bad in [0, 1, 5, 19] {
            let inside = AtomicUsize::new(0);
            let run = catch_unwind(AssertUnwindSafe(|| {
                threads.run(20, &|_: usize, task: usize| {
                    inside.fetch_add(1, Ordering::SeqCst);
                    std::thread::sleep(Duration::from_micros(50));
                    inside.fetch_sub(1, Ordering::SeqCst);
                    assert!(task != bad, "task {task}");
                });
            }));
            assert!(run.is_err());
            assert_eq!(inside.load(Ordering::SeqCst), 0, "nobody works on");
            check(&threads, 20);
        }
        assert_eq!(threads.breach(), None, "a task's panic is not the host's");
    }
}

/// A host that breaks a rule: all tasks run once all the same, the breach is told, and the caller works alone from then on.
fn breaks(name: &str, host: HostThreads, breach: &str) {
    let threads = Threads::of_host(3, host);
    for _ in 0..2 {
        check(&threads, 50);
        let told = threads.breach().expect(name);
        assert!(told.contains(breach), "{name}: {told}");
    }
}

#[test]
fn hosts_that_break_a_rule_lose_no_task_and_are_told() {
    breaks("none", HostThreads::new(|_, _| {}), "left a call out");
    breaks("all but one", HostThreads::new(|calls, call| (1..calls).for_each(call)), "left a call out");
    let twice = HostThreads::new(|calls, call| (0..calls).chain(0..calls).for_each(call));
    breaks("twice", twice, "made a call twice");
    let at_once = HostThreads::new(|calls, call| {
        std::thread::scope(|scope| (0..2 * calls).for_each(|index| drop(scope.spawn(move || call(index / 2)))));
    });
    breaks("twice at once", at_once, "made a call twice");
    let beyond = HostThreads::new(|calls, call| (0..=calls).for_each(call));
    breaks("one too many", beyond, "not given");
    breaks("far beyond", HostThreads::new(|_, call| call(usize::MAX)), "not given");
    let panics = HostThreads::new(|_, call| {
        call(0);
        panic!("the host has a bad day");
    });
    breaks("panic", panics, "panicked");
}

/// What C can do and safe Rust cannot: keep the calls.
#[test]
fn calls_outside_the_parallel_for_touch_no_job() {
    let kept: Arc<Mutex<Option<Arc<Lent>>>> = Arc::default();
    let keep = Arc::clone(&kept);
    let threads = Threads::of_host(
        2,
        HostThreads::lending(move |calls, lent| {
            *keep.lock().unwrap() = Some(Arc::clone(lent));
            (0..calls).for_each(|index| lent.call(index));
        }),
    );
    check(&threads, 10);
    assert_eq!(threads.breach(), None);
    kept.lock().unwrap().as_ref().unwrap().call(0);
    assert!(threads.breach().unwrap().contains("outside"));
    check(&threads, 10);
    // Nor when the threads are gone.
    drop(threads);
    kept.lock().unwrap().as_ref().unwrap().call(1);
}

/// Calls that go on when the host has returned: their tasks are waited for.
#[test]
fn calls_that_outlive_the_parallel_for_are_waited_for() {
    let strays = Arc::new(Mutex::new(Vec::new()));
    let started = Arc::clone(&strays);
    let host = HostThreads::lending(move |calls, lent| {
        for index in 0..calls {
            let lent = Arc::clone(lent);
            started.lock().unwrap().push(std::thread::spawn(move || lent.call(index)));
        }
    });
    let threads = Threads::of_host(3, host);
    let (inside, done) = (AtomicUsize::new(0), AtomicUsize::new(0));
    threads.run(12, &|_: usize, _: usize| {
        inside.fetch_add(1, Ordering::SeqCst);
        std::thread::sleep(Duration::from_millis(3));
        done.fetch_add(1, Ordering::SeqCst);
        inside.fetch_sub(1, Ordering::SeqCst);
    });
    assert_eq!((inside.into_inner(), done.into_inner()), (0, 12));
    for stray in strays.lock().unwrap().drain(..) {
        stray.join().unwrap();
    }
    assert!(threads.breach().is_some());
}

/// User and system time of the threads of this process whose name is `name`, in ticks of a hundredth of a second.
#[cfg(target_os = "linux")]
fn ticks(name: &str) -> u64 {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap();
    let stats = tasks.filter_map(|task| std::fs::read_to_string(task.unwrap().path().join("stat")).ok());
    let mine = stats.filter(|stat| stat.contains(name));
    let used = |stat: String| {
        let fields = stat.rsplit(')').next().unwrap().split_whitespace();
        fields.skip(11).take(2).map(|field| field.parse::<u64>().unwrap()).sum::<u64>()
    };
    mine.map(used).sum()
}

#[cfg(target_os = "linux")]
#[test]
fn idle_threads_use_no_time() {
    // The thirteenth worker: other tests have fewer.
    let threads = own(14);
    threads.run(100, &|_: usize, _: usize| spin_loop());
    std::thread::sleep(Duration::from_millis(50));
    let before = ticks("(ictus-cpu-12)");
    std::thread::sleep(Duration::from_millis(300));
    assert!(ticks("(ictus-cpu-12)") <= before + 1, "an idle worker works");
}

/// What a job costs beside its tasks; run by hand, on a quiet machine: `cargo test --release --lib fork_and_join -- --ignored --nocapture`.
#[test]
#[ignore = "a measurement"]
fn fork_and_join_costs() {
    for (name, threads) in [("own", own(2)), ("host, a thread per call", Threads::of_host(2, scoped()))] {
        for work_ns in [0_u64, 10_000] {
            let busy = |_: usize, _: usize| {
                let started = Instant::now();
                while work_ns > 0 && started.elapsed().as_nanos() < u128::from(work_ns) {
                    spin_loop();
                }
            };
            let mut costs: Vec<u64> = (0..2000)
                .map(|_| {
                    let started = Instant::now();
                    threads.run(2, &busy);
                    started.elapsed().as_nanos() as u64 - work_ns
                })
                .collect();
            costs.sort_unstable();
            let [best, median] = [0, costs.len() / 2].map(|at| costs[at]);
            eprintln!("{name}: two tasks of {work_ns} ns cost {median} ns more, at best {best}");
        }
    }
}
