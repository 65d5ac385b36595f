#![forbid(unsafe_code)]
//! The command line: `--name value` pairs in any order, of which the last one counts (W-81, W-82).

use std::collections::HashMap;

use ictus::{Arithmetic, Device, InstructionSet, KvType, ModelOptions};
use serde_json::{Value, json};

/// Context, batch and width when the line does not say (W-81).
const DEFAULT_CONTEXT: u32 = 4096;
const DEFAULT_BATCH: u32 = 8;

/// What a value must be.
enum Kind {
    Count { least: u64, most: u64 },
    Choice(&'static [&'static str]),
    OnOff,
}

/// An option of ours, which the host passes on.
struct Knob {
    name: &'static str,
    kind: Kind,
    default: &'static str,
    about: &'static str,
}

const KNOBS: &[Knob] = &[
    Knob { name: "device", kind: Kind::Choice(&["cpu", "cuda"]), default: "cpu", about: "where the model runs" },
    Knob {
        name: "device-index",
        kind: Kind::Count { least: 0, most: u32::MAX as u64 },
        default: "0",
        about: "which CUDA device, as the driver counts them from 0",
    },
    Knob {
        name: "device-mask",
        kind: Kind::Count { least: 0, most: i64::MAX as u64 },
        default: "0",
        about: "several CUDA devices that compute together, as bits: 1 is device 0, 3 are devices 0 and 1; 0 is device-index alone",
    },
    Knob {
        name: "threads",
        kind: Kind::Count { least: 0, most: ModelOptions::MAX_THREADS as u64 },
        default: "0",
        about: "threads that compute; 0 is one per processor",
    },
    Knob {
        name: "instruction-set",
        kind: Kind::Choice(&["best", "portable", "avx2", "avx512", "avx512-vnni", "neon", "neon-dotprod"]),
        default: "best",
        about: "instructions of the processor to compute with",
    },
    Knob {
        name: "arithmetic",
        kind: Kind::Choice(&["exact", "fast"]),
        default: "exact",
        about: "exact, or faster with activations rounded to 8 bits",
    },
    Knob {
        name: "pool-tokens",
        kind: Kind::Count { least: 0, most: ModelOptions::MAX_POOL_TOKENS },
        default: "0",
        about: "tokens in the page pool; 0 is four longest sequences",
    },
    Knob {
        name: "memory-budget",
        kind: Kind::Count { least: 0, most: i64::MAX as u64 },
        default: "0",
        about: "bytes that the model may take, weights and all; 0 is no bound",
    },
    Knob {
        name: "prefill-step-tokens",
        kind: Kind::Count { least: 0, most: 1 << 20 },
        default: "0",
        about: "prompt tokens of one step; 0 is 512",
    },
    Knob {
        name: "cache-export-tokens",
        kind: Kind::Count { least: 0, most: i64::MAX as u64 },
        default: "0",
        about: "tokens of cached state kept in host memory when they leave the pool; 0 is none",
    },
    Knob {
        name: "page-size-tokens",
        kind: Kind::Count { least: 0, most: ModelOptions::MAX_PAGE_SIZE_TOKENS as u64 },
        default: "0",
        about: "tokens per page, a power of two; 0 is 16",
    },
    Knob {
        name: "cache-tokens",
        kind: Kind::Count { least: 0, most: i64::MAX as u64 },
        default: "0",
        about: "tokens of the pool that cached state may hold when nobody else does; 0 is half of the pool",
    },
    Knob {
        name: "op-slice-bytes",
        kind: Kind::Count { least: 0, most: i64::MAX as u64 },
        default: "0",
        about: "bytes of state that a tick or a pump moves before it goes on; 0 is 4 MiB",
    },
    Knob {
        name: "grammar-document-bytes",
        kind: Kind::Count { least: 0, most: i64::MAX as u64 },
        default: "0",
        about: "bytes of a grammar's document; 0 is 1 MiB",
    },
    Knob {
        name: "grammar-depth",
        kind: Kind::Count { least: 0, most: ModelOptions::MAX_GRAMMAR_DEPTH as u64 },
        default: "0",
        about: "levels of a grammar's document; 0 is 64",
    },
    Knob {
        name: "grammar-compile-fuel",
        kind: Kind::Count { least: 0, most: i64::MAX as u64 },
        default: "0",
        about: "work of compiling a grammar; 0 is 1 000 000",
    },
    Knob {
        name: "grammar-mask-fuel",
        kind: Kind::Count { least: 0, most: i64::MAX as u64 },
        default: "0",
        about: "work of the lexer for one mask; 0 is 200 000",
    },
    Knob {
        name: "grammar-mask-items",
        kind: Kind::Count { least: 0, most: u32::MAX as u64 },
        default: "0",
        about: "items of the parser for one mask; 0 is 50 000",
    },
    Knob {
        name: "grammar-lexer-states",
        kind: Kind::Count { least: 0, most: u32::MAX as u64 },
        default: "0",
        about: "states that the lexer of a lane may keep; 0 is 32 768",
    },
    Knob {
        name: "fast-checksum",
        kind: Kind::OnOff,
        default: "off",
        about: "seal exported state with XXH3-64, many times as fast as FNV-1a-64",
    },
];

/// A line that cannot be read; the program ends with code 2.
#[derive(Debug)]
pub struct BadLine(pub String);

/// Pairs of a line, names without their dashes.
#[derive(Debug, Default)]
pub struct Line {
    values: HashMap<String, String>,
}

impl Line {
    /// Reads pairs, all of which must be ours or in `allowed`.
    pub fn read(words: &[String], allowed: &[&str]) -> Result<Self, BadLine> {
        let mut line = Self::default();
        let mut words = words.iter();
        while let Some(word) = words.next() {
            let name = word.strip_prefix("--").filter(|name| !name.is_empty());
            let name = name.ok_or_else(|| BadLine(format!("{word:?} is no flag")))?;
            let knob = KNOBS.iter().find(|knob| knob.name == name);
            if knob.is_none() && !allowed.contains(&name) {
                return Err(BadLine(format!("unknown flag --{name}")));
            }
            let value = words.next().ok_or_else(|| BadLine(format!("--{name} has no value")))?;
            if let Some(knob) = knob {
                knob.check(value)?;
            }
            line.values.insert(name.to_owned(), value.clone());
        }
        Ok(line)
    }

    /// The value of a flag, if the line has it.
    pub fn text(&self, name: &str) -> Option<&str> {
        self.values.get(name).map(String::as_str)
    }

    /// The number of a flag.
    pub fn number(&self, name: &str) -> Result<Option<u32>, BadLine> {
        let parse = |value: &str| value.parse().map_err(|_| BadLine(format!("--{name} {value} is no number")));
        self.text(name).map(parse).transpose()
    }

    /// Options of the model, the context cut to what it was trained for.
    pub fn model_options(&self, trained_tokens: usize) -> Result<ModelOptions, BadLine> {
        let trained = u32::try_from(trained_tokens).unwrap_or(u32::MAX);
        let context = match self.number("max-context")? {
            Some(0) | None => DEFAULT_CONTEXT,
            Some(tokens) => tokens,
        };
        // Checked when the line was read.
        let count = |name: &str| self.text(name).and_then(|value| value.parse::<u64>().ok()).unwrap_or(0);
        Ok(ModelOptions {
            context_tokens: context.min(trained),
            max_lanes: self.number("max-batch")?.unwrap_or(DEFAULT_BATCH),
            kv_type: self.kv_type()?,
            device: if self.text("device") == Some("cuda") { Device::Cuda } else { Device::Cpu },
            device_index: count("device-index") as u32,
            device_mask: count("device-mask"),
            threads: count("threads") as u32,
            instruction_set: self.text("instruction-set").and_then(InstructionSet::named),
            arithmetic: if self.text("arithmetic") == Some("fast") { Arithmetic::Fast } else { Arithmetic::Exact },
            pool_tokens: count("pool-tokens"),
            memory_budget_bytes: count("memory-budget"),
            prefill_step_tokens: count("prefill-step-tokens") as u32,
            cache_export_tokens: count("cache-export-tokens"),
            op_fast_checksum: self.text("fast-checksum") == Some("on"),
            page_size_tokens: count("page-size-tokens") as u32,
            cache_tokens: count("cache-tokens"),
            op_slice_bytes: count("op-slice-bytes"),
            grammar_document_bytes: count("grammar-document-bytes"),
            grammar_depth: count("grammar-depth") as u32,
            grammar_compile_fuel: count("grammar-compile-fuel"),
            grammar_mask_fuel: count("grammar-mask-fuel"),
            grammar_mask_items: count("grammar-mask-items") as u32,
            grammar_lexer_states: count("grammar-lexer-states") as u32,
            ..ModelOptions::default()
        })
    }

    /// Element type of keys and values; none is the model's choice.
    fn kv_type(&self) -> Result<Option<KvType>, BadLine> {
        match self.number("kv-bits")? {
            None | Some(0) => Ok(None),
            Some(16) => Ok(Some(KvType::F16)),
            Some(32) => Ok(Some(KvType::F32)),
            Some(bits) => Err(BadLine(format!("--kv-bits {bits} is none of 0, 16, 32"))),
        }
    }
}

impl Knob {
    fn check(&self, value: &str) -> Result<(), BadLine> {
        let fits = match &self.kind {
            Kind::Count { least, most } => value.parse().is_ok_and(|value: u64| (least..=most).contains(&&value)),
            Kind::Choice(choices) => choices.contains(&value),
            Kind::OnOff => ["on", "off"].contains(&value),
        };
        if fits { Ok(()) } else { Err(BadLine(format!("--{} {value}: {}", self.name, self.about))) }
    }
}

/// The options as the report lists them.
pub fn described() -> Vec<Value> {
    let one = |knob: &Knob| {
        let mut entry = json!({ "name": knob.name, "about": knob.about });
        let (kind, default) = match &knob.kind {
            Kind::Count { least, most } => {
                (entry["least"], entry["most"]) = ((*least).into(), (*most).into());
                ("int", knob.default.parse::<u64>().map_or(Value::Null, Value::from))
            }
            Kind::Choice(choices) => {
                entry["choices"] = json!(choices);
                ("choice", knob.default.into())
            }
            Kind::OnOff => ("on-off", (knob.default == "on").into()),
        };
        (entry["kind"], entry["default"]) = (kind.into(), default);
        entry
    };
    KNOBS.iter().map(one).collect()
}
