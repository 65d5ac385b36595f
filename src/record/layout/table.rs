#![forbid(unsafe_code)]
//! From a list of field names to rows, and to three proofs.
//!
//! When the crate is compiled, the macro checks of each record that its list names every field, in the order of their offsets, and
//! that each field begins where the one before it ends. So no record has hidden padding.

use super::RecordLayout;

/// Size of the field that a projection leads to.
pub(crate) const fn field_bytes<R, F>(_: fn(&R) -> &F) -> usize {
    size_of::<F>()
}

/// Whether the fields of each record lie end to end and fill it.
pub(crate) const fn all_fill(records: &[RecordLayout]) -> bool {
    let mut index = 0;
    while index < records.len() {
        if !fills(&records[index]) {
            return false;
        }
        index += 1;
    }
    true
}

const fn fills(record: &RecordLayout) -> bool {
    let mut end = 0;
    let mut index = 0;
    while index < record.fields.len() {
        if record.fields[index].offset != end {
            return false;
        }
        end += record.fields[index].bytes;
        index += 1;
    }
    end == record.bytes
}

macro_rules! min_prefix {
    (record $record:ident) => {
        Some(<$record as $crate::record::view::Record>::MIN_PREFIX)
    };
    (value $record:ident) => {
        None
    };
}

/// Defines a table of records: `record` or `value` (never alone in an array), the Rust name, the table's, the header's, the fields.
macro_rules! records {
    (
        $(#[$doc:meta])* $table:ident
        $($kind:ident $record:ident $name:literal $c_name:literal { $($field:ident: $c_type:literal,)* })*
    ) => {
        $(#[$doc])*
        pub const $table: &[$crate::record::layout::RecordLayout] = &[$(
            $crate::record::layout::RecordLayout {
                name: $name,
                c_name: $c_name,
                bytes: size_of::<$record>(),
                min_prefix_bytes: $crate::record::layout::table::min_prefix!($kind $record),
                fields: &[$(
                    $crate::record::layout::FieldLayout {
                        name: stringify!($field),
                        offset: core::mem::offset_of!($record, $field),
                        bytes: $crate::record::layout::table::field_bytes(|record: &$record| &record.$field),
                        c_type: $c_type,
                    },
                )*],
            },
        )*];

        $(
            // A pattern without `..` must name every field.
            const _: fn($record) = |$record { $($field: _,)* }| ();
        )*

        const _: () = assert!(
            $crate::record::layout::table::all_fill($table),
            "the fields of a record do not lie end to end",
        );
    };
}

pub(crate) use {min_prefix, records};
