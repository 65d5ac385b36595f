//! Safetensors files that lie: each ends in a typed error that names the tensor, where there is one.
#![allow(dead_code, reason = "this file uses a part of the shared helpers")]

#[path = "common/allocations.rs"]
mod allocations;
#[path = "common/hf.rs"]
mod hf;

use hf::{SINGLE, TENSORS, directory, file, layout_error, open, put, with_header};
use ictus::checkpoint::{CheckpointError, ConfigError, HfError, SafetensorsError};
use serde_json::{Value, json};

fn tensor_error(change: impl FnOnce(&mut Value)) -> SafetensorsError {
    let folder = directory();
    put(&folder, SINGLE, file(TENSORS, change));
    match layout_error(&folder, SINGLE) {
        HfError::Safetensors(error) => error,
        other => panic!("{other}"),
    }
}

#[test]
fn a_tensor_file_cut_anywhere_is_refused() {
    let folder = directory();
    let whole = file(TENSORS, |_| {});
    for len in 0..whole.len() {
        put(&folder, SINGLE, &whole[..len]);
        match open(&folder) {
            Err(CheckpointError::Hf { path, source: HfError::Safetensors(error) }) => {
                assert!(path.ends_with(SINGLE), "{len}");
                let places = matches!(
                    error,
                    SafetensorsError::Truncated { .. }
                        | SafetensorsError::Offsets { .. }
                        | SafetensorsError::Header { .. }
                );
                assert!(places, "{len}: {error}");
            }
            other => panic!("{len}: {other:?}"),
        }
    }
}

#[test]
fn header_lengths_of_any_size_are_survived() {
    let folder = directory();
    let whole = file(TENSORS, |_| {});
    for length in [0, 1, 7, 100_000_000, 100_000_001, u64::from(u32::MAX), i64::MAX as u64, u64::MAX - 7, u64::MAX] {
        let mut changed = whole.clone();
        changed[..8].copy_from_slice(&length.to_le_bytes());
        put(&folder, SINGLE, changed);
        assert!(matches!(layout_error(&folder, SINGLE), HfError::Safetensors(_)), "{length}");
    }
}

#[test]
fn offsets_that_lie_are_refused_by_name() {
    let name = "model.norm.weight";
    let refused_for = |offsets: Value| {
        let error = tensor_error(|header| header[name]["data_offsets"] = offsets.clone());
        match error {
            // The tensor itself, or the neighbour that it displaces.
            SafetensorsError::Offsets { .. } | SafetensorsError::Shape { .. } | SafetensorsError::Header { .. } => {}
            other => panic!("{offsets}: {other}"),
        }
    };
    for offsets in [
        json!([0, 8]),
        json!([48, 49]),
        json!([56, 48]),
        json!([48, 40]),
        json!([48, 1_000_000]),
        json!([u64::MAX - 8, u64::MAX]),
        json!([48, u64::MAX]),
        json!([-1, 8]),
        json!([48.0, 56.0]),
        json!([48]),
        json!([48, 56, 64]),
        json!("48"),
        json!(null),
    ] {
        refused_for(offsets);
    }
}

#[test]
fn offsets_whose_sum_overflows_are_refused() {
    // Eight tensors of 2^61 - 1 elements of one byte fill 2^64 - 8 bytes without a gap.
    let step = (1_u64 << 61) - 1;
    let mut header = json!({});
    for i in 0..8 {
        header[format!("t{i}")] = json!({"dtype": "U8", "shape": [step], "data_offsets": [i * step, (i + 1) * step]});
    }
    let folder = directory();
    put(&folder, SINGLE, with_header(&header.to_string(), 0));
    let error = layout_error(&folder, SINGLE);
    assert!(
        matches!(&error, HfError::Safetensors(SafetensorsError::Offsets { tensor, .. }) if tensor == "t0"),
        "{error}"
    );
}

#[test]
fn shapes_that_lie_are_refused_by_name() {
    let name = "model.norm.weight";
    for shape in [json!([5]), json!([]), json!([0]), json!([u64::MAX, 2]), json!([1_u64 << 32, 1_u64 << 32, 4])] {
        let error = tensor_error(|header| header[name]["shape"] = shape.clone());
        assert!(matches!(&error, SafetensorsError::Shape { tensor, .. } if tensor == name), "{shape}: {error}");
    }
    for shape in [json!([-4]), json!([4.0]), json!("4"), json!({}), json!(null)] {
        let error = tensor_error(|header| header[name]["shape"] = shape.clone());
        assert!(matches!(error, SafetensorsError::Header { .. }), "{shape}");
    }
}

#[test]
fn bytes_that_no_tensor_has_are_refused() {
    let folder = directory();
    let mut long = file(TENSORS, |_| {});
    long.extend([0; 2]);
    put(&folder, SINGLE, long);
    let error = layout_error(&folder, SINGLE);
    assert!(matches!(error, HfError::Safetensors(SafetensorsError::Trailing { .. })), "{error}");
    let gap = tensor_error(|header| drop(header.as_object_mut().unwrap().remove("model.norm.weight")));
    assert!(matches!(gap, SafetensorsError::Offsets { .. }));
}

#[test]
fn a_name_that_occurs_twice_is_refused() {
    let entry = r#""x":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}"#;
    let folder = directory();
    put(&folder, SINGLE, with_header(&format!("{{{entry},{entry}}}"), 4));
    let error = layout_error(&folder, SINGLE);
    assert!(matches!(&error, HfError::Safetensors(SafetensorsError::Duplicate { tensor }) if tensor == "x"), "{error}");
}

#[test]
fn headers_that_are_no_headers_are_refused() {
    let folder = directory();
    let deep = "[".repeat(1_000_000);
    let nested = format!(r#"{{"__metadata__":{}"#, "{\"a\":".repeat(200_000));
    for header in ["", "[]", "null", "{}x", "{\"x\":{}}", "{\"x\":1}", "\u{1}", &*deep, &*nested] {
        put(&folder, SINGLE, with_header(header, 0));
        let error = layout_error(&folder, SINGLE);
        assert!(matches!(error, HfError::Safetensors(SafetensorsError::Header { .. })), "{error}");
    }
    let mut latin = with_header("{\"xx\":{}}", 0);
    latin[10] = 0xff;
    put(&folder, SINGLE, latin);
    assert!(matches!(layout_error(&folder, SINGLE), HfError::Safetensors(SafetensorsError::Header { .. })));
}

#[test]
fn element_types_that_are_not_read_are_refused_by_tensor_and_name() {
    for kind in ["F64", "I8", "F8_E4M3", "BOOL", "surprise"] {
        let folder = directory();
        put(&folder, SINGLE, file(TENSORS, |header| header["model.norm.weight"]["dtype"] = json!(kind)));
        match open(&folder) {
            Err(CheckpointError::Config { source: ConfigError::TensorType { tensor, element_type }, .. }) => {
                assert_eq!((&*tensor, &*element_type), ("model.norm.weight", kind));
            }
            other => panic!("{other:?}"),
        }
    }
}
