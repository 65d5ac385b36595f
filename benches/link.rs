//! What a tick costs more when the engine is another process: every lane decodes one token over a runtime whose step is free.
//!
//! `cargo bench --bench link`. The worker is this program, started again with `ICTUS_BENCH_WORKER` set. The engine of both rows is the
//! same; the difference between them is the link: a plan and its events encoded and decoded, two wake-ups, the rings of two sides.

#[cfg(all(feature = "worker", target_os = "linux"))]
mod linux {
    use std::os::fd::{FromRawFd, OwnedFd};

    use criterion::Criterion;
    use ictus::engine::Engine;
    use ictus::executor::Executor;
    use ictus::record::{RecordArena, TickPlan};
    use ictus::testing::{FreeRuntime, Harness};
    use ictus::worker::client::{RemoteEngine, RemoteOptions, WorkerCommand};
    use ictus::worker::server::{ServerOptions, WorkerServer};

    const VARIABLE: &str = "ICTUS_BENCH_WORKER";
    /// Lanes that decode at once.
    const LANES: [u64; 3] = [1, 64, 256];
    /// Prompt tokens of each lane.
    const PROMPT_TOKENS: u32 = 8;

    /// Serves, when the program was started as a worker.
    pub(super) fn serve_if_worker() {
        let lanes = std::env::var(VARIABLE).ok().and_then(|lanes| lanes.parse().ok());
        let Some(lanes) = lanes else { return };
        // SAFETY: the host has put the sockets there, and nobody else in this process uses the numbers.
        let frames = unsafe { OwnedFd::from_raw_fd(3) };
        // SAFETY: as above.
        let descriptors = unsafe { OwnedFd::from_raw_fd(4) };
        let engine = Box::new(Executor::new(FreeRuntime::new(lanes)));
        let served = WorkerServer::new(engine, ServerOptions::new(4096, 256), frames, descriptors).serve();
        std::process::exit(i32::from(served.is_err()));
    }

    /// An engine whose lanes have their prompts, and a plan that decodes all of them.
    fn decoding<E: Engine>(engine: E, lanes: u64) -> (Harness<E>, TickPlan, RecordArena) {
        let mut harness = Harness::with_engine(engine).with_max_decode_lanes(lanes as u32);
        let tag = |lane: u64| lane.wrapping_mul(0x9E37_79B9_7F4A_7C15);
        for lane in 0..lanes {
            let prompt = harness.prompt(&[1; PROMPT_TOKENS as usize]);
            let plan = harness.plan().admit(tag(lane), prompt).prefill(tag(lane), 0, PROMPT_TOKENS);
            harness.tick_ok(plan);
        }
        let plan = (0..lanes).fold(harness.plan(), |plan, lane| plan.decode(tag(lane), 1));
        let (plan, arena) = plan.build();
        (harness, plan, arena)
    }

    fn measure<E: Engine>(criterion: &mut Criterion, name: &str, lanes: u64, engine: E) {
        let (mut harness, mut plan, arena) = decoding(engine, lanes);
        criterion.bench_function(&format!("{name}/{lanes}"), |bencher| {
            bencher.iter(|| {
                plan.plan_seq += 1;
                let events = harness.engine.tick(&plan, &arena, &mut harness.rings);
                assert_eq!(events.map_or(0, |events| events.emits.len()) as u64, lanes, "every lane emits");
            });
        });
    }

    pub(super) fn link(criterion: &mut Criterion) {
        let program = std::env::current_exe().expect("the path of the bench");
        for lanes in LANES {
            measure(criterion, "in process", lanes, Executor::new(FreeRuntime::new(lanes as u32)));
            let command = WorkerCommand::new(&program).without_descriptor_flags().variable(VARIABLE, lanes.to_string());
            let engine = RemoteEngine::start(command, RemoteOptions::default()).expect("a worker");
            measure(criterion, "over the link", lanes, engine);
        }
    }
}

fn main() {
    #[cfg(all(feature = "worker", target_os = "linux"))]
    {
        linux::serve_if_worker();
        let mut criterion = criterion::Criterion::default().configure_from_args();
        linux::link(&mut criterion);
        criterion.final_summary();
    }
}
