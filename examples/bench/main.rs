//! Measures this engine on one model, one JSON object per line, so that the lines can stand beside a peer's.
//!
//! `cargo run --release --example bench -- --model M --threads 2 --json`
//!
//! Tests: `pp` (a prompt of n tokens in one tick), `tg` (64 ticks of one token after `depth` tokens of context), `batch` (64
//! ticks of one token for each of B lanes, after a 128-token prompt each), `prefix` (the same with one prompt of `--prefix`
//! tokens for all 32 lanes, which is run once and seeds them all). In these lines `of_limit` is the part of the speed that the
//! machine's `limit` would allow (`roofline.rs`). Others: `draft` (one lane on a text that repeats itself, with prompt lookup, and
//! `plain_tok_s` without), `mask` (what a token of a text under a grammar costs beside the step), `load` (open, and first token after it, in a process of its own), `rss` (peak memory of such a
//! process after a 512-token prompt and 32 tokens), `idle` (processor time and sleeps of the engine's threads in a second in which it has nothing
//! to do, before its first tick and behind one), `oversubscription` (decode with one, two and four threads for each processor in turn; `of_matched`
//! is its rate to that with one), `limits` (what this machine can do at all). Without a model, in
//! microseconds: `tick` (every lane decodes a token over a runtime whose step is free), `match` (a span of 32 768 tokens among
//! 10 000 cached prefixes), `fork` (of 32 768 tokens on pages of 16). Each figure is the median of
//! `--runs` runs after a warm-up; of three where 16 lanes or more run.
//!
//! `said` is a digest of all tokens of a line: of two runs with the same flags it is the same, also with `--worker`, which puts the engine into a process
//! of its own (`ictus-worker`, found as docs/worker.md says) and leaves out what is about this process.

mod args;
mod bookkeeping;
mod draft;
mod host;
mod limits;
mod masks;
mod rest;
mod roofline;

use std::process::Command;
use std::time::Instant;

use args::{Args, kv_name};
use draft::Drafts;
use host::{Digest, Failure, Host, tokens};
use ictus::engine::StrategyBuilder;
use ictus::{Arithmetic, ModelOptions};
use limits::Limits;
use roofline::{Least, Work};
use serde_json::{Value, json};

/// Tests that a worker has no part in, or whose part in it cannot be seen from here.
const HERE: [&str; 6] = ["tick", "match", "fork", "mask", "rss", "idle"];

/// Prints one line: the common fields, then those of the test.
fn say(args: &Args, test: &str, fields: Value) {
    let mut line = json!({
        "engine": "ictus",
        "version": env!("CARGO_PKG_VERSION"),
        "model": args.model.file_name().map(|name| name.to_string_lossy()),
        "threads": args.threads,
        "path": args.arithmetic.name(),
        "kv": kv_name(args.kv_type()),
        "instruction_set": args.instruction_set.name(),
        "test": test,
    });
    if let (Value::Object(line), Value::Object(fields)) = (&mut line, fields) {
        if args.worker {
            line.insert("worker".into(), true.into());
        }
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

/// Runs `once` for a warm-up and then `runs` times; each call answers its own seconds.
fn measure(runs: usize, mut once: impl FnMut() -> Result<f64, Failure>) -> Result<Vec<f64>, Failure> {
    once()?;
    (0..runs).map(|_| once()).collect()
}

/// Runs of a test of so many lanes: as in the peer's bench, many lanes are run three times.
fn runs(args: &Args, lanes: usize) -> usize {
    if lanes >= 16 { args.runs.min(3) } else { args.runs }
}

/// What the machine could do, and what the model makes it do.
struct Roof {
    /// None when they were not asked for.
    limits: Option<Limits>,
    work: Work,
}

impl Roof {
    fn least(&self, of: impl FnOnce(&Work, &Limits) -> Least) -> Option<Least> {
        self.limits.as_ref().map(|limits| of(&self.work, limits))
    }
}

/// The fields of a test, its figures, and how they stand to the limit.
fn say_figures(args: &Args, test: &str, fields: Value, figures: Value, least: Option<&Least>) {
    let median = figures["median_s"].as_f64().unwrap_or(f64::NAN);
    let of_limit = |least: &Least| json!({ "of_limit": round(least.seconds / median, 3), "limit": least.limit });
    let of_limit = least.map_or_else(|| json!({}), of_limit);
    say(args, test, merge(fields, merge(figures, of_limit)));
}

fn prefill(args: &Args, host: &mut Host, roof: &Roof) -> Result<(), Failure> {
    for &n in &args.pp {
        if !host.fits(n + 1) {
            say(args, "pp", merge(json!({ "n": n }), json!({ "skipped": TOO_LONG })));
            continue;
        }
        let prompt = tokens(n, host.vocab(), n as u32);
        let runs = measure(args.runs, || {
            let seconds = host.prompt(1, &prompt)?;
            host.retire(&[1])?;
            Ok(seconds)
        })?;
        let fast = args.arithmetic == Arithmetic::Fast;
        let least = roof.least(|work, limits| work.prompt(limits, fast, n));
        say_figures(args, "pp", json!({ "n": n, "said": host.take_said() }), figures(runs, n), least.as_ref());
    }
    Ok(())
}

/// Lanes with a prompt each, again and again: a prompt is run once and kept in the prefix cache, so that every run finds it as it was.
struct Prompts(Vec<Vec<u32>>);

impl Prompts {
    fn publish(host: &mut Host, prompts: Vec<Vec<u32>>) -> Result<Self, Failure> {
        prompts.iter().try_for_each(|prompt| host.publish(prompt).map(|_| ()))?;
        Ok(Self(prompts))
    }

    /// Seconds of `steps` steps of all lanes behind their prompts.
    fn steps(&self, host: &mut Host, steps: usize) -> Result<f64, Failure> {
        let tags: Vec<u64> = (1..=self.0.len() as u64).collect();
        for (&tag, prompt) in tags.iter().zip(&self.0) {
            host.seeded(tag, prompt)?;
        }
        let seconds = host.steps(&tags, steps)?;
        host.retire(&tags)?;
        Ok(seconds)
    }

    fn forget(self, host: &mut Host) -> Result<(), Failure> {
        self.0.iter().try_for_each(|prompt| host.forget(prompt))
    }
}

fn decode(args: &Args, host: &mut Host, roof: &Roof) -> Result<(), Failure> {
    for &depth in &args.depths {
        if !host.fits(depth.max(1) + args.steps + 1) {
            say(args, "tg", merge(json!({ "depth": depth }), json!({ "skipped": TOO_LONG })));
            continue;
        }
        // Depth 0 still needs one token to start from.
        let prompts = Prompts::publish(host, vec![tokens(depth.max(1), host.vocab(), 1)])?;
        let runs = measure(args.runs, || prompts.steps(host, args.steps))?;
        prompts.forget(host)?;
        let fast = args.arithmetic == Arithmetic::Fast;
        let least = roof.least(|work, limits| work.steps(limits, fast, 1, depth, 0, args.steps));
        let fields = json!({ "depth": depth, "steps": args.steps, "said": host.take_said() });
        say_figures(args, "tg", fields, figures(runs, args.steps), least.as_ref());
    }
    Ok(())
}

/// Tokens of a prompt of the `batch` test.
const BATCH_PROMPT: usize = 128;

fn batch(args: &Args, host: &mut Host, roof: &Roof) -> Result<(), Failure> {
    for &lanes in &args.lanes {
        let prompt = |lane| tokens(BATCH_PROMPT, host.vocab(), lane as u32);
        let prompts = (1..=lanes).map(prompt).collect();
        let prompts = Prompts::publish(host, prompts)?;
        let runs = measure(runs(args, lanes), || prompts.steps(host, args.steps))?;
        prompts.forget(host)?;
        let fields = json!({ "lanes": lanes, "prompt": BATCH_PROMPT, "steps": args.steps, "said": host.take_said() });
        let fast = args.arithmetic == Arithmetic::Fast;
        let least = roof.least(|work, limits| work.steps(limits, fast, lanes, BATCH_PROMPT, 0, args.steps));
        say_figures(args, "batch", fields, figures(runs, lanes * args.steps), least.as_ref());
    }
    Ok(())
}

const TOO_LONG: &str = "longer than the model's context";

/// Lanes of the `prefix` test.
const PREFIX_LANES: u64 = 32;

/// Lanes whose prompts are the same: it runs once, is published, and seeds them all. The pool has room for one prompt and what each
/// lane adds, so that lanes which did not share would not fit. A run stands `steps` tokens deeper than the one before.
fn prefix(args: &Args, roof: &Roof) -> Result<(), Failure> {
    let times = runs(args, PREFIX_LANES as usize);
    let lane_tokens = args.prefix + args.steps * (times + 1) + 1;
    let fields = json!({ "lanes": PREFIX_LANES, "prefix": args.prefix, "steps": args.steps });
    let options = ModelOptions {
        pool_tokens: args.prefix as u64 + PREFIX_LANES * (lane_tokens - args.prefix + 32) as u64,
        context_tokens: u32::try_from(lane_tokens)?,
        ..args.options()
    };
    let mut host = match Host::open(args.source(), &options) {
        Ok(host) => host,
        Err(reason) => {
            say(args, "prefix", merge(fields, json!({ "skipped": reason.to_string() })));
            return Ok(());
        }
    };
    let tags: Vec<u64> = (1..=PREFIX_LANES).collect();
    let prompt = tokens(args.prefix, host.vocab(), 1);
    let prefill_s = host.publish(&prompt)?;
    let started = Instant::now();
    let mut shared = 0;
    for &tag in &tags {
        shared = host.seeded(tag, &prompt)?;
    }
    let fields = merge(
        fields,
        json!({
            "shared": shared > 0,
            "shared_tokens": shared,
            "pool_tokens": options.pool_tokens,
            "prefill_s": round(prefill_s, 6),
            "seed_s": round(started.elapsed().as_secs_f64(), 6),
        }),
    );
    let runs = measure(times, || host.steps(&tags, args.steps))?;
    // The middle one of the runs stands so deep.
    let depth = args.prefix + args.steps * (1 + times / 2);
    let (fast, lanes) = (args.arithmetic == Arithmetic::Fast, tags.len());
    let least = roof.least(|work, limits| work.steps(limits, fast, lanes, depth, shared as usize, args.steps));
    let fields = merge(fields, json!({ "said": host.take_said() }));
    say_figures(args, "prefix", fields, figures(runs, tags.len() * args.steps), least.as_ref());
    Ok(())
}

/// What the child process of `load` and `rss` prints.
fn child(args: &Args) -> Result<(), Failure> {
    let started = Instant::now();
    let mut host = Host::open(args.source(), &args.options())?;
    let open_s = started.elapsed().as_secs_f64();
    let first_token_s = host.prompt(1, &tokens(1, host.vocab(), 1))?;
    host.retire(&[1])?;
    if host.fits(512 + 33) {
        host.prompt(2, &tokens(512, host.vocab(), 512))?;
        host.steps(&[2], 32)?;
    }
    println!(
        "{}",
        json!({ "open_s": open_s, "first_token_s": first_token_s, "peak_bytes": limits::peak_bytes(),
        "memory": limits::memory() })
    );
    Ok(())
}

fn in_children(args: &Args) -> Result<Vec<Value>, Failure> {
    let one = |_| {
        let output = Command::new(std::env::current_exe()?)
            .args(["--child", &format!("--{}", args.arithmetic.name()), "--threads", &args.threads.to_string()])
            .args(args.worker.then_some("--worker"))
            .args(["--kv", kv_name(args.kv_type()), "--instruction-set", args.instruction_set.name(), "--model"])
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

/// Lanes of the `tick` lines.
const TICK_LANES: [u64; 4] = [1, 8, 64, 256];
/// Tokens that are matched and forked, and entries that a match is made among.
const LONG_TOKENS: usize = 32 * 1024;
const ENTRIES: usize = 10_000;

/// The tests that need no model.
fn bookkeeping(args: &Args, wants: impl Fn(&str) -> bool) -> Result<(), Failure> {
    if wants("tick") {
        for lanes in TICK_LANES {
            let us = round(bookkeeping::tick_us(lanes)?, 3);
            say(args, "tick", json!({ "lanes": lanes, "us": us }));
        }
    }
    if wants("match") {
        let us = round(bookkeeping::match_us(LONG_TOKENS, ENTRIES)?, 3);
        say(args, "match", json!({ "span": LONG_TOKENS, "entries": ENTRIES, "us": us }));
    }
    if wants("fork") {
        let us = round(bookkeeping::fork_us(LONG_TOKENS)?, 3);
        say(args, "fork", json!({ "tokens": LONG_TOKENS, "us": us }));
    }
    Ok(())
}

/// What an engine without work takes.
fn idle(args: &Args) -> Result<(), Failure> {
    let Some(states) = rest::idle(args.source(), &args.options())? else {
        say(args, "idle", json!({ "skipped": "this system does not say what threads take" }));
        return Ok(());
    };
    for rest::Idle { state, cpu_us, sleeps } in states {
        say(args, "idle", json!({ "state": state, "seconds": 1, "cpu_us": round(cpu_us, 1), "sleeps": sleeps }));
    }
    Ok(())
}

/// Decoding with more threads than processors.
fn oversubscription(args: &Args) -> Result<(), Failure> {
    let processors = std::thread::available_parallelism().map_or(1, |n| n.get() as u32);
    let runs = rest::oversubscription(args.source(), &args.options(), processors, args.steps, args.runs)?;
    let mut matched = f64::NAN;
    for (times, runs) in rest::TIMES.into_iter().zip(runs) {
        let figures = figures(runs, args.steps);
        let rate = figures["tok_s"].as_f64().unwrap_or(f64::NAN);
        if times == 1 {
            matched = rate;
        }
        // The field of the number of threads that all lines have is replaced.
        let about = json!({ "threads": times * processors, "processors": processors, "steps": args.steps,
            "of_matched": round(rate / matched, 3) });
        say(args, "oversubscription", merge(about, figures));
    }
    Ok(())
}

/// Decoding on a text that repeats itself, with prompt lookup and without; the tokens are the same.
fn drafts(args: &Args) -> Result<(), Failure> {
    let strategy = StrategyBuilder::new("prompt-lookup").config("max_draft=7");
    let mut bench = Drafts::open(args.source(), &args.options(), &strategy)?;
    let (mut plain, mut drafted) = (Vec::new(), Vec::new());
    let (mut last, mut said) = (None, Digest::new());
    for run in 0..=args.runs {
        let (without, with) = (bench.run(false, args.steps)?, bench.run(true, args.steps)?);
        if without.tokens != with.tokens {
            return Err("drafts changed a token".into());
        }
        said.take(&with.tokens);
        if run > 0 {
            plain.push(without.seconds);
            drafted.push(with.seconds);
        }
        last = Some((with.proposed, with.accepted));
    }
    let (plain, fields) = (figures(plain, args.steps), figures(drafted, args.steps));
    let (proposed, accepted) = last.unwrap_or_default();
    let about = json!({ "strategy": "prompt-lookup", "steps": args.steps, "proposed": proposed, "accepted": accepted,
        "said": said.to_string(), "plain_tok_s": plain["tok_s"] });
    say(args, "draft", merge(about, fields));
    Ok(())
}

/// What grammars cost: per vocabulary, per schema, and per token.
fn masks(args: &Args) -> Result<(), Failure> {
    let found = masks::measure(&args.model, &args.options(), args.runs)?;
    let us = |time: std::time::Duration| round(time.as_secs_f64() * 1e6, 2);
    let at = |part: f64| found.tokens.get((found.tokens.len().saturating_sub(1) as f64 * part) as usize).copied();
    let [median, p99, most] = [0.5, 0.99, 1.0].map(|part| us(at(part).unwrap_or_default()));
    let fields = json!({ "vocab": found.vocab, "tokens": found.tokens.len(), "median_us": median, "p99_us": p99,
        "max_us": most, "compile_us": us(found.compile), "index_ms": us(found.index) / 1e3 });
    say(args, "mask", fields);
    Ok(())
}

fn main() -> Result<(), Failure> {
    let args = args::parse()?;
    if args.child {
        return child(&args);
    }
    let asked = |test: &str| args.only.iter().any(|name| name == test);
    let wants = |test: &str| asked(test) && !(args.worker && HERE.contains(&test));
    for test in HERE.into_iter().filter(|test| asked(test) && !wants(test)) {
        say(&args, test, json!({ "skipped": "about this process, which has no engine" }));
    }
    let steps = ["pp", "tg", "batch", "prefix"].into_iter().any(wants);
    let limits = (!args.no_limits && (steps || wants("limits")))
        .then(|| limits::measure(args.threads as usize, args.instruction_set));
    if let Some(Limits { read_gbs, int8_gops, fma_gflops }) = limits {
        say(&args, "limits", json!({ "read_gbs": read_gbs, "int8_gops": int8_gops, "fma_gflops": fma_gflops }));
    }
    bookkeeping(&args, wants)?;
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
            let file_bytes = std::fs::metadata(&args.model)?.len();
            let peak = median_of(&rows, "peak_bytes");
            let about = json!({ "runs": runs, "peak_bytes": peak as u64, "file_bytes": file_bytes });
            let last = rows.last().map_or(Value::Null, |row| row["memory"].clone());
            let of_file = json!({ "of_file": round(peak / file_bytes as f64, 3), "at_the_end": last });
            say(&args, "rss", merge(about, of_file));
        }
    }
    if wants("idle") {
        idle(&args)?;
    }
    if wants("oversubscription") {
        oversubscription(&args)?;
    }
    if steps {
        run_steps(&args, &Roof { limits, work: Work::of(&args.model, args.kv_type())? }, wants)?;
    }
    if wants("mask") {
        masks(&args)?;
    }
    if wants("draft") {
        drafts(&args)?;
    }
    Ok(())
}

/// The tests of a model's steps.
fn run_steps(args: &Args, roof: &Roof, wants: impl Fn(&str) -> bool) -> Result<(), Failure> {
    if wants("pp") || wants("tg") || wants("batch") {
        let mut host = Host::open(args.source(), &args.options())?;
        if let Some(path) = &args.timeline {
            host.record(path)?;
        }
        if wants("pp") {
            prefill(args, &mut host, roof)?;
        }
        if wants("tg") {
            decode(args, &mut host, roof)?;
        }
        if wants("batch") {
            batch(args, &mut host, roof)?;
        }
        host.stop_recording()?;
    }
    if wants("prefix") {
        prefix(args, roof)?;
    }
    Ok(())
}
