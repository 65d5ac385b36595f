//! GGUF files of every family, read: the tiny committed models, and files that the builder of `common/gguf.rs` makes.

#![allow(dead_code, reason = "this file uses a part of the shared helpers")]

#[path = "common/gguf.rs"]
mod gguf;

use gguf::{Gguf, Value, tiny_llama};
use ictus::checkpoint::{Checkpoint, CheckpointError, ConfigError, Family, RopePairing, RopeScaling, Vocabulary};
use ictus::tensor::{Bytes, DType};

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

fn build(file: &Gguf) -> Result<Checkpoint, ConfigError> {
    Checkpoint::from_gguf_bytes(Bytes::copy_aligned(&file.build())).map_err(|error| match error {
        CheckpointError::Config { source, .. } => source,
        other => panic!("{other:?}"),
    })
}

/// The tiny llama as a gemma3 of `layers` layers.
fn tiny_gemma(layers: u32) -> Gguf {
    let mut file = Gguf::new();
    for (key, value) in tiny_llama().keys {
        file = file.key(&key.replace("llama.", "gemma3."), value);
    }
    file = file.key("general.architecture", Value::text("gemma3")).key("gemma3.block_count", Value::U32(layers));
    for tensor in tiny_llama().tensors {
        match tensor.name.strip_prefix("blk.0.") {
            None => file = file.f32_tensor(&tensor.name, &tensor.dims),
            Some(rest) => {
                for layer in 0..layers {
                    file = file.f32_tensor(&format!("blk.{layer}.{rest}"), &tensor.dims);
                }
            }
        }
    }
    for layer in 0..layers {
        for (name, cols) in [("attn_q_norm", 2), ("attn_k_norm", 2), ("post_attention_norm", 4), ("post_ffw_norm", 4)] {
            file = file.f32_tensor(&format!("blk.{layer}.{name}.weight"), &[cols]);
        }
    }
    file
}

#[test]
fn numbers_are_read_in_every_integer_and_float_type() {
    let expected = build(&tiny_llama()).unwrap();
    for value in [Value::U8(6), Value::I8(6), Value::U16(6), Value::I16(6), Value::I32(6), Value::U64(6), Value::I64(6)]
    {
        let checkpoint = build(&tiny_llama().key("llama.feed_forward_length", value)).unwrap();
        assert_eq!(checkpoint.config(), expected.config());
    }
    let base = build(&tiny_llama().key("llama.rope.freq_base", Value::F64(10_000.0))).unwrap();
    assert_eq!(base.config(), expected.config());
}

#[test]
fn what_a_file_leaves_out_has_its_default() {
    let file = ["llama.rope.freq_base", "llama.rope.dimension_count", "llama.attention.head_count_kv"]
        .into_iter()
        .fold(tiny_llama(), Gguf::without_key)
        .without_tensor("blk.0.attn_k.weight")
        .without_tensor("blk.0.attn_v.weight")
        .f32_tensor("blk.0.attn_k.weight", &[4, 4])
        .f32_tensor("blk.0.attn_v.weight", &[4, 4]);
    let checkpoint = build(&file).unwrap();
    let config = checkpoint.config();
    assert_eq!((config.n_kv_heads, config.head_dim), (2, 2));
    assert_eq!((config.rope.base, config.rope.dims, &config.rope.scaling), (10_000.0, 2, &RopeScaling::None));
}

#[test]
fn rope_scalings_are_linear_or_refused() {
    let scaling = |keys: &[(&str, Value)]| {
        let file = keys.iter().cloned().fold(tiny_llama(), |file, (key, value)| file.key(key, value));
        build(&file).map(|checkpoint| checkpoint.config().rope.scaling.clone())
    };
    let (kind, factor) = ("llama.rope.scaling.type", "llama.rope.scaling.factor");
    let linear = Ok(RopeScaling::Linear { factor: 8.0 });
    assert_eq!(scaling(&[(kind, Value::text("linear")), (factor, Value::F32(8.0))]), linear);
    assert_eq!(scaling(&[(factor, Value::F32(8.0))]), linear, "files from before there were kinds");
    assert_eq!(scaling(&[("llama.rope.scale_linear", Value::F32(8.0))]), linear);
    assert_eq!(scaling(&[(kind, Value::text("none")), (factor, Value::F32(8.0))]), Ok(RopeScaling::None));
    assert_eq!(scaling(&[(factor, Value::F32(1.0))]), Ok(RopeScaling::None));
    assert!(scaling(&[(kind, Value::text("yarn")), (factor, Value::F32(8.0))]).is_err());
}

#[test]
fn gemma_windows_follow_the_pattern_that_is_stated() {
    let windows = |file: Gguf| {
        let checkpoint = build(&file).unwrap();
        let config = checkpoint.config();
        let local = (0..config.layers).map(|layer| config.window_of(layer).is_some()).collect::<Vec<_>>();
        (local, config.rope.local_base)
    };
    let window = |layers| tiny_gemma(layers).key("gemma3.attention.sliding_window", Value::U32(4));
    let pattern = |value| window(4).key("gemma3.attention.sliding_window_pattern", value);
    let marks = |marks: [bool; 4]| Value::Array(marks.map(Value::Bool).to_vec());
    let base = Some(10_000.0);
    assert_eq!(windows(tiny_gemma(2)), (vec![false; 2], None));
    assert_eq!(windows(window(7)), (vec![true, true, true, true, true, false, true], base));
    assert_eq!(windows(pattern(Value::U32(2))), (vec![true, false, true, false], base));
    assert_eq!(windows(pattern(Value::U32(1))), (vec![false; 4], None));
    assert_eq!(windows(pattern(marks([true, true, false, true]))), (vec![true, true, false, true], base));
    assert_eq!(windows(pattern(marks([false; 4]))), (vec![false; 4], None));
    let irregular = build(&pattern(marks([false, true, true, false])));
    assert!(matches!(irregular, Err(ConfigError::Unsupported { key, .. }) if key.ends_with("sliding_window_pattern")));
    let swa = window(1).key("gemma3.rope.freq_base_swa", Value::F32(500.0));
    assert_eq!(windows(swa).1, Some(500.0));
}

#[test]
fn only_the_largest_gemma_scales_attention_by_its_width() {
    let scale = |layers| build(&tiny_gemma(layers)).unwrap().config().attention_scale;
    assert_eq!(scale(2), 1.0 / 2.0_f32.sqrt());
    // Heads of 2 over hidden 4: the quotient is 2 as well, so the 62 layers get heads of their own.
    let mut wide = tiny_gemma(62).key("gemma3.attention.head_count", Value::U32(1));
    for layer in 0..62 {
        wide.tensor_mut(&format!("blk.{layer}.attn_q.weight")).dims = vec![4, 2];
        wide.tensor_mut(&format!("blk.{layer}.attn_output.weight")).dims = vec![2, 4];
    }
    wide = wide.key("gemma3.attention.key_length", Value::U32(2));
    assert_eq!(build(&wide).unwrap().config().attention_scale, 0.5);
}

#[test]
fn a_qwen_window_in_a_gguf_is_refused() {
    let path = format!("{}/tests/data/qwen2.gguf", env!("CARGO_MANIFEST_DIR"));
    let bytes = std::fs::read(path).unwrap();
    assert!(Checkpoint::from_gguf_bytes(Bytes::copy_aligned(&bytes)).is_ok());
    let file = tiny_llama()
        .key("general.architecture", Value::text("qwen2"))
        .key("qwen2.block_count", Value::U32(1))
        .key("qwen2.embedding_length", Value::U32(4))
        .key("qwen2.attention.head_count", Value::U32(2))
        .key("qwen2.attention.sliding_window", Value::U32(8));
    let refused = build(&file).unwrap_err();
    assert!(matches!(refused, ConfigError::Unsupported { key, .. } if key == "qwen2.attention.sliding_window"));
}

#[test]
fn a_vocabulary_is_read_as_the_file_has_it() {
    let checkpoint = build(&tiny_llama()).unwrap();
    let Some(Vocabulary::Gguf(vocabulary)) = checkpoint.vocabulary() else { panic!() };
    let tokens: Vec<_> = vocabulary.tokens.iter().collect();
    assert_eq!(tokens, [&b"a"[..], b"b", b"ab", b"c", b"<s>", b"</s>"]);
    assert_eq!(vocabulary.tokens.get(2), Some(&b"ab"[..]));
    assert_eq!((vocabulary.tokens.get(6), vocabulary.tokens.get(usize::MAX)), (None, None));
    assert_eq!(vocabulary.types.as_deref(), Some(&[1, 1, 1, 1, 3, 3][..]));
    assert_eq!(vocabulary.merges.as_ref().unwrap().get(0), Some(&b"a b"[..]));
    assert_eq!((vocabulary.special.bos, &*vocabulary.special.ends), (Some(4), &[5][..]));
    assert_eq!((vocabulary.add_bos, vocabulary.has_charsmap, &vocabulary.scores), (None, false, &None));
    let without = tiny_llama().key("tokenizer.ggml.model", Value::text("none"));
    assert!(build(&without).unwrap().vocabulary().is_none());
}

#[test]
fn sampling_defaults_are_read_where_the_file_has_some() {
    assert_eq!(build(&tiny_llama()).unwrap().sampling_defaults(), None);
    let file = tiny_llama()
        .key("general.sampling.temp", Value::F32(0.5))
        .key("general.sampling.top_k", Value::I32(20))
        .key("general.sampling.top_p", Value::F32(0.75));
    let defaults = build(&file).unwrap().sampling_defaults().unwrap();
    assert_eq!((defaults.temperature, defaults.top_k, defaults.top_p), (Some(0.5), Some(20), Some(0.75)));
    assert_eq!(defaults.min_p, None);
}

#[test]
fn data_that_lies_at_odd_addresses_is_moved() {
    let mut shifted = vec![0_u8];
    shifted.extend(tiny_llama().build());
    let len = shifted.len();
    let bytes = Bytes::copy_aligned(&shifted).slice(1..len).unwrap();
    let checkpoint = Checkpoint::from_gguf_bytes(bytes).unwrap();
    let plain = build(&tiny_llama()).unwrap();
    for (name, tensor) in checkpoint.tensors() {
        assert_eq!(tensor.data.as_slice().as_ptr() as usize % 4, 0, "{name}");
        assert_eq!(tensor.data.as_slice(), plain.tensor(name).unwrap().data.as_slice(), "{name}");
    }
}
