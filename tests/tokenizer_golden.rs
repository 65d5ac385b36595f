//! The two real vocabularies against what llama.cpp answers: every string of `tests/golden/cases.json`, encoded three ways and decoded
//! three ways, and every text of a prompt.

#[path = "common/models.rs"]
mod models;

use std::time::Instant;

use ictus::checkpoint::Checkpoint;
use ictus::tokenizer::{DecodeOptions, EncodeOptions, TokenStream, Tokenizer};
use models::{GEMMA3, SMOLLM2};
use serde_json::Value;

const PLAIN: EncodeOptions = EncodeOptions { add_special: false, parse_special: false };
const SPECIAL: EncodeOptions = EncodeOptions { add_special: false, parse_special: true };
const FULL: EncodeOptions = EncodeOptions { add_special: true, parse_special: true };

fn golden(file: &str) -> Value {
    let path = format!("{}/tests/golden/{file}", env!("CARGO_MANIFEST_DIR"));
    serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

fn open(model: &str) -> Option<(Checkpoint, Tokenizer)> {
    let checkpoint = Checkpoint::open(models::find(model)?).unwrap();
    let tokenizer = Tokenizer::new(checkpoint.vocabulary().unwrap()).unwrap();
    Some((checkpoint, tokenizer))
}

fn ids(value: &Value) -> Vec<u32> {
    value.as_array().unwrap().iter().map(|id| id.as_u64().unwrap() as u32).collect()
}

fn bytes(value: &Value) -> Vec<u8> {
    let digits = value.as_str().unwrap();
    (0..digits.len()).step_by(2).map(|i| u8::from_str_radix(&digits[i..i + 2], 16).unwrap()).collect()
}

fn assert_strings(model: &str) {
    let Some((_, tokenizer)) = open(model) else { return };
    let cases = golden(&format!("{model}.tokenizer.json"));
    let cases = cases["cases"].as_array().unwrap();
    // The recorded strings are those of the list, all of them.
    let listed = golden("cases.json");
    let texts: Vec<&Value> = cases.iter().map(|case| &case["text"]).collect();
    assert_eq!(texts, listed["tokenizer"].as_array().unwrap().iter().collect::<Vec<_>>());
    let mut wrong = Vec::new();
    for case in cases {
        let text = case["text"].as_str().unwrap();
        let mut check = |what: &str, same: bool| {
            if !same {
                wrong.push(format!("{what} of {text:?}"));
            }
        };
        for (name, options) in [("ids", PLAIN), ("ids_special", SPECIAL), ("ids_full", FULL)] {
            check(name, tokenizer.encode(text, options).unwrap() == ids(&case[name]));
        }
        let (plain, special) = (ids(&case["ids"]), ids(&case["ids_special"]));
        let (shown, hidden) = (DecodeOptions { special: true }, DecodeOptions { special: false });
        check("detok", tokenizer.decode(&plain, hidden).unwrap() == bytes(&case["detok_hex"]));
        check("detok_special", tokenizer.decode(&special, shown).unwrap() == bytes(&case["detok_special_hex"]));
        check("detok_skip", tokenizer.decode(&special, hidden).unwrap() == bytes(&case["detok_skip_hex"]));
        let pieces: Vec<Vec<u8>> = case["pieces_hex"].as_array().unwrap().iter().map(bytes).collect();
        check("pieces", special.iter().map(|&id| tokenizer.token_bytes(id).unwrap()).eq(&pieces));
        let mut stream = TokenStream::new(&tokenizer, shown);
        let mut streamed: String = special.iter().map(|&id| stream.push(id).unwrap()).collect();
        streamed += &stream.finish();
        check("stream", streamed == String::from_utf8_lossy(&pieces.concat()));
    }
    assert!(wrong.is_empty(), "{model} differs from llama.cpp:\n{}", wrong.join("\n"));
}

#[test]
fn smollm2_encodes_and_decodes_every_string_as_llama_cpp_does() {
    assert_strings(SMOLLM2);
}

#[test]
fn gemma3_encodes_and_decodes_every_string_as_llama_cpp_does() {
    assert_strings(GEMMA3);
}

fn assert_prompts(model: &str) {
    let Some((_, tokenizer)) = open(model) else { return };
    let logits = golden(&format!("{model}.logits.json"));
    for prompt in logits["prompts"].as_array().unwrap() {
        let options =
            EncodeOptions { add_special: true, parse_special: prompt["parse_special"].as_bool().unwrap_or(false) };
        let encoded = tokenizer.encode(prompt["text"].as_str().unwrap(), options).unwrap();
        assert_eq!(encoded, ids(&prompt["ids"]), "{model}: prompt {}", prompt["name"]);
    }
    let perplexity = golden(&format!("{model}.perplexity.json"));
    for text in perplexity["texts"].as_array().unwrap() {
        let encoded = tokenizer.encode(text["text"].as_str().unwrap(), FULL).unwrap();
        assert_eq!(encoded, ids(&text["ids"]), "{model}: text {}", text["name"]);
    }
}

#[test]
fn smollm2_encodes_long_prompts_as_llama_cpp_does() {
    assert_prompts(SMOLLM2);
}

#[test]
fn gemma3_encodes_long_prompts_as_llama_cpp_does() {
    assert_prompts(GEMMA3);
}

fn assert_roles(model: &str) {
    let Some((checkpoint, tokenizer)) = open(model) else { return };
    let meta = golden(&format!("{model}.meta.json"));
    let meta = &meta["meta"];
    assert_eq!(tokenizer.eog_ids(), ids(&meta["eog_ids"]));
    assert_eq!(tokenizer.vocab_size() as u64, meta["vocab_size"].as_u64().unwrap());
    assert_eq!(tokenizer.vocab_size(), checkpoint.config().vocab);
    let id = |id: Option<u32>| id.map_or(-1, i64::from);
    let tokens = &meta["tokens"];
    assert_eq!(id(tokenizer.bos()), tokens["bos"]);
    assert_eq!(id(tokenizer.eos()), tokens["eos"]);
    assert_eq!(id(tokenizer.eot()), tokens["eot"]);
    assert_eq!(id(tokenizer.pad()), tokens["pad"]);
    assert_eq!(tokenizer.adds_bos(), meta["add_bos"].as_bool().unwrap());
    assert_eq!(tokenizer.adds_eos(), meta["add_eos"].as_bool().unwrap());
    assert_eq!(tokenizer.token_bytes(tokens["nl"].as_u64().unwrap() as u32), Some(&b"\n"[..]));
    assert_eq!(tokenizer.end_ids().next(), tokenizer.eos());
    assert_eq!(tokenizer.end_ids().count(), tokenizer.eog_ids().len());
}

#[test]
fn smollm2_has_the_special_tokens_that_llama_cpp_finds() {
    assert_roles(SMOLLM2);
}

#[test]
fn gemma3_has_the_special_tokens_that_llama_cpp_finds() {
    assert_roles(GEMMA3);
}

#[test]
fn vocabularies_are_built_in_tens_of_milliseconds() {
    for model in [SMOLLM2, GEMMA3] {
        let Some((checkpoint, _)) = open(model) else { continue };
        let start = Instant::now();
        let tokenizer = Tokenizer::new(checkpoint.vocabulary().unwrap()).unwrap();
        let build_ms = start.elapsed().as_secs_f64() * 1e3;
        println!("{model}: {} tokens built in {build_ms:.1} ms", tokenizer.vocab_size());
        // Generous: the machine may be doing other things.
        assert!(build_ms < 500.0, "{build_ms} ms");
    }
}
