//! Parts of rows become whole rows.

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
