//! Admission, reservation, and what they take.

use std::sync::{Arc, Barrier};

use ictus::facade::{Admission, Bad, Chunk, Domain, End, Fit, Lack, Refusal, Remedy, Work};

use crate::host::{bad, blocked, host, prompt, short, text, token, victim_wanted};

const BLOCKS: usize = Domain::Blocks.index();
const SLOTS: usize = Domain::Slots.index();

/// what is replayed is context, and never prompt.
#[test]
fn xs_2_replayed_tokens_are_no_prompt() {
    let host = host(8, 4);
    let question = prompt(6, 1);
    let expected = text(&question, 8);
    for replayed in [3, 5] {
        let context: Vec<u32> = question.iter().chain(&expected[..replayed]).copied().collect();
        let admission = Admission { replayed: &expected[..replayed], ..Admission::of(&question, 12) };
        let seq = host.executor.admit(&admission).expect("there is room");
        assert_eq!(bad(host.chunk(seq, 0, 6, 6)), (Bad::Bounds, 0), "the context is longer than the prompt");
        let row = host.chunk(seq, 0, context.len(), context.len()).expect("there is room");
        assert_eq!(token(&row), expected[replayed]);
        let end = End::Completed { prompt: 6, output: replayed + 1 };
        host.executor.close(seq, end).expect("usage counts the prompt alone");
    }
    let stats = host.executor.stats();
    assert_eq!((stats.completed, stats.prompt_tokens, stats.output_tokens), (2, 12, 10));
}

///
#[test]
fn xs_3_admissions_out_of_range_change_nothing() {
    let host = host(8, 4);
    let five = prompt(5, 1);
    let cases = [
        Admission::of(&[], 8),
        Admission::of(&[1, 64], 8),
        Admission::of(&five, 4),
        Admission::of(&five, usize::MAX),
        Admission { replayed: &[3], counted: false, ..Admission::of(&five, 8) },
        Admission { replayed: &[64], ..Admission::of(&five, 8) },
    ];
    for admission in cases {
        for _ in 0..2 {
            let before = host.memory();
            assert_eq!(bad(host.executor.admit(&admission)), (Bad::Bounds, 0), "{admission:?}");
            assert_eq!(host.memory(), before);
        }
    }
    let policy = Admission { pressure: Remedy::Grow, ..Admission::of(&five, 8) };
    assert_eq!(bad(host.executor.admit(&policy)).0, Bad::Policy);
    assert_eq!(host.executor.stats().bad, 13);
}

///
#[test]
fn xs_5_admission_short_of_blocks_takes_no_slot() {
    let host = host(2, 8);
    let (hog, _) = host.started(&prompt(40, 1), 64);
    let refused = blocked(host.admit(&prompt(3, 2), 8));
    assert_eq!((short(&refused), refused.remedy), (vec![Domain::Blocks], Remedy::Wait));
    assert_eq!(blocked(host.executor.admit(&victim_wanted(&prompt(3, 2), 8))).remedy, Remedy::Recompute);
    host.executor.truncate(hog, 32).expect("it is idle");
    for slots in 1..8 {
        let admitted = host.admit(&prompt(3, 2), 8);
        assert_eq!(admitted.is_ok(), slots == 1, "{slots}: one block came free, and all slots but one are");
    }
}

/// blocks wake nobody who waits for a slot.
#[test]
fn xs_6_admission_short_of_slots_waits_for_slots() {
    let host = host(8, 2);
    let (first, _) = host.started(&prompt(40, 1), 64);
    host.started(&prompt(4, 2), 8);
    let refused = blocked(host.admit(&prompt(3, 3), 8));
    assert_eq!(short(&refused), [Domain::Slots]);
    let capacity = host.executor.capacity();
    host.executor.truncate(first, 32).expect("it is idle");
    assert_eq!(capacity.changed(&refused.ticket), Ok(false));
    host.close(first);
    assert_eq!(capacity.changed(&refused.ticket), Ok(true));
    host.admit(&prompt(3, 3), 8).expect("a slot came free");
}

///
#[test]
fn xs_8_fit_is_checked_and_not_taken() {
    let host = host(6, 8);
    host.started(&prompt(20, 1), 32);
    let nine = prompt(9 * 32, 2);
    let inputs = Admission { fit: Fit::Input, ..Admission::of(&nine[..160 + 1], 1000) };
    let refused = blocked(host.executor.admit(&inputs));
    assert_eq!((short(&refused), refused.short[0].lack), (vec![Domain::Blocks], Lack::Fit));
    assert_eq!((refused.short[0].need, refused.short[0].free, host.free()), (6, 5, 5));
    let never = Admission { fit: Fit::Input, ..Admission::of(&nine, 1000) };
    assert!(matches!(host.executor.admit(&never), Err(Refusal::Never(_))));
    let seq = host.admit(&nine, 1000).expect("one block is there");
    assert_eq!((host.executor.held(seq).map(|units| units[BLOCKS]), host.free()), (Ok(1), 4));
}

/// two that fit alone may be admitted, and compete later.
#[test]
fn xs_9_fit_reserves_nothing() {
    let host = host(10, 4);
    let [a, b] = [1, 2].map(|salt| {
        let eight = prompt(8 * 32, salt);
        let admission = Admission { fit: Fit::Input, ..Admission::of(&eight, 300) };
        host.executor.admit(&admission).expect("eight are free")
    });
    let a_row = host.chunk(a, 0, 256, 256).expect("eight are there");
    let whole = Chunk::new(0, 256, 256).expect("it is one");
    let work = Work::Prefill { seq: b, chunk: whole, whole: true, logits: &host.greedy };
    let refused = blocked(host.one(work));
    assert_eq!((short(&refused), host.executor.frontier(b)), (vec![Domain::Blocks], Ok(0)));
    assert_eq!(token(&a_row), text(&prompt(256, 1), 1)[0]);
    host.close(a);
    let b_row = host.one(work).expect("they are free now");
    assert_eq!(token(&b_row), text(&prompt(256, 2), 1)[0]);
    host.audit();
}

/// nobody admits what is not there, however many try.
#[test]
fn xs_10_as_many_are_admitted_as_there_are_slots() {
    let slots = 5;
    let host = Arc::new(host(64, slots));
    let barrier = Arc::new(Barrier::new(4 * slots as usize));
    let threads: Vec<_> = (0..4 * slots)
        .map(|salt| {
            let (host, barrier) = (Arc::clone(&host), Arc::clone(&barrier));
            std::thread::spawn(move || {
                let prompt = prompt(8, salt);
                barrier.wait();
                host.admit(&prompt, 16).map_err(|refusal| short(&blocked::<()>(Err(refusal))))
            })
        })
        .collect();
    let outcomes: Vec<_> = threads.into_iter().map(|thread| thread.join().expect("it ends")).collect();
    let admitted: Vec<_> = outcomes.iter().flatten().copied().collect();
    assert_eq!(admitted.len(), slots as usize);
    assert!(outcomes.iter().flat_map(|outcome| outcome.as_ref().err()).all(|short| short == &[Domain::Slots]));
    let held: u64 = admitted.iter().map(|&seq| host.executor.held(seq).expect("it is open")[BLOCKS]).sum();
    assert_eq!(held, 64 - host.free());
}

///
#[test]
fn xs_54_reservation_is_all_or_nothing() {
    let host = host(6, 4);
    let [a, b] = [1, 2].map(|salt| host.admit(&prompt(100, salt), 128).expect("there is room"));
    let first = |seq, len| {
        let chunk = Chunk::new(0, len, 100).expect("it is one");
        [Work::Prefill { seq, chunk, whole: false, logits: &host.greedy }]
    };
    let gained = |outcome: Result<ictus::facade::Receipt, Refusal>| outcome.map(|receipt| receipt.gained[BLOCKS]);
    let before = host.executor.held(a).expect("it is open")[BLOCKS];
    assert_eq!(gained(host.executor.reserve(&first(a, 70), Fit::Now)), Ok(2));
    assert_eq!(host.executor.held(a).expect("it is open")[BLOCKS] - before, 2);
    assert_eq!(gained(host.executor.reserve(&first(a, 70), Fit::Now)), Ok(0));
    let refused = blocked(host.executor.reserve(&first(b, 100), Fit::Now));
    assert_eq!((short(&refused), host.free()), (vec![Domain::Blocks], 2));
}

///
#[test]
fn xs_55_reservation_checks_the_fit() {
    let host = host(6, 4);
    let [a, b] = [1, 2].map(|salt| host.admit(&prompt(100, salt), 128).expect("there is room"));
    let first = |seq, len| {
        let chunk = Chunk::new(0, len, 100).expect("it is one");
        [Work::Prefill { seq, chunk, whole: false, logits: &host.greedy }]
    };
    host.executor.reserve(&first(a, 70), Fit::Now).expect("there is room");
    let refused = blocked(host.executor.reserve(&first(b, 2), Fit::Input));
    assert_eq!((refused.short[0].lack, refused.short[0].need, host.free()), (Lack::Fit, 3, 2));
    let receipt = host.executor.reserve(&first(b, 2), Fit::Now).expect("its block is there");
    assert_eq!(receipt.gained, [0; 7]);
}

///
#[test]
fn xs_56_reserved_blocks_are_there_or_given_back() {
    let host = host(6, 8);
    let question = prompt(100, 1);
    let a = host.admit(&question, 128).expect("there is room");
    let chunk = Chunk::new(0, 100, 100).expect("it is one");
    let work = [Work::Prefill { seq: a, chunk, whole: true, logits: &host.greedy }];
    host.executor.reserve(&work, Fit::Now).expect("there is room");
    while host.admit(&prompt(1, 9), 2).is_ok() {}
    assert_eq!(host.free(), 0);
    let row = host.one(work[0]).expect("what was reserved is there");
    assert_eq!(token(&row), text(&question, 1)[0]);

    let other = crate::host::host(6, 8);
    let b = other.admit(&question, 128).expect("there is room");
    let work = [Work::Prefill { seq: b, chunk, whole: true, logits: &other.greedy }];
    other.executor.reserve(&work, Fit::Now).expect("there is room");
    let seen = other.executor.capacity().now();
    let receipt = other.executor.truncate(b, 0).expect("it is idle");
    assert_eq!((receipt.freed[BLOCKS], receipt.freed[SLOTS], other.free()), (4, 0, 6));
    let now = other.executor.capacity().now();
    assert_eq!(now.seen(Domain::Blocks), seen.seen(Domain::Blocks) + 1);
}
