#![deny(unsafe_code)]
//! The engine in a process of its own (Link W, version 8).
//!
//! A host starts a worker (one process, one model) and talks to it over two Unix stream sockets. Frames go both ways over one;
//! descriptors of shared memory go from host to worker over the other. Prompts, emitted tokens, rows and exported state lie in that memory
//! and never in a frame.
//!
//! | file | what |
//! |---|---|
//! | `frame.rs` | length, number, counters, payload |
//! | `message.rs` | which number carries what: the table of version 8 |
//! | `payload.rs` | what it carries |
//! | `codec.rs` | the bytes of a payload: postcard, read in place |
//! | `convert.rs` | records to payloads and back |
//! | `socket.rs` | the sockets, and descriptors over them |
//! | `patience.rs` | a wait that looks for a short while before it sleeps |
//! | `server/` | the worker's side: an engine, served |
//! | `client/` | the host's side: an engine that is another process |
//! | `memory.rs` | shared memory; fenced |
//! | `positioned.rs` | shared memory that its owner may cut short: read and written by position |
//! | `inherit.rs` | descriptors that a process was started with; fenced |
//! | `tokenizer.rs` | the C functions of the tokenizer library; fenced |
//!
//! # Limits
//! Linux: sealed memory objects, descriptors that travel over sockets.

pub mod client;
pub mod codec;
pub mod convert;
pub mod frame;
pub mod inherit;
pub mod memory;
pub mod message;
mod patience;
pub mod payload;
mod positioned;
pub mod server;
pub mod socket;
pub mod tokenizer;

#[cfg(test)]
mod differential;
