#![forbid(unsafe_code)]
//! Why something was refused, as plain data: evidence that costs nothing on the path that succeeds.

use super::domain::{DOMAINS, Domain};
use super::ticket::Ticket;

/// What helps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Remedy {
    /// Wait until somebody gives something back.
    Wait,
    /// Grow: all that is installed would not be enough.
    Grow,
    /// Take a victim: who asked said that it would.
    Recompute,
    /// Wait until a run has ended. No memory is short.
    Quiesce,
}

/// How something is short; the later, the stronger.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum Lack {
    /// What has to be free besides, and is not taken, is not free now.
    Fit,
    /// What is taken is not free now.
    Now,
    /// More than is installed.
    Growth,
    /// More than can ever be there.
    Never,
}

/// One domain that is short.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Shortfall {
    /// Which.
    pub domain: Domain,
    /// How.
    pub lack: Lack,
    /// Units that have to be free.
    pub need: u64,
    /// Units that are free.
    pub free: u64,
    /// Units that are installed, without those in quarantine.
    pub total: u64,
    /// Units that can be installed, without those in quarantine.
    pub max: u64,
}

impl Shortfall {
    /// Fills the unused end of [`Blocked::short`].
    pub const UNUSED: Self = Self { domain: Domain::Slots, lack: Lack::Fit, need: 0, free: 0, total: 0, max: 0 };
}

/// Why something does not fit now: evidence, and no authority of any kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Blocked {
    /// What helps.
    pub remedy: Remedy,
    /// The domains that are short, by [`Domain`]; the first `n` count.
    pub short: [Shortfall; DOMAINS],
    /// How many domains are short.
    pub n: u8,
    /// Watches exactly the domains in `short`; nothing where waiting never helps.
    pub ticket: Ticket,
    /// Items of a batch that would have fitted together, from the first one.
    pub fits: u32,
    /// Proof of growth: [`Ticket::resized`] of the last publication of this call that raised a domain listed as growth; else 0.
    pub grew: u64,
}

impl Blocked {
    /// Evidence that was found elsewhere.
    ///
    /// `seen` was sampled before looking: a change in between then moves the ticket, which watches the domains of `short`.
    /// Of more than seven entries the first seven count.
    pub fn on(remedy: Remedy, short: &[Shortfall], seen: &Ticket) -> Self {
        let mut blocked = Self { remedy, short: [Shortfall::UNUSED; DOMAINS], n: 0, ticket: *seen, fits: 0, grew: 0 };
        let mut watch = 0;
        for (place, &entry) in blocked.short.iter_mut().zip(short) {
            *place = entry;
            blocked.n += 1;
            watch |= entry.domain.bit();
        }
        blocked.ticket = seen.watching(watch);
        blocked
    }

    /// The domains that are short.
    pub fn shortfalls(&self) -> &[Shortfall] {
        self.short.get(..usize::from(self.n)).unwrap_or(&self.short)
    }

    /// What is said of one domain, if it is short.
    pub fn of(&self, domain: Domain) -> Option<&Shortfall> {
        self.shortfalls().iter().find(|entry| entry.domain == domain)
    }

    /// Whether a batch that was refused with this may be tried once more without waiting, because the call grew something it needs.
    ///
    /// `used`: the proof that was used last for any of its sequences, 0 at first; set when the answer is yes.
    pub fn may_retry(&self, used: &mut u64) -> bool {
        let newer = self.grew > *used;
        if newer {
            *used = self.grew;
        }
        newer
    }

    /// A narrower width to try instead of `tokens`, or none for a width of one.
    ///
    /// A pure function of the evidence: at least 1, at most three quarters of `tokens`, and as much narrower as the shortest domain is short.
    pub fn narrower(&self, tokens: usize) -> Option<usize> {
        if tokens <= 1 {
            return None;
        }
        let cap = (tokens - tokens.div_ceil(4)).max(1);
        let share = |entry: &Shortfall| {
            // Both factors are below 2^64, so the product is exact; the quotient is below `tokens`, as `free < need`.
            let part = tokens as u128 * u128::from(entry.free) / u128::from(entry.need);
            (part as usize).clamp(1, tokens - 1)
        };
        let short = self.shortfalls().iter().filter(|entry| entry.need > entry.free);
        let width = short.map(share).min().unwrap_or(tokens.div_ceil(2));
        Some(width.min(cap).max(1))
    }
}

/// A mode that is not offered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Feature {
    /// Kinds of work mixed in one batch.
    Mixed,
    /// Several tokens verified in one pass.
    Verify,
    /// State that can be cut.
    Truncate,
    /// Tokens selected inside the step.
    GreedyDevice,
    /// Pools that grow.
    Grow,
    /// State that leaves for host memory.
    Export,
    /// Starts from resident prefixes.
    Reuse,
    /// So many items in a batch.
    Items,
    /// So many tokens in a batch.
    Tokens,
}

impl Feature {
    /// All of them.
    pub const ALL: [Self; 9] = [
        Self::Mixed,
        Self::Verify,
        Self::Truncate,
        Self::GreedyDevice,
        Self::Grow,
        Self::Export,
        Self::Reuse,
        Self::Items,
        Self::Tokens,
    ];
}

/// What was wrong with a call; it had no effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Bad {
    /// An id, a length, a chunk or a count out of range.
    Bounds,
    /// Not at the frontier, or in the wrong state for it.
    Frontier,
    /// A sequence twice in a batch.
    Duplicate,
    /// An old generation, or a sequence that is closed.
    Stale,
    /// Of another core, or of the other facade.
    Foreign,
    /// A run is in flight on the sequence.
    Busy,
    /// The sequence has faulted.
    Faulted,
    /// A value of a policy that means nothing here.
    Policy,
    /// The core shuts down.
    Closed,
    /// An epoch is lower than what was seen.
    Regressed,
    /// A counter cannot count any further.
    Exhausted,
    /// A panic left the books in doubt.
    Poisoned,
}

/// Proof that a call changed nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// Something is short for the time being.
    #[error("short of {} domains for now", .0.n)]
    Blocked(Blocked),
    /// More was asked for than can ever be there.
    #[error("more than there can ever be in {} domains", .0.n)]
    Never(Blocked),
    /// A mode that is not offered.
    #[error("{0:?} is not offered")]
    Unsupported(Feature),
    /// The call was wrong.
    #[error("{why:?} at item {at}")]
    Bad {
        /// What was wrong.
        why: Bad,
        /// Which item of the call, counted from 0.
        at: u32,
    },
}

impl Refusal {
    /// A call that is wrong as a whole, or in its first item.
    pub const fn bad(why: Bad) -> Self {
        Self::Bad { why, at: 0 }
    }

    /// A call that is wrong in one item.
    pub const fn bad_at(why: Bad, at: u32) -> Self {
        Self::Bad { why, at }
    }

    /// The evidence, where something is short.
    pub const fn blocked(&self) -> Option<&Blocked> {
        match self {
            Self::Blocked(blocked) | Self::Never(blocked) => Some(blocked),
            Self::Unsupported(_) | Self::Bad { .. } => None,
        }
    }
}

impl From<Bad> for Refusal {
    fn from(why: Bad) -> Self {
        Self::bad(why)
    }
}
