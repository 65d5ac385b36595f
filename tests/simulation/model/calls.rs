//! Calls of the host outside ticks: sequences, seeds, cache (S-10 .. S-60).

use ictus::record::Status;
use ictus::record::constant::{determinism, fork_flag, space_id};

use super::cache::digest;
use super::ops::Envelope;
use super::{Bare, Model, Target};

/// One call, everything in it.
#[derive(Clone, Debug)]
pub(crate) enum Call {
    Match {
        space: u32,
        span: Vec<u32>,
        adapter: Option<u64>,
    },
    Acquire {
        span: Vec<u32>,
        n: u64,
        class: u8,
        adapter: Option<u64>,
    },
    Release {
        lease: u64,
    },
    Adopt {
        seq: u64,
        tokens: Vec<u32>,
    },
    Fork {
        parent: u64,
        flags: u32,
    },
    Create,
    Free {
        seq: u64,
    },
    Publish {
        seq: u64,
        tokens: Vec<u32>,
    },
    Unpublish {
        tokens: Vec<u32>,
    },
    Evict {
        classes: u64,
        quota: u64,
        max: u64,
        target: u64,
    },
    /// Tokens whose digests are named; whether the compat key is a foreign one.
    EvictEntries {
        keys: Vec<(bool, Vec<u32>)>,
    },
    BiasCreate {
        ids: Vec<i32>,
        addends: Vec<f32>,
    },
    BiasFree {
        bias: u32,
    },
    /// One of the languages.
    GrammarCreate {
        language: usize,
    },
    GrammarFree {
        grammar: u32,
    },
    Trim {
        seq: u64,
        space: u32,
        len: u64,
    },
    Boundary {
        seq: u64,
        space: u32,
        cap: u64,
    },
    Size {
        seq: u64,
        space: u32,
        range: (u64, u64),
        encoding: u8,
    },
    /// The generation is the model's.
    Snapshot {
        seq: u64,
        space: u32,
        pos: u64,
        dst: u64,
        generation: u64,
    },
    Demote {
        seq: u64,
        space: u32,
        range: (u64, u64),
        encoding: u8,
        dst: u64,
        generation: u64,
    },
    Promote {
        seq: u64,
        space: u32,
        range: (u64, u64),
        sealed: Envelope,
    },
    Restore {
        seq: u64,
        space: u32,
        sealed: Envelope,
    },
    Poll {
        op: u64,
    },
    Take {
        op: u64,
    },
    Cancel {
        op: u64,
    },
    Pump,
    /// One of the shape's adapters.
    AdapterLoad {
        name: usize,
    },
    AdapterUnload {
        adapter: u64,
    },
    AdapterBind {
        tag: u64,
        adapter: u64,
    },
    DefaultLoad {
        name: usize,
    },
    DefaultUnload,
    SequenceAdapt {
        seq: u64,
        adapter: u64,
    },
}

/// S-46.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Candidate {
    pub(crate) len: u64,
    pub(crate) digest: [u8; 32],
    pub(crate) taint: u32,
    pub(crate) tier: u8,
}

/// What a call answers.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Answer {
    Done,
    Number(u64),
    Candidates(Vec<Candidate>),
    Op { state: u8, error: u32, moved: u64 },
    Bytes(Option<Vec<u8>>),
    Refused(Status),
}

fn done(result: Result<(), Status>) -> Answer {
    result.map_or_else(Answer::Refused, |()| Answer::Done)
}

fn number(result: Result<u64, Status>) -> Answer {
    result.map_or_else(Answer::Refused, Answer::Number)
}

impl Model {
    pub(crate) fn call(&mut self, call: &Call) -> Answer {
        match call {
            Call::Match { space, span, adapter } => self.match_call(*space, span, *adapter),
            Call::Acquire { span, n, class, adapter } => number(self.acquire(span, *n, *class, *adapter)),
            Call::AdapterLoad { name } => number(self.adapter_load(*name)),
            Call::AdapterUnload { adapter } => done(self.adapter_unload(*adapter)),
            Call::AdapterBind { tag, adapter } => done(self.adapter_bind(*tag, *adapter)),
            Call::DefaultLoad { name } => done(self.default_load(*name)),
            Call::DefaultUnload => done(self.default_unload()),
            Call::SequenceAdapt { seq, adapter } => done(self.sequence_adapt(*seq, *adapter)),
            Call::Release { lease } => done(self.release(*lease)),
            Call::Adopt { seq, tokens } => number(self.adopt(*seq, tokens)),
            Call::Fork { parent, flags } => number(self.fork(*parent, *flags)),
            Call::Create => number(self.create_with_room(None).inspect(|&seq| self.add_bare(seq, vec![], false))),
            Call::Free { seq } => done(self.free(*seq)),
            Call::Publish { seq, tokens } => done(self.publish(*seq, tokens)),
            Call::Unpublish { tokens } => {
                self.drop_entries(|entry| entry.key == *tokens);
                Answer::Done
            }
            Call::Evict { classes, quota, max, target } => Answer::Number(self.evict(*classes, *quota, *max, *target)),
            Call::EvictEntries { keys } => done(self.evict_entries(keys)),
            Call::BiasCreate { ids, addends } => self.create_bias(ids, addends),
            Call::BiasFree { bias } => self.free_bias(*bias),
            Call::GrammarCreate { language } => self.grammar_create(*language),
            Call::GrammarFree { grammar } => self.grammar_free(*grammar),
            Call::Trim { seq, space, len } => done(self.trim(*seq, *space, *len)),
            Call::Boundary { seq, space, cap } => number(self.boundary(*seq, *space, *cap)),
            Call::Size { seq, space, range, encoding } => number(self.size(*seq, *space, *range, *encoding)),
            Call::Snapshot { seq, space, pos, dst, generation } => {
                number(self.snapshot(*seq, *space, *pos, *dst, *generation))
            }
            Call::Demote { seq, space, range, encoding, dst, generation } => {
                number(self.demote(*seq, *space, *range, *encoding, *dst, *generation))
            }
            Call::Promote { seq, space, range, sealed } => number(self.promote(*seq, *space, *range, &sealed.bytes())),
            Call::Restore { seq, space, sealed } => number(self.restore(*seq, *space, &sealed.bytes())),
            Call::Poll { op } => self.poll(*op),
            Call::Take { op } => self.take(*op),
            Call::Cancel { op } => done(self.cancel(*op)),
            Call::Pump => {
                self.run_ops();
                Answer::Done
            }
        }
    }

    /// S-44.
    fn release(&mut self, lease: u64) -> Result<(), Status> {
        match self.lease(lease) {
            Some(found) if found.expires_at >= self.now => {
                self.drop_lease(lease);
                Ok(())
            }
            _ => Err(Status::UnknownHandle),
        }
    }

    /// S-30.
    fn adopt(&mut self, seq: u64, tokens: &[u32]) -> Result<u64, Status> {
        let len = self.seqs.iter().find(|other| other.handle == seq).map_or(0, |seq| seq.tokens.len());
        let busy = self.is_not_whole(seq);
        let bare = self.bares.iter_mut().find(|bare| bare.seq == seq).ok_or(Status::UnknownHandle)?;
        if bare.leased || busy {
            return Err(Status::Busy);
        }
        if tokens.is_empty() || tokens.len() != len {
            return Err(Status::OutOfBoundary);
        }
        bare.leased = true;
        bare.known = tokens.to_vec();
        Ok(self.new_lease(Target::Bare(seq), tokens.to_vec(), determinism::BEST_EFFORT))
    }

    /// S-2: bare, of a lane, or of an entry in the pool.
    pub(crate) fn is_known(&self, seq: u64) -> bool {
        self.bare(seq).is_some() || self.is_of_lane(seq) || self.is_cached(seq)
    }

    /// S-90, S-91: an operation works on it, or part of it is demoted.
    fn is_not_whole(&self, seq: u64) -> bool {
        self.seqs.iter().any(|other| other.handle == seq && (self.is_claimed(seq) || !other.holes.is_empty()))
    }

    fn is_of_lane(&self, seq: u64) -> bool {
        self.lanes.iter().any(|lane| lane.seq == seq)
    }

    fn is_cached(&self, seq: u64) -> bool {
        self.entry(seq).is_some_and(|entry| !entry.exported)
    }

    /// S-4.
    pub(crate) fn known_tokens(&self, seq: u64) -> Vec<u32> {
        let lane = self.lanes.iter().find(|lane| lane.seq == seq).map(|lane| &lane.committed);
        let entry = self.entry(seq).filter(|entry| !entry.exported).map(|entry| &entry.key);
        let bare = self.bare(seq).map(|bare| &bare.known);
        lane.or(entry).or(bare).cloned().unwrap_or_default()
    }

    fn add_bare(&mut self, seq: u64, known: Vec<u32>, for_others: bool) {
        self.bares.push(Bare { seq, known, for_others, leased: false });
    }

    /// S-20, S-21. What is to be copied does not make room for its copy.
    fn create_with_room(&mut self, spared: Option<u64>) -> Result<u64, Status> {
        if let Ok(seq) = self.seq_create() {
            return Ok(seq);
        }
        // Every entry has at least one byte, so the first is enough.
        let first = self.eviction_order().into_iter().find(|name| Some(*name) != spared);
        let mut losses = Vec::new();
        self.leave_pool(first.ok_or(Status::NeedsReplan)?, &mut losses);
        self.unreported.extend(losses);
        self.seq_create().map_err(Status::from)
    }

    /// S-10 .. S-15.
    fn fork(&mut self, parent: u64, flags: u32) -> Result<u64, Status> {
        if !self.is_known(parent) {
            return Err(Status::UnknownHandle);
        }
        if self.is_not_whole(parent) {
            return Err(Status::Busy);
        }
        let mut known = self.known_tokens(parent);
        let child = self.create_with_room(Some(parent))?;
        let len = self.seq(parent).tokens.len();
        if let Err(error) = self.seq_copy(parent, child, len) {
            self.seq_free(child);
            return Err(error.into());
        }
        self.seq_mut(child).taint = self.seq(parent).taint;
        known.truncate(len);
        self.add_bare(child, known, flags & fork_flag::PRIVATE == 0);
        Ok(child)
    }

    /// S-22.
    fn free(&mut self, seq: u64) -> Result<(), Status> {
        let bare = self.bare(seq).ok_or(Status::UnknownHandle)?;
        if bare.leased || self.is_claimed(seq) {
            return Err(Status::Busy);
        }
        self.bares.retain(|bare| bare.seq != seq);
        self.seq_free(seq);
        Ok(())
    }

    /// S-50.
    fn publish(&mut self, seq: u64, tokens: &[u32]) -> Result<(), Status> {
        let bare = self.bare(seq).ok_or(Status::UnknownHandle)?.clone();
        if bare.leased || self.is_not_whole(seq) {
            return Err(Status::Busy);
        }
        let len = self.seq(seq).tokens.len();
        if tokens.len() > len || (!self.shape.cuts && tokens.len() != len) {
            return Err(Status::OutOfBoundary);
        }
        let key_len = match self.shape.cuts {
            true => tokens.len() / self.shape.page * self.shape.page,
            false => tokens.len(),
        };
        self.bares.retain(|bare| bare.seq != seq);
        if key_len == 0 {
            // What shared its cells may now rest with nobody else, so the cache settles in this case too.
            self.seq_free(seq);
        } else {
            if key_len < len {
                self.seq_truncate(seq, key_len).expect("it can be cut at a page");
            }
            self.insert_entry(seq, tokens[..key_len].to_vec(), 0, bare.for_others);
        }
        let mut losses = Vec::new();
        self.settle_cache(&mut losses);
        self.unreported.extend(losses);
        Ok(())
    }

    /// S-58.
    fn evict_entries(&mut self, keys: &[(bool, Vec<u32>)]) -> Result<(), Status> {
        if keys.iter().any(|(foreign, _)| *foreign) {
            return Err(Status::IdentityMismatch);
        }
        let digests: Vec<[u8; 32]> = keys.iter().map(|(_, tokens)| digest(tokens)).collect();
        self.drop_entries(|entry| digests.contains(&digest(&entry.key)));
        Ok(())
    }

    /// E-12.
    fn create_bias(&mut self, ids: &[i32], addends: &[f32]) -> Answer {
        let handle = self.next_bias;
        self.next_bias += 1;
        let pairs = ids.iter().zip(addends).filter_map(|(&id, &addend)| Some((u32::try_from(id).ok()?, addend)));
        let vocab = self.shape.vocab;
        self.biases.push((handle, pairs.filter(|(id, _)| *id < vocab).collect()));
        Answer::Number(u64::from(handle))
    }

    /// E-12.
    fn free_bias(&mut self, bias: u32) -> Answer {
        let before = self.biases.len();
        self.biases.retain(|(handle, _)| *handle != bias);
        match self.biases.len() < before {
            true => Answer::Done,
            false => Answer::Refused(Status::UnknownHandle),
        }
    }

    /// S-68.
    fn trim(&mut self, seq: u64, space: u32, len: u64) -> Result<(), Status> {
        if space != space_id::KV || !self.is_known(seq) {
            return Err(Status::UnknownHandle);
        }
        if self.bare(seq).is_none_or(|bare| bare.leased) || self.is_claimed(seq) {
            return Err(Status::Busy);
        }
        if len > self.seq(seq).tokens.len() as u64 {
            return Err(Status::RejectBounds);
        }
        // A cut beside a hole, or of all of it.
        if self.seq(seq).holes.iter().any(|hole| hole.start < len && len < hole.end) {
            return Err(Status::OutOfBoundary);
        }
        self.seq_truncate(seq, len as usize).map_err(Status::from)
    }

    /// S-66.
    fn boundary(&self, seq: u64, space: u32, cap: u64) -> Result<u64, Status> {
        if space != space_id::KV || !self.is_known(seq) {
            return Err(Status::UnknownHandle);
        }
        let len = self.seq(seq).tokens.len() as u64;
        let page = self.shape.page as u64;
        // Of a sequence with a hole only what is before it can be exported.
        let cap = self.seq(seq).holes.iter().map(|hole| hole.start).min().map_or(cap, |start| cap.min(start));
        match self.shape.cuts {
            true => Ok(len.min(cap) / page * page),
            false => Ok(if len <= cap { len } else { 0 }),
        }
    }
}
