//! Parts of rows become whole rows, and tokens find who has theirs.

use crate::random::Random;
use crate::simulator::{args, device};
use crate::weights::{bits, values};

/// Each column comes from the part that has it, wherever the parts are cut: evenly, unevenly, or so that one has nothing.
#[test]
fn cuda_parts_are_placed_by_columns() {
    let Some(mut device) = device() else { return };
    let mut random = Random::new("place_parts");
    for (width, unit, parts) in [(6, 1, 2), (7, 1, 3), (96, 16, 4), (80, 16, 3), (32, 32, 2), (1030, 1, 4), (5, 5, 1)] {
        for rows in [1, 3] {
            let whole = values(&mut random, rows * width);
            // Cut by counting: column after column goes to the part that is next to be filled.
            let owner =
                |column: usize| (0..parts).rfind(|part| width / unit * part / parts * unit <= column).expect("0");
            let part = |of: usize| -> Vec<f32> {
                whole.iter().enumerate().filter(|(at, _)| owner(at % width) == of).map(|(_, x)| *x).collect()
            };
            let parts_of_all: Vec<f32> = (0..parts).flat_map(part).collect();
            for own in 0..parts {
                // What would be the own part there was never pushed: it is not looked at.
                let mut others = parts_of_all.clone();
                let before: usize = (0..own).map(|of| part(of).len()).sum();
                others[before..before + part(own).len()].fill(f32::NAN);
                for blocks in [1, 2] {
                    let got = device.in_every_schedule(|device| {
                        let (others, out) = (device.upload(&others), device.room::<f32>(whole.len()));
                        // No memory has no elements.
                        let mine = device.upload(&[&part(own)[..], &[0.0]].concat());
                        let sizes = [width, unit, parts, own].map(|n| n as u32);
                        let [width, unit, parts, own] = sizes;
                        let arguments = args![out, mine, others, width, unit, parts, own];
                        device.launch("ictus_place_parts", [blocks, rows, 1], arguments);
                        bits(&device.read(out))
                    });
                    assert_eq!(got, bits(&whole), "{width} by {unit} in {parts}, part {own}, {rows} rows");
                }
            }
        }
    }
}

/// Each token's row is in the part whose rows it is among, counted one by one.
#[test]
fn cuda_tokens_are_found_by_who_has_their_rows() {
    let Some(mut device) = device() else { return };
    for (vocab, unit, parts) in [(6, 1, 2), (7, 1, 3), (96, 16, 4), (80, 16, 3), (1030, 1, 4), (5, 5, 1)] {
        let owners: Vec<usize> = (0..vocab)
            .map(|token| (0..parts).rfind(|part| vocab / unit * part / parts * unit <= token).expect("part 0"))
            .collect();
        for count in [1, 3, 300] {
            // The borders of parts are among them.
            let tokens: Vec<u32> = (0..count).map(|i| (i * 7 % vocab) as u32).collect();
            for own in 0..parts {
                let first = owners.iter().position(|&owner| owner == own).unwrap_or(0);
                let ids: Vec<u32> = (tokens.iter())
                    .map(|&token| if owners[token as usize] == own { token - first as u32 } else { 0 })
                    .collect();
                let place = |(at, &token): (usize, &u32)| (owners[token as usize] * count + at) as u32;
                let rows: Vec<u32> = tokens.iter().enumerate().map(place).collect();
                for blocks in [1, 2] {
                    let got = device.in_every_schedule(|device| {
                        let memory = device.upload(&tokens);
                        let [ids, rows] = [(); 2].map(|()| device.room::<u32>(count));
                        let [count, vocab, unit, parts, own] = [count, vocab, unit, parts, own].map(|n| n as u32);
                        let arguments = args![ids, rows, memory, count, vocab, unit, parts, own];
                        device.launch("ictus_own_tokens", [blocks, 1, 1], arguments);
                        (device.read::<u32>(ids), device.read::<u32>(rows))
                    });
                    assert_eq!(
                        got,
                        (ids.clone(), rows.clone()),
                        "{vocab} by {unit} in {parts}, part {own}, {count} tokens"
                    );
                }
            }
        }
    }
}
