//! The two models that people download, whole, on the CUDA backend: an engine under plans, picks on the device, a decode step that is a graph.
//!
//! Each takes the shortest prompt of `tests/golden`, as a token takes a simulated device seconds, and as many ticks as show what is to be seen.
//!
//! | arithmetic | what | with | how near |
//! |---|---|---|---|
//! | exact | rows at positions of the prompt, in chunks | those in double precision | the tolerance of `tests/golden_logits.rs`, which says where it comes from |
//! | exact | 20 log-probabilities of the first token | the same | the same: ids and numbers |
//! | exact | tokens, and each one's lead over the second | the same | tokens equal, as every lead is hundreds of tolerances; a lead has the errors of two logits |
//! | exact | tokens and log-probabilities of all ticks | the processor's engine under the same plans | equal; twice the tolerance, as each may be off by one |
//! | fast | log-probabilities of the first token that both list | those in double precision | what the rounding of rows explains, and not the tolerance |
//! | fast | tokens whose lead is above all at which llama.cpp has left the exact ones in `tests/golden` | the same | equal |
//!
//! llama.cpp's own tokens are compared with nothing: once rounded, a small lead may go either way.

#![cfg(feature = "cuda")]
#![allow(dead_code, reason = "the shared helpers have more than this file uses")]

#[path = "common/cuda_device.rs"]
mod cuda_device;
#[path = "common/golden.rs"]
mod golden;
#[path = "common/model.rs"]
mod model;
#[path = "common/models.rs"]
mod models;

use cuda_device::{backend, test_device};
use golden::{TOLERANCE, golden, ids, list, number, row_error};
use ictus::backend::cpu::CpuBackend;
use ictus::backend::cuda::CudaBackend;
use ictus::backend::{Arithmetic, Backend, KvType};
use ictus::checkpoint::Checkpoint;
use ictus::executor::Executor;
use ictus::record::LaneLogprob;
use ictus::record::constant::tick_flag::CAPTURE_OK;
use ictus::runtime::{ModelRuntime, Runtime};
use ictus::testing::Harness;
use models::{GEMMA3, SMOLLM2};
use serde_json::Value;

/// A tick for the prompt and the first token, one whose step is launched, one whose step is captured, one whose step is a graph that was there.
const TICKS: usize = 4;
/// Those of fast arithmetic: the prompt and one step, as tensor cores are slow to simulate.
const FAST_TICKS: usize = 2;
/// Alternatives that come with each token: all that a record has.
const ALTERNATIVES: u8 = 20;

/// A model and what is known of its shortest prompt.
struct Known {
    checkpoint: Checkpoint,
    golden: Value,
}

impl Known {
    /// None, and a line that says so, where the model has not been fetched.
    fn open(name: &str) -> Option<Self> {
        Some(Self { checkpoint: golden::open(name)?, golden: golden(name, "logits") })
    }

    fn prompt(&self) -> &Value {
        &self.golden["prompts"][0]
    }

    fn ids(&self) -> Vec<u32> {
        ids(&self.prompt()["ids"])
    }

    /// The row after a position, in double precision.
    fn row(&self, position: usize) -> &Value {
        &self.prompt()["logits"]["exact"][position.to_string()]
    }

    /// That of the first token.
    fn last_row(&self) -> &Value {
        self.row(self.ids().len() - 1)
    }

    /// Greedy tokens, and how far each was before the second.
    fn greedy(&self) -> (Vec<u32>, Vec<f64>) {
        let exact = &self.prompt()["greedy"]["exact"];
        (ids(&exact["ids"]), list(&exact["margin"]).iter().map(number).collect())
    }

    /// The largest lead at which llama.cpp, which rounds rows in blocks of 32 as fast arithmetic does, has left the exact tokens.
    fn lead_lost(&self) -> f64 {
        let left = |prompt: &Value, setting: &str| {
            let [exact, other] = ["exact", setting].map(|setting| ids(&prompt["greedy"][setting]["ids"]));
            let at = exact.iter().zip(&other).position(|(exact, other)| exact != other)?;
            Some(number(&prompt["greedy"]["exact"]["margin"][at]))
        };
        let prompts = list(&self.golden["prompts"]).iter();
        prompts.flat_map(|prompt| ["kv16", "kv32"].map(|s| left(prompt, s))).flatten().fold(0.0, f64::max)
    }

    fn runtime<B: Backend>(&self, backend: B, kv_type: KvType) -> ModelRuntime<B> {
        model::runtime(backend, &self.checkpoint, &model::options(kv_type, 32))
    }

    fn on_device(&self, arithmetic: Arithmetic, kv_type: KvType) -> ModelRuntime<CudaBackend> {
        self.runtime(backend().with_arithmetic(arithmetic), kv_type)
    }
}

/// What a lane said, a token a tick.
#[derive(Debug, Default)]
struct Said {
    tokens: Vec<u32>,
    logprobs: Vec<LaneLogprob>,
    /// Parts of steps that were graphs which had been there.
    graphs: u32,
}

/// The prompt in the first tick, and a token in each.
fn said(runtime: impl Runtime, prompt: &[u32], ticks: usize) -> Said {
    let mut host = Harness::with_engine(Executor::new(runtime)).with_plan_flags(CAPTURE_OK);
    let staged = host.prompt(prompt);
    let mut said = Said::default();
    for tick in 0..ticks {
        let mut plan = host.plan();
        if tick == 0 {
            plan = plan.admit_with(|admit| admit.want_logprobs = 1 + ALTERNATIVES, 1, staged);
            plan = plan.prefill(1, 0, prompt.len() as u32);
        }
        let events = host.tick_ok(plan.decode(1, 1));
        said.tokens.extend(host.tokens_of(&events, 1));
        said.logprobs.extend(events.logprobs_for(1));
        said.graphs += events.timings.graph_hits;
    }
    assert_eq!((said.tokens.len(), said.logprobs.len()), (ticks, ticks));
    said
}

/// The ids of a record and their log-probabilities.
fn alternatives(record: &LaneLogprob) -> impl Iterator<Item = (u32, f64)> {
    assert_eq!(record.n_top, u32::from(ALTERNATIVES));
    record.top_ids.into_iter().zip(record.top_logprobs.map(f64::from))
}

/// The greatest; NaN where there is one.
fn most(errors: impl IntoIterator<Item = f64>) -> f64 {
    errors.into_iter().fold(0.0, |most, error| if error.abs() > most || error.is_nan() { error.abs() } else { most })
}

/// The largest error of a record against the row that it is of. Where two of the row are too near, either may come first.
fn record_error(record: &LaneLogprob, row: &Value) -> f64 {
    most(alternatives(record).zip(list(&row["top"])).map(|((id, logprob), top)| {
        let is_same = u64::from(id) == top[0].as_u64().expect("an id");
        let known = list(&row["top"]).iter().find(|top| top[0].as_u64() == Some(u64::from(id)));
        // The last one may have changed places with one that is not listed.
        let known = number(&known.unwrap_or(top)[2]);
        assert!(is_same || (known - number(&top[2])).abs() < 2.0 * TOLERANCE, "{id} in place of {top}");
        logprob - known
    }))
}

/// How far the best is before the second.
fn lead(record: &LaneLogprob) -> f64 {
    let [best, second] = [0, 1].map(|at| f64::from(record.top_logprobs[at]));
    best - second
}

/// The whole path in exact arithmetic; rows at these positions of the prompt beside it.
fn exact_answers(name: &str, positions: &[usize]) {
    let Some(known) = Known::open(name) else { return };
    let (prompt, (tokens, leads)) = (known.ids(), known.greedy());
    let expected = said(known.runtime(CpuBackend::new(1), KvType::F32), &prompt, TICKS);
    let Some(_device) = test_device() else { return };
    let mut runtime = known.on_device(Arithmetic::Exact, KvType::F32);
    let rows = model::rows_at(&mut runtime, &prompt, positions);
    let probe_ids = ids(&known.golden["probe_ids"]);
    let of_rows = most(rows.iter().zip(positions).map(|(row, &at)| row_error(row, known.row(at), &probe_ids)));
    let said = said(runtime, &prompt, TICKS);
    let of_record = record_error(&said.logprobs[0], known.last_row());
    let of_leads = most(said.logprobs.iter().zip(&leads).map(|(record, known)| lead(record) - known));
    let of_both = said.logprobs.iter().zip(&expected.logprobs);
    let of_both = most(of_both.map(|(cuda, cpu)| f64::from(cuda.logprob) - f64::from(cpu.logprob)));
    println!(
        "{name}: rows {of_rows:.1e}, log-probabilities {of_record:.1e}, leads {of_leads:.1e}; to the processor {of_both:.1e}"
    );
    assert!(leads[..TICKS].iter().all(|&lead| lead > 100.0 * TOLERANCE), "{leads:?}");
    assert_eq!(said.tokens, tokens[..TICKS], "the double-precision tokens");
    assert_eq!(said.tokens, expected.tokens, "the processor's");
    assert!(of_rows < TOLERANCE && of_record < TOLERANCE, "{of_rows:.1e}, {of_record:.1e}");
    assert!(of_leads < 2.0 * TOLERANCE && of_both < 2.0 * TOLERANCE, "{of_leads:.1e}, {of_both:.1e}");
    assert_eq!((said.graphs, expected.graphs), (1, 0), "the last step is a graph that was there");
}

/// The whole path in fast arithmetic, with its own 16-bit keys and values.
///
/// Its error is explained as in tests/cuda_families.rs: a product's rows are off by root(32 / 12) / 127 of themselves at most, and a row of logits goes through four of
/// them a layer and the head's.
fn fast_answers(name: &str) {
    let Some(known) = Known::open(name) else { return };
    let Some(_device) = test_device() else { return };
    let (prompt, (tokens, leads)) = (known.ids(), known.greedy());
    let said = said(known.on_device(Arithmetic::Fast, KvType::F16), &prompt, FAST_TICKS);
    let row = known.last_row();
    let top = list(&row["top"]);
    let exact = |id: u32| top.iter().find(|top| top[0].as_u64() == Some(u64::from(id))).map(|top| number(&top[2]));
    let listed = alternatives(&said.logprobs[0]);
    let errors: Vec<f64> = listed.filter_map(|(id, logprob)| Some(logprob - exact(id)?)).collect();
    let error = (errors.iter().map(|error| error.powi(2)).sum::<f64>() / errors.len() as f64).sqrt();
    let size = number(&row["std"]).hypot(number(&row["mean"]));
    let products = 4 * known.checkpoint.config().layers + 1;
    let bound = (32.0_f64 / 12.0).sqrt() / 127.0 * (products as f64).sqrt();
    let lost = known.lead_lost();
    println!(
        "{name}: fast, {} of {ALTERNATIVES} listed by both, relative {:.2e} of {bound:.2e}; leads {:?}, lost up to {lost}",
        errors.len(),
        error / size,
        &leads[..FAST_TICKS]
    );
    // Half of them: the others are as near to those that are not listed as the errors are.
    assert!(errors.len() >= usize::from(ALTERNATIVES) / 2, "{errors:?}");
    assert!(error / size < bound && most(errors) > TOLERANCE, "{error:.2e} of {size:.2e}");
    let sure = leads.iter().position(|&lead| lead <= lost).unwrap_or(leads.len()).min(FAST_TICKS);
    assert!(sure > 0, "a token is sure");
    assert_eq!(said.tokens[..sure], tokens[..sure]);
}

#[test]
fn cuda_engine_of_smollm2_says_the_exact_tokens() {
    exact_answers(SMOLLM2, &[1, 2, 3, 4]);
}

#[test]
fn cuda_engine_of_gemma3_says_the_exact_tokens() {
    exact_answers(GEMMA3, &[5]);
}

#[test]
fn cuda_engine_of_smollm2_in_fast_arithmetic_is_as_near_as_rounding_explains() {
    fast_answers(SMOLLM2);
}

#[test]
fn cuda_engine_of_gemma3_in_fast_arithmetic_is_as_near_as_rounding_explains() {
    fast_answers(GEMMA3);
}
