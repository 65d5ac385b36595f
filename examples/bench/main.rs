//! Measures this engine on one model, one JSON object per line, so that the lines can stand beside a peer's.
//!
//! `cargo run --release --example bench -- --model M --threads 2 --json`
//!
//! Tests: `pp` (a prompt of n tokens in one tick), `tg` (64 ticks of one token after `depth` tokens of context), `batch` (64
//! ticks of one token for each of B lanes, after a 128-token prompt each), `prefix` (the same with one prompt of 1024 tokens
//! for all 32 lanes), `load` (open, and first token after it, in a process of its own), `rss` (peak memory of such a
//! process after a 512-token prompt and 32 tokens), `limits` (what this machine can do at all). Each figure is the median of
//! `--runs` runs after a warm-up.

mod host;
mod limits;

use std::path::PathBuf;
use std::process::Command;
use std::time::Instant;

use host::{Failure, Host, tokens};
use ictus::ModelOptions;
use serde_json::{Value, json};

const USAGE: &str = "\
usage: bench --model PATH [--threads N] [--only pp,tg,batch,prefix,load,rss,limits] [--runs N] [--json]
             [--pp 32,128,512] [--depth 0,512,2048] [--lanes 2,4,8,16,32] [--steps 64]";

struct Args {
    model: PathBuf,
    threads: u32,
    only: Vec<String>,
    runs: usize,
    json: bool,
    pp: Vec<usize>,
    depths: Vec<usize>,
    lanes: Vec<usize>,
    steps: usize,
    child: bool,
}

fn numbers(text: &str) -> Result<Vec<usize>, Failure> {
    Ok(text.split(',').map(|n| n.trim().parse()).collect::<Result<_, _>>()?)
}

fn parse_args() -> Result<Args, Failure> {
    use lexopt::prelude::*;
    let mut args = Args {
        model: "models/ictus-tiny.gguf".into(),
        threads: 0,
        only: ["limits", "load", "rss", "pp", "tg", "batch", "prefix"].map(String::from).to_vec(),
        runs: 5,
        json: false,
        pp: vec![32, 128, 512],
        depths: vec![0, 512, 2048],
        lanes: vec![2, 4, 8, 16, 32],
        steps: 64,
        child: false,
    };
    let mut parser = lexopt::Parser::from_env();
    while let Some(arg) = parser.next()? {
        match arg {
            Long("model") => args.model = parser.value()?.into(),
            Long("threads") => args.threads = parser.value()?.parse()?,
            Long("only") => args.only = parser.value()?.string()?.split(',').map(String::from).collect(),
            Long("runs") => args.runs = parser.value()?.parse::<usize>()?.max(1),
            Long("json") => args.json = true,
            Long("pp") => args.pp = numbers(&parser.value()?.string()?)?,
            Long("depth") => args.depths = numbers(&parser.value()?.string()?)?,
            Long("lanes") => args.lanes = numbers(&parser.value()?.string()?)?,
            Long("steps") => args.steps = parser.value()?.parse()?,
            Long("child") => args.child = true,
            other => return Err(format!("{}\n{USAGE}", other.unexpected()).into()),
        }
    }
    if args.threads == 0 {
        args.threads = std::thread::available_parallelism().map_or(1, |n| n.get() as u32);
    }
    Ok(args)
}

/// Prints one line: the common fields, then those of the test.
fn say(args: &Args, test: &str, fields: Value) {
    let mut line = json!({
        "engine": "ictus",
        "version": env!("CARGO_PKG_VERSION"),
        "model": args.model.file_name().map(|name| name.to_string_lossy()),
        "threads": args.threads,
        "path": "exact",
        "test": test,
    });
    if let (Value::Object(line), Value::Object(fields)) = (&mut line, fields) {
        line.extend(fields);
    }
    if args.json {
        println!("{line}");
    } else {
        let fields =
            line.as_object().into_iter().flatten().filter(|(key, _)| !matches!(key.as_str(), "engine" | "version"));
        let cells: Vec<String> = fields.map(|(key, value)| format!("{key} {value}")).collect();
        println!("{}", cells.join("  "));
    }
}

fn round(value: f64, digits: i32) -> f64 {
    let scale = 10f64.powi(digits);
    (value * scale).round() / scale
}

/// Median and best of `runs` seconds, as the fields of a line that did `count` tokens.
fn figures(mut runs: Vec<f64>, count: usize) -> Value {
    runs.sort_by(f64::total_cmp);
    let median = runs[runs.len() / 2];
    json!({
        "runs": runs.len(),
        "median_s": round(median, 6),
        "best_s": round(runs[0], 6),
        "tok_s": round(count as f64 / median, 2),
    })
}

fn merge(mut fields: Value, more: Value) -> Value {
    if let (Value::Object(fields), Value::Object(more)) = (&mut fields, more) {
        fields.extend(more);
    }
    fields
}

/// Runs `once` for a warm-up and then `args.runs` times; each call answers its own seconds.
fn measure(args: &Args, mut once: impl FnMut() -> Result<f64, Failure>) -> Result<Vec<f64>, Failure> {
    once()?;
    (0..args.runs).map(|_| once()).collect()
}

fn prefill(args: &Args, host: &mut Host) -> Result<(), Failure> {
    for &n in &args.pp {
        if !host.fits(n + 1) {
            say(args, "pp", merge(json!({ "n": n }), json!({ "skipped": TOO_LONG })));
            continue;
        }
        let prompt = tokens(n, host.vocab(), n as u32);
        let runs = measure(args, || {
            let seconds = host.prompt(1, &prompt)?;
            host.retire(&[1])?;
            Ok(seconds)
        })?;
        say(args, "pp", merge(json!({ "n": n }), figures(runs, n)));
    }
    Ok(())
}

fn decode(args: &Args, host: &mut Host) -> Result<(), Failure> {
    for &depth in &args.depths {
        if !host.fits(depth.max(1) + args.steps + 1) {
            say(args, "tg", merge(json!({ "depth": depth }), json!({ "skipped": TOO_LONG })));
            continue;
        }
        // Depth 0 still needs one token to start from.
        let prompt = tokens(depth.max(1), host.vocab(), 1);
        let runs = measure(args, || {
            host.prompt(1, &prompt)?;
            let seconds = host.steps(&[1], args.steps)?;
            host.retire(&[1])?;
            Ok(seconds)
        })?;
        say(args, "tg", merge(json!({ "depth": depth, "steps": args.steps }), figures(runs, args.steps)));
    }
    Ok(())
}

fn batch(args: &Args, host: &mut Host) -> Result<(), Failure> {
    for &lanes in &args.lanes {
        let tags: Vec<u64> = (1..=lanes as u64).collect();
        let runs = measure(args, || {
            for &tag in &tags {
                host.prompt(tag, &tokens(128, host.vocab(), tag as u32))?;
            }
            let seconds = host.steps(&tags, args.steps)?;
            host.retire(&tags)?;
            Ok(seconds)
        })?;
        let fields = json!({ "lanes": lanes, "prompt": 128, "steps": args.steps });
        say(args, "batch", merge(fields, figures(runs, lanes * args.steps)));
    }
    Ok(())
}

const TOO_LONG: &str = "longer than the model's context";

/// Lanes of the `prefix` test, and the tokens that their prompts have in common.
const PREFIX_LANES: u64 = 32;
const PREFIX_TOKENS: usize = 1024;

/// Lanes whose prompts are the same. Without a prefix cache each computes and keeps the prefix for itself (`shared` says so), so it is
/// computed once and the steps go on from run to run: a run stands `steps` tokens deeper than the one before.
fn prefix(args: &Args) -> Result<(), Failure> {
    let fields = json!({ "lanes": PREFIX_LANES, "prefix": PREFIX_TOKENS, "steps": args.steps, "shared": false });
    let lane_tokens = PREFIX_TOKENS + args.steps * (args.runs + 1) + 1;
    let options = ModelOptions {
        pool_tokens: PREFIX_LANES * (lane_tokens as u64 + 16),
        context_tokens: u32::try_from(lane_tokens)?,
        ..options(args, 0)
    };
    let mut host = match Host::open(&args.model, &options) {
        Ok(host) => host,
        Err(reason) => {
            say(args, "prefix", merge(fields, json!({ "skipped": reason.to_string() })));
            return Ok(());
        }
    };
    let tags: Vec<u64> = (1..=PREFIX_LANES).collect();
    let prompt = tokens(PREFIX_TOKENS, host.vocab(), 1);
    for &tag in &tags {
        host.prompt(tag, &prompt)?;
    }
    let runs = measure(args, || host.steps(&tags, args.steps))?;
    say(args, "prefix", merge(fields, figures(runs, tags.len() * args.steps)));
    Ok(())
}

/// What the child process of `load` and `rss` prints.
fn child(args: &Args) -> Result<(), Failure> {
    let started = Instant::now();
    let mut host = Host::open(&args.model, &options(args, 0))?;
    let open_s = started.elapsed().as_secs_f64();
    let first_token_s = host.prompt(1, &tokens(1, host.vocab(), 1))?;
    host.retire(&[1])?;
    if host.fits(512 + 33) {
        host.prompt(2, &tokens(512, host.vocab(), 512))?;
        host.steps(&[2], 32)?;
    }
    println!("{}", json!({ "open_s": open_s, "first_token_s": first_token_s, "peak_bytes": limits::peak_bytes() }));
    Ok(())
}

fn in_children(args: &Args) -> Result<Vec<Value>, Failure> {
    let one = |_| {
        let output = Command::new(std::env::current_exe()?)
            .args(["--child", "--threads", &args.threads.to_string(), "--model"])
            .arg(&args.model)
            .output()?;
        if !output.status.success() {
            return Err(String::from_utf8_lossy(&output.stderr).into_owned().into());
        }
        Ok(serde_json::from_slice(&output.stdout)?)
    };
    (0..args.runs).map(one).collect()
}

fn median_of(rows: &[Value], key: &str) -> f64 {
    let mut values: Vec<f64> = rows.iter().filter_map(|row| row[key].as_f64()).collect();
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

fn options(args: &Args, context_tokens: u32) -> ModelOptions {
    ModelOptions { threads: args.threads, context_tokens, max_lanes: 64, ..ModelOptions::default() }
}

fn main() -> Result<(), Failure> {
    let args = parse_args()?;
    if args.child {
        return child(&args);
    }
    let wants = |test: &str| args.only.iter().any(|name| name == test);
    if wants("limits") {
        let found = limits::measure(args.threads as usize);
        say(
            &args,
            "limits",
            json!({ "read_gbs": found.read_gbs, "int8_gops": found.int8_gops, "fma_gflops": found.fma_gflops }),
        );
    }
    if wants("load") || wants("rss") {
        let rows = in_children(&args)?;
        let runs = rows.len();
        if wants("load") {
            let (open_s, first_token_s) = (median_of(&rows, "open_s"), median_of(&rows, "first_token_s"));
            say(
                &args,
                "load",
                json!({ "runs": runs, "open_s": round(open_s, 4), "first_token_s": round(first_token_s, 4) }),
            );
        }
        if wants("rss") {
            say(&args, "rss", json!({ "runs": runs, "peak_bytes": median_of(&rows, "peak_bytes") as u64 }));
        }
    }
    if wants("pp") || wants("tg") || wants("batch") {
        let mut host = Host::open(&args.model, &options(&args, 0))?;
        if wants("pp") {
            prefill(&args, &mut host)?;
        }
        if wants("tg") {
            decode(&args, &mut host)?;
        }
        if wants("batch") {
            batch(&args, &mut host)?;
        }
    }
    if wants("prefix") {
        prefix(&args)?;
    }
    Ok(())
}
