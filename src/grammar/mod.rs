#![forbid(unsafe_code)]
//! Grammars: which tokens may follow in a text that has to have a form.
//!
//! ```text
//!   document --Source--> parsed --Compiler--> Grammar --cursor--> Cursor --prepare--> mask
//!                                               |                   ^  |
//!                                            handles                |  v
//!                                                                   accept(token)
//! ```
//!
//! Four kinds of documents: JSON schemas and structural tags as the contract has them, and beyond it regular expressions and Lark
//! grammars. The work on texts is the `llguidance` crate's; here is what the contract adds, and the bounds.
//!
//! # Invariants
//! - A grammar does not change. Each cursor works on a copy of its own, so that lanes do not see each other.
//! - Nothing here panics: what the library panics on becomes a typed error ([`GrammarError::Broken`]) or a cursor that allows nothing.
//!
//! # Limits
//! [`Limits`]: length and depth of documents, work of compilation and of one mask, states of a cursor. A document that exceeds them is
//! refused; a cursor that does allows nothing from then on, which faults its lane.
//!
//! # Not here
//! When masks are applied and tokens accepted: `executor`. How a mask is applied: `sample`.
//!
//! # Source
//! JSON Schema 2020-12; the documentation of the crate for the Lark notation and for which keywords it compiles. A keyword that it does not
//! know is refused, never ignored.

mod compiler;
mod cursor;
mod error;
mod fence;
mod handles;
mod limits;
mod schema;
mod sentence;
mod tags;

#[cfg(test)]
mod tests;

pub use compiler::{Compiler, Grammar, SharedCompiler, Source, Tokens};
pub use cursor::Cursor;
pub use error::{GrammarError, Refused};
pub use handles::Grammars;
pub use limits::Limits;
