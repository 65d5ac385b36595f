//! Files of kernels: text that the driver compiles, and machine code that it takes as it is, or does not.

use cudarc::driver::{DriverError, sys};
use cudarc::nvrtc::Ptx;

use super::{Driver, Function, Own, refused, text_of};
use crate::backend::BackendError;

/// What became of machine code.
pub(in super::super) enum Taken {
    /// The kernels that were asked for.
    Kernels(Vec<Function>),
    /// The device or its driver does not run it, and why.
    Not(String),
}

impl Driver {
    /// The kernels of these names out of a text, which the driver compiles.
    pub(in super::super) fn compile<'n>(
        &self,
        file: &str,
        text: &'static str,
        names: impl Iterator<Item = &'n str>,
    ) -> Result<Vec<Function>, BackendError> {
        let _entered = self.enter()?;
        let functions = self.functions(Ptx::from_src(text), names);
        functions.map_err(|error| refused(error, text.len(), &format!("compiling {file}.ptx")))
    }

    /// The kernels of these names out of a fatbin.
    ///
    /// # Errors
    /// Those that are not about the fatbin; with what is about it, text may still serve.
    pub(in super::super) fn take<'n>(
        &self,
        file: &str,
        fatbin: &[u8],
        names: impl Iterator<Item = &'n str>,
    ) -> Result<Taken, BackendError> {
        if !is_whole(fatbin) {
            return Ok(Taken::Not(format!("{file}.fatbin is no whole fatbin")));
        }
        let _entered = self.enter()?;
        match self.functions(Ptx::from_binary(fatbin.to_vec()), names) {
            Ok(functions) => Ok(Taken::Kernels(functions)),
            Err(error) if is_of_image(error) => Ok(Taken::Not(format!("{file}.fatbin: {}", text_of(error)))),
            Err(error) => Err(refused(error, fatbin.len(), &format!("loading {file}.fatbin"))),
        }
    }

    fn functions<'n>(&self, image: Ptx, names: impl Iterator<Item = &'n str>) -> Result<Vec<Function>, DriverError> {
        let module = Own::new(self.context.load_module(image)?);
        names.map(|name| module.load_function(name).map(Own::new)).collect()
    }
}

/// Whether a fatbin is as long as its header says, which the driver goes by: magic, version (u16), bytes of the header (u16), bytes behind it (u64).
fn is_whole(fatbin: &[u8]) -> bool {
    const MAGIC: [u8; 4] = 0xBA55_ED50_u32.to_le_bytes();
    let header = fatbin.first_chunk::<16>().filter(|header| header.starts_with(&MAGIC));
    header.is_some_and(|&[_, _, _, _, _, _, low, high, body @ ..]| {
        let bytes = u64::from(u16::from_le_bytes([low, high])).checked_add(u64::from_le_bytes(body));
        bytes == Some(fatbin.len() as u64)
    })
}

/// Whether an error is about what was to be loaded: not for this device or driver, not what it should be, or without a kernel.
fn is_of_image(error: DriverError) -> bool {
    matches!(
        error.0,
        sys::CUresult::CUDA_ERROR_INVALID_IMAGE
            | sys::CUresult::CUDA_ERROR_NO_BINARY_FOR_GPU
            | sys::CUresult::CUDA_ERROR_INVALID_PTX
            | sys::CUresult::CUDA_ERROR_JIT_COMPILER_NOT_FOUND
            | sys::CUresult::CUDA_ERROR_UNSUPPORTED_PTX_VERSION
            | sys::CUresult::CUDA_ERROR_JIT_COMPILATION_DISABLED
            | sys::CUresult::CUDA_ERROR_INVALID_SOURCE
            | sys::CUresult::CUDA_ERROR_NOT_FOUND
            | sys::CUresult::CUDA_ERROR_NOT_SUPPORTED
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cuda_fatbins_are_as_long_as_they_say() {
        let fatbin = |bytes: u64, body: usize| {
            let mut fatbin = vec![0x50, 0xED, 0x55, 0xBA, 1, 0, 16, 0];
            fatbin.extend(bytes.to_le_bytes());
            fatbin.resize(fatbin.len() + body, 0);
            fatbin
        };
        assert!(is_whole(&fatbin(24, 24)));
        assert!(!is_whole(&fatbin(24, 23)) && !is_whole(&fatbin(24, 25)) && !is_whole(&fatbin(u64::MAX, 24)));
        assert!(!is_whole(&fatbin(24, 24)[..15]) && !is_whole(&[]));
        let mut other = fatbin(24, 24);
        other[0] += 1;
        assert!(!is_whole(&other));
    }
}
