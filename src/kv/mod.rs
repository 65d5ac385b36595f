#![forbid(unsafe_code)]
//! The cache of keys and values as bookkeeping: page numbers, never bytes.
//!
//! A pool of equal pages is handed out page by page. A sequence holds a block table: logical page `i` holds the tokens
//! `i * page_size_tokens ..`, wherever it lies in the pool. Sequences share pages by reference counts:
//!
//! ```text
//! page size 4                 share(a, b, 6)              grow(b, 1)
//! a: [7][3][5]  10 tokens     a: [7][3][5]                a: [7][3][5]
//! b: []          0 tokens     b: [7][3]     6 tokens      b: [7][9]     7 tokens, copy 3 -> 9
//!                             references 7:2 3:2 5:1      references 7:2 3:1 5:1 9:1
//! ```
//!
//! Full pages are never written again, so they are shared for good. A partly filled page is copied by whoever writes into it
//! while others hold it (copy-on-write); the caller moves the bytes.
//!
//! The pages of a range of tokens may be given back while the sequence keeps its length: the block table then has holes there
//! ([`HOLE`]), and until they are filled the sequence neither grows nor is shared past the first one.
//!
//! # Invariants
//! - A page's reference count is the number of block tables that name it; it is on the free list exactly when that is 0.
//! - A block table names no page twice and has exactly `ceil(len / page_size_tokens)` entries, pages or holes.
//! - An operation that fails changed nothing.
//!
//! [`Sequences::audit`] walks everything and checks this, in builds with debug assertions.
//!
//! # Limits
//! Pages and tokens per sequence are fixed at the start. No operation looks at a page or a sequence that it does not touch.
//!
//! # Not here
//! The bytes of a page (`backend`), and what may be evicted to make room (the prefix cache and the executor).

mod block_table;
mod pool;
mod sequences;

pub use block_table::BlockTable;
pub use pool::{HOLE, PagePool, PageRef};
pub use sequences::{Growth, Handle, Sequences, SequencesShape};

/// Why an operation was refused. Nothing changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum KvError {
    /// No sequence has this handle.
    #[error("no sequence {handle}")]
    UnknownSequence {
        /// The handle.
        handle: Handle,
    },
    /// A sequence occurs twice in one call.
    #[error("sequence {handle} occurs twice")]
    Repeated {
        /// The handle.
        handle: Handle,
    },
    /// The pool has too few free pages.
    #[error("{needed} pages needed, {free} free")]
    OutOfPages {
        /// Pages the call needs.
        needed: usize,
        /// Pages that are free.
        free: usize,
    },
    /// As many sequences exist as may.
    #[error("{limit} sequences exist already")]
    OutOfSequences {
        /// Most sequences.
        limit: usize,
    },
    /// A sequence would exceed its longest length.
    #[error("{tokens} tokens in a sequence of at most {limit}")]
    TooLong {
        /// Tokens it would hold.
        tokens: u64,
        /// Most tokens of a sequence.
        limit: usize,
    },
    /// The length lies past the tokens that are held.
    #[error("length {len} of a sequence of {held} tokens")]
    PastEnd {
        /// The length asked for.
        len: u64,
        /// Tokens held.
        held: usize,
    },
    /// The operation needs pages that were given back, or would fill some that were not.
    #[error("sequence {handle} has other holes than that")]
    Hole {
        /// The handle.
        handle: Handle,
    },
    /// A range that does not begin and end with a page or with the sequence.
    #[error("a range that cuts a page")]
    CutsPage,
    /// The tables could not grow.
    #[error("out of host memory for tables")]
    OutOfMemory,
}
