#![forbid(unsafe_code)]
//! Building the registration of a strategy in Rust.
//!
//! ```
//! use ictus::engine::{Engine, StrategyBuilder};
//! use ictus::executor::Executor;
//! use ictus::runtime::FakeRuntime;
//!
//! let mut engine = Executor::new(FakeRuntime::with(|options| options.descriptor.verify_rows = true));
//! let (registration, memory) = StrategyBuilder::new("prompt-lookup").config("max_draft=6").build();
//! let grant = engine.strategy_register(&registration, &memory)?;
//! assert_eq!(grant.strategy_slot, 1);
//! # Ok::<(), ictus::record::Status>(())
//! ```

use core::ffi::c_char;

use crate::record::constant::{artifact_role, exactness, strategy_cap};
use crate::record::view::Plain;
use crate::record::{Array, Artifact, CapabilityReq, RecordArena, StrategyRegistration, TapSpec};

/// Collects what a registration says; [`StrategyBuilder::build`] gives the record and the memory that it points into.
#[derive(Clone, Debug)]
pub struct StrategyBuilder {
    id: Option<String>,
    impl_hash: [u8; 32],
    config_hash: [u8; 32],
    config: String,
    kernel_caps: u32,
    host_identities: Option<Vec<[u8; 32]>>,
    capabilities: Vec<u32>,
    taps: Vec<TapSpec>,
    archs: Vec<String>,
    draft_weights: Option<String>,
}

impl StrategyBuilder {
    /// The strategy with this id, with its default configuration.
    pub fn new(id: &str) -> Self {
        Self {
            id: Some(id.to_owned()),
            impl_hash: [0; 32],
            config_hash: [0; 32],
            config: String::new(),
            kernel_caps: 0,
            host_identities: None,
            capabilities: Vec::new(),
            taps: Vec::new(),
            archs: Vec::new(),
            draft_weights: None,
        }
    }

    /// Leaves the id away: NULL.
    pub fn without_id(mut self) -> Self {
        self.id = None;
        self
    }

    /// The configuration text (R-41).
    pub fn config(mut self, text: &str) -> Self {
        text.clone_into(&mut self.config);
        self
    }

    /// Hashes of implementation and configuration.
    pub fn hashes(mut self, implementation: [u8; 32], configuration: [u8; 32]) -> Self {
        (self.impl_hash, self.config_hash) = (implementation, configuration);
        self
    }

    /// Kernel capabilities that are required.
    pub fn kernel_caps(mut self, bits: u32) -> Self {
        self.kernel_caps = bits;
        self
    }

    /// Lets HOST lanes name the strategy whose samplers have these names (R-56).
    pub fn host_identities(mut self, names: &[[u8; 32]]) -> Self {
        self.host_identities = Some(names.to_vec());
        self
    }

    /// One more capability, without parameters.
    pub fn capability(mut self, kind: u32) -> Self {
        self.capabilities.push(kind);
        self
    }

    /// A hidden state to read.
    pub fn tap(mut self, layer: u32, tensor: u32) -> Self {
        self.taps.push(TapSpec { layer, tensor, dtype: 0, layout: 0 });
        self
    }

    /// An architecture that the strategy is made for.
    pub fn architecture(mut self, name: &str) -> Self {
        self.archs.push(name.to_owned());
        self
    }

    /// The file of the draft model.
    pub fn draft_weights(mut self, path: &str) -> Self {
        self.draft_weights = Some(path.to_owned());
        self
    }

    /// The registration, and the memory it points into.
    pub fn build(&self) -> (StrategyRegistration, RecordArena) {
        let mut arena = RecordArena::new();
        let mut registration = StrategyRegistration::zeroed();
        registration.struct_size = size_of::<StrategyRegistration>() as u64;
        registration.strategy_id = self.id.as_deref().map_or(core::ptr::null(), |id| text(&mut arena, id));
        registration.impl_version = text(&mut arena, "1.0.0");
        registration.impl_hash = self.impl_hash;
        registration.config_hash = self.config_hash;
        registration.kernel_caps_required = self.kernel_caps;
        registration.claimed_exactness = exactness::SEED_PATH_INVARIANT;
        registration.rng_contract_version = 1;
        let linear = arena.push_records(self.config.as_bytes());
        let mut capabilities =
            vec![CapabilityReq { kind_id: strategy_cap::PROPOSAL_LINEAR, params: linear, ..Plain::zeroed() }];
        if let Some(names) = &self.host_identities {
            let params = arena.push_records(names);
            capabilities.push(CapabilityReq { kind_id: strategy_cap::HOST_COMPATIBLE, params, ..Plain::zeroed() });
        }
        let bare = |&kind_id: &u32| CapabilityReq { kind_id, params: Array::EMPTY, ..Plain::zeroed() };
        capabilities.extend(self.capabilities.iter().map(bare));
        registration.capabilities = arena.push_records(&capabilities);
        registration.taps = arena.push_records(&self.taps);
        let archs: Vec<u64> = self.archs.iter().map(|name| text(&mut arena, name).expose_provenance() as u64).collect();
        registration.target_archs = arena.push_records(&archs);
        if let Some(path) = &self.draft_weights {
            let mut artifact = Artifact::zeroed();
            artifact.role = artifact_role::DRAFT_WEIGHTS;
            artifact.load_path = text(&mut arena, path);
            registration.artifacts = arena.push_records(&[artifact]);
        }
        (registration, arena)
    }
}

/// A C string in the arena.
fn text(arena: &mut RecordArena, text: &str) -> *const c_char {
    let bytes: Vec<u8> = text.bytes().filter(|&byte| byte != 0).chain([0]).collect();
    arena.push_records(&bytes).data.cast()
}
