//! Memory and kernels are there before the first step: no step asks for any, and whoever is refused some is told so and goes on.

use ictus::backend::cuda::{CudaBackend, CudaGroup};
use ictus::backend::{Backend, KvShape, Span};
use ictus::record::constant::encoding;
use ictus::runtime::{Answer, Answers, Feed, Input, ModelRuntime, PagedOptions, RuntimeError, SeqHandle, Want};
use ictus::sample::{Penalty, SampleRequest};

use super::lora::Lora;
use super::*;

/// What the driver says.
const OUT_OF_MEMORY: i32 = 2;
/// Where memory is asked for: device, host, compiled kernels.
const POINTS: [Point; 3] = [Point::Alloc, Point::HostAlloc, Point::Module];

/// Everything that a host can ask of a runtime between opening and its end, but for what loads something: the answers.
fn all_kinds_of_work<B: Backend>(runtime: &mut ModelRuntime<B>, adapter: u64) -> Vec<(Vec<Answer>, Vec<u32>)> {
    let mask: Vec<u32> = (0..9).map(|word| 0x7ABC_DEF1 ^ (word * 0x1111)).collect();
    let drawn =
        SampleRequest { temperature: 0.9, top_k: 30, top_p: 0.9, min_p: 0.01, position: 3, ..Default::default() };
    let penalty = Penalty { repeat: 1.2, presence: 0.1, frequency: 0.2, window: &[3, 9, 3], exempt: &[] };
    let requests = [
        SampleRequest::default(),
        SampleRequest { mask: Some(&mask), logprobs: Some(5), ..drawn },
        SampleRequest { bias: &[(7, 3.0)], penalty: Some(penalty), ..drawn },
        // The host's, from a row that is read back.
        SampleRequest { temperature: 1e-3, ..drawn },
    ];
    let mut seen = Vec::new();
    let mut answers = Answers::new();
    let mut step = |runtime: &mut ModelRuntime<B>, feeds: &[(SeqHandle, &[u32], Want<'_>)]| {
        let feeds: Vec<Feed<'_>> = feeds
            .iter()
            .map(|&(sequence, tokens, want)| Feed { sequence, input: Input::Tokens(tokens), want })
            .collect();
        runtime.step(&feeds, &mut answers).expect("the step runs");
        let rows = (0..8).map_while(|row| answers.row(row)).flatten().map(|value| value.to_bits()).collect();
        seen.push((answers.as_slice().to_vec(), rows));
    };
    let ids: Vec<u32> = (0..40).map(|i| 3 + i * 11 % 250).collect();
    let sequences: Vec<SeqHandle> = (0..4).map(|_| runtime.seq_create().expect("a sequence")).collect();
    runtime.seq_adapt(sequences[3], adapter).expect("an empty sequence takes an adapter");
    // Many rows, few, one each, all rows of a feed.
    step(runtime, &[(sequences[0], &ids[..37], Want::LastRow), (sequences[1], &ids[..3], Want::EveryRow)]);
    step(runtime, &[(sequences[2], &ids[..5], Want::Nothing), (sequences[3], &ids[..9], Want::LastRow)]);
    for round in 0..4 {
        let feeds: Vec<(SeqHandle, &[u32], Want<'_>)> =
            (0..4).map(|i| (sequences[i], &ids[round + i..=round + i], Want::Token(requests[i]))).collect();
        step(runtime, &feeds);
    }
    // A fork writes into a page that it shares; state goes out and comes in.
    let fork = runtime.seq_create().expect("a sequence");
    runtime.seq_copy(sequences[0], fork, 35).expect("the source has it");
    step(runtime, &[(fork, &ids[..2], Want::LastRow)]);
    runtime.seq_free(fork);
    for form in [encoding::LOSSLESS, encoding::Q8, encoding::Q4] {
        let payload = runtime.seq_export(sequences[0], 20, form).expect("it is offered");
        if form == encoding::LOSSLESS {
            let target = runtime.seq_create().expect("a sequence");
            assert_eq!(runtime.seq_import(target, &payload), Ok(20));
            step(runtime, &[(target, &ids[..1], Want::LastRow)]);
            runtime.seq_free(target);
        }
    }
    seen.extend(steps_ahead(runtime, &sequences, &requests));
    sequences.into_iter().for_each(|sequence| runtime.seq_free(sequence));
    seen
}

/// Steps that feed each other on the device, two under way, where the backend has them.
fn steps_ahead<B: Backend>(
    runtime: &mut ModelRuntime<B>,
    sequences: &[SeqHandle],
    requests: &[SampleRequest<'_>],
) -> Vec<(Vec<Answer>, Vec<u32>)> {
    let mut seen = Vec::new();
    let mut answers = Answers::new();
    let feed =
        |at: usize| Feed { sequence: sequences[at], input: Input::Tokens(&[9]), want: Want::Token(requests[at]) };
    let again = |at: usize| Feed { input: Input::Picked { feed: at }, ..feed(at) };
    for _ in 0..3 {
        let begun = runtime.step_begin(&[0, 1, 2].map(feed));
        if begun == Err(RuntimeError::Unsupported) {
            break;
        }
        begun.expect("it begins");
        runtime.step_begin(&[2, 0, 1].map(again)).expect("it begins");
        for order in [[0, 1, 2], [2, 0, 1]] {
            runtime.step_end(&order.map(feed), &mut answers).expect("it ends");
            seen.push((answers.as_slice().to_vec(), Vec::new()));
        }
    }
    seen
}

/// Every place where memory is asked for, from the first step on, refuses: nothing is asked for there, so nothing is lost.
#[test]
fn cuda_steps_ask_for_no_memory_and_no_kernels() {
    let Some(driver) = simulated() else { return };
    driver.set(Setting::Devices, 2);
    let lora_of = |checkpoint: &Checkpoint, folder: &std::path::Path| {
        Lora::random(&mut Random::new("cuda memory"), checkpoint.config(), 2, &[0, 1, 2, 3, 4, 5, 6]).write_peft(folder)
    };
    fn works<B: Backend>(driver: &cuda_device::FakeDriver, backend: B, what: &str, file: &std::path::Path) {
        let checkpoint = Checkpoint::open(model::file(SMALL)).expect("the model opens");
        let options = PagedOptions { pool_pages: 32, ..model::options(KvType::F16, 64) };
        let mut runtime = model::runtime(backend, &checkpoint, &options);
        runtime.allow_capture(true);
        // An adapter that there is no memory for is refused, whichever piece it is, and the engine lives.
        let mut refused = 0;
        let adapter = loop {
            driver.inject(Point::Alloc, refused + 1, OUT_OF_MEMORY);
            let loaded = runtime.adapter_load(file);
            driver.inject(Point::Alloc, 0, 0);
            match loaded {
                Ok(loaded) => break loaded.handle,
                Err(_) => refused += 1,
            }
        };
        assert!(refused > 10, "{what}: {refused} pieces");
        let expected = all_kinds_of_work(&mut runtime, adapter);
        assert_eq!(expected.len(), 8 + 6, "{what}");
        let before = driver.statistics();
        for point in POINTS {
            driver.inject(point, 1, OUT_OF_MEMORY);
        }
        for _ in 0..2 {
            assert!(all_kinds_of_work(&mut runtime, adapter) == expected, "{what}");
        }
        for point in POINTS {
            driver.inject(point, 0, 0);
        }
        let after = driver.statistics();
        assert_eq!(
            (after.allocations, after.live_host_allocations, after.live_modules),
            (before.allocations, before.live_host_allocations, before.live_modules),
            "{what}"
        );
    }
    let folder = tempfile::tempdir().expect("a folder");
    let file = lora_of(&Checkpoint::open(model::file(SMALL)).expect("the model opens"), folder.path());
    for arithmetic in [Arithmetic::Exact, Arithmetic::Fast] {
        works(&driver, backend().with_arithmetic(arithmetic), &format!("{arithmetic:?}"), &file);
        let group = CudaGroup::new(&[0, 1]).expect("two devices").with_arithmetic(arithmetic);
        works(&driver, group, &format!("{arithmetic:?}, two devices"), &file);
    }
}

/// Whoever works with weights that others loaded has compiled its kernels when it is opened, as they had.
#[test]
fn cuda_engines_over_shared_weights_compile_before_their_first_tick() {
    let Some(driver) = simulated() else { return };
    driver.set(Setting::Devices, 2);
    for (arithmetic, device_mask) in [(Arithmetic::Exact, 0), (Arithmetic::Fast, 0), (Arithmetic::Fast, 0b11)] {
        let what = format!("{arithmetic:?}, mask {device_mask}");
        let model = Model::open(model::file(SMALL), &ModelOptions { arithmetic, device_mask, ..options() });
        let model = model.expect("it opens");
        let mut modules = Vec::new();
        let mut engines: Vec<Box<dyn Engine>> = Vec::new();
        for _ in 0..3 {
            let before = driver.statistics().live_modules;
            let mut engine = model.engine().expect("an engine");
            let opened = driver.statistics().live_modules;
            driver.inject(Point::Module, 1, OUT_OF_MEMORY);
            assert_eq!(tokens(&mut *engine, &[1, 2, 3, 4, 5], 4).len(), 4, "{what}");
            driver.inject(Point::Module, 0, 0);
            assert_eq!(driver.statistics().live_modules, opened, "{what}: in ticks");
            modules.push(opened - before);
            engines.push(engine);
        }
        assert!(modules[0] > 5 && modules == [modules[0]; 3], "{what}: {modules:?}");
    }
}

/// Block tables that there is no room for are refused before anything of the walk is done, as often as one likes, and the backend goes on.
#[test]
fn cuda_walks_without_room_are_refused_and_lose_nothing() {
    let Some(driver) = simulated() else { return };
    driver.set(Setting::Devices, 2);
    fn refused<B: Backend>(backend: &B) {
        let shape =
            KvShape { layers: 1, n_kv_heads: 2, head_dim: 16, page_size_tokens: 16, pages: 8, element: KvType::F32 };
        let _pages = backend.pages(&shape).expect("a pool");
        backend.make_room_for_tables(4, 4).expect("room");
        let (long, short) = (vec![0; 1 << 16], [0, 1]);
        let span = |block_table| Span { first_row: 0, rows: 1, start: 3, block_table };
        for _ in 0..2 {
            let began = backend.pass_begin(&[&[span(&long)]]);
            assert!(matches!(began, Err(BackendError::OutOfMemory { bytes }) if bytes > 1 << 18), "{began:?}");
            backend.pass_end();
            assert_eq!(backend.health(), Ok(()));
            assert_eq!(backend.pass_begin(&[&[span(&short)]]), Ok(()));
            backend.pass_end();
        }
        let mut buffer = backend.buffer(3);
        backend.resize(&mut buffer, 2).expect("memory");
        backend.write(&mut buffer, 0, &[1.0; 6]).expect("it works");
        let mut row = [0.0; 3];
        backend.read(&buffer, 1, &mut row).expect("it works");
        assert_eq!(row, [1.0; 3]);
    }
    refused(&CudaBackend::new(0).expect("a device"));
    refused(&CudaGroup::new(&[0, 1]).expect("two devices"));
}
