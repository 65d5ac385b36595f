#![forbid(unsafe_code)]
//! `tojson` as Python's `json.dumps` writes it: a space behind commas and colons, nothing escaped for HTML, Unicode as it is.

use std::io;

use minijinja::value::{Kwargs, Value};
use minijinja::{Error, ErrorKind};
use serde::Serialize;
use serde_json::ser::{Formatter, PrettyFormatter, Serializer};

/// Widest indent; more would only make output.
const MAX_INDENT: usize = 16;
/// Longest output: what the fuel of a rendering could pay for.
const MAX_OUTPUT_BYTES: usize = super::FUEL as usize * 64;

/// Output up to the bound, which indents of deep values could pass without costing fuel.
struct Bounded(Vec<u8>);

impl io::Write for Bounded {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.0.len() + bytes.len() > MAX_OUTPUT_BYTES {
            return Err(io::Error::new(io::ErrorKind::StorageFull, "the output is too long"));
        }
        self.0.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// One line, with spaces.
struct Spaced;

impl Formatter for Spaced {
    fn begin_array_value<W: ?Sized + io::Write>(&mut self, writer: &mut W, first: bool) -> io::Result<()> {
        if first { Ok(()) } else { writer.write_all(b", ") }
    }

    fn begin_object_key<W: ?Sized + io::Write>(&mut self, writer: &mut W, first: bool) -> io::Result<()> {
        if first { Ok(()) } else { writer.write_all(b", ") }
    }

    fn begin_object_value<W: ?Sized + io::Write>(&mut self, writer: &mut W) -> io::Result<()> {
        writer.write_all(b": ")
    }
}

/// The filter `tojson(indent=none)`.
pub(super) fn to_json(value: &Value, indent: Option<usize>, options: Kwargs) -> Result<Value, Error> {
    let indent = match indent {
        Some(indent) => Some(indent),
        None => options.get::<Option<usize>>("indent")?,
    };
    // Asked for by some templates; this is how it is written anyway.
    let _: Option<bool> = options.get("ensure_ascii")?;
    options.assert_all_used()?;
    let mut out = Bounded(Vec::new());
    let written = match indent {
        Some(indent) if indent > MAX_INDENT => {
            return Err(Error::new(ErrorKind::InvalidOperation, "the indent is too wide"));
        }
        Some(indent) => {
            let spaces = " ".repeat(indent);
            value.serialize(&mut Serializer::with_formatter(&mut out, PrettyFormatter::with_indent(spaces.as_bytes())))
        }
        None => value.serialize(&mut Serializer::with_formatter(&mut out, Spaced)),
    };
    let bad = |error: &dyn std::fmt::Display| Error::new(ErrorKind::BadSerialization, error.to_string());
    written.map_err(|error| bad(&error))?;
    Ok(Value::from(String::from_utf8(out.0).map_err(|error| bad(&error))?))
}
