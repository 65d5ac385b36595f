//! `ictus-worker`: one model in a process of its own, for a host that speaks Link W version 8.
//!
//! ```text
//! ictus-worker [--<option> <value>]... --model <path> --max-context <N> --max-batch <N> [--kv-bits <N>] --frames-fd 3 --fd-channel-fd 4
//! ictus-worker check [--<option> <value>]... [--model <path>]
//! ictus-worker version
//! ```
//!
//! Exit codes: 0 the host closed the link; 1 the link failed, or a check says no; 2 a bad line; 3 the model cannot be loaded (W-71).

mod guard;
mod line;
mod report;

use std::os::fd::OwnedFd;
use std::process::ExitCode;

use ictus::Model;
use ictus::checkpoint::Checkpoint;
use ictus::worker::inherit::inherited;
use ictus::worker::server::{End, ServeError, ServerOptions, WorkerServer};
use line::{BadLine, Line};

/// Flags of a check, beside the options.
const CHECK_FLAGS: &[&str] = &["model", "max-context", "max-batch", "kv-bits"];
/// Flags of a serve line, beside the options.
const SERVE_FLAGS: &[&str] = &["model", "max-context", "max-batch", "kv-bits", "frames-fd", "fd-channel-fd"];

/// Why the program ends, and with which code.
enum Failure {
    Line(String),
    Load(String),
    Link(ServeError),
}

impl From<BadLine> for Failure {
    fn from(BadLine(reason): BadLine) -> Self {
        Self::Line(reason)
    }
}

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args_os().skip(1).map(|word| word.to_string_lossy().into_owned()).collect();
    let done = match words.first().map(String::as_str) {
        Some("version") => version(&words[1..]),
        Some("check") => check(&words[1..]),
        _ => serve(&words),
    };
    let (code, reason) = match done {
        Ok(code) => return code,
        Err(Failure::Line(reason)) => (2, reason),
        Err(Failure::Load(reason)) => (3, reason),
        Err(Failure::Link(error)) => (1, error.to_string()),
    };
    // One line, whatever the reason quotes.
    eprintln!("ictus-worker: {}", reason.replace(['\n', '\r'], " "));
    ExitCode::from(code)
}

fn version(words: &[String]) -> Result<ExitCode, Failure> {
    Line::read(words, &[])?;
    println!("{}", env!("CARGO_PKG_VERSION"));
    Ok(ExitCode::SUCCESS)
}

fn check(words: &[String]) -> Result<ExitCode, Failure> {
    let line = Line::read(words, CHECK_FLAGS)?;
    let (report, readable) = report::report(&line)?;
    println!("{report}");
    Ok(if readable { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn serve(words: &[String]) -> Result<ExitCode, Failure> {
    let line = Line::read(words, SERVE_FLAGS)?;
    // The numbers are looked at before anything is opened.
    line.model_options(usize::MAX)?;
    let path = line.text("model").ok_or_else(|| Failure::Line("--model is missing".to_owned()))?;
    let (frames, descriptors) = streams(&line)?;
    // From here on the host's end is this one's, also in the middle of a load.
    let watched = frames.try_clone().and_then(guard::watch);
    watched.map_err(|error| Failure::Load(format!("the host cannot be watched: {error}")))?;
    let load = |error: &dyn std::error::Error| Failure::Load(format!("{path}: {error}"));
    let trained = Checkpoint::open(path).map_err(|error| load(&error))?.config().context_tokens;
    let options = line.model_options(trained)?;
    let model = Model::open(path, &options).map_err(|error| load(&error))?;
    let engine = model.engine().map_err(|error| load(&error))?;
    // Both come from a file whose numbers were checked to fit.
    let served = ServerOptions::new(model.context_tokens() as u32, model.config().vocab as u32);
    match WorkerServer::new(engine, served, frames, descriptors).serve() {
        Ok(End::Closed) => {}
        Ok(End::Truncated { left }) => eprintln!("ictus-worker: the host closed the stream {left} bytes into a frame"),
        Err(error) => return Err(Failure::Link(error)),
    }
    Ok(ExitCode::SUCCESS)
}

/// The two streams that the host passed (W-82, W-83).
fn streams(line: &Line) -> Result<(OwnedFd, OwnedFd), Failure> {
    let missing = || Failure::Line("a worker is started with --frames-fd and --fd-channel-fd".to_owned());
    let frames = line.number("frames-fd")?.ok_or_else(missing)?;
    let descriptors = line.number("fd-channel-fd")?.ok_or_else(missing)?;
    let ours = |number: u32| number > 2 && i32::try_from(number).is_ok();
    if frames == descriptors || !ours(frames) || !ours(descriptors) {
        return Err(Failure::Line(format!(
            "--frames-fd {frames} and --fd-channel-fd {descriptors} are no two streams"
        )));
    }
    let take = |name: &str, number: u32| {
        // SAFETY:
        // - This program has opened nothing yet that it keeps, so an open descriptor above 2 is one that the host passed; nothing else
        //   here uses it.
        // - It is called once for each of two numbers that differ.
        let taken = unsafe { inherited(number as i32) };
        taken.map_err(|error| Failure::Line(format!("--{name} {number}: {error}")))
    };
    Ok((take("frames-fd", frames)?, take("fd-channel-fd", descriptors)?))
}
