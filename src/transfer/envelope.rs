#![forbid(unsafe_code)]
//! The envelope: the header in front of every exported state, and the checks that open it (S-70 .. S-72).
//!
//! The header is the record [`StateEnvelope`] as it lies in memory, little-endian; the payload follows.
//!
//! ```text
//!   0 magic u64        8 version u32   12 kind u32     16 compat identity 32 bytes   48 version tag u64
//!  56 provenance 32   88 taint u32     92 zero u32     96 start u64   104 end u64   112 encoding u8  113 zero
//! 116 checksum kind  120 payload length u64           128 checksum u64             136 payload
//! ```
//!
//! # Limits
//! The checksum covers the payload. Of the header, the fields that place the payload are checked against it and against the engine;
//! taint and provenance are taken at their word, and padding is ignored. It guards against damage, not against forgery.

use crate::record::constant::{encoding, misc::STATE_ENVELOPE_MAGIC};
use crate::record::view::Plain;
use crate::record::{StateEnvelope, Status, TokenRange};

use super::checksum::Checksum;

/// Bytes of the header.
pub const HEADER_BYTES: usize = size_of::<StateEnvelope>();
const _: () = assert!(HEADER_BYTES == 136);
const VERSION: u32 = 1;

/// Why sealed bytes are refused, the first reason in the order of S-72. Nothing changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum EnvelopeError {
    /// Fewer bytes than a header has.
    #[error("{bytes} bytes are no envelope")]
    Short {
        /// Bytes given.
        bytes: usize,
    },
    /// Other magic number or version.
    #[error("no envelope of a known version")]
    Format,
    /// The state of another kind of space.
    #[error("state of kind {kind}")]
    Kind {
        /// `SPACE_KIND_*` of the envelope.
        kind: u32,
    },
    /// State of another model, adapter, runtime or layout.
    #[error("state of another model or runtime")]
    Identity,
    /// Other bytes follow than the header says.
    #[error("{held} payload bytes instead of {stated}")]
    Length {
        /// Bytes that follow the header.
        held: u64,
        /// Bytes that the header states.
        stated: u64,
    },
    /// No such checksum.
    #[error("checksum kind {kind}")]
    ChecksumKind {
        /// The number.
        kind: u32,
    },
    /// The payload is damaged.
    #[error("the checksum differs")]
    Checksum,
}

impl From<EnvelopeError> for Status {
    fn from(error: EnvelopeError) -> Self {
        match error {
            EnvelopeError::Identity => Status::IdentityMismatch,
            EnvelopeError::Checksum => Status::Checksum,
            _ => Status::EnvelopeMismatch,
        }
    }
}

/// What a payload is, as far as it is known before its bytes are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seal {
    /// `SPACE_KIND_*`.
    pub kind: u32,
    /// Version tag of the space.
    pub version_tag: u64,
    /// Identity of the engines that may open it (S-80).
    pub compat_identity: [u8; 32],
    /// Digest of the tokens it was computed from; zeros when they are not known.
    pub provenance: [u8; 32],
    /// `TAINT_*` bits.
    pub taint: u32,
    /// First token.
    pub start: u64,
    /// One past the last token.
    pub end: u64,
    /// `ENCODING_*`.
    pub encoding: u8,
}

impl Seal {
    /// The header for a payload of this length and checksum.
    pub fn header(&self, payload_bytes: u64, checksum: &Checksum) -> [u8; HEADER_BYTES] {
        let mut header = [0; HEADER_BYTES];
        let mut put = |at: usize, bytes: &[u8]| header[at..at + bytes.len()].copy_from_slice(bytes);
        put(0, &STATE_ENVELOPE_MAGIC.to_le_bytes());
        put(8, &VERSION.to_le_bytes());
        put(12, &self.kind.to_le_bytes());
        put(16, &self.compat_identity);
        put(48, &self.version_tag.to_le_bytes());
        put(56, &self.provenance);
        put(88, &self.taint.to_le_bytes());
        put(96, &self.start.to_le_bytes());
        put(104, &self.end.to_le_bytes());
        put(112, &[self.encoding]);
        put(116, &checksum.kind().to_le_bytes());
        put(120, &payload_bytes.to_le_bytes());
        put(128, &checksum.value().to_le_bytes());
        header
    }
}

/// Reads a header; none when the bytes are too few. Nothing is checked.
pub fn read_header(sealed: &[u8]) -> Option<StateEnvelope> {
    let header = sealed.first_chunk::<HEADER_BYTES>()?;
    let u32_at = |at: usize| header[at..].first_chunk().map_or(0, |bytes| u32::from_le_bytes(*bytes));
    let u64_at = |at: usize| header[at..].first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes));
    let digest_at = |at: usize| header[at..].first_chunk().copied().unwrap_or([0; 32]);
    let mut envelope = StateEnvelope::zeroed();
    envelope.magic = u64_at(0);
    envelope.envelope_version = u32_at(8);
    envelope.space_kind = u32_at(12);
    envelope.compat_identity = digest_at(16);
    envelope.version_tag = u64_at(48);
    envelope.provenance_digest = digest_at(56);
    envelope.taint_bits = u32_at(88);
    envelope.range = TokenRange { start: u64_at(96), end: u64_at(104) };
    envelope.encoding = header[112];
    envelope.checksum_kind = u32_at(116);
    envelope.payload_len = u64_at(120);
    envelope.content_checksum = u64_at(128);
    Some(envelope)
}

/// Who may open an envelope.
#[derive(Clone, Copy, Debug)]
pub struct Opener<'a> {
    /// Kind of the space.
    pub kind: u32,
    /// Version tag of the space.
    pub version_tag: u64,
    /// The identities it takes: that of the model alone, and those of the adapters at hand.
    pub identities: &'a [[u8; 32]],
}

/// An envelope that may be imported.
#[derive(Clone, Copy, Debug)]
pub struct Opened<'a> {
    /// What the payload is.
    pub seal: Seal,
    /// Which of the opener's identities it has.
    pub identity: usize,
    /// The payload.
    pub payload: &'a [u8],
}

impl Opener<'_> {
    /// Opens sealed bytes; looks at every byte of the payload.
    ///
    /// # Errors
    /// The first of [`EnvelopeError`] that holds, in their order.
    pub fn open<'b>(&self, sealed: &'b [u8]) -> Result<Opened<'b>, EnvelopeError> {
        let header = read_header(sealed).ok_or(EnvelopeError::Short { bytes: sealed.len() })?;
        let payload = sealed.get(HEADER_BYTES..).unwrap_or_default();
        if header.magic != STATE_ENVELOPE_MAGIC || header.envelope_version != VERSION {
            return Err(EnvelopeError::Format);
        }
        if header.space_kind != self.kind {
            return Err(EnvelopeError::Kind { kind: header.space_kind });
        }
        let identity = self.identities.iter().position(|identity| *identity == header.compat_identity);
        let identity = identity.filter(|_| header.version_tag == self.version_tag).ok_or(EnvelopeError::Identity)?;
        if header.payload_len != payload.len() as u64 {
            return Err(EnvelopeError::Length { held: payload.len() as u64, stated: header.payload_len });
        }
        let unknown = EnvelopeError::ChecksumKind { kind: header.checksum_kind };
        let mut checksum = Checksum::new(header.checksum_kind).ok_or(unknown)?;
        checksum.update(payload);
        if checksum.value() != header.content_checksum {
            return Err(EnvelopeError::Checksum);
        }
        Ok(Opened { seal: seal_of(&header), identity, payload })
    }
}

fn seal_of(header: &StateEnvelope) -> Seal {
    Seal {
        kind: header.space_kind,
        version_tag: header.version_tag,
        compat_identity: header.compat_identity,
        provenance: header.provenance_digest,
        taint: header.taint_bits,
        start: header.range.start,
        end: header.range.end,
        encoding: header.encoding,
    }
}

/// The taint of an export in this encoding, of a sequence that has `taint` (S-67).
pub fn taint_of_export(taint: u32, encoding: u8) -> u32 {
    let lossy = encoding != encoding::LOSSLESS;
    if lossy { taint | crate::record::constant::taint::QUANTIZED_DEMOTION } else { taint }
}

#[cfg(test)]
mod tests {
    use core::mem::offset_of;

    use super::*;
    use crate::record::constant::checksum_kind;

    const SEAL: Seal = Seal {
        kind: 1,
        version_tag: 7,
        compat_identity: [3; 32],
        provenance: [5; 32],
        taint: 2,
        start: 0,
        end: 3,
        encoding: 1,
    };

    fn sealed(kind: u32, payload: &[u8]) -> Vec<u8> {
        let mut sum = Checksum::new(kind).expect("a known kind");
        sum.update(payload);
        [&SEAL.header(payload.len() as u64, &sum)[..], payload].concat()
    }

    fn open(sealed: &[u8]) -> Result<Opened<'_>, EnvelopeError> {
        Opener { kind: 1, version_tag: 7, identities: &[[9; 32], [3; 32]] }.open(sealed)
    }

    /// S-70: the file form is the form in memory.
    #[test]
    fn header_is_the_record_as_it_lies_in_memory() {
        let places = [
            (offset_of!(StateEnvelope, space_kind), 12),
            (offset_of!(StateEnvelope, compat_identity), 16),
            (offset_of!(StateEnvelope, version_tag), 48),
            (offset_of!(StateEnvelope, provenance_digest), 56),
            (offset_of!(StateEnvelope, taint_bits), 88),
            (offset_of!(StateEnvelope, range), 96),
            (offset_of!(StateEnvelope, encoding), 112),
            (offset_of!(StateEnvelope, checksum_kind), 116),
            (offset_of!(StateEnvelope, payload_len), 120),
            (offset_of!(StateEnvelope, content_checksum), 128),
        ];
        assert!(places.iter().all(|(record, ours)| record == ours), "{places:?}");
        let bytes = sealed(checksum_kind::FNV1A64, b"payload");
        assert_eq!(&bytes[..8], b"BRTSTATE");
        for padding in [92..96, 113..116] {
            assert!(bytes[padding].iter().all(|&byte| byte == 0), "padding is zero");
        }
        let opened = open(&bytes).expect("it is sound");
        assert_eq!((opened.seal, opened.identity, opened.payload), (SEAL, 1, &b"payload"[..]));
    }

    /// S-72: both checksums are accepted, and the checks come in their order.
    #[test]
    fn checks_come_in_the_order_of_the_contract() {
        let good = sealed(checksum_kind::XXH3_64, b"payload");
        assert!(open(&good).is_ok());
        // Each place breaks one check; broken from the last check to the first, the answer moves to the front.
        let mut bad = good.clone();
        let mut breaks = |at: usize, expected: Status| {
            bad[at] ^= 0xFF;
            for _ in 0..2 {
                assert_eq!(open(&bad).map(|_| ()).map_err(Status::from), Err(expected), "byte {at}");
            }
        };
        breaks(140, Status::Checksum);
        breaks(116, Status::EnvelopeMismatch);
        breaks(120, Status::EnvelopeMismatch);
        breaks(48, Status::IdentityMismatch);
        breaks(12, Status::EnvelopeMismatch);
        breaks(0, Status::EnvelopeMismatch);
        let lens = (0..HEADER_BYTES).chain(HEADER_BYTES..good.len());
        for len in lens {
            assert!(open(&good[..len]).is_err(), "cut at {len}");
        }
    }
}
