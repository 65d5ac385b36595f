#![forbid(unsafe_code)]
//! Which instance runs: asked once, when a backend is made.

#[cfg(target_arch = "x86_64")]
use super::avx2::Avx2;
#[cfg(target_arch = "x86_64")]
use super::avx512::{Avx512, Avx512Vnni};
#[cfg(all(target_arch = "aarch64", target_feature = "neon", target_endian = "little"))]
use super::neon::{Neon, NeonDot};
use super::portable::Portable;
use super::simd::{IntegerOp, Integers, Op, Simd};
use crate::backend::BackendError;

/// Instruction sets that kernels are compiled for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum InstructionSet {
    /// What every processor of the target has.
    Portable = 1,
    /// x86-64 with AVX2, FMA and F16C.
    Avx2,
    /// x86-64 with AVX-512 F, BW, VL and DQ, and all of [`InstructionSet::Avx2`].
    Avx512,
    /// The same, with AVX-512 VNNI.
    Avx512Vnni,
    /// AArch64 with NEON.
    Neon,
    /// AArch64 with NEON and `dotprod`.
    NeonDot,
}

impl InstructionSet {
    /// All that there are, best last.
    pub const ALL: &'static [Self] =
        &[Self::Portable, Self::Avx2, Self::Avx512, Self::Avx512Vnni, Self::Neon, Self::NeonDot];

    /// Whether this processor has it.
    pub fn is_available(self) -> bool {
        Isa::new(self).is_some()
    }

    /// Checks that this processor has it.
    ///
    /// # Errors
    /// `NoDevice` with its name.
    pub fn require(self) -> Result<(), BackendError> {
        let reason = || format!("the processor has no {}", self.name());
        if self.is_available() { Ok(()) } else { Err(BackendError::NoDevice { reason: reason() }) }
    }

    /// The best of this processor.
    pub fn best() -> Self {
        // The portable one is everywhere, so there is always one.
        Self::ALL.iter().copied().rfind(|set| set.is_available()).unwrap_or(Self::Portable)
    }

    /// Its name, for reports.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Portable => "portable",
            Self::Avx2 => "avx2",
            Self::Avx512 => "avx512",
            Self::Avx512Vnni => "avx512-vnni",
            Self::Neon => "neon",
            Self::NeonDot => "neon-dotprod",
        }
    }

    /// The one of this [`InstructionSet::name`].
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|set| set.name() == name)
    }
}

/// An instance that this processor can run.
#[derive(Clone, Copy, Debug)]
pub(super) enum Isa {
    Portable(Portable),
    #[cfg(target_arch = "x86_64")]
    Avx2(Avx2),
    #[cfg(target_arch = "x86_64")]
    Avx512(Avx512),
    #[cfg(target_arch = "x86_64")]
    Avx512Vnni(Avx512Vnni),
    #[cfg(all(target_arch = "aarch64", target_feature = "neon", target_endian = "little"))]
    Neon(Neon),
    #[cfg(all(target_arch = "aarch64", target_feature = "neon", target_endian = "little"))]
    NeonDot(NeonDot),
}

impl Isa {
    pub(super) const PORTABLE: Self = Self::Portable(Portable);

    /// The instance, where this processor has it.
    pub(super) fn new(set: InstructionSet) -> Option<Self> {
        match set {
            InstructionSet::Portable => Some(Self::Portable(Portable)),
            #[cfg(target_arch = "x86_64")]
            InstructionSet::Avx2 => Avx2::detect().map(Self::Avx2),
            #[cfg(target_arch = "x86_64")]
            InstructionSet::Avx512 => Avx512::detect().map(Self::Avx512),
            #[cfg(target_arch = "x86_64")]
            InstructionSet::Avx512Vnni => Avx512Vnni::detect().map(Self::Avx512Vnni),
            #[cfg(all(target_arch = "aarch64", target_feature = "neon", target_endian = "little"))]
            InstructionSet::Neon => Some(Self::Neon(Neon)),
            #[cfg(all(target_arch = "aarch64", target_feature = "neon", target_endian = "little"))]
            InstructionSet::NeonDot => NeonDot::detect().map(Self::NeonDot),
            // Those of other targets.
            _ => None,
        }
    }

    /// Runs an operation on this instance.
    pub(super) fn run<O: Op>(self, op: O) -> O::Output {
        match self {
            Self::Portable(s) => s.run(op),
            #[cfg(target_arch = "x86_64")]
            Self::Avx2(s) => s.run(op),
            #[cfg(target_arch = "x86_64")]
            Self::Avx512(s) => s.run(op),
            #[cfg(target_arch = "x86_64")]
            Self::Avx512Vnni(s) => s.run(op),
            #[cfg(all(target_arch = "aarch64", target_feature = "neon", target_endian = "little"))]
            Self::Neon(s) => s.run(op),
            #[cfg(all(target_arch = "aarch64", target_feature = "neon", target_endian = "little"))]
            Self::NeonDot(s) => s.run(op),
        }
    }

    /// Runs an operation with products of bytes on this instance. AVX-512 without VNNI has none that are better than those of AVX2.
    pub(super) fn run_integers<O: IntegerOp>(self, op: O) -> O::Output {
        match self {
            Self::Portable(s) => s.run_integers(op),
            #[cfg(target_arch = "x86_64")]
            Self::Avx2(s) => s.run_integers(op),
            #[cfg(target_arch = "x86_64")]
            Self::Avx512(s) => s.narrow().run_integers(op),
            #[cfg(target_arch = "x86_64")]
            Self::Avx512Vnni(s) => s.run_integers(op),
            #[cfg(all(target_arch = "aarch64", target_feature = "neon", target_endian = "little"))]
            Self::Neon(s) => s.run_integers(op),
            #[cfg(all(target_arch = "aarch64", target_feature = "neon", target_endian = "little"))]
            Self::NeonDot(s) => s.run_integers(op),
        }
    }
}
