//! RS-12 .. RS-14, RS-18 .. RS-21: closed grammars, replay, handles, refusals.

use ictus::engine::Engine;
use ictus::record::constant::{finish, sampling};
use ictus::record::{LaneAdmit, Status};
use serde_json::Value;

use super::words::*;

/// An object with one boolean, and no whitespace.
pub(crate) const COMPACT: &str = r#"{"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"],
    "x-guidance": {"whitespace_flexible": false}}"#;

/// The same with whitespace as the engine bounds it.
pub(crate) const SPACED: &str = r#"{"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"]}"#;

pub(crate) fn with_grammar(handle: u32) -> impl Fn(&mut LaneAdmit) + Copy {
    move |admit| admit.grammar_handle = handle
}

/// RS-12: R-64, R-65, T-108.
#[test]
fn rs_12_closed_object_is_valid_and_finishes_by_its_grammar() {
    for support in SUPPORTS {
        let mut h = engine(support);
        let grammar = h.engine.grammar_create(COMPACT).expect("it compiles");
        admit(&mut h, 1, &[1, 2, 3], &[], with_grammar(grammar));
        let (tokens, finish) = decode(&mut h, 1, 64);
        let document: Value = serde_json::from_str(&text(&tokens)).expect("valid JSON");
        let members = document.as_object().expect("an object");
        assert!(members.len() == 1 && members["ok"].is_boolean(), "{document}");
        assert_eq!(finish, finish::GRAMMAR);
        assert_eq!(
            no(&mut h, |plan| plan.decode(1, 1)),
            Status::RejectIllegalCombination,
            "finished lanes refuse decode"
        );
    }
}

/// RS-13: R-69.
#[test]
fn rs_13_whitespace_ends_after_64_blanks() {
    for support in SUPPORTS {
        let mut h = engine(support);
        let grammar = h.engine.grammar_create(SPACED).expect("it compiles");
        let mut script = encode(r#"{"ok":"#);
        script.extend([u32::from(b' '); 200]);
        admit(&mut h, 1, &[1, 2, 3], &script, with_grammar(grammar));
        let (tokens, finish) = decode(&mut h, 1, 300);
        let text = text(&tokens);
        let blanks = text.chars().skip(6).take_while(|c| " \n\r\t".contains(*c)).count();
        assert!((1..=64).contains(&blanks), "{blanks} blanks in {text:?}");
        assert_eq!(blanks, 64, "the model wanted them all");
        assert!(serde_json::from_str::<Value>(&text).expect("valid JSON")["ok"].is_boolean(), "{text:?}");
        assert_eq!(finish, finish::GRAMMAR);
    }
}

/// RS-14: R-62, T-32, T-101.
#[test]
fn rs_14_resumed_lane_goes_on_in_its_grammar() {
    for support in SUPPORTS {
        let mut h = engine(support);
        let grammar = h.engine.grammar_create(COMPACT).expect("it compiles");
        let prompt = [1, 2, 3];
        let start = encode(r#"{"ok""#);
        admit(&mut h, 1, &prompt, &start, with_grammar(grammar));
        let (first, finish) = decode(&mut h, 1, 5);
        assert_eq!((first.as_slice(), finish), (start.as_slice(), finish::NONE));
        ok(&mut h, |plan| plan.retire(1, false));
        let known: Vec<u32> = prompt.iter().chain(&first).copied().collect();
        let resume = |replay: u32| {
            move |admit: &mut LaneAdmit| {
                admit.grammar_handle = grammar;
                admit.grammar_replay = replay;
            }
        };
        for tail in [0, 5] {
            let change = |admit: &mut LaneAdmit| {
                resume(5)(admit);
                admit.decode_replay = tail;
            };
            admit(&mut h, 2, &known, &[], change);
            let (rest, finish) = decode(&mut h, 2, 64);
            let whole: Vec<u32> = first.iter().chain(&rest).copied().collect();
            assert!(serde_json::from_str::<Value>(&text(&whole)).is_ok(), "one text in all: {:?}", text(&whole));
            assert_eq!(finish, finish::GRAMMAR);
            ok(&mut h, |plan| plan.retire(2, false));
        }
        admit(&mut h, 2, &known, &[], resume(0));
        let (anew, _) = decode(&mut h, 2, 64);
        assert!(text(&anew).starts_with('{'), "{:?}", text(&anew));
        ok(&mut h, |plan| plan.retire(2, false));
        let staged = h.prompt(&known);
        for replay in [3, known.len() as u32 + 1, u32::MAX] {
            let status = no(&mut h, |plan| plan.admit_with(resume(replay), 2, staged));
            assert_eq!(status, Status::RejectIllegalCombination, "replay {replay}");
        }
        let status = no(&mut h, |plan| plan.admit_with(|admit| admit.grammar_replay = 5, 2, staged));
        assert_eq!(status, Status::RejectIllegalCombination, "replay without a grammar");
        admit(&mut h, 2, &known, &[], resume(5));
        assert_eq!(decode(&mut h, 2, 64).1, finish::GRAMMAR);
    }
}

/// RS-18: R-62, R-63, T-31, T-72.
#[test]
fn rs_18_handle_serves_one_lane_at_a_time() {
    for support in SUPPORTS {
        let mut h = engine(support);
        let illegal = Status::RejectIllegalCombination;
        let grammar = h.engine.grammar_create(COMPACT).expect("it compiles");
        let staged = h.prompt(&[1, 2, 3]);
        let twice = no(&mut h, |plan| {
            plan.admit_with(with_grammar(grammar), 1, staged).admit_with(with_grammar(grammar), 2, staged)
        });
        assert_eq!(twice, illegal, "used by an earlier admit of the plan");
        admit(&mut h, 1, &[1, 2, 3], &[], with_grammar(grammar));
        assert_eq!(no(&mut h, |plan| plan.admit_with(with_grammar(grammar), 2, staged)), illegal);
        let same_plan = no(&mut h, |plan| plan.retire(1, false).admit_with(with_grammar(grammar), 2, staged));
        assert_eq!(same_plan, illegal, "a retire of the same plan has not run yet");
        let other = h.engine.grammar_create(COMPACT).expect("it compiles");
        let host = |admit: &mut LaneAdmit| {
            admit.grammar_handle = other;
            admit.sampling = sampling::HOST;
        };
        assert_eq!(no(&mut h, |plan| plan.admit_with(host, 2, staged)), illegal);
        assert_eq!(no(&mut h, |plan| plan.admit_with(with_grammar(99), 2, staged)), illegal);
        assert_eq!(h.engine.grammar_free(grammar), Ok(()));
        for _ in 0..2 {
            assert_eq!(h.engine.grammar_free(grammar), Err(Status::UnknownHandle));
        }
        assert_eq!(decode(&mut h, 1, 64).1, finish::GRAMMAR, "the lane keeps what it borrowed");
        ok(&mut h, |plan| plan.retire(1, false));
        assert_eq!(h.engine.grammar_free(grammar), Err(Status::UnknownHandle));
        assert_eq!(no(&mut h, |plan| plan.admit_with(with_grammar(grammar), 2, staged)), illegal);
        for lane in [2, 3] {
            admit(&mut h, lane, &[1, 2, 3], &[], with_grammar(other));
            let (tokens, finish) = decode(&mut h, lane, 64);
            assert!(text(&tokens).starts_with('{'), "usable again from its start");
            assert_eq!(finish, finish::GRAMMAR);
            ok(&mut h, |plan| plan.retire(lane, lane == 2));
        }
        assert_eq!((h.engine.grammar_free(other), h.engine.grammar_free(0)), (Ok(()), Err(Status::UnknownHandle)));
    }
}

/// RS-19.
#[test]
fn rs_19_two_grammars_in_one_tick() {
    for support in SUPPORTS {
        let mut h = engine(support);
        let object = h.engine.grammar_create(COMPACT).expect("it compiles");
        let word = h.engine.grammar_create(r#"{"enum": ["ok", "name"]}"#).expect("it compiles");
        assert_eq!((object, word), (1, 2));
        let (a, b) = (h.prompt(&[1, 2, 3]), h.prompt(&[4, 5]));
        let events = ok(&mut h, |plan| {
            let plan = plan.admit_with(with_grammar(object), 1, a).admit_with(with_grammar(word), 2, b);
            plan.prefill(1, 0, 3).prefill(2, 0, 2).decode(2, 64).decode(1, 64)
        });
        let document: Value = serde_json::from_str(&text(&h.tokens_of(&events, 1))).expect("valid JSON");
        assert!(document["ok"].is_boolean());
        let said = text(&h.tokens_of(&events, 2));
        assert!(["\"ok\"", "\"name\""].contains(&said.as_str()), "{said}");
        assert_eq!(events.emit_for(2).map(|emit| emit.finish), Some(finish::GRAMMAR));
    }
}

/// RS-20: R-60, R-61.
#[test]
fn rs_20_no_vocabulary_is_unsupported_both_ways() {
    if super::engine::lacks("message for why a grammar is refused") {
        return;
    }
    let mut h = engine_with(SUPPORTS[0], |options| options.vocabulary = None);
    let digest = h.engine.state_digest();
    for _ in 0..2 {
        assert_eq!(h.engine.grammar_create(COMPACT), Err(Status::Unsupported));
        let tag = r#"{"type": "const_string", "value": "x"}"#;
        assert_eq!(h.engine.grammar_create_structural(tag), Err(Status::Unsupported));
        assert_eq!(h.engine.grammar_create_regex("a"), Err(Status::Unsupported));
        assert_eq!(h.engine.grammar_create_lark("start: \"a\""), Err(Status::Unsupported));
        assert_eq!(h.engine.grammar_create("not JSON"), Err(Status::RejectBadStruct), "parsing comes first");
        assert_eq!(h.engine.grammar_create_structural("{"), Err(Status::RejectBadStruct));
        assert_eq!(h.engine.grammar_free(1), Err(Status::UnknownHandle));
    }
    assert!(h.engine.grammar_refusal().is_some_and(|reason| reason.starts_with("not JSON")));
    assert_ne!(digest, 0);
    let mut h = engine_with(SUPPORTS[0], |options| {
        options.vocabulary.as_mut().expect("it has one").end_ids.clear();
    });
    assert_eq!(h.engine.grammar_create(COMPACT), Err(Status::Unsupported), "no end token");
}

/// RS-21: R-61, R-72, R-73.
#[test]
fn rs_21_each_refusal_has_its_status() {
    if super::engine::lacks("message for why a grammar is refused") {
        return;
    }
    let mut h = engine(SUPPORTS[0]);
    let tag = r#"{"begin": "<call>", "content": {"type": "any_tokens"}, "end": "</call>"}"#;
    let triggered =
        |trigger: &str| format!(r#"{{"type": "triggered_tags", "triggers": ["{trigger}"], "tags": [{tag}]}}"#);
    let cases = [
        (triggered("hello"), Status::Unsupported),
        ("{\"type\": ".to_owned(), Status::RejectBadStruct),
        (r#"{"type": "json_schema", "json_schema": {}, "style": "xml"}"#.to_owned(), Status::Unsupported),
        (r#"{"type": "token", "token": "<nothing>"}"#.to_owned(), Status::Unsupported),
        (r#"{"type": "triggered_tags", "triggers": ["<call>"], "tags": []}"#.to_owned(), Status::RejectBadStruct),
        (r#"{"type": "poem"}"#.to_owned(), Status::Unsupported),
        (r#"{"type": "const_string"}"#.to_owned(), Status::RejectBadStruct),
        (r#"{"type": "json_schema", "json_schema": {"enum": []}}"#.to_owned(), Status::RejectBadStruct),
    ];
    for (document, status) in cases {
        for _ in 0..2 {
            assert_eq!(h.engine.grammar_create_structural(&document), Err(status), "{document}");
        }
        assert!(h.engine.grammar_refusal().is_some_and(|reason| !reason.is_empty()));
    }
    assert_eq!(h.engine.grammar_create_structural(&triggered("<call>")), Ok(1), "refusals use up no handle");
}
