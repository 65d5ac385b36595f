//! Envelopes that were damaged on the way: each byte, each length (S-70, S-72, S-74).

use ictus::engine::Engine;
use ictus::record::Status;
use ictus::record::constant::{encoding, op_state, taint};

use super::mover::*;

/// Bytes of the header that the checks do not look at: provenance and taint are taken at their word, padding is ignored.
fn is_taken_at_its_word(at: usize) -> bool {
    (56..96).contains(&at) || (113..116).contains(&at)
}

/// S-72, S-74: a damaged byte ends in a typed refusal, or in an operation that failed and left nothing.
#[test]
fn every_damaged_byte_is_refused_without_a_trace() {
    let mut h = host(|_| {});
    let sequence = lane(&mut h, 1, &span(100, 64));
    let good = export(&mut h, sequence, 16);
    let bare = h.engine.create_sequence().expect("a slot");
    let mut outcomes = std::collections::BTreeMap::new();
    for at in 0..good.len() {
        for flip in [1, 0x80, 0xFF] {
            let mut bad = good.clone();
            bad[at] ^= flip;
            let outcome = outcome_of(&mut h, bare, &bad);
            if is_taken_at_its_word(at) {
                assert_eq!(outcome, Ok(()), "byte {at}");
                h.engine.space_trim(bare, KV, 0).expect("it is bare");
            } else {
                assert!(outcome.is_err(), "byte {at} ^ {flip:#x}");
                *outcomes.entry(format!("{:?}", outcome.err())).or_insert(0) += 1;
            }
            assert_eq!((contents(&h, bare), cells(&h)), (vec![], 63), "byte {at}");
        }
    }
    assert_eq!(
        outcomes.keys().map(String::as_str).collect::<Vec<_>>(),
        [
            "Some(Checksum)",
            "Some(EnvelopeMismatch)",
            "Some(IdentityMismatch)",
            "Some(RejectBounds)",
            "Some(Unsupported)",
        ]
    );
    assert_eq!(outcomes["Some(Checksum)"], 3 * (64 + 8), "payload, and the checksum itself");
    h.engine.audit().expect("the engine is whole");
    assert_eq!(outcome_of(&mut h, bare, &good), Ok(()));
}

/// How a restore ends. What is refused at once is tried twice.
fn outcome_of(h: &mut Host, bare: u64, sealed: &[u8]) -> Result<(), Status> {
    let before = h.engine.state_digest();
    match h.engine.space_restore(bare, KV, sealed) {
        Err(status) => {
            assert_eq!(h.engine.space_restore(bare, KV, sealed), Err(status));
            assert_eq!(h.engine.state_digest(), before, "{status} leaves no trace");
            Err(status)
        }
        Ok(op) => match state(h, op) {
            DONE => Ok(()),
            (op_state::FAILED, Some(status)) => Err(status),
            other => panic!("{other:?}"),
        },
    }
}

/// S-72: every cut, and every byte too many.
#[test]
fn every_truncation_is_refused_without_a_trace() {
    let mut h = host(|_| {});
    let sequence = lane(&mut h, 1, &span(100, 64));
    let good = export(&mut h, sequence, 16);
    let bare = h.engine.create_sequence().expect("a slot");
    for len in 0..good.len() {
        assert_eq!(outcome_of(&mut h, bare, &good[..len]), Err(Status::EnvelopeMismatch), "cut at {len}");
    }
    assert_eq!(outcome_of(&mut h, bare, &[&good[..], &[0]].concat()), Err(Status::EnvelopeMismatch));
    assert_eq!((contents(&h, bare), cells(&h)), (vec![], 63));
}

/// S-72: XXH3-64 is accepted too, and written on request.
#[test]
fn both_checksums_are_read() {
    use super::engine::under_test_with;
    use ictus::executor::ExecutorOptions;
    use ictus::testing::Harness;
    let options = ExecutorOptions { op_fast_checksum: true, ..ExecutorOptions::default() };
    let mut fast: Host = Harness::with_engine(under_test_with(options, |_| {}));
    let sequence = lane(&mut fast, 1, &span(100, 64));
    let sealed = export(&mut fast, sequence, 32);
    assert_eq!(ictus::transfer::read_header(&sealed).expect("a header").checksum_kind, 1);
    let mut h = host(|_| {});
    let restored = restore(&mut h, &sealed);
    assert_eq!(contents(&h, restored), span(100, 32));
}

/// S-80, S-72: state that an adapter made is not taken for the model's own, nor for another adapter's.
#[test]
fn state_of_an_adapter_is_restored_with_it_alone() {
    let with_adapters = |options: &mut ictus::runtime::FakeOptions| options.descriptor.workloads.adapters = true;
    let mut from = host(with_adapters);
    from.engine.lora_load("fake:one").expect("adapters are offered");
    let adapted = lane(&mut from, 1, &span(100, 64));
    let sealed = export(&mut from, adapted, 48);
    assert_ne!(ictus::transfer::read_header(&sealed).expect("a header").compat_identity, from.engine.compat_identity());

    let mut h = host(with_adapters);
    let bare = h.engine.create_sequence().expect("a slot");
    assert_eq!(refused(&mut h, |h| h.engine.space_restore(bare, KV, &sealed)), Status::IdentityMismatch);
    h.engine.lora_load("fake:two").expect("adapters are offered");
    assert_eq!(refused(&mut h, |h| h.engine.space_restore(bare, KV, &sealed)), Status::IdentityMismatch);
    h.engine.lora_load("fake:one").expect("adapters are offered");
    let op = h.engine.space_restore(bare, KV, &sealed).expect("the adapter is here");
    assert_eq!(state(&h, op), DONE);
    h.engine.audit().expect("the engine is whole");
    assert_eq!(export(&mut h, bare, 48)[..56], sealed[..56], "it is that adapter's state still");
    let lease = h.engine.seed_adopt(bare, &span(100, 48)).expect("it is bare");
    let (staged, here) = (h.prompt(&span(100, 64)), decode(&mut from, 1, 3).1);
    let plan = h.plan().admit_with(|admit| admit.seed_handle = lease, 2, staged).prefill(2, 48, 16).decode(2, 3);
    let events = h.tick_ok(plan);
    assert_eq!(h.tokens_of(&events, 2), here);
}

/// S-75: taint bits that nobody knows are kept as they are.
#[test]
fn taint_is_exactly_the_envelopes() {
    let mut h = host(|options| options.descriptor.export_encodings = vec![encoding::LOSSLESS, encoding::Q4]);
    let sequence = lane(&mut h, 1, &span(100, 64));
    let sealed = export(&mut h, sequence, 16);
    let bits = taint::DECOMPOSITION | 1 << 30;
    let bare = restore(&mut h, &tainted(&sealed, bits));
    assert_eq!(taint_of(&export(&mut h, bare, 16)), bits);
    let sizing = size(&mut h, bare, 16, encoding::Q4).expect("it is offered");
    let op = h.engine.space_demote(bare, KV, range(0, 16), encoding::Q4, sizing.bytes, sizing.sizing_gen);
    let demoted = finish(&mut h, op.expect("whole pages"));
    assert_eq!(taint_of(&demoted), bits | taint::QUANTIZED_DEMOTION);
}
