#![forbid(unsafe_code)]
//! Safetensors files.
//!
//! ```text
//! header length u64 | header: JSON {name: {dtype, shape, data_offsets: [begin, end]}} | data section
//! ```
//!
//! The header is read here and not through the format's own crate: this reader tells a name that occurs twice, names the
//! tensor in every error, and its sums are checked (offsets near 2^64 overflow in that crate, which panics where overflow is
//! checked).
//!
//! # Invariants
//! Names are unique; each tensor has exactly the bytes of its shape; tensors fill the data section without gap or overlap.
//!
//! # Limits
//! Headers of at most 100 MB, as the format has it. Of a tensor whose type is not read only the place is checked; asking for it
//! is an error that names both.
//!
//! # Source
//! The format's description in the safetensors project.

use std::collections::HashSet;
use std::fmt;

use serde::de::{Deserialize, Deserializer, IgnoredAny, MapAccess, Visitor};

use super::super::error::SafetensorsError;
use crate::tensor::{Bytes, DType, Tensor};

const MAX_HEADER_BYTES: u64 = 100_000_000;

/// A tensor of a file.
pub(super) struct Found {
    pub(super) name: String,
    /// The tensor, or the name of an element type that is not read.
    pub(super) tensor: Result<Tensor, String>,
}

/// A tensor as the header describes it.
#[derive(serde::Deserialize)]
struct Described {
    dtype: String,
    shape: Vec<u64>,
    data_offsets: [u64; 2],
}

/// The tensors of a file, in the order of their data.
pub(super) fn parse(bytes: &Bytes) -> Result<Vec<Found>, SafetensorsError> {
    let all = bytes.as_slice();
    let truncated = |needed| SafetensorsError::Truncated { needed, available: all.len() as u64 };
    let (length, rest) = all.split_first_chunk::<8>().ok_or_else(|| truncated(8))?;
    let header_bytes = u64::from_le_bytes(*length);
    if header_bytes > MAX_HEADER_BYTES {
        return Err(SafetensorsError::HeaderTooLarge { got: header_bytes, max: MAX_HEADER_BYTES });
    }
    let header = rest.get(..header_bytes as usize).ok_or_else(|| truncated(8 + header_bytes))?;
    let Header(mut described) = serde_json::from_slice(header).map_err(|source| SafetensorsError::Header { source })?;
    check_names(&described)?;
    described.sort_by_key(|(_, info)| info.data_offsets);
    let data_start = 8 + header_bytes as usize;
    let available = (all.len() - data_start) as u64;
    let mut position = 0;
    let mut tensors = Vec::with_capacity(described.len());
    for (name, info) in described {
        let [begin, end] = info.data_offsets;
        if begin != position || end < begin || end > available {
            let expected = position;
            return Err(SafetensorsError::Offsets { tensor: name, begin, end, expected, available });
        }
        position = end;
        let span = data_start + begin as usize..data_start + end as usize;
        let tensor = place(&name, &info, bytes.slice(span))?;
        tensors.push(Found { name, tensor });
    }
    if position != available {
        return Err(SafetensorsError::Trailing { used: position, available });
    }
    Ok(tensors)
}

fn check_names(described: &[(String, Described)]) -> Result<(), SafetensorsError> {
    let mut names = HashSet::new();
    match described.iter().find(|(name, _)| !names.insert(name.as_str())) {
        Some((tensor, _)) => Err(SafetensorsError::Duplicate { tensor: tensor.clone() }),
        None => Ok(()),
    }
}

/// A tensor over its bytes.
fn place(name: &str, info: &Described, data: Option<Bytes>) -> Result<Result<Tensor, String>, SafetensorsError> {
    let shape = || SafetensorsError::Shape { tensor: name.to_owned(), shape: info.shape.clone() };
    let dtype = match &*info.dtype {
        "F32" => DType::F32,
        "F16" => DType::F16,
        "BF16" => DType::BF16,
        other => return Ok(Err(other.to_owned())),
    };
    // Vision towers have tensors of four dimensions: they fold into rows, and are refused or ignored by name.
    let cols = info.shape.last().copied().unwrap_or(1);
    let outer = info.shape.split_last().map_or(&[][..], |(_, outer)| outer);
    let rows = outer.iter().try_fold(1_u64, |rows, &dim| rows.checked_mul(dim)).ok_or_else(shape)?;
    let expected = rows.checked_mul(cols).and_then(|count| count.checked_mul(dtype.unit_bytes() as u64));
    let got = info.data_offsets[1] - info.data_offsets[0];
    if expected != Some(got) {
        return Err(shape());
    }
    let sizes = (usize::try_from(rows), usize::try_from(cols));
    let (Ok(rows), Ok(cols), Some(data)) = (sizes.0, sizes.1, data) else { return Err(shape()) };
    Ok(Ok(Tensor { dtype, rows, cols, data }))
}

/// All members of the header but `__metadata__`, twice where they occur twice.
struct Header(Vec<(String, Described)>);

impl<'de> Deserialize<'de> for Header {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Members;
        impl<'de> Visitor<'de> for Members {
            type Value = Header;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of tensors")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Header, A::Error> {
                let mut members = Vec::new();
                while let Some(name) = map.next_key::<String>()? {
                    if name == "__metadata__" {
                        map.next_value::<IgnoredAny>()?;
                    } else {
                        members.push((name, map.next_value()?));
                    }
                }
                Ok(Header(members))
            }
        }
        deserializer.deserialize_map(Members)
    }
}
