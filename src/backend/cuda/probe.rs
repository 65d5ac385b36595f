//! Whether there is a device that this backend runs on, and if not, why.
//!
//! ```text
//! the driver's library opens -> it starts -> it lists a device -> the device is new enough
//! ```
//! Each step that fails is a [`BackendError::NoDevice`] with a text. Nothing here panics: the binding does where a library lacks a
//! function, so the whole look happens inside a fence.

use std::panic::{AssertUnwindSafe, catch_unwind};

use cudarc::driver::{DriverError, result, sys};

use super::driver::text_of;
use crate::backend::BackendError;

/// The oldest generation whose instructions the kernels use: 8.0 (A100, 2020).
const LEAST_CAPABILITY: (i32, i32) = (8, 0);

/// What the driver says of a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceInfo {
    /// Its number, from 0.
    pub index: u32,
    /// Its name.
    pub name: String,
    /// Compute capability: major, minor.
    pub capability: (i32, i32),
    /// Bytes of its memory.
    pub memory_bytes: u64,
}

/// Device number `index`, when this backend can run on it.
///
/// # Errors
/// `NoDevice` with the first reason that was met. Nothing is kept; the next call looks anew.
pub fn device(index: u32) -> Result<DeviceInfo, BackendError> {
    let refused = |reason: String| BackendError::NoDevice { reason };
    let look = || {
        if !library_opens() {
            return Err("the NVIDIA driver's library (libcuda.so) is not there".to_owned());
        }
        result::init().map_err(|error| format!("the driver does not start: {}", text_of(error)))?;
        let count = result::device::get_count().map_err(|error| format!("no device list: {}", text_of(error)))?;
        if i64::from(index) >= i64::from(count) {
            return Err(format!("the driver lists {count} devices, none with number {index}"));
        }
        describe(index).map_err(|error| format!("device {index} does not answer: {}", text_of(error)))
    };
    let found = match catch_unwind(AssertUnwindSafe(look)) {
        Ok(found) => found.map_err(refused)?,
        Err(_) => return Err(refused("the driver's library lacks a function".to_owned())),
    };
    if found.capability < LEAST_CAPABILITY {
        let (major, minor) = found.capability;
        let (least_major, least_minor) = LEAST_CAPABILITY;
        let name = found.name;
        let reason = format!("{name} has compute capability {major}.{minor}, needed are {least_major}.{least_minor}");
        return Err(refused(reason));
    }
    Ok(found)
}

/// As [`device`], of several that are to work as one.
///
/// They are of one generation: kernels are compiled for each generation by itself, and what tensor cores round inside of a product of 16-bit numbers is
/// not the same in all. Rows would have other bits than on one device, and so would state.
///
/// # Errors
/// `NoDevice`: the first one that cannot be used, or two that differ.
pub fn devices(indices: &[u32]) -> Result<Vec<DeviceInfo>, BackendError> {
    let infos: Vec<DeviceInfo> = indices.iter().map(|&index| device(index)).collect::<Result<_, _>>()?;
    let Some(first) = infos.first() else { return Ok(infos) };
    let Some(other) = infos.iter().find(|info| info.capability != first.capability) else { return Ok(infos) };
    let say = |DeviceInfo { index, name, capability: (major, minor), .. }: &DeviceInfo| {
        format!("device {index} ({name}) has compute capability {major}.{minor}")
    };
    let reason = format!("{}, {}: devices of different generations do not work as one", say(first), say(other));
    Err(BackendError::NoDevice { reason })
}

/// Whether any of the names that the driver's library goes by can be opened.
fn library_opens() -> bool {
    // SAFETY: opening a library runs its initialisers; that of the driver is made for it, and whoever puts another one in its place
    // runs that.
    unsafe { sys::is_culib_present() }
}

fn describe(index: u32) -> Result<DeviceInfo, DriverError> {
    // The number is below the driver's count, which is an `i32`.
    let device = result::device::get(index as i32)?;
    let attribute = |attribute| {
        // SAFETY: the device was just got from the driver.
        unsafe { result::device::get_attribute(device, attribute) }
    };
    let capability = (
        attribute(sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?,
        attribute(sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?,
    );
    // SAFETY: as above.
    let memory_bytes = unsafe { result::device::total_mem(device) }? as u64;
    Ok(DeviceInfo { index, name: result::device::get_name(device)?, capability, memory_bytes })
}
