//! The calls of a random host: sequences, seeds, cache, state that moves, grammars, adapters.

use std::rc::Rc;

use ictus::record::constant::{cache_class, fork_flag, misc, space_id};

use super::Host;
use crate::model::{Call, Envelope, LANGUAGES, Model, Sizing, Spoil, seal_text, u64_at};
use crate::shape::ADAPTERS;

impl Host {
    /// A sequence handle, mostly one that exists.
    fn some_seq(&mut self, model: &Model) -> u64 {
        if !model.bares.is_empty() && self.random.below(2) == 0 {
            return self.random.pick(&model.bares).seq;
        }
        match model.seqs.is_empty() || self.one_in(15) {
            true => self.random.below(40) as u64,
            false => self.random.pick(&model.seqs).handle,
        }
    }

    fn some_space(&mut self) -> u32 {
        if self.one_in(12) { *self.random.pick(&[0, 2, misc::ALL_SPACES]) } else { space_id::KV }
    }

    pub(super) fn call(&mut self, model: &Model) -> Call {
        match self.random.below(70) {
            52.. => self.move_state(model),
            48 => Call::GrammarCreate { language: self.random.below(LANGUAGES.len()) },
            50 => self.adapter_call(model),
            49 if self.one_in(3) => {
                let known = model.grammars.first().map_or(9, |grammar| grammar.handle);
                Call::GrammarFree { grammar: known + self.random.below(2) as u32 }
            }
            0..=5 => self.acquire(model),
            6 | 7 => {
                let adapter = self.some_scope(model);
                let space = *self.random.pick(&[space_id::KV, misc::ALL_SPACES, 7]);
                Call::Match { space, span: self.text(model), adapter }
            }
            8 => {
                let lease = model.leases.first().map_or(3, |lease| lease.handle);
                Call::Release { lease: if self.one_in(4) { self.random.below(30) as u64 } else { lease } }
            }
            9..=11 => self.adopt(model),
            12..=14 => {
                let parent = match model.entries.is_empty() || self.one_in(3) {
                    true => self.some_seq(model),
                    false => self.random.pick(&model.entries).name,
                };
                let flags = *self.random.pick(&[0, fork_flag::PRIVATE, fork_flag::EAGER, fork_flag::PRIVATE | 1]);
                Call::Fork { parent, flags }
            }
            15 => Call::Create,
            16 | 17 => Call::Free { seq: self.some_seq(model) },
            18..=20 => {
                let seq = self.some_seq(model);
                Call::Publish { seq, tokens: self.tokens_of(seq, model) }
            }
            21 => Call::Unpublish { tokens: self.some_key(model) },
            22..=24 => Call::Evict {
                classes: *self.random.pick(&[0, cache_class::RESIDENT, 3, 3, 7, 5, 4]),
                quota: *self.random.pick(&[0, 0, 10, 100, u64::MAX]),
                max: *self.random.pick(&[u64::MAX, 0, 24, 100]),
                target: *self.random.pick(&[1, 10, 40, u64::MAX]),
            },
            25 => {
                let mut keys = vec![(false, self.some_key(model)), (false, self.some_key(model))];
                if self.one_in(3) {
                    keys.push((true, vec![]));
                }
                Call::EvictEntries { keys }
            }
            26 | 27 => {
                let vocab = model.shape.vocab as usize;
                let id = self.random.below(vocab) as i32;
                Call::BiasCreate { ids: vec![id, -1, vocab as i32, id], addends: vec![9.0, 50.0, 50.0, 6.0, 1.0] }
            }
            28 => Call::BiasFree { bias: model.biases.first().map_or(77, |(handle, _)| *handle) },
            29 | 30 => {
                let seq = self.some_seq(model);
                let len = self.len_of(seq, model);
                let len = *self.random.pick(&[len, len.saturating_sub(1), len / 2, len + 1, 0]);
                Call::Trim { seq, space: self.some_space(), len }
            }
            32..=34 => self.size(model),
            35 | 36 => self.snapshot(model),
            37 | 38 => self.demote(model),
            39 => self.restore(model),
            40 => self.promote(model),
            41 => Call::Poll { op: self.some_op(model) },
            42 | 43 => Call::Take { op: self.some_op(model) },
            44 => Call::Cancel { op: self.some_op(model) },
            45 => Call::Pump,
            _ => {
                let seq = self.some_seq(model);
                Call::Boundary { seq, space: self.some_space(), cap: self.random.below(model.shape.context) as u64 }
            }
        }
    }

    fn some_op(&mut self, model: &Model) -> u64 {
        let newest = model.ops.len() as u64;
        (newest + 1).saturating_sub(self.random.below(4) as u64)
    }

    /// The next call of a host that has state leave and come back.
    fn move_state(&mut self, model: &Model) -> Call {
        let holed = model.seqs.iter().any(|seq| !seq.holes.is_empty());
        let sized = model.seqs.iter().any(|seq| seq.sizings.iter().any(|sizing| sizing.generation == seq.generation));
        let empty = model.bares.iter().any(|bare| model.seq(bare.seq).tokens.is_empty());
        if let Some(op) = model.running()
            && self.one_in(2)
        {
            return self.random.pick(&[Call::Pump, Call::Poll { op }, Call::Pump, Call::Cancel { op }]).clone();
        }
        match model.waiting() {
            Some(op) if self.random.below(4) > 0 => return Call::Take { op },
            _ => {}
        }
        match self.random.below(6) {
            0 | 1 if holed => self.promote(model),
            2 if empty && !model.handed_over.is_empty() => self.restore(model),
            3 | 4 if sized => self.demote(model),
            5 if sized => self.snapshot(model),
            _ => self.size(model),
        }
    }

    fn size(&mut self, model: &Model) -> Call {
        let seq = self.some_seq(model);
        let (len, page) = (self.len_of(seq, model), model.shape.page as u64);
        let end = *self.random.pick(&[len, len, len / page * page, len / 2, len.saturating_sub(1), len + 1, 0]);
        let start = match self.random.below(4) {
            0 => self.random.below(end as usize + 2) as u64 / page * page,
            1 if self.one_in(6) => 1,
            _ => 0,
        };
        let encoding = if self.one_in(4) { 1 + self.random.below(3) as u8 } else { 0 };
        Call::Size { seq, space: self.some_space(), range: (start, end), encoding }
    }

    /// A sizing, mostly one that is pending.
    fn some_sizing(&mut self, model: &Model) -> (u64, Sizing) {
        let sized: Vec<_> = model.seqs.iter().filter(|seq| !seq.sizings.is_empty()).collect();
        if sized.is_empty() || self.one_in(6) {
            let (generation, end) = (1, self.random.below(10) as u64);
            return (self.some_seq(model), Sizing { generation, start: 0, end, encoding: 0 });
        }
        let seq = *self.random.pick(&sized);
        (seq.handle, *self.random.pick(&seq.sizings))
    }

    /// Room for the bytes, or one too little.
    fn some_room(&mut self, sizing: Sizing, model: &Model) -> u64 {
        let bytes = model.shape.token_bytes(sizing.encoding).unwrap_or(1) * (sizing.end - sizing.start);
        if self.one_in(6) { 136 + bytes - u64::from(bytes > 0) } else { u64::MAX }
    }

    fn snapshot(&mut self, model: &Model) -> Call {
        let (seq, sizing) = self.some_sizing(model);
        let dst = self.some_room(sizing, model);
        Call::Snapshot { seq, space: self.some_space(), pos: sizing.end, dst, generation: sizing.generation }
    }

    fn demote(&mut self, model: &Model) -> Call {
        let (seq, sizing) = self.some_sizing(model);
        let dst = self.some_room(sizing, model);
        // What a network loses cannot be told, so it loses nothing here.
        let encoding = if model.shape.tiny.is_some() { 0 } else { sizing.encoding };
        let Sizing { generation, start, end, .. } = sizing;
        Call::Demote { seq, space: self.some_space(), range: (start, end), encoding, dst, generation }
    }

    /// Bytes that an engine sealed, or a text sealed as an engine seals it; now and then spoiled.
    fn envelope(&mut self, exported: Option<Rc<Vec<u8>>>, model: &Model) -> Envelope {
        let of_text = |host: &mut Self| {
            let (tokens, taint) = (host.text(model), *host.random.pick(&[0, 0, 0, 1]));
            Rc::new(seal_text(&model.shape, &tokens, taint))
        };
        let pristine = exported.unwrap_or_else(|| of_text(self));
        let spoil = match self.random.below(12) {
            0 => Spoil::Flip(self.random.below(8 * pristine.len())),
            1 => Spoil::Cut(self.random.below(pristine.len())),
            2 => Spoil::Flip(8 * 104),
            3 => Spoil::Longer(*self.random.pick(&[1, model.lossless_bytes() as usize])),
            _ => Spoil::Nothing,
        };
        Envelope { pristine, spoil }
    }

    fn restore(&mut self, model: &Model) -> Call {
        let newest = &model.handed_over[model.handed_over.len().saturating_sub(8)..];
        // Nobody but an engine seals what a network computed.
        let exported = match newest.is_empty() || (model.shape.tiny.is_none() && self.one_in(2)) {
            true if model.shape.tiny.is_some() => return Call::Create,
            true => None,
            false => Some(Rc::clone(self.random.pick(newest))),
        };
        let sealed = self.envelope(exported, model);
        let empty: Vec<u64> =
            model.bares.iter().filter(|bare| model.seq(bare.seq).tokens.is_empty()).map(|bare| bare.seq).collect();
        let seq = match empty.is_empty() || self.one_in(6) {
            true => self.some_seq(model),
            false => *self.random.pick(&empty),
        };
        Call::Restore { seq, space: self.some_space(), sealed }
    }

    /// Mostly what was demoted, into where it was.
    fn promote(&mut self, model: &Model) -> Call {
        let holed: Vec<_> = model.seqs.iter().filter(|seq| !seq.holes.is_empty()).collect();
        if model.handed_over.is_empty() {
            return Call::Pump;
        }
        let (seq, range) = match holed.is_empty() {
            true => (self.some_seq(model), (0, 4)),
            false => {
                let seq = *self.random.pick(&holed);
                let hole = self.random.pick(&seq.holes);
                (seq.handle, (hole.start, hole.end))
            }
        };
        let of_range = |sealed: &&Rc<Vec<u8>>| (u64_at(sealed, 96), u64_at(sealed, 104)) == range;
        let fitting = model.handed_over.iter().rev().find(of_range).filter(|_| !self.one_in(6));
        let sealed = fitting.unwrap_or_else(|| self.random.pick(&model.handed_over));
        let sealed = self.envelope(Some(Rc::clone(sealed)), model);
        Call::Promote { seq, space: self.some_space(), range, sealed }
    }

    fn acquire(&mut self, model: &Model) -> Call {
        let adapter = self.some_scope(model);
        // Now and then what is held by somebody with another adapter.
        let span = self.text(model);
        let found = model.candidates_of_call(&span, adapter);
        let n = match found.is_empty() || self.one_in(4) {
            true => self.random.below(span.len() + 2) as u64,
            false => self.random.pick(&found).len,
        };
        Call::Acquire { span, n, class: self.random.below(2) as u8, adapter }
    }

    /// The adapter that a call names, mostly none.
    fn some_scope(&mut self, model: &Model) -> Option<u64> {
        match model.adapters.is_empty() || self.one_in(2) {
            true => None,
            false => Some(self.random.below(model.adapters.len() + 1) as u64),
        }
    }

    fn adapter_call(&mut self, model: &Model) -> Call {
        let name = self.random.below(ADAPTERS);
        let adapter = self.random.below(model.adapters.len() + 2) as u64;
        match self.random.below(9) {
            0 | 1 => Call::AdapterLoad { name },
            2 => Call::AdapterUnload { adapter },
            3..=5 => {
                // Of a lane that is to come, mostly.
                let tag = match model.faulted.first() {
                    Some(&tag) if self.one_in(4) => tag,
                    _ => {
                        let number = self.next_tag + self.random.below(2) as u64;
                        self.tag(number)
                    }
                };
                Call::AdapterBind { tag, adapter }
            }
            6 if self.one_in(2) => Call::DefaultLoad { name },
            6 => Call::DefaultUnload,
            _ => Call::SequenceAdapt { seq: self.some_seq(model), adapter },
        }
    }

    fn adopt(&mut self, model: &Model) -> Call {
        let seq = self.some_seq(model);
        Call::Adopt { seq, tokens: self.tokens_of(seq, model) }
    }

    fn len_of(&self, seq: u64, model: &Model) -> u64 {
        model.seqs.iter().find(|other| other.handle == seq).map_or(0, |seq| seq.tokens.len() as u64)
    }

    /// What a sequence holds, or something near.
    fn tokens_of(&mut self, seq: u64, model: &Model) -> Vec<u32> {
        let held = model.seqs.iter().find(|other| other.handle == seq).map_or(vec![], |seq| seq.tokens.clone());
        match self.random.below(6) {
            0 => held[..held.len() / 2].to_vec(),
            1 if self.one_in(2) => [held.as_slice(), &[1]].concat(),
            _ => held,
        }
    }

    fn some_key(&mut self, model: &Model) -> Vec<u32> {
        match model.entries.is_empty() || self.one_in(3) {
            true => self.text(model),
            false => self.random.pick(&model.entries).key.clone(),
        }
    }
}
