#![forbid(unsafe_code)]
//! Which instance runs: asked once, when a backend is made.

#[cfg(target_arch = "x86_64")]
use super::avx2::Avx2;
use super::portable::Portable;
use super::simd::{Op, Simd};

/// Instruction sets that kernels are compiled for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum InstructionSet {
    /// What every processor of the target has.
    Portable,
    /// x86-64 with AVX2, FMA and F16C.
    Avx2,
}

impl InstructionSet {
    /// All that there are, best last.
    pub const ALL: &'static [Self] = &[Self::Portable, Self::Avx2];

    /// Whether this processor has it.
    pub fn is_available(self) -> bool {
        Isa::new(self).is_some()
    }

    /// The best of this processor.
    pub fn best() -> Self {
        if Self::Avx2.is_available() { Self::Avx2 } else { Self::Portable }
    }

    /// Its name, for reports.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Portable => "portable",
            Self::Avx2 => "avx2",
        }
    }
}

/// An instance that this processor can run.
#[derive(Clone, Copy, Debug)]
pub(super) enum Isa {
    Portable(Portable),
    #[cfg(target_arch = "x86_64")]
    Avx2(Avx2),
}

impl Isa {
    pub(super) const PORTABLE: Self = Self::Portable(Portable);

    /// The instance, where this processor has it.
    pub(super) fn new(set: InstructionSet) -> Option<Self> {
        match set {
            InstructionSet::Portable => Some(Self::Portable(Portable)),
            #[cfg(target_arch = "x86_64")]
            InstructionSet::Avx2 => Avx2::detect().map(Self::Avx2),
            #[cfg(not(target_arch = "x86_64"))]
            InstructionSet::Avx2 => None,
        }
    }

    /// Runs an operation on this instance.
    pub(super) fn run<O: Op>(self, op: O) -> O::Output {
        match self {
            Self::Portable(s) => s.run(op),
            #[cfg(target_arch = "x86_64")]
            Self::Avx2(s) => s.run(op),
        }
    }
}
