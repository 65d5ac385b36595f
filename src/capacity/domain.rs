#![forbid(unsafe_code)]
//! The seven things that can be short.

/// How many domains there are.
pub const DOMAINS: usize = 7;

/// Amounts by domain: `units[domain.index()]`.
pub type Units = [u64; DOMAINS];

/// Nothing of any domain.
pub const NOTHING: Units = [0; DOMAINS];

/// A thing that is counted, and can be short.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum Domain {
    /// Sequences that can exist at once.
    Slots,
    /// Pages of the pool.
    Blocks,
    /// Bytes of scratch memory of a step.
    Workspace,
    /// Bytes of host memory for exported state.
    HostExport,
    /// Bytes of the device that this core may claim.
    Budget,
    /// Bytes of the device that all cores of an account may claim together.
    Device,
    /// Runs and ticks under way; no memory, and never counted as pressure.
    Flight,
}

impl Domain {
    /// All of them, in the order of [`Units`].
    pub const ALL: [Self; DOMAINS] =
        [Self::Slots, Self::Blocks, Self::Workspace, Self::HostExport, Self::Budget, Self::Device, Self::Flight];

    /// Its place in [`Units`].
    pub const fn index(self) -> usize {
        self as usize
    }

    /// Its bit in a set of domains.
    pub const fn bit(self) -> u8 {
        1 << self as u8
    }

    /// Its number in records, where 0 says nothing.
    pub const fn code(self) -> u32 {
        self as u32 + 1
    }
}

/// All domains as a set.
pub const EVERY: u8 = (1 << DOMAINS) - 1;

/// The domains of which there is something.
pub(super) fn set_of(units: &Units) -> u8 {
    Domain::ALL.iter().filter(|domain| units[domain.index()] > 0).fold(0, |set, domain| set | domain.bit())
}

/// The domains of a set.
pub(super) fn domains_of(set: u8) -> impl Iterator<Item = Domain> {
    Domain::ALL.into_iter().filter(move |domain| set & domain.bit() != 0)
}
