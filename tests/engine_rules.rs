//! Rules of the engine that no other room proves: tags, siblings, the life of events.

use ictus::engine::Engine;
use ictus::executor::Executor;
use ictus::record::constant::misc::ALL_SPACES;
use ictus::record::{Status, TickEvents};
use ictus::runtime::FakeRuntime;
use ictus::testing::Harness;

/// E-3: no tag means anything, 0 and the largest among them.
#[test]
fn every_number_is_an_ordinary_tag() {
    let answers: Vec<Vec<u32>> = [0, 1, u64::MAX]
        .into_iter()
        .map(|tag| {
            let mut h = Harness::with_engine(Executor::new(FakeRuntime::default()));
            let prompt = h.prompt(&[10, 20, 30]);
            let plan = h.plan().admit(tag, prompt).prefill(tag, 0, 3).decode(tag, 4);
            let events = h.tick_ok(plan);
            assert_eq!(events.emits.iter().map(|emit| emit.lane_tag).collect::<Vec<_>>(), [tag]);
            h.tokens_of(&events, tag)
        })
        .collect();
    assert_eq!(answers[0], [19927, 17910, 10995, 14421]);
    assert!(answers.iter().all(|answer| *answer == answers[0]));
}

/// E-10: who offers a method offers its siblings.
#[test]
fn siblings_are_offered_together() {
    let mut engine = Executor::new(FakeRuntime::default());
    let bare = engine.create_sequence().expect("offered");
    assert_eq!(engine.seed_adopt(bare, &[]), Err(Status::OutOfBoundary), "offered, and refused for its argument");
    assert_eq!(engine.space_snapshot_boundary(bare, 1, 5), Ok(0));
    assert_eq!(engine.space_snapshot(bare, 1, 0, 0, 1), Err(Status::RejectBounds));
    assert_eq!(engine.free_sequence(bare), Ok(()));
    let bias = engine.logit_bias_create(&[1], &[1.0]).expect("offered");
    assert_eq!(engine.logit_bias_free(bias), Ok(()));
    assert_eq!(engine.unpublish(&[1]), Ok(()));
    assert!(engine.space_match(ALL_SPACES, &[1], &[]).is_ok());
}

/// events say their size, and stay as they are until the next accepted tick, whatever else is called.
#[test]
fn events_stay_until_the_next_accepted_tick() {
    let mut h = Harness::with_engine(Executor::new(FakeRuntime::default()));
    let prompt = h.prompt(&[10, 20, 30]);
    let plan = h.plan().admit(7, prompt).prefill(7, 0, 3).decode(7, 4);
    h.tick_ok(plan);
    let seen = |h: &Harness<Executor<FakeRuntime>>| {
        let view = h.engine.last_events().expect("a tick was accepted");
        assert_eq!(view.record.struct_size as usize, size_of::<TickEvents>());
        (view.record.emits.data as usize, format!("{view:?}"))
    };
    let before = seen(&h);
    let refused = h.plan().decode(99, 1);
    assert_eq!(h.tick_err(refused), Status::RejectUnknownLane);
    let sequence = h.engine.lane_sequence(7).expect("the lane is live");
    let fork = h.engine.seq_fork(sequence, 0).expect("a lane can be forked");
    h.engine.free_sequence(fork).expect("the fork is bare");
    h.engine.pump();
    assert_eq!(seen(&h), before);
}
