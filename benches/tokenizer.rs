//! Building a vocabulary, encoding and decoding, on the two real vocabularies (`scripts/fetch-models.sh`). Each case checks its result.
//!
//! Texts of a megabyte: `prose` repeats its words, as prose does; `rough` is made of random tokens, so that hardly a word comes twice;
//! the others are the worst that a host could be sent.

#[path = "../tests/common/models.rs"]
mod models;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use ictus::checkpoint::Checkpoint;
use ictus::tokenizer::{DecodeOptions, EncodeOptions, Tokenizer};

const TEXT_BYTES: usize = 1 << 20;

fn prose() -> String {
    let path = format!("{}/tests/golden/cases.json", env!("CARGO_MANIFEST_DIR"));
    let cases: serde_json::Value =
        serde_json::from_str(&std::fs::read_to_string(path).expect("the file is there")).expect("the file is JSON");
    let prompts = cases["prompts"]["gemma3"].as_array().expect("a list of prompts");
    let all: String = prompts.iter().filter_map(|prompt| prompt["text"].as_str()).collect::<Vec<_>>().join("\n\n");
    all.repeat(TEXT_BYTES / all.len() + 1)
}

fn rough(tokenizer: &Tokenizer) -> String {
    let mut state = 1u64;
    let mut text = String::new();
    while text.len() < TEXT_BYTES {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let id = (state >> 33) as u32 % tokenizer.vocab_size() as u32;
        let bytes = tokenizer.token_bytes(id).expect("the id is in the vocabulary");
        if !tokenizer.is_special(id) {
            text.extend(std::str::from_utf8(bytes));
        }
    }
    text
}

fn tokenizer(c: &mut Criterion) {
    for model in [models::SMOLLM2, models::GEMMA3] {
        let Some(path) = models::find(model) else { continue };
        let checkpoint = Checkpoint::open(path).expect("the model opens");
        let vocabulary = checkpoint.vocabulary().expect("the model has a vocabulary");
        let tokenizer = Tokenizer::new(vocabulary).expect("the vocabulary is known");
        let mut group = c.benchmark_group(model);
        group.sample_size(10);
        group.bench_function("build", |b| {
            b.iter(|| {
                let built = Tokenizer::new(vocabulary).expect("the vocabulary is known");
                assert_eq!(built.vocab_size(), checkpoint.config().vocab);
                built
            });
        });
        let options = EncodeOptions { add_special: false, parse_special: true };
        let texts = [
            ("prose", prose()),
            ("rough", rough(&tokenizer)),
            ("letters", "a".repeat(TEXT_BYTES)),
            ("spaces", " ".repeat(TEXT_BYTES)),
            ("marks", "\u{301}".repeat(TEXT_BYTES / 2)),
        ];
        for (name, text) in texts {
            group.throughput(Throughput::Bytes(text.len() as u64));
            let ids = tokenizer.encode(&text, options).expect("the text is encoded");
            group.bench_function(format!("encode {name}"), |b| {
                b.iter(|| {
                    let encoded = tokenizer.encode(&text, options).expect("the text is encoded");
                    assert_eq!(encoded.len(), ids.len());
                    encoded
                });
            });
            if name == "prose" {
                group.bench_function("decode prose", |b| {
                    b.iter(|| {
                        let bytes = tokenizer.decode(&ids, DecodeOptions::default()).expect("the ids are known");
                        assert_eq!(bytes, text.as_bytes());
                        bytes
                    });
                });
            }
        }
        group.finish();
    }
}

criterion_group!(benches, tokenizer);
criterion_main!(benches);
