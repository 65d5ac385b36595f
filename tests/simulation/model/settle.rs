//! What an accepted plan does first: evictions, retires, settling, commits, takeovers, admits (T-70 .. T-82).

use ictus::record::constant::shed_kind;

use super::cache::real_part;
use super::capacity::{Decided, keep};
use super::{Cost, Lane, Loss, Model, Predicted, Target};
use crate::plan::{Admit, Plan};

/// The engine is broken (T-136).
#[derive(Clone, Copy, Debug)]
pub(super) struct Fatal;

impl Model {
    pub(super) fn settle(&mut self, plan: &Plan, decided: &Decided, out: &mut Predicted) -> Result<(), Fatal> {
        out.losses.append(&mut self.unreported);
        for &name in &decided.victims {
            self.leave_pool(name, &mut out.losses); // T-70
        }
        // Those that leave nothing behind go first: T-66 counts on their cells.
        for &(tag, _) in plan.retires.iter().filter(|(_, publish)| !publish) {
            self.retire(tag, false);
        }
        self.feed_last_tokens(plan)?;
        for &(tag, _) in plan.retires.iter().filter(|(_, publish)| *publish) {
            self.retire(tag, true);
        }
        self.settle_cache(&mut out.losses); // T-74
        for &(tag, token, _) in &plan.commits {
            let lane = self.lane_mut(tag); // T-75
            lane.committed.push(token);
            lane.pending = true;
            lane.row = None;
            lane.drawn += 1;
        }
        let begun = self.admit_all(plan, decided, out);
        // What was taken over and became no lane goes.
        for (_, seq, _) in std::mem::take(&mut self.taken) {
            self.seq_free(seq);
        }
        begun
    }

    fn admit_all(&mut self, plan: &Plan, decided: &Decided, out: &mut Predicted) -> Result<(), Fatal> {
        for (index, admit) in plan.admits.iter().enumerate() {
            if decided.takeovers.contains(&index) {
                self.take_over(admit, out)?;
            }
        }
        for (index, admit) in plan.admits.iter().enumerate() {
            self.admit(admit, decided.takeovers.contains(&index), out)?;
        }
        Ok(())
    }

    /// A sequence that will be no lane's goes.
    fn unbegun(&mut self, seq: u64) -> Fatal {
        self.seq_free(seq);
        Fatal
    }

    /// T-72, as many in one step as the runtime takes.
    fn feed_last_tokens(&mut self, plan: &Plan) -> Result<(), Fatal> {
        let waits = |&&(tag, publish): &&(u64, bool)| publish && self.lane(tag).is_some_and(|lane| lane.pending);
        let waiting: Vec<u64> = plan.retires.iter().filter(waits).map(|(tag, _)| *tag).collect();
        for chunk in waiting.chunks(self.shape.batch) {
            let lanes: Vec<Lane> = chunk.iter().map(|&tag| self.lane(tag).expect("it waits").clone()).collect();
            let last = |lane: &Lane| lane.committed[lane.committed.len() - 1];
            let feeds: Vec<(u64, Vec<u32>)> = lanes.iter().map(|lane| (lane.seq, vec![last(lane)])).collect();
            match self.step(&feeds) {
                Ok(()) => chunk.iter().for_each(|&tag| self.lane_mut(tag).pending = false),
                Err(ictus::runtime::RuntimeError::Fatal) => return Err(Fatal),
                Err(_) => {}
            }
        }
        Ok(())
    }

    /// T-71, T-73.
    fn retire(&mut self, tag: u64, publish: bool) {
        let Some(at) = self.lanes.iter().position(|lane| lane.tag == tag) else {
            self.faulted.retain(|other| *other != tag);
            return;
        };
        let lane = self.lanes.remove(at);
        self.give_grammar_back(lane.grammar.as_ref());
        let ingested = lane.held();
        let key_len = if self.shape.cuts { ingested / self.shape.page * self.shape.page } else { ingested };
        if !publish || key_len == 0 {
            self.seq_free(lane.seq);
            return;
        }
        if key_len < ingested {
            self.seq_truncate(lane.seq, key_len).expect("it can be cut at a page");
        }
        let prompt_len = lane.prompt.len().min(key_len); // S-47
        self.insert_entry(lane.seq, lane.committed[..key_len].to_vec(), prompt_len, false);
    }

    /// T-76.
    fn take_over(&mut self, admit: &Admit, out: &mut Predicted) -> Result<(), Fatal> {
        let lease = self.lease(admit.seed).expect("validated").clone();
        let Target::Entry(name) = lease.target else { return Err(Fatal) };
        let bytes = self.bytes_of(name);
        let tokens = self.entry(name).expect("it is leased").key.len() as u64;
        out.losses.push(Loss { tag: admit.tag, kind: shed_kind::CACHE_EVICTION, bytes, tokens });
        self.drop_lease(admit.seed);
        self.entries.retain(|entry| entry.name != name);
        // Kept as a bare sequence until its admit takes it, which is in this tick.
        self.seq_truncate(name, keep(admit, &lease)).map_err(|_| self.unbegun(name))?;
        self.taken.push((admit.tag, name, lease.prefix.len()));
        Ok(())
    }

    /// T-77 .. T-82.
    fn admit(&mut self, admit: &Admit, takes_over: bool, out: &mut Predicted) -> Result<(), Fatal> {
        self.faulted.retain(|tag| *tag != admit.tag);
        let adapter = self.adapter_of(admit.tag);
        self.bound.retain(|(tag, _)| *tag != admit.tag);
        let (seq, seeded, whole) = if takes_over {
            let at = self.taken.iter().position(|(tag, ..)| *tag == admit.tag).ok_or(Fatal)?;
            let (_, seq, seeded) = self.taken.remove(at);
            (seq, seeded, seeded == admit.prompt.len())
        } else if admit.seed == 0 {
            let seq = self.seq_create().map_err(|_| Fatal)?;
            self.seq_mut(seq).adapter = adapter;
            (seq, 0, false)
        } else {
            let lease = self.lease(admit.seed).expect("validated").clone();
            let keep = keep(admit, &lease);
            let seq = match lease.target {
                Target::Bare(seq) => {
                    self.drop_lease(admit.seed);
                    self.bares.retain(|bare| bare.seq != seq);
                    if keep < lease.prefix.len() {
                        self.seq_truncate(seq, keep).map_err(|_| self.unbegun(seq))?;
                    }
                    seq
                }
                Target::Entry(name) => {
                    let seq = self.seq_create().map_err(|_| Fatal)?;
                    self.seq_mut(seq).adapter = adapter;
                    self.drop_lease(admit.seed);
                    self.fill(seq, name, keep, admit, out).map_err(|Fatal| self.unbegun(seq))?;
                    seq
                }
            };
            (seq, lease.prefix.len(), keep < lease.prefix.len())
        };
        let bias = self.biases.iter().find(|(handle, _)| *handle == admit.bias).map(|(_, pairs)| pairs.clone());
        let replayed = &admit.prompt[admit.prompt.len() - admit.grammar_replay as usize..];
        let grammar = self.cursor(admit.grammar, replayed);
        self.borrow_grammar(admit.grammar);
        out.admitted.push(admit.tag);
        self.lanes.push(Lane {
            tag: admit.tag,
            seq,
            prompt: admit.prompt.clone(),
            committed: admit.prompt[..seeded].to_vec(),
            prefilled: seeded,
            prefill_end: (admit.prompt.len() - admit.replay as usize).max(seeded),
            mode: admit.mode,
            params: admit.params,
            base: admit.base,
            drawn: 0,
            logprobs: admit.logprobs,
            bias: bias.unwrap_or_default(),
            grammar,
            pending: whole,
            row: None,
            finished: false,
            doomed: None,
            cost: Cost { seeded: seeded - usize::from(whole), answered: 0 },
            speculates: admit.slot != 0,
            has_row: false,
        });
        Ok(())
    }

    /// A new sequence gets the first `keep` tokens of an entry (T-77, T-79, T-80).
    fn fill(&mut self, seq: u64, name: u64, keep: usize, admit: &Admit, out: &mut Predicted) -> Result<(), Fatal> {
        let entry = self.entry(name).expect("it was leased").clone();
        self.seq_mut(seq).taint = entry.taint;
        let now = self.now;
        let kept = self.entry_mut(name);
        kept.seeded += 1;
        if real_part(keep, entry.key.len()) {
            kept.last_use = now;
            self.changed = true;
        }
        if !entry.exported {
            return self.seq_copy(name, seq, keep).map_err(|_| Fatal);
        }
        if self.seq_import(seq, &entry.key).is_ok() {
            return if keep < entry.key.len() { self.seq_truncate(seq, keep).map_err(|_| Fatal) } else { Ok(()) };
        }
        self.seq_truncate(seq, 0).map_err(|_| Fatal)?;
        if keep > 0 {
            self.step(&[(seq, entry.key[..keep].to_vec())]).map_err(|_| Fatal)?;
        }
        if entry.pins == 0 {
            self.entries.retain(|entry| entry.name != name);
            let tokens = entry.key.len() as u64;
            out.losses.push(Loss { tag: admit.tag, kind: shed_kind::CACHE_EVICTION, bytes: 0, tokens });
        }
        Ok(())
    }
}
