//! Text: whole characters, stop strings over token boundaries, grammars under pressure.

use ictus::driver::{Driver, DriverOptions, Finish, Grammar, Prompt, Request, RequestId, Sampling};
use ictus::tokenizer::{DecodeOptions, EncodeOptions, TextStream};
use ictus::{Model, ModelOptions};

use super::alone::{Said, Transcript, alone, check};
use super::engine::engine_of;
use super::pressure::check_pages;
use super::random::Random;
use super::tiny;

fn driver(model: &Model, max_lanes: u32) -> Driver<Box<dyn ictus::engine::Engine + Send>> {
    // No room is kept for those that run, so that a small pool overflows.
    let options =
        DriverOptions { max_lanes, tick_tokens: 64, decode_tokens: 2, reserve_tokens: 0, ..DriverOptions::default() };
    Driver::new(engine_of(model), options).expect("a driver").with_tokenizer(model.clone())
}

fn ask(model: &Model, requests: &[Request]) -> Vec<Said> {
    let mut driver = driver(model, 16);
    let ids: Vec<RequestId> = requests.iter().map(|asked| driver.submit(asked.clone()).expect("taken")).collect();
    let mut transcript = Transcript::default();
    transcript.drain(&mut driver);
    ids.iter().map(|id| transcript.answers.remove(id).expect("it said something")).collect()
}

fn drawn(seed: u64) -> Request {
    Request {
        sampling: Sampling { temperature: 1.4, ..Sampling::default() },
        rng_counter_base: ictus::driver::draw_base(seed),
        max_tokens: 60,
        ..Request::text("Once upon a time")
    }
}

/// By definition: the first place at which any string is complete; there, the one that began first.
fn plain(text: &str, stops: &[String]) -> (String, Option<usize>) {
    for end in 1..=text.len() {
        let complete = stops.iter().enumerate().filter(|(_, stop)| text.as_bytes()[..end].ends_with(stop.as_bytes()));
        if let Some((number, stop)) = complete.rev().max_by_key(|(_, stop)| stop.len()) {
            return (text[..end - stop.len()].to_owned(), Some(number));
        }
    }
    (text.to_owned(), None)
}

#[test]
fn stop_strings_end_answers_where_a_search_of_the_whole_text_says() {
    let mut random = Random::new("stop_strings_end_answers_where_a_search_of_the_whole_text_says");
    let model = tiny(ModelOptions::default());
    let requests: Vec<Request> = (0..16).map(|_| drawn(random.next())).collect();
    let whole = ask(&model, &requests);
    for said in &whole {
        let decoded = text_of(&model, said);
        assert_eq!(said.text, decoded, "the pieces make the text of the tokens");
    }
    let mut stopped = 0;
    for _ in 0..6 {
        let with_stops: Vec<Request> = requests
            .iter()
            .zip(&whole)
            .map(|(request, said)| {
                // Parts of what it is going to say, now and then damaged.
                let letters: Vec<char> = said.text.chars().collect();
                let stops = (0..1 + random.below(3)).map(|_| {
                    let from = random.below(letters.len());
                    let mut stop: Vec<char> = letters[from..].iter().copied().take(1 + random.below(9)).collect();
                    if random.below(3) == 0 {
                        *stop.last_mut().expect("it has a letter") = '#';
                    }
                    stop.into_iter().collect::<String>()
                });
                Request { stop_strings: stops.collect(), ..request.clone() }
            })
            .collect();
        for ((said, request), whole) in ask(&model, &with_stops).iter().zip(&with_stops).zip(&whole) {
            let (text, number) = plain(&whole.text, &request.stop_strings);
            assert_eq!(said.text, text, "{:?}", request.stop_strings);
            assert!(whole.tokens.starts_with(&said.tokens));
            match number {
                Some(number) => assert_eq!(said.finish, Some(Finish::StopString(number))),
                None => assert_eq!((&said.finish, &said.tokens), (&whole.finish, &whole.tokens)),
            }
            stopped += usize::from(number.is_some());
        }
    }
    assert!(stopped > 40, "{stopped} of 96 were stopped");
}

/// Text of the tokens, decoded at once; an end token is not part of it.
fn text_of(model: &Model, said: &Said) -> String {
    let (mut stream, mut text) = (TextStream::new(), String::new());
    for &token in &said.tokens {
        let hidden = model.tokenizer().is_control(token) || model.tokenizer().is_eog(token);
        stream.push(if hidden { &[] } else { model.tokenizer().token_bytes(token).expect("a token") }, &mut text);
    }
    stream.finish(&mut text);
    text
}

#[test]
fn cancelled_answer_gives_out_what_was_held_back() {
    let model = tiny(ModelOptions::default());
    let whole = &ask(&model, &[drawn(3)])[0];
    // A stop string that begins as the answer does and never comes: everything is held back as long as it may.
    let never = format!("{}#", whole.text);
    let mut driver = driver(&model, 4);
    let id = driver.submit(Request { stop_strings: vec![never], ..drawn(3) }).expect("taken");
    let mut transcript = Transcript::default();
    for _ in 0..8 {
        driver.step();
        while let Some(event) = driver.next_event() {
            transcript.take(event);
        }
    }
    assert_eq!(transcript.answers[&id].text, "", "it is held back");
    driver.cancel(id);
    transcript.drain(&mut driver);
    let said = &transcript.answers[&id];
    assert_eq!(said.finish, Some(Finish::Cancelled));
    assert!(!said.text.is_empty() && whole.text.starts_with(said.text.trim_end_matches('\u{fffd}')), "{said:?}");
}

/// A grammar's cursor comes back with the lane (T-32).
#[test]
fn grammar_under_pressure_says_what_it_says_alone() {
    let model = tiny(ModelOptions { pool_tokens: 160, context_tokens: 128, ..ModelOptions::default() });
    let schema = r#"{"type":"object","properties":{"name":{"type":"string","maxLength":24},"old":{"type":"integer"}},"required":["name","old"],"additionalProperties":false}"#;
    let ids = model.tokenizer().encode("Tom said", EncodeOptions { add_special: true, parse_special: false });
    let ids = ids.expect("ids");
    let requests: Vec<Request> = (0..8)
        .map(|seed| Request {
            prompt: Prompt::Tokens(ids.clone()),
            grammar: Grammar::Schema(schema.to_owned()),
            max_tokens: 50,
            publish: seed % 2 == 0,
            ..drawn(seed)
        })
        .collect();
    if model.engine().expect("an engine").grammar_create(schema).is_err() {
        println!("skipped: this engine has no grammars");
        return;
    }
    let mut driver = driver(&model, 8);
    let asked: Vec<RequestId> = requests.iter().map(|asked| driver.submit(asked.clone()).expect("taken")).collect();
    let mut transcript = Transcript::default();
    transcript.drain(&mut driver);
    let mut preempted = 0;
    for (id, request) in asked.iter().zip(&requests) {
        check(&transcript.answers[id], &alone(&mut *model.engine().expect("an engine"), request));
        preempted += transcript.answers[id].stats.preemptions;
        if transcript.finish(*id) == Some(&Finish::Grammar) {
            let text = &transcript.answers[id].text;
            assert!(serde_json::from_str::<serde_json::Value>(text).is_ok(), "{text}");
        }
    }
    assert!(preempted > 0, "the pool is small");
    check_pages(driver.close().0);
}

#[test]
fn control_tokens_are_shown_on_request_only() {
    let model = tiny(ModelOptions::default());
    let end = model.tokenizer().eos().expect("the tiny model has an end token");
    // The bias makes it say end tokens only.
    let base = Request { logit_bias: vec![(end, 1000.0)], ignore_eos: true, max_tokens: 3, ..drawn(1) };
    let shown = Request { show_special: true, ..base.clone() };
    let said = ask(&model, &[base, shown]);
    assert_eq!((said[0].tokens.as_slice(), said[0].text.as_str()), (&[end; 3][..], ""));
    let bytes = model.tokenizer().decode(&[end; 3], DecodeOptions { special: true }).expect("tokens");
    assert_eq!(said[1].text.as_bytes(), bytes);
}
