//! What a run is asked for.

use std::path::PathBuf;

use ictus::backend::KvType;
use ictus::{Arithmetic, InstructionSet, ModelOptions};

use crate::host::{Failure, Source};

const USAGE: &str = "\
usage: bench --model PATH [--threads N] [--fast] [--runs N] [--json]
             [--only tick,match,fork,pp,tg,batch,prefix,draft,mask,load,rss,idle,oversubscription,limits]
             [--pp 32,128,512] [--depth 0,512,2048] [--lanes 2,4,8,16,32] [--steps 64] [--prefix 1024] [--kv f32|f16]
             [--instruction-set portable|avx2|avx512|avx512-vnni|neon|neon-dotprod]   the best of the processor unless stated
             [--quick]            three runs, pp 128, depth 0, 8 lanes
             [--no-limits]        without the machine's limits, and without what part of them a figure is
             [--worker]           the engine in a process of its own; without --timeline
             [--timeline FILE]    of pp, tg and batch, for Perfetto or chrome://tracing";

/// All of them, in the order in which they run.
const TESTS: [&str; 14] = [
    "limits",
    "tick",
    "match",
    "fork",
    "load",
    "rss",
    "idle",
    "oversubscription",
    "pp",
    "tg",
    "batch",
    "prefix",
    "mask",
    "draft",
];

pub struct Args {
    pub model: PathBuf,
    pub threads: u32,
    pub arithmetic: Arithmetic,
    pub only: Vec<String>,
    pub runs: usize,
    pub json: bool,
    pub pp: Vec<usize>,
    pub depths: Vec<usize>,
    pub lanes: Vec<usize>,
    pub steps: usize,
    pub prefix: usize,
    pub kv_type: Option<KvType>,
    pub instruction_set: InstructionSet,
    pub child: bool,
    pub timeline: Option<PathBuf>,
    /// What the machine can do is not measured.
    pub no_limits: bool,
    /// The engine is in a process of its own.
    pub worker: bool,
}

impl Args {
    /// What keys and values are kept in, the engine's default filled in.
    pub fn kv_type(&self) -> KvType {
        self.kv_type.unwrap_or(match self.arithmetic {
            Arithmetic::Exact => KvType::F32,
            Arithmetic::Fast => KvType::F16,
        })
    }

    /// Where engines come from.
    pub fn source(&self) -> Source<'_> {
        Source { path: &self.model, worker: self.worker }
    }

    /// How a model is opened.
    pub fn options(&self) -> ModelOptions {
        ModelOptions {
            threads: self.threads,
            arithmetic: self.arithmetic,
            max_lanes: 64,
            kv_type: Some(self.kv_type()),
            instruction_set: Some(self.instruction_set),
            ..ModelOptions::default()
        }
    }
}

fn numbers(text: &str) -> Result<Vec<usize>, Failure> {
    Ok(text.split(',').map(|n| n.trim().parse()).collect::<Result<_, _>>()?)
}

fn kv_type(text: &str) -> Result<KvType, Failure> {
    match text {
        "f32" => Ok(KvType::F32),
        "f16" => Ok(KvType::F16),
        other => Err(format!("--kv is {other}, must be f32 or f16\n{USAGE}").into()),
    }
}

pub fn kv_name(kv_type: KvType) -> &'static str {
    match kv_type {
        KvType::F16 => "f16",
        KvType::F32 => "f32",
    }
}

pub fn parse() -> Result<Args, Failure> {
    use lexopt::prelude::*;
    let mut args = Args {
        model: "models/ictus-tiny.gguf".into(),
        threads: 0,
        arithmetic: Arithmetic::Exact,
        only: TESTS.map(String::from).to_vec(),
        runs: 5,
        json: false,
        pp: vec![32, 128, 512],
        depths: vec![0, 512, 2048],
        lanes: vec![2, 4, 8, 16, 32],
        steps: 64,
        prefix: 1024,
        kv_type: None,
        instruction_set: InstructionSet::best(),
        child: false,
        timeline: None,
        no_limits: false,
        worker: false,
    };
    let mut parser = lexopt::Parser::from_env();
    while let Some(arg) = parser.next()? {
        match arg {
            Long("model") => args.model = parser.value()?.into(),
            Long("threads") => args.threads = parser.value()?.parse()?,
            Long("exact") => args.arithmetic = Arithmetic::Exact,
            Long("fast") => args.arithmetic = Arithmetic::Fast,
            Long("only") => args.only = parser.value()?.string()?.split(',').map(String::from).collect(),
            Long("runs") => args.runs = parser.value()?.parse::<usize>()?.max(1),
            Long("json") => args.json = true,
            Long("pp") => args.pp = numbers(&parser.value()?.string()?)?,
            Long("depth") => args.depths = numbers(&parser.value()?.string()?)?,
            Long("lanes") => args.lanes = numbers(&parser.value()?.string()?)?,
            Long("prefix") => args.prefix = parser.value()?.parse()?,
            Long("steps") => args.steps = parser.value()?.parse()?,
            Long("timeline") => args.timeline = Some(parser.value()?.into()),
            Long("instruction-set") => {
                let name = parser.value()?.string()?;
                let unknown = || format!("--instruction-set {name} is none that there is\n{USAGE}");
                args.instruction_set = InstructionSet::named(&name).ok_or_else(unknown)?;
                args.instruction_set.require()?;
            }
            Long("kv") => args.kv_type = Some(kv_type(&parser.value()?.string()?)?),
            Long("quick") => {
                args.runs = 3;
                (args.pp, args.depths, args.lanes) = (vec![128], vec![0], vec![8]);
            }
            Long("no-limits") => args.no_limits = true,
            Long("worker") => args.worker = true,
            Long("child") => args.child = true,
            other => return Err(format!("{}\n{USAGE}", other.unexpected()).into()),
        }
    }
    if args.worker && args.timeline.is_some() {
        // The link to a worker has no message for it.
        return Err("--timeline needs the engine in this process: leave out --worker".into());
    }
    if args.threads == 0 {
        args.threads = std::thread::available_parallelism().map_or(1, |n| n.get() as u32);
    }
    Ok(args)
}
