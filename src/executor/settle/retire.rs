#![forbid(unsafe_code)]
//! Lanes end: their state becomes an entry of the cache, or goes (T-71 .. T-73).

use crate::executor::cache::Entering;
use crate::executor::lane::Lane;
use crate::executor::lanes::LaneId;
use crate::executor::plan::Entry;
use crate::executor::run::{Fatal, Portion, Run};
use crate::executor::validate::Valid;
use crate::record::LaneRetire;
use crate::runtime::Runtime;

/// Ends lanes; of a faulted one only the mark is left to clear (T-71).
///
/// # Errors
/// The runtime is broken.
pub(super) fn retire<R: Runtime>(valid: &Valid<'_>, run: &mut Run<'_, R>) -> Result<(), Fatal> {
    // Lanes that leave nothing behind go first: their cells are counted on by whoever publishes (T-60, T-66).
    end_lanes(valid, false, run);
    feed_last_tokens(valid, run)?;
    end_lanes(valid, true, run);
    Ok(())
}

/// Ends the lanes that publish, or those that do not.
fn end_lanes<R: Runtime>(valid: &Valid<'_>, publishing: bool, run: &mut Run<'_, R>) {
    for retire in valid.plan.retires.iter().filter(|retire| (retire.record.publish_to_cache != 0) == publishing) {
        match lane_of(retire, valid).and_then(|lane| run.state.lanes.remove(lane)) {
            Some(lane) => {
                run.state.take_back(&lane);
                match publishing {
                    false => run.state.free_sequence(lane.sequence()),
                    true => publish(lane, run),
                }
            }
            None => {
                run.state.faulted.remove(&retire.record.lane_tag);
            }
        }
    }
}

fn lane_of(retire: &Entry<LaneRetire>, valid: &Valid<'_>) -> Option<LaneId> {
    valid.plan.parties.get(retire.party)?.standing?.lane
}

/// Feeds the pending inputs of the publishing lanes, as many in one step as the runtime takes; those of a step that fails stay out
/// (T-72).
fn feed_last_tokens<R: Runtime>(valid: &Valid<'_>, run: &mut Run<'_, R>) -> Result<(), Fatal> {
    let lanes_max = run.state.descriptor.max_batch.max(1) as usize;
    run.steps.portions.clear();
    for retire in valid.plan.retires.iter().filter(|retire| retire.record.publish_to_cache != 0) {
        let Some(id) = lane_of(retire, valid) else { continue };
        let lane = run.state.lanes.get(id).ok_or(Fatal)?;
        if !lane.has_pending_input() {
            continue;
        }
        let committed = lane.committed_len();
        run.steps.portions.push(Portion { lane: id, job: None, fed: committed, committed, asks: false });
        if run.steps.portions.len() == lanes_max {
            run.step_if_it_can()?;
            run.steps.portions.clear();
        }
    }
    if !run.steps.portions.is_empty() {
        run.step_if_it_can()?;
        run.steps.portions.clear();
    }
    Ok(())
}

/// The lane's state enters the cache under what it holds; less than a page is not worth an entry (T-73).
fn publish<R: Runtime>(lane: Lane, run: &mut Run<'_, R>) {
    let (sequence, content) = (lane.sequence(), lane.content());
    let key_len = run.state.key_len(lane.fed_len());
    if key_len == 0 {
        return run.state.free_sequence(sequence);
    }
    let prompt_len = lane.prompt_len().min(key_len);
    let entering = Entering { content, prompt_len, shared: false };
    run.state.enter_cache(sequence, lane.into_tokens(key_len), entering);
}
