#![forbid(unsafe_code)]
//! Values of a trace event as JSON text.

use core::fmt::Write as _;

/// The value of an argument.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Value<'a> {
    /// A count or a size.
    Number(u64),
    /// A name, such as a tag: written as text, as it may exceed what a reader keeps of a number.
    Id(u64),
    /// Text.
    Text(&'a str),
}

/// Appends a value.
pub(super) fn value(line: &mut String, value: &Value<'_>) {
    // Writing into a string does not fail.
    let _ = match value {
        Value::Number(number) => write!(line, "{number}"),
        Value::Id(id) => write!(line, "\"{id}\""),
        Value::Text(text) => {
            line.push('"');
            for c in text.chars() {
                match c {
                    '"' | '\\' => line.extend(['\\', c]),
                    c if c.is_control() => {
                        let _ = write!(line, "\\u{:04x}", u32::from(c));
                    }
                    c => line.push(c),
                }
            }
            line.push('"');
            Ok(())
        }
    };
}

/// Appends a field with a time: microseconds with three decimals.
pub(super) fn time(line: &mut String, key: &str, ns: u64) {
    let _ = write!(line, ",\"{key}\":{}.{:03}", ns / 1000, ns % 1000);
}
