#![forbid(unsafe_code)]
//! Where a model runs: the processor, or a CUDA device where the build and the machine have one.

use super::options::Device;
use crate::backend::cpu::CpuBackend;
#[cfg(feature = "cuda")]
use crate::backend::cuda::{self, CudaBackend, DeviceInfo};
use crate::backend::{BackendError, KvShape};
use crate::checkpoint::Checkpoint;
use crate::runtime::SharedWeights;

/// A place, and the weights as its backend has laid them out.
#[derive(Debug)]
pub(super) enum Place {
    Cpu(SharedWeights<CpuBackend>),
    #[cfg(feature = "cuda")]
    Cuda(SharedWeights<CudaBackend>),
}

impl Place {
    /// The place, when it is there; no weights yet.
    pub(super) fn find(device: Device, index: u32) -> Result<Self, BackendError> {
        match device {
            Device::Cpu => Ok(Self::Cpu(SharedWeights::default())),
            Device::Cuda => Self::cuda(index),
        }
    }

    #[cfg(feature = "cuda")]
    fn cuda(index: u32) -> Result<Self, BackendError> {
        cuda::device(index)?;
        Ok(Self::Cuda(SharedWeights::default()))
    }

    #[cfg(not(feature = "cuda"))]
    fn cuda(_: u32) -> Result<Self, BackendError> {
        Err(no_device("this build lacks the feature `cuda`"))
    }
}

pub(super) fn no_device(reason: &str) -> BackendError {
    BackendError::NoDevice { reason: reason.to_owned() }
}

/// What a runtime calls the device that it runs on.
#[cfg(feature = "cuda")]
pub(super) fn name_of(info: &DeviceInfo) -> String {
    let DeviceInfo { index, name, capability: (major, minor), .. } = info;
    format!("cuda:{index} {name} sm_{major}{minor}")
}

/// Bytes that the weights take in the form that the backend gives them.
pub(super) fn weights_bytes(device: Device, checkpoint: &Checkpoint) -> u64 {
    let tensors = checkpoint.tensors().map(|(_, tensor)| tensor);
    #[cfg(feature = "cuda")]
    if device == Device::Cuda {
        return CudaBackend::weights_bytes(tensors);
    }
    let _ = device;
    CpuBackend::weights_bytes(tensors)
}

/// Bytes that the backend itself takes for operations.
pub(super) fn working_bytes(device: Device, shape: &KvShape) -> u64 {
    #[cfg(feature = "cuda")]
    if device == Device::Cuda {
        return CudaBackend::working_bytes(shape);
    }
    let _ = (device, shape);
    0
}
