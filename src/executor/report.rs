#![forbid(unsafe_code)]
//! Stage 7, report: emits, a slice of the state operations, counters and the record that holds it all (T-140 .. T-147).

use std::time::Instant;

use super::decode::Finished;
use super::lane::Lane;
use super::run::{Job, Run};
use super::state::State;
use crate::record::constant::{fault, tick_status};
use crate::record::view::Plain;
use crate::record::{LaneEmit, RingRef, SpecStats, TickMemCounters, TickTimings, TokenRef};
use crate::runtime::Runtime;

/// Writes the emits and completes the events.
pub(super) fn report<R: Runtime>(finished: Finished<'_>, started: Instant, run: &mut Run<'_, R>) {
    for job in finished.jobs {
        emit(job, run);
    }
    let State { lanes, speculation, .. } = &mut *run.state;
    speculation.forget(lanes.drain_undrafted());
    run.events.forget_logprobs_of_faulted();
    run.state.run_ops();
    run.state.transfers.ops.report(&mut run.events.op_completions);
    let status = match (run.events.faults.is_empty(), run.events.shed_entries.is_empty()) {
        (false, _) => tick_status::LANE_ERRORS,
        (true, false) => tick_status::SHED,
        (true, true) => tick_status::OK,
    };
    let mem = memory(run);
    run.trace_events(started, finished.plan_seq, status, &mem);
    let graphs = run.state.runtime.take_graph_counts();
    let timings = TickTimings {
        wall_ns: u64::try_from(started.elapsed().as_nanos()).unwrap_or(u64::MAX),
        prefill_ns: finished.prefill_ns,
        decode_ns: finished.decode_ns,
        graph_hits: graphs.hits,
        graph_misses: graphs.misses,
    };
    run.events.complete(finished.plan_seq, status, timings, mem);
}

/// The emit of one job; a lane whose tokens the ring cannot hold faults instead (T-141).
fn emit<R: Runtime>(job: &Job, run: &mut Run<'_, R>) {
    let Some(lane) = run.state.lanes.get(job.lane) else { return };
    let mut emit = LaneEmit {
        lane_tag: job.tag,
        token_ref: TokenRef::zeroed(),
        n_tokens: 0,
        finish: job.finish,
        logits_row: RingRef::zeroed(),
        spec: spec_stats(job, lane),
    };
    if lane.recipe().is_host() {
        emit.logits_row = lane.row().unwrap_or(RingRef::zeroed());
    } else {
        let tokens = lane.known(job.emit_from, lane.known_len());
        let Ok(reference) = run.rings.write_tokens(tokens) else {
            return run.fault(job.lane, fault::REF_SPAN_OOB);
        };
        emit.token_ref = reference;
        // A tick grants at most `u16::MAX` tokens.
        emit.n_tokens = tokens.len() as u32;
    }
    run.events.emits.push(emit);
}

/// What became of the lane's drafts; all zero when it drafted nothing (T-130).
fn spec_stats(job: &Job, lane: &Lane) -> SpecStats {
    let cert_id = lane.drafting().filter(|_| job.proposed > 0).map_or(0, |drafting| drafting.cert_id);
    SpecStats { proposed: job.proposed, accepted: job.accepted, cert_id_in_effect: cert_id, ..SpecStats::zeroed() }
}

/// Memory at the end of the tick, in pages where the record says so (T-145).
fn memory<R: Runtime>(run: &Run<'_, R>) -> TickMemCounters {
    let counters = run.state.runtime.mem_counters();
    let page = u64::from(run.state.descriptor.page_size_tokens.max(1));
    TickMemCounters {
        allocated_bytes: counters.allocated_bytes,
        host_retained_bytes: run.state.cache.host_bytes() + run.state.transfers.ops.retained_bytes(),
        pool_blocks_total: counters.cells_total / page,
        pool_blocks_used: counters.cells_used / page,
        pool_bytes_evictable: run.state.cache.evictable_bytes(),
        tentative_bytes: 0,
    }
}
