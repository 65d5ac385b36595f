#![forbid(unsafe_code)]
//! JSON documents of bounded size, and typed reads of their members.
//!
//! A member that is `null` counts as missing, as the programs that write these files mean it.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use serde_json::{Map, Value};

use super::super::error::{CheckpointError, ConfigError, HfError};

/// Largest JSON document read, in bytes.
pub const MAX_DOCUMENT_BYTES: u64 = 64 << 20;

/// An object and the name that its members are reported under.
#[derive(Clone, Debug)]
pub(super) struct Document {
    prefix: String,
    members: Map<String, Value>,
}

/// Reads a regular file of at most [`MAX_DOCUMENT_BYTES`].
pub(super) fn read_bounded(path: &Path) -> Result<Vec<u8>, CheckpointError> {
    let failed = |source| CheckpointError::Read { path: path.to_owned(), source };
    let about = std::fs::metadata(path).map_err(failed)?;
    // Opening a named pipe would wait for its writer.
    if !about.is_file() {
        return Err(failed(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file")));
    }
    let mut bytes = Vec::new();
    let file = File::open(path).map_err(failed)?;
    file.take(MAX_DOCUMENT_BYTES + 1).read_to_end(&mut bytes).map_err(failed)?;
    if bytes.len() as u64 > MAX_DOCUMENT_BYTES {
        let source = HfError::TooLarge { got: about.len().max(bytes.len() as u64), max: MAX_DOCUMENT_BYTES };
        return Err(CheckpointError::Hf { path: path.to_owned(), source });
    }
    Ok(bytes)
}

impl Document {
    /// Reads a document whose root is an object; gives its bytes too.
    pub(super) fn read(path: &Path) -> Result<(Vec<u8>, Self), CheckpointError> {
        let bytes = read_bounded(path)?;
        let document = Self::parse(&bytes).map_err(|source| CheckpointError::Hf { path: path.to_owned(), source })?;
        Ok((bytes, document))
    }

    /// As [`read`](Self::read), or none when there is no such file.
    pub(super) fn read_optional(path: &Path) -> Result<Option<Self>, CheckpointError> {
        if !path.exists() {
            return Ok(None);
        }
        Self::read(path).map(|(_, document)| Some(document))
    }

    pub(super) fn parse(bytes: &[u8]) -> Result<Self, HfError> {
        match serde_json::from_slice(bytes).map_err(|source| HfError::Json { source })? {
            Value::Object(members) => Ok(Self { prefix: String::new(), members }),
            _ => Err(HfError::Form { key: "the document".to_owned(), expected: "an object" }),
        }
    }

    /// The member's name for messages.
    pub(super) fn key(&self, name: &str) -> String {
        format!("{}{name}", self.prefix)
    }

    pub(super) fn get(&self, name: &str) -> Option<&Value> {
        self.members.get(name).filter(|value| !value.is_null())
    }

    fn wrong(&self, name: &str, expected: &'static str, value: &Value) -> ConfigError {
        ConfigError::KeyType { key: self.key(name), expected, got: describe(value) }
    }

    fn typed<'a, T>(
        &'a self,
        name: &str,
        expected: &'static str,
        read: impl FnOnce(&'a Value) -> Option<T>,
    ) -> Result<Option<T>, ConfigError> {
        match self.get(name) {
            None => Ok(None),
            Some(value) => read(value).map(Some).ok_or_else(|| self.wrong(name, expected, value)),
        }
    }

    /// A size from 1 to 2^31 - 1.
    pub(super) fn size(&self, name: &str) -> Result<Option<usize>, ConfigError> {
        match self.integer(name)? {
            None => Ok(None),
            Some(value @ 1..=0x7fff_ffff) => Ok(Some(value as usize)),
            Some(value) => Err(ConfigError::Range {
                key: self.key(name),
                got: value.to_string(),
                expected: "a size from 1 to 2147483647",
            }),
        }
    }

    /// An integer; not a float, even a whole one.
    pub(super) fn integer(&self, name: &str) -> Result<Option<i64>, ConfigError> {
        self.typed(name, "an integer", |value| value.as_i64().or_else(|| value.as_u64().map(|_| i64::MAX)))
    }

    pub(super) fn required_size(&self, name: &str) -> Result<usize, ConfigError> {
        self.size(name)?.ok_or_else(|| self.missing(name))
    }

    pub(super) fn missing(&self, name: &str) -> ConfigError {
        ConfigError::MissingKey { key: self.key(name) }
    }

    /// Any number as f32, finite.
    pub(super) fn number(&self, name: &str) -> Result<Option<f32>, ConfigError> {
        match self.typed(name, "a number", Value::as_f64)? {
            None => Ok(None),
            Some(value) if (value as f32).is_finite() => Ok(Some(value as f32)),
            Some(value) => Err(ConfigError::Range {
                key: self.key(name),
                got: format!("{value:e}"),
                expected: "a number of single precision",
            }),
        }
    }

    /// A number above 0.
    pub(super) fn positive(&self, name: &str) -> Result<Option<f32>, ConfigError> {
        match self.number(name)? {
            Some(value) if value <= 0.0 => {
                Err(ConfigError::Range { key: self.key(name), got: format!("{value:?}"), expected: "positive" })
            }
            value => Ok(value),
        }
    }

    pub(super) fn required_positive(&self, name: &str) -> Result<f32, ConfigError> {
        self.positive(name)?.ok_or_else(|| self.missing(name))
    }

    pub(super) fn flag(&self, name: &str) -> Result<Option<bool>, ConfigError> {
        self.typed(name, "true or false", Value::as_bool)
    }

    pub(super) fn text(&self, name: &str) -> Result<Option<&str>, ConfigError> {
        self.typed(name, "a string", Value::as_str)
    }

    pub(super) fn array(&self, name: &str) -> Result<Option<&[Value]>, ConfigError> {
        self.typed(name, "an array", |value| value.as_array().map(Vec::as_slice))
    }

    /// A member that is an object; its own members are reported as `name.member`.
    pub(super) fn object(&self, name: &str) -> Result<Option<Self>, ConfigError> {
        let members = self.typed(name, "an object", Value::as_object)?;
        Ok(members.map(|members| Self { prefix: format!("{}.", self.key(name)), members: members.clone() }))
    }
}

/// What a value is, for messages: numbers and booleans as they are, of the others the kind.
pub(super) fn describe(value: &Value) -> String {
    match value {
        Value::Null => "null".to_owned(),
        Value::Bool(_) | Value::Number(_) => value.to_string(),
        Value::String(text) => format!("the string {:?}", text.chars().take(40).collect::<String>()),
        Value::Array(_) => "an array".to_owned(),
        Value::Object(_) => "an object".to_owned(),
    }
}
