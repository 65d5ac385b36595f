//! The tokenizer library from C (section 16, W-89): what it answers is what the tokenizer of this crate answers.

use std::process::Command;

use ictus::checkpoint::Checkpoint;
use ictus::tokenizer::{EncodeOptions, Tokenizer};

use crate::support::{has, library_folder, root, run};

/// W-89.
#[test]
fn ws_23_tokenizer_library_answers_a_host_in_c() {
    if !has("cc") {
        println!("skipped: no cc");
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let program = folder.path().join("tokenizer_library");
    let source = root().join("tests/hosts/tokenizer_library.c");
    let mut compile = Command::new("cc");
    compile.args(["-std=c11", "-Wall", "-Wextra", "-Werror", "-O1", "-D_GNU_SOURCE", "-o"]).arg(&program).arg(source);
    run(compile.arg("-ldl"));
    let library = library_folder().join("libictus.so");
    let model = root().join("models/ictus-tiny.gguf");
    let checkpoint = Checkpoint::open(&model).expect("the model of the project");
    let tokenizer = Tokenizer::new(checkpoint.vocabulary().expect("it has one")).expect("a known kind");
    let mut texts = vec!["Once upon a time".to_owned(), "naïve 日本 \u{1F600}".to_owned()];
    // The text of a special token inside a text is that token.
    if let Some((_, text)) = tokenizer.control_tokens().find(|(_, text)| !text.is_empty()) {
        texts.push(format!("a{}b", String::from_utf8_lossy(text)));
    }
    for text in texts {
        let ids = tokenizer.encode(&text, EncodeOptions { add_special: false, parse_special: true }).expect("short");
        let ids: Vec<String> = ids.iter().map(u32::to_string).collect();
        let specials = (0..tokenizer.vocab_size() as u32).filter(|&id| tokenizer.is_special(id)).count();
        let expected = format!(
            "{}\nvocab {} bos {} eos {} specials {} template {}\n",
            ids.join(" "),
            tokenizer.vocab_size(),
            tokenizer.bos().map_or(-1, i64::from),
            tokenizer.eos().or(tokenizer.end_ids().next()).unwrap_or(u32::MAX),
            specials,
            checkpoint.chat_template().map_or(-1, |template| template.len() as i64),
        );
        assert_eq!(run(Command::new(&program).arg(&library).arg(&model).arg(&text)), expected);
    }
}
