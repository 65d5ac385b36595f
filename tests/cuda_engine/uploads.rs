//! What a step brings to the device goes over in one copy, whatever the step is; where it is too much for that, it goes over all the same.

use ictus::backend::cuda::CudaBackend;
use ictus::backend::{Again, Backend, Gate};
use ictus::runtime::{Answer, Answers, Feed, Input, ModelRuntime, PagedOptions, SeqHandle, Want};
use ictus::sample::SampleRequest;

use super::lora::Lora;
use super::*;

type Model = ModelRuntime<CudaBackend>;
/// A sequence, the tokens that it is fed, and what it wants.
type Fed<'a> = (SeqHandle, &'a [u32], Want<'a>);

/// Rows of a part of a step.
const PART_ROWS: usize = 64;

fn runtime(name: &str) -> Model {
    let checkpoint = Checkpoint::open(model::file(name)).expect("the model opens");
    let options = PagedOptions {
        pool_pages: 128,
        context_tokens: 512,
        max_lanes: 16,
        prefill_step_tokens: 8,
        pass_rows: PART_ROWS,
        ..model::options(KvType::F16, 64)
    };
    model::runtime(backend(), &checkpoint, &options)
}

fn feeds<'a>(fed: &[Fed<'a>]) -> Vec<Feed<'a>> {
    fed.iter().map(|&(sequence, tokens, want)| Feed { sequence, input: Input::Tokens(tokens), want }).collect()
}

/// Copies to the device and from it during `work`.
fn copies<T>(driver: &cuda_device::FakeDriver, work: impl FnOnce() -> T) -> (u64, u64, T) {
    let before = driver.statistics();
    let outcome = work();
    let after = driver.statistics();
    (after.copies_to_device - before.copies_to_device, after.copies_to_host - before.copies_to_host, outcome)
}

/// Prompts, lanes that decode, both at once, with an adapter, masks and draws, after a fork: block tables, spans, tokens, angles, rows and requests of each part
/// of a step are one copy, and what was picked is another one back. As with permission to capture, so without.
#[test]
fn cuda_every_step_brings_all_of_it_in_one_copy() {
    let Some(driver) = simulated() else { return };
    let ids: Vec<u32> = (0..200).map(|i| 3 + i * 7 % 40).collect();
    let mask: Vec<u32> = (0..64).map(|word| 0x7ABC_DEF1 ^ (word * 0x1111)).collect();
    let drawn = SampleRequest { temperature: 0.9, top_k: 30, top_p: 0.9, position: 3, ..Default::default() };
    let masked = SampleRequest { mask: Some(&mask), bias: &[(7, 3.0)], logprobs: Some(5), ..drawn };
    let folder = tempfile::tempdir().expect("a folder");
    // Two ways of turning, two norms more: another family.
    for name in [SMALL, "tests/data/gemma3.gguf"] {
        for may_capture in [false, true] {
            let checkpoint = Checkpoint::open(model::file(name)).expect("the model opens");
            let lora = Lora::random(&mut Random::new("cuda uploads"), checkpoint.config(), 2, &[0, 1, 2, 3, 4, 5, 6]);
            let mut runtime = runtime(name);
            runtime.allow_capture(may_capture);
            let adapter = runtime.adapter_load(&lora.write_peft(folder.path())).expect("it fits").handle;
            let lanes: Vec<SeqHandle> = (0..4).map(|_| runtime.seq_create().expect("a sequence")).collect();
            runtime.seq_adapt(lanes[3], adapter).expect("an empty sequence takes an adapter");
            let mut answers = Answers::new();
            let mut step = |runtime: &mut Model, what: &str, parts: u64, fed: &[Fed<'_>]| {
                let picks = fed.iter().any(|(_, _, want)| matches!(want, Want::Token(_)));
                let (there, back, done) = copies(&driver, || runtime.step(&feeds(fed), &mut answers));
                done.expect("the step runs");
                let what = format!("{name}, {what}, capture {may_capture}");
                assert_eq!((there, back), (parts, u64::from(picks)), "{what}");
                let picked = |answer: &Answer| matches!(answer, Answer::Picked(_) | Answer::Nothing);
                assert!(answers.as_slice().iter().all(picked), "{what}: {:?}", answers.as_slice());
            };
            let token = Want::Token;
            step(&mut runtime, "a prompt", 1, &[(lanes[0], &ids[..40], Want::Nothing)]);
            let prompts = [(lanes[1], &ids[..9], token(drawn)), (lanes[3], &ids[..21], token(masked))];
            step(&mut runtime, "prompts", 1, &prompts);
            let mixed = [
                (lanes[0], &ids[..1], token(masked)),
                (lanes[2], &ids[..30], token(drawn)),
                (lanes[3], &ids[..1], token(drawn)),
            ];
            step(&mut runtime, "mixed", 1, &mixed);
            let decode = lanes.iter().map(|&lane| (lane, &ids[..1], token(masked))).collect::<Vec<_>>();
            for _ in 0..4 {
                step(&mut runtime, "decode", 1, &decode);
            }
            let parts = (ids.len().div_ceil(PART_ROWS)) as u64;
            step(&mut runtime, "several parts", parts, &[(lanes[2], &ids, token(drawn))]);
            // Each fork writes into a page that it shares.
            for want in [Want::Nothing, token(drawn)] {
                let forks: Vec<SeqHandle> = (0..3).map(|_| runtime.seq_create().expect("a sequence")).collect();
                forks.iter().for_each(|&fork| runtime.seq_copy(lanes[0], fork, 35).expect("the source has it"));
                let fed: Vec<Fed<'_>> = forks.iter().map(|&fork| (fork, &ids[..1], want)).collect();
                step(&mut runtime, "forks", 1, &fed);
                forks.into_iter().for_each(|fork| runtime.seq_free(fork));
            }
        }
    }
}

/// Pages that are copied first do not make another program of a step that comes again.
#[test]
fn cuda_forks_that_copy_pages_are_graphs_all_the_same() {
    let Some(driver) = simulated() else { return };
    let run = |may_capture| {
        let mut runtime = runtime(SMALL);
        runtime.allow_capture(may_capture);
        let parent = runtime.seq_create().expect("a sequence");
        let ids: Vec<u32> = (0..40).map(|i| 3 + i * 7 % 40).collect();
        let mut answers = Answers::new();
        runtime.step(&feeds(&[(parent, &ids[..37], Want::Nothing)]), &mut answers).expect("the step runs");
        let mut rows = Vec::new();
        for round in 0..6 {
            let forks: Vec<SeqHandle> = (0..3).map(|_| runtime.seq_create().expect("a sequence")).collect();
            // In odd rounds the page is whole, and none is copied.
            let shared = if round % 2 == 0 { 35 } else { 32 };
            forks.iter().for_each(|&fork| runtime.seq_copy(parent, fork, shared).expect("the source has it"));
            let fed: Vec<Fed<'_>> =
                forks.iter().enumerate().map(|(at, &fork)| (fork, &ids[at..=at], Want::LastRow)).collect();
            runtime.step(&feeds(&fed), &mut answers).expect("the step runs");
            (0..3).for_each(|row| rows.extend(answers.row(row).expect("a row").iter().map(|value| value.to_bits())));
            forks.into_iter().for_each(|fork| runtime.seq_free(fork));
        }
        (rows, runtime.take_graph_counts())
    };
    let (expected, _) = run(false);
    let (rows, counts) = run(true);
    assert!(rows == expected, "bits differ");
    assert_eq!((counts.hits, counts.misses), (4, 2));
    drop(driver);
}

/// More lists than the arena holds: the step goes on without it, and says what each lane says alone.
#[test]
fn cuda_step_that_is_too_much_for_one_copy_goes_on() {
    let Some(driver) = simulated() else { return };
    // A little less than a go has room for, of which each row then is one; six are more than the arena.
    let bias: Vec<(u32, f32)> = (0..120_000).map(|i| (3 + i % 200, 1e-5 * (i % 7) as f32)).collect();
    let request = SampleRequest { bias: &bias, temperature: 0.7, position: 5, ..Default::default() };
    let ids: Vec<u32> = (0..12).map(|i| 3 + i * 7 % 40).collect();
    for tokens in [1, 5] {
        for may_capture in [false, true] {
            let mut runtime = runtime(SMALL);
            runtime.allow_capture(may_capture);
            let mut answers = Answers::new();
            let mut say = |together: usize| {
                let lanes: Vec<SeqHandle> = (0..6).map(|_| runtime.seq_create().expect("a sequence")).collect();
                let fed: Vec<Fed<'_>> = (0..6).map(|i| (lanes[i], &ids[i..i + tokens], Want::Token(request))).collect();
                let mut said = Vec::new();
                let (there, _, ()) = copies(&driver, || {
                    for fed in fed.chunks(together) {
                        runtime.step(&feeds(fed), &mut answers).expect("the step runs");
                        said.extend(answers.as_slice().to_vec());
                    }
                });
                lanes.into_iter().for_each(|lane| runtime.seq_free(lane));
                (there, said, runtime.take_graph_counts())
            };
            let (alone, expected, _) = say(1);
            assert_eq!(alone, 6, "one each");
            assert!(expected.iter().all(|answer| matches!(answer, Answer::Picked(_))), "{expected:?}");
            for _ in 0..3 {
                let (there, said, counts) = say(6);
                assert_eq!(said, expected, "{tokens} tokens, capture {may_capture}");
                // One for each go, the first of which has the walk's: what the arena had no room for went over by itself.
                assert_eq!(there, 6, "{tokens} tokens, capture {may_capture}");
                // There was room for four, which alone are programs.
                let programs = if tokens == 1 && may_capture { 4 } else { 0 };
                assert_eq!(counts.hits + counts.misses, programs, "{tokens} tokens, capture {may_capture}: {counts:?}");
            }
        }
    }
}

/// Rows that are too long for the arena, in the middle of a section: what was noted before is launched before, what comes behind is launched behind.
#[test]
fn cuda_section_without_room_goes_on_plainly() {
    let Some(driver) = simulated() else { return };
    let backend = CudaBackend::new(0).expect("a device");
    let (width, rows) = (1024, 1300);
    let mut random = Random::new("cuda sections without room");
    let [one, two] = [(); 2].map(|()| weights::values(&mut random, rows * width));
    let bits = |again: Option<Again>| {
        let mut buffers = [(); 2].map(|()| {
            let mut buffer = backend.buffer(width);
            backend.resize(&mut buffer, rows).expect("memory");
            buffer
        });
        let [x, y] = &mut buffers;
        backend.write(x, 0, &one).expect("it works");
        backend.write(y, 0, &one).expect("it works");
        let before = driver.statistics().launch_calls;
        if let Some(again) = again {
            backend.part_begin(again);
        }
        backend.write(y, 7, &two[..width * 10]).expect("it works");
        backend.gather_rows(x, &[5, 3, 8], y);
        backend.gate(x, y, Gate::Silu);
        let noted = driver.statistics().launch_calls - before;
        assert_eq!(noted, if again.is_some() { 0 } else { 2 }, "{again:?}");
        backend.write(y, 0, &two).expect("more than there is room for");
        assert_eq!(driver.statistics().launch_calls - before, 2, "{again:?}");
        backend.add_rows(x, &[7, 1, 2], y);
        backend.add(x, y);
        assert_eq!(driver.statistics().launch_calls - before, 4, "{again:?}");
        backend.part_end();
        let mut got = vec![0.0; rows * width];
        backend.read(x, 0, &mut got).expect("it works");
        assert_eq!(backend.take_graph_counts(), Default::default(), "half of a section is no program");
        weights::bits(&got)
    };
    let expected = bits(None);
    for again in [Again::No, Again::Use, Again::Keep, Again::Keep] {
        assert!(bits(Some(again)) == expected, "{again:?}");
    }
}
