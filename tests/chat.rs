//! Chat templates: the real model's against its recorded prompts, our own against what jinja2 made of them, and hostile ones against
//! the limits.

#[path = "common/models.rs"]
mod models;

use ictus::chat::{ChatError, ChatOptions, ChatTemplate, MAX_TEMPLATE_BYTES, Message};
use ictus::checkpoint::Checkpoint;
use ictus::tokenizer::Tokenizer;
use serde_json::Value;

fn read(path: &str) -> Value {
    let path = format!("{}/tests/{path}", env!("CARGO_MANIFEST_DIR"));
    serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

fn messages(value: &Value) -> Vec<Message<'_>> {
    let text = |value: &'_ Value| value.as_str().unwrap().to_owned().leak() as &str;
    let message = |message: &Value| Message { role: text(&message["role"]), content: text(&message["content"]) };
    value.as_array().unwrap().iter().map(message).collect()
}

#[test]
fn smollm2_renders_and_encodes_its_chats_as_recorded() {
    let Some(path) = models::find(models::SMOLLM2) else { return };
    let checkpoint = Checkpoint::open(path).unwrap();
    let tokenizer = Tokenizer::new(checkpoint.vocabulary().unwrap()).unwrap();
    let template = ChatTemplate::for_model(checkpoint.chat_template().unwrap(), &tokenizer).unwrap();
    let golden = read(&format!("golden/{}.chat.json", models::SMOLLM2));
    let cases = golden["cases"].as_array().unwrap();
    assert_eq!(cases.len(), 4);
    for case in cases {
        let messages = messages(&case["messages"]);
        let options = ChatOptions::default();
        assert_eq!(template.render(&messages, options).unwrap(), case["prompt"].as_str().unwrap());
        let ids: Vec<u32> = case["ids"].as_array().unwrap().iter().map(|id| id.as_u64().unwrap() as u32).collect();
        assert_eq!(template.encode(&tokenizer, &messages, options).unwrap(), ids);
    }
}

#[test]
fn templates_render_as_jinja2_renders_them() {
    let fixtures = read("data/chat-templates.json");
    let cases = fixtures["cases"].as_array().unwrap();
    let mut wrong = Vec::new();
    for case in cases {
        let template = ChatTemplate::new(case["template"].as_str().unwrap(), "<s>", "</s>").unwrap();
        let options = ChatOptions {
            add_generation_prompt: case["add_generation_prompt"].as_bool().unwrap(),
            now_unix_s: case["now_unix_s"].as_i64(),
        };
        let rendered = template.render(&messages(&case["messages"]), options);
        match (&case["prompt"], rendered) {
            (Value::String(prompt), Ok(rendered)) if *prompt == rendered => {}
            (Value::Null, Err(ChatError::Refused { message })) if case["refused"] == message => {}
            // What the engines say about other errors is their own affair.
            (Value::Null, Err(ChatError::Render { .. })) if case["name"] == "attribute of what is not there" => {}
            (expected, got) => wrong.push(format!("{}: expected {expected:?}, got {got:?}", case["name"])),
        }
    }
    assert!(cases.len() > 40);
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn refusal_of_a_template_is_told_apart_and_leaves_it_usable() {
    let template = ChatTemplate::new(
        "{% if messages | length > 1 %}{{ raise_exception('one at a time') }}{% endif %}{{ messages[0].content }}",
        "",
        "",
    )
    .unwrap();
    let one = [Message { role: "user", content: "x" }];
    let two = [one[0], one[0]];
    for _ in 0..2 {
        let refused = template.render(&two, ChatOptions::default());
        assert!(matches!(refused, Err(ChatError::Refused { message }) if message == "one at a time"));
        assert_eq!(template.render(&one, ChatOptions::default()).unwrap(), "x");
    }
}

#[test]
fn templates_that_are_no_jinja_are_refused_with_the_line() {
    for (source, expected) in [("a\n{% if %}", 2), ("{{ 'x }}", 1), ("\n\n{% endfor %}", 3), ("{% unknown %}", 1)] {
        let got = ChatTemplate::new(source, "", "");
        assert!(matches!(got, Err(ChatError::Syntax { line, .. }) if line == expected), "{source:?}: {got:?}");
    }
    let long = " ".repeat(MAX_TEMPLATE_BYTES + 1);
    assert!(matches!(ChatTemplate::new(&long, "", ""), Err(ChatError::TooLong { bytes }) if bytes == long.len()));
}

#[test]
fn hostile_templates_end_in_a_typed_error() {
    let loops = "{% for a in range(99999) %}{% for b in range(99999) %}x{% endfor %}{% endfor %}";
    let doubling =
        "{% set ns = namespace(x='xxxxxxxx') %}{% for i in range(60) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}";
    let recursion = "{% macro f(x) %}{{ f(x) }}{% endmacro %}{{ f(1) }}";
    let repeated = "{{ 'x' * 1000000000000 }}";
    let list = "{% for one in [1] * 90000000 %}{{ one }}{% endfor %}";
    for source in [loops, doubling, recursion, repeated, list] {
        let template = ChatTemplate::new(source, "", "").unwrap();
        for _ in 0..2 {
            let got = template.render(&[], ChatOptions::default());
            assert!(
                matches!(got, Err(ChatError::TooCostly | ChatError::Render { .. })),
                "{source}: {} bytes",
                got.map_or(0, |got| got.len())
            );
        }
    }
    // Deep nesting in the parser.
    let parens = format!("{{{{ {}1{} }}}}", "(".repeat(100_000), ")".repeat(100_000));
    assert!(matches!(ChatTemplate::new(&parens, "", ""), Err(ChatError::Syntax { .. })));
    let blocks = "{% if true %}".repeat(50_000);
    assert!(matches!(ChatTemplate::new(&blocks, "", ""), Err(ChatError::Syntax { .. })));
}

/// Values nested as deep as the fuel allows, built, printed and dropped: on the caller's stack each of these would end the process.
#[test]
fn deeply_nested_values_do_not_overflow_the_stack() {
    let brackets = |open: &str, close: &str| format!("{}ns.x{}", open.repeat(40), close.repeat(40));
    for inner in
        [brackets("[", "]"), brackets("{'a': ", "}"), "[ns.x]".to_owned(), "[ns.x] | batch(1) | list".to_owned()]
    {
        for tail in ["", "{{ ns.x }}", "{{ ns.x | tojson }}", "{{ ns.x | tojson(indent=8) }}", "{{ ns.x == ns.x }}"] {
            for rounds in [100, 1000, 99_999] {
                let source = format!(
                    "{{% set ns = namespace(x=[1]) %}}{{% for i in range({rounds}) %}}{{% set ns.x = {inner} %}}{{% endfor %}}{tail}"
                );
                let template = ChatTemplate::new(&source, "", "").unwrap();
                match template.render(&[], ChatOptions::default()) {
                    Ok(_) | Err(ChatError::TooCostly | ChatError::Render { .. }) => {}
                    Err(other) => panic!("{source}: {other:?}"),
                }
            }
        }
    }
}

#[test]
fn templates_see_nothing_but_their_variables() {
    for source in ["{% include 'x' %}", "{% extends 'x' %}", "{% import 'x' as y %}", "{{ open('/etc/passwd') }}"] {
        let got = ChatTemplate::new(source, "", "").and_then(|template| template.render(&[], ChatOptions::default()));
        assert!(got.is_err(), "{source}: {got:?}");
    }
}
