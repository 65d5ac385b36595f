//! Rings and strategies the host registers.

use core::ffi::{c_char, c_void};

use super::value::Array;
use super::view::record;

/// A shared-memory ring to attach (E-40 .. E-44).
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct RingDesc {
    /// The writer's size of this record in bytes.
    pub struct_size: u64,
    /// `RING_ID_*`.
    pub ring_id: u32,
    /// `RING_KIND_*`.
    pub kind: u32,
    /// `RING_ROLE_*`, from the engine's side.
    pub role: u32,
    /// Number of slots.
    pub slots: u32,
    /// Bytes of one slot with its header.
    pub slot_bytes: u32,
    /// Zero; readers ignore it.
    pub _pad0: u32,
    /// First byte of the segment; 8-byte aligned.
    pub base: *mut c_void,
    /// Length of the segment in bytes.
    pub len: u64,
}
const _: () = assert!(size_of::<RingDesc>() == 48);
record!(RingDesc, min_prefix: 48);

/// A file a strategy brings.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Artifact {
    /// `ARTIFACT_*`.
    pub role: u32,
    /// Zero; readers ignore it.
    pub _pad0: u32,
    /// Hash of its bytes.
    pub content_hash: [u8; 32],
    /// Its size in bytes.
    pub byte_size: u64,
    /// NUL-terminated path.
    pub load_path: *const c_char,
}
const _: () = assert!(size_of::<Artifact>() == 56);
record!(Artifact, min_prefix: 56);

/// A hidden state a strategy wants to read.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct TapSpec {
    /// Layer index.
    pub layer: u32,
    /// `TAP_TENSOR_*`.
    pub tensor: u32,
    /// Element type.
    pub dtype: u32,
    /// Layout.
    pub layout: u32,
}
const _: () = assert!(size_of::<TapSpec>() == 16);
record!(TapSpec, min_prefix: 16);

/// A capability a strategy needs.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CapabilityReq {
    /// `STRATEGY_CAP_*`.
    pub kind_id: u32,
    /// Zero; readers ignore it.
    pub _pad0: u32,
    /// Array defined by the kind.
    pub params: Array,
}
const _: () = assert!(size_of::<CapabilityReq>() == 24);
record!(CapabilityReq, min_prefix: 24);

/// A speculation strategy to register (R-50 .. R-57).
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct StrategyRegistration {
    /// The writer's size of this record in bytes.
    pub struct_size: u64,
    /// NUL-terminated id.
    pub strategy_id: *const c_char,
    /// NUL-terminated version.
    pub impl_version: *const c_char,
    /// Hash of the implementation.
    pub impl_hash: [u8; 32],
    /// Hash of the configuration.
    pub config_hash: [u8; 32],
    /// [`Artifact`] records.
    pub artifacts: Array,
    /// [`TapSpec`] records.
    pub taps: Array,
    /// [`CapabilityReq`] records.
    pub capabilities: Array,
    /// `u64` pointers to NUL-terminated architecture names.
    pub target_archs: Array,
    /// Bit set of kernel capabilities.
    pub kernel_caps_required: u32,
    /// Zero; readers ignore it.
    pub _pad0: u32,
    /// Estimated state in bytes.
    pub est_state_bytes: u64,
    /// `EXACTNESS_*` claimed; recorded, never trusted.
    pub claimed_exactness: u8,
    /// Zero; readers ignore it.
    pub _pad1: [u8; 3],
    /// Version of the draw contract.
    pub rng_contract_version: u32,
}
const _: () = assert!(size_of::<StrategyRegistration>() == 176);
record!(StrategyRegistration, min_prefix: 176);

/// What a strategy is certified for.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ExactnessCert {
    /// Its id, not 0.
    pub cert_id: u32,
    /// `EXACTNESS_*`.
    pub exactness: u8,
    /// Bit set of `CERT_MODE_*`.
    pub sampling_modes: u8,
    /// Nonzero: lanes with a grammar.
    pub grammar_allowed: u8,
    /// Nonzero: lanes with a bias.
    pub logit_bias_allowed: u8,
    /// `CERT_DOMAIN_*`.
    pub param_domain: u32,
    /// Class of the verification step.
    pub verification_shape_class: u32,
    /// 32-byte hashes; empty is never for HOST lanes.
    pub admissible_host_identities: Array,
}
const _: () = assert!(size_of::<ExactnessCert>() == 32);
record!(ExactnessCert, min_prefix: 32);

/// What a registration was given.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct StrategyGrant {
    /// Size of this record in bytes.
    pub struct_size: u64,
    /// Slot to name in admits, not 0.
    pub strategy_slot: u32,
    /// Zero; readers ignore it.
    pub _pad0: u32,
    /// [`ExactnessCert`] records.
    pub certificates: Array,
    /// [`StateSpaceDesc`](super::StateSpaceDesc) records.
    pub state_spaces: Array,
    /// Bytes reserved for it.
    pub reserved_bytes: u64,
}
const _: () = assert!(size_of::<StrategyGrant>() == 56);
record!(StrategyGrant, min_prefix: 56);
