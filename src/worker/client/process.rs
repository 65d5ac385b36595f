#![forbid(unsafe_code)]
//! The worker's process: started, watched, ended, its last words kept.
//!
//! # Invariants
//! - It is a group of its own, so that what it starts ends with it, and a signal to the host's terminal does not reach it.
//! - Until it is reaped its number is nobody else's: it is signalled before that only.
//! - Dropping it kills and reaps it.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use rustix::event::PollFlags;
use rustix::io::{Errno, ioctl_fionbio, read};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process_group, pidfd_open};

use super::{Launcher, Peer};
use crate::worker::memory::{hand_over, occupy_places};
use crate::worker::socket;

/// Bytes of standard error that are kept.
const TAIL_BYTES: usize = 8 << 10;

/// Ends of names of variables that a worker does not see (W-83).
const SECRET_ENDINGS: &[&str] = &[
    "TOKEN",
    "SECRET",
    "SECRET_KEY",
    "PASSWORD",
    "PASSWD",
    "API_KEY",
    "APIKEY",
    "ACCESS_KEY",
    "PRIVATE_KEY",
    "CREDENTIALS",
];

/// How a worker is started: the same line each time (W-81, W-95).
#[derive(Clone, Debug)]
pub struct WorkerCommand {
    program: PathBuf,
    arguments: Vec<OsString>,
    variables: Vec<(OsString, OsString)>,
    descriptor_flags: bool,
}

impl WorkerCommand {
    /// A worker of this program, without arguments.
    pub fn new(program: impl Into<PathBuf>) -> Self {
        Self { program: program.into(), arguments: Vec::new(), variables: Vec::new(), descriptor_flags: true }
    }

    /// The line that serves a model (W-81).
    pub fn serving(program: impl Into<PathBuf>, model: &Path, context_tokens: u32, lanes: u32) -> Self {
        Self::new(program)
            .option("--model", model)
            .option("--max-context", context_tokens.to_string())
            .option("--max-batch", lanes.to_string())
    }

    /// Adds one argument.
    pub fn argument(mut self, argument: impl AsRef<OsStr>) -> Self {
        self.arguments.push(argument.as_ref().to_owned());
        self
    }

    /// Adds a flag and its value.
    pub fn option(self, flag: &str, value: impl AsRef<OsStr>) -> Self {
        self.argument(flag).argument(value)
    }

    /// Sets a variable of its environment, which is otherwise the host's, less what looks like a secret (W-83).
    pub fn variable(mut self, name: impl AsRef<OsStr>, value: impl AsRef<OsStr>) -> Self {
        self.variables.push((name.as_ref().to_owned(), value.as_ref().to_owned()));
        self
    }

    /// Leaves out the two flags that name the sockets, for a program that knows where they are.
    pub fn without_descriptor_flags(mut self) -> Self {
        self.descriptor_flags = false;
        self
    }

    fn command(&self) -> Command {
        let mut command = Command::new(&self.program);
        command.args(&self.arguments);
        if self.descriptor_flags {
            command.args(["--frames-fd", "3", "--fd-channel-fd", "4"]);
        }
        for (name, _) in std::env::vars_os().filter(|(name, _)| is_secret(name)) {
            command.env_remove(name);
        }
        command.envs(self.variables.iter().map(|(name, value)| (name, value)));
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).process_group(0);
        command
    }
}

/// Whether a variable's name says that its value is a secret (W-83).
fn is_secret(name: &OsStr) -> bool {
    let name = name.to_string_lossy().to_uppercase();
    SECRET_ENDINGS.iter().any(|ending| name.ends_with(ending))
}

impl Launcher for WorkerCommand {
    fn launch(&mut self) -> io::Result<Peer> {
        let (frames, their_frames) = socket::pair()?;
        let (descriptors, their_descriptors) = socket::pair()?;
        let mut command = self.command();
        hand_over(&mut command, their_frames.as_fd(), their_descriptors.as_fd())?;
        let places = occupy_places()?;
        let child = command.spawn();
        drop(places);
        let mut child = child?;
        let errors = child.stderr.take().map(OwnedFd::from);
        if let Some(errors) = &errors {
            ioctl_fionbio(errors, true)?;
        }
        let process = WorkerProcess { child, errors, tail: Vec::new(), status: None };
        Ok(Peer { frames, descriptors, process: Some(process) })
    }
}

/// A running worker.
#[derive(Debug)]
pub struct WorkerProcess {
    child: Child,
    errors: Option<OwnedFd>,
    tail: Vec<u8>,
    status: Option<ExitStatus>,
}

impl WorkerProcess {
    /// The number of the process.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Where its standard error comes in, to be waited for.
    pub(super) fn errors(&self) -> Option<BorrowedFd<'_>> {
        self.errors.as_ref().map(AsFd::as_fd)
    }

    /// Takes what it said; the last 8 KiB are kept. Never waits.
    pub(super) fn listen(&mut self) {
        let mut piece = [0; 2048];
        // As many pieces as fill the tail a few times: whoever talks for ever is heard next time.
        for _ in 0..16 {
            let Some(errors) = &self.errors else { return };
            match read(errors, &mut piece) {
                Ok(0) => self.errors = None,
                Ok(count) => {
                    self.tail.extend_from_slice(&piece[..count]);
                    let excess = self.tail.len().saturating_sub(TAIL_BYTES);
                    self.tail.drain(..excess);
                }
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return,
                Err(_) => self.errors = None,
            }
        }
    }

    /// The last that it said.
    pub(super) fn last_words(&self) -> String {
        String::from_utf8_lossy(&self.tail).into_owned()
    }

    /// Kills it and all that it started.
    fn kill(&mut self) {
        if self.status.is_some() {
            return;
        }
        let pid = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw);
        let killed = pid.map(|pid| kill_process_group(pid, Signal::KILL));
        if !matches!(killed, Some(Ok(()))) {
            let _ = self.child.kill();
        }
    }

    /// Waits at most `grace` for its end, then kills it; answers how it ended.
    pub(super) fn end(&mut self, grace: Duration) -> Option<ExitStatus> {
        if self.status.is_some() {
            return self.status;
        }
        if !self.has_ended_within(grace) {
            self.kill();
        }
        self.status = self.child.wait().ok();
        self.listen();
        self.status
    }

    /// Whether it ends in time. It is not reaped.
    fn has_ended_within(&mut self, grace: Duration) -> bool {
        let pid = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw);
        match pid.map(|pid| pidfd_open(pid, PidfdFlags::empty())) {
            Some(Ok(end)) => socket::wait_for(end.as_fd(), PollFlags::IN, Some(grace)).unwrap_or(false),
            _ => false,
        }
    }
}

impl Drop for WorkerProcess {
    fn drop(&mut self) {
        if self.status.is_none() {
            self.kill();
            let _ = self.child.wait();
        }
    }
}

/// How a process ended, in words.
pub(super) fn describe(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("exit code {code}"),
        (None, Some(signal)) => format!("signal {signal}"),
        (None, None) => status.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;

    /// W-83: the child has its standard streams, 3 and 4, and nothing else.
    #[test]
    fn child_inherits_two_sockets_and_nothing_else() {
        // One that is not close-on-exec, as a careless host may have.
        let careless = rustix::io::dup(std::fs::File::open("/dev/null").expect("opened")).expect("a copy");
        let command = WorkerCommand::new("/bin/sh")
            .without_descriptor_flags()
            .argument("-c")
            .argument("ls /proc/self/fd >&3; echo $ICTUS_A_TOKEN-$ICTUS_A_WORD >&3; echo last words >&2; exit 7")
            .variable("ICTUS_A_WORD", "kept");
        let mut peer = { command }.launch().expect("started");
        drop(careless);
        let mut process = peer.process.take().expect("a process");
        assert_eq!(process.end(Duration::from_secs(20)).and_then(|status| status.code()), Some(7));
        assert_eq!(process.last_words(), "last words\n");
        let mut said = String::new();
        let mut frames = std::os::unix::net::UnixStream::from(peer.frames);
        frames.read_to_string(&mut said).expect("text");
        let lines: Vec<&str> = said.lines().collect();
        let (word, numbers) = lines.split_last().expect("lines");
        assert_eq!(*word, "-kept");
        // `ls` has its own descriptor of the list: 5 at least.
        let low: Vec<&&str> = numbers.iter().filter(|number| number.len() == 1 && **number < "5").collect();
        assert_eq!(low, [&"0", &"1", &"2", &"3", &"4"]);
        assert_eq!(numbers.len(), 6, "{numbers:?}");
    }

    /// W-83.
    #[test]
    fn names_of_secrets_are_known_in_any_case() {
        for name in ["HF_TOKEN", "hf_token", "AWS_SECRET_ACCESS_KEY", "x_password", "CREDENTIALS", "My_ApiKey"] {
            assert!(is_secret(OsStr::new(name)), "{name}");
        }
        for name in ["PATH", "TOKENS", "SECRETARY", "HOME"] {
            assert!(!is_secret(OsStr::new(name)), "{name}");
        }
    }

    #[test]
    fn worker_that_lingers_is_killed_with_its_children() {
        let command =
            WorkerCommand::new("/bin/sh").without_descriptor_flags().argument("-c").argument("sleep 600 & sleep 600");
        let mut peer = { command }.launch().expect("started");
        let mut process = peer.process.take().expect("a process");
        let status = process.end(Duration::from_millis(100)).expect("a status");
        assert_eq!((status.signal(), describe(status).as_str()), (Some(9), "signal 9"));
        // The sockets of the children are closed too: nobody is left at the other end.
        let mut frames = std::os::unix::net::UnixStream::from(peer.frames);
        assert_eq!(frames.read(&mut [0]).expect("the end"), 0);
    }
}
