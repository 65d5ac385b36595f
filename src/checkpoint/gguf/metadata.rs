#![forbid(unsafe_code)]
//! The key-value part of a GGUF file.
//!
//! Each pair is a key (string), a type (u32) and a value. Parsing checks that everything lies inside the file and remembers
//! where each value is; values are decoded when asked for, so that a vocabulary of 262 144 strings costs one walk over its lengths.
//!
//! # Limits
//! 65 536 keys of at most 65 535 bytes; arrays nest at most [`MAX_DEPTH`] deep.
//!
//! # Source
//! The GGUF format description of the ggml project.

use std::collections::HashMap;
use std::ops::Range;

use super::super::error::{ConfigError, GgufError};
use super::cursor::{Cursor, Short};
use super::value::{StringArray, Value, ValueType, decode};
use crate::tensor::Bytes;

/// Most keys of a file.
pub const MAX_KEYS: u64 = 1 << 16;
/// Longest key or tensor name in bytes.
pub const MAX_NAME_BYTES: u64 = 65_535;
/// Most levels of arrays in arrays.
pub const MAX_DEPTH: u32 = 4;

/// Where a value lies.
#[derive(Clone, Debug)]
struct Entry {
    kind: ValueType,
    range: Range<usize>,
}

/// The keys of a file.
#[derive(Clone, Debug)]
pub struct Metadata {
    bytes: Bytes,
    entries: HashMap<Box<str>, Entry>,
}

impl Metadata {
    /// Reads `count` pairs; `cursor` runs over `bytes`.
    pub(super) fn parse(bytes: &Bytes, cursor: &mut Cursor<'_>, count: u64) -> Result<Self, GgufError> {
        if count > MAX_KEYS {
            return Err(GgufError::TooLarge { place: "the number of keys".to_owned(), got: count, max: MAX_KEYS });
        }
        cursor.expect_units(count, 8 + 4 + 1).map_err(|short| truncated("the keys", short))?;
        let mut entries = HashMap::new();
        for index in 0..count {
            let key = read_name(bytes, cursor, || format!("key number {index}"))?;
            let kind = read_type(cursor, key)?;
            let start = cursor.at();
            skip_value(cursor, kind, key, MAX_DEPTH)?;
            let entry = Entry { kind, range: start..cursor.at() };
            if entries.insert(Box::from(key), entry).is_some() {
                return Err(GgufError::DuplicateKey { key: key.to_owned() });
            }
        }
        Ok(Self { bytes: bytes.clone(), entries })
    }

    /// Number of keys.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// All keys, in no order.
    pub fn keys(&self) -> impl Iterator<Item = &str> {
        self.entries.keys().map(|key| &**key)
    }

    /// The value of a key and its type.
    pub fn get(&self, key: &str) -> Option<(ValueType, Value<'_>)> {
        let entry = self.entries.get(key)?;
        let value = decode(&mut Cursor::new(self.bytes.as_slice().get(entry.range.clone())?), entry.kind).ok()?;
        Some((entry.kind, value))
    }

    fn typed<'a, T>(
        &'a self,
        key: &str,
        expected: &'static str,
        read: impl FnOnce(&Value<'a>) -> Option<T>,
    ) -> Result<Option<T>, ConfigError> {
        let Some((_, value)) = self.get(key) else { return Ok(None) };
        match read(&value) {
            Some(read) => Ok(Some(read)),
            None => Err(ConfigError::KeyType { key: key.to_owned(), expected, got: value.describe() }),
        }
    }

    /// An integer that is not negative, of any width; none when the key is not there.
    ///
    /// # Errors
    /// `KeyType` when the value is something else; likewise below.
    pub fn integer(&self, key: &str) -> Result<Option<u64>, ConfigError> {
        self.typed(key, "an integer of 0 or more", Value::as_integer)
    }

    /// A float of either width.
    pub fn float(&self, key: &str) -> Result<Option<f64>, ConfigError> {
        self.typed(key, "a float", |value| if let Value::Float(float) = *value { Some(float) } else { None })
    }

    /// A boolean.
    pub fn flag(&self, key: &str) -> Result<Option<bool>, ConfigError> {
        self.typed(key, "a boolean", |value| if let Value::Bool(flag) = *value { Some(flag) } else { None })
    }

    /// A string in UTF-8.
    pub fn text(&self, key: &str) -> Result<Option<&str>, ConfigError> {
        self.typed(key, "a string in UTF-8", |value| match *value {
            Value::String(bytes) => core::str::from_utf8(bytes).ok(),
            _ => None,
        })
    }

    /// An array of booleans.
    pub fn flags(&self, key: &str) -> Result<Option<Vec<bool>>, ConfigError> {
        self.typed(key, "an array of booleans", |value| match value {
            Value::Array(array) if array.kind == ValueType::Bool => {
                Some(array.iter().map(|value| value == Value::Bool(true)).collect())
            }
            _ => None,
        })
    }

    /// An array of 32-bit floats.
    pub fn floats(&self, key: &str) -> Result<Option<Vec<f32>>, ConfigError> {
        self.typed(key, "an array of 32-bit floats", |value| match value {
            Value::Array(array) if array.kind == ValueType::F32 => {
                Some(array.words().map(f32::from_le_bytes).collect())
            }
            _ => None,
        })
    }

    /// An array of 32-bit integers, signed or not; the file format uses both for small numbers.
    pub fn integers(&self, key: &str) -> Result<Option<Vec<i32>>, ConfigError> {
        self.typed(key, "an array of 32-bit integers", |value| match value {
            Value::Array(array) if matches!(array.kind, ValueType::I32 | ValueType::U32) => {
                Some(array.words().map(i32::from_le_bytes).collect())
            }
            _ => None,
        })
    }

    /// An array of strings.
    pub fn strings(&self, key: &str) -> Result<Option<StringArray>, ConfigError> {
        let array = self.typed(key, "an array of strings", |value| match value {
            Value::Array(array) if array.kind == ValueType::String => Some(array.clone()),
            _ => None,
        })?;
        let (Some(array), Some(entry)) = (array, self.entries.get(key)) else { return Ok(None) };
        let too_large = || ConfigError::Range {
            key: key.to_owned(),
            got: format!("{} bytes", entry.range.len()),
            expected: "less than 4 GiB",
        };
        // The elements follow the array's type and count.
        let bytes = self.bytes.slice(entry.range.start + 12..entry.range.end).ok_or_else(too_large)?;
        StringArray::index(bytes, array.count).map(Some).ok_or_else(too_large)
    }
}

/// The error for a read past the end.
pub(super) fn truncated(place: impl Into<String>, short: Short) -> GgufError {
    GgufError::Truncated { place: place.into(), offset: short.offset, needed: short.needed, available: short.available }
}

/// Reads a key or tensor name: not empty, not long, UTF-8.
pub(super) fn read_name<'a>(
    bytes: &'a Bytes,
    cursor: &mut Cursor<'_>,
    place: impl Fn() -> String,
) -> Result<&'a str, GgufError> {
    let offset = cursor.at() as u64;
    let len = cursor.u64().map_err(|short| truncated(place(), short))?;
    if len > MAX_NAME_BYTES {
        return Err(GgufError::TooLarge { place: format!("the name of {}", place()), got: len, max: MAX_NAME_BYTES });
    }
    let range = cursor.skip(len).map_err(|short| truncated(place(), short))?;
    match core::str::from_utf8(&bytes.as_slice()[range]) {
        Ok(name) if !name.is_empty() => Ok(name),
        _ => Err(GgufError::Name { place: place(), offset }),
    }
}

fn read_type(cursor: &mut Cursor<'_>, key: &str) -> Result<ValueType, GgufError> {
    let id = cursor.u32().map_err(|short| truncated(format!("the type of key {key}"), short))?;
    ValueType::from_id(id).ok_or_else(|| GgufError::ValueType { place: format!("key {key}"), got: id })
}

/// Steps over a value and checks all of it.
fn skip_value(cursor: &mut Cursor<'_>, kind: ValueType, key: &str, depth: u32) -> Result<(), GgufError> {
    let short = |short| truncated(format!("the value of key {key}"), short);
    match kind {
        ValueType::String => cursor.string().map(drop).map_err(short),
        ValueType::Array => {
            let Some(depth) = depth.checked_sub(1) else {
                return Err(GgufError::TooDeep { key: key.to_owned(), max: MAX_DEPTH });
            };
            let kind = read_type(cursor, key)?;
            let count = cursor.u64().map_err(short)?;
            cursor.expect_units(count, kind.least_bytes()).map_err(short)?;
            match kind {
                ValueType::String | ValueType::Array | ValueType::Bool => {
                    (0..count).try_for_each(|_| skip_value(cursor, kind, key, depth))
                }
                _ => cursor.skip(count * kind.least_bytes()).map(drop).map_err(short),
            }
        }
        ValueType::Bool => match cursor.u8().map_err(short)? {
            0 | 1 => Ok(()),
            got => Err(GgufError::Boolean { key: key.to_owned(), got }),
        },
        _ => cursor.skip(kind.least_bytes()).map(drop).map_err(short),
    }
}
