//! Many requests on one engine, without a scheduler of your own: `cargo run --release --example serve_many -- --help`.
//!
//! Twelve prompts with one system prompt go to a driver on a thread. The first one computes the common beginning, the others start from
//! it; those of a higher priority start sooner. What happens is printed as it happens, the answers in order at the end.

use std::path::PathBuf;
use std::sync::mpsc;
use std::time::Instant;

use ictus::driver::{Driver, DriverOptions, EventKind, Finish, Request, Sampling, Stats, draw_base};
use ictus::timeline::Timeline;
use ictus::{Model, ModelOptions, WorkerOptions};

const USAGE: &str = "\
usage: serve_many [FLAGS]
  --model PATH       GGUF file or Hugging Face directory (default: models/ictus-tiny.gguf)
  --requests N       how many requests (default: 12)
  --max-tokens N     most tokens of each (default: 48)
  --lanes N          how many run at once (default: 4)
  --tick-tokens N    tokens of one tick (default: 128)
  --temperature T    0 is greedy (default: 0)
  --stop TEXT        a text that ends an answer; may be given again
  --threads N        threads that compute (default: one per processor)
  --timeline FILE    what the engine did when, for Perfetto or chrome://tracing
  --worker           the engine in a process of its own; without --timeline";

/// What every prompt begins with: a request that starts from its cached state computes only what follows.
const SYSTEM: &str = "This is a book of short stories for small children. Every story is about a friend, a garden, a walk in the wood \
or a day at the sea, and every story ends well. The words are simple, and the sentences are short. Here is one of them. ";

const OPENINGS: [&str; 6] = [
    "Once upon a time",
    "One day, a little dog",
    "Tom and Mia",
    "The sun was up and",
    "There was a big tree",
    "A cat sat",
];

type Failure = Box<dyn std::error::Error>;

struct Args {
    model: PathBuf,
    options: ModelOptions,
    driver: DriverOptions,
    requests: usize,
    request: Request,
    timeline: Option<PathBuf>,
    worker: bool,
}

fn parse_args() -> Result<Option<Args>, Failure> {
    use lexopt::prelude::*;
    let mut args = Args {
        model: "models/ictus-tiny.gguf".into(),
        options: ModelOptions::default(),
        driver: DriverOptions { max_lanes: 4, tick_tokens: 128, ..DriverOptions::default() },
        requests: 12,
        request: Request { max_tokens: 48, ..Request::text("") },
        timeline: None,
        worker: false,
    };
    let mut parser = lexopt::Parser::from_env();
    while let Some(arg) = parser.next()? {
        match arg {
            Long("model") => args.model = parser.value()?.into(),
            Long("requests") => args.requests = parser.value()?.parse()?,
            Long("max-tokens") => args.request.max_tokens = parser.value()?.parse()?,
            Long("lanes") => args.driver.max_lanes = parser.value()?.parse()?,
            Long("tick-tokens") => args.driver.tick_tokens = parser.value()?.parse()?,
            Long("temperature") => {
                args.request.sampling = Sampling { temperature: parser.value()?.parse()?, ..Sampling::default() }
            }
            Long("stop") => args.request.stop_strings.push(parser.value()?.string()?),
            Long("threads") => args.options.threads = parser.value()?.parse()?,
            Long("timeline") => args.timeline = Some(parser.value()?.into()),
            Long("worker") => args.worker = true,
            Long("help") | Short('h') => {
                println!("{USAGE}");
                return Ok(None);
            }
            other => return Err(format!("{}\n{USAGE}", other.unexpected()).into()),
        }
    }
    if args.worker && args.timeline.is_some() {
        // The link to a worker has no message for it.
        return Err("--timeline needs the engine in this process: leave out --worker".into());
    }
    Ok(Some(args))
}

/// Request `number`, from 1: every third one is of a higher priority.
fn request(args: &Args, number: usize) -> Request {
    let opening = OPENINGS[(number - 1) % OPENINGS.len()];
    Request {
        priority: if number.is_multiple_of(3) { 5 } else { 0 },
        rng_counter_base: draw_base(number as u64),
        ..Request { prompt: Request::text(format!("{SYSTEM}{opening}")).prompt, ..args.request.clone() }
    }
}

/// What came of a request.
struct Answer {
    text: String,
    finish: Finish,
    stats: Stats,
}

fn main_inner() -> Result<(), Failure> {
    let Some(args) = parse_args()? else { return Ok(()) };
    // Load, and move a driver of the engine to a thread. It sleeps until something is submitted.
    let model = Model::open(&args.model, &args.options)?;
    let options = DriverOptions { context_tokens: model.context_tokens() as u64, ..args.driver.clone() };
    let mut engine = if args.worker { model.engine_in_worker(&WorkerOptions::default())? } else { model.engine()? };
    if let Some(path) = &args.timeline {
        // The trace ends with the engine, which the server owns.
        engine.timeline_start(Box::new(Timeline::new(std::fs::File::create(path)?)))?;
    }
    let server = Driver::new(engine, options)?.with_tokenizer(model.clone()).serve()?;
    let handle = server.handle();

    // Submit everything. Any thread may: here, one for each request reads its stream and tells what it sees.
    let started = Instant::now();
    let (tell, told) = mpsc::channel();
    for number in 1..=args.requests {
        let request = request(&args, number);
        let priority = request.priority;
        let stream = handle.submit(request)?;
        let tell = tell.clone();
        std::thread::spawn(move || {
            let mut text = String::new();
            for event in stream {
                let ms = started.elapsed().as_secs_f64() * 1e3;
                match event.kind {
                    EventKind::Started { cached_tokens } => {
                        println!(
                            "{ms:7.1} ms  {number:>3} starts   priority {priority}, {cached_tokens} tokens cached"
                        );
                    }
                    EventKind::Tokens(piece) => text.push_str(&piece.text),
                    EventKind::Finished { finish, stats } => {
                        println!("{ms:7.1} ms  {number:>3} finishes {finish:?} after {} tokens", stats.answer_tokens);
                        let _ = tell.send((number, Answer { text: std::mem::take(&mut text), finish, stats }));
                    }
                }
            }
        });
    }
    drop(tell);
    let mut answers: Vec<(usize, Answer)> = told.iter().collect();
    let seconds = started.elapsed().as_secs_f64();
    answers.sort_by_key(|&(number, _)| number);

    for (number, answer) in &answers {
        println!("\n[{number}] {}", answer.text.trim());
    }
    let sum = |of: fn(&Stats) -> u64| answers.iter().map(|(_, answer)| of(&answer.stats)).sum::<u64>();
    let (said, computed, cached) =
        (sum(|stats| stats.answer_tokens), sum(|stats| stats.prefill_tokens), sum(|stats| stats.cached_tokens));
    println!(
        "\n{} requests: {said} tokens in {seconds:.2} s, {:.0} tok/s; {computed} prompt tokens computed, {cached} from the cache",
        answers.len(),
        said as f64 / seconds,
    );
    match answers.iter().find(|(_, answer)| matches!(answer.finish, Finish::Failed(_))) {
        Some((number, answer)) => Err(format!("request {number}: {:?}", answer.finish).into()),
        None => Ok(()),
    }
}

fn main() {
    if let Err(failure) = main_inner() {
        eprintln!("serve_many: {failure}");
        std::process::exit(1);
    }
}
