//! What kernels are written in (kernels/common.cuh), operation by operation: PTX on a device and C++ in the simulator are held to the same expectations, bit by bit.
//!
//! A wrong instruction behind a wrapper is hidden from every other test without a device, as the simulator runs the wrapper's other half. `scripts/gpu.sh` runs this
//! on one. Needs nvcc (`NVCC`, target/nvcc as scripts/install-nvcc.sh makes it, or PATH), else it says `skipped`.

#![cfg(feature = "cuda")]
#![allow(dead_code, reason = "the shared helpers have more than this file uses")]

#[path = "common/cuda_device.rs"]
mod cuda_device;
#[path = "common/random.rs"]
mod random;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, OnceLock};

use cudarc::driver::{CudaContext, CudaModule, CudaSlice, CudaStream, LaunchConfig, PushKernelArg};
use cudarc::nvrtc::Ptx;
use half::{bf16, f16};
use random::Random;

fn nvcc() -> Option<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let wheels = std::fs::read_dir(root.join("target/nvcc/lib")).ok().into_iter().flatten().flatten();
    let wheels = wheels.map(|python| python.path().join("site-packages/nvidia/cu13/bin/nvcc"));
    let named = std::env::var_os("NVCC").filter(|name| !name.is_empty()).map(PathBuf::from);
    let works =
        |nvcc: &PathBuf| Command::new(nvcc).arg("--version").output().is_ok_and(|output| output.status.success());
    named.into_iter().chain(wheels).chain([PathBuf::from("nvcc")]).find(works)
}

/// The PTX of a file of tests/cuda, as check-kernels.sh makes that of the kernels; none, and a line that says so, without nvcc.
fn ptx(file: &str) -> Option<String> {
    static NVCC: OnceLock<Option<PathBuf>> = OnceLock::new();
    let Some(nvcc) = NVCC.get_or_init(nvcc) else {
        println!("skipped: wrappers of the CUDA kernels against their PTX: no nvcc");
        return None;
    };
    let folder = tempfile::tempdir().expect("a folder");
    let (root, out) = (Path::new(env!("CARGO_MANIFEST_DIR")), folder.path().join("out.ptx"));
    let mut command = Command::new(nvcc);
    command.args(["-std=c++17", "-arch=compute_80", "--ptx", "-fmad=false", "-I"]).arg(root.join("kernels"));
    let output = command.arg("-o").arg(&out).arg(root.join("tests/cuda").join(file)).output().expect("nvcc starts");
    assert!(output.status.success(), "{file}: {}", String::from_utf8_lossy(&output.stderr));
    let text = std::fs::read_to_string(out).expect("a text");
    let version = text.lines().find(|line| line.starts_with(".version ")).expect("a version").to_owned();
    Some(text.replacen(&version, ".version 8.0", 1))
}

/// A file of kernels on the device.
struct Kernels {
    module: Arc<CudaModule>,
    stream: Arc<CudaStream>,
    _device: cuda_device::TestDevice,
}

impl Kernels {
    fn load(file: &str) -> Option<Self> {
        let text = ptx(file)?;
        let device = cuda_device::test_device()?;
        let context = CudaContext::new(0).expect("the device");
        let stream = context.new_stream().expect("a stream");
        let module = context.load_module(Ptx::from_src(text)).expect("the driver compiles it");
        Some(Self { module, stream, _device: device })
    }

    /// What a kernel of one warp a block makes of these arrays, whose number of words is `out`; with `count` behind them.
    fn run(&self, name: &str, inputs: &[&[u32]], count: Option<u32>, out: usize) -> Vec<u32> {
        let function = self.module.load_function(name).expect("it is there");
        let mut came: CudaSlice<u32> = self.stream.alloc_zeros(out).expect("memory");
        let inputs: Vec<CudaSlice<u32>> =
            inputs.iter().map(|words| self.stream.clone_htod(*words).expect("memory")).collect();
        let mut launch = self.stream.launch_builder(&function);
        launch.arg(&mut came);
        for words in &inputs {
            launch.arg(words);
        }
        if let Some(count) = &count {
            launch.arg(count);
        }
        let blocks = count.map_or(1, |count| count.div_ceil(32).min(64));
        let config = LaunchConfig { grid_dim: (blocks, 1, 1), block_dim: (32, 1, 1), shared_mem_bytes: 0 };
        // SAFETY: the kernels of tests/cuda take the result, arrays and perhaps a count, all of the lengths that the tests give.
        unsafe { launch.launch(config) }.expect("it is launched");
        let words = self.stream.clone_dtoh(&came).expect("a copy");
        self.stream.synchronize().expect("the device is well");
        words
    }
}

/// The same bits; of numbers that are none, any.
fn same(got: u32, expected: f32) -> bool {
    got == expected.to_bits() || f32::from_bits(got).is_nan() && expected.is_nan()
}

/// Numbers of every kind, as bits.
fn words(random: &mut Random, count: usize) -> Vec<u32> {
    let special =
        [0, 0x8000_0000, 1, 0x7f80_0000, 0xff80_0000, 0x7fc0_0000, 0x7f80_0001, 0x7f7f_ffff, 0x3f80_8000, 0x3f81_8000];
    let halves = [0x477f_f000, 0x477f_efff, 0x3880_0000, 0x3300_0000, 0x3300_0001, 0x3f80_1000, 0x3f80_3000];
    special.into_iter().chain(halves).chain((0..count).map(|_| random.next() as u32)).collect()
}

#[test]
fn cuda_wrappers_convert_numbers() {
    let Some(kernels) = Kernels::load("wrappers.cu") else { return };
    let mut random = Random::new("wrappers: numbers");
    // Every half there is, and others.
    let words: Vec<u32> = (0..1 << 16).chain(words(&mut random, 4000)).collect();
    let came = kernels.run("good_numbers", &[&words], Some(words.len() as u32), 5 * words.len());
    for (&word, came) in words.iter().zip(came.chunks(5)) {
        let (low, number) = (word as u16, f32::from_bits(word));
        assert!(same(came[0], f16::from_bits(low).to_f32()), "from f16: {low:x} {came:x?}");
        assert!(same(came[1], bf16::from_bits(low).to_f32()), "from bf16: {low:x} {came:x?}");
        let rounded = [f16::from_f32(number).to_bits(), bf16::from_f32(number).to_bits()];
        let rounded = rounded.map(|bits| if number.is_nan() { 0x7fff } else { bits.into() });
        assert_eq!(came[2..], [rounded[0], rounded[1], word.count_ones()], "{word:x}");
    }
}

#[test]
fn cuda_wrappers_round_as_they_say() {
    let Some(kernels) = Kernels::load("wrappers.cu") else { return };
    let mut random = Random::new("wrappers: arithmetic");
    let mut all = words(&mut random, 3000);
    // Numbers of one size, where one rounding and two differ.
    all.extend((0..3000).map(|_| 0x3f80_0000 | random.next() as u32 >> 9));
    random.shuffle(&mut all);
    all.truncate(all.len() / 3 * 3);
    let count = all.len() / 3;
    let came = kernels.run("good_arithmetic", &[&all], Some(count as u32), 6 * count);
    let mut differ = 0;
    for (words, came) in all.chunks(3).zip(came.chunks(6)) {
        let [a, b, c] = [0, 1, 2].map(|at| f32::from_bits(words[at]));
        let expected = [a.mul_add(b, c), a * b + c, a / b, f64::from(c.abs()).sqrt() as f32];
        for (at, expected) in expected.iter().enumerate() {
            assert!(same(came[at], *expected), "{at}: {words:x?} {came:x?}");
        }
        differ += usize::from(came[0] != came[1]);
        let bytes = |word: u32| word.to_le_bytes().map(|byte| i32::from(byte as i8));
        let dot: i32 = bytes(words[0]).iter().zip(bytes(words[1])).map(|(a, b)| a * b).sum();
        assert_eq!(came[4], dot.wrapping_add(words[2] as i32) as u32, "{words:x?}");
        let eight = [words[0].to_le_bytes(), words[1].to_le_bytes()].concat();
        let chosen = [0, 1, 2, 3].map(|byte| eight[(words[2] >> (4 * byte) & 7) as usize]);
        assert_eq!(came[5], u32::from_le_bytes(chosen), "{words:x?}");
    }
    assert!(differ > 50, "products and sums are not fused where nobody says so");
}

#[test]
fn cuda_wrappers_of_warps_give_what_they_say() {
    let Some(kernels) = Kernels::load("wrappers.cu") else { return };
    let mut random = Random::new("wrappers: warps");
    for _ in 0..20 {
        let word: Vec<u32> = (0..32).map(|_| random.next() as u32).collect();
        let number: Vec<f32> = word.iter().map(|&word| word as i32 as f32).collect();
        let mut sums = number.clone();
        for step in [16, 8, 4, 2, 1] {
            sums = (0..32).map(|lane| sums[lane] + sums[lane ^ step]).collect();
        }
        let most = number.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let of_lane = |lane: usize| {
            [
                word[lane ^ 1],
                word[lane ^ 16],
                number[lane ^ 5].to_bits(),
                word[if lane < 3 { lane } else { lane - 3 }],
                number[7].to_bits(),
                word.iter().fold(0, |all, word| all | word),
                word.iter().fold(0, |sum: u32, word| sum.wrapping_add(*word)),
                word.iter().copied().min().unwrap_or(0),
                sums[lane].to_bits(),
                most.to_bits(),
            ]
        };
        let came = kernels.run("good_warp", &[&word], None, 320);
        for lane in 0..32 {
            let came: Vec<u32> = (0..10).map(|n| came[32 * n + lane]).collect();
            assert_eq!(came, of_lane(lane), "lane {lane} of {word:x?}");
        }
    }
}

#[test]
fn cuda_wrappers_copy_parts_and_fill_up_with_zeros() {
    let Some(kernels) = Kernels::load("wrappers.cu") else { return };
    let word: Vec<u32> = (1..=128).collect();
    let came = kernels.run("good_copy_parts", &[&word], None, 128);
    let kept = |(at, &word): (usize, &u32)| if at % 4 < at / 4 % 5 { word } else { 0 };
    assert_eq!(came, word.iter().enumerate().map(kept).collect::<Vec<u32>>());
}

/// Fragments lie as PTX says: products of small integers are exact in every type; and what a device rounds of others is what its other products round.
#[test]
fn cuda_wrappers_of_tensor_cores_multiply() {
    let Some(kernels) = Kernels::load("tensor_cores.cu") else { return };
    let mut random = Random::new("wrappers: tensor cores");
    let pack = |bytes: &[u8]| -> Vec<u32> {
        bytes.chunks(4).map(|four| u32::from_le_bytes([four[0], four[1], four[2], four[3]])).collect()
    };
    let mut numbers = |count: usize, most: usize| -> Vec<i32> {
        (0..count).map(|_| random.below(2 * most) as i32 - most as i32).collect()
    };
    for (name, k, most) in [
        ("good_mma_bf16", 16, 100),
        ("good_mma_f16", 16, 100),
        ("good_mma_s8", 32, 128),
        ("good_mma_s8_half", 32, 128),
        ("good_dp4a", 32, 128),
    ] {
        let (a, b, c) = (numbers(16 * k, most), numbers(8 * k, most), numbers(128, 5000));
        let bytes = |values: &[i32]| -> Vec<u8> {
            let of = |&value: &i32| match name {
                "good_mma_bf16" => bf16::from_f32(value as f32).to_le_bytes().to_vec(),
                "good_mma_f16" => f16::from_f32(value as f32).to_le_bytes().to_vec(),
                _ => vec![value as i8 as u8],
            };
            values.iter().flat_map(of).collect()
        };
        let is_float = k == 16;
        let word = |value: i32| if is_float { (value as f32).to_bits() } else { value as u32 };
        let before: Vec<u32> = c.iter().map(|&c| word(c)).collect();
        let came = kernels.run(name, &[&pack(&bytes(&a)), &pack(&bytes(&b)), &before], None, 128);
        for (at, came) in came.iter().enumerate() {
            let dot: i32 = (0..k).map(|i| a[at / 8 * k + i] * b[at % 8 * k + i]).sum();
            assert_eq!(*came, word(c[at] + dot), "{name} {at}");
        }
    }
}

#[test]
fn cuda_wrappers_load_matrices() {
    let Some(kernels) = Kernels::load("tensor_cores.cu") else { return };
    let x: Vec<u16> = (0..256).map(|i| i * 257).collect();
    let pack = |halves: &[u16]| -> Vec<u32> {
        halves.chunks(2).map(|two| u32::from(two[0]) | u32::from(two[1]) << 16).collect()
    };
    let transposed: Vec<u16> = (0..256).map(|i| x[i / 64 * 64 + i % 8 * 8 + i % 64 / 8]).collect();
    let came = kernels.run("good_matrices", &[&pack(&x)], None, 256);
    assert_eq!(came, [pack(&x), pack(&transposed)].concat());
}
