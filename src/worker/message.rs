#![forbid(unsafe_code)]
//! The messages: which number carries what (W-15).
//!
//! This table is version 8. A version that differs gets a table of its own, and the handshake says which one is used.

use super::codec::{PayloadError, Reader, Wire};
use super::payload::{
    BufAlloc, BufAttach, Hello, HelloAck, Load, MatchReq, MatchRes, OpAccepted, OpComplete, Plan, Registration,
    RingAck, RingAttach, SeedAcquire, SeedGrant, StateOp, StrategyGrant, SyncRequest, SyncResult, TickEmit, TickResult,
    TranscribedSegment,
};

/// Which side sends a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sender {
    /// The host.
    Host,
    /// The worker.
    Worker,
    /// Either.
    Either,
}

macro_rules! messages {
    ($( $(#[$meta:meta])* $number:literal $constant:ident $variant:ident $( ($inner:ident: $type:ty) )? $sender:ident ),* $(,)?) => {
        /// The numbers of the messages.
        pub mod kind {
            $( $(#[$meta])* pub const $constant: u16 = $number; )*
        }

        /// One message.
        #[derive(Clone, Debug, PartialEq)]
        pub enum Message {
            $( $(#[$meta])* $variant $( ($type) )?, )*
        }

        impl Message {
            /// Its number.
            pub fn kind(&self) -> u16 {
                match self {
                    $( Self::$variant $( ($inner) )? => {
                        $( let _ = $inner; )?
                        kind::$constant
                    } )*
                }
            }

            /// Appends its payload.
            pub fn encode(&self, out: &mut Vec<u8>) {
                match self {
                    $( Self::$variant $( ($inner) )? => { $( $inner.put(out); )? } )*
                }
                // Without a message that has a payload nothing would be written.
                let _ = &out;
            }

            /// Reads the payload of a message of this number; bytes behind it are ignored (W-11).
            ///
            /// # Errors
            /// What is wrong with the payload; none for a number that is no message's.
            pub fn decode(kind: u16, payload: &[u8]) -> Option<Result<Self, PayloadError>> {
                let mut reader = Reader::new(payload);
                match kind {
                    $( $number => Some(Self::$variant
                        $( (match reader.take::<$type>() { Ok($inner) => $inner, Err(error) => return Some(Err(error)) }) )?)
                        .map(Ok), )*
                    _ => None,
                }
            }
        }

        /// Who sends messages of this number; none for one that is not known.
        pub fn sender(kind: u16) -> Option<Sender> {
            match kind {
                $( $number => Some(Sender::$sender), )*
                _ => None,
            }
        }

        /// The name of a number, as the contract has it; none for one that is not known.
        pub fn name(kind: u16) -> Option<&'static str> {
            match kind {
                $( $number => Some(stringify!($constant)), )*
                _ => None,
            }
        }

        /// All numbers that are known.
        pub const KINDS: &[u16] = &[$( $number ),*];
    };
}

messages! {
    /// The first message of a host.
    0x0001 HELLO Hello(hello: Hello) Host,
    /// Its answer.
    0x0002 HELLO_ACK HelloAck(ack: HelloAck) Worker,
    /// A ring whose descriptor follows.
    0x0003 RING_ATTACH RingAttach(attach: RingAttach) Host,
    /// Its answer.
    0x0004 RING_ACK RingAck(ack: RingAck) Worker,
    /// A plan to run.
    0x0005 TICK_SUBMIT TickSubmit(plan: Plan) Host,
    /// Its answer.
    0x0006 TICK_RESULT TickResult(result: TickResult) Worker,
    /// Which prefixes of a span are cached.
    0x0007 MATCH_REQ MatchReq(request: MatchReq) Host,
    /// Its answer.
    0x0008 MATCH_RES MatchRes(answer: MatchRes) Worker,
    /// A lease of a cached prefix.
    0x0009 SEED_ACQUIRE SeedAcquire(acquire: SeedAcquire) Host,
    /// Its answer.
    0x000A SEED_GRANT SeedGrant(grant: SeedGrant) Worker,
    /// Gives a lease back.
    0x000B SEED_RELEASE SeedRelease(seed_handle: u64) Host,
    /// A state operation.
    0x000C STATE_OP_SUBMIT StateOpSubmit(op: StateOp) Host,
    /// Its answer.
    0x000D STATE_OP_ACCEPTED StateOpAccepted(accepted: OpAccepted) Worker,
    /// An accepted operation ended; unasked.
    0x000E STATE_OP_DONE StateOpDone(done: OpComplete) Worker,
    /// Asks an operation to stop.
    0x000F OP_CANCEL OpCancel(op_handle: u64) Host,
    /// A strategy for drafts.
    0x0010 STRATEGY_REGISTER StrategyRegister(registration: Registration) Host,
    /// Its answer.
    0x0011 STRATEGY_GRANT StrategyGrant(grant: StrategyGrant) Worker,
    /// A question or a change that is answered at once.
    0x0012 STATE_SYNC_REQ StateSyncReq(request: SyncRequest) Host,
    /// Its answer.
    0x0013 STATE_SYNC_RES StateSyncRes(result: SyncResult) Worker,
    /// A buffer that will come; without effect.
    0x0014 BUF_ALLOC BufAlloc(alloc: BufAlloc) Host,
    /// A buffer whose descriptor follows.
    0x0015 BUF_ATTACH BufAttach(attach: BufAttach) Host,
    /// A buffer that is not needed any more.
    0x0016 BUF_RELEASE BufRelease(buf_id: u64) Host,
    /// Are you there.
    0x0017 PING Ping(load: Load) Host,
    /// Its answer.
    0x0018 PONG Pong(load: Load) Worker,
    /// Finish all operations.
    0x0019 DRAIN_REQ DrainReq Host,
    /// Its answer.
    0x001A DRAINED Drained Worker,
    /// A segment of a transcription that goes on; unasked.
    0x001B TRANSCRIBE_SEGMENT TranscribeSegment(segment: TranscribedSegment) Worker,
    /// Stops a transcription.
    0x001C TRANSCRIBE_CANCEL TranscribeCancel Host,
    /// Tokens from inside a tick; unasked.
    0x001D TICK_EMIT TickEmit(emit: TickEmit) Worker,
    /// Control words whose descriptor follows, and their bytes.
    0x001E CONTROL_ATTACH ControlAttach(bytes: u32) Host,
    /// Its answer.
    0x001F CONTROL_ACK ControlAck(bytes: u32) Worker,
    /// Spans of a trace; may be dropped.
    0x8001 TELEMETRY Telemetry(spans: Vec<u8>) Either,
}
