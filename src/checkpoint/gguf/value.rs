#![forbid(unsafe_code)]
//! Metadata values: their types, and how they are decoded from bytes that have been checked.
//!
//! ```text
//! string   len u64 | len bytes
//! array    element type u32 | count u64 | count values
//! ```

use super::cursor::{Cursor, Short};
use crate::tensor::Bytes;

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
    pub(super) fn from_id(id: u32) -> Option<Self> {
        use ValueType::*;
        [U8, I8, U16, I16, U32, I32, F32, Bool, String, Array, U64, I64, F64].get(id as usize).copied()
    }

    /// Bytes of a value, or of its length prefix where it has no fixed size.
    pub(super) fn least_bytes(self) -> u64 {
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
    pub(super) fn describe(&self) -> String {
        match self {
            Self::Unsigned(value) => format!("{value}"),
            Self::Signed(value) => format!("{value}"),
            Self::Float(value) => format!("the float {value:?}"),
            Self::Bool(value) => format!("{value}"),
            Self::String(_) => "a string".to_owned(),
            Self::Array(array) => format!("an array of {:?}", array.kind),
        }
    }

    pub(super) fn as_integer(&self) -> Option<u64> {
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
    /// The elements of an array of 4-byte values.
    pub(super) fn words(&self) -> impl Iterator<Item = [u8; 4]> + use<'a> {
        self.bytes.chunks_exact(4).map(|chunk| [chunk[0], chunk[1], chunk[2], chunk[3]])
    }

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
    /// Indexes `count` strings that fill `bytes`; none when they do not, or when they fill over 4 GiB.
    pub(super) fn index(bytes: Bytes, count: usize) -> Option<Self> {
        let mut starts = Vec::with_capacity(count.min(bytes.len() / 8) + 1);
        let mut cursor = Cursor::new(bytes.as_slice());
        for _ in 0..count {
            starts.push(u32::try_from(cursor.at()).ok()?);
            cursor.string().ok()?;
        }
        starts.push(u32::try_from(cursor.at()).ok()?);
        Some(Self { bytes, starts })
    }

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

/// Reads a value that was checked when the file was parsed.
pub(super) fn decode<'a>(cursor: &mut Cursor<'a>, kind: ValueType) -> Result<Value<'a>, Short> {
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
