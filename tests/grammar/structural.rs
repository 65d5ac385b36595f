//! RS-15 .. RS-17: structural tags.

use ictus::engine::Engine;
use ictus::record::constant::finish;
use serde_json::Value;

use super::scenarios::with_grammar;
use super::words::*;

fn triggered(flags: &str) -> String {
    format!(
        r#"{{"type": "structural_tag", "format": {{"type": "triggered_tags", "triggers": ["<call>"], {flags} "tags": [{{
            "begin": "<call>", "end": "</call>", "content": {{"type": "json_schema", "json_schema": {{"type": "object",
            "properties": {{"ok": {{"type": "boolean"}}}}, "required": ["ok"]}}}}}}]}}}}"#
    )
}

/// What comes before, in and after the first call. Free text is any tokens, so only the call has to be whole characters.
fn parts(tokens: &[u32]) -> (&[u32], String, &[u32]) {
    let place = |token: u32| tokens.iter().position(|&t| t == token).expect("a call that ends");
    let (begin, end) = (place(CALL), place(CALL_END));
    (&tokens[..begin], text(&tokens[begin + 1..end]), &tokens[end + 1..])
}

/// RS-15: R-72, R-65.
#[test]
fn rs_15_call_in_free_text_is_valid_and_the_text_goes_on() {
    for support in SUPPORTS {
        let mut h = engine(support);
        let grammar = h.engine.grammar_create_structural(&triggered("")).expect("it compiles");
        admit(&mut h, 1, &[1, 2, 3], &encode("hi<call>"), with_grammar(grammar));
        let (start, finish) = decode(&mut h, 1, 3);
        assert_eq!((text(&start).as_str(), finish), ("hi<call>", finish::NONE));
        let sequence = h.engine.lane_sequence(1).expect("the lane is live");
        h.engine.primitives_mut().script(sequence, &encode(r#"{"ok":true}</call>bye"#));
        let (rest, finish) = decode(&mut h, 1, 15);
        let whole: Vec<u32> = start.into_iter().chain(rest).collect();
        let (before, body, after) = parts(&whole);
        assert_eq!((text(before), text(after)), ("hi".into(), "bye".into()));
        assert!(serde_json::from_str::<Value>(&body).expect("valid JSON")["ok"].is_boolean(), "{body}");
        assert_ne!(finish, finish::GRAMMAR);
        // Unscripted, the body is held to the schema all the same.
        let other = h.engine.grammar_create_structural(&triggered("")).expect("it compiles");
        admit(&mut h, 2, &[1, 2, 3], &[CALL], with_grammar(other));
        let (tokens, finish) = decode(&mut h, 2, 400);
        let (before, body, _) = parts(&tokens);
        // An end token ends the text, also where the host asked to ignore it; nothing else does (R-65).
        let ended = tokens.last().is_some_and(|token| [END, STOP].contains(token));
        assert!(before.is_empty());
        assert_eq!(finish, if ended { finish::GRAMMAR } else { finish::NONE });
        assert!(serde_json::from_str::<Value>(&body).expect("valid JSON")["ok"].is_boolean(), "{body}");
    }
}

/// RS-16: R-72.
#[test]
fn rs_16_at_least_one_begins_with_the_call() {
    for support in SUPPORTS {
        let mut h = engine(support);
        let document = triggered(r#""at_least_one": true,"#);
        let grammar = h.engine.grammar_create_structural(&document).expect("it compiles");
        admit(&mut h, 1, &[1, 2, 3], &encode("hi"), with_grammar(grammar));
        assert_eq!(decode(&mut h, 1, 1).0, [CALL]);
    }
}

/// RS-17: R-65, R-72: markers as tokens, an optional block before, the end token last.
#[test]
fn rs_17_header_and_body_end_by_the_end_token() {
    let document = r#"{"type": "sequence", "elements": [
        {"type": "optional", "content": {"type": "tag", "begin": {"type": "token", "token": "<channel>"},
            "content": {"type": "any_tokens"}, "end": {"type": "token", "token": "<message>"}}},
        {"type": "tag", "begin": "<call>run to=", "content": {"type": "json_schema",
            "json_schema": {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"],
            "x-guidance": {"whitespace_flexible": false}}}, "end": {"type": "token", "token": "<end>"}}]}"#;
    for support in SUPPORTS {
        let mut h = engine(support);
        let grammar = h.engine.grammar_create_structural(document).expect("it compiles");
        let script: Vec<u32> = [CHANNEL].into_iter().chain(encode("think")).chain([MESSAGE]).collect();
        let change = |admit: &mut ictus::record::LaneAdmit| {
            admit.grammar_handle = grammar;
            admit.params.flags = 0;
        };
        admit(&mut h, 1, &[1, 2, 3], &script, change);
        let (tokens, finish) = decode(&mut h, 1, 120);
        let said = text(&tokens);
        let rest = said.strip_prefix("<channel>think<message>").expect("the scripted analysis is kept");
        let body = rest.strip_prefix("<call>run to=").expect("the header is literal");
        let body = body.strip_suffix("<end>").expect("the end token is last");
        assert!(serde_json::from_str::<Value>(body).expect("valid JSON")["ok"].is_boolean(), "{body}");
        assert_eq!((tokens.last(), finish), (Some(&END), finish::EOS));
        assert!(!tokens.contains(&STOP) && tokens.contains(&CALL) && !tokens.contains(&CALL_END));
    }
}
