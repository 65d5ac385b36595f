//! ictus: an LLM inference engine that a program links.
//!
//! The host owns the scheduler and calls [`Engine::tick`](engine::Engine::tick) with a plan; the engine validates it, runs
//! it on paged KV with real model weights, and answers with events.

pub mod abi;
pub mod backend;
pub mod capacity;
pub mod chat;
pub mod checkpoint;
pub mod driver;
pub mod engine;
pub mod executor;
pub mod facade;
pub mod grammar;
pub mod identity;
pub mod kv;
pub mod model;
pub mod open;
pub mod prefix;
pub mod record;
pub mod ring;
pub mod runtime;
pub mod sample;
pub mod speculate;
pub mod tensor;
pub mod testing;
pub mod timeline;
pub mod tokenizer;
pub mod transfer;
#[cfg(all(feature = "worker", target_os = "linux"))]
pub mod worker;

pub use open::{
    Arithmetic, Device, Error, HostThreads, InstructionSet, KvType, MemoryPlan, Model, ModelOptions, Progress,
    WorkerOptions,
};

/// Compiles the program that the README shows.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
