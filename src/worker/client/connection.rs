#![forbid(unsafe_code)]
//! A worker that is replaced when it is gone, and what the host holds in it.
//!
//! # Invariants
//! - There is a session, or the last end is noted. Whoever finds none starts one, as long as the call has restarts left.
//! - What was told to one worker is known of none after it: handles are bound again, or are unknown.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use super::Launcher;
use super::error::{LinkError, WorkerGone};
use super::handles::{BiasSource, GrammarSource, LeaseSource, Makings, Names};
use super::lanes::Lanes;
use super::link::{Listener, Unasked};
use super::ops::Ops;
use super::options::RemoteOptions;
use super::session::{Deaf, Session};
use super::tick::TickBuffers;
use crate::record::Status;
use crate::ring::ControlWords;
use crate::worker::memory::SharedMemory;
use crate::worker::message::kind;
use crate::worker::payload::{Load, OpComplete, Registration, StrategyGrant, SyncOk, SyncRequest, TokenRef};

/// Why a step went no further.
#[derive(Debug)]
pub(super) enum Trouble {
    /// The engine, or this side in its place, refuses.
    Refused(Status),
    /// The worker is gone.
    Gone(LinkError),
}

impl From<Status> for Trouble {
    fn from(status: Status) -> Self {
        Self::Refused(status)
    }
}

impl From<LinkError> for Trouble {
    fn from(error: LinkError) -> Self {
        Self::Gone(error)
    }
}

/// The status of a number that a worker sent.
pub(super) fn status_of(code: i32) -> Status {
    match Status::from_code(code) {
        Some(Status::Ok) | None => Status::Fatal,
        Some(status) => status,
    }
}

/// Hears which operations end.
#[derive(Debug, Default)]
pub(super) struct DoneList(pub(super) Vec<OpComplete>);

impl Listener for DoneList {
    fn hear(&mut self, unasked: Unasked<'_>) {
        if let Unasked::Done(done) = unasked {
            self.0.push(done.clone());
        }
    }
}

/// How many fresh workers a call may still use up.
#[derive(Debug)]
pub(super) struct Patience {
    left: u32,
}

/// Everything that speaks to the worker.
pub(super) struct Connection {
    launcher: Box<dyn Launcher + Send>,
    pub(super) options: RemoteOptions,
    control_memory: SharedMemory,
    pub(super) control: Arc<ControlWords>,
    session: Option<Session>,
    pub(super) gone: Option<WorkerGone>,
    /// Workers that were started.
    pub(super) started: u64,
    /// Ends in a row without anything done in between.
    in_a_row: u32,
    /// The capabilities of the first worker, which those after it have to have too (W-95).
    pub(super) capabilities: Option<String>,
    registration: Option<Registration>,
    adapter: Option<String>,
    /// The number of the next plan on the wire.
    pub(super) next_seq: u64,
    pub(super) lanes: Lanes,
    /// How many lanes there ever were.
    pub(super) lanes_begun: u64,
    /// Tokens of lanes that fresh workers took from snapshots.
    pub(super) restored_tokens: u64,
    pub(super) sequences: Names,
    pub(super) ops: Ops,
    pub(super) grammars: Makings<GrammarSource>,
    pub(super) biases: Makings<BiasSource>,
    pub(super) leases: Makings<LeaseSource>,
    pub(super) lease_ticks: Option<u64>,
    /// Lanes that a fresh worker did not take, with the code of their fault.
    pub(super) doomed: BTreeMap<u64, u32>,
    /// Lanes that faulted here and not in the worker: a plan may still retire each, once (T-71).
    pub(super) faulted: BTreeSet<u64>,
    /// Per lane, how many tokens the callback has had beyond the accepted emits.
    pub(super) ahead: HashMap<u64, u32>,
    pub(super) ticks: u64,
    pub(super) buffers: TickBuffers,
}

impl core::fmt::Debug for Connection {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Connection").field("started", &self.started).field("gone", &self.gone).finish_non_exhaustive()
    }
}

impl Connection {
    /// Starts the first worker.
    pub(super) fn new(launcher: Box<dyn Launcher + Send>, options: RemoteOptions) -> Result<Self, WorkerGone> {
        let failed =
            |error: std::io::Error| WorkerGone { cause: error.into(), status: None, stderr_tail: String::new() };
        let bytes = crate::record::constant::control::BYTES;
        let control_memory = SharedMemory::create("ictus-control", bytes).map_err(failed)?;
        let control = ControlWords::lay_out(control_memory.mapping());
        let control = control.map_err(|_| failed(std::io::ErrorKind::InvalidInput.into()))?;
        let mut connection = Self {
            launcher,
            options,
            control_memory,
            control: Arc::new(control),
            session: None,
            gone: None,
            started: 0,
            in_a_row: 0,
            capabilities: None,
            registration: None,
            adapter: None,
            next_seq: 1,
            lanes: Lanes::new(),
            lanes_begun: 0,
            restored_tokens: 0,
            sequences: Names::default(),
            ops: Ops::default(),
            grammars: Makings::default(),
            biases: Makings::default(),
            leases: Makings::default(),
            lease_ticks: None,
            doomed: BTreeMap::new(),
            faulted: BTreeSet::new(),
            ahead: HashMap::new(),
            ticks: 0,
            buffers: TickBuffers::default(),
        };
        let session = Session::start(&mut *connection.launcher, &connection.control_memory, &connection.options)?;
        connection.capabilities = Some(session.ack.capabilities.clone());
        connection.session = Some(session);
        connection.started = 1;
        Ok(connection)
    }

    /// The session, if there is one.
    pub(super) fn session(&mut self) -> Option<&mut Session> {
        self.session.as_mut()
    }

    /// The session, or the trouble of having none.
    pub(super) fn live(&mut self) -> Result<&mut Session, Trouble> {
        self.session.as_mut().ok_or(Trouble::Gone(LinkError::Closed))
    }

    /// The number of the worker's process.
    pub(super) fn process_id(&self) -> Option<u32> {
        self.session.as_ref().and_then(Session::process_id)
    }

    /// What a call may use up.
    pub(super) fn patience(&self) -> Patience {
        Patience { left: self.options.restarts }
    }

    /// Something was done: whatever ended before is forgiven.
    pub(super) fn succeeded(&mut self) {
        self.in_a_row = 0;
    }

    /// Makes sure of a session. Fresh workers come after a pause that doubles.
    ///
    /// # Errors
    /// `Fatal`: none is left to be started.
    pub(super) fn ensure(&mut self, patience: &mut Patience) -> Result<(), Status> {
        while self.session.is_none() {
            let left = patience.left.checked_sub(1).ok_or(Status::Fatal)?;
            patience.left = left;
            if let Some(doublings) = self.in_a_row.checked_sub(2) {
                std::thread::sleep(self.options.backoff.saturating_mul(1 << doublings.min(6)));
            }
            if let Err(gone) = self.restart() {
                self.in_a_row += 1;
                self.gone = Some(gone);
            }
        }
        Ok(())
    }

    /// Starts a fresh worker and tells it what every worker is told.
    fn restart(&mut self) -> Result<(), WorkerGone> {
        let mut session = Session::start(&mut *self.launcher, &self.control_memory, &self.options)?;
        self.started += 1;
        self.next_seq = 1;
        match self.introduce(&mut session) {
            Ok(()) => {
                self.session = Some(session);
                Ok(())
            }
            Err(cause) => Err(session.bury(cause)),
        }
    }

    fn introduce(&self, session: &mut Session) -> Result<(), LinkError> {
        let before = self.capabilities.as_deref().unwrap_or_default();
        if !same_capabilities(before, &session.ack.capabilities) {
            return Err(LinkError::Changed);
        }
        let limit = self.options.request_timeout;
        if let Some(registration) = &self.registration {
            let mut grant = StrategyGrant::default();
            let kinds = (kind::STRATEGY_REGISTER, kind::STRATEGY_GRANT);
            session.ask(kinds, registration, &mut grant, &mut Deaf, limit)?;
            if !matches!(grant, StrategyGrant::Granted(_)) {
                return Err(LinkError::Protocol("it refuses a strategy that the one before granted"));
            }
        }
        if let Some(adapter_path) = self.adapter.clone() {
            let load = SyncRequest::LoraLoad { adapter_path };
            if session.sync(&load, &mut Deaf, limit)?.is_err() {
                return Err(LinkError::Protocol("it refuses an adapter that the one before took"));
            }
        }
        Ok(())
    }

    /// The worker is gone: all that was in it is.
    pub(super) fn lost(&mut self, cause: LinkError) {
        self.gone = Some(match self.session.take() {
            Some(session) => session.bury(cause),
            None => WorkerGone { cause, status: None, stderr_tail: String::new() },
        });
        self.in_a_row += 1;
        self.lanes.values_mut().for_each(|lane| {
            lane.resident = false;
            lane.renewed = false;
        });
        self.sequences.clear();
        self.grammars.clear();
        self.biases.clear();
        self.leases.clear();
        self.leases.retain(|lease| !lease.adopted);
        self.ops.worker_is_gone();
    }

    /// Ends the worker in good order; answers how it ended.
    pub(super) fn leave(&mut self) -> Option<std::process::ExitStatus> {
        self.session.take().and_then(Session::leave)
    }

    /// Does `step` against a worker, again against a fresh one when it is gone meanwhile.
    ///
    /// # Errors
    /// The status that it ends with; `Fatal` when no worker is left.
    pub(super) fn with_worker<T>(
        &mut self,
        mut step: impl FnMut(&mut Self) -> Result<T, Trouble>,
    ) -> Result<T, Status> {
        let mut patience = self.patience();
        loop {
            self.ensure(&mut patience)?;
            match step(self) {
                Ok(done) => {
                    self.succeeded();
                    return Ok(done);
                }
                Err(Trouble::Refused(status)) => return Err(status),
                Err(Trouble::Gone(cause)) => self.lost(cause),
            }
        }
    }

    /// Asks something that is answered at once.
    pub(super) fn sync(&mut self, request: &SyncRequest) -> Result<SyncOk, Trouble> {
        let limit = self.options.request_timeout;
        let mut done = DoneList::default();
        let answer = self.live()?.sync(request, &mut done, limit)?;
        self.ops.note(&done.0);
        match answer.map_err(status_of) {
            // An engine that is broken has to be another one.
            Err(Status::Fatal) => Err(LinkError::EngineFatal.into()),
            answer => Ok(answer?),
        }
    }

    /// Lets the worker say what it has to say.
    pub(super) fn ping(&mut self) -> Result<(), Trouble> {
        let limit = self.options.request_timeout;
        let (mut done, mut pong) = (DoneList::default(), Load::default());
        self.live()?.ask((kind::PING, kind::PONG), &Load::default(), &mut pong, &mut done, limit)?;
        self.ops.note(&done.0);
        Ok(())
    }

    /// Takes what came unasked.
    pub(super) fn listen(&mut self) {
        let mut done = DoneList::default();
        let heard = self.session.as_mut().map(|session| session.listen(&mut done));
        self.ops.note(&done.0);
        if let Some(Err(cause)) = heard {
            self.lost(cause);
        }
    }

    /// Writes a span where the worker reads it.
    ///
    /// # Errors
    /// `RejectBounds` for one that is longer than any prompt may be.
    pub(super) fn stage(&mut self, tokens: &[u32]) -> Result<TokenRef, Trouble> {
        self.live()?.stage(tokens).map_err(|_| Trouble::Refused(Status::RejectBounds))
    }

    /// What the worker calls a sequence.
    pub(super) fn sequence(&self, name: u64) -> Result<u64, Trouble> {
        self.sequences.remote(name).ok_or(Trouble::Refused(Status::UnknownHandle))
    }

    /// The last registration, to be told to every fresh worker.
    pub(super) fn remember_registration(&mut self, registration: Registration) {
        self.registration = Some(registration);
    }

    /// The default adapter, to be told to every fresh worker.
    pub(super) fn remember_adapter(&mut self, path: Option<&str>) {
        self.adapter = path.map(str::to_owned);
    }
}

/// Whether two capability objects differ in nothing but their limits (W-95).
fn same_capabilities(one: &str, other: &str) -> bool {
    if one == other {
        return true;
    }
    let parse = |text: &str| {
        let mut value: serde_json::Value = serde_json::from_str(text).ok()?;
        value.as_object_mut()?.remove("limits");
        Some(value)
    };
    matches!((parse(one), parse(other)), (Some(one), Some(other)) if one == other)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// W-95.
    #[test]
    fn capabilities_may_differ_in_their_limits_only() {
        let text = r#"{"a": 1, "limits": {"max_seqs": 4}}"#;
        assert!(same_capabilities(text, r#"{"limits": {"max_seqs": 9}, "a": 1}"#));
        assert!(!same_capabilities(text, r#"{"a": 2, "limits": {"max_seqs": 4}}"#));
        assert!(same_capabilities("", "") && !same_capabilities("", text) && !same_capabilities("x", "y"));
    }
}
