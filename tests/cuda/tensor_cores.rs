//! The operations of tensor cores, one by one, against products written out: the layouts of their fragments are those of the PTX language.

use half::{bf16, f16};

use crate::random::Random;
use crate::simulator::{Memory, args, device};
use crate::weights::{bits, uniform, values};

/// `c + a b` of a [16][k] and b [8][k], each element by itself.
fn product<T: Copy>(a: &[T], b: &[T], c: &[f64], number: impl Fn(T) -> f64) -> Vec<f64> {
    let k = a.len() / 16;
    let element = |i: usize| {
        let pairs = a[i / 8 * k..][..k].iter().zip(&b[i % 8 * k..]);
        c[i] + pairs.map(|(&a, &b)| number(a) * number(b)).sum::<f64>()
    };
    (0..128).map(element).collect()
}

#[test]
fn cuda_products_of_16_bits_are_sums_of_products() {
    let Some(mut device) = device() else { return };
    let mut random = Random::new("mma 16");
    type Case = (&'static str, fn(f32) -> u16, fn(u16) -> f64);
    let types: [Case; 2] = [
        ("good_mma_bf16", |x| bf16::from_f32(x).to_bits(), |x| bf16::from_bits(x).to_f64()),
        ("good_mma_f16", |x| f16::from_f32(x).to_bits(), |x| f16::from_bits(x).to_f64()),
    ];
    for (kernel, bits_of, number) in types {
        let a: Vec<u16> = (0..256).map(|_| bits_of(uniform(&mut random))).collect();
        let b: Vec<u16> = (0..128).map(|_| bits_of(uniform(&mut random))).collect();
        let c = values(&mut random, 128);
        let got = device.in_every_schedule(|device| {
            let [a, b] = [&a, &b].map(|values| device.upload(values));
            let (c, out) = (device.upload(&c), device.room::<f32>(128));
            device.launch(kernel, [1, 1, 1], args![out, a, b, c]);
            device.read::<f32>(out)
        });
        let before: Vec<f64> = c.iter().map(|&c| c.into()).collect();
        for (i, (got, exact)) in got.iter().zip(product(&a, &b, &before, number)).enumerate() {
            // Seventeen terms below one, each of which a device may cut off behind 2^-23 of the largest sum.
            let error = (f64::from(*got) - exact).abs();
            assert!(error <= 17.0 * 17.0 / f64::from(1 << 23), "{kernel} [{i}]: {error:e}");
        }
    }
}

#[test]
fn cuda_products_of_bytes_are_exact() {
    let Some(mut device) = device() else { return };
    let mut random = Random::new("mma s8");
    let mut a: Vec<u8> = (0..512).map(|_| random.next() as u8).collect();
    let b: Vec<u8> = (0..256).map(|_| random.next() as u8).collect();
    a[..4].copy_from_slice(&[0x80, 0x7f, 0xff, 0]);
    let c: Vec<i32> = (0..128).map(|_| random.next() as i32 >> 8).collect();
    let before: Vec<f64> = c.iter().map(|&c| c.into()).collect();
    let expected = product(&a, &b, &before, |byte| f64::from(byte as i8));
    for kernel in ["good_mma_s8", "good_mma_s8_half", "good_dp4a"] {
        let got = device.in_every_schedule(|device| {
            let [a, b] = [&a, &b].map(|values| device.upload(values));
            let (c, out) = (device.upload(&c), device.room::<i32>(128));
            device.launch(kernel, [1, 1, 1], args![out, a, b, c]);
            device.read::<i32>(out)
        });
        assert_eq!(got.iter().map(|&sum| f64::from(sum)).collect::<Vec<_>>(), expected, "{kernel}");
    }
}

#[test]
fn cuda_matrices_come_as_they_are_and_transposed() {
    let Some(mut device) = device() else { return };
    let x: Vec<u16> = (0..256).map(|i| i * 257).collect();
    let got = device.in_every_schedule(|device| {
        let (x, out): (Memory, Memory) = (device.upload(&x), device.room::<u16>(512));
        // Each lane copied the row that it points to, so nobody else has to be waited for.
        device.launch("good_matrices", [1, 1, 1], args![out, x]);
        device.read::<u16>(out)
    });
    assert_eq!(got[..256], x);
    let transposed = (0..256).map(|i| x[i / 64 * 64 + i % 8 * 8 + i % 64 / 8]);
    assert_eq!(got[256..], transposed.collect::<Vec<_>>());
}

/// The last copy of the kernel reads three numbers of its four.
#[test]
fn cuda_copies_fill_up_with_zeros() {
    let Some(mut device) = device() else { return };
    let mut x: Vec<f32> = (0..63).map(|i| i as f32 + 1.0).collect();
    let got = device.in_every_schedule(|device| {
        let (x, out) = (device.upload(&x), device.room::<f32>(64));
        device.launch("good_copy", [1, 1, 1], args![out, x]);
        device.read::<f32>(out)
    });
    x.push(0.0);
    assert_eq!(got, x);
}

#[test]
fn cuda_numbers_round_to_bf16_as_on_the_host() {
    let Some(mut device) = device() else { return };
    let mut random = Random::new("bf16");
    let mut x = values(&mut random, 32);
    let special = [
        f32::INFINITY,
        f32::NEG_INFINITY,
        f32::MAX,
        1e-45,
        -0.0,
        f32::from_bits(0x3f80_8000),
        f32::from_bits(0x3f81_8000),
        f32::from_bits(0x7f80_0001),
    ];
    x[..8].copy_from_slice(&special);
    let (memory, out) = (device.upload(&x), device.room::<u16>(32));
    device.launch("good_to_bf16", [1, 1, 1], args![out, memory]);
    for (x, got) in x.iter().zip(device.read::<u16>(out)) {
        let expected = if x.is_nan() { 0x7fff } else { bf16::from_f32(*x).to_bits() };
        assert_eq!(got, expected, "{:x}", bits(&[*x])[0]);
    }
}

/// Not of the tensor cores, but of the kernels that use them: every lane gets the bits that any has.
#[test]
fn cuda_lanes_share_their_bits() {
    let Some(mut device) = device() else { return };
    let mut random = Random::new("warp or");
    let words: Vec<u32> = (0..32).map(|_| 1 << random.below(32)).collect();
    let expected = words.iter().fold(0, |all, word| all | word);
    let got = device.in_every_schedule(|device| {
        let (out, words) = (device.room::<u32>(32), device.upload(&words));
        device.launch("good_warp_or", [1, 1, 1], args![out, words]);
        device.read::<u32>(out)
    });
    assert_eq!(got, vec![expected; 32]);
}
