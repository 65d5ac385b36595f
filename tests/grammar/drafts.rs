//! Lanes with a grammar draft too: each row is masked with the grammar as it stands after the tokens taken before it (T-127).

use ictus::engine::{Engine, StrategyBuilder};
use ictus::record::constant::{admit_status, finish, sampling};
use ictus::record::{LaneAdmit, Status};
use ictus::runtime::CopyModel;
use ictus::testing::register_strategy;

use super::words::*;

/// Objects like one another, one after the other.
const LIST: &str = r#"{"type": "array", "minItems": 4, "maxItems": 6, "x-guidance": {"whitespace_flexible": false},
    "items": {"type": "object", "required": ["name", "ok"], "additionalProperties": false,
        "properties": {"name": {"type": "string", "maxLength": 5}, "ok": {"type": "boolean"}}}}"#;

/// Tokens, finish and log-probabilities of a lane, and what was proposed and accepted.
fn transcript(slot: u32, temperature: f32, miss_every: usize) -> (Vec<u32>, u32, Vec<u32>, u32, u32) {
    let mut h = engine_with(SUPPORTS[0], |options| {
        options.descriptor.verify_rows = true;
        options.copy_model = Some(CopyModel { miss_every });
    });
    let strategy = StrategyBuilder::new("prompt-lookup").config("shaped=1,throughput_gate=0,max_draft=7");
    register_strategy(&mut h, &strategy).expect("the runtime verifies drafts");
    let grammar = h.engine.grammar_create(LIST).expect("it compiles");
    let said = r#"[{"name":"abc","ok":true},{"name":"abc","ok":true}"#;
    admit(&mut h, 1, &encode(said), &[], |admit: &mut LaneAdmit| {
        (admit.grammar_handle, admit.strategy_slot, admit.want_logprobs) = (grammar, slot, 3);
        if temperature > 0.0 {
            (admit.sampling, admit.params.temperature) = (sampling::GPU_GUMBEL, temperature);
        }
    });
    let (mut tokens, mut logprobs, mut proposed, mut accepted) = (Vec::new(), Vec::new(), 0, 0);
    for _ in 0..200 {
        let events = ok(&mut h, |plan| plan.decode(1, 6));
        let emit = *events.emit_for(1).expect("the lane emits");
        tokens.extend(h.tokens_of(&events, 1));
        logprobs.extend(events.logprobs.iter().map(|record| record.logprob.to_bits()));
        proposed += emit.spec.proposed;
        accepted += emit.spec.accepted;
        if emit.finish != finish::NONE {
            return (tokens, emit.finish, logprobs, proposed, accepted);
        }
    }
    panic!("the list has no end: {}", text(&tokens));
}

/// T-127, T-134, R-64: the same document, to the bit, with drafts and without; most drafts of a list are right.
#[test]
fn drafted_document_is_the_one_without_drafts() {
    let (mut proposed, mut accepted) = (0, 0);
    for (temperature, miss_every) in [(0.0, 0), (0.0, 3), (0.7, 0), (1.5, 2)] {
        let plain = transcript(0, temperature, miss_every);
        let drafted = transcript(1, temperature, miss_every);
        assert_eq!((&plain.0, plain.1, &plain.2), (&drafted.0, drafted.1, &drafted.2), "{temperature} {miss_every}");
        assert_eq!((plain.1, plain.3), (finish::GRAMMAR, 0));
        serde_json::from_str::<serde_json::Value>(&text(&drafted.0)).expect("valid JSON");
        proposed += drafted.3;
        accepted += drafted.4;
    }
    assert!(accepted > 20 && proposed > accepted, "{accepted} of {proposed}");
}

/// R-52, R-56: the baseline's certificate covers no grammar; a strategy registered for shaped lanes does.
#[test]
fn grammar_needs_a_certificate_that_allows_it() {
    let mut h = engine_with(SUPPORTS[0], |options| options.descriptor.verify_rows = true);
    let grammar = h.engine.grammar_create(LIST).expect("it compiles");
    for (config, status, code) in [
        ("", admit_status::REJECTED, Status::RejectCertUnmatched as i32 as u32),
        ("shaped=1", admit_status::ADMITTED, 0),
    ] {
        register_strategy(&mut h, &StrategyBuilder::new("prompt-lookup").config(config)).expect("granted");
        let certificate = h.engine.strategy_certificates()[0];
        let shaped = u8::from(!config.is_empty());
        assert_eq!((certificate.grammar_allowed, certificate.logit_bias_allowed), (shaped, shaped));
        let staged = h.prompt(&[1, 2]);
        let change = |admit: &mut LaneAdmit| (admit.grammar_handle, admit.strategy_slot) = (grammar, 1);
        let events = ok(&mut h, |plan| plan.admit_with(change, 1, staged).prefill(1, 0, 2));
        let result = events.admit_for(1).expect("a result");
        assert_eq!((result.status, result.reject_code), (status, code), "a rejected lane borrows no grammar");
    }
}
