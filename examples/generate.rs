//! Generates text from a prompt: `cargo run --release --example generate -- --help`.

use std::io::{self, IsTerminal, Write};
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use ictus::chat::{ChatOptions, Message};
use ictus::engine::{Engine, PlanBuilder, StrategyBuilder};
use ictus::record::constant::{finish, sampling, sampling_flag, tick_flag};
use ictus::record::view::Plain;
use ictus::record::{LaneAdmit, LaneLogprob};
use ictus::ring::{MemoryRings, Rings};
use ictus::timeline::Timeline;
use ictus::tokenizer::{DecodeOptions, EncodeOptions, TokenStream};
use ictus::{Arithmetic, Device, InstructionSet, Model, ModelOptions, Progress, WorkerOptions};
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
  --device cpu|cuda|cuda:N|cuda:N,M...
                        where to run: the processor, CUDA device N, 0 unless stated, or several together (default: cpu)
  --instruction-set NAME
                        instructions of the processor to compute with: portable, avx2, avx512, avx512-vnni, neon or neon-dotprod
                        (default: the best that it has)
  --draft prompt-lookup|FILE.gguf
                        draft from the text itself, or with a smaller model of the same vocabulary
  --exact               f32 activations: the default
  --fast                activations rounded to 8 bits before products, and keys and values to 16
  --schema FILE         the text is JSON that fits the schema in this file
  --regex PATTERN       the text matches this pattern
  --adapter PATH        a LoRA adapter: PEFT directory or GGUF file
  --ignore-eos          go on after an end token
  --logprobs K          log-probabilities with K alternatives
  --tokenize            print the ids of the prompt and stop
  --timeline FILE       what the engine did when, for Perfetto or chrome://tracing
  --worker              the engine in a process of its own; without --adapter, --regex and --timeline
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
    draft: Option<String>,
    grammar: Option<Form>,
    adapter: Option<String>,
    tokenize: bool,
    json: bool,
    timeline: Option<PathBuf>,
    worker: bool,
}

/// What the text has to be.
enum Form {
    Schema(String),
    Regex(String),
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
        draft: None,
        grammar: None,
        adapter: None,
        tokenize: false,
        json: false,
        timeline: None,
        worker: false,
    };
    let mut parser = lexopt::Parser::from_env();
    while let Some(arg) = parser.next()? {
        match arg {
            Long("model") => args.model = parser.value()?.into(),
            Long("timeline") => args.timeline = Some(parser.value()?.into()),
            Long("worker") => args.worker = true,
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
            Long("device") => {
                set_device(&mut args.options, &parser.value()?.string()?)?;
            }
            Long("instruction-set") => {
                let name = parser.value()?.string()?;
                let unknown = || format!("--instruction-set {name} is none that there is\n{USAGE}");
                args.options.instruction_set = Some(InstructionSet::named(&name).ok_or_else(unknown)?);
            }
            Long("draft") => args.draft = Some(parser.value()?.string()?),
            Long("schema") => args.grammar = Some(Form::Schema(std::fs::read_to_string(parser.value()?)?)),
            Long("regex") => args.grammar = Some(Form::Regex(parser.value()?.string()?)),
            Long("exact") => args.options.arithmetic = Arithmetic::Exact,
            Long("fast") => args.options.arithmetic = Arithmetic::Fast,
            Long("adapter") => args.adapter = Some(parser.value()?.string()?),
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
    // The link to a worker has no messages for these.
    let at_home = [
        ("--adapter", args.adapter.is_some()),
        ("--regex", matches!(args.grammar, Some(Form::Regex(_)))),
        ("--timeline", args.timeline.is_some()),
    ];
    if let Some((flag, _)) = at_home.into_iter().find(|&(_, is_given)| is_given && args.worker) {
        return Err(format!("{flag} needs the engine in this process: leave out --worker").into());
    }
    Ok(Some(args))
}

fn parse_ids(text: &str) -> Result<Vec<u32>, Failure> {
    Ok(text.split(',').map(|id| id.trim().parse()).collect::<Result<_, _>>()?)
}

fn set_device(options: &mut ModelOptions, name: &str) -> Result<(), Failure> {
    (options.device, options.device_index, options.device_mask) = match name.split_once(':') {
        None if name == "cpu" => (Device::Cpu, 0, 0),
        None if name == "cuda" => (Device::Cuda, 0, 0),
        Some(("cuda", list)) if list.contains(',') => {
            let bit = |index: &str| Ok::<_, Failure>(1_u64.checked_shl(index.trim().parse()?).unwrap_or(0));
            let bits = list.split(',').map(bit).collect::<Result<Vec<_>, _>>()?;
            let mask = bits.iter().fold(0, |mask, bit| mask | bit);
            if mask.count_ones() as usize != bits.len() {
                return Err(format!("devices {list}: each is named once, from 0 to 63").into());
            }
            (Device::Cuda, 0, mask)
        }
        Some(("cuda", index)) => (Device::Cuda, index.parse()?, 0),
        _ => return Err(format!("no device named {name}").into()),
    };
    Ok(())
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
    /// Tokens drafted, and those of them that were right.
    proposed: u32,
    accepted: u32,
}

/// Most tokens of a draft.
const DRAFT_TOKENS: u16 = 7;

/// Registers the strategy that drafts; answers the slot that the lane names.
fn register(draft: &str, engine: &mut dyn Engine) -> Result<u32, Failure> {
    let strategy = match draft {
        "prompt-lookup" => StrategyBuilder::new("prompt-lookup"),
        file => StrategyBuilder::new("draft-model").draft_weights(file),
    };
    let (registration, memory) = strategy.config(&format!("max_draft={DRAFT_TOKENS}")).build();
    let grant = engine.strategy_register(&registration, &memory);
    Ok(grant.map_err(|status| format!("{draft} cannot draft for this model: {status}"))?.strategy_slot)
}

/// Compiles what the text has to be; answers the grammar that the lane names, 0 for none.
fn compile(form: Option<&Form>, engine: &mut dyn Engine) -> Result<u32, Failure> {
    let created = match form {
        None => return Ok(0),
        Some(Form::Schema(schema)) => engine.grammar_create(schema),
        Some(Form::Regex(pattern)) => engine.grammar_create_regex(pattern),
    };
    Ok(created.map_err(|status| engine.grammar_refusal().unwrap_or_else(|| status.to_string()))?)
}

/// Loads an adapter and gives it to the lane.
fn bind_adapter(path: &str, engine: &mut dyn Engine) -> Result<(), Failure> {
    let loaded = engine.adapter_load(path);
    let adapter = loaded.map_err(|status| engine.adapter_refusal().map_or(status.to_string(), str::to_owned))?;
    Ok(engine.adapter_bind(LANE, adapter)?)
}

fn run(args: &Args, model: &Model, prompt: &[u32], interrupted: &AtomicBool) -> Result<Run, Failure> {
    let mut engine = if args.worker { model.engine_in_worker(&WorkerOptions::default())? } else { model.engine()? };
    if let Some(path) = &args.timeline {
        engine.timeline_start(Box::new(Timeline::new(std::fs::File::create(path)?)))?;
    }
    let strategy_slot = args.draft.as_deref().map_or(Ok(0), |draft| register(draft, &mut *engine))?;
    let grammar_handle = compile(args.grammar.as_ref(), &mut *engine)?;
    if let Some(path) = &args.adapter {
        bind_adapter(path, &mut *engine)?;
    }
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
        proposed: 0,
        accepted: 0,
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
        let mut plan = PlanBuilder::new(seq).flags(tick_flag::CAPTURE_OK).prefill_budget(CHUNK_TOKENS);
        if seq == 1 {
            plan = plan.admit_with(
                |admit| *admit = LaneAdmit { prompt: staged, strategy_slot, grammar_handle, ..args.admit },
                LANE,
                staged,
            );
        }
        let chunk = CHUNK_TOKENS.min(prompt_tokens - prefilled);
        if chunk > 0 {
            plan = plan.prefill(LANE, prefilled, chunk);
            prefilled += chunk;
        }
        if prefilled == prompt_tokens {
            // Drafts that are right come on top of the one token, as far as the answer may still go.
            let left = args.max_tokens - run.tokens.len() - 1;
            plan = plan.decode_with_overshoot(LANE, 1, left.min(DRAFT_TOKENS.into()) as u16);
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
        run.proposed += emit.spec.proposed;
        run.accepted += emit.spec.accepted;
        let before = run.tokens.len();
        rings.read_tokens(&emit.token_ref, &mut run.tokens)?;
        // The end token ends the text; it is not part of it.
        let end = run.tokens.len() - usize::from(emit.finish == finish::EOS);
        for &token in &run.tokens[before..end] {
            show(args, &mut run.text, &stream.push(token)?)?;
        }
        if emit.finish != finish::NONE {
            run.finish = match emit.finish {
                finish::EOS => "eos",
                finish::GRAMMAR => "grammar",
                _ => "length",
            };
            break;
        }
    }
    show(args, &mut run.text, &stream.finish())?;
    if let Some(timeline) = engine.timeline_stop() {
        timeline.finish()?;
    }
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
            "proposed": run.proposed,
            "accepted": run.accepted,
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
    if args.draft.is_some() {
        eprintln!("[{} tokens drafted, {} of them right]", run.proposed, run.accepted);
    }
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
