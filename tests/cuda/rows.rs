//! Norms, rotation, gates, rows as wholes, and pages.

use half::f16;

use crate::random::Random;
use crate::simulator::{Arg, Device, Memory, args, device};
use crate::weights::{bits, values};

/// Unit of rounding of single precision.
const U: f64 = 1.0 / (1 << 24) as f64;

fn assert_close(got: &[f32], exact: &[f64], units: f64, what: &str) {
    assert_eq!(got.len(), exact.len(), "{what}");
    for (i, (&got, &exact)) in got.iter().zip(exact).enumerate() {
        let error = (f64::from(got) - exact).abs();
        assert!(error <= units * U * exact.abs() + 1e-37, "{what} [{i}]: {got} instead of {exact}");
    }
}

fn norm(x: &[f32], weight: &[f32], epsilon: f32) -> Vec<f64> {
    let mean = x.iter().map(|&x| f64::from(x) * f64::from(x)).sum::<f64>() / x.len() as f64;
    let scale = 1.0 / (mean + f64::from(epsilon)).sqrt();
    x.iter().zip(weight).map(|(&x, &w)| f64::from(x) * scale * f64::from(w)).collect()
}

#[test]
fn cuda_rms_norm_matches_double_and_does_not_see_other_rows() {
    let Some(mut device) = device() else { return };
    let mut random = Random::new("rms_norm");
    for width in [1, 7, 64, 255, 257, 576] {
        let (x, delta, weight) =
            (values(&mut random, 3 * width), values(&mut random, 3 * width), values(&mut random, width));
        let epsilon = 1e-5_f32;
        let run = |device: &mut Device, x: &[f32]| {
            let (x_memory, weight) = (device.upload(x), device.upload(&weight));
            let out = device.room::<f32>(x.len());
            let groups = x.len() / width;
            device.launch("ictus_rms_norm", [groups, 1, 1], args![out, x_memory, weight, width as u32, epsilon]);
            // In place: the same bits.
            device.launch("ictus_rms_norm", [groups, 1, 1], args![x_memory, x_memory, weight, width as u32, epsilon]);
            let got = device.read::<f32>(out);
            assert_eq!(bits(&got), bits(&device.read(x_memory)));
            bits(&got)
        };
        let got = device.in_every_schedule(|device| run(device, &x));
        let exact: Vec<f64> = x.chunks(width).flat_map(|x| norm(x, &weight, epsilon)).collect();
        let floats: Vec<f32> = got.iter().map(|&bits| f32::from_bits(bits)).collect();
        // The scale, and two products.
        assert_close(&floats, &exact, width as f64 / 256.0 + 16.0, "rms_norm");
        assert_eq!(run(&mut device, &x[width..2 * width]), got[width..2 * width], "the second row alone");

        let summed: Vec<f32> = x.iter().zip(&delta).map(|(x, delta)| x + delta).collect();
        let expected = run(&mut device, &summed);
        let got = device.in_every_schedule(|device| {
            let memory = [&x, &delta, &weight].map(|values| device.upload(values));
            let [x, delta, weight] = memory;
            let out = device.room::<f32>(3 * width);
            device.launch("ictus_add_rms_norm", [3, 1, 1], args![out, x, delta, weight, width as u32, epsilon]);
            (bits(&device.read(x)), bits(&device.read(out)))
        });
        assert_eq!(got, (bits(&summed), expected), "sum and norm at once");
    }
}

/// Cosines, then sines, of the positions of rows.
fn angles(positions: &[usize], pairs: usize) -> Vec<f32> {
    let mut out = Vec::new();
    for &position in positions {
        let turns = (0..pairs).map(|pair| position as f64 * 10000_f64.powf(-(pair as f64) / pairs as f64));
        let turns: Vec<f64> = turns.collect();
        out.extend(turns.iter().map(|turn| turn.cos() as f32).chain(turns.iter().map(|turn| turn.sin() as f32)));
    }
    out
}

fn rope(
    device: &mut Device,
    x: &[f32],
    angles: &[f32],
    rows: usize,
    dim: usize,
    pairs: usize,
    pairing: u32,
) -> Vec<f32> {
    let (x_memory, angles) = (device.upload(x), device.upload(angles));
    let heads = x.len() / rows / dim;
    let arguments = args![x_memory, angles, heads as u32, dim as u32, pairs as u32, pairing];
    device.launch("ictus_rope", [rows, 1, 1], arguments);
    device.read(x_memory)
}

#[test]
fn cuda_rope_turns_pairs_by_their_angles() {
    let Some(mut device) = device() else { return };
    let mut random = Random::new("rope");
    for (dim, pairs, heads) in [(2, 1, 1), (64, 32, 3), (80, 16, 5), (128, 64, 2)] {
        let x = values(&mut random, 2 * heads * dim);
        let angles = angles(&[3, 70001], pairs);
        for interleaved in [0, 1] {
            let got = device.in_every_schedule(|device| rope(device, &x, &angles, 2, dim, pairs, interleaved));
            for (row, angles) in angles.chunks(2 * pairs).enumerate() {
                for head in 0..heads {
                    let at = (row * heads + head) * dim;
                    for pair in 0..pairs {
                        let (one, two) = if interleaved == 1 { (2 * pair, 2 * pair + 1) } else { (pair, pair + pairs) };
                        let (a, b) = (f64::from(x[at + one]), f64::from(x[at + two]));
                        let (cos, sin) = (f64::from(angles[pair]), f64::from(angles[pairs + pair]));
                        for (got, exact) in [(got[at + one], a * cos - b * sin), (got[at + two], a * sin + b * cos)] {
                            assert!((f64::from(got) - exact).abs() <= 4.0 * U, "{got} instead of {exact}");
                        }
                    }
                    assert_eq!(got[at + 2 * pairs..at + dim], x[at + 2 * pairs..at + dim], "what does not turn");
                }
            }
        }
    }
}

/// Where pages.cuh says that a dimension lies in one layer.
fn cell(page: u32, head: usize, part: usize, slot: usize, heads: usize, page_size: usize, dim: usize) -> usize {
    (((page as usize * heads + head) * 2 + part) * page_size + slot) * dim
}

#[test]
fn cuda_keys_and_values_land_in_their_pages() {
    let Some(mut device) = device() else { return };
    let mut random = Random::new("kv_write");
    let (heads, dim, pairs) = (3, 24, 8);
    for (page_size, half) in [(16, false), (16, true), (5, false), (1, true)] {
        // Two spans: 7 rows from position 14 on, and one row at 0; the pages are mixed.
        let spans = [0_u32, 7, 14, 7, 1, 0];
        let width = 21_usize.div_ceil(page_size);
        let mut pages: Vec<u32> = (0..2 * width as u32).collect();
        random.shuffle(&mut pages);
        let positions: Vec<usize> = (14..21).chain([0]).collect();
        let (keys, vals) = (values(&mut random, 8 * heads * dim), values(&mut random, 8 * heads * dim));
        let angles = angles(&positions, pairs);
        for turned in [None, Some(0), Some(1)] {
            let element = if half { 2 } else { 4 };
            let elements = 2 * width * heads * 2 * page_size * dim;
            let (got, written) = device.in_every_schedule(|device| {
                let pool = if half { device.room::<u16>(elements) } else { device.room::<f32>(elements) };
                let [k, v, a] = [&keys, &vals, &angles].map(|values| device.upload(values));
                let (table, spans) = (device.upload(&pages), device.upload(&spans));
                let a = if turned.is_some() { a.into() } else { Arg::Null };
                let name = if half { "ictus_kv_write_f16" } else { "ictus_kv_write_f32" };
                let sizes =
                    [width, heads, dim, page_size, pairs, turned.unwrap_or(0) as usize].map(|n| Arg::U32(n as u32));
                let mut arguments = vec![pool.into(), k.into(), v.into(), a, table.into(), spans.into()];
                arguments.extend(sizes);
                device.launch(name, [7, 2, 1], &arguments);
                let (bytes, _) = device.read_some::<u8>(pool);
                let values: Vec<u32> = bytes
                    .chunks(element)
                    .map(|bytes| match *bytes {
                        [a, b] => u32::from(u16::from_le_bytes([a, b])),
                        [a, b, c, d] => u32::from_le_bytes([a, b, c, d]),
                        _ => unreachable!("elements of 2 or 4 bytes"),
                    })
                    .collect();
                let nobody = if half { 0xffff } else { u32::MAX };
                let written = values.iter().filter(|&&value| value != nobody).count();
                (values, written)
            });
            assert_eq!(written, 8 * heads * dim * 2, "nothing else was written");
            let keys = match turned {
                Some(interleaved) => rope(&mut device, &keys, &angles, 8, dim, pairs, interleaved),
                None => keys.clone(),
            };
            let stored = |value: f32| if half { f16::from_f32(value).to_bits().into() } else { value.to_bits() };
            for (row, &position) in positions.iter().enumerate() {
                let page = pages[row / 7 * width + position / page_size];
                for head in 0..heads {
                    for (part, source) in [(0, &keys), (1, &vals)] {
                        let at = cell(page, head, part, position % page_size, heads, page_size, dim);
                        let source = &source[(row * heads + head) * dim..][..dim];
                        let expected: Vec<u32> = source.iter().map(|&value| stored(value)).collect();
                        assert_eq!(got[at..at + dim], expected, "row {row}, head {head}, part {part}");
                    }
                }
            }
        }
    }
}

#[test]
fn cuda_gates_match_double() {
    let Some(mut device) = device() else { return };
    let mut random = Random::new("gate");
    let mut x: Vec<f32> = values(&mut random, 700).iter().map(|x| x * 12.0).collect();
    x.extend([0.0, -0.0, 90.0, -90.0, 200.0, -200.0]);
    let up = values(&mut random, x.len());
    for name in ["ictus_gate_silu", "ictus_gate_gelu_tanh"] {
        let got = device.in_every_schedule(|device| {
            let (gate, up) = (device.upload(&x), device.upload(&up));
            device.launch(name, [2, 1, 1], args![gate, up, x.len() as u64]);
            bits(&device.read(gate))
        });
        for ((&got, &x), &up) in got.iter().zip(&x).zip(&up) {
            let (x, up) = (f64::from(x), f64::from(up));
            let sigmoid = |x: f64| 1.0 / (1.0 + (-x).exp());
            let inner = 2.0 * (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x * x * x);
            let gate = if name == "ictus_gate_silu" { sigmoid(x) } else { sigmoid(inner) };
            let exact = x * gate * up;
            let error = (f64::from(f32::from_bits(got)) - exact).abs();
            // Rounding of the exponent is multiplied by its size.
            assert!(
                error <= 300.0 * U * exact.abs() + 1e-30,
                "{name}({x}, {up}): {} instead of {exact}",
                f32::from_bits(got)
            );
        }
    }
}

#[test]
fn cuda_sums_and_gathered_rows_are_exact() {
    let Some(mut device) = device() else { return };
    let mut random = Random::new("rows");
    for width in [1, 300] {
        let (x, y) = (values(&mut random, 5 * width), values(&mut random, 5 * width));
        let sum = device.in_every_schedule(|device| {
            let (x, y) = (device.upload(&x), device.upload(&y));
            device.launch("ictus_add", [2, 1, 1], args![x, y, 5 * width as u64]);
            bits(&device.read(x))
        });
        assert_eq!(sum, x.iter().zip(&y).map(|(x, y)| (x + y).to_bits()).collect::<Vec<_>>());
        let rows = [3_u32, 0, 4];
        let row = |values: &[f32], row: u32| values[row as usize * width..][..width].to_vec();
        let (gathered, added) = device.in_every_schedule(|device| {
            let [x, y] = [&x, &y].map(|values| device.upload(values));
            let (rows, out) = (device.upload(&rows), device.room::<f32>(3 * width));
            device.launch("ictus_gather_rows", [3, 1, 1], args![out, x, rows, width as u32]);
            device.launch("ictus_add_rows", [3, 1, 1], args![x, y, rows, width as u32]);
            (device.read::<f32>(out), device.read::<f32>(x))
        });
        assert_eq!(gathered, rows.iter().flat_map(|&r| row(&x, r)).collect::<Vec<_>>());
        let mut expected = x.clone();
        for (i, &r) in rows.iter().enumerate() {
            for column in 0..width {
                expected[r as usize * width + column] += y[i * width + column];
            }
        }
        assert_eq!(added, expected);
    }
}

#[test]
fn cuda_pages_are_copied_in_every_layer() {
    let Some(mut device) = device() else { return };
    // 3 layers of 6 pages of 200 words.
    let words: Vec<u32> = (0..3 * 6 * 200).collect();
    let got = device.in_every_schedule(|device| {
        let (pool, pairs) = (device.upload(&words), device.upload(&[1_u32, 4, 0, 5]));
        device.launch("ictus_copy_pages", [2, 3, 1], args![pool, pairs, 1200_u64, 200_u32]);
        device.read::<u32>(pool)
    });
    for (i, &got) in got.iter().enumerate() {
        let (layer, page, word) = (i / 1200, i / 200 % 6, i % 200);
        let from = [0, 1, 2, 3, 1, 0][page];
        assert_eq!(got as usize, layer * 1200 + from * 200 + word);
    }
}

/// The form in which tokens travel is that of `Backend::read_tokens`: layer, head, keys before values.
#[test]
fn cuda_tokens_travel_in_their_order_and_come_back() {
    let Some(mut device) = device() else { return };
    let (layers, heads, dim, page_size, pages) = (2, 3, 20, 5, 7);
    let layer_elements = pages * heads * 2 * page_size * dim;
    let pool: Vec<u32> = (0..layers * layer_elements).map(|i| i as u32).collect();
    let table = [6_u32, 2, 5, 0];
    let (first, count) = (3, 14);
    let token = layers * heads * 2 * dim;
    let sizes = |tokens: Memory, pool: Memory, table: Memory, is_gather: bool| {
        let (to, from) = if is_gather { (tokens, pool) } else { (pool, tokens) };
        let mut arguments: Vec<Arg> = vec![to.into(), from.into(), table.into(), Arg::U32(first as u32)];
        arguments.extend([Arg::U32(token as u32), Arg::U64(layer_elements as u64)]);
        arguments.extend([heads, dim, page_size].map(|size| Arg::U32(size as u32)));
        arguments
    };
    let mut expected = Vec::new();
    for position in first..first + count {
        for layer in 0..layers {
            for head in 0..heads {
                for part in [0, 1] {
                    let page = table[position / page_size];
                    let at =
                        layer * layer_elements + cell(page, head, part, position % page_size, heads, page_size, dim);
                    expected.extend_from_slice(&pool[at..at + dim]);
                }
            }
        }
    }
    let got = device.in_every_schedule(|device| {
        let (pool, table) = (device.upload(&pool), device.upload(&table));
        let tokens = device.room::<u32>(count * token);
        device.launch("ictus_gather_tokens_32", [count, 1, 1], &sizes(tokens, pool, table, true));
        device.read::<u32>(tokens)
    });
    assert_eq!(got, expected);
    // 16-bit elements, out of one pool and into an empty one.
    let pool: Vec<u16> = pool.iter().map(|&word| word as u16).collect();
    let expected: Vec<u16> = expected.iter().map(|&word| word as u16).collect();
    let got = device.in_every_schedule(|device| {
        let (pool, table) = (device.upload(&pool), device.upload(&table));
        let (tokens, empty) = (device.room::<u16>(count * token), device.room::<u16>(layers * layer_elements));
        device.launch("ictus_gather_tokens_16", [count, 1, 1], &sizes(tokens, pool, table, true));
        device.launch("ictus_scatter_tokens_16", [count, 1, 1], &sizes(tokens, empty, table, false));
        let back = device.room::<u16>(count * token);
        device.launch("ictus_gather_tokens_16", [count, 1, 1], &sizes(back, empty, table, true));
        (device.read::<u16>(tokens), device.read::<u16>(back))
    });
    assert_eq!(got, (expected.clone(), expected));
}
