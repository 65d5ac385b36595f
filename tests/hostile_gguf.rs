//! GGUF files that lie: each ends in a typed error that names the place, none panics, and none makes the reader allocate more than
//! in proportion to the file.
#![allow(dead_code, reason = "this file uses a part of the shared helpers")]

#[path = "common/allocations.rs"]
mod allocations;
#[path = "common/gguf.rs"]
mod gguf;
#[path = "common/random.rs"]
mod random;

use std::sync::Arc;
use std::time::{Duration, Instant};

use gguf::{Gguf, Value, tiny_llama};
use ictus::checkpoint::{Checkpoint, CheckpointError, ConfigError, GgufError};
use ictus::tensor::Bytes;

/// What opening may allocate beyond [`ALLOCATION_FACTOR`] times the file: maps, names, messages.
const ALLOCATION_BASE_BYTES: u64 = 64 << 10;
/// A tensor's 24 bytes in a table become a few hundred in memory, its name is copied into maps.
const ALLOCATION_FACTOR: u64 = 32;

/// Opens a file, holds the reader to its allocation, and reads all that the result offers.
fn open(file: &[u8]) -> Result<Checkpoint, CheckpointError> {
    let bytes = Bytes::new(Arc::new(file.to_vec()));
    let (result, allocated) = allocations::allocated_bytes(|| Checkpoint::from_gguf_bytes(bytes));
    let limit = ALLOCATION_BASE_BYTES + ALLOCATION_FACTOR * file.len() as u64;
    assert!(allocated <= limit, "{allocated} bytes allocated for a file of {}", file.len());
    match &result {
        Ok(checkpoint) => {
            checkpoint.weights_identity();
            assert!(checkpoint.config().check().is_ok());
        }
        Err(error) => {
            let source = std::error::Error::source(error).expect("the error has a source");
            assert!(!source.to_string().is_empty());
        }
    }
    result
}

/// The layout error that a file ends in, the same twice.
fn layout_error(file: &[u8]) -> GgufError {
    let once = || match open(file) {
        Err(CheckpointError::Gguf { source, .. }) => source,
        other => panic!("not refused for its layout: {other:?}"),
    };
    let first = once();
    assert_eq!(first, once());
    first
}

/// The configuration error that a file ends in, the same twice.
fn config_error(file: &Gguf) -> ConfigError {
    let bytes = file.build();
    let once = || match open(&bytes) {
        Err(CheckpointError::Config { source, .. }) => source,
        other => panic!("not refused for its meaning: {other:?}"),
    };
    let first = once();
    assert_eq!(first.to_string(), once().to_string());
    first
}

#[test]
fn the_tiny_file_opens() {
    for version in [2, 3] {
        let checkpoint = open(&Gguf { version, ..tiny_llama() }.build()).unwrap();
        assert_eq!((checkpoint.name(), checkpoint.config().vocab), ("tiny", 6));
    }
    let wide = Gguf { alignment: 4096, ..tiny_llama() };
    assert!(open(&wide.build()).is_ok());
}

#[test]
fn a_file_cut_anywhere_is_refused_with_its_place() {
    let file = tiny_llama().build();
    for len in 0..file.len() {
        match layout_error(&file[..len]) {
            GgufError::Magic { got } => assert!(len < 4 && got.len() == len, "{len}"),
            GgufError::Truncated { place, offset, needed, available } => {
                assert!(offset <= len as u64 && available < needed, "{len}: {place}");
                assert!(!place.is_empty());
            }
            GgufError::OutOfFile { tensor, .. } => assert!(tensor.ends_with(".weight"), "{len}"),
            other => panic!("{len}: {other}"),
        }
    }
}

#[test]
fn numbers_of_any_size_anywhere_are_survived() {
    let file = tiny_llama().build();
    let extremes =
        [0_u64, 1, 0x7f, 0xffff, 1 << 31, u64::from(u32::MAX), 1 << 62, i64::MAX as u64, u64::MAX - 7, u64::MAX];
    for at in 0..file.len().saturating_sub(8) {
        for extreme in extremes {
            let mut changed = file.clone();
            changed[at..at + 8].copy_from_slice(&extreme.to_le_bytes());
            drop(open(&changed));
            let mut changed = file.clone();
            changed[at..at + 4].copy_from_slice(&(extreme as u32).to_le_bytes());
            drop(open(&changed));
        }
    }
}

#[test]
fn other_formats_and_versions_are_refused_as_such() {
    assert_eq!(layout_error(b"GGML\x03\0\0\0"), GgufError::Magic { got: b"GGML".to_vec() });
    let version = |version| layout_error(&Gguf { version, ..tiny_llama() }.build());
    for wrong in [0, 1, 4, u32::MAX] {
        assert_eq!(version(wrong), GgufError::Version { version: wrong });
    }
    assert_eq!(version(3_u32.swap_bytes()), GgufError::BigEndian);
    assert_eq!(version(2_u32.swap_bytes()), GgufError::BigEndian);
}

#[test]
fn huge_counts_are_refused_before_anything_is_allocated() {
    for count in [1_000_000, u64::from(u32::MAX), i64::MAX as u64, u64::MAX] {
        let keys = layout_error(&Gguf { key_count: Some(count), ..tiny_llama() }.build());
        assert!(matches!(keys, GgufError::TooLarge { place, got, .. } if place.contains("keys") && got == count));
        let tensors = layout_error(&Gguf { tensor_count: Some(count), ..tiny_llama() }.build());
        assert!(matches!(tensors, GgufError::TooLarge { .. } | GgufError::Truncated { .. }), "{tensors}");
        for kind in [0_u32, 4, 7, 8, 9, 10] {
            let array = [&kind.to_le_bytes()[..], &count.to_le_bytes()].concat();
            let refused = layout_error(&tiny_llama().key("list", Value::Raw(9, array)).build());
            assert!(matches!(&refused, GgufError::Truncated { place, .. } if place.contains("key list")), "{refused}");
        }
        let text = layout_error(&tiny_llama().key("text", Value::Raw(8, count.to_le_bytes().to_vec())).build());
        assert!(matches!(&text, GgufError::Truncated { place, .. } if place.contains("key text")), "{text}");
    }
    // Counts that the limits allow and the file does not.
    let keys = layout_error(&Gguf { key_count: Some(60_000), ..tiny_llama() }.build());
    assert!(matches!(keys, GgufError::Truncated { .. }), "{keys}");
    let tensors = layout_error(&Gguf { tensor_count: Some(900_000), ..tiny_llama() }.build());
    assert!(matches!(tensors, GgufError::Truncated { .. }), "{tensors}");
}

#[test]
fn nested_arrays_are_read_and_their_depth_is_bounded() {
    let nest = |depth| (0..depth).fold(Value::U8(7), |inner, _| Value::Array(vec![inner]));
    assert!(open(&tiny_llama().key("nest", nest(4)).build()).is_ok());
    let refused = layout_error(&tiny_llama().key("nest", nest(5)).build());
    assert_eq!(refused, GgufError::TooDeep { key: "nest".to_owned(), max: 4 });
    // A hundred thousand levels in a file of over a megabyte: no stack is used up.
    let deep = [9_u32.to_le_bytes().to_vec(), 1_u64.to_le_bytes().to_vec()].concat().repeat(100_000);
    assert!(matches!(layout_error(&tiny_llama().key("nest", Value::Raw(9, deep)).build()), GgufError::TooDeep { .. }));
}

#[test]
fn keys_and_values_that_cannot_be_are_refused() {
    let kind = layout_error(&tiny_llama().key("odd", Value::Raw(13, vec![0; 8])).build());
    assert_eq!(kind, GgufError::ValueType { place: "key odd".to_owned(), got: 13 });
    let flag = layout_error(&tiny_llama().key("odd", Value::Raw(7, vec![2])).build());
    assert_eq!(flag, GgufError::Boolean { key: "odd".to_owned(), got: 2 });
    let mut twice = tiny_llama();
    twice.keys.push(("general.name".to_owned(), Value::text("again")));
    assert_eq!(layout_error(&twice.build()), GgufError::DuplicateKey { key: "general.name".to_owned() });
    let unnamed = layout_error(&tiny_llama().key("", Value::U8(0)).build());
    assert!(matches!(unnamed, GgufError::Name { place, .. } if place == "key number 18"));
    let long = layout_error(&tiny_llama().key(&"k".repeat(65_536), Value::U8(0)).build());
    assert!(matches!(long, GgufError::TooLarge { got: 65_536, .. }));
}

#[test]
fn alignments_that_are_no_powers_of_two_are_refused() {
    for value in [0, 1, 4, 12, 33, 1 << 21, u32::MAX] {
        let refused = layout_error(&tiny_llama().key("general.alignment", Value::U32(value)).build());
        assert_eq!(refused, GgufError::Alignment { got: value.to_string() });
    }
    for value in [Value::text("32"), Value::F32(32.0), Value::I32(-32)] {
        let refused = layout_error(&tiny_llama().key("general.alignment", value).build());
        assert!(matches!(refused, GgufError::Alignment { .. }));
    }
}

#[test]
fn tensors_that_cannot_be_are_refused_by_name() {
    let name = "blk.0.attn_q.weight";
    let changed = |change: &dyn Fn(&mut gguf::TensorEntry)| {
        let mut file = tiny_llama();
        change(file.tensor_mut(name));
        layout_error(&file.build())
    };
    for dims in [vec![], vec![4; 5], vec![4; 1000]] {
        let got = dims.len() as u32;
        let refused = changed(&|tensor| tensor.dims = dims.clone());
        assert_eq!(refused, GgufError::DimensionCount { tensor: name.to_owned(), got });
    }
    for dims in [vec![0], vec![4, 0], vec![u64::MAX, 2], vec![1 << 32, 1 << 32], vec![1 << 21; 3], vec![1 << 63]] {
        let refused = changed(&|tensor| tensor.dims = dims.clone());
        assert_eq!(refused, GgufError::Shape { tensor: name.to_owned(), dims });
    }
    // The count fits, its bytes do not.
    let bytes = changed(&|tensor| tensor.dims = vec![1 << 62]);
    assert!(matches!(bytes, GgufError::Shape { .. }));
    let large = changed(&|tensor| tensor.dims = vec![1 << 40]);
    assert!(matches!(large, GgufError::OutOfFile { tensor, .. } if tensor == name));
    for offset in [1, 4, 31, u64::MAX] {
        let refused = changed(&|tensor| tensor.offset = Some(offset));
        assert_eq!(refused, GgufError::Misaligned { tensor: name.to_owned(), offset, alignment: 32 });
    }
    for offset in [1 << 20, i64::MAX as u64 & !31, !31] {
        let refused = changed(&|tensor| tensor.offset = Some(offset));
        assert!(matches!(refused, GgufError::OutOfFile { tensor, offset: at, .. } if tensor == name && at == offset));
    }
    let partial = changed(&|tensor| tensor.kind = 8);
    assert_eq!(partial, GgufError::PartialRow { tensor: name.to_owned(), cols: 4, unit_values: 32 });
}

#[test]
fn tensors_that_overlap_or_repeat_are_refused_by_name() {
    let mut overlapping = tiny_llama();
    overlapping.tensor_mut("blk.0.attn_q.weight").offset = Some(32);
    let refused = layout_error(&overlapping.build());
    assert!(
        matches!(&refused, GgufError::Overlap { first, second }
            if first == "token_embd.weight" && second == "blk.0.attn_q.weight"),
        "{refused}"
    );
    let mut same_place = tiny_llama();
    same_place.tensor_mut("output_norm.weight").offset = Some(0);
    assert!(matches!(layout_error(&same_place.build()), GgufError::Overlap { .. }));
    let twice = tiny_llama().f32_tensor("output_norm.weight", &[4]);
    assert_eq!(layout_error(&twice.build()), GgufError::DuplicateTensor { tensor: "output_norm.weight".to_owned() });
}

#[test]
fn element_types_that_are_not_read_are_refused_by_tensor_and_name() {
    for (kind, name) in [(16, "IQ2_XXS"), (28, "F64"), (39, "MXFP4"), (4, "number 4"), (u32::MAX, "number 4294967295")]
    {
        let mut file = tiny_llama();
        file.tensor_mut("blk.0.ffn_up.weight").kind = kind;
        let expected =
            ConfigError::TensorType { tensor: "blk.0.ffn_up.weight".to_owned(), element_type: name.to_owned() };
        assert_eq!(config_error(&file), expected);
    }
}

#[test]
fn each_required_key_is_missed_by_name_and_refused_in_another_type() {
    for key in [
        "general.architecture",
        "llama.block_count",
        "llama.context_length",
        "llama.embedding_length",
        "llama.feed_forward_length",
        "llama.attention.head_count",
        "llama.attention.layer_norm_rms_epsilon",
        "tokenizer.ggml.tokens",
    ] {
        let missing = config_error(&tiny_llama().without_key(key));
        assert_eq!(missing, ConfigError::MissingKey { key: key.to_owned() });
        for value in [Value::Bool(true), Value::Array(vec![Value::U32(1)]), Value::Array(Vec::new()), Value::I8(-1)] {
            let refused = config_error(&tiny_llama().key(key, value));
            assert!(matches!(&refused, ConfigError::KeyType { key: named, .. } if named == key), "{key}: {refused}");
        }
    }
    for key in ["general.name", "tokenizer.chat_template", "tokenizer.ggml.model", "tokenizer.ggml.pre"] {
        let refused = config_error(&tiny_llama().key(key, Value::U32(1)));
        assert!(matches!(&refused, ConfigError::KeyType { key: named, .. } if named == key), "{refused}");
        let refused =
            config_error(&tiny_llama().key(key, Value::Raw(8, [&2_u64.to_le_bytes()[..], b"\xff\xfe"].concat())));
        assert!(matches!(&refused, ConfigError::KeyType { key: named, .. } if named == key), "{refused}");
    }
}

#[test]
fn absurd_numbers_are_refused_by_name() {
    for key in [
        "block_count",
        "context_length",
        "embedding_length",
        "feed_forward_length",
        "attention.head_count",
        "attention.head_count_kv",
        "rope.dimension_count",
    ] {
        let key = format!("llama.{key}");
        for value in [Value::U32(0), Value::U32(u32::MAX), Value::U64(u64::MAX), Value::I64(i64::MAX)] {
            let refused = config_error(&tiny_llama().key(&key, value));
            assert!(matches!(&refused, ConfigError::Range { key: named, .. } if *named == key), "{key}: {refused}");
        }
        // Large, but a possible size: something else does not fit, and it is said what.
        for value in [5, 1 << 20, 0x7fff_ffff] {
            let result = open(&tiny_llama().key(&key, Value::U32(value)).build());
            assert!(result.is_err() || key == "llama.context_length", "{key} {value}");
        }
    }
    for key in ["attention.layer_norm_rms_epsilon", "rope.freq_base", "rope.scaling.factor"] {
        let key = format!("llama.{key}");
        for value in [0.0, -1.0, f32::NAN, f32::INFINITY] {
            let refused = config_error(&tiny_llama().key(&key, Value::F32(value)));
            assert!(matches!(&refused, ConfigError::Range { key: named, .. } if *named == key), "{key}: {refused}");
        }
        assert!(matches!(config_error(&tiny_llama().key(&key, Value::F64(1e300))), ConfigError::Range { .. }));
    }
    let heads = config_error(&tiny_llama().key("llama.attention.head_count", Value::U32(3)));
    assert!(matches!(heads, ConfigError::NotDivisible { divisor: "attention.head_count", divisor_value: 3, .. }));
    let groups = config_error(&tiny_llama().key("llama.attention.head_count_kv", Value::U32(3)));
    assert!(matches!(groups, ConfigError::NotDivisible { divisor: "n_kv_heads", divisor_value: 3, .. }));
    let odd = config_error(&tiny_llama().key("llama.rope.dimension_count", Value::U32(1)));
    assert!(matches!(odd, ConfigError::Range { key, .. } if key == "rope.dims"));
}

#[test]
fn settings_that_are_not_computed_are_refused_by_name() {
    for (key, value) in [
        ("llama.expert_count", Value::U32(8)),
        ("llama.rope.scaling.type", Value::text("yarn")),
        ("llama.rope.scaling.type", Value::text("longrope")),
        ("llama.rope.scaling.attn_factor", Value::F32(1.5)),
        ("llama.logit_scale", Value::F32(0.5)),
        ("llama.rope.scaling.attn_factor", Value::text("1")),
        ("llama.attention.value_length", Value::U32(4)),
    ] {
        let file = tiny_llama().key("llama.attention.key_length", Value::U32(2)).key(key, value);
        let refused = config_error(&file);
        assert!(matches!(&refused, ConfigError::Unsupported { key: named, .. } if named == key), "{refused}");
    }
    let other = config_error(&tiny_llama().key("general.architecture", Value::text("mamba")));
    assert_eq!(other, ConfigError::Architecture { architecture: "mamba".to_owned() });
}

#[test]
fn tensors_that_do_not_fit_the_numbers_are_refused_by_name() {
    for name in ["token_embd.weight", "output_norm.weight", "blk.0.attn_k.weight", "blk.0.ffn_norm.weight"] {
        let missing = config_error(&tiny_llama().without_tensor(name));
        assert_eq!(missing, ConfigError::MissingTensor { tensor: name.to_owned() });
    }
    for name in ["blk.0.attn_q.bias", "blk.1.attn_q.weight", "blk.00.attn_q.weight", "blk.-1.x", "position_embd.weight"]
    {
        let unknown = config_error(&tiny_llama().f32_tensor(name, &[4, 4]));
        assert_eq!(unknown, ConfigError::UnknownTensor { tensor: name.to_owned() });
    }
    for (name, dims) in
        [("blk.0.ffn_up.weight", [6, 4]), ("output_norm.weight", [2, 2]), ("blk.0.attn_k.weight", [4, 3])]
    {
        let refused = config_error(&tiny_llama().without_tensor(name).f32_tensor(name, &dims));
        assert!(matches!(&refused, ConfigError::TensorShape { tensor, .. } if tensor == name), "{refused}");
    }
    for dims in [&[4][..], &[1], &[1, 1], &[2]] {
        let refused = config_error(&tiny_llama().f32_tensor("rope_freqs.weight", dims));
        // One factor per pair, so one value is right, but here it is below 0.
        assert!(matches!(refused, ConfigError::TensorShape { .. } | ConfigError::Range { .. }), "{refused}");
    }
}

#[test]
fn vocabularies_that_do_not_fit_are_refused_by_key() {
    let short = config_error(&tiny_llama().key("tokenizer.ggml.tokens", Value::texts(&["a"])));
    assert_eq!(short, ConfigError::VocabularySize { key: "tokenizer.ggml.tokens".to_owned(), got: 1, expected: 6 });
    let scores = config_error(&tiny_llama().key("tokenizer.ggml.scores", Value::Array(vec![Value::F32(0.0); 7])));
    assert_eq!(scores, ConfigError::VocabularySize { key: "tokenizer.ggml.scores".to_owned(), got: 7, expected: 6 });
    for key in ["bos_token_id", "eos_token_id", "eot_token_id", "eom_token_id", "padding_token_id"] {
        let key = format!("tokenizer.ggml.{key}");
        let refused = config_error(&tiny_llama().key(&key, Value::U32(6)));
        assert_eq!(refused, ConfigError::SpecialToken { key: key.clone(), id: 6, vocab: 6 });
        assert!(open(&tiny_llama().key(&key, Value::I32(-1)).build()).is_ok(), "-1 is none");
        assert!(open(&tiny_llama().key(&key, Value::U32(u32::MAX)).build()).is_ok(), "-1 is none");
    }
}

/// How long the random test runs.
const FUZZ_TIME: Duration = Duration::from_secs(3);

#[test]
fn random_changes_of_bytes_are_survived() {
    let mut random = random::Random::new("random_changes_of_bytes_are_survived");
    let file = tiny_llama().build();
    let start = Instant::now();
    let (mut opened, mut refused) = (0_u32, 0_u32);
    while start.elapsed() < FUZZ_TIME {
        let mut changed = file.clone();
        for _ in 0..random.between(1, 4) {
            let at = random.below(changed.len());
            match random.below(4) {
                0 => changed[at] ^= 1 << random.below(8),
                1 => changed[at] = random.next() as u8,
                2 => drop(changed.remove(at)),
                _ => changed.insert(at, random.next() as u8),
            }
        }
        match open(&changed) {
            Ok(_) => opened += 1,
            Err(_) => refused += 1,
        }
    }
    println!("{opened} opened, {refused} refused");
    assert!(opened > 0 && refused > 0, "changes of weights are no errors, most others are");
}
