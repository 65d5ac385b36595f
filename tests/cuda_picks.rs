//! Tokens picked on a CUDA device are those that the host picks from the same rows, whatever is done to a row and asked of it; and rows do not travel.
//!
//! Runs on simulated devices, or on the machine's: tests/common/cuda_device.rs.

#![cfg(feature = "cuda")]
#![allow(dead_code, reason = "the shared helpers have more than this file uses")]

#[path = "common/cuda_device.rs"]
mod cuda_device;
#[path = "common/model.rs"]
mod model;
#[path = "common/random.rs"]
mod random;

use cuda_device::{TestDevice, backend, simulated, test_device};
use ictus::backend::cuda::CudaBackend;
use ictus::backend::{Backend, KvShape, KvType, Picked};
use ictus::checkpoint::Checkpoint;
use ictus::engine::Engine;
use ictus::executor::Executor;
use ictus::record::constant::{sampling, tick_flag};
use ictus::record::{LaneAdmit, LaneLogprob};
use ictus::runtime::{
    Answer, Answers, Descriptor, Feed, Input, LazyVocabulary, MemCounters, ModelRuntime, PagedIdentity, Runtime,
    RuntimeError, SamplingSupport, SeqHandle, Vocabulary, Want,
};
use ictus::sample::{Penalty, Pick, SampleError, SampleRequest, Scratch, pick, pick_shaped};
use ictus::testing::Harness;
use ictus::{Device, Model, ModelOptions};
use random::Random;

const TINY: &str = "models/ictus-tiny.gguf";
/// Words that come back of a row, and of one whose log-probabilities are wanted.
const WORDS: u64 = 3;
const WORDS_WITH_LOGPROBS: u64 = 3 + 44;

/// A request that owns its lists.
#[derive(Clone, Debug, Default)]
struct Request {
    plain: SampleRequest<'static>,
    bias: Vec<(u32, f32)>,
    mask: Option<Vec<u32>>,
    /// Strengths, window, exempt ids.
    penalty: Option<([f32; 3], Vec<u32>, Vec<u32>)>,
}

impl Request {
    fn view(&self) -> SampleRequest<'_> {
        let penalty = self.penalty.as_ref().map(|([repeat, presence, frequency], window, exempt)| Penalty {
            repeat: *repeat,
            presence: *presence,
            frequency: *frequency,
            window,
            exempt,
        });
        SampleRequest { bias: &self.bias, mask: self.mask.as_deref(), penalty, ..self.plain }
    }

    /// Whether the device promises to draw at this temperature.
    fn is_drawn_there(&self) -> bool {
        self.plain.temperature <= 0.0 || (0.01..=100.0).contains(&self.plain.temperature)
    }

    fn random(random: &mut Random, vocab: usize) -> Self {
        let mut request = Self::default();
        request.plain.temperature =
            *random.pick(&[0.0, 0.0, -1.0, 0.01, 0.7, 0.7, 1.0, 1.0, 3.0, 100.0, 1e-3, f32::NAN]);
        request.plain.top_k = *random.pick(&[0, 0, 1, 5, 40, u32::MAX]);
        request.plain.top_p = *random.pick(&[1.0, 1.0, 0.95, 0.3, 0.0]);
        request.plain.min_p = *random.pick(&[0.0, 0.0, 0.05, 1.0]);
        request.plain.position = random.next();
        request.plain.logprobs = *random.pick(&[None, None, Some(0), Some(1), Some(3), Some(20), Some(25)]);
        // Ids past the row, ids twice, and addends that are no numbers.
        let id = |random: &mut Random| random.below(vocab + 3) as u32;
        if random.below(2) == 0 {
            let count = random.below(40);
            let addends = [0.5, -3.0, 12.0, 1e-3, 3e38, f32::INFINITY, f32::NEG_INFINITY, f32::NAN];
            let usual = random.below(3) > 0;
            let addend = |random: &mut Random| addends[random.below(if usual { 4 } else { addends.len() })];
            request.bias = (0..count).map(|_| (id(random), addend(random))).collect();
            request.bias.extend_from_within(..count / 3);
        }
        if random.below(2) == 0 {
            let words = vocab.div_ceil(32);
            let mut mask = match random.below(4) {
                0 => vec![u32::MAX; words],
                1 => (0..words).map(|_| random.next() as u32 & random.next() as u32 & random.next() as u32).collect(),
                2 => vec![0; words + 2],
                _ => (0..random.below(words + 1)).map(|_| random.next() as u32).collect(),
            };
            if random.below(3) > 0 && !mask.is_empty() {
                mask[0] |= 1;
            }
            request.mask = Some(mask);
        }
        if random.below(2) == 0 {
            let strengths = *random.pick(&[[1.3, 0.0, 0.0], [1.0, 0.5, 0.25], [0.5, -0.5, 0.1], [2.0, 1.0, 1.0]]);
            let window = (0..random.below(150)).map(|_| id(random) / 3).collect();
            let mut exempt: Vec<u32> = (0..random.below(5)).map(|_| id(random) / 3).collect();
            exempt.sort_unstable();
            exempt.dedup();
            request.penalty = Some((strengths, window, exempt));
        }
        request
    }
}

/// Rows as models give them, most far below a few; every sixth with something that is no number.
fn rows(random: &mut Random, count: usize, vocab: usize) -> Vec<f32> {
    let uniform = |random: &mut Random| (random.next() >> 40) as f32 / (1 << 24) as f32;
    let mut rows: Vec<f32> = (0..count * vocab).map(|_| uniform(random) * 12.0 - 6.0).collect();
    for row in rows.chunks_mut(vocab) {
        for _ in 0..8 {
            row[random.below(vocab)] += 7.0;
        }
        if random.below(4) == 0 {
            row.iter_mut().for_each(|x| *x = x.round());
        }
        if random.below(6) == 0 {
            row[random.below(vocab)] = *random.pick(&[f32::NAN, f32::INFINITY, f32::NEG_INFINITY]);
        }
    }
    rows
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

/// Everything of an outcome, to the bit.
fn outcome_bits(outcome: &Result<Pick, SampleError>) -> Result<(u32, Vec<u32>), SampleError> {
    let pick = (*outcome)?;
    let record = pick.logprobs.map(|record| {
        [&[record.logprob.to_bits(), record.n_top], &record.top_ids[..], &bits(&record.top_logprobs)].concat()
    });
    Ok((pick.token, record.unwrap_or_default()))
}

/// A backend with its scratch, and a buffer with these rows.
fn filled(rows: &[f32], vocab: usize) -> (CudaBackend, <CudaBackend as Backend>::Buffer) {
    let backend = backend();
    let shape = KvShape { layers: 1, n_kv_heads: 1, head_dim: 8, page_size_tokens: 16, pages: 1, element: KvType::F32 };
    let _pool = backend.pages(&shape).expect("a pool brings the scratch");
    let mut buffer = backend.buffer(vocab);
    backend.resize(&mut buffer, rows.len() / vocab).expect("memory");
    backend.write(&mut buffer, 0, rows).expect("it takes rows");
    (backend, buffer)
}

fn picked(
    backend: &CudaBackend,
    buffer: &mut <CudaBackend as Backend>::Buffer,
    requests: &[Option<Request>],
) -> Vec<Picked> {
    let views: Vec<Option<SampleRequest<'_>>> = requests.iter().map(|r| r.as_ref().map(Request::view)).collect();
    let views: Vec<Option<&SampleRequest<'_>>> = views.iter().map(Option::as_ref).collect();
    let mut out = vec![Picked::Shaped; requests.len()];
    backend.pick_rows(buffer, &views, &mut out).expect("the device works");
    out
}

/// T-112 .. T-122: masks, biases, penalties, draws and log-probabilities in any mixture, on rows that may not be sound, give the host's bits; what the
/// device leaves to the host it leaves in the state that it says.
#[test]
fn cuda_picks_have_the_bits_of_the_host_whatever_is_asked() {
    let Some(_device) = test_device() else { return };
    let mut random = Random::new("cuda picks");
    let (mut done, mut left, mut refused) = (0, 0, 0);
    for (vocab, count) in [(1, 12), (37, 40), (1000, 40), (5003, 16)] {
        let plain = rows(&mut random, count, vocab);
        let mut requests: Vec<Option<Request>> =
            (0..count).map(|_| Some(Request::random(&mut random, vocab))).collect();
        requests[count / 2] = None;
        let (backend, mut buffer) = filled(&plain, vocab);
        let out = picked(&backend, &mut buffer, &requests);
        let mut after = vec![0.0; plain.len()];
        backend.read(&buffer, 0, &mut after).expect("it reads");
        for (i, (row, after)) in plain.chunks(vocab).zip(after.chunks(vocab)).enumerate() {
            let Some(request) = &requests[i] else {
                assert_eq!(out[i], Picked::NotServed, "nobody asked");
                assert_eq!(bits(after), bits(row), "nobody asked");
                continue;
            };
            let mut shaped = row.to_vec();
            let expected = pick(&mut shaped, &request.view(), &mut Scratch::new());
            let what = format!("{vocab}: row {i}, {request:?}");
            match out[i] {
                Picked::Done(outcome) => {
                    assert_eq!(outcome_bits(&outcome), outcome_bits(&expected), "{what}");
                    done += 1;
                    refused += usize::from(expected.is_err());
                }
                Picked::Shaped => {
                    assert!(vocab > 2048 && request.view().shapes(), "{what}");
                    let outcome = Ok(pick_shaped(after, &request.view(), &mut Scratch::new()));
                    assert_eq!(outcome_bits(&outcome), outcome_bits(&expected), "{what}");
                    left += 1;
                }
                Picked::NotServed => {
                    assert!(vocab > 2048 || !request.is_drawn_there(), "{what}");
                    assert_eq!(bits(after), bits(row), "{what}");
                    left += 1;
                }
            }
        }
    }
    println!("{done} picked there, {refused} of them refused; {left} left to the host");
    assert!(done > 60 && refused > 3 && left < done / 2, "{done} {refused} {left}");
}

/// T-112, R-64: a row that is not sound is that before anything else is; a mask that allows nothing is named.
#[test]
fn cuda_picks_name_rows_that_are_not_sound_and_masks_that_allow_nothing() {
    let Some(_device) = test_device() else { return };
    let vocab = 70;
    let mut plain = vec![1.0_f32; 8 * vocab];
    for (row, bad) in [(0, f32::NAN), (1, f32::INFINITY), (2, f32::NEG_INFINITY), (3, f32::NAN)] {
        plain[row * vocab + 69] = bad;
    }
    let nothing = |words: usize| Some(vec![0_u32; words]);
    // A mask that would hide what is not sound; one that allows nothing of a row that is not sound; one of a sound row; one that ends before
    // it begins; bits past the row alone; one bit.
    let masks = [Some(vec![1, 0, 0]), None, nothing(3), None, nothing(3), nothing(0), Some(vec![0, 0, 0xFFFF_FFC0])];
    let requests: Vec<Option<Request>> = masks
        .into_iter()
        .chain([Some(vec![0, 0, 0x20])])
        .map(|mask| Some(Request { mask, ..Request::default() }))
        .collect();
    let (backend, mut buffer) = filled(&plain, vocab);
    let out = picked(&backend, &mut buffer, &requests);
    let not_finite = Picked::Done(Err(SampleError::NotFinite));
    let nothing_allowed = Picked::Done(Err(SampleError::NothingAllowed));
    assert_eq!(out[..4], [not_finite; 4]);
    assert_eq!(out[4..7], [nothing_allowed; 3]);
    assert_eq!(out[7], Picked::Done(Ok(Pick { token: 69, logprobs: None })));
}

/// Lists that fill the room of several goes, and one that never fits: that row is the host's, as it was, and its neighbours are served.
#[test]
fn cuda_picks_take_lists_in_goes_and_leave_what_never_fits() {
    let Some(driver) = simulated() else { return };
    let mut random = Random::new("cuda lists");
    let vocab = 300;
    let plain: Vec<f32> = rows(&mut random, 5, vocab).iter().map(|x| if x.is_finite() { *x } else { 0.0 }).collect();
    let long = |entries: usize| -> Vec<(u32, f32)> { (0..entries as u32).map(|i| (i * 7 % 300, 0.001)).collect() };
    let requests: Vec<Option<Request>> = [50_000, 80_000, 140_000, 70_000, 10]
        .map(|entries| Some(Request { bias: long(entries), ..Request::default() }))
        .into_iter()
        .collect();
    let (backend, mut buffer) = filled(&plain, vocab);
    let before = driver.statistics();
    let out = picked(&backend, &mut buffer, &requests);
    let after = driver.statistics();
    for (i, row) in plain.chunks(vocab).enumerate() {
        let expected = pick(&mut row.to_vec(), &requests[i].as_ref().expect("asked").view(), &mut Scratch::new());
        assert_eq!(out[i], if i == 2 { Picked::NotServed } else { Picked::Done(expected) }, "row {i}");
    }
    let mut left = vec![0.0; vocab];
    backend.read(&buffer, 2, &mut left).expect("it reads");
    assert_eq!(bits(&left), bits(&plain[2 * vocab..3 * vocab]));
    assert_eq!(after.bytes_to_host - before.bytes_to_host, 5 * WORDS * 4, "words alone came back");
}

/// A row that is masked, biased, penalised and drawn from costs one copy to the device with the mask in it, and some words back.
#[test]
fn cuda_picks_bring_back_words_and_take_a_mask_once() {
    let Some(driver) = simulated() else { return };
    let vocab = 4100_usize;
    let count = 6;
    let mut random = Random::new("cuda words");
    let plain: Vec<f32> = (0..count * vocab).map(|_| random.below(1000) as f32 / 100.0).collect();
    let mask: Vec<u32> = (0..vocab.div_ceil(32)).map(|_| random.next() as u32 | 2).collect();
    let request = |logprobs| {
        Some(Request {
            plain: SampleRequest { temperature: 0.5, top_k: 30, logprobs, ..SampleRequest::default() },
            bias: vec![(5, 1.0), (3, -1.0)],
            mask: Some(mask.clone()),
            penalty: Some(([1.2, 0.1, 0.1], vec![1, 2, 3, 1], vec![])),
        })
    };
    for (logprobs, words) in [(None, WORDS), (Some(20), WORDS_WITH_LOGPROBS)] {
        let requests = vec![request(logprobs); count];
        let (backend, mut buffer) = filled(&plain, vocab);
        let before = driver.statistics();
        let out = picked(&backend, &mut buffer, &requests);
        let after = driver.statistics();
        assert!(out.iter().all(|picked| matches!(picked, Picked::Done(Ok(_)))), "{out:?}");
        let rows = count as u64;
        assert_eq!(after.copies - before.copies, 2, "one there, one back");
        assert_eq!(after.bytes_to_host - before.bytes_to_host, rows * words * 4);
        // 17 words of columns, the mask, two biases, three distinct ids.
        let lists = 17 + mask.len() as u64 + 2 * 2 + 3 * 2;
        assert_eq!(after.bytes_to_device - before.bytes_to_device, rows * lists * 4);
    }
}

/// Of rows that somebody picks on the host only those travel.
#[test]
fn cuda_steps_read_back_the_rows_that_are_left_alone() {
    let Some(driver) = simulated() else { return };
    let checkpoint = Checkpoint::open(model::file(TINY)).expect("the model opens");
    let vocab = checkpoint.config().vocab as u64;
    let mut runtime = model::runtime(backend(), &checkpoint, &model::options(KvType::F32, 64));
    let served = SampleRequest { bias: &[(5, 1.0)], logprobs: Some(2), ..SampleRequest::default() };
    let left = SampleRequest { temperature: 1e-4, bias: &[(5, 1.0)], ..SampleRequest::default() };
    for (requests, rows_back) in [(vec![served; 5], 0), (vec![served, left, served, served, served], 1)] {
        let sequences: Vec<SeqHandle> = requests.iter().map(|_| runtime.seq_create().expect("a sequence")).collect();
        let feed = |(&sequence, request): (&SeqHandle, &SampleRequest<'static>)| Feed {
            sequence,
            input: Input::Tokens(&[1, 2, 3]),
            want: Want::Token(*request),
        };
        let feeds: Vec<Feed<'_>> = sequences.iter().zip(&requests).map(feed).collect();
        let mut answers = Answers::new();
        let before = driver.statistics().bytes_to_host;
        runtime.step(&feeds, &mut answers).expect("the step runs");
        let came = driver.statistics().bytes_to_host - before;
        assert_eq!(came, 4 * (5 * WORDS_WITH_LOGPROBS + rows_back * vocab), "{rows_back} rows");
        assert!(answers.as_slice().iter().all(|answer| matches!(answer, Answer::Picked(_))));
        sequences.iter().for_each(|&sequence| runtime.seq_free(sequence));
    }
}

/// A runtime that answers rows and picks nothing, so the executor picks: the host's way, from the same device's rows.
struct RowsOnly {
    inner: ModelRuntime<CudaBackend>,
    descriptor: Descriptor,
}

impl RowsOnly {
    fn new(inner: ModelRuntime<CudaBackend>) -> Self {
        let mut descriptor = inner.describe().clone();
        descriptor.sampling = SamplingSupport::default();
        Self { inner, descriptor }
    }
}

impl Runtime for RowsOnly {
    fn describe(&self) -> &Descriptor {
        &self.descriptor
    }
    fn is_eos(&self, token: u32) -> bool {
        self.inner.is_eos(token)
    }
    fn seq_create(&mut self) -> Result<SeqHandle, RuntimeError> {
        self.inner.seq_create()
    }
    fn seq_free(&mut self, sequence: SeqHandle) {
        self.inner.seq_free(sequence);
    }
    fn seq_len(&self, sequence: SeqHandle) -> u64 {
        self.inner.seq_len(sequence)
    }
    fn cells_released(&self, sequences: &[SeqHandle]) -> u64 {
        self.inner.cells_released(sequences)
    }
    fn seq_copy(&mut self, source: SeqHandle, target: SeqHandle, len: u64) -> Result<(), RuntimeError> {
        self.inner.seq_copy(source, target, len)
    }
    fn seq_truncate(&mut self, sequence: SeqHandle, len: u64) -> Result<(), RuntimeError> {
        self.inner.seq_truncate(sequence, len)
    }
    fn mem_counters(&self) -> MemCounters {
        self.inner.mem_counters()
    }
    fn step(&mut self, feeds: &[Feed<'_>], answers: &mut Answers) -> Result<(), RuntimeError> {
        assert!(feeds.iter().all(|feed| !matches!(feed.want, Want::Token(_))), "it does not pick");
        self.inner.step(feeds, answers)
    }
    fn vocabulary(&self) -> Option<&Vocabulary> {
        self.inner.vocabulary()
    }
    fn lists_vocabulary(&self) -> bool {
        self.inner.lists_vocabulary()
    }
    fn exempt_ids(&self) -> Vec<u32> {
        self.inner.exempt_ids()
    }
}

/// A runtime that lists its vocabulary, as an opened model does.
fn runtime_with_vocabulary() -> ModelRuntime<CudaBackend> {
    let options = ModelOptions { device: Device::Cpu, threads: 1, ..ModelOptions::default() };
    let opened = Model::open(model::file(TINY), &options).expect("it opens");
    let exempt: Vec<u32> =
        opened.tokenizer().control_tokens().map(|(id, _)| id).chain(opened.tokenizer().end_ids()).collect();
    let list = move || {
        let tokenizer = opened.tokenizer();
        let token = |id: u32| {
            let bytes = tokenizer.token_bytes(id).unwrap_or_default();
            if tokenizer.is_control(id) { [b"\xff", bytes].concat().into() } else { bytes.into() }
        };
        Vocabulary {
            tokens: (0..tokenizer.vocab_size() as u32).map(token).collect(),
            special: Vec::new(),
            end_ids: tokenizer.end_ids().collect(),
        }
    };
    let checkpoint = Checkpoint::open(model::file(TINY)).expect("the model opens");
    let identity = PagedIdentity {
        vocabulary: Some(LazyVocabulary::new(exempt, list)),
        end_ids: vec![],
        ..PagedIdentity::default()
    };
    let options = model::options(KvType::F32, 64);
    ModelRuntime::new(backend(), checkpoint.config(), &checkpoint, &options, identity).expect("the model loads")
}

const LANES: u64 = 6;

/// How each lane picks: under a grammar greedily and drawn, with a bias, with penalties and log-probabilities, and as it is.
fn recipe(tag: u64, grammar: u32, bias: u32) -> impl Fn(&mut LaneAdmit) {
    move |admit: &mut LaneAdmit| {
        admit.rng_counter_base = 1000 * tag;
        if tag % 2 == 1 {
            admit.sampling = sampling::GPU_GUMBEL;
            admit.params.temperature = 0.9;
            admit.params.top_p = 0.9;
        }
        match tag {
            1 | 2 => admit.grammar_handle = grammar,
            3 => {
                admit.grammar_handle = grammar;
                admit.params.repeat_penalty = 1.3;
                admit.params.freq_penalty = 0.2;
                admit.want_logprobs = 21;
            }
            4 => {
                admit.logit_bias_handle = bias;
                admit.want_logprobs = 1;
            }
            5 => {
                admit.params.presence_penalty = 0.7;
                admit.params.repeat_penalty = 1.1;
            }
            _ => {}
        }
    }
}

/// Tokens and log-probability records of a lane, to the bit.
type Said = (Vec<u32>, Vec<Vec<u32>>);

/// What all lanes say, and how many steps were one launch of a graph.
fn spoken<R: Runtime>(runtime: R, ticks: usize) -> (Vec<Said>, u32) {
    let mut h = Harness::with_engine(Executor::new(runtime)).with_plan_flags(tick_flag::CAPTURE_OK);
    let mut hits = 0;
    // A grammar is one lane's.
    let grammars: Vec<u32> =
        (0..LANES).map(|_| h.engine.grammar_create_regex("([a-z]{1,6} ){2,30}").expect("a grammar")).collect();
    let bias = h.engine.logit_bias_create(&[7, 9, 7, 20], &[2.0, 1.5, 0.25, -4.0]).expect("a bias");
    let record = |record: &&LaneLogprob| {
        [&[record.logprob.to_bits(), record.n_top], &record.top_ids[..], &bits(&record.top_logprobs)].concat()
    };
    let mut said = vec![(Vec::new(), Vec::new()); LANES as usize];
    for tick in 0..ticks {
        let mut plan = h.plan();
        for tag in 1..=LANES {
            if tick == 0 {
                let prompt: Vec<u32> = (0..3 + tag as u32).map(|i| 3 + i * 7 % 40).collect();
                let staged = h.prompt(&prompt);
                let change = recipe(tag, grammars[tag as usize - 1], bias);
                plan = plan.admit_with(change, tag, staged).prefill(tag, 0, prompt.len() as u32);
            }
            plan = plan.decode(tag, 1);
        }
        let events = h.tick_ok(plan);
        assert!(events.faults.is_empty(), "{:?}", events.faults);
        hits += events.timings.graph_hits;
        for (tag, (tokens, records)) in (1..).zip(&mut said) {
            tokens.extend(h.tokens_of(&events, tag));
            records.extend(events.logprobs_for(tag).iter().map(record));
        }
    }
    (said, hits)
}

/// T-110: a whole engine whose lanes have grammars, biases, penalties and log-probabilities says what the same engine says when the host picks; and in
/// its ticks no row comes back, and those that come again are one launch although masks and penalties change.
#[test]
fn cuda_engine_with_grammars_and_penalties_says_what_the_host_would_pick() {
    let Some(device) = test_device() else { return };
    const TICKS: usize = 7;
    let (expected, _) = spoken(RowsOnly::new(runtime_with_vocabulary()), TICKS);
    let bytes = || match &device {
        TestDevice::Simulated(driver) => driver.statistics().bytes_to_host,
        TestDevice::Machine(_) => 0,
    };
    let before = bytes();
    let (said, hits) = spoken(runtime_with_vocabulary(), TICKS);
    let came = bytes() - before;
    assert_eq!(said, expected);
    assert!(said.iter().all(|(tokens, _)| tokens.len() == TICKS), "{said:?}");
    assert_eq!(said.iter().map(|(_, records)| records.len()).collect::<Vec<_>>(), [0, 0, TICKS, TICKS, 0, 0]);
    println!("{came} bytes came back in {TICKS} ticks of {LANES} lanes, {hits} of which launched a graph");
    assert!(came <= TICKS as u64 * LANES * WORDS_WITH_LOGPROBS * 4, "{came}");
    assert!(hits >= 2, "{hits}");
}
