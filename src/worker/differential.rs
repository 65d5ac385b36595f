#![forbid(unsafe_code)]
//! The codec against another implementation of postcard, on any bytes.

use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::codec::{Wire, decode};
use super::payload::*;

/// Bytes that often are a payload: small numbers and flags, seldom anything.
fn plausible() -> impl Strategy<Value = Vec<u8>> {
    let byte = prop_oneof![6 => 0u8..3, 3 => 0u8..32, 1 => any::<u8>(), 1 => Just(0xFF), 1 => Just(0x80)];
    prop::collection::vec(byte, 0..240)
}

/// Both take the bytes or both refuse them; a value that both take is the same, and is written alike.
fn agrees<T: Wire + Serialize + DeserializeOwned + core::fmt::Debug>(bytes: &[u8]) -> bool {
    let (ours, theirs) = (decode::<T>(bytes), postcard::take_from_bytes::<T>(bytes));
    let name = core::any::type_name::<T>();
    let (ours, theirs) = match (ours, theirs) {
        (Ok(ours), Ok((theirs, _))) => (ours, theirs),
        (Err(_), Err(_)) => return false,
        (ours, theirs) => panic!("{name} from {bytes:?}: {ours:?}, the other one {theirs:?}"),
    };
    assert_eq!(format!("{ours:?}"), format!("{theirs:?}"), "{name} from {bytes:?}");
    let mut written = Vec::new();
    ours.put(&mut written);
    assert_eq!(written, postcard::to_stdvec(&ours).expect("it has room"), "{name} from {bytes:?}");
    true
}

macro_rules! all_agree {
    ($bytes:expr, $taken:expr, $($type:ty),* $(,)?) => {{
        let mut index = 0;
        $( $taken[index] += usize::from(agrees::<$type>($bytes)); index += 1; )*
        index
    }};
}

/// W-10, W-11, W-12: what an implementation of postcard takes is taken, to the same value; what it refuses is refused.
#[test]
fn every_payload_is_read_and_written_as_postcard_does() {
    let mut taken = [0usize; 24];
    let mut runner = TestRunner::deterministic();
    for _ in 0..6000 {
        let bytes = plausible().new_tree(&mut runner).expect("a tree").current();
        let types = all_agree!(
            &bytes,
            taken,
            Hello,
            HelloAck,
            RingAttach,
            RingAck,
            Plan,
            TickResult,
            MatchReq,
            MatchRes,
            SeedAcquire,
            StateOp,
            OpAccepted,
            OpComplete,
            Registration,
            StrategyGrant,
            SyncRequest,
            SyncResult,
            BufAlloc,
            BufAttach,
            Load,
            TranscribedSegment,
            TickEmit,
            Vec<u8>,
            u64,
            u32,
        );
        assert_eq!(types, taken.len());
    }
    assert!(taken.iter().all(|&taken| taken > 20), "each type was taken now and then: {taken:?}");
}
