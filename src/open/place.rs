#![forbid(unsafe_code)]
//! Where a model runs: the processor, or one or several CUDA devices where the build and the machine have them.

use super::options::{Device, ModelOptions, Resolved};
use crate::backend::cpu::{CpuBackend, InstructionSet};
#[cfg(feature = "cuda")]
use crate::backend::cuda::{self, CudaBackend, CudaGroup, DeviceInfo};
use crate::backend::{Arithmetic, BackendError};
use crate::checkpoint::{Checkpoint, ModelConfig};
use crate::model;
use crate::runtime::{MemoryPlan, PagedOptions, SharedWeights};

/// A place, and the weights as its backend has laid them out.
#[derive(Debug)]
pub(super) enum Place {
    Cpu(SharedWeights<CpuBackend>),
    #[cfg(feature = "cuda")]
    Cuda(SharedWeights<CudaBackend>),
    #[cfg(feature = "cuda")]
    CudaGroup(SharedWeights<CudaGroup>),
}

/// Which devices a host asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Devices {
    pub(super) kind: Device,
    /// Numbers of CUDA devices; none for the processor.
    pub(super) indices: Vec<u32>,
    /// Instructions of the processor; none is its best.
    pub(super) instruction_set: Option<InstructionSet>,
}

impl Devices {
    pub(super) fn of(options: &ModelOptions) -> Self {
        let indices = match (options.device, options.device_mask) {
            (Device::Cpu, _) => Vec::new(),
            (Device::Cuda, 0) => vec![options.device_index],
            (Device::Cuda, mask) => (0..u64::BITS).filter(|bit| mask >> bit & 1 == 1).collect(),
        };
        Self { kind: options.device, indices, instruction_set: options.instruction_set }
    }

    /// Instructions of the processor, the default filled in.
    pub(super) fn instruction_set(&self) -> InstructionSet {
        self.instruction_set.unwrap_or_else(InstructionSet::best)
    }

    /// How many devices there are to count memory of.
    pub(super) fn count(&self) -> usize {
        self.indices.len().max(1)
    }

    /// Refuses a model that has too little to give each of them a part.
    pub(super) fn check(&self, config: &ModelConfig) -> Result<(), BackendError> {
        let (parts, devices) = (config.n_kv_heads, self.count());
        match parts >= devices {
            true => Ok(()),
            false => Err(BackendError::CannotSpread { what: "key and value heads", parts, devices }),
        }
    }
}

impl Place {
    /// The place, when it is there; no weights yet.
    pub(super) fn find(devices: &Devices) -> Result<Self, BackendError> {
        match devices.kind {
            Device::Cpu => {
                devices.instruction_set.map_or(Ok(()), InstructionSet::require)?;
                Ok(Self::Cpu(SharedWeights::default()))
            }
            Device::Cuda => Self::cuda(&devices.indices),
        }
    }

    #[cfg(feature = "cuda")]
    fn cuda(indices: &[u32]) -> Result<Self, BackendError> {
        cuda::devices(indices)?;
        Ok(match indices.len() {
            0 | 1 => Self::Cuda(SharedWeights::default()),
            _ => Self::CudaGroup(SharedWeights::default()),
        })
    }

    #[cfg(not(feature = "cuda"))]
    fn cuda(_: &[u32]) -> Result<Self, BackendError> {
        Err(no_device("this build lacks the feature `cuda`"))
    }
}

pub(super) fn no_device(reason: &str) -> BackendError {
    BackendError::NoDevice { reason: reason.to_owned() }
}

/// What a runtime calls the devices that it runs on: their numbers, and the names that they have.
#[cfg(feature = "cuda")]
pub(super) fn name_of<'a>(infos: impl Iterator<Item = &'a DeviceInfo>) -> String {
    let (mut numbers, mut names): (Vec<String>, Vec<String>) = Default::default();
    for DeviceInfo { index, name, capability: (major, minor), .. } in infos {
        numbers.push(index.to_string());
        let name = format!("{name} sm_{major}{minor}");
        if !names.contains(&name) {
            names.push(name);
        }
    }
    format!("cuda:{} {}", numbers.join(","), names.join(" + "))
}

/// Bytes that the weights take in the form that the backend gives them, on device `member` out of `members`.
fn weights_bytes_on(kind: Device, checkpoint: &Checkpoint, member: usize, members: usize) -> u64 {
    #[cfg(feature = "cuda")]
    if kind == Device::Cuda {
        let spread = |name: &str| match members {
            1 => crate::backend::Spread::Whole,
            _ => model::spread::of_tensor(checkpoint.config(), name),
        };
        let tensors = checkpoint.tensors().map(|(name, tensor)| (tensor, spread(name)));
        return CudaGroup::weights_bytes(tensors, member, members);
    }
    let _ = (kind, member, members);
    CpuBackend::weights_bytes(checkpoint.tensors().map(|(_, tensor)| tensor))
}

/// Bytes that the weights take in the form that the backend gives them, on all devices.
pub(super) fn weights_bytes(devices: &Devices, checkpoint: &Checkpoint) -> u64 {
    let members = devices.count();
    let on = |member| weights_bytes_on(devices.kind, checkpoint, member, members);
    (0..members).map(on).fold(0, u64::saturating_add)
}

/// Bytes that each device takes for so many rows of inputs of up to `inputs` elements, in the form that weights meet.
fn input_bytes(kind: Device, arithmetic: Arithmetic, rows: usize, inputs: usize) -> u64 {
    #[cfg(feature = "cuda")]
    if kind == Device::Cuda {
        return match arithmetic {
            Arithmetic::Exact => 0,
            Arithmetic::Fast => CudaBackend::rounded_bytes(rows, inputs),
        };
    }
    let _ = kind;
    CpuBackend::input_bytes(arithmetic, rows, inputs)
}

/// Bytes that the backend itself takes for operations, on device `member` out of `members`.
fn working_bytes(kind: Device, config: &ModelConfig, options: &PagedOptions, member: usize, members: usize) -> u64 {
    #[cfg(feature = "cuda")]
    if kind == Device::Cuda {
        // As many embedded rows as there are devices go between them at once.
        let widest = model::widest_input(config).max(config.vocab).max(config.hidden.saturating_mul(members));
        let (shape, walk) = (options.kv_shape(config), [options.resolved_pass_rows(), options.longest_table()]);
        return match members {
            1 => CudaBackend::working_bytes(&shape, walk),
            _ => CudaGroup::working_bytes(&shape, walk, widest, member, members),
        };
    }
    let _ = (kind, config, options, member, members);
    0
}

/// What a model takes on each device; tables, which are the host's, are in the first. None when a sum does not fit 64 bits.
pub(super) fn plans(resolved: &Resolved, checkpoint: &Checkpoint, options: &PagedOptions) -> Option<Vec<MemoryPlan>> {
    let (devices, config) = (&resolved.devices, checkpoint.config());
    let members = devices.count();
    let (rows, widest) = (options.resolved_pass_rows(), model::widest_input(config));
    let inputs = input_bytes(devices.kind, resolved.arithmetic, rows, widest);
    let plan = |member| {
        let weights = weights_bytes_on(devices.kind, checkpoint, member, members);
        let mut plan = MemoryPlan::on_device(config, options, weights, member, members)?;
        let working = working_bytes(devices.kind, config, options, member, members);
        plan.activation_bytes = plan.activation_bytes.checked_add(working)?.checked_add(inputs)?;
        Some(plan)
    };
    (0..members).map(plan).collect()
}
