//! Two devices.

use cudarc::driver::{CudaContext, sys};

use crate::fake_driver::Setting;
use crate::{Code, Device, calm_driver, code};

#[test]
fn cuda_devices_are_as_many_as_were_set() {
    let Some(driver) = calm_driver() else { return };
    assert_eq!(CudaContext::device_count().expect("a number"), 1);
    assert_eq!(code(CudaContext::new(1)), Code::CUDA_ERROR_INVALID_DEVICE);
    driver.set(Setting::Devices, 3);
    driver.set(Setting::Capability, 80);
    driver.set(Setting::Processors, 7);
    let context = CudaContext::new(2).expect("a device");
    assert_eq!(context.name().expect("a name"), "simulated device 2");
    assert_eq!(context.compute_capability().expect("numbers"), (8, 0));
    assert_ne!(
        context.uuid().expect("bytes").bytes,
        CudaContext::new(0).expect("a device").uuid().expect("bytes").bytes
    );
}

#[test]
fn cuda_memory_goes_from_device_to_device() {
    let Some(driver) = calm_driver() else { return };
    driver.set(Setting::Devices, 2);
    let (first, second) = (Device::new(0), Device::new(1));
    let mut x = first.numbers(&[1.0, 2.0]);
    first.add(&mut x, &first.numbers(&[10.0, 20.0])).expect("a launch");
    let mut there = second.room(2);
    second.stream.memcpy_dtod(&x, &mut there).expect("a copy");
    assert_eq!(second.read(&there), [11.0, 22.0]);
    assert_eq!(second.context.mem_get_info().expect("sizes").0, (1 << 30) - 512, "each has memory of its own");
}

/// A kernel sees the memory of another device only after access was enabled.
#[test]
fn cuda_kernels_reach_another_device_only_when_it_is_enabled() {
    let Some(driver) = calm_driver() else { return };
    let enable = |peers: u64| {
        driver.reset();
        driver.set(Setting::Devices, 2);
        driver.set(Setting::Peers, peers);
        let (first, second) = (Device::new(0), Device::new(1));
        let (mut x, y) = (first.numbers(&[1.0]), second.numbers(&[10.0]));
        first.context.bind_to_thread().expect("the first device");
        // SAFETY: the driver checks what it is given.
        let answers =
            [(); 2].map(|()| code(unsafe { sys::cuCtxEnablePeerAccess(second.context.cu_ctx(), 0) }.result()));
        first.add(&mut x, &y).expect("a launch");
        let end = code(first.stream.synchronize());
        (answers, end, driver.error_text())
    };
    let (answers, end, _) = enable(1);
    assert_eq!(answers, [Code::CUDA_SUCCESS, Code::CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED]);
    assert_eq!(end, Code::CUDA_SUCCESS);
    let (answers, end, text) = enable(0);
    assert_eq!(answers, [Code::CUDA_ERROR_PEER_ACCESS_UNSUPPORTED; 2]);
    assert_eq!(end, Code::CUDA_ERROR_ILLEGAL_ADDRESS);
    assert!(text.contains("an argument points to memory of device 1, which is out of reach"), "{text}");
}

#[test]
fn cuda_streams_and_kernels_belong_to_their_device() {
    let Some(driver) = calm_driver() else { return };
    driver.set(Setting::Devices, 2);
    let (first, second) = (Device::new(0), Device::new(1));
    let (mut x, y) = (second.numbers(&[1.0]), second.numbers(&[10.0]));
    let launch = first.add_on(&second.stream, &mut x.as_view_mut(), &y.as_view());
    assert_eq!(code(launch), Code::CUDA_ERROR_INVALID_HANDLE, "a kernel of the first device on a stream of the second");
    assert_eq!(code(second.stream.synchronize()), Code::CUDA_SUCCESS);
}
