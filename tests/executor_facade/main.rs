//! The facade for hosts that own their scheduler, over the fake runtime: scenarios XS-1 .. XS-69 that need an executor.
//!
//! A name begins with its scenario. The fake hashes the token list of a sequence, so every token of every text is known beforehand
//! ([`host::text`]), and whatever disturbs a sequence shows in its next token.

mod admission;
mod bent;
mod endings;
mod growth;
mod host;
mod mixed;
mod output;
mod overload;
mod panics;
mod runs;
mod scheduler;
