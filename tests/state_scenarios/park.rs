//! SS-50: a request is parked as bytes, and another engine goes on with it.

use ictus::engine::Engine;
use ictus::record::Status;
use ictus::record::constant::encoding;
use ictus::runtime::FakeOptions;

use super::mover::*;

/// A 32-token prompt with 8 tokens generated, parked at its boundary: the tokens, the boundary, the sealed bytes, the next 4 tokens.
fn park(change: impl Fn(&mut FakeOptions)) -> (Vec<u32>, u64, Vec<u8>, Vec<u32>) {
    let mut h = host(change);
    let sequence = lane(&mut h, 1, &span(100, 32));
    decode(&mut h, 1, 8);
    let tokens = h.committed(1);
    let boundary = h.engine.space_snapshot_boundary(sequence, KV, u64::MAX).expect("it is known");
    let sealed = export(&mut h, sequence, boundary);
    let next = decode(&mut h, 1, 4).1;
    (tokens, boundary, sealed, next)
}

/// Goes on in a new engine, from the bytes if they are sound, else cold; answers how much was warm, and the tokens.
fn resume(h: &mut Host, tokens: &[u32], boundary: u64, sealed: &[u8]) -> (u64, Vec<u32>) {
    let bare = h.engine.create_sequence().expect("a slot");
    let restored = h.engine.space_restore(bare, KV, sealed);
    let (lease, held) = match restored {
        Ok(op) => {
            finish(h, op);
            (h.engine.seed_adopt(bare, &tokens[..boundary as usize]).expect("it is bare"), boundary)
        }
        Err(_) => {
            h.engine.free_sequence(bare).expect("it is bare");
            (0, 0)
        }
    };
    let staged = h.prompt(tokens);
    let count = tokens.len() as u32 - held as u32;
    let plan =
        h.plan().admit_with(|admit| admit.seed_handle = lease, 1, staged).prefill(1, held as u32, count).decode(1, 4);
    let events = h.tick_ok(plan);
    (held, h.tokens_of(&events, 1))
}

/// SS-50: S-66, S-72, S-74.
#[test]
fn ss_50_parked_request_goes_on_in_another_engine() {
    for (change, warm) in [((|_| {}) as fn(&mut FakeOptions), 16), (head_only, 39)] {
        let (tokens, boundary, sealed, next) = park(change);
        assert_eq!(tokens.len(), 40);
        let mut h = slow_host(32, change);
        let (held, resumed) = resume(&mut h, &tokens, boundary, &sealed);
        assert!(held >= warm, "{held} tokens were warm");
        assert_eq!(resumed, next, "the same tokens");
        let mut damaged = sealed.clone();
        *damaged.last_mut().expect("a payload") ^= 0x40;
        let mut h = host(change);
        assert_eq!(resume(&mut h, &tokens, boundary, &damaged), (0, next), "a damaged file costs a prefill, no more");
    }
}

/// S-97: sizing is arithmetic; it costs the same for an empty host and beside a thousand stale sizings.
#[test]
fn stale_sizings_are_swept() {
    let mut h = host(|_| {});
    let parent = lane(&mut h, 1, &span(100, 64));
    for _ in 0..300 {
        let fork = h.engine.seq_fork(parent, 0).expect("a slot");
        size(&mut h, fork, 48, encoding::LOSSLESS).expect("it is held");
        h.engine.free_sequence(fork).expect("it is bare");
    }
    let kept = size(&mut h, parent, 48, encoding::LOSSLESS).expect("it is held");
    assert!(h.engine.space_snapshot(parent, KV, 48, kept.bytes, kept.sizing_gen).is_ok(), "the fresh one is kept");
    let stale = refused(&mut h, |h| h.engine.space_snapshot(parent, KV, 48, 9999, kept.sizing_gen));
    assert_eq!(stale, Status::StaleSizing);
}
