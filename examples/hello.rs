//! The smallest host: load a model, admit one lane, tick until it finishes, print the text.
//!
//! `hello.c` and `hello.cpp` are the same program with the same steps.

use ictus::engine::PlanBuilder;
use ictus::record::constant::finish;
use ictus::ring::{MemoryRings, Rings};
use ictus::tokenizer::{DecodeOptions, EncodeOptions, TokenStream};
use ictus::{Model, ModelOptions, WorkerOptions};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    // Load: the model file is mapped, the page pool is planned, nothing runs yet.
    let (mut path, mut worker) = ("models/ictus-tiny.gguf".to_owned(), false);
    for argument in std::env::args().skip(1) {
        // --worker: the engine in a process of its own; everything below stays as it is.
        if argument == "--worker" { worker = true } else { path = argument }
    }
    let model = Model::open(path, &ModelOptions::default())?;
    let mut engine = if worker { model.engine_in_worker(&WorkerOptions::default())? } else { model.engine()? };
    let mut rings = MemoryRings::new();

    // Stage: the prompt goes into the token-in ring.
    let prompt =
        model.tokenizer().encode("Once upon a time", EncodeOptions { add_special: true, parse_special: true })?;
    let prompt_tokens = prompt.len() as u32;
    let staged = rings.stage_prompt(&prompt);

    // First tick: admit lane 1, run its prompt, grant one token. Later ticks: one token each.
    let mut text = TokenStream::new(model.tokenizer(), DecodeOptions::default());
    print!("Once upon a time");
    for seq in 1..=200 {
        let plan = PlanBuilder::new(seq).decode(1, 1);
        let plan = match seq {
            1 => plan.admit_with(|admit| admit.params.flags = 0, 1, staged).prefill(1, 0, prompt_tokens),
            _ => plan,
        };
        let (plan, arena) = plan.build();
        let events = engine.tick(&plan, &arena, &mut rings)?;

        // Read: the emitted tokens are in the token-out ring.
        let emit = events.emits.first().ok_or("the lane faulted")?;
        let (reference, ended) = (emit.token_ref, emit.finish != finish::NONE);
        let mut tokens = Vec::new();
        rings.read_tokens(&reference, &mut tokens)?;
        for token in tokens {
            print!("{}", text.push(token)?);
        }
        if ended {
            break;
        }
    }
    println!("{}", text.finish());
    Ok(())
}
