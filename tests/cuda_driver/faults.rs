//! Kernels that do wrong, and errors that are injected.

use cudarc::driver::{CudaContext, PushKernelArg};
use cudarc::nvrtc::Ptx;

use crate::fake_driver::{Point, Setting};
use crate::{Code, Device, blocks_of, calm_driver, code};

/// The text of a module with one planted kernel (tests/cuda/planted.cu), as nvcc would begin it.
fn planted(kernel: &str) -> Ptx {
    let parameters = format!("\t.param .u64 {kernel}_param_0,\n\t.param .u64 {kernel}_param_1\n");
    let head = "\n.version 8.0\n.target sm_80\n.address_size 64\n";
    Ptx::from_src(format!("{head}\n.visible .entry {kernel}(\n{parameters})\n.maxntid 64, 1, 1\n{{\n\tret;\n}}\n"))
}

/// Runs a planted kernel over 64 numbers, and answers what the stream ends with.
fn run(device: &Device, kernel: &str) -> Code {
    let module = device.context.load_module(planted(kernel)).expect("a module");
    let function = module.load_function(kernel).expect("a kernel");
    let (mut out, x) = (device.room(64), device.numbers(&[1.0; 64]));
    // SAFETY: the kernel takes these arguments.
    unsafe { device.stream.launch_builder(&function).arg(&mut out).arg(&x).launch(blocks_of(64)) }.expect("a launch");
    code(device.stream.synchronize())
}

#[test]
fn cuda_faults_have_the_codes_of_a_device() {
    let Some(driver) = calm_driver() else { return };
    for (kernel, expected, text) in [
        ("good_shared_sum", Code::CUDA_SUCCESS, ""),
        ("bad_read_past_end", Code::CUDA_ERROR_ILLEGAL_ADDRESS, "out of bounds"),
        ("bad_misaligned", Code::CUDA_ERROR_MISALIGNED_ADDRESS, "misaligned"),
        ("bad_missing_barrier", Code::CUDA_ERROR_LAUNCH_FAILED, "read of element"),
        ("bad_divergent_barrier", Code::CUDA_ERROR_LAUNCH_FAILED, "divergence"),
        ("bad_uninitialised_memory", Code::CUDA_ERROR_LAUNCH_FAILED, "uninitialised"),
    ] {
        crate::calm(&driver);
        assert_eq!(run(&Device::new(0), kernel), expected, "{kernel}: {}", driver.error_text());
        assert!(driver.error_text().contains(text), "{kernel}: {}", driver.error_text());
    }
}

/// A device with an error is lost: every later call answers it, nothing runs any more, what is dropped is freed; another device goes on, and a new
/// context of the same one too.
#[test]
fn cuda_error_of_a_kernel_stays_and_the_process_lives_on() {
    let Some(driver) = calm_driver() else { return };
    driver.set(Setting::Devices, 2);
    let lost = Device::new(0);
    let (mut x, y) = (lost.numbers(&[1.0]), lost.numbers(&[10.0]));
    assert_eq!(run(&lost, "bad_read_past_end"), Code::CUDA_ERROR_ILLEGAL_ADDRESS);
    let text = driver.error_text();
    assert!(
        text.starts_with("bad_read_past_end: out of bounds: read of 4 bytes at offset 256 of device memory"),
        "{text}"
    );
    if std::process::Command::new("addr2line").arg("--version").output().is_ok() {
        assert!(text.contains("planted.cu:"), "{text}");
    }
    lost.context.check_err().expect_err("dropped slices met the error too");
    let launches = driver.statistics().launches;
    for _ in 0..2 {
        let answers = [
            code(lost.add(&mut x, &y)),
            code(lost.stream.memcpy_htod(&[1.0], &mut x)),
            code(lost.stream.clone_dtoh(&y)),
            code(lost.stream.alloc_zeros::<f32>(1)),
            code(lost.stream.synchronize()),
            code(lost.context.synchronize()),
            code(lost.context.new_stream()),
            code(lost.context.mem_get_info()),
        ];
        assert_eq!(answers, [Code::CUDA_ERROR_ILLEGAL_ADDRESS; 8]);
    }
    assert_eq!(driver.statistics().launches, launches);
    let other = Device::new(1);
    let (mut z, w) = (other.numbers(&[1.0]), other.numbers(&[2.0]));
    other.add(&mut z, &w).expect("a launch");
    assert_eq!(other.read(&z), [3.0]);
    drop((x, y, z, w));
    assert_eq!(driver.statistics().live_allocations, 0);
    drop(lost);
    let again = Device::new(0);
    assert_eq!(again.read(&again.numbers(&[5.0])), [5.0]);
    assert_eq!(driver.statistics().leaked, 0);
}

#[test]
fn cuda_allocation_fails_when_it_is_told_to() {
    let Some(driver) = calm_driver() else { return };
    let device = Device::new(0);
    driver.inject(Point::Alloc, 3, 2);
    let answers = [(); 4].map(|()| code(device.stream.alloc_zeros::<f32>(1)));
    let (good, bad) = (Code::CUDA_SUCCESS, Code::CUDA_ERROR_OUT_OF_MEMORY);
    assert_eq!(answers, [good, good, bad, good]);
    driver.inject(Point::Alloc, 1, 2);
    driver.inject(Point::Alloc, 0, 0);
    assert_eq!(code(device.stream.alloc_zeros::<f32>(1)), good, "taken back");
    driver.inject(Point::HostAlloc, 1, 2);
    // SAFETY: nobody reads it.
    assert_eq!(code(unsafe { device.context.alloc_pinned::<f32>(1) }), bad);
}

#[test]
fn cuda_launch_fails_when_it_is_told_to() {
    let Some(driver) = calm_driver() else { return };
    let device = Device::new(0);
    let (mut x, y) = (device.numbers(&[1.0]), device.numbers(&[10.0]));
    driver.inject(Point::Launch, 2, 701);
    let answers = [(); 3].map(|()| code(device.add(&mut x, &y)));
    assert_eq!(answers, [Code::CUDA_SUCCESS, Code::CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES, Code::CUDA_SUCCESS]);
    assert_eq!(device.read(&x), [21.0], "the others ran");
    // A kernel that faults is told when somebody waits, and the device is lost.
    driver.inject(Point::Run, 2, 700);
    assert_eq!([(); 3].map(|()| code(device.add(&mut x, &y))), [Code::CUDA_SUCCESS; 3]);
    assert_eq!([(); 2].map(|()| code(device.stream.synchronize())), [Code::CUDA_ERROR_ILLEGAL_ADDRESS; 2]);
    assert_eq!(driver.error_text(), "injected");
    assert_eq!(driver.statistics().launches, 4, "nothing runs after it");
}

#[test]
fn cuda_other_calls_fail_when_they_are_told_to() {
    let Some(driver) = calm_driver() else { return };
    driver.inject(Point::Init, 1, 34);
    assert_eq!(code(CudaContext::new(0)), Code::CUDA_ERROR_STUB_LIBRARY);
    driver.set(Setting::Devices, 0);
    assert_eq!(code(CudaContext::new(0)), Code::CUDA_ERROR_NO_DEVICE);
    driver.set(Setting::Devices, 1);
    let device = Device::new(0);
    driver.inject(Point::Module, 1, 218);
    assert_eq!(code(device.context.load_module(planted("good_shared_sum"))), Code::CUDA_ERROR_INVALID_PTX);
    driver.inject(Point::Copy, 1, 999);
    let mut x = device.room(1);
    assert_eq!(code(device.stream.memcpy_htod(&[1.0], &mut x)), Code::CUDA_ERROR_UNKNOWN);
    driver.inject(Point::Sync, 1, 702);
    assert_eq!(code(device.stream.synchronize()), Code::CUDA_ERROR_LAUNCH_TIMEOUT);
    device.stream.memcpy_htod(&[1.0], &mut x).expect("a copy");
    assert_eq!(device.read(&x), [1.0]);
}
