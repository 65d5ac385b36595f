//! Generates text from a prompt: `cargo run --release --example generate -- --help`.

use std::io::{self, IsTerminal, Write};
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use ictus::chat::{ChatOptions, Message};
use ictus::engine::PlanBuilder;
use ictus::record::constant::{finish, sampling, sampling_flag};
use ictus::record::view::Plain;
use ictus::record::{LaneAdmit, LaneLogprob};
use ictus::ring::{MemoryRings, Rings};
use ictus::tokenizer::{DecodeOptions, EncodeOptions, TokenStream};
use ictus::{Device, Model, ModelOptions, Progress};
use serde_json::json;

const USAGE: &str = "\
usage: generate [FLAGS]
  --model PATH          GGUF file or Hugging Face directory (default: models/ictus-tiny.gguf)
  --prompt TEXT         the prompt (default: \"Once upon a time\")
  --prompt-file FILE    the prompt from a file
  --token-ids 1,2,3     the prompt as token ids
  --chat                put the prompt into the model's chat template as one user turn
  --max-tokens N        most tokens to generate (default: 200)
  --temperature T       0 is greedy (default: 0)
  --top-k K  --top-p P  --min-p P  --repeat-penalty R
  --seed N              names the sequence of draws (default: 0)
  --threads N           threads that compute (default: one per processor)
  --device cpu|cuda     where to run (default: cpu)
  --exact               f32 activations; the default and, so far, the only path
  --ignore-eos          go on after an end token
  --logprobs K          log-probabilities with K alternatives
  --tokenize            print the ids of the prompt and stop
  --json                print one object instead of text";

/// Prompt tokens of one tick: small enough that Ctrl-C is heard.
const CHUNK_TOKENS: u32 = 512;
const LANE: u64 = 1;

type Failure = Box<dyn std::error::Error>;

struct Args {
    model: PathBuf,
    prompt: Prompt,
    chat: bool,
    max_tokens: usize,
    admit: LaneAdmit,
    options: ModelOptions,
    tokenize: bool,
    json: bool,
}

enum Prompt {
    Text(String),
    Ids(Vec<u32>),
}

fn parse_args() -> Result<Option<Args>, Failure> {
    use lexopt::prelude::*;
    let mut admit = LaneAdmit::zeroed();
    admit.lane_tag = LANE;
    admit.params.top_p = 1.0;
    let mut args = Args {
        model: "models/ictus-tiny.gguf".into(),
        prompt: Prompt::Text("Once upon a time".into()),
        chat: false,
        max_tokens: 200,
        admit,
        options: ModelOptions::default(),
        tokenize: false,
        json: false,
    };
    let mut parser = lexopt::Parser::from_env();
    while let Some(arg) = parser.next()? {
        match arg {
            Long("model") => args.model = parser.value()?.into(),
            Long("prompt") => args.prompt = Prompt::Text(parser.value()?.string()?),
            Long("prompt-file") => args.prompt = Prompt::Text(std::fs::read_to_string(parser.value()?)?),
            Long("token-ids") => args.prompt = Prompt::Ids(parse_ids(&parser.value()?.string()?)?),
            Long("chat") => args.chat = true,
            Long("max-tokens") => args.max_tokens = parser.value()?.parse()?,
            Long("temperature") => args.admit.params.temperature = parser.value()?.parse()?,
            Long("top-k") => args.admit.params.top_k = parser.value()?.parse()?,
            Long("top-p") => args.admit.params.top_p = parser.value()?.parse()?,
            Long("min-p") => args.admit.params.min_p = parser.value()?.parse()?,
            Long("repeat-penalty") => args.admit.params.repeat_penalty = parser.value()?.parse()?,
            Long("seed") => args.admit.rng_counter_base = spread(parser.value()?.parse()?),
            Long("threads") => args.options.threads = parser.value()?.parse()?,
            Long("device") => args.options.device = parse_device(&parser.value()?.string()?)?,
            Long("exact") => {}
            Long("ignore-eos") => args.admit.params.flags |= sampling_flag::IGNORE_EOS,
            Long("logprobs") => args.admit.want_logprobs = parser.value()?.parse::<u8>()?.min(20) + 1,
            Long("tokenize") => args.tokenize = true,
            Long("json") => args.json = true,
            Long("help") | Short('h') => {
                println!("{USAGE}");
                return Ok(None);
            }
            other => return Err(format!("{}\n{USAGE}", other.unexpected()).into()),
        }
    }
    if args.admit.params.temperature > 0.0 {
        args.admit.sampling = sampling::GPU_GUMBEL;
    }
    Ok(Some(args))
}

fn parse_ids(text: &str) -> Result<Vec<u32>, Failure> {
    Ok(text.split(',').map(|id| id.trim().parse()).collect::<Result<_, _>>()?)
}

fn parse_device(name: &str) -> Result<Device, Failure> {
    match name {
        "cpu" => Ok(Device::Cpu),
        "cuda" => Ok(Device::Cuda),
        other => Err(format!("no device named {other}").into()),
    }
}

/// Draws are named by position, so nearby seeds must not give overlapping positions.
fn spread(seed: u64) -> u64 {
    seed.wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(31).wrapping_mul(0xD6E8_FEB8_6659_FD93)
}

/// A progress line on loads that take longer than a second.
struct ProgressLine {
    started: Instant,
    shown: bool,
}

impl ProgressLine {
    fn new() -> Self {
        Self { started: Instant::now(), shown: false }
    }

    fn update(&mut self, progress: Progress) {
        if self.started.elapsed() < Duration::from_secs(1) || !io::stderr().is_terminal() {
            return;
        }
        self.shown = true;
        let filled = (progress.fraction() * 30.0) as usize;
        eprint!("\rloading [{:<30}] {:3.0} %", "#".repeat(filled), progress.fraction() * 100.0);
    }

    fn end(&self) {
        if self.shown {
            eprint!("\r{:50}\r", "");
        }
    }
}

fn load(args: &Args, interrupted: &AtomicBool) -> Result<Model, Failure> {
    let mut line = ProgressLine::new();
    let model = Model::open_with_progress(&args.model, &args.options, &mut |progress| {
        line.update(progress);
        if interrupted.load(Ordering::Relaxed) { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    });
    line.end();
    Ok(model?)
}

fn prompt_ids(args: &Args, model: &Model) -> Result<Vec<u32>, Failure> {
    let text = match &args.prompt {
        Prompt::Ids(ids) => return Ok(ids.clone()),
        Prompt::Text(text) => text,
    };
    if !args.chat {
        return Ok(model.tokenizer().encode(text, EncodeOptions { add_special: true, parse_special: true })?);
    }
    let template = model.chat_template()?.ok_or("this model has no chat template")?;
    Ok(template.encode(model.tokenizer(), &[Message { role: "user", content: text }], ChatOptions::default())?)
}

/// What one run produced.
struct Run {
    tokens: Vec<u32>,
    text: String,
    logprobs: Vec<LaneLogprob>,
    finish: &'static str,
    prefill: Duration,
    decode: Duration,
}

fn run(args: &Args, model: &Model, prompt: &[u32], interrupted: &AtomicBool) -> Result<Run, Failure> {
    let mut engine = model.engine()?;
    let mut rings = MemoryRings::new();
    let staged = rings.stage_prompt(prompt);
    let mut stream = TokenStream::new(model.tokenizer(), DecodeOptions { special: false });
    let mut run = Run {
        tokens: vec![],
        text: String::new(),
        logprobs: vec![],
        finish: "length",
        prefill: Duration::ZERO,
        decode: Duration::ZERO,
    };
    let prompt_tokens = prompt.len() as u32;
    let mut prefilled = 0;
    for seq in 1.. {
        if run.tokens.len() >= args.max_tokens {
            break;
        }
        if interrupted.load(Ordering::Relaxed) {
            run.finish = "cancelled";
            break;
        }
        let mut plan = PlanBuilder::new(seq).prefill_budget(CHUNK_TOKENS);
        if seq == 1 {
            plan = plan.admit_with(|admit| *admit = LaneAdmit { prompt: staged, ..args.admit }, LANE, staged);
        }
        let chunk = CHUNK_TOKENS.min(prompt_tokens - prefilled);
        if chunk > 0 {
            plan = plan.prefill(LANE, prefilled, chunk);
            prefilled += chunk;
        }
        if prefilled == prompt_tokens {
            plan = plan.decode(LANE, 1);
        }
        let (plan, arena) = plan.build();
        let started = Instant::now();
        let events = engine.tick(&plan, &arena, &mut rings)?;
        let spent = started.elapsed();
        if chunk > 0 {
            run.prefill += spent
        } else {
            run.decode += spent
        }
        if let Some(fault) = events.faults.first() {
            return Err(format!("the lane faulted with code {}", fault.code).into());
        }
        run.logprobs.extend_from_slice(events.logprobs);
        let Some(emit) = events.emits.first().copied() else { continue };
        let before = run.tokens.len();
        rings.read_tokens(&emit.token_ref, &mut run.tokens)?;
        for &token in &run.tokens[before..] {
            // The end token ends the text; it is not part of it.
            if emit.finish != finish::EOS {
                show(args, &mut run.text, &stream.push(token)?)?;
            }
        }
        if emit.finish != finish::NONE {
            run.finish = if emit.finish == finish::EOS { "eos" } else { "length" };
            break;
        }
    }
    show(args, &mut run.text, &stream.finish())?;
    Ok(run)
}

fn show(args: &Args, text: &mut String, piece: &str) -> io::Result<()> {
    text.push_str(piece);
    if args.json || piece.is_empty() {
        return Ok(());
    }
    let mut out = io::stdout().lock();
    out.write_all(piece.as_bytes())?;
    out.flush()
}

fn rate(tokens: usize, time: Duration) -> f64 {
    if time.is_zero() { 0.0 } else { tokens as f64 / time.as_secs_f64() }
}

fn logprobs_json(run: &Run) -> serde_json::Value {
    let one = |(record, &token): (&LaneLogprob, &u32)| {
        let n = record.n_top as usize;
        let top: Vec<_> = record.top_ids[..n].iter().zip(&record.top_logprobs[..n]).collect();
        json!({ "token": token, "logprob": record.logprob, "top": top })
    };
    run.logprobs.iter().zip(&run.tokens).map(one).collect()
}

fn report(args: &Args, prompt: &[u32], run: &Run, load: Duration) {
    let prefill_tok_s = rate(prompt.len(), run.prefill);
    // The first token came with the prompt.
    let decode_tok_s = rate(run.tokens.len().saturating_sub(1), run.decode);
    let load_ms = load.as_secs_f64() * 1e3;
    if args.json {
        let object = json!({
            "prompt_tokens": prompt,
            "tokens": run.tokens,
            "text": run.text,
            "finish": run.finish,
            "logprobs": logprobs_json(run),
            "load_ms": load_ms,
            "prefill_tok_s": prefill_tok_s,
            "decode_tok_s": decode_tok_s,
        });
        println!("{object}");
        return;
    }
    println!();
    for (record, token) in run.logprobs.iter().zip(&run.tokens) {
        println!("{token:>8} {:9.4}", record.logprob);
    }
    eprintln!(
        "\n[{} prompt tokens, {} generated, finish {}; load {load_ms:.0} ms, prefill {prefill_tok_s:.0} tok/s, decode {decode_tok_s:.0} tok/s]",
        prompt.len(),
        run.tokens.len(),
        run.finish,
    );
}

fn main_inner() -> Result<(), Failure> {
    let Some(args) = parse_args()? else { return Ok(()) };
    let interrupted = Arc::new(AtomicBool::new(false));
    let flag = Arc::clone(&interrupted);
    ctrlc::set_handler(move || flag.store(true, Ordering::Relaxed))?;

    let started = Instant::now();
    let model = load(&args, &interrupted)?;
    let load = started.elapsed();
    let prompt = prompt_ids(&args, &model)?;
    if args.tokenize {
        println!("{}", json!(prompt));
        return Ok(());
    }
    if prompt.is_empty() {
        return Err("the prompt has no tokens".into());
    }
    if !args.json
        && let Prompt::Text(text) = &args.prompt
        && !args.chat
    {
        print!("{text}");
        io::stdout().flush()?;
    }
    let run = run(&args, &model, &prompt, &interrupted)?;
    report(&args, &prompt, &run, load);
    Ok(())
}

fn main() {
    if let Err(failure) = main_inner() {
        // A reader that went away (generate | head) is no failure of ours.
        if failure.downcast_ref::<io::Error>().is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe) {
            return;
        }
        eprintln!("generate: {failure}");
        std::process::exit(1);
    }
}
