//! The `generate` example as a person runs it: flags, JSON, refusals; the answers of the fetched models through the whole engine.

#[path = "common/gguf.rs"]
#[allow(dead_code, reason = "not every test file that takes this module uses all of it")]
mod gguf;
#[path = "common/lora.rs"]
#[allow(dead_code, reason = "not every test file that takes this module uses all of it")]
mod lora;
#[path = "common/models.rs"]
mod models;
#[path = "common/random.rs"]
#[allow(dead_code, reason = "not every test file that takes this module uses all of it")]
mod random;

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use models::{GEMMA3, SMOLLM2};
use serde_json::Value;

/// Cargo builds the examples beside the tests.
fn command(arguments: &[&str]) -> Command {
    let test = std::env::current_exe().expect("a test knows its path");
    let folder = test.parent().and_then(Path::parent).expect("tests lie in deps");
    let mut command = Command::new(folder.join("examples").join("generate"));
    command.current_dir(env!("CARGO_MANIFEST_DIR")).args(arguments);
    command
}

fn generate(arguments: &[&str]) -> Output {
    command(arguments).output().expect("the example runs")
}

fn json(arguments: &[&str]) -> Value {
    object(generate(arguments))
}

fn object(output: Output) -> Value {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("one object")
}

fn golden(name: &str, kind: &str) -> Value {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(format!("tests/golden/{name}.{kind}.json"));
    serde_json::from_slice(&std::fs::read(path).expect("committed")).expect("json")
}

#[test]
fn default_run_prints_a_story_and_is_the_same_every_time() {
    let (one, two) = (generate(&[]), generate(&["--threads", "1"]));
    assert!(one.status.success());
    let story = String::from_utf8(one.stdout).expect("text");
    assert!(story.starts_with("Once upon a time") && story.len() > 200, "{story}");
    assert_eq!(story.as_bytes(), two.stdout);
}

#[test]
fn seed_names_the_draws() {
    let run = |seed| json(&["--json", "--temperature", "0.9", "--top-p", "0.95", "--max-tokens", "40", "--seed", seed]);
    let (one, same, other) = (run("1"), run("1"), run("2"));
    assert_eq!(one["tokens"], same["tokens"]);
    assert_ne!(one["tokens"], other["tokens"]);
}

/// Asking for a device that is not there ends in one sentence that says why, whatever the machine and the build have.
#[test]
fn device_that_is_not_there_is_one_sentence() {
    for (name, says) in [("cuda:4294967295", "no device: "), ("tpu", "no device named tpu")] {
        let output = generate(&["--device", name, "--max-tokens", "1"]);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(1), "{said}");
        assert!(output.stdout.is_empty() && said.trim().lines().count() == 1, "{said}");
        assert!(said.contains(says) && !said.contains("panicked"), "{said}");
        println!("{}", said.trim());
    }
}

/// R-61, R-65: the text is a document of the schema, and the run ends with it; a document that is no schema is refused with a reason.
#[test]
fn schema_makes_the_text_a_document() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("schema.json");
    let schema = r#"{"type": "object", "properties": {"name": {"type": "string", "maxLength": 12}, "age": {"type": "integer",
        "minimum": 0, "maximum": 99}}, "required": ["name", "age"]}"#;
    std::fs::write(&file, schema).expect("written");
    let file = file.to_string_lossy().into_owned();
    for draws in [&[][..], &["--temperature", "0.8", "--seed", "5"][..]] {
        let object = json(&[&["--json", "--max-tokens", "800", "--schema", &file], draws].concat());
        let text = object["text"].as_str().expect("a text");
        let document: Value = serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"));
        assert!(document["name"].is_string() && document["age"].as_u64().is_some_and(|age| age < 100), "{document}");
        assert_eq!((document.as_object().map(serde_json::Map::len), &object["finish"]), (Some(2), &"grammar".into()));
    }
    let object = json(&["--json", "--regex", "(yes|no), (yes|no)"]);
    assert!(
        ["yes, yes", "yes, no", "no, yes", "no, no"].contains(&object["text"].as_str().expect("a text")),
        "{object}"
    );
    std::fs::write(&file, r#"{"enum": []}"#).expect("written");
    let refused = generate(&["--schema", &file]);
    let reason = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(!refused.status.success() && reason.contains("no text fits the grammar"), "{reason}");
}

/// The log-probabilities are compared, not the tokens: an adapter of random numbers moves every logit, but it may leave the largest one
/// where it was for all thirty tokens.
#[test]
fn adapter_changes_the_story() {
    let mut random = random::Random::new("adapter of the example");
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("models/ictus-tiny.gguf");
    let checkpoint = ictus::checkpoint::Checkpoint::open(path).expect("it opens");
    let lora = lora::Lora::random(&mut random, checkpoint.config(), 8, &[0, 1, 2, 3, 4, 5, 6]);
    let folder = tempfile::tempdir().expect("a folder");
    let peft = lora.write_peft(folder.path());
    let run = |more: &[&str]| {
        json(&[&["--json", "--max-tokens", "30", "--ignore-eos", "--logprobs", "1"], more].concat())["logprobs"].clone()
    };
    let adapted = run(&["--adapter", peft.to_str().expect("UTF-8")]);
    assert_eq!(adapted, run(&["--adapter", peft.to_str().expect("UTF-8")]));
    assert_ne!(adapted, run(&[]));
    let refused = generate(&["--adapter", "/nonexistent"]);
    assert!(!refused.status.success());
    assert!(String::from_utf8_lossy(&refused.stderr).contains("/nonexistent"));
}

#[test]
fn json_has_the_documented_members() {
    let object = json(&["--json", "--max-tokens", "5", "--logprobs", "3", "--ignore-eos"]);
    assert_eq!(object["tokens"].as_array().map(Vec::len), Some(5));
    assert_eq!(object["finish"], "length");
    assert!(object["text"].is_string() && object["prompt_tokens"].is_array());
    for number in ["load_ms", "prefill_tok_s", "decode_tok_s"] {
        assert!(object[number].as_f64().is_some_and(|number| number > 0.0), "{number}");
    }
    let logprobs = object["logprobs"].as_array().expect("a list");
    assert_eq!(logprobs.len(), 5);
    for (record, token) in logprobs.iter().zip(object["tokens"].as_array().expect("a list")) {
        // Greedy: the token is the first of its alternatives.
        assert_eq!((&record["token"], &record["top"][0][0]), (token, token));
        assert_eq!(record["top"].as_array().map(Vec::len), Some(3));
        assert!(record["logprob"].as_f64().is_some_and(|logprob| logprob <= 0.0));
    }
}

/// The same text, tokens, log-probabilities and drafts with the engine in a process of its own.
#[test]
fn worker_says_what_the_engine_of_this_process_says() {
    let Some(worker) = option_env!("CARGO_BIN_EXE_ictus-worker") else {
        println!("skipped: an engine in a process of its own: built without the feature worker");
        return;
    };
    let in_worker = |program: &str, arguments: &[&str]| {
        let output = command(arguments).arg("--worker").env("ICTUS_WORKER", program).output();
        output.expect("the example runs")
    };
    let here = generate(&["--max-tokens", "30"]);
    assert!(here.status.success() && here.stdout.len() > 60, "{here:?}");
    assert_eq!(in_worker(worker, &["--max-tokens", "30"]).stdout, here.stdout);

    let folder = tempfile::tempdir().expect("a folder");
    let schema = folder.path().join("schema.json");
    std::fs::write(&schema, r#"{"type": "array", "items": {"enum": ["a", "b"]}, "maxItems": 4}"#).expect("written");
    let schema = schema.to_string_lossy().into_owned();
    let runs: [&[&str]; 3] = [
        &["--json", "--max-tokens", "40", "--temperature", "0.9", "--seed", "7", "--logprobs", "3"],
        &["--json", "--max-tokens", "80", "--ignore-eos", "--draft", "prompt-lookup"],
        &["--json", "--max-tokens", "80", "--schema", &schema],
    ];
    for arguments in runs {
        let (here, there) = (json(arguments), object(in_worker(worker, arguments)));
        // Not how many tokens were proposed and accepted: whether drafts pay is a matter of time (R-45).
        for member in ["prompt_tokens", "tokens", "text", "finish", "logprobs"] {
            assert_eq!(there[member], here[member], "{member} of {arguments:?}");
        }
        assert!(here["tokens"].as_array().is_some_and(|tokens| !tokens.is_empty()), "{here}");
    }

    // Instructions that round otherwise than the best of the processor, in both.
    let best = ["--json", "--max-tokens", "40", "--logprobs", "0"];
    let portable = [&best[..], &["--instruction-set", "portable"]].concat();
    let (here, there) = (json(&portable), object(in_worker(worker, &portable)));
    assert_eq!(there["logprobs"], here["logprobs"]);
    if ictus::InstructionSet::best() == ictus::InstructionSet::Portable {
        println!("skipped: other instructions than the portable ones: this processor has none");
    } else {
        assert_ne!(json(&best)["logprobs"], here["logprobs"]);
    }

    // What a worker cannot do, and a worker that is not there.
    let trace = folder.path().join("trace.json").to_string_lossy().into_owned();
    for (program, arguments, reason) in [
        (worker, ["--adapter", "/nonexistent"], "--adapter needs"),
        (worker, ["--regex", "yes|no"], "--regex needs"),
        (worker, ["--timeline", &trace], "--timeline needs"),
        ("/nonexistent/worker", ["--json", "--prompt=x"], "/nonexistent/worker"),
    ] {
        let refused = in_worker(program, &arguments);
        let said = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert_eq!((refused.status.code(), refused.stdout.len()), (Some(1), 0), "{arguments:?}: {said}");
        assert!(said.contains(reason), "{arguments:?}: {said}");
    }
    assert!(!Path::new(&trace).exists(), "a refused run leaves no file");
}

#[test]
fn refusals_say_what_is_wrong_and_exit_with_1() {
    let cases: [(&[&str], &str); 10] = [
        (&["--no-such-flag"], "usage"),
        (&["--model", "nowhere.gguf"], "nowhere.gguf"),
        (&["--device", "cuda:4294967295"], "no device"),
        (&["--device", "cuda:62,63"], "no device"),
        (&["--device", "cuda:1,2,1"], "each is named once"),
        (&["--device", "abacus"], "abacus"),
        (&["--instruction-set", "mmx"], "mmx"),
        (&["--threads", "100000"], "threads"),
        (&["--chat"], "chat template"),
        (&["--token-ids", "1,x"], "invalid digit"),
    ];
    for (arguments, reason) in cases {
        for _ in 0..2 {
            let output = generate(arguments);
            assert_eq!(output.status.code(), Some(1), "{arguments:?}");
            let stderr = String::from_utf8_lossy(&output.stderr);
            assert!(stderr.contains(reason), "{arguments:?}: {stderr}");
            assert!(output.stdout.is_empty());
        }
    }
}

#[test]
fn tokenize_prints_the_ids_that_the_model_would_see() {
    for name in [SMOLLM2, GEMMA3] {
        let Some(path) = models::find(name) else { continue };
        let path = path.to_string_lossy().into_owned();
        let cases = golden(name, "tokenizer");
        // A zero byte cannot be an argument of a process.
        let texts = cases["cases"].as_array().expect("a list").iter().step_by(6);
        for case in texts.filter(|case| !case["text"].as_str().is_some_and(|text| text.contains('\0'))) {
            let text = case["text"].as_str().expect("a text");
            let flag = format!("--prompt={text}");
            assert_eq!(json(&["--model", &path, "--tokenize", &flag]), case["ids_full"], "{text:?}");
        }
    }
}

#[test]
fn greedy_tokens_through_the_engine_are_those_of_the_exact_computation() {
    for name in [SMOLLM2, GEMMA3] {
        let Some(path) = models::find(name) else { continue };
        let path = path.to_string_lossy().into_owned();
        let prompts = golden(name, "logits");
        for prompt in prompts["prompts"].as_array().expect("a list").iter().take(4) {
            let ids: Vec<String> = prompt["ids"].as_array().expect("a list").iter().map(|id| id.to_string()).collect();
            let ids = format!("--token-ids={}", ids.join(","));
            let exact = &prompt["greedy"]["exact"];
            let object = json(&["--model", &path, &ids, "--max-tokens=32", "--ignore-eos", "--json"]);
            let got = object["tokens"].as_array().expect("a list");
            let margins = exact["margin"].as_array().expect("a list");
            let sure = margins.iter().position(|margin| margin.as_f64().is_some_and(|margin| margin < 1e-3));
            let sure = sure.unwrap_or(32).min(32);
            assert_eq!(got[..sure], exact["ids"].as_array().expect("a list")[..sure], "{name} {}", prompt["name"]);
        }
    }
}

#[test]
fn chat_puts_the_prompt_into_the_template() {
    let Some(path) = models::find(SMOLLM2) else { return };
    let path = path.to_string_lossy().into_owned();
    let chats = golden(SMOLLM2, "chat");
    let one_turn = chats["cases"].as_array().expect("a list").iter().find(|case| {
        let messages = case["messages"].as_array().expect("a list");
        messages.len() == 1 && messages[0]["role"] == "user"
    });
    let case = one_turn.expect("golden has a chat of one user turn");
    let prompt = format!("--prompt={}", case["messages"][0]["content"].as_str().expect("a text"));
    assert_eq!(json(&["--model", &path, "--chat", "--tokenize", &prompt]), case["ids"]);
}
