//! Modules, and what a launch is checked for.

use cudarc::driver::result::{self, DriverError};
use cudarc::driver::sys;
use cudarc::driver::{CudaContext, LaunchConfig, PushKernelArg};
use cudarc::nvrtc::Ptx;

use crate::fake_driver::Setting;
use crate::fatbin::{fatbin, kernels_of};
use crate::{Code, Device, blocks_of, calm_driver, code};

const ROWS: &str = include_str!("../../kernels/ptx/rows.ptx");

/// The answer to a module of this text, and to asking it for a kernel.
fn load(text: &str, kernel: &str) -> Result<(), DriverError> {
    let context = CudaContext::new(0)?;
    context.load_module(Ptx::from_src(text))?.load_function(kernel).map(|_| ())
}

#[test]
fn cuda_kernel_must_be_in_text_and_table() {
    let Some(driver) = calm_driver() else { return };
    assert_eq!(code(load(ROWS, "ictus_add")), Code::CUDA_SUCCESS);
    assert_eq!(code(load(ROWS, "ictus_ad")), Code::CUDA_ERROR_NOT_FOUND, "a part of a name");
    assert_eq!(code(load(ROWS, "ictus_rope")), Code::CUDA_ERROR_NOT_FOUND, "another module's");
    assert_eq!(driver.error_text(), "the module has no kernel ictus_rope");
    let text = ROWS.replace("ictus_add", "ictus_sum");
    assert_eq!(code(load(&text, "ictus_sum")), Code::CUDA_ERROR_NOT_FOUND, "no source");
    assert_eq!(driver.error_text(), "the simulator has no kernel ictus_sum");
}

#[test]
fn cuda_text_that_is_not_of_its_source_is_refused() {
    let Some(_driver) = calm_driver() else { return };
    let count = ".param .u64 ictus_add_param_2";
    for (from, to) in
        [(count, ".param .u32 ictus_add_param_2"), (&format!(",\n\t{count}"), ""), (".maxntid 256", ".maxntid 128")]
    {
        let text = ROWS.replace(from, to);
        assert_ne!(text, ROWS);
        assert_eq!(code(load(&text, "ictus_add")), Code::CUDA_ERROR_INVALID_PTX, "{from:?}");
    }
}

#[test]
fn cuda_module_must_suit_driver_and_device() {
    let Some(driver) = calm_driver() else { return };
    let answer = |from: &str, to: &str| code(load(&ROWS.replace(from, to), "ictus_add"));
    assert_eq!(answer(".version 8.0", ".version 9.5"), Code::CUDA_ERROR_UNSUPPORTED_PTX_VERSION);
    assert_eq!(answer(".version 8.0", ""), Code::CUDA_ERROR_INVALID_PTX);
    assert_eq!(answer(".target sm_80", ".target sm_100"), Code::CUDA_ERROR_NO_BINARY_FOR_GPU);
    driver.set(Setting::Capability, 75);
    assert_eq!(code(load(ROWS, "ictus_add")), Code::CUDA_ERROR_NO_BINARY_FOR_GPU);
    driver.set(Setting::Capability, 90);
    let context = CudaContext::new(0).expect("a device");
    let machine_code = context.load_module(Ptx::from_binary(b"\x7fELF\0".to_vec()));
    assert_eq!(code(machine_code), Code::CUDA_ERROR_NO_BINARY_FOR_GPU);
    assert_eq!(driver.statistics().live_modules, 0);
}

/// The answer to a fatbin on a device of this capability, and to asking it for a kernel.
fn load_fatbin(capability: u64, fatbin: &[u8], kernel: &str) -> Code {
    let Some(driver) = calm_driver() else { return Code::CUDA_SUCCESS };
    driver.set(Setting::Capability, capability);
    let context = CudaContext::new(0).expect("a device");
    let loaded = context.load_module(Ptx::from_binary(fatbin.to_vec()));
    code(loaded.and_then(|module| module.load_function(kernel).map(|_| ())))
}

#[test]
fn cuda_machine_code_must_suit_the_device() {
    let Some(driver) = calm_driver() else { return };
    drop(driver);
    let rows = kernels_of(ROWS);
    let [ampere, hopper] = [&[80][..], &[80, 90][..]].map(|architectures| fatbin(architectures, &rows));
    let missing = Code::CUDA_ERROR_NO_BINARY_FOR_GPU;
    for (device, fatbin, expected) in [
        (80, &ampere, Code::CUDA_SUCCESS),
        (86, &ampere, Code::CUDA_SUCCESS),
        (90, &ampere, missing),
        (90, &hopper, Code::CUDA_SUCCESS),
        (100, &hopper, missing),
    ] {
        assert_eq!(load_fatbin(device, fatbin, "ictus_add"), expected, "{device}");
    }
    assert_eq!(load_fatbin(86, &fatbin(&[89], &rows), "ictus_add"), missing, "of a later one");
    // An architecture that is for one device of its generation alone.
    let mut only = fatbin(&[90], &rows);
    only[16 + 40 + 2] |= 0x10;
    assert_eq!(load_fatbin(90, &only, "ictus_add"), Code::CUDA_SUCCESS);
    let mut only = fatbin(&[80], &rows);
    only[16 + 40 + 2] |= 0x10;
    assert_eq!(load_fatbin(86, &only, "ictus_add"), missing);
}

#[test]
fn cuda_machine_code_is_compared_with_its_source() {
    let Some(driver) = calm_driver() else { return };
    drop(driver);
    let rows = kernels_of(ROWS);
    let changed = |change: &dyn Fn(&mut Vec<u32>, &mut u32)| {
        let mut rows = rows.clone();
        rows.iter_mut().filter(|(name, ..)| name == "ictus_add").for_each(|(_, sizes, threads)| change(sizes, threads));
        load_fatbin(90, &fatbin(&[90], &rows), "ictus_add")
    };
    assert_eq!(changed(&|_, _| {}), Code::CUDA_SUCCESS);
    assert_eq!(changed(&|sizes, _| sizes[2] = 4), Code::CUDA_ERROR_INVALID_PTX);
    assert_eq!(changed(&|sizes, _| sizes.truncate(2)), Code::CUDA_ERROR_INVALID_PTX);
    assert_eq!(changed(&|_, threads| *threads = 128), Code::CUDA_ERROR_INVALID_PTX);
    assert_eq!(load_fatbin(90, &fatbin(&[90], &rows[1..]), &rows[0].0), Code::CUDA_ERROR_NOT_FOUND);
}

/// What lies outside of the lengths that the header says is not read (the other lengths are believed no further), and what is no code is refused.
#[test]
fn cuda_machine_code_that_is_damaged_is_refused() {
    let Some(driver) = calm_driver() else { return };
    drop(driver);
    let whole = fatbin(&[90], &kernels_of(ROWS));
    let invalid = Code::CUDA_ERROR_INVALID_IMAGE;
    let with = |at: usize, byte: u8| {
        let mut damaged = whole.clone();
        damaged[at] = byte;
        load_fatbin(90, &damaged, "ictus_add")
    };
    let (entry, code) = (16, 16 + 64);
    assert_eq!(with(4, 2), invalid, "a version");
    assert_eq!(with(entry + 4, 1), invalid, "a header of an entry that is too short");
    assert_eq!(with(entry + 14, 1), invalid, "an entry that is too long");
    assert_eq!(with(entry, 1), Code::CUDA_ERROR_NO_BINARY_FOR_GPU, "PTX, which this driver does not look for there");
    assert_eq!(with(entry + 41, 0x80), Code::CUDA_ERROR_NOT_SUPPORTED, "compressed");
    for (at, what) in [(0, "no ELF"), (4, "one of 32 bits"), (43, "a table past the end"), (62, "names past the end")] {
        assert_eq!(with(code + at, 0xFF), invalid, "{what}");
    }
    let mut random = 1_u64;
    for _ in 0..2000 {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let at = entry + (random >> 33) as usize % (whole.len() - entry);
        // Whatever it answers, it answers.
        with(at, (random >> 25) as u8);
    }
}

#[test]
fn cuda_grids_and_blocks_are_checked() {
    let Some(_driver) = calm_driver() else { return };
    let device = Device::new(0);
    let (x, y) = (device.numbers(&[1.0]), device.numbers(&[1.0]));
    let launch = |grid_dim, block_dim, shared_mem_bytes| {
        let config = LaunchConfig { grid_dim, block_dim, shared_mem_bytes };
        // SAFETY: the kernel takes these arguments.
        code(unsafe { device.stream.launch_builder(&device.add).arg(&x).arg(&y).arg(&1_u64).launch(config) })
    };
    assert_eq!(launch((1, 1, 1), (256, 1, 1), 0), Code::CUDA_SUCCESS);
    assert_eq!(launch((2, 65535, 1), (256, 1, 1), 0), Code::CUDA_SUCCESS);
    for (grid, block, shared) in [
        ((0, 1, 1), (256, 1, 1), 0),
        ((1, 65536, 1), (256, 1, 1), 0),
        ((1, 1, 65536), (256, 1, 1), 0),
        ((1, 1, 1), (255, 1, 1), 0),
        ((1, 1, 1), (512, 1, 1), 0),
        ((1, 1, 1), (128, 2, 1), 0),
        ((1, 1, 1), (256, 1, 1), 49153),
    ] {
        assert_eq!(launch(grid, block, shared), Code::CUDA_ERROR_INVALID_VALUE, "{grid:?} {block:?} {shared}");
    }
}

/// Arguments are taken at the call.
#[test]
fn cuda_arguments_are_those_of_the_call() {
    let Some(_driver) = calm_driver() else { return };
    let device = Device::new(0);
    let (mut x, y) = (device.numbers(&[1.0, 2.0]), device.numbers(&[10.0, 20.0]));
    let mut count = 1_u64;
    let mut launch = device.stream.launch_builder(&device.add);
    // SAFETY: the kernel takes these arguments.
    unsafe { launch.arg(&mut x).arg(&y).arg(&count).launch(blocks_of(256)) }.expect("a launch");
    count = 2;
    assert_eq!(device.read(&x), [11.0, 2.0], "not {count} elements");
}

#[test]
fn cuda_sizes_of_arguments_can_be_asked_for() {
    let Some(_driver) = calm_driver() else { return };
    let device = Device::new(0);
    let module =
        device.context.load_module(Ptx::from_src(include_str!("../../kernels/ptx/embed.ptx"))).expect("a module");
    let embed = module.load_function("ictus_embed_f32").expect("a kernel");
    let info = |index| {
        let (mut offset, mut size) = (0, 0);
        // SAFETY: the pointers are those of variables.
        let answer = unsafe { sys::cuFuncGetParamInfo(embed.cu_function(), index, &mut offset, &mut size) };
        answer.result().map(|()| (offset, size))
    };
    let all: Vec<_> = (0..5).map(|index| info(index).expect("an argument")).collect();
    assert_eq!(all, [(0, 8), (8, 8), (16, 8), (24, 4), (28, 4)]);
    assert_eq!(code(info(5)), Code::CUDA_ERROR_INVALID_VALUE);
    let threads = sys::CUfunction_attribute_enum::CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK;
    assert_eq!(embed.get_attribute(threads).expect("a number"), 128);
}

#[test]
fn cuda_stale_handles_are_refused() {
    let Some(driver) = calm_driver() else { return };
    let device = Device::new(0);
    let stream = result::stream::create(result::stream::StreamKind::NonBlocking).expect("a stream");
    for expected in [Code::CUDA_SUCCESS, Code::CUDA_ERROR_INVALID_HANDLE] {
        // SAFETY: the driver checks what it is given.
        assert_eq!(code(unsafe { result::stream::destroy(stream) }), expected);
    }
    driver.reset();
    assert_eq!(code(device.stream.synchronize()), Code::CUDA_ERROR_NOT_INITIALIZED, "from before a reset");
}
