//! Dequantisation, held to the bit against values that the `gguf` package of the ggml project computed.
//!
//! `scripts/make_quant_fixtures.py` makes the fixtures: random blocks of each type, then their values.

use ictus::tensor::{DType, dequantise_row};

fn check(dtype: DType, fixture: &[u8]) {
    // Each unit stands for `unit_values` floats of four bytes.
    let units = fixture.len() / (dtype.unit_bytes() + 4 * dtype.unit_values());
    let (bytes, expected) = fixture.split_at(units * dtype.unit_bytes());
    assert!(units >= 2, "{dtype:?}");
    let expected: Vec<f32> =
        expected.chunks_exact(4).map(|word| f32::from_le_bytes(word.try_into().unwrap())).collect();
    let mut got = vec![f32::NAN; units * dtype.unit_values()];
    dequantise_row(dtype, bytes, &mut got).unwrap();
    assert_eq!(got.len(), expected.len());
    for (i, (got, expected)) in got.iter().zip(&expected).enumerate() {
        // Equal values; a zero may have either sign.
        assert!(got == expected, "{dtype:?} value {i}: {got:e}, expected {expected:e}");
    }
    let mut sorted = expected.clone();
    sorted.sort_by(f32::total_cmp);
    sorted.dedup();
    assert!(sorted.len() > 16, "{dtype:?}: the fixture says something");
}

macro_rules! fixtures {
    ($($test:ident $dtype:ident $file:literal)*) => {
        $(#[test]
        fn $test() {
            check(DType::$dtype, include_bytes!(concat!("data/quant/", $file, ".bin")));
        })*
    };
}

fixtures! {
    f16_matches F16 "f16"
    bf16_matches BF16 "bf16"
    q4_0_matches Q4_0 "q4_0"
    q4_1_matches Q4_1 "q4_1"
    q5_0_matches Q5_0 "q5_0"
    q5_1_matches Q5_1 "q5_1"
    q8_0_matches Q8_0 "q8_0"
    q2_k_matches Q2_K "q2_k"
    q3_k_matches Q3_K "q3_k"
    q4_k_matches Q4_K "q4_k"
    q5_k_matches Q5_K "q5_k"
    q6_k_matches Q6_K "q6_k"
    iq4_nl_matches IQ4_NL "iq4_nl"
    iq4_xs_matches IQ4_XS "iq4_xs"
}
