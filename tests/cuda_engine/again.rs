//! Draws that a device cannot finish, in rounds that were begun ahead: it sees that only when the row is gone, and the round is fed again.

use ictus::backend::KvType;
use ictus::checkpoint::Checkpoint;
use ictus::engine::Engine;
use ictus::executor::Executor;
use ictus::model::TensorSource;
use ictus::record::constant::tick_flag::CAPTURE_OK;
use ictus::record::constant::{finish, sampling};
use ictus::record::{LaneAdmit, LaneLogprob};
use ictus::runtime::{Answer, Answers, Feed, Input, ModelRuntime, PagedIdentity, Runtime, Want};
use ictus::sample::SampleRequest;
use ictus::tensor::Tensor;
use ictus::testing::Harness;

use super::ahead::Host;
use super::cuda_device::{Setting, backend, simulated, test_device};
use super::random::Random;
use super::{SMALL, model, weights};

/// A third of a flat row lies behind the entries that a device looks at, the best 2048.
const VOCAB: usize = 3000;
const LANES: u64 = 4;

/// The small model with random embeddings of many tokens, which are its head too.
struct Wide {
    checkpoint: Checkpoint,
    table: Tensor,
}

impl Wide {
    fn open() -> Self {
        let checkpoint = Checkpoint::open(model::file(SMALL)).expect("the model opens");
        let hidden = checkpoint.config().hidden;
        // Small ones: rows of logits are flat.
        let values = weights::values(&mut Random::from_key(5), VOCAB * hidden).into_iter().map(|value| value / 16.0);
        let table = weights::plain(VOCAB, hidden, &values.collect::<Vec<f32>>());
        Self { checkpoint, table }
    }

    fn runtime(&self, end_ids: &[u32]) -> ModelRuntime<ictus::backend::cuda::CudaBackend> {
        let mut config = self.checkpoint.config().clone();
        config.vocab = VOCAB;
        let identity = PagedIdentity { end_ids: end_ids.to_vec(), ..PagedIdentity::default() };
        ModelRuntime::new(backend(), &config, self, &model::options(KvType::F32, 64), identity).expect("it loads")
    }
}

impl TensorSource for Wide {
    fn tensor(&self, name: &str) -> Option<&Tensor> {
        match name {
            "token_embd.weight" => Some(&self.table),
            "output.weight" => None,
            _ => self.checkpoint.tensor(name),
        }
    }
}

/// Which lanes draw from a row that is almost flat: those of the bits of `flat`. Some of them want log-probabilities, or have a bias; the others are of the kinds
/// that a device always picks for.
fn kinds(lane: u64, flat: u64, bias: u32, admit: &mut LaneAdmit) {
    admit.params.flags = 0;
    admit.rng_counter_base = lane << 20;
    if flat >> lane & 1 == 1 {
        admit.sampling = sampling::GPU_GUMBEL;
        admit.params.temperature = 60.0;
        admit.params.top_p = 1.0;
    }
    match lane % 4 {
        0 => {}
        1 => admit.want_logprobs = 4,
        2 => admit.logit_bias_handle = bias,
        _ if admit.sampling == sampling::GPU_GUMBEL => {}
        _ => {
            admit.sampling = sampling::GPU_GUMBEL;
            admit.params.temperature = 0.5;
            admit.params.top_p = 0.5;
        }
    }
}

/// What a lane says, its log-probabilities to the bit, and how it ended.
type Said = (Vec<u32>, Vec<Vec<u32>>, u32);

/// An engine whose lanes have their prompts.
fn host(wide: &Wide, flat: u64, flags: u32, end_ids: &[u32]) -> Host {
    let mut host = Harness::with_engine(Executor::new(wide.runtime(end_ids))).with_plan_flags(flags);
    let bias = host.engine.logit_bias_create(&[7, 9, 2500], &[2.0, 1.5, -4.0]).expect("a bias");
    let mut plan = host.plan();
    for lane in 1..=LANES {
        let staged = host.prompt(&[lane as u32, 2, 3]);
        plan = plan.admit_with(|admit| kinds(lane, flat, bias, admit), lane, staged).prefill(lane, 0, 3);
    }
    host.tick_ok(plan);
    host
}

/// What lanes say in ticks that grant these numbers of tokens to each; a lane that has ended is granted nothing.
fn said(host: &mut Host, grants: &[u16]) -> Vec<Said> {
    let record = |record: &&LaneLogprob| {
        [&[record.logprob.to_bits(), record.n_top], &record.top_ids[..], &weights::bits(&record.top_logprobs)].concat()
    };
    let mut all: Vec<Said> = vec![Said::default(); LANES as usize];
    for &grant in grants {
        let goes_on = |lane: &u64| all[*lane as usize - 1].2 == finish::NONE;
        let plan = (1..=LANES).filter(goes_on).fold(host.plan(), |plan, lane| plan.decode(lane, grant));
        let events = host.tick_ok(plan);
        assert!(events.faults.is_empty(), "{:?}", events.faults);
        for (lane, (tokens, records, end)) in (1..).zip(&mut all) {
            let Some(emit) = events.emit_for(lane) else { continue };
            tokens.extend(host.tokens_of(&events, lane));
            records.extend(events.logprobs_for(lane).iter().map(record));
            *end = emit.finish;
        }
    }
    host.engine.audit().expect("sequences hold what their lanes say");
    all
}

/// How many rows of logits came back at least.
fn rows_back(driver: &super::cuda_device::FakeDriver, before: u64) -> u64 {
    (driver.statistics().bytes_to_host - before) / (VOCAB * size_of::<f32>()) as u64
}

/// A step that was begun ahead answers that a draw past the best entries has to be asked for again, and nothing else.
#[test]
fn cuda_draw_past_the_best_entries_is_asked_for_again() {
    let Some(_device) = test_device() else { return };
    let wide = Wide::open();
    let mut runtime = wide.runtime(&[]);
    let mut answers = Answers::new();
    let mut plain = wide.runtime(&[]);
    let (mut again, mut done) = (0, 0);
    for position in 0..24 {
        let request = SampleRequest { temperature: 60.0, position, ..SampleRequest::default() };
        let [sequence, other] = [&mut runtime, &mut plain].map(|runtime| runtime.seq_create().expect("a sequence"));
        let feed = |sequence| Feed { sequence, input: Input::Tokens(&[5]), want: Want::Token(request) };
        plain.step(&[feed(other)], &mut answers).expect("the step runs");
        let Answer::Picked(expected) = answers.as_slice()[0] else { panic!("{:?}", answers.as_slice()) };
        runtime.step_begin(&[feed(sequence)]).expect("it begins");
        runtime.step_end(&[feed(sequence)], &mut answers).expect("it ends");
        match answers.as_slice() {
            [Answer::Again] => again += 1,
            [Answer::Picked(pick)] => {
                assert_eq!(pick.token, expected.token, "position {position}");
                done += 1;
            }
            other => panic!("{other:?}"),
        }
        runtime.seq_free(sequence);
        plain.seq_free(other);
    }
    println!("{again} of {} draws went past them", again + done);
    assert!(again > 2 && done > 2, "both are met");
}

/// T-104, T-118: whichever lanes draw past the best entries, in whichever round, tokens and log-probabilities are those of ticks of one token each, where nothing is
/// begun ahead; with graphs and without.
#[test]
fn cuda_rounds_that_are_fed_again_say_the_same() {
    let Some(driver) = simulated() else { return };
    let wide = Wide::open();
    for flat in [0b0_0010, 0b1_1110, 0b1_1000] {
        let expected = said(&mut host(&wide, flat, 0, &[]), &[1; 9]);
        for flags in [0, CAPTURE_OK] {
            let mut host = host(&wide, flat, flags, &[]);
            let before = driver.statistics().bytes_to_host;
            assert_eq!(said(&mut host, &[5, 1, 3]), expected, "lanes {flat:b}, flags {flags}");
            let rows = rows_back(&driver, before);
            println!("lanes {flat:b}, flags {flags}: {rows} rows came back");
            assert!(rows > 0, "some were drawn by the host");
        }
    }
}

/// A lane ends with a token that the host drew for it, or behind one: what was begun on it is taken back.
#[test]
fn cuda_lane_ends_in_a_round_that_is_fed_again() {
    let Some(_device) = test_device() else { return };
    let wide = Wide::open();
    let flat = 0b1_1110;
    let plain = said(&mut host(&wide, flat, 0, &[]), &[1; 8]);
    for (lane, at) in [(1, 2), (4, 5)] {
        let end = plain[lane - 1].0[at];
        let expected = said(&mut host(&wide, flat, 0, &[end]), &[1; 8]);
        assert_eq!(expected[lane - 1].2, finish::EOS, "it ends");
        for flags in [0, CAPTURE_OK] {
            let now = said(&mut host(&wide, flat, flags, &[end]), &[3, 5]);
            assert_eq!(now, expected, "lane {lane} ends with token {at}, flags {flags}");
        }
    }
}

/// Nor does it rest on the order in which the driver happens to do things.
#[test]
fn cuda_rounds_that_are_fed_again_do_not_depend_on_the_driver_s_order() {
    let Some(driver) = simulated() else { return };
    let wide = Wide::open();
    let flat = 0b1_0110;
    let expected = said(&mut host(&wide, flat, 0, &[]), &[1; 6]);
    for (order, seed, strict) in [(1, 0, 0), (2, 1, 1)] {
        driver.reset();
        driver.set(Setting::Order, order);
        driver.set(Setting::Seed, seed);
        driver.set(Setting::Strict, strict);
        let now = said(&mut host(&wide, flat, CAPTURE_OK, &[]), &[6]);
        assert_eq!(now, expected, "order {order}, seed {seed}, strict {strict}");
    }
}
