#![forbid(unsafe_code)]
//! The key-value part of a GGUF file.
//!
//! Each pair is a key (string), a type (u32) and a value. Parsing checks that everything lies inside the file and remembers
//! where each value is; values are decoded when asked for, so that a vocabulary of 262 144 strings costs one walk over its lengths.
//!
//! ```text
//! string   len u64 | len bytes
//! array    element type u32 | count u64 | count values
//! ```
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
use crate::tensor::Bytes;

/// Most keys of a file.
pub const MAX_KEYS: u64 = 1 << 16;
/// Longest key or tensor name in bytes.
pub const MAX_NAME_BYTES: u64 = 65_535;
/// Most levels of arrays in arrays.
pub const MAX_DEPTH: u32 = 4;

/// Type of a metadata value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ValueType {
    /// Unsigned, 8 bits.
    U8,
    /// Signed, 8 bits.
    I8,
    /// Unsigned, 16 bits.
    U16,
    /// Signed, 16 bits.
    I16,
    /// Unsigned, 32 bits.
    U32,
    /// Signed, 32 bits.
    I32,
    /// IEEE binary32.
    F32,
    /// One byte, 0 or 1.
    Bool,
    /// Bytes, meant as UTF-8.
    String,
    /// Values of one type.
    Array,
    /// Unsigned, 64 bits.
    U64,
    /// Signed, 64 bits.
    I64,
    /// IEEE binary64.
    F64,
}

impl ValueType {
    fn from_id(id: u32) -> Option<Self> {
        use ValueType::*;
        [U8, I8, U16, I16, U32, I32, F32, Bool, String, Array, U64, I64, F64].get(id as usize).copied()
    }

    /// Bytes of a value, or of its length prefix where it has no fixed size.
    fn least_bytes(self) -> u64 {
        match self {
            Self::U8 | Self::I8 | Self::Bool => 1,
            Self::U16 | Self::I16 => 2,
            Self::U32 | Self::I32 | Self::F32 => 4,
            Self::U64 | Self::I64 | Self::F64 | Self::String => 8,
            Self::Array => 12,
        }
    }
}

/// A decoded value.
#[derive(Clone, Debug, PartialEq)]
pub enum Value<'a> {
    /// Any unsigned type.
    Unsigned(u64),
    /// Any signed type.
    Signed(i64),
    /// Either float type.
    Float(f64),
    /// A boolean.
    Bool(bool),
    /// The bytes of a string.
    String(&'a [u8]),
    /// An array.
    Array(Array<'a>),
}

impl Value<'_> {
    /// What it is, for messages.
    fn describe(&self) -> String {
        match self {
            Self::Unsigned(value) => format!("{value}"),
            Self::Signed(value) => format!("{value}"),
            Self::Float(value) => format!("the float {value:?}"),
            Self::Bool(value) => format!("{value}"),
            Self::String(_) => "a string".to_owned(),
            Self::Array(array) => format!("an array of {:?}", array.kind),
        }
    }

    fn as_integer(&self) -> Option<u64> {
        match *self {
            Self::Unsigned(value) => Some(value),
            Self::Signed(value) => u64::try_from(value).ok(),
            _ => None,
        }
    }
}

/// An array as it lies in the file.
#[derive(Clone, Debug, PartialEq)]
pub struct Array<'a> {
    /// Type of the elements.
    pub kind: ValueType,
    /// Number of elements.
    pub count: usize,
    /// The elements, one after another.
    bytes: &'a [u8],
}

impl<'a> Array<'a> {
    /// The elements in order.
    pub fn iter(&self) -> impl Iterator<Item = Value<'a>> + use<'a> {
        let (kind, mut cursor) = (self.kind, Cursor::new(self.bytes));
        // Parsing has walked these bytes: a read cannot fail, and if it did the sequence would end there.
        (0..self.count).map_while(move |_| decode(&mut cursor, kind).ok())
    }
}

/// Strings of the file, indexed.
#[derive(Clone, Debug)]
pub struct StringArray {
    bytes: Bytes,
    /// Start of each string's length prefix, then the end of all.
    starts: Vec<u32>,
}

impl StringArray {
    /// Number of strings.
    pub fn len(&self) -> usize {
        self.starts.len() - 1
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// String `index` as the file has it; meant as UTF-8, not checked.
    pub fn get(&self, index: usize) -> Option<&[u8]> {
        let end = *self.starts.get(index.checked_add(1)?)? as usize;
        let start = *self.starts.get(index)? as usize;
        self.bytes.as_slice().get(start + 8..end)
    }

    /// All strings in order.
    pub fn iter(&self) -> impl Iterator<Item = &[u8]> {
        let bytes = self.bytes.as_slice();
        self.starts.windows(2).map(move |ends| &bytes[ends[0] as usize + 8..ends[1] as usize])
    }
}

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
            Value::Array(array) if array.kind == ValueType::F32 => Some(words(array).map(f32::from_le_bytes).collect()),
            _ => None,
        })
    }

    /// An array of 32-bit integers, signed or not; the file format uses both for small numbers.
    pub fn integers(&self, key: &str) -> Result<Option<Vec<i32>>, ConfigError> {
        self.typed(key, "an array of 32-bit integers", |value| match value {
            Value::Array(array) if matches!(array.kind, ValueType::I32 | ValueType::U32) => {
                Some(words(array).map(i32::from_le_bytes).collect())
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
            got: format!("{} bytes", array.bytes.len()),
            expected: "less than 4 GiB",
        };
        // The elements follow the array's type and count.
        let bytes = self.bytes.slice(entry.range.start + 12..entry.range.end).ok_or_else(too_large)?;
        let mut cursor = Cursor::new(array.bytes);
        let mut starts = Vec::with_capacity(array.count + 1);
        for _ in 0..array.count {
            starts.push(u32::try_from(cursor.at()).map_err(|_| too_large())?);
            cursor.string().map_err(|_| too_large())?;
        }
        starts.push(u32::try_from(cursor.at()).map_err(|_| too_large())?);
        Ok(Some(StringArray { bytes, starts }))
    }
}

/// The elements of an array of 4-byte values.
fn words<'a>(array: &Array<'a>) -> impl Iterator<Item = [u8; 4]> + use<'a> {
    array.bytes.chunks_exact(4).map(|chunk| [chunk[0], chunk[1], chunk[2], chunk[3]])
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

/// Reads a value that was checked when the file was parsed.
fn decode<'a>(cursor: &mut Cursor<'a>, kind: ValueType) -> Result<Value<'a>, Short> {
    Ok(match kind {
        ValueType::U8 => Value::Unsigned(cursor.u8()?.into()),
        ValueType::U16 => Value::Unsigned(cursor.u16()?.into()),
        ValueType::U32 => Value::Unsigned(cursor.u32()?.into()),
        ValueType::U64 => Value::Unsigned(cursor.u64()?),
        ValueType::I8 => Value::Signed(cursor.u8()?.cast_signed().into()),
        ValueType::I16 => Value::Signed(cursor.u16()?.cast_signed().into()),
        ValueType::I32 => Value::Signed(cursor.u32()?.cast_signed().into()),
        ValueType::I64 => Value::Signed(cursor.u64()?.cast_signed()),
        ValueType::F32 => Value::Float(f32::from_bits(cursor.u32()?).into()),
        ValueType::F64 => Value::Float(f64::from_bits(cursor.u64()?)),
        ValueType::Bool => Value::Bool(cursor.u8()? != 0),
        ValueType::String => {
            let len = cursor.u64()?;
            Value::String(cursor.take(len)?)
        }
        ValueType::Array => decode_array(cursor)?,
    })
}

fn decode_array<'a>(cursor: &mut Cursor<'a>) -> Result<Value<'a>, Short> {
    let id = cursor.u32()?;
    let count = cursor.u64()?;
    let at_end = Short { offset: cursor.at() as u64, needed: count, available: cursor.remaining() };
    let (Some(kind), Ok(count)) = (ValueType::from_id(id), usize::try_from(count)) else { return Err(at_end) };
    let mut walk = cursor.clone();
    let bytes = match kind {
        ValueType::String => {
            for _ in 0..count {
                walk.string()?;
            }
            cursor.take((walk.at() - cursor.at()) as u64)?
        }
        ValueType::Array => {
            for _ in 0..count {
                decode(&mut walk, kind)?;
            }
            cursor.take((walk.at() - cursor.at()) as u64)?
        }
        _ => cursor.take((count as u64).saturating_mul(kind.least_bytes()))?,
    };
    Ok(Value::Array(Array { kind, count, bytes }))
}
