//! Sampling against the host's own (`ictus::sample`): the same tokens and the same bits.

use ictus::sample::{Cuts, Penalty, Scratch, add_bias, apply_mask, argmax, draw, logprobs, row_is_finite, uniform};

use crate::random::Random;
use crate::simulator::{Device, Memory, args, device};
use crate::weights::{bits, values};

/// Entries that a block of a pass takes.
const PART: usize = 4096;
/// Entries that the walk of a draw can look at.
const HEAD: usize = 2048;
/// Flags of a row.
const NOT_FINITE: u32 = 1;
const EMPTY: u32 = 2;
/// Words of a record of log-probabilities.
const RECORD: usize = 44;

/// Rows as models give them: most far below a few.
fn logits(random: &mut Random, rows: usize, vocab: usize) -> Vec<f32> {
    let mut logits: Vec<f32> = values(random, rows * vocab).iter().map(|x| x * 8.0 - 4.0).collect();
    for row in logits.chunks_mut(vocab) {
        for _ in 0..10 {
            let at = random.below(vocab);
            row[at] += 6.0;
        }
    }
    logits
}

struct Survey {
    best: Vec<f32>,
    token: Vec<u32>,
    is_off: Vec<u32>,
}

fn survey(device: &mut Device, logits: &[f32], vocab: usize) -> Survey {
    let (rows, parts) = (logits.len() / vocab, vocab.div_ceil(PART));
    let memory = device.upload(logits);
    let best = device.room::<f32>(rows * parts);
    let [place, flags] = [(), ()].map(|()| device.room::<u32>(rows * parts));
    device.launch("ictus_survey", [parts, rows, 1], args![best, place, flags, memory, vocab as u32]);
    merged(device, [best, place, flags], memory, rows, vocab)
}

/// Of rows what their parts say.
fn merged(device: &mut Device, parts_of: [Memory; 3], logits: Memory, rows: usize, vocab: usize) -> Survey {
    let [best, place, flags] = parts_of;
    let row_best = device.room::<f32>(rows);
    let [token, row_flags] = [(), ()].map(|()| device.room::<u32>(rows));
    let parts = vocab.div_ceil(PART) as u32;
    let arguments = args![row_best, token, row_flags, best, place, flags, logits, parts, vocab as u32];
    device.launch("ictus_survey_merge", [rows, 1, 1], arguments);
    Survey { best: device.read(row_best), token: device.read(token), is_off: device.read(row_flags) }
}

#[test]
fn cuda_greedy_token_is_the_lowest_of_the_best() {
    let Some(mut device) = device() else { return };
    let mut random = Random::new("survey");
    for vocab in [1, 31, 4096, 4097, 9001] {
        let mut rows = logits(&mut random, 9, vocab);
        {
            let mut row = rows.chunks_mut(vocab);
            let mut edit = |f: &mut dyn FnMut(&mut [f32])| f(row.next().expect("a row"));
            edit(&mut |row| row.fill(-1.5));
            edit(&mut |row| row.fill(f32::NEG_INFINITY));
            edit(&mut |row| row[vocab / 2] = f32::NAN);
            edit(&mut |row| row[0] = f32::NAN);
            edit(&mut |row| row[vocab - 1] = f32::INFINITY);
            // Both zeros are equal.
            edit(&mut |row| row.iter_mut().enumerate().for_each(|(i, x)| *x = if i % 2 == 0 { -0.0 } else { 0.0 }));
            // A tie over the border of two parts.
            edit(&mut |row| {
                row[vocab - 1] = 50.0;
                row[vocab / 3] = 50.0;
            });
        }
        let got = device.in_every_schedule(|device| {
            let Survey { best, token, is_off } = survey(device, &rows, vocab);
            (bits(&best), token, is_off)
        });
        for (i, row) in rows.chunks(vocab).enumerate() {
            assert_eq!(got.1[i], argmax(row), "{vocab}: row {i}");
            assert_eq!(got.2[i] != 0, !row_is_finite(row), "{vocab}: row {i}");
            let best = row.iter().fold(f32::NEG_INFINITY, |best, &x| if x > best { x } else { best });
            assert_eq!(f32::from_bits(got.0[i]), best, "{vocab}: row {i}");
        }
    }
}

/// Mask, bias and penalties have the host's bits, and the look behind them sees the changed row.
#[test]
fn cuda_rows_are_shaped_as_on_the_host() {
    let Some(mut device) = device() else { return };
    let mut random = Random::new("shape");
    for vocab in [40, 4100] {
        let rows = 3;
        let plain = logits(&mut random, rows, vocab);
        // The last row's mask ends early and allows nothing.
        let words = vocab.div_ceil(32) - 1;
        let mut mask: Vec<u32> = (0..rows * words).map(|_| random.next() as u32 | 1).collect();
        mask[(rows - 1) * words..].fill(0);
        // Ids twice, and past the row.
        let id = |random: &mut Random| random.below(vocab + 5) as u32;
        let biases: Vec<Vec<(u32, f32)>> = (0..rows)
            .map(|row| {
                let mut list: Vec<(u32, f32)> =
                    (0..row * 150).map(|i| (id(&mut random), i as f32 * 0.37 - 3.0)).collect();
                list.extend_from_within(..row);
                list
            })
            .collect();
        let windows: Vec<Vec<u32>> =
            (0..rows).map(|row| (0..row * 30).map(|_| id(&mut random) / 2).collect()).collect();
        let strengths = [[1.0_f32, 0.0, 0.0], [1.3, 0.5, 0.25], [1.0, -0.5, 0.1]];

        let mut expected = plain.clone();
        let mut left = Vec::new();
        for (i, row) in expected.chunks_mut(vocab).enumerate() {
            left.push(apply_mask(row, &mask[i * words..][..words]));
            add_bias(row, &biases[i]);
            let [repeat, presence, frequency] = strengths[i];
            Penalty { repeat, presence, frequency, window: &windows[i], exempt: &[] }.apply(row);
        }
        let mut lists = Vec::new();
        let mut records: Vec<[u32; 10]> = Vec::new();
        for i in 0..rows {
            let mut place = |list: Vec<u32>| {
                lists.extend(list);
                lists.len() as u32
            };
            let ends = [
                place(mask[i * words..][..words].to_vec()),
                place(sorted(&biases[i]).iter().flat_map(|&(id, addend)| [id, addend.to_bits()]).collect()),
                place(counted(&windows[i]).iter().flat_map(|&(id, count)| [id, count]).collect()),
            ];
            let [repeat, presence, frequency] = strengths[i].map(f32::to_bits);
            let (biases, penalties) = ((ends[1] - ends[0]) / 2, (ends[2] - ends[1]) / 2);
            let masked = ends[0] - words as u32;
            records.push([masked, words as u32, ends[0], biases, ends[1], penalties, repeat, presence, frequency, 1]);
        }
        // A row that nothing is done to, with a NaN far back.
        let mut plain = [plain, logits(&mut random, 1, vocab)].concat();
        plain[(rows + 1) * vocab - 3] = f32::NAN;
        expected.extend_from_slice(&plain[rows * vocab..]);
        records.push([u32::MAX, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
        left.push(true);
        let rows = rows + 1;
        let got = device.in_every_schedule(|device| {
            let parts = vocab.div_ceil(PART);
            let (memory, lists, records) =
                (device.upload(&plain), device.upload(&lists), device.upload(records.as_flattened()));
            let best = device.room::<f32>(rows * parts);
            let [place, flags] = [(), ()].map(|()| device.room::<u32>(rows * parts));
            device.launch(
                "ictus_shape",
                [parts, rows, 1],
                args![best, place, flags, memory, records, lists, vocab as u32],
            );
            let Survey { best, token, is_off } = merged(device, [best, place, flags], memory, rows, vocab);
            (bits(&device.read(memory)), bits(&best), token, is_off)
        });
        assert_eq!(got.0, bits(&expected), "{vocab}");
        for (i, row) in expected.chunks(vocab).enumerate() {
            let best = row.iter().fold(f32::NEG_INFINITY, |best, &x| if x > best { x } else { best });
            assert_eq!(f32::from_bits(got.1[i]), best, "{vocab}: row {i}");
            assert_eq!(got.2[i], argmax(row), "{vocab}: row {i}");
            let flags = if i + 1 == rows { NOT_FINITE } else { 0 } | if left[i] { 0 } else { EMPTY };
            assert_eq!(got.3[i], flags, "{vocab}: row {i}");
        }
    }
}

/// Addends with ids ascending, those of one id in their order.
fn sorted(biases: &[(u32, f32)]) -> Vec<(u32, f32)> {
    let mut sorted = biases.to_vec();
    sorted.sort_by_key(|&(id, _)| id);
    sorted
}

/// Distinct ids of the last 64 tokens, with their numbers.
fn counted(window: &[u32]) -> Vec<(u32, u32)> {
    let mut recent = window[window.len().saturating_sub(64)..].to_vec();
    recent.sort_unstable();
    recent.chunk_by(|a, b| a == b).map(|run| (run[0], run.len() as u32)).collect()
}

/// How one row is drawn from.
#[derive(Clone, Copy, Debug)]
struct Draw {
    temperature: f32,
    cuts: Cuts,
    position: u64,
}

/// Passes that look for the best entries, and words that each counts of a part.
const PASSES: usize = 7;
const DIGITS: usize = 32;

/// Room for counts and pivots.
fn reached(device: &mut Device, rows: usize, vocab: usize) -> [Memory; 2] {
    [device.room::<u32>(2 * rows * vocab.div_ceil(PART) * DIGITS), device.room::<u32>(PASSES * rows)]
}

/// Tokens, whether the head was too short, and the sums of weights.
fn pick(device: &mut Device, logits: &[f32], vocab: usize, draws: &[Draw]) -> (Vec<u32>, Vec<u32>, Vec<u32>) {
    let rows = draws.len();
    let Survey { best, token, .. } = survey(device, logits, vocab);
    let temperatures: Vec<f32> = draws.iter().map(|draw| draw.temperature).collect();
    let top_k: Vec<u32> = draws.iter().map(|draw| draw.cuts.top_k).collect();
    let cuts: Vec<f32> = draws.iter().flat_map(|draw| [draw.cuts.min_p, draw.cuts.top_p]).collect();
    let positions: Vec<u64> = draws.iter().map(|draw| draw.position).collect();
    let [logits, best, temperatures, cuts] = [logits, &best, &temperatures, &cuts].map(|values| device.upload(values));
    let [greedy, top_k] = [&token, &top_k].map(|values| device.upload(values));
    let (positions, weights) = (device.upload(&positions), device.room::<f32>(rows * vocab));
    let (sums, tokens, status) =
        (device.upload(&vec![0.0_f32; rows]), device.room::<u32>(rows), device.room::<u32>(rows));
    let vocab_size = vocab as u32;
    let grid = [vocab.div_ceil(PART), rows, 1];
    device.launch("ictus_weights", grid, args![weights, logits, best, temperatures, vocab_size]);
    device.launch("ictus_weight_sum", [rows, 1, 1], args![sums, weights, temperatures, vocab_size]);
    let [counts, pivots] = reached(device, rows, vocab);
    for pass in 1..PASSES as u32 {
        device.launch("ictus_reach", grid, args![counts, pivots, weights, sums, temperatures, vocab_size, pass]);
    }
    let arguments =
        args![tokens, status, weights, sums, counts, pivots, greedy, temperatures, top_k, cuts, positions, vocab_size];
    device.launch("ictus_pick", [rows, 1, 1], arguments);
    (device.read(tokens), device.read(status), bits(&device.read(sums)))
}

/// The token is the host's, whatever cuts.
#[test]
fn cuda_drawn_tokens_are_those_of_the_host() {
    let Some(mut device) = device() else { return };
    let mut random = Random::new("draw");
    let cuts = |top_k, min_p, top_p| Cuts { top_k, min_p, top_p };
    let all = [
        Cuts::OFF,
        cuts(1, 0.0, 1.0),
        cuts(40, 0.05, 0.95),
        cuts(0, 0.0, 0.5),
        cuts(0, 0.2, 1.0),
        cuts(7, 0.0, 0.0),
        cuts(3000, 0.0, 0.999),
    ];
    for vocab in [1, 19, 1500, 9001] {
        let mut draws = Vec::new();
        for &cuts in &all {
            for temperature in [0.0, 0.7, 3.0] {
                draws.push(Draw { temperature, cuts, position: random.next() });
            }
        }
        let mut rows = logits(&mut random, draws.len(), vocab);
        // Equal entries, and masked ones.
        for (i, row) in rows.chunks_mut(vocab).enumerate() {
            match i % 4 {
                1 => row.iter_mut().for_each(|x| *x = x.round()),
                2 => row.iter_mut().skip(1).step_by(3).for_each(|x| *x = f32::NEG_INFINITY),
                _ => {}
            }
        }
        let (tokens, status, _) = pick(&mut device, &rows, vocab, &draws);
        let mut scratch = Scratch::new();
        let mut short = 0;
        for (i, (row, own)) in rows.chunks(vocab).zip(&draws).enumerate() {
            let expected = if own.temperature > 0.0 {
                draw(row, own.temperature, own.cuts, uniform(own.position), &mut scratch)
            } else {
                argmax(row)
            };
            if status[i] != 0 {
                assert!(vocab > HEAD, "{vocab}: the head has all there is");
                short += 1;
                continue;
            }
            assert_eq!(tokens[i], expected, "{vocab}: row {i}, {own:?}");
        }
        println!("{vocab} entries: {short} of {} draws need the host", draws.len());
        assert!(2 * short < draws.len(), "{vocab}");
    }
}

/// The position whose number is `u`: the steps of T-119 backwards, each of which has an inverse.
fn position_of(u: f64) -> u64 {
    // x ^ (x >> shift), undone: the upper bits are right at once, and each round makes `shift` more of them so.
    let unshift = |z: u64, shift: u32| (0..64 / shift).fold(z, |x, _| z ^ (x >> shift));
    // An odd number's inverse modulo 2^64, by Newton's steps, each of which doubles the bits that are right.
    let inverse = |odd: u64| (0..6).fold(odd, |x, _| x.wrapping_mul(2_u64.wrapping_sub(odd.wrapping_mul(x))));
    let z = ((u * (1_u64 << 53) as f64) as u64) << 11;
    let z = unshift(z, 31).wrapping_mul(inverse(0x94D0_49BB_1331_11EB));
    let z = unshift(z, 27).wrapping_mul(inverse(0xBF58_476D_1CE4_E5B9));
    unshift(z, 30).wrapping_sub(0x9E37_79B9_7F4A_7C15)
}

/// T-118: a number that lies on the border of two candidates takes the one behind it.
#[test]
fn cuda_draws_on_a_border_take_the_next_candidate() {
    let Some(mut device) = device() else { return };
    for vocab in [2, 4, 32] {
        let draws: Vec<Draw> = (0..vocab)
            .map(|k| Draw { temperature: 1.0, cuts: Cuts::OFF, position: position_of(k as f64 / vocab as f64) })
            .collect();
        let rows = vec![0.25_f32; vocab * vocab];
        let borders: Vec<u32> = (0..vocab as u32).collect();
        assert_eq!(pick(&mut device, &rows, vocab, &draws).0, borders, "on the device, {vocab} candidates");
        let mut scratch = Scratch::new();
        for ((row, own), &border) in rows.chunks(vocab).zip(&draws).zip(&borders) {
            assert_eq!(uniform(own.position), f64::from(border) / vocab as f64);
            assert_eq!(draw(row, 1.0, own.cuts, uniform(own.position), &mut scratch), border, "on the host");
        }
    }
}

/// The sum of weights, from which everything follows, has the bits of the host's; the order of blocks and threads shows nowhere.
#[test]
fn cuda_draws_do_not_depend_on_the_schedule() {
    let Some(mut device) = device() else { return };
    let mut random = Random::new("draw schedule");
    let vocab = 2600;
    let rows = logits(&mut random, 2, vocab);
    let draws = [
        Draw { temperature: 0.8, cuts: Cuts { top_k: 50, min_p: 0.01, top_p: 0.9 }, position: 5 },
        Draw { temperature: 1.0, cuts: Cuts::OFF, position: 6 },
    ];
    let (_, _, sums) = device.in_every_schedule(|device| pick(device, &rows, vocab, &draws));
    let row = &rows[vocab..];
    let mut probabilities = Vec::new();
    ictus::sample::probabilities(row, 1.0, &mut probabilities);
    let best = argmax(row) as usize;
    // The best one's weight is 1: its probability is one divided by the sum.
    assert_eq!(1.0 / f32::from_bits(sums[1]), probabilities[best]);
}

#[test]
fn cuda_logprobs_are_made_of_the_hosts_numbers() {
    let Some(mut device) = device() else { return };
    let mut random = Random::new("logprobs");
    for vocab in [1, 19, 2600] {
        let rows = 4;
        let mut plain = logits(&mut random, rows, vocab);
        plain[..vocab].fill(2.0); // nothing but ties
        plain[vocab..2 * vocab].iter_mut().skip(1).step_by(2).for_each(|x| *x = f32::NEG_INFINITY);
        let tokens: Vec<u32> =
            (0..rows).map(|row| if row == 3 { vocab as u32 } else { random.below(vocab) as u32 }).collect();
        let draws = [Draw { temperature: 1.0, cuts: Cuts::OFF, position: 0 }; 4];
        let (_, _, sums) = pick(&mut device, &plain, vocab, &draws);
        let best = survey(&mut device, &plain, vocab).best;
        // Of the third row nobody wants them.
        let wanted = [1.0_f32, 1.0, 0.0, 1.0];
        let records = device.in_every_schedule(|device| {
            let (logits, tokens, best) = (device.upload(&plain), device.upload(&tokens), device.upload(&best));
            let (sums, wanted, records) =
                (device.upload(&sums), device.upload(&wanted), device.room::<u32>(rows * RECORD));
            let [counts, pivots] = reached(device, rows, vocab);
            for pass in 0..PASSES as u32 {
                let arguments = args![counts, pivots, logits, wanted, vocab as u32, pass];
                device.launch("ictus_reach_logits", [vocab.div_ceil(PART), rows, 1], arguments);
            }
            let arguments = args![records, logits, counts, pivots, tokens, best, sums, wanted, vocab as u32];
            device.launch("ictus_logprobs", [rows, 1, 1], arguments);
            device.read::<u32>(records)
        });
        assert_eq!(records[2 * RECORD..3 * RECORD], [0; RECORD]);
        for (i, row) in plain.chunks(vocab).enumerate() {
            let expected = logprobs(row, tokens[i], 20);
            if wanted[i] == 0.0 {
                continue;
            }
            let record = &records[i * RECORD..][..RECORD];
            assert_eq!(record[..2], [best[i].to_bits(), sums[i]], "{vocab}: row {i}");
            assert_eq!(record[3], expected.n_top, "{vocab}: row {i}");
            assert_eq!(record[4..24], expected.top_ids, "{vocab}: row {i}");
            let normaliser = f64::from(best[i]) + f64::from(f32::from_bits(sums[i])).ln();
            let logprob = |bits: u32| (f64::from(f32::from_bits(bits)) - normaliser).min(0.0) as f32;
            assert_eq!(logprob(record[2]).to_bits(), expected.logprob.to_bits(), "{vocab}: row {i}");
            for place in 0..record[3] as usize {
                let got = logprob(record[24 + place]);
                assert_eq!(got.to_bits(), expected.top_logprobs[place].to_bits(), "{vocab}: row {i}, place {place}");
            }
        }
    }
}
