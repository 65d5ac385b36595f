//! `tokenizer.json` through the `tokenizers` crate against our own encoders, on the same vocabulary; and files that are wrong.

#[allow(dead_code, reason = "not every test draws in every way")]
#[path = "common/random.rs"]
mod random;

use ictus::checkpoint::{Checkpoint, SpecialTokens};
use ictus::tokenizer::{DecodeOptions, EncodeOptions, TokenStream, Tokenizer, TokenizerError, VocabularyParts};
use random::Random;
use serde_json::{Value, json};

const EVERY_WAY: [EncodeOptions; 4] = [
    EncodeOptions { add_special: false, parse_special: false },
    EncodeOptions { add_special: false, parse_special: true },
    EncodeOptions { add_special: true, parse_special: false },
    EncodeOptions { add_special: true, parse_special: true },
];

fn random_text(random: &mut Random) -> String {
    let pieces = [
        "the ",
        " a",
        "and",
        " said",
        "Tim",
        "\n",
        "  ",
        "'s",
        "123",
        "12",
        " \n\n",
        "<|begin|>",
        "<|turn|>",
        "<|end|>",
        "<s>",
        "\u{e9}",
        "\u{4e16}\u{754c}",
        "\u{1f600}",
        "!?",
        ".\n",
        " wed",
        "ab",
        "abab",
        "\u{2581}",
    ];
    (0..random.below(30)).map(|_| *random.pick(&pieces)).collect()
}

fn assert_same(json: &Tokenizer, own: &Tokenizer, test: &str) {
    assert_eq!(json.vocab_size(), own.vocab_size());
    for id in 0..own.vocab_size() as u32 {
        assert_eq!(json.token_bytes(id), own.token_bytes(id), "token {id}");
        assert_eq!(json.is_control(id), own.is_control(id), "token {id}");
    }
    assert_eq!((json.bos(), json.eos()), (own.bos(), own.eos()));
    assert_eq!((json.adds_bos(), json.adds_eos()), (own.adds_bos(), own.adds_eos()));
    let mut random = Random::new(test);
    for _ in 0..1500 {
        let text = random_text(&mut random);
        for options in EVERY_WAY {
            let ids = json.encode(&text, options).unwrap();
            assert_eq!(ids, own.encode(&text, options).unwrap(), "{text:?} {options:?}");
            for special in [false, true] {
                let options = DecodeOptions { special };
                assert_eq!(json.decode(&ids, options).unwrap(), own.decode(&ids, options).unwrap(), "{text:?}");
                let mut stream = TokenStream::new(json, options);
                let mut streamed: String = ids.iter().map(|&id| stream.push(id).unwrap()).collect();
                streamed += &stream.finish();
                let whole = own.decode(&ids, options).unwrap();
                assert!(streamed.ends_with(&*String::from_utf8_lossy(&whole)), "{text:?}");
            }
        }
    }
}

/// The vocabulary of a `tokenizer.json` as a GGUF file would have it.
fn own(json: &Value, model: &str, pre: Option<&str>, special: &SpecialTokens, add_bos: bool) -> Tokenizer {
    let mut tokens = std::collections::BTreeMap::new();
    for (text, id) in json["model"]["vocab"].as_object().unwrap() {
        let is_byte = text.starts_with("<0x");
        tokens.insert(id.as_u64().unwrap(), (text.clone(), if is_byte { 6 } else { 1 }));
    }
    for added in json["added_tokens"].as_array().unwrap() {
        let kind = if added["special"].as_bool().unwrap() { 3 } else { 4 };
        tokens.insert(added["id"].as_u64().unwrap(), (added["content"].as_str().unwrap().to_owned(), kind));
    }
    let merges: Vec<String> = json["model"]["merges"]
        .as_array()
        .unwrap()
        .iter()
        .map(|merge| match merge {
            Value::String(merge) => merge.clone(),
            pair => format!("{} {}", pair[0].as_str().unwrap(), pair[1].as_str().unwrap()),
        })
        .collect();
    // A merged token's score is the place of its merge.
    let place = |text: &str| merges.iter().position(|merge| merge.replace(' ', "") == text);
    let scores: Vec<f32> = tokens.values().map(|(text, _)| place(text).map_or(0.0, |place| -(place as f32))).collect();
    let types: Vec<i32> = tokens.values().map(|(_, kind)| *kind).collect();
    let parts = VocabularyParts {
        model,
        pre,
        tokens: tokens.values().map(|(text, _)| text.as_bytes()).collect(),
        scores: Some(&scores),
        types: Some(&types),
        merges: Some(merges.iter().map(String::as_bytes).collect()),
        special: special.clone(),
        add_bos: Some(add_bos),
        add_eos: Some(false),
        add_space_prefix: Some(false),
    };
    Tokenizer::from_parts(&parts).unwrap()
}

fn directory(name: &str) -> (Checkpoint, Value) {
    let path = format!("{}/tests/data/{name}", env!("CARGO_MANIFEST_DIR"));
    let json = std::fs::read_to_string(format!("{path}/tokenizer.json")).unwrap();
    (Checkpoint::open(path).unwrap(), serde_json::from_str(&json).unwrap())
}

#[test]
fn llama_directory_encodes_as_our_own_encoder_does() {
    let (checkpoint, json) = directory("hf-llama");
    let vocabulary = checkpoint.vocabulary().unwrap();
    let own = own(&json, "gpt2", Some("llama-bpe"), vocabulary.special(), true);
    assert_same(&Tokenizer::new(vocabulary).unwrap(), &own, "llama_directory_encodes_as_our_own_encoder_does");
}

#[test]
fn qwen_directory_encodes_as_our_own_encoder_does() {
    let (checkpoint, json) = directory("hf-qwen3");
    let vocabulary = checkpoint.vocabulary().unwrap();
    let tokenizer = Tokenizer::new(vocabulary).unwrap();
    let own = own(&json, "gpt2", Some("qwen2"), vocabulary.special(), tokenizer.adds_bos());
    assert_same(&tokenizer, &own, "qwen_directory_encodes_as_our_own_encoder_does");
}

/// A small vocabulary in the manner of Gemma: U+2581 for a space, bytes for what is no token.
fn marked() -> Value {
    let mut vocab = serde_json::Map::new();
    let texts = ["<unk>", "<s>", "</s>"].map(str::to_owned).into_iter();
    let bytes = (0..256).map(|byte| format!("<0x{byte:02X}>"));
    let merges =
        ["a b", "\u{2581} a", "t h", "th e", "\u{2581} the", "ab ab", "\u{2581}a nd", "n d", "\u{2581} \u{2581}"];
    let letters = "\u{2581}abdehnst12\n".chars().map(String::from);
    for text in texts.chain(bytes).chain(letters).chain(merges.map(|merge| merge.replace(' ', ""))) {
        let id = vocab.len();
        vocab.insert(text, json!(id));
    }
    let special = |id: u32, text: &str| json!({"id": id, "content": text, "single_word": false, "lstrip": false, "rstrip": false, "normalized": false, "special": true});
    json!({
        "version": "1.0", "truncation": null, "padding": null,
        "added_tokens": [special(0, "<unk>"), special(1, "<s>"), special(2, "</s>")],
        "normalizer": {"type": "Replace", "pattern": {"String": " "}, "content": "\u{2581}"},
        "pre_tokenizer": null,
        "post_processor": {"type": "TemplateProcessing",
            "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
            "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 0}}],
            "special_tokens": {"<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]}}},
        "decoder": {"type": "Sequence", "decoders": [
            {"type": "Replace", "pattern": {"String": "\u{2581}"}, "content": " "}, {"type": "ByteFallback"}, {"type": "Fuse"}]},
        "model": {"type": "BPE", "dropout": null, "unk_token": "<unk>", "continuing_subword_prefix": null,
            "end_of_word_suffix": null, "fuse_unk": true, "byte_fallback": true, "ignore_merges": false,
            "vocab": vocab, "merges": merges},
    })
}

fn special() -> SpecialTokens {
    SpecialTokens { bos: Some(1), eos: Some(2), unknown: Some(0), ..SpecialTokens::default() }
}

#[test]
fn marked_vocabulary_encodes_as_our_own_encoder_does() {
    let json = marked();
    let own = own(&json, "llama", None, &special(), true);
    // Our own control tokens include the unknown token, as the file's special flag does.
    let tokenizer = Tokenizer::from_json(&json.to_string(), &special()).unwrap();
    assert_same(&tokenizer, &own, "marked_vocabulary_encodes_as_our_own_encoder_does");
    assert_eq!(tokenizer.eog_ids(), [2]);
}

#[test]
fn decoder_that_strips_a_space_strips_it_once() {
    let mut json = marked();
    json["decoder"]["decoders"]
        .as_array_mut()
        .unwrap()
        .push(json!({"type": "Strip", "content": " ", "start": 1, "stop": 0}));
    let tokenizer = Tokenizer::from_json(&json.to_string(), &special()).unwrap();
    let ids = tokenizer.encode(" the  and", EncodeOptions::default()).unwrap();
    assert_eq!(tokenizer.decode(&ids, DecodeOptions::default()).unwrap(), b"the  and");
    let mut stream = TokenStream::new(&tokenizer, DecodeOptions::default());
    let streamed: String = ids.iter().map(|&id| stream.push(id).unwrap()).collect();
    assert_eq!(streamed, " the  and", "a continuation keeps it");
}

#[test]
fn wrong_files_are_refused() {
    fn refusal(change: impl Fn(&mut Value)) -> TokenizerError {
        let mut json = marked();
        change(&mut json);
        Tokenizer::from_json(&json.to_string(), &special()).expect_err("refused")
    }
    for _ in 0..2 {
        for text in ["", "{}", "[]", "null", "{\"model\": 1}"] {
            assert!(matches!(Tokenizer::from_json(text, &special()), Err(TokenizerError::Json { .. })), "{text}");
        }
        let error = refusal(|json| json["model"]["type"] = json!("WordPiece"));
        assert!(
            matches!(&error, TokenizerError::UnknownPart { part: "model", kind } if kind == "WordPiece"),
            "{error:?}"
        );
        let error = refusal(|json| json["decoder"] = json!({"type": "WordPiece", "prefix": "##", "cleanup": true}));
        assert!(
            matches!(&error, TokenizerError::UnknownPart { part: "decoder", kind } if kind == "WordPiece"),
            "{error:?}"
        );
        let error = refusal(|json| json["decoder"] = Value::Null);
        assert!(matches!(&error, TokenizerError::UnknownPart { part: "decoder", kind } if kind == "none"), "{error:?}");
        let error = refusal(|json| json["decoder"]["decoders"][0] = json!({"type": "Sequence", "decoders": []}));
        assert!(matches!(&error, TokenizerError::UnknownPart { part: "decoder", .. }), "{error:?}");
        let error = refusal(|json| json["model"]["merges"][0] = json!("a zz"));
        assert!(matches!(error, TokenizerError::Json { .. }), "{error:?}");
        let error = refusal(|json| json["model"]["vocab"]["far"] = json!(4_000_000_000_u32));
        assert!(matches!(error, TokenizerError::Size { .. }), "{error:?}");
    }
    let far = SpecialTokens { eos: Some(100_000), ..SpecialTokens::default() };
    let error = Tokenizer::from_json(&marked().to_string(), &far).expect_err("refused");
    assert!(matches!(error, TokenizerError::SpecialOutOfRange { name: "eos", id: 100_000, .. }), "{error:?}");
}
