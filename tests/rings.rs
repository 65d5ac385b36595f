//! The rings against engine.md: ES-1 .. ES-7, on both kinds of memory.

use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicU64};

use ictus::record::constant::{misc, ring_id, ring_kind, ring_role};
use ictus::record::{RingDesc, RingRef, Status, TokenRef};
use ictus::ring::{
    ControlWords, LayoutError, MemoryRingShape, MemoryRings, RingError, Rings, Segment, SharedRing, SharedRings,
    segment_bytes, slot_bytes_for,
};

/// Shared rings with the engine's end attached.
struct Shared {
    rings: SharedRings,
    host_prompts: SharedRing,
    segments: Vec<(Segment, RingDesc)>,
}

fn shared(slots: u32, slot_bytes: u32) -> Shared {
    let ids = [ring_id::TOKENS_IN, ring_id::TOKENS_OUT, ring_id::LOGITS];
    let segments: Vec<_> = ids.map(|id| SharedRing::create(id, slots, slot_bytes).expect("a legal shape")).into();
    let open = |(segment, desc): &(Segment, RingDesc)| SharedRing::open(desc, segment.mapping()).expect("fits");
    let mut rings = SharedRings::new();
    rings.attach(segments.iter().map(open));
    let host_prompts = open(&segments[0]);
    Shared { rings, host_prompts, segments }
}

fn tokens(rings: &dyn Rings, reference: &TokenRef) -> Result<Vec<u32>, RingError> {
    let mut read = vec![7];
    let result = rings.read_tokens(reference, &mut read);
    match result {
        Ok(()) => Ok(read.split_off(1)),
        Err(error) => {
            assert_eq!(read, [7], "an error leaves the target alone");
            Err(error)
        }
    }
}

fn row(rings: &dyn Rings, reference: &RingRef) -> Result<Vec<f32>, RingError> {
    let mut read = Vec::new();
    rings.read_logits_row(reference, &mut read).map(|()| read)
}

const STALE: fn(u64, u64) -> RingError = |reference, current| RingError::StaleGeneration { reference, current };

/// Everything that holds for rings of `slots` slots of either kind.
fn rings_keep_the_contract(rings: &mut dyn Rings, slots: u32) {
    // ES-1, E-31: the first slot is recycled after as many writes as there are slots.
    let first = rings.write_tokens(&[1, 2, 3]).expect("it fits");
    assert_eq!((first.ring_id, first.index, first.count, first.generation), (ring_id::TOKENS_OUT, 0, 3, 1));
    assert_eq!(tokens(rings, &first), Ok(vec![1, 2, 3]));
    let mut newest = first;
    for i in 0..slots {
        newest = rings.write_tokens(&[i]).expect("it fits");
    }
    assert_eq!((newest.index, newest.generation), (0, u64::from(slots) + 1));
    assert_eq!(tokens(rings, &first), Err(STALE(1, newest.generation)));
    assert_eq!(tokens(rings, &newest), Ok(vec![slots - 1]));

    // ES-2, E-32: in order ring, slot, generation, count.
    let bad = |change: fn(&mut TokenRef)| {
        let mut reference = newest;
        change(&mut reference);
        reference
    };
    let generation = newest.generation;
    assert_eq!(tokens(rings, &bad(|r| r.generation += 1)), Err(STALE(generation + 1, generation)));
    assert_eq!(tokens(rings, &bad(|r| r.generation = 0)), Err(STALE(0, generation)));
    let past_the_end = TokenRef { index: slots, generation: 0, ..newest };
    assert_eq!(tokens(rings, &past_the_end), Err(RingError::OutOfBounds));
    let unknown = TokenRef { ring_id: 9, index: slots, ..newest };
    assert_eq!(tokens(rings, &unknown), Err(RingError::UnknownRing(9)));
    assert_eq!(tokens(rings, &bad(|r| r.count += 1)), Err(RingError::OutOfBounds));
    assert_eq!(tokens(rings, &bad(|r| r.ring_id = ring_id::LOGITS)), Err(RingError::UnknownRing(ring_id::LOGITS)));
    // A slot that was never written carries 0, which matches nothing.
    let never = TokenRef { ring_id: ring_id::TOKENS_IN, ..newest };
    assert_eq!(tokens(rings, &never), Err(STALE(generation, 0)));
    assert_eq!(tokens(rings, &TokenRef { generation: 0, ..never }), Err(STALE(0, 0)));

    // E-34: an empty list takes a slot.
    let empty = rings.write_tokens(&[]).expect("an empty list fits");
    assert_eq!((empty.count, empty.generation), (0, generation + 1));
    assert_eq!(tokens(rings, &empty), Ok(vec![]));
    assert_eq!(tokens(rings, &TokenRef { count: 1, ..empty }), Err(RingError::OutOfBounds));

    // Rows, with generations of their own.
    let logits = [0.5, f32::NEG_INFINITY, -0.0];
    let first = rings.write_logits_row(&logits).expect("it fits");
    assert_eq!((first.ring_id, first.index, first.generation), (ring_id::LOGITS, 0, 1));
    assert_eq!(row(rings, &first), Ok(logits.to_vec()));
    assert_eq!(row(rings, &RingRef { generation: 2, ..first }), Err(STALE(2, 1)));
    assert_eq!(row(rings, &RingRef { index: 1, generation: 1, ..first }), Err(STALE(1, 0)));
    for ring_id in [ring_id::TOKENS_OUT, 9] {
        assert_eq!(row(rings, &RingRef { ring_id, ..first }), Err(RingError::UnknownRing(ring_id)));
    }
}

/// ES-1, ES-2 (E-31 .. E-34).
#[test]
fn memory_rings_keep_the_contract() {
    let shape = MemoryRingShape { token_slots: 5, logits_slots: 5, ..MemoryRingShape::default() };
    rings_keep_the_contract(&mut MemoryRings::with_shape(shape), 5);
}

/// ES-1, ES-2 (E-31 .. E-34).
#[test]
fn shared_rings_keep_the_contract() {
    rings_keep_the_contract(&mut shared(5, 40).rings, 5);
}

/// E-38.
#[test]
fn default_memory_rings_have_the_published_slots() {
    let mut rings = MemoryRings::new();
    let prompt = rings.stage_prompt(&[4, 5]);
    assert_eq!((prompt.ring_id, tokens(&rings, &prompt)), (ring_id::TOKENS_IN, Ok(vec![4, 5])));
    let emit = rings.write_tokens(&[1]).expect("it fits");
    let logits = rings.write_logits_row(&[1.0]).expect("it fits");
    let at = |ring_id, index| TokenRef { ring_id, index, count: 0, _pad0: 0, generation: 1 };
    for ring in [ring_id::TOKENS_IN, ring_id::TOKENS_OUT] {
        assert_eq!(tokens(&rings, &at(ring, 63)), Err(STALE(1, 0)));
        assert_eq!(tokens(&rings, &at(ring, 64)), Err(RingError::OutOfBounds));
    }
    assert_eq!(row(&rings, &RingRef { index: 15, ..logits }), Err(STALE(1, 0)));
    assert_eq!(row(&rings, &RingRef { index: 16, ..logits }), Err(RingError::OutOfBounds));
    assert_eq!(tokens(&rings, &emit), Ok(vec![1]));
    assert!(rings.write_tokens(&vec![0; 1 << 20]).is_ok(), "slots are unlimited");
    assert!(!rings.yield_requested() && !rings.latency_wanted());
    rings.set_yield(true);
    assert!(rings.yield_requested() && !rings.latency_wanted());
    rings.set_latency(true);
    rings.set_yield(false);
    assert!(!rings.yield_requested() && rings.latency_wanted());
}

/// ES-3 (E-40).
#[test]
fn slot_of_36_bytes_is_refused_and_of_40_serves_20_byte_payloads() {
    for slot_bytes in [0, 8, 16, 36, 44] {
        let refused = SharedRing::create(ring_id::TOKENS_OUT, 4, slot_bytes).map(|_| ());
        assert_eq!(refused, Err(LayoutError::SlotBytes { got: slot_bytes }));
    }
    assert_eq!((slot_bytes_for(20), slot_bytes_for(24), slot_bytes_for(25), slot_bytes_for(0)), (40, 40, 48, 24));
    let (segment, desc) = SharedRing::create(ring_id::TOKENS_OUT, 4, 40).expect("40 is legal");
    assert_eq!((segment.len_bytes(), desc.len), (64 + 4 * 40, 224));
    let narrow = RingDesc { slot_bytes: 36, ..desc };
    let refused = SharedRing::open(&narrow, segment.mapping()).map(|_| ());
    assert_eq!(refused, Err(LayoutError::SlotBytes { got: 36 }));
    let mut ring = SharedRing::open(&desc, segment.mapping()).expect("fits");
    for i in 0..23u32 {
        let payload = [i, i + 1, i + 2, i + 3, i + 4];
        let (index, generation) = ring.write(&payload).expect("20 bytes fit");
        let mut read: Vec<u32> = Vec::new();
        assert_eq!(ring.read(index, generation, Some(5), &mut read), Ok(()));
        assert_eq!(read, payload);
    }
    assert_eq!(segment_bytes(0, 40), Err(LayoutError::Slots { got: 0 }));
}

/// ES-4 (E-35).
#[test]
fn payload_larger_than_the_slot_is_out_of_bounds_and_writes_nothing() {
    let shape = MemoryRingShape { emit_tokens: 1024, row_logits: 1024, prompt_tokens: 1024, ..Default::default() };
    let mut memory = MemoryRings::with_shape(shape);
    assert_eq!(memory.try_stage_prompt(&[0; 1025]).map(|_| ()), Err(RingError::OutOfBounds));
    let mut shared = shared(4, slot_bytes_for(4096));
    for rings in [&mut memory as &mut dyn Rings, &mut shared.rings] {
        let payload: Vec<u32> = (0..1025).collect();
        let whole = rings.write_tokens(&payload[..1024]).expect("sized for it");
        for _ in 0..2 {
            assert_eq!(rings.write_tokens(&payload).map(|_| ()), Err(RingError::OutOfBounds));
            assert_eq!(rings.write_logits_row(&[0.0; 1025]).map(|_| ()), Err(RingError::OutOfBounds));
        }
        assert_eq!(tokens(rings, &whole), Ok(payload[..1024].to_vec()));
        let next = rings.write_tokens(&[1]).expect("it fits");
        assert_eq!((next.index, next.generation), (1, 2), "the cursor stayed where it was");
        assert_eq!(rings.write_logits_row(&[0.0; 1024]).map(|row| row.generation), Ok(1));
    }
}

/// ES-5 (E-41): a reader that races a writer sees whole payloads or staleness.
#[test]
fn racing_reader_sees_whole_payloads_or_staleness() {
    const GENERATIONS: u64 = 20_000;
    const LEN: usize = 257;
    let slot_bytes = slot_bytes_for(4 * LEN as u32);
    let (segment, desc) = SharedRing::create(ring_id::TOKENS_OUT, 4, slot_bytes).expect("a legal shape");
    let mut writer = SharedRing::open(&desc, segment.mapping()).expect("fits");
    let reader = SharedRing::open(&desc, segment.mapping()).expect("fits");
    let newest = AtomicU64::new(0);
    let done = AtomicBool::new(false);
    let (whole, stale) = std::thread::scope(|scope| {
        let reading = scope.spawn(|| {
            let (mut whole, mut stale) = (0u64, 0u64);
            let mut payload: Vec<u32> = Vec::new();
            while !done.load(Acquire) || whole == 0 {
                let generation = newest.load(Acquire);
                if generation == 0 {
                    continue;
                }
                payload.clear();
                let index = ((generation - 1) % 4) as u32;
                match reader.read(index, generation, Some(LEN as u32), &mut payload) {
                    Ok(()) => {
                        assert_eq!(payload.len(), LEN);
                        assert!(payload.iter().all(|&word| u64::from(word) == generation), "torn at {generation}");
                        whole += 1;
                    }
                    Err(RingError::StaleGeneration { reference, current }) => {
                        assert_eq!(reference, generation);
                        assert_ne!(current, generation);
                        assert!(payload.is_empty());
                        stale += 1;
                    }
                    Err(other) => panic!("neither whole nor stale: {other}"),
                }
            }
            (whole, stale)
        });
        for generation in 1..=GENERATIONS {
            let payload = [generation as u32; LEN];
            assert_eq!(writer.write(&payload), Ok((((generation - 1) % 4) as u32, generation)));
            newest.store(generation, Release);
        }
        done.store(true, Release);
        reading.join().expect("the reader holds")
    });
    println!("whole {whole}, stale {stale}");
    assert!(whole > 0);
}

/// ES-6 (E-42).
#[test]
fn ring_that_differs_from_its_header_is_refused_and_the_others_stay() {
    let mut shared = shared(4, 40);
    let prompt = {
        let (index, generation) = shared.host_prompts.write(&[1u32, 2]).expect("it fits");
        TokenRef { ring_id: ring_id::TOKENS_IN, index, count: 2, _pad0: 0, generation }
    };
    let (segment, desc) = &shared.segments[1];
    let wrong = [
        (RingDesc { ring_id: ring_id::TOKENS_IN, role: ring_role::ENGINE_READS, ..*desc }, "another id"),
        (RingDesc { slots: 3, ..*desc }, "another slot count"),
        (RingDesc { slot_bytes: 32, ..*desc }, "another slot size"),
        (RingDesc { ring_id: 9, ..*desc }, "an id that is no ring's"),
        (RingDesc { kind: ring_kind::LOGITS, ..*desc }, "another kind"),
        (RingDesc { kind: 0, ..*desc }, "no kind"),
        (RingDesc { role: ring_role::ENGINE_READS, ..*desc }, "another role"),
        (RingDesc { role: 7, ..*desc }, "no role"),
        (RingDesc { slots: 5, ..*desc }, "more slots than the segment holds"),
        (RingDesc { slots: u32::MAX, slot_bytes: u32::MAX - 7, ..*desc }, "a shape past the address space"),
        (RingDesc { slots: 0, ..*desc }, "no slots"),
    ];
    for (desc, what) in wrong {
        for _ in 0..2 {
            let refused = SharedRing::open(&desc, segment.mapping()).map(|_| ());
            assert!(refused.is_err(), "{what}");
            assert_eq!(refused.map_err(Status::from), Err(Status::RingLayout));
        }
    }
    let magic = &segment.words()[0];
    magic.store(misc::RING_MAGIC + 1, Relaxed);
    let refused = SharedRing::open(desc, segment.mapping()).map(|_| ());
    assert_eq!(refused, Err(LayoutError::Magic { got: misc::RING_MAGIC + 1 }));
    // Nothing of that touched what was attached before.
    assert_eq!(tokens(&shared.rings, &prompt), Ok(vec![1, 2]));
    let emit = shared.rings.write_tokens(&[9]).expect("it fits");
    assert_eq!((emit.index, emit.generation), (0, 1));
}

/// E-42, E-43: attaching an id again replaces that ring, starts its cursor over, and leaves the others.
/// E-44.
#[test]
fn attaching_again_replaces_one_ring() {
    let mut shared = shared(4, 40);
    let old = shared.rings.write_tokens(&[1]).expect("it fits");
    let row_ref = shared.rings.write_logits_row(&[0.5]).expect("it fits");
    let (segment, desc) = SharedRing::create(ring_id::TOKENS_OUT, 8, 48).expect("a legal shape");
    shared.rings.attach([SharedRing::open(&desc, segment.mapping()).expect("fits")]);
    assert_eq!(tokens(&shared.rings, &old), Err(STALE(1, 0)));
    let new = shared.rings.write_tokens(&[2; 8]).expect("the new slots are larger");
    assert_eq!((new.index, new.generation), (0, 1));
    assert_eq!(row(&shared.rings, &row_ref), Ok(vec![0.5]));
}

/// E-45.
/// E-30.
#[test]
fn ring_that_is_not_attached_is_unknown_to_readers_and_out_of_bounds_to_writers() {
    let mut rings = SharedRings::new();
    let prompt = TokenRef { ring_id: ring_id::TOKENS_IN, index: 0, count: 1, _pad0: 0, generation: 1 };
    assert_eq!(tokens(&rings, &prompt).map_err(Status::from), Err(Status::RejectBounds));
    assert_eq!(rings.write_tokens(&[]).map(|_| ()), Err(RingError::OutOfBounds));
    assert_eq!(rings.write_logits_row(&[]).map(|_| ()), Err(RingError::OutOfBounds));
    assert!(!rings.yield_requested() && !rings.latency_wanted());
}

/// E-32 against a writer that lies: a length that no slot can have is out of bounds.
#[test]
fn hostile_payload_length_is_out_of_bounds() {
    let mut shared = shared(2, 40);
    let (index, generation) = shared.host_prompts.write(&[1u32, 2]).expect("it fits");
    let prompt = TokenRef { ring_id: ring_id::TOKENS_IN, index, count: 2, _pad0: 0, generation };
    let length = &shared.segments[0].0.words()[64 / 8 + 1];
    for bytes in [7, 9, 25, 28, u64::from(u32::MAX)] {
        length.store(bytes, Relaxed);
        let count = (bytes / 4) as u32;
        assert_eq!(tokens(&shared.rings, &TokenRef { count, ..prompt }), Err(RingError::OutOfBounds), "{bytes}");
    }
    length.store(8, Relaxed);
    assert_eq!(tokens(&shared.rings, &prompt), Ok(vec![1, 2]));
}

/// ES-7 (E-36, E-37).
#[test]
fn control_words_are_two_words() {
    let segment = ControlWords::create();
    let host = ControlWords::open(segment.mapping()).expect("fits");
    let mut rings = SharedRings::new();
    rings.attach_control(ControlWords::open(segment.mapping()).expect("fits"));
    assert!(!rings.yield_requested() && !rings.latency_wanted());
    let raised = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            host.set_yield(true);
            raised.store(true, Release);
        });
        while !raised.load(Acquire) {
            std::thread::yield_now();
        }
        assert!(rings.yield_requested() && !rings.latency_wanted());
    });
    host.set_latency(true);
    host.set_yield(false);
    assert!(!rings.yield_requested() && rings.latency_wanted());
    // Any value but zero is on.
    segment.words()[1].store(1 << 63, Release);
    assert!(rings.yield_requested());
}

/// E-46.
#[test]
fn control_segment_must_be_long_enough_and_carry_its_magic() {
    let short = Segment::new(56);
    assert_eq!(ControlWords::open(short.mapping()).map(|_| ()), Err(LayoutError::Length));
    let segment = ControlWords::create();
    assert_eq!(&segment.words()[0].load(Relaxed).to_le_bytes(), b"SFCTRL01");
    segment.words()[0].store(1, Relaxed);
    assert_eq!(ControlWords::open(segment.mapping()).map(|_| ()), Err(LayoutError::Magic { got: 1 }));
}

/// E-40: what lies where, read as plain words.
#[test]
fn shared_ring_is_laid_out_as_published() {
    let (segment, desc) = SharedRing::create(ring_id::LOGITS, 2, 40).expect("a legal shape");
    let mut ring = SharedRing::open(&desc, segment.mapping()).expect("fits");
    ring.write(&[1.0f32]).expect("it fits");
    ring.write(&[2.0f32, -1.0, 0.0]).expect("it fits");
    let words: Vec<u64> = segment.words().iter().map(|word| word.load(Relaxed)).collect();
    let mut expected = vec![0; 18];
    expected[..3].copy_from_slice(&[misc::RING_MAGIC, 3 | 40 << 32, 2]);
    expected[8..11].copy_from_slice(&[1, 4, u64::from(1.0f32.to_bits())]);
    let high = u64::from((-1.0f32).to_bits()) << 32;
    expected[13..16].copy_from_slice(&[2, 12, u64::from(2.0f32.to_bits()) | high]);
    assert_eq!(words, expected);
}
