#![forbid(unsafe_code)]
//! The kernels: PTX texts of `kernels/ptx/`, which the driver compiles when one of them is first needed.
//!
//! What a launch must know of a kernel is read from its text: the parameters with their sizes, and the threads of a block. So it is written
//! in one place, the source.
//!
//! A build that was asked to (`build.rs`) has machine code of the same texts beside them. The driver is given that first, file by file, and the text where it
//! does not take it; [`KernelForms`] says what came of it.

use core::fmt;
use std::collections::HashMap;

use super::driver::{Driver, Function, Taken};
use crate::backend::BackendError;

/// A file of kernels.
struct Source {
    name: &'static str,
    text: &'static str,
    /// A fatbin; empty where the build has none.
    machine_code: &'static [u8],
}

#[cfg(ictus_machine_code)]
macro_rules! machine_code {
    ($name:literal) => {
        include_bytes!(concat!(env!("OUT_DIR"), "/", $name, ".fatbin"))
    };
}
#[cfg(not(ictus_machine_code))]
macro_rules! machine_code {
    ($name:literal) => {
        &[]
    };
}

macro_rules! sources {
    ($($name:literal),* $(,)?) => {
        &[$(Source {
            name: $name,
            text: include_str!(concat!("../../../kernels/ptx/", $name, ".ptx")),
            machine_code: machine_code!($name),
        }),*]
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

/// In which form the driver has taken files of kernels.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KernelForms {
    /// Files that it took as machine code.
    pub machine_code: usize,
    /// Files that it compiled from PTX.
    pub texts: usize,
    /// Why machine code of a file was not taken; of the first one that was not. None too where there is no machine code.
    pub refusal: Option<String>,
}

impl KernelForms {
    /// Those of two devices.
    pub(super) fn and(self, other: Self) -> Self {
        Self {
            machine_code: self.machine_code + other.machine_code,
            texts: self.texts + other.texts,
            refusal: self.refusal.or(other.refusal),
        }
    }
}

impl fmt::Display for KernelForms {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.machine_code, self.texts) {
            (0, 0) => write!(f, "no kernels yet")?,
            (0, _) => write!(f, "kernels as PTX")?,
            (_, 0) => write!(f, "kernels as machine code")?,
            (codes, texts) => write!(f, "kernels as machine code, {texts} of {} files as PTX", codes + texts)?,
        }
        self.refusal.as_ref().map_or(Ok(()), |refusal| write!(f, " ({refusal})"))
    }
}

/// Kernels by name, as they were needed.
#[derive(Default)]
pub(super) struct Kernels {
    loaded: HashMap<&'static str, Kernel>,
    /// Fatbins by the names of files, for those of the build.
    brought: HashMap<String, Vec<u8>>,
    forms: KernelForms,
}

impl Kernels {
    /// Has files that come from now on taken from these fatbins, where there is one of that name. They are of the same texts, as `Launcher::bring` is promised.
    pub(super) fn bring(&mut self, fatbins: HashMap<String, Vec<u8>>) {
        self.brought = fatbins;
    }

    pub(super) fn forms(&self) -> &KernelForms {
        &self.forms
    }

    /// The kernel of this name. The first one of a file has the driver load all of it; to compile it takes part of a second.
    pub(super) fn get(&mut self, driver: &Driver, name: &'static str) -> Result<&Kernel, BackendError> {
        if !self.loaded.contains_key(name) {
            self.load(driver, name)?;
        }
        self.loaded.get(name).ok_or_else(|| missing(name))
    }

    fn load(&mut self, driver: &Driver, name: &'static str) -> Result<(), BackendError> {
        let source = source_of(name).ok_or_else(|| missing(name))?;
        let functions = match self.take(driver, source)? {
            Some(functions) => functions,
            None => {
                let functions = driver.compile(source.name, source.text, names_of(source))?;
                self.forms.texts += 1;
                functions
            }
        };
        for ((entry, Declaration { parameters, threads }), function) in declarations(source.text).zip(functions) {
            self.loaded.insert(entry, Kernel { function, parameters, threads });
        }
        Ok(())
    }

    /// A file as machine code; none where there is none that the driver takes.
    fn take(&mut self, driver: &Driver, source: &Source) -> Result<Option<Vec<Function>>, BackendError> {
        let fatbin = self.brought.get(source.name).map_or(source.machine_code, Vec::as_slice);
        if fatbin.is_empty() {
            return Ok(None);
        }
        match driver.take(source.name, fatbin, names_of(source))? {
            Taken::Kernels(functions) => {
                self.forms.machine_code += 1;
                Ok(Some(functions))
            }
            Taken::Not(reason) => {
                self.forms.refusal.get_or_insert(reason);
                Ok(None)
            }
        }
    }
}

fn missing(name: &str) -> BackendError {
    BackendError::Device { reason: format!("there is no kernel {name}") }
}

/// The file that has a kernel.
fn source_of(name: &str) -> Option<&'static Source> {
    SOURCES.iter().find(|source| declarations(source.text).any(|(entry, _)| entry == name))
}

fn names_of(source: &Source) -> impl Iterator<Item = &'static str> {
    declarations(source.text).map(|(entry, _)| entry)
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
        for Source { name, text, .. } in SOURCES {
            let entries = text.matches(".visible .entry ").count();
            assert!(entries > 0, "{name}");
            assert_eq!(declarations(text).count(), entries, "{name}: every declaration can be read");
        }
        let names: Vec<&str> =
            SOURCES.iter().flat_map(|source| declarations(source.text).map(|(name, _)| name)).collect();
        assert!(names.iter().enumerate().all(|(at, name)| !names[..at].contains(name)), "each name is there once");
    }

    #[test]
    fn cuda_forms_of_kernels_are_said_in_a_sentence() {
        let said = |machine_code, texts, refusal: Option<&str>| {
            KernelForms { machine_code, texts, refusal: refusal.map(str::to_owned) }.to_string()
        };
        assert_eq!(said(0, 0, None), "no kernels yet");
        assert_eq!(said(0, 5, None), "kernels as PTX");
        assert_eq!(said(5, 0, None), "kernels as machine code");
        assert_eq!(said(0, 5, Some("why")), "kernels as PTX (why)");
        assert_eq!(said(4, 1, Some("why")), "kernels as machine code, 1 of 5 files as PTX (why)");
        let (one, other) =
            (KernelForms { machine_code: 4, ..Default::default() }, KernelForms { texts: 1, ..Default::default() });
        assert_eq!(one.and(other).to_string(), "kernels as machine code, 1 of 5 files as PTX");
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
