#![forbid(unsafe_code)]
//! The engine of a model in a process of its own.
//!
//! The model is opened here, for its tokenizer, its templates and its numbers; its weights are laid out in the worker, which opens the
//! same file with the same numbers. So lanes have the bits that they have in process.

use std::path::PathBuf;
use std::time::Duration;

use super::{Error, Model};
use crate::engine::Engine;

/// How the engine of a model is kept in a process of its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorkerOptions {
    /// The worker program; none looks for it, as `docs/worker.md` says.
    pub program: Option<PathBuf>,
    /// How long one tick may take before its worker is replaced; none waits for ever. 10 minutes.
    pub tick_timeout: Option<Duration>,
    /// How many fresh workers one call may use up; 0 never replaces one. 3.
    pub restarts: u32,
}

impl Default for WorkerOptions {
    fn default() -> Self {
        Self { program: None, tick_timeout: Some(Duration::from_secs(600)), restarts: 3 }
    }
}

#[cfg(all(feature = "worker", target_os = "linux"))]
mod remote {
    use super::{Engine, Error, Model, WorkerOptions};
    use crate::backend::Arithmetic;
    use crate::open::Device;
    use crate::worker::client::{RemoteEngine, RemoteOptions, WorkerCommand, find_worker};

    impl Model {
        /// The line that starts a worker of this model: the same file, with the numbers that an engine in this process has.
        ///
        /// # Errors
        /// `NoWorker`; `NotInWorker` for options that no other process can have.
        pub fn worker_command(&self, options: &WorkerOptions) -> Result<WorkerCommand, Error> {
            let (inner, asked) = (&*self.inner, &self.inner.asked);
            let resolved = &inner.options;
            if resolved.host_threads.is_some() {
                return Err(Error::NotInWorker { option: "host_threads" });
            }
            let program = find_worker(options.program.as_deref())?;
            let context = u32::try_from(resolved.context_tokens).unwrap_or(u32::MAX);
            let pool_tokens = resolved.pool_pages as u64 * resolved.page_size_tokens as u64;
            let instruction_set = match resolved.devices.kind {
                Device::Cpu => resolved.devices.instruction_set().name(),
                Device::Cuda => "best",
            };
            let mut command = WorkerCommand::serving(program, &inner.path, context, resolved.max_lanes)
                .option("--kv-bits", (8 * resolved.kv_type.bytes()).to_string())
                .option("--arithmetic", if resolved.arithmetic == Arithmetic::Fast { "fast" } else { "exact" })
                .option("--device", if resolved.devices.kind == Device::Cuda { "cuda" } else { "cpu" })
                .option("--instruction-set", instruction_set)
                .option("--fast-checksum", if asked.op_fast_checksum { "on" } else { "off" });
            for (name, value) in [
                ("device-index", asked.device_index.into()),
                ("device-mask", asked.device_mask),
                ("threads", resolved.threads as u64),
                ("page-size-tokens", resolved.page_size_tokens as u64),
                ("pool-tokens", pool_tokens),
                ("prefill-step-tokens", resolved.prefill_step_tokens.into()),
                ("cache-tokens", resolved.cache_resident_tokens),
                ("cache-export-tokens", resolved.cache_exported_tokens),
                ("op-slice-bytes", asked.op_slice_bytes),
                ("grammar-document-bytes", asked.grammar_document_bytes),
                ("grammar-depth", asked.grammar_depth.into()),
                ("grammar-compile-fuel", asked.grammar_compile_fuel),
                ("grammar-mask-fuel", asked.grammar_mask_fuel),
                ("grammar-mask-items", asked.grammar_mask_items.into()),
                ("grammar-lexer-states", asked.grammar_lexer_states.into()),
            ] {
                command = command.option(&format!("--{name}"), value.to_string());
            }
            Ok(command)
        }

        /// As [`Model::engine`], in a worker: a process of its own, which may crash and be replaced. Lanes go on in the fresh one, to the
        /// same bits.
        ///
        /// Ends when the engine is dropped. What the link has no message for answers `Unsupported`, as [`RemoteEngine`] says.
        ///
        /// # Errors
        /// `NoWorker` (there is no worker program), `Worker` (it could not be started, or did not get as far as serving), `NotInWorker` (an
        /// option that only this process can have). Nothing is kept.
        pub fn engine_in_worker(&self, options: &WorkerOptions) -> Result<Box<dyn Engine + Send>, Error> {
            let command = self.worker_command(options)?;
            let remote = RemoteOptions {
                tick_timeout: options.tick_timeout,
                restarts: options.restarts,
                ..RemoteOptions::default()
            };
            let engine = RemoteEngine::start(command, remote).map_err(|gone| Error::Worker(Box::new(gone)))?;
            // The worker has weights of its own; this process needs none.
            self.inner.checkpoint.release();
            Ok(Box::new(engine))
        }
    }
}

#[cfg(not(all(feature = "worker", target_os = "linux")))]
impl Model {
    /// There are no workers in this build.
    ///
    /// # Errors
    /// `NoWorkers`, always.
    pub fn engine_in_worker(&self, _: &WorkerOptions) -> Result<Box<dyn Engine + Send>, Error> {
        Err(Error::NoWorkers)
    }
}
