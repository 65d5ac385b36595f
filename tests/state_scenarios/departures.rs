//! Entries leave the pool slice by slice (S-99), and nobody sees it but the counters of memory.

use ictus::engine::Engine;
use ictus::executor::ExecutorOptions;
use ictus::record::Status;
use ictus::record::constant::{cache_class, determinism};
use ictus::runtime::FakeOptions;
use ictus::testing::Harness;

use super::cached::*;
use super::engine::{ROUNDS, under_test_with};
use super::host::*;
use super::random::Random;

/// Two tokens of the fake's payloads.
const SLICE: u64 = 8;

/// An engine that copies so many bytes at a time.
fn slow_host(cache_slice_bytes: u64, change: impl FnOnce(&mut FakeOptions)) -> Fake {
    let options = ExecutorOptions { cache_slice_bytes, ..ExecutorOptions::default() };
    Harness::with_engine(under_test_with(options, change))
}

/// Six tokens each: what is published second sends the first out of a pool of eight resting cells.
fn two() -> [Vec<u32>; 2] {
    [span(0, 6), span(100, 106)]
}

/// An engine in which the first of the two is leaving, two of its tokens copied.
fn leaving(change: impl FnOnce(&mut FakeOptions)) -> Fake {
    let mut h = slow_host(SLICE, |options| {
        pool(8, 64)(options);
        change(options);
    });
    for key in &two() {
        assert_eq!(losses(&publish(&mut h, key)), []);
    }
    assert_eq!(cells(&h), 6 + 4, "two of six tokens are out");
    h
}

/// What hosts and rules see of the two while the first leaves, and when it has left.
#[track_caller]
fn check_rules(h: &mut Fake) {
    h.engine.audit().expect("the engine is sound");
    for key in &two() {
        assert_eq!(h.engine.match_lengths(&beyond(key)), [6]);
    }
    assert_eq!((h.engine.cache_bytes(), h.engine.cache_exported_tokens()), (6, 6));
}

/// S-99, S-56: a slice per tick or pump, pages go back as they are copied, and host memory is counted from the start.
#[test]
fn entry_leaves_slice_by_slice_and_is_offered_all_the_while() {
    for pumps in [false, true] {
        let mut h = leaving(|_| {});
        for held in [4, 2, 0] {
            check_rules(&mut h);
            assert_eq!(cells(&h), 6 + held);
            if pumps { h.engine.pump() } else { drop(ok(&mut h, |plan| plan)) }
        }
        check_rules(&mut h);
        assert_eq!(ok(&mut h, |plan| plan).mem.host_retained_bytes, 24);
    }
    let mut h = leaving(|_| {});
    assert_eq!(ok(&mut h, |plan| plan).mem.host_retained_bytes, 24, "reserved is counted");
}

/// T-77: a lane that starts from it waits for the rest, and says what it says cold.
#[test]
fn lane_starts_from_an_entry_that_is_leaving() {
    for len in [6, 4] {
        let mut h = leaving(|_| {});
        let prompt = beyond(&two()[0][..len]);
        let lease = lease(&mut h, &prompt, len as u64);
        seeded(&mut h, 1, &prompt, lease, len, 3);
        check_rules(&mut h);
    }
}

/// T-66, T-67: its cells and its slot are as good as free.
#[test]
fn what_is_leaving_is_in_nobodys_way() {
    let bounded = |cells, slots| {
        move |options: &mut FakeOptions| {
            options.descriptor.cells_total = cells;
            options.descriptor.max_seqs = slots;
        }
    };
    let mut h = leaving(bounded(12, 0));
    let prompt = span(200, 204);
    // 6 cells of 12 are free as far as the rules go.
    start(&mut h, 1, &prompt, 2, plain);
    check_rules(&mut h);
    assert!(cells(&h) <= 12);

    let mut h = leaving(bounded(0, 2));
    start(&mut h, 1, &prompt, 2, plain);
    check_rules(&mut h);
    assert_eq!(h.engine.primitives().live_sequences(), 2, "an entry and a lane");
    let mut h = leaving(bounded(0, 2));
    let bare = h.engine.create_sequence().expect("a slot");
    check_rules(&mut h);
    assert_eq!(h.engine.free_sequence(bare), Ok(()));
}

/// S-59, S-60: what is dropped on the way is not copied any further.
#[test]
fn entry_may_be_dropped_while_it_leaves() {
    for shortage in [false, true] {
        let mut h = leaving(|_| {});
        match shortage {
            true => assert_eq!(h.engine.cache_evict(cache_class::HOST_EXPORT, 0, 0, 0), Ok(0)),
            false => h.engine.unpublish(&two()[0]).expect("it is dropped"),
        }
        h.engine.audit().expect("the engine is sound");
        assert_eq!((cells(&h), h.engine.cache_exported_tokens()), (6, 0));
        assert_eq!(ok(&mut h, |plan| plan).mem.host_retained_bytes, 0);
    }
}

/// S-99: a loss is reported when it happens; a lease on what is lost is served all the same (T-79).
#[test]
fn export_that_fails_on_the_way_is_a_loss_then() {
    let mut h = leaving(|_| {});
    h.engine.primitives_mut().poison_next_export();
    assert_eq!(losses(&ok(&mut h, |plan| plan)), [], "it fails at the end of this tick");
    assert_eq!(losses(&ok(&mut h, |plan| plan)), [(0, 6, 6)]);
    h.engine.audit().expect("the engine is sound");
    assert_eq!((cells(&h), h.engine.cache_exported_tokens()), (6, 0));

    let mut h = leaving(|_| {});
    let prompt = beyond(&two()[0]);
    let lease = lease(&mut h, &prompt, 6);
    h.engine.primitives_mut().poison_next_export();
    let events = seeded(&mut h, 1, &prompt, lease, 6, 3);
    assert_eq!(losses(&events), [(1, 0, 6)]);
}

/// S-56, T-143: one that fails in its first slice is a loss of the tick that sent it away.
#[test]
fn export_that_fails_at_once_is_a_loss_of_the_tick() {
    let mut h = slow_host(u64::MAX, |options| pool(8, 64)(options));
    assert_eq!(losses(&publish(&mut h, &two()[0])), []);
    h.engine.primitives_mut().poison_next_export();
    assert_eq!(losses(&publish(&mut h, &two()[1])), [(0, 6, 6)]);
    assert_eq!((cells(&h), h.engine.cache_exported_tokens()), (6, 0));
    assert_eq!(losses(&ok(&mut h, |plan| plan)), [], "it is told once");
}

/// A host that does the same to every engine, whatever their slices.
struct Twins {
    hosts: Vec<Fake>,
    lanes: Vec<(u64, Vec<u32>)>,
    leases: Vec<(u64, Vec<u32>, usize)>,
    next_tag: u64,
}

impl Twins {
    fn new(change: impl Fn(&mut FakeOptions)) -> Self {
        let hosts = [u64::MAX, 1, 24].map(|slice| slow_host(slice, &change)).into();
        Self { hosts, lanes: Vec::new(), leases: Vec::new(), next_tag: 1 }
    }

    /// What all answer.
    #[track_caller]
    fn all<T: PartialEq + std::fmt::Debug>(&mut self, mut call: impl FnMut(&mut Fake) -> T) -> T {
        let answers: Vec<T> = self.hosts.iter_mut().map(&mut call).collect();
        assert!(answers.iter().all(|answer| *answer == answers[0]), "{answers:?}");
        answers.into_iter().next().expect("there are some")
    }

    fn spans(random: &mut Random) -> Vec<u32> {
        let family = random.below(5) as u32;
        let common = random.below(12) as u32;
        let own = 1 + random.below(10) as u32;
        let who = random.below(3) as u32;
        (0..common).map(|at| family * 50 + at).chain((0..own).map(|at| 1000 + who * 50 + at)).collect()
    }

    fn admit(&mut self, random: &mut Random) {
        let tag = self.next_tag;
        self.next_tag += 1;
        let seed = if self.leases.is_empty() || random.below(3) == 0 {
            None
        } else {
            Some(self.leases.swap_remove(random.below(self.leases.len())))
        };
        let (handle, prompt, len) = seed.unwrap_or((0, Self::spans(random), 0));
        let grant = random.below(3) as u16;
        let evicts = random.below(2) == 0;
        let admitted = self.all(|h| {
            let staged = h.prompt(&prompt);
            let rest = (prompt.len() - len) as u32;
            let plan = h.plan().admit_with(|admit| admit.seed_handle = handle, tag, staged);
            let plan = if rest > 0 { plan.prefill(tag, len as u32, rest) } else { plan };
            let plan = if grant > 0 { plan.decode(tag, grant) } else { plan };
            let plan = if evicts { plan } else { plan.evict_envelope(0, 0) };
            let events = h.tick(plan)?;
            Ok::<_, Status>((
                events.tick_status,
                if grant > 0 { h.tokens_of(&events, tag) } else { Vec::new() },
                losses(&events),
                events.faults.len(),
            ))
        });
        match admitted {
            Ok((.., faults)) => {
                assert_eq!(faults, 0, "what was accepted fits");
                self.lanes.push((tag, prompt));
            }
            Err(Status::NeedsReplan) => {
                let _ = self.all(|h| h.engine.seed_release(handle));
            }
            Err(other) => assert_eq!(other, Status::RejectStaleSeed),
        }
    }

    fn act(&mut self, random: &mut Random) {
        match random.below(12) {
            0..=3 => self.admit(random),
            4..=6 if !self.lanes.is_empty() => {
                let (tag, _) = self.lanes.swap_remove(random.below(self.lanes.len()));
                let publish = random.below(5) > 0;
                let told = self.all(|h| {
                    let plan = h.plan().retire(tag, publish);
                    h.tick(plan).map(|events| (events.tick_status, losses(&events)))
                });
                if told == Err(Status::NeedsReplan) {
                    self.all(|h| drop(ok(h, |plan| plan.retire(tag, false))));
                }
            }
            7 | 8 => {
                let span = Self::spans(random);
                let offered = self.all(|h| h.engine.match_lengths(&span));
                if let Some(&len) = offered.first() {
                    let lease = self.all(|h| h.engine.seed_acquire(&span, len, determinism::BEST_EFFORT));
                    self.leases.extend(lease.map(|lease| (lease, span.clone(), len as usize)).ok());
                }
            }
            9 => {
                let (class, target) = *random.pick(&[
                    (cache_class::RESIDENT, 6),
                    (cache_class::RESIDENT, 30),
                    (cache_class::HOST_EXPORT, 0),
                ]);
                if class == cache_class::RESIDENT || random.below(8) == 0 {
                    self.all(|h| h.engine.cache_evict(class, 0, u64::MAX, target)).expect("it answers");
                }
            }
            10 => {
                let made = self.all(|h| h.engine.create_sequence());
                if let Ok(sequence) = made {
                    self.all(|h| h.engine.free_sequence(sequence)).expect("it is bare");
                }
            }
            _ => self.all(|h| losses(&ok(h, |plan| plan))).clear(),
        }
    }
}

/// S-99, T-3: what is offered, evicted, lost, refused and said is the same whatever the slices are, on any kind of pool.
#[test]
fn nothing_depends_on_how_far_departures_are() {
    let mut random = Random::new("nothing_depends_on_how_far_departures_are");
    let mut exports = 0;
    for _ in 0..ROUNDS {
        let (page, shares) = *random.pick(&[(1, true), (1, false), (4, true)]);
        let (cells_total, slots) = *random.pick(&[(0, 0), (64, 0), (96, 6), (0, 5)]);
        let head_only = random.below(4) == 0;
        let resident = *random.pick(&[8, 24]);
        let mut twins = Twins::new(|options| {
            pool(resident, 60)(options);
            options.descriptor.page_size_tokens = page;
            options.descriptor.cell_granule_tokens = page;
            options.descriptor.copy_shares_cells = shares;
            options.descriptor.cells_total = cells_total;
            options.descriptor.max_seqs = slots;
            options.descriptor.truncate_partial = !head_only;
            options.record = false;
        });
        for _ in 0..120 {
            twins.act(&mut random);
            let kept = twins.all(|h| (h.engine.cache_bytes(), h.engine.cache_exported_tokens()));
            exports += u64::from(kept.1 > 0);
            twins.hosts.iter().for_each(|h| h.engine.audit().expect("the engine is sound"));
        }
        // What is on its way arrives.
        for h in &mut twins.hosts {
            (0..200).for_each(|_| h.engine.pump());
        }
        twins.all(|h| (cells(h), h.engine.primitives().live_sequences()));
    }
    assert!(exports > 8 * ROUNDS as u64, "entries were exported: {exports}");
}
