//! GGUF files of every family, read: the tiny committed models, and files that the builder of `common/gguf.rs` makes.

use ictus::checkpoint::{Checkpoint, Family, RopePairing, RopeScaling};
use ictus::tensor::DType;

fn open(name: &str) -> Checkpoint {
    let path = format!("{}/tests/data/{name}.gguf", env!("CARGO_MANIFEST_DIR"));
    Checkpoint::open(path).unwrap()
}

#[test]
fn rope_freqs_become_factors_and_leave_the_tensors() {
    let checkpoint = open("llama-rope-scaled");
    let RopeScaling::Factors { factors } = &checkpoint.config().rope.scaling else { panic!() };
    assert_eq!(factors.len(), checkpoint.config().rope.dims / 2);
    assert!(factors.iter().all(|&factor| (1.0..=8.0).contains(&factor)), "{factors:?}");
    assert!(checkpoint.tensor("rope_freqs.weight").is_none());
    assert!(checkpoint.tensor("output.weight").is_some());
}

#[test]
fn a_llama_window_holds_in_every_layer() {
    let checkpoint = open("llama-window");
    let config = checkpoint.config();
    assert_eq!((config.family, config.rope.pairing), (Family::Llama, RopePairing::Interleaved));
    assert!((0..config.layers).all(|layer| config.window_of(layer) == Some(8)));
}

#[test]
fn families_are_told_by_their_architecture() {
    for (name, family) in [("qwen2", Family::Qwen2), ("qwen3", Family::Qwen3), ("gemma3", Family::Gemma3)] {
        let checkpoint = open(name);
        assert_eq!((checkpoint.config().family, checkpoint.architecture()), (family, name));
        assert_eq!(checkpoint.config().rope.pairing, RopePairing::Halves);
        assert!(checkpoint.vocabulary().is_some());
    }
    assert_eq!(open("qwen2").tensor("blk.0.attn_q.bias").unwrap().dtype, DType::F32);
    let gemma = open("gemma3");
    let windows: Vec<_> = (0..7).map(|layer| gemma.config().window_of(layer)).collect();
    assert_eq!(windows, [Some(8), Some(8), Some(8), Some(8), Some(8), None, Some(8)]);
    assert_eq!(gemma.config().rope.local_base, Some(10_000.0));
}
