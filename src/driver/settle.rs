#![forbid(unsafe_code)]
//! What an accepted tick means for the requests.

use super::draft::{Act, Draft};
use super::event::{Event, EventKind, Failure, Finish, TokenLogprob};
use super::lanes::Slot;
use super::scheduler::{Retire, Scheduler};
use crate::engine::EventsView;
use crate::record::constant::{admit_status, fault, finish, shed_kind};
use crate::record::{LaneEmit, Status};
use crate::ring::Rings;

/// Times that a lane may fault for want of memory before its request fails.
const OUT_OF_MEMORY_MAX: u32 = 3;

impl Scheduler {
    /// Books the events of the tick that took this draft.
    pub(super) fn settle(&mut self, view: &EventsView<'_>, draft: &Draft) {
        self.ticks += 1;
        self.retires.drain(..draft.retires.min(self.retires.len()));
        self.pool.update(&view.record.mem);
        self.pace.record(draft.prefill_tokens(), view.record.timings.prefill_ns);
        self.settle_admits(view);
        for record in view.logprobs {
            if let Some(live) = self.lanes.slot_of(record.lane_tag).and_then(|slot| self.lanes.get_mut(slot)) {
                live.logprobs.push(TokenLogprob::from(record));
            }
        }
        for act in &draft.acts {
            self.settle_prefill(act, cut_off(view, act.lane_tag));
        }
        let mut emits = view.emits.iter().peekable();
        for act in draft.acts.iter().filter(|act| act.grant > 0) {
            // A lane without an emit has faulted (T-140).
            if let Some(emit) = emits.next_if(|emit| emit.lane_tag == act.lane_tag) {
                self.settle_emit(act, emit);
            }
        }
        for fault in view.faults {
            if let Some(slot) = self.lanes.slot_of(fault.lane_tag) {
                self.settle_fault(slot, fault.code);
            }
        }
        if let Some(slot) = draft.victim {
            self.settle_victim(slot);
        }
    }

    fn settle_admits(&mut self, view: &EventsView<'_>) {
        let now = self.clock.now();
        for result in view.admit_results {
            let Some(slot) = self.lanes.slot_of(result.lane_tag) else { continue };
            let Some(live) = self.lanes.get_mut(slot).filter(|live| live.fresh) else { continue };
            if result.status != admit_status::ADMITTED {
                let status = Status::from_code(result.reject_code as i32).unwrap_or(Status::RejectIllegalCombination);
                // It never was a lane, so there is nothing to retire: it stays fresh.
                self.leave(slot, Finish::Failed(Failure::Rejected(status)));
                continue;
            }
            live.fresh = false;
            live.lease = 0;
            let job = &mut live.job;
            job.stats.cached_tokens += u64::from(live.seeded);
            let first = !std::mem::replace(&mut job.started, true);
            if first {
                job.stats.queued = Some(now.saturating_sub(job.submitted));
                let kind = EventKind::Started { cached_tokens: live.seeded.into() };
                self.events.push_back(Event { request: job.id, kind });
            }
        }
    }

    /// `cut`: prompt tokens that the tick did not come to (T-91).
    fn settle_prefill(&mut self, act: &Act, cut: u32) {
        let Some(live) = self.lanes.get_mut(act.slot).filter(|live| live.lane_tag == act.lane_tag) else { return };
        let ran = act.prefill.saturating_sub(cut);
        live.prefilled += ran;
        live.job.stats.prefill_tokens += u64::from(ran);
        if live.prefill_left() == 0 {
            let replayed = u32::from(act.grant).min(live.replay_left);
            live.replay_left -= replayed;
            live.job.stats.replayed_tokens += u64::from(replayed);
        }
    }

    fn settle_emit(&mut self, act: &Act, emit: &LaneEmit) {
        let now = self.clock.now();
        let Some(live) = self.lanes.get_mut(act.slot).filter(|live| live.lane_tag == act.lane_tag) else { return };
        self.emitted.clear();
        // The ring has a slot for every lane of a plan, so the reference is fresh; an engine that says otherwise gave nothing.
        let ends = match self.rings.read_tokens(&emit.token_ref, &mut self.emitted) {
            Ok(()) => ends(emit.finish),
            Err(_) => Some(Finish::Failed(Failure::Fault { code: fault::REF_SPAN_OOB })),
        };
        live.job.stats.drafted_tokens += u64::from(emit.spec.proposed);
        live.job.stats.accepted_tokens += u64::from(emit.spec.accepted);
        if !self.emitted.is_empty() {
            live.spoke = true;
            live.job.stats.first_token.get_or_insert(now.saturating_sub(live.job.submitted));
        }
        let mut logprobs = std::mem::take(&mut live.logprobs);
        let (piece, over) = live.job.take(&self.emitted, &mut logprobs, ends);
        let id = live.job.id;
        if !piece.tokens.is_empty() {
            self.events.push_back(Event { request: id, kind: EventKind::Tokens(piece) });
        }
        if let Some(finish) = over {
            self.leave(act.slot, finish);
        }
    }

    /// A lane that ran out of memory tries again with what it has said; any other fault is the end of its request.
    fn settle_fault(&mut self, slot: Slot, code: u32) {
        let Some(live) = self.lanes.get_mut(slot) else { return };
        live.logprobs.clear();
        live.job.out_of_memory += u32::from(code == fault::OOM_TENTATIVE);
        let again = code == fault::OOM_TENTATIVE && live.job.out_of_memory <= OUT_OF_MEMORY_MAX;
        if !again {
            return self.leave(slot, Finish::Failed(Failure::Fault { code }));
        }
        // The retire only clears the mark of the tag (T-71).
        self.retires.push(Retire { lane_tag: live.lane_tag, publish: false });
        self.settle_victim(slot);
    }

    /// The job waits again, with what it said.
    fn settle_victim(&mut self, slot: Slot) {
        let Some(mut live) = self.take_off(slot) else { return };
        live.job.stats.preemptions += 1;
        self.wait(live.job);
        self.note_no_room();
    }
}

/// Why the engine ended a lane.
fn ends(code: u32) -> Option<Finish> {
    match code {
        finish::NONE => None,
        finish::EOS => Some(Finish::EndToken),
        finish::LENGTH => Some(Finish::ContextFull),
        finish::GRAMMAR => Some(Finish::Grammar),
        finish::CANCELLED => Some(Finish::Cancelled),
        _ => Some(Finish::Failed(Failure::Fault { code: fault::UNSPECIFIED })),
    }
}

/// Prompt tokens of a lane that the tick was asked for and did not run.
fn cut_off(view: &EventsView<'_>, lane_tag: u64) -> u32 {
    if view.record.shed.prefill_chunks_dropped == 0 {
        return 0;
    }
    let chunks =
        view.shed_entries.iter().filter(|entry| entry.kind == shed_kind::PREFILL_CHUNK && entry.lane_tag == lane_tag);
    let tokens = chunks.map(|entry| entry.tokens).fold(0, u64::saturating_add);
    u32::try_from(tokens).unwrap_or(u32::MAX)
}
