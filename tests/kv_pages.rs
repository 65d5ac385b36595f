//! The page bookkeeping against a plain model, and with every page failing in turn.

#![allow(dead_code, reason = "this file uses a part of the random helper")]

#[path = "common/random.rs"]
mod random;

use std::collections::{BTreeMap, BTreeSet};

use ictus::kv::{Growth, Handle, KvError, Sequences, SequencesShape};
use random::Random;

/// What the bookkeeping must do, as simply as it can be said: a sequence is its tokens and the identities of its pages.
#[derive(Clone, Default)]
struct Plain {
    page_size: usize,
    pages: usize,
    next_page: u64,
    sequences: BTreeMap<Handle, (Vec<u64>, Vec<u64>)>,
}

impl Plain {
    fn holders(&self, page: u64) -> usize {
        self.sequences.values().filter(|(_, pages)| pages.contains(&page)).count()
    }

    fn used(&self) -> usize {
        let mut all: Vec<u64> = self.sequences.values().flat_map(|(_, pages)| pages.clone()).collect();
        all.sort_unstable();
        all.dedup();
        all.len()
    }

    /// Appends; false when the pool is too small, and then nothing changed.
    fn grow(&mut self, growths: &[(Handle, Vec<u64>)]) -> bool {
        let mut next = self.clone();
        for (handle, tokens) in growths {
            let (held, pages) = next.sequences[handle].clone();
            let mut pages = pages;
            if !tokens.is_empty() && held.len() % self.page_size != 0 && next.holders(pages[pages.len() - 1]) > 1 {
                pages.pop();
                pages.push(next.next_page);
                next.next_page += 1;
            }
            while pages.len() * self.page_size < held.len() + tokens.len() {
                pages.push(next.next_page);
                next.next_page += 1;
            }
            next.sequences.insert(*handle, ([held, tokens.clone()].concat(), pages));
        }
        let fits = next.used() <= self.pages;
        if fits {
            *self = next;
        }
        fits
    }

    fn cut(&mut self, handle: Handle, len: usize) {
        let page_size = self.page_size;
        let (tokens, pages) = self.sequences.get_mut(&handle).expect("known");
        tokens.truncate(len);
        pages.truncate(len.div_ceil(page_size));
    }
}

/// Length and pages of each sequence, none for an unknown one; free pages.
type State = (Vec<Option<(usize, Vec<u32>)>>, usize);

/// The real bookkeeping with the bytes it speaks of: one cell per token.
struct Real {
    kv: Sequences,
    cells: Vec<u64>,
}

impl Real {
    fn new(shape: SequencesShape) -> Self {
        let kv = Sequences::new(shape).expect("small");
        Self { kv, cells: vec![u64::MAX; shape.pages * shape.page_size_tokens] }
    }

    fn grow(&mut self, growths: &[(Handle, Vec<u64>)]) -> Result<(), KvError> {
        let page_size = self.kv.shape().page_size_tokens;
        let starts: Vec<usize> =
            growths.iter().map(|(handle, _)| self.kv.table(*handle).map_or(0, |t| t.len())).collect();
        let plan: Vec<Growth> =
            growths.iter().map(|(handle, tokens)| Growth { handle: *handle, tokens: tokens.len() }).collect();
        let free = self.kv.pool().pages_free();
        let mut copies = Vec::new();
        let needed = self.kv.pages_to_grow(&plan);
        let ahead: Vec<(usize, Growth)> = starts.iter().copied().zip(plan.iter().copied()).collect();
        let foretold = self.kv.pages_to_regrow(&ahead, &[]);
        self.kv.grow(&plan, &mut copies)?;
        assert_eq!(free - self.kv.pool().pages_free(), needed.expect("it grew"), "the count is what was taken");
        assert_eq!(foretold, needed.expect("it grew"), "so is the count from outside");
        for (from, to) in copies {
            let from = from as usize * page_size;
            self.cells.copy_within(from..from + page_size, to as usize * page_size);
        }
        for ((handle, tokens), start) in growths.iter().zip(starts) {
            let table = self.kv.table(*handle).expect("known");
            for (i, token) in tokens.iter().enumerate() {
                let position = start + i;
                let page = table.pages()[position / page_size] as usize;
                self.cells[page * page_size + position % page_size] = *token;
            }
        }
        Ok(())
    }

    fn tokens(&self, handle: Handle) -> Vec<u64> {
        let page_size = self.kv.shape().page_size_tokens;
        let table = self.kv.table(handle).expect("known");
        let cell = |position: usize| table.pages()[position / page_size] as usize * page_size + position % page_size;
        (0..table.len()).map(|position| self.cells[cell(position)]).collect()
    }

    /// Everything that can be observed.
    fn state(&self, handles: &[Handle]) -> State {
        let table = |handle: &Handle| self.kv.table(*handle).ok().map(|t| (t.len(), t.pages().to_vec()));
        (handles.iter().map(table).collect(), self.kv.pool().pages_free())
    }
}

fn audit(kv: &Sequences) {
    #[cfg(debug_assertions)]
    kv.audit().expect("the tables agree");
    let _ = kv;
}

#[test]
fn kv_pool_matches_a_plain_model_under_random_operations() {
    let mut random = Random::new("kv_pool");
    for _ in 0..40 {
        let shape = SequencesShape {
            pages: random.between(1, 40),
            page_size_tokens: *random.pick(&[1, 2, 4, 16]),
            sequence_tokens: random.between(20, 200),
            sequences: random.between(1, 12),
        };
        let mut real = Real::new(shape);
        let mut plain = Plain { page_size: shape.page_size_tokens, pages: shape.pages, ..Plain::default() };
        let mut last_handle = 0;
        let mut token = 0;
        let mut resting: BTreeSet<Handle> = BTreeSet::new();
        for _ in 0..300 {
            let handles: Vec<Handle> = plain.sequences.keys().copied().collect();
            match random.below(11) {
                0 | 1 => match real.kv.create() {
                    Ok(handle) => {
                        assert!(handle > last_handle, "handles ascend (R-5)");
                        last_handle = handle;
                        plain.sequences.insert(handle, Default::default());
                    }
                    Err(error) => {
                        assert_eq!(error, KvError::OutOfSequences { limit: shape.sequences });
                        assert_eq!(handles.len(), shape.sequences);
                    }
                },
                _ if handles.is_empty() => {}
                2 => {
                    let handle = *random.pick(&handles);
                    let released = real.kv.pages_released(&[handle]);
                    let used = plain.used();
                    assert!(real.kv.free(handle));
                    assert!(!real.kv.free(handle), "a freed handle is unknown");
                    plain.sequences.remove(&handle);
                    resting.remove(&handle);
                    assert_eq!(used - plain.used(), released, "R-8, one sequence");
                }
                3 => {
                    let handle = *random.pick(&handles);
                    let held = plain.sequences[&handle].0.len();
                    let len = random.below(held + 2);
                    let cut = real.kv.truncate(handle, len as u64);
                    assert_eq!(cut.is_ok(), len <= held);
                    if cut.is_ok() {
                        plain.cut(handle, len);
                        resting.remove(&handle);
                    }
                }
                4 | 5 => {
                    let (source, target) = (*random.pick(&handles), *random.pick(&handles));
                    let held = plain.sequences[&source].clone();
                    let len = random.below(held.0.len() + 2);
                    let shared = real.kv.share(source, target, len as u64);
                    assert_eq!(shared.is_ok(), len <= held.0.len());
                    if shared.is_ok() {
                        plain.sequences.insert(target, held);
                        plain.cut(target, len);
                        resting.remove(&target);
                    }
                }
                6 => {
                    let handle = *random.pick(&handles);
                    assert!(real.kv.rest(handle));
                    resting.insert(handle);
                }
                _ => {
                    let mut chosen = handles.clone();
                    random.shuffle(&mut chosen);
                    chosen.truncate(random.between(1, 3));
                    let mut growths = Vec::new();
                    for handle in chosen {
                        let room = shape.sequence_tokens - plain.sequences[&handle].0.len();
                        let tokens: Vec<u64> = (0..random.below(room.min(24) + 1) as u64).map(|i| token + i).collect();
                        token += tokens.len() as u64;
                        growths.push((handle, tokens));
                    }
                    let before = real.state(&handles);
                    let grown = real.grow(&growths);
                    assert_eq!(grown.is_ok(), plain.grow(&growths), "{grown:?}");
                    if grown.is_err() {
                        assert!(matches!(grown, Err(KvError::OutOfPages { .. })));
                        assert_eq!(real.state(&handles), before, "a refusal changed nothing");
                    } else {
                        growths.iter().for_each(|(handle, _)| {
                            resting.remove(handle);
                        });
                    }
                }
            }
            audit(&real.kv);
            assert_eq!(real.kv.pool().pages_used(), plain.used());
            let mut working = plain.clone();
            working.sequences.retain(|handle, _| !resting.contains(handle));
            assert_eq!(
                real.kv.pool().pages_resting(),
                plain.used() - working.used(),
                "pages that only resting ones hold"
            );
            for (handle, (tokens, _)) in &plain.sequences {
                assert_eq!(&real.tokens(*handle), tokens, "the tokens of {handle}");
            }
            let some: Vec<Handle> =
                (0..random.below(5)).filter_map(|_| handles.get(random.below(8)).copied()).collect();
            let mut without = plain.clone();
            without.sequences.retain(|handle, _| !some.contains(handle));
            assert_eq!(real.kv.pages_released(&some), plain.used() - without.used(), "R-8, with repetitions");
        }
    }
}

/// Shared tails, two holders growing in one call, a third that keeps the page: pools of every size too small for it.
#[test]
fn growth_that_lacks_the_nth_page_moves_nothing() {
    let steps: [&[(usize, u64)]; 3] = [&[(0, 10)], &[(1, 3), (2, 1)], &[(0, 9), (1, 2), (2, 20)]];
    let run = |pages: usize| {
        let shape = SequencesShape { pages, page_size_tokens: 4, sequence_tokens: 64, sequences: 8 };
        let mut real = Real::new(shape);
        let handles: Vec<Handle> = (0..4).map(|_| real.kv.create().expect("a slot")).collect();
        for (index, step) in steps.iter().enumerate() {
            let growths: Vec<_> = step.iter().map(|&(who, n)| (handles[who], (0..n).collect())).collect();
            let before = real.state(&handles);
            if let Err(first) = real.grow(&growths) {
                assert!(matches!(first, KvError::OutOfPages { free, .. } if free < pages || index == 0));
                assert_eq!(real.state(&handles), before);
                assert_eq!(real.grow(&growths), Err(first), "refused twice alike");
                assert_eq!(real.state(&handles), before);
                audit(&real.kv);
                handles.iter().for_each(|&handle| assert!(real.kv.free(handle)));
                assert_eq!(real.kv.pool().pages_free(), pages);
                return Some(index);
            }
            if index == 0 {
                // The tail page of 2 tokens is now held four times.
                handles[1..].iter().for_each(|&to| real.kv.share(handles[0], to, 10).expect("it is held"));
            }
        }
        audit(&real.kv);
        None
    };
    let outcomes: Vec<_> = (0..20).map(run).collect();
    // Step 0 takes 3 pages; step 1 two copies and one page; step 2 the rest.
    assert_eq!(&outcomes[..7], [Some(0), Some(0), Some(0), Some(1), Some(1), Some(1), Some(2)]);
    let enough = outcomes.iter().position(Option::is_none).expect("20 pages are enough");
    assert!(outcomes[6..enough].iter().all(|&step| step == Some(2)) && outcomes[enough..].iter().all(Option::is_none));
    assert_eq!(enough, 14, "6 pages, then 1 copy and 2 pages, none, and 5 pages");
}

#[test]
fn last_holder_of_a_shared_tail_keeps_it() {
    let shape = SequencesShape { pages: 3, page_size_tokens: 4, sequence_tokens: 64, sequences: 2 };
    let mut real = Real::new(shape);
    let (a, b) = (real.kv.create().expect("a slot"), real.kv.create().expect("a slot"));
    real.grow(&[(a, vec![1, 2, 3, 4, 5])]).expect("2 pages");
    real.kv.share(a, b, 5).expect("it is held");
    // Both write at position 5; one copy is enough, and the pool has just that one page left.
    real.grow(&[(a, vec![6]), (b, vec![7])]).expect("1 page");
    assert_eq!((real.tokens(a), real.tokens(b)), (vec![1, 2, 3, 4, 5, 6], vec![1, 2, 3, 4, 5, 7]));
    audit(&real.kv);
}

#[test]
fn misuse_is_refused_twice_and_changes_nothing() {
    let shape = SequencesShape { pages: 4, page_size_tokens: 4, sequence_tokens: 12, sequences: 2 };
    let mut real = Real::new(shape);
    let (a, b) = (real.kv.create().expect("a slot"), real.kv.create().expect("a slot"));
    real.grow(&[(a, vec![1, 2, 3])]).expect("1 page");
    let before = real.state(&[a, b]);
    for _ in 0..2 {
        assert_eq!(real.kv.create(), Err(KvError::OutOfSequences { limit: 2 }));
        assert_eq!(real.grow(&[(b, vec![1]), (b, vec![2])]), Err(KvError::Repeated { handle: b }));
        assert_eq!(real.grow(&[(b, vec![1]), (0, vec![2])]), Err(KvError::UnknownSequence { handle: 0 }));
        assert_eq!(real.grow(&[(b, vec![1]), (a, vec![0; 10])]), Err(KvError::TooLong { tokens: 13, limit: 12 }));
        assert_eq!(real.kv.truncate(a, 4), Err(KvError::PastEnd { len: 4, held: 3 }));
        assert_eq!(real.kv.truncate(a, u64::MAX), Err(KvError::PastEnd { len: u64::MAX, held: 3 }));
        assert_eq!(real.kv.share(a, b, 4), Err(KvError::PastEnd { len: 4, held: 3 }));
        assert_eq!(real.kv.share(a, 99, 1), Err(KvError::UnknownSequence { handle: 99 }));
        assert_eq!(real.kv.share(99, a, 0), Err(KvError::UnknownSequence { handle: 99 }));
        assert!(!real.kv.free(u64::MAX));
        assert_eq!(real.state(&[a, b]), before);
        audit(&real.kv);
    }
    assert!(real.kv.free(a));
    let c = real.kv.create().expect("the slot of a");
    assert!(c > b && real.kv.table(a).is_err(), "a handle is not used again");
}

/// A sequence that is cut before it grows: pages that the cut frees are taken again, a kept open page that is shared is copied.
#[test]
fn cut_and_growth_are_counted_together() {
    let shape = SequencesShape { pages: 16, page_size_tokens: 4, sequence_tokens: 64, sequences: 0 };
    let counted_and_taken = |shared: bool, leaves: bool, keep: usize, tokens: usize| {
        let mut kv = Sequences::new(shape).expect("small");
        let (a, b) = (kv.create().expect("room"), kv.create().expect("room"));
        kv.grow(&[Growth { handle: a, tokens: 9 }], &mut Vec::new()).expect("room");
        if shared {
            kv.share(a, b, 9).expect("room");
        }
        let growth = [(keep, Growth { handle: a, tokens })];
        let counted = kv.pages_to_regrow(&growth, if leaves { std::slice::from_ref(&b) } else { &[] });
        if leaves {
            kv.free(b);
        }
        let free = kv.pool().pages_free();
        kv.truncate(a, keep as u64).expect("shorter");
        kv.grow(&[Growth { handle: a, tokens }], &mut Vec::new()).expect("room");
        (counted, free.saturating_sub(kv.pool().pages_free()))
    };
    for keep in 0..=9 {
        for tokens in 0..12 {
            for (shared, leaves) in [(false, false), (true, false), (true, true)] {
                let (counted, taken) = counted_and_taken(shared, leaves, keep, tokens);
                assert_eq!(counted, taken, "shared {shared}, its holder leaves {leaves}, {keep} kept, {tokens} more");
            }
        }
    }
}
