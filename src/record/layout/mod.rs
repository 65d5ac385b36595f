#![forbid(unsafe_code)]
//! Where every field of every record lies, and what every constant is, as one table.
//!
//! The sizes and offsets are the compiler's own: each row is computed from the real struct, and the list of fields is
//! checked to be complete and free of hidden padding when the crate is compiled. Three readers hold against it: the layout
//! table under `tests/`, the C header as a C front end reads it, and a C translation unit of static assertions.
//!
//! [`text`] writes the table down, one row a line, fields separated by tabs (A-6):
//! ```text
//! sizeof  Record            bytes
//! field   Record  field     offset  bytes  C type
//! const   GROUP   NAME      value
//! const   MIN_PREFIX  Record  bytes
//! ```
//! [`abi_hash`] is the hash of exactly these bytes, so a host that was built against one header can tell whether the library
//! it loaded was built against the same.

mod constants;
mod records;
pub(crate) mod table;

use std::fmt::Write as _;

pub use constants::GROUPS;
pub use records::RECORDS;

use super::view::Record;

// A-4: pointers are 8 bytes, and counts of bytes fit `u64` both ways.
const _: () = assert!(usize::BITS == 64, "only 64-bit targets are in scope");
const _: () = assert!(cfg!(target_endian = "little"), "records and rings are little-endian");

/// One record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordLayout {
    /// Its name in the table; [`c_name`](Self::c_name) without prefix and in another spelling.
    pub name: &'static str,
    /// Its name in the C header.
    pub c_name: &'static str,
    /// Its size in bytes.
    pub bytes: usize,
    /// Smallest stride or `struct_size` accepted; none when it never rides in an array on its own.
    pub min_prefix_bytes: Option<usize>,
    /// Its fields in the order of their offsets.
    pub fields: &'static [FieldLayout],
}

/// One field of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FieldLayout {
    /// Its name, the same in Rust and in C.
    pub name: &'static str,
    /// Distance from the start of the record in bytes.
    pub offset: usize,
    /// Its size in bytes.
    pub bytes: usize,
    /// Its type as C spells it, without a name.
    pub c_type: &'static str,
}

/// Constants that belong together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConstantGroup {
    /// Name of the group. One group is listed twice: a later constant was appended to it.
    pub name: &'static str,
    /// Its constants.
    pub constants: &'static [Constant],
}

/// One constant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Constant {
    /// Its name in the C header.
    pub name: &'static str,
    /// Its value.
    pub value: i64,
}

/// Smallest strides of elements that are no records of ours: tags and pointers, payload bytes, hashes.
pub const PLAIN_MIN_PREFIXES: &[(&str, usize)] =
    &[("u64", <u64 as Record>::MIN_PREFIX), ("u8", <u8 as Record>::MIN_PREFIX), ("hash32", <[u8; 32]>::MIN_PREFIX)];

/// The whole table as text, in the format of the module's documentation.
pub fn text() -> String {
    let mut text = String::new();
    // Writing to a string cannot fail.
    let _ = write_table(&mut text);
    text
}

fn write_table(text: &mut String) -> std::fmt::Result {
    for record in RECORDS {
        writeln!(text, "sizeof\t{}\t\t{}", record.name, record.bytes)?;
        for field in record.fields {
            writeln!(
                text,
                "field\t{}\t{}\t{}\t{}\t{}",
                record.name, field.name, field.offset, field.bytes, field.c_type
            )?;
        }
    }
    for group in GROUPS {
        for constant in group.constants {
            writeln!(text, "const\t{}\t{}\t{}", group.name, constant.name, constant.value)?;
        }
    }
    let records = RECORDS.iter().filter_map(|record| record.min_prefix_bytes.map(|bytes| (record.name, bytes)));
    for (name, bytes) in records.chain(PLAIN_MIN_PREFIXES.iter().copied()) {
        writeln!(text, "const\tMIN_PREFIX\t{name}\t{bytes}")?;
    }
    Ok(())
}

/// XXH3-64 (seed 0) of [`text`]: equal in two builds exactly when all records and constants are.
pub fn abi_hash() -> u64 {
    xxhash_rust::xxh3::xxh3_64(text().as_bytes())
}
