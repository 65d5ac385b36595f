#![forbid(unsafe_code)]
//! The kernels: PTX texts of `kernels/ptx/`, which the driver compiles when one of them is first needed.
//!
//! What a launch must know of a kernel is read from its text: the parameters with their sizes, and the threads of a block. So it is written
//! in one place, the source.

use std::collections::HashMap;

use super::driver::{Driver, Function};
use crate::backend::BackendError;

/// A file of kernels.
struct Source {
    name: &'static str,
    text: &'static str,
}

macro_rules! sources {
    ($($name:literal),* $(,)?) => {
        &[$(Source { name: $name, text: include_str!(concat!("../../../kernels/ptx/", $name, ".ptx")) }),*]
    };
}

const SOURCES: &[Source] = sources![
    "attention_decode",
    "attention_fast_decode",
    "attention_fast_prefill",
    "attention_prefill",
    "columns",
    "embed",
    "kv_write",
    "linear",
    "linear_16",
    "linear_quant",
    "linear_s8",
    "linear_s8_k",
    "page_copy",
    "page_encode",
    "rms_norm",
    "rope",
    "round_rows",
    "rows",
    "sample_logprobs",
    "sample_pick",
    "sample_reach",
    "sample_shape",
    "sample_survey",
    "sample_weights",
];

/// What a parameter is, as far as a launch can mistake it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// A pointer, or an integer of 64 bits.
    Wide,
    /// An integer of 32 bits.
    Word,
    /// A single-precision number.
    Float,
}

/// A kernel as its text declares it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Declaration {
    parameters: Vec<Kind>,
    threads: u32,
}

/// A kernel that is ready to be launched.
pub(super) struct Kernel {
    pub(super) function: Function,
    pub(super) parameters: Vec<Kind>,
    /// Threads of a block.
    pub(super) threads: u32,
}

/// Kernels by name, as they were needed.
#[derive(Default)]
pub(super) struct Kernels {
    loaded: HashMap<&'static str, Kernel>,
}

impl Kernels {
    /// The kernel of this name. The first one of a file has the driver compile all of it, which takes part of a second.
    pub(super) fn get(&mut self, driver: &Driver, name: &'static str) -> Result<&Kernel, BackendError> {
        if !self.loaded.contains_key(name) {
            self.load(driver, name)?;
        }
        self.loaded.get(name).ok_or_else(|| missing(name))
    }

    fn load(&mut self, driver: &Driver, name: &'static str) -> Result<(), BackendError> {
        let source = source_of(name).ok_or_else(|| missing(name))?;
        let functions = driver.compile(source.name, source.text, declarations(source.text).map(|(entry, _)| entry))?;
        for ((entry, Declaration { parameters, threads }), function) in declarations(source.text).zip(functions) {
            self.loaded.insert(entry, Kernel { function, parameters, threads });
        }
        Ok(())
    }
}

fn missing(name: &str) -> BackendError {
    BackendError::Device { reason: format!("there is no kernel {name}") }
}

/// The file that has a kernel.
fn source_of(name: &str) -> Option<&'static Source> {
    SOURCES.iter().find(|source| declarations(source.text).any(|(entry, _)| entry == name))
}

/// All kernels of a text, whose declarations are
/// `.visible .entry NAME(` `.param .TYPE NAME_param_0,` ... `)` `.maxntid THREADS, 1, 1`, a line each.
fn declarations(text: &'static str) -> impl Iterator<Item = (&'static str, Declaration)> {
    text.split(".visible .entry ").skip(1).filter_map(|rest| {
        let (name, rest) = rest.split_once('(')?;
        let (list, rest) = rest.split_once(')')?;
        let parameters: Option<Vec<Kind>> = list.split(',').map(kind_of).collect();
        let (threads, _) = rest.trim_start().strip_prefix(".maxntid ")?.split_once(',')?;
        Some((name, Declaration { parameters: parameters?, threads: threads.parse().ok()? }))
    })
}

fn kind_of(parameter: &str) -> Option<Kind> {
    match parameter.trim().strip_prefix(".param .")?.split_once(' ')?.0 {
        "u64" => Some(Kind::Wide),
        "u32" => Some(Kind::Word),
        "f32" => Some(Kind::Float),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cuda_texts_declare_every_kernel_that_they_name() {
        for Source { name, text } in SOURCES {
            let entries = text.matches(".visible .entry ").count();
            assert!(entries > 0, "{name}");
            assert_eq!(declarations(text).count(), entries, "{name}: every declaration can be read");
        }
        let names: Vec<&str> =
            SOURCES.iter().flat_map(|source| declarations(source.text).map(|(name, _)| name)).collect();
        assert!(names.iter().enumerate().all(|(at, name)| !names[..at].contains(name)), "each name is there once");
    }

    #[test]
    fn cuda_declarations_are_those_of_the_sources() {
        use Kind::{Float, Wide, Word};
        let declared = |name: &str| {
            let source = source_of(name).expect("there is such a kernel");
            declarations(source.text).find(|(entry, _)| *entry == name).expect("in this file").1
        };
        // kernels/rms_norm.cu, kernels/rows.cu, kernels/page_copy.cu
        assert_eq!(
            declared("ictus_rms_norm"),
            Declaration { parameters: vec![Wide, Wide, Wide, Word, Float], threads: 256 }
        );
        assert_eq!(declared("ictus_add"), Declaration { parameters: vec![Wide, Wide, Wide], threads: 256 });
        assert_eq!(
            declared("ictus_copy_pages"),
            Declaration { parameters: vec![Wide, Wide, Wide, Word], threads: 256 }
        );
        assert!(source_of("ictus_no_such_kernel").is_none());
    }
}
