//! Status codes: what a call answers.
//!
//! 0 is success and every refusal is negative. A plan rejection ([`Status::is_plan_rejection`]) means that the tick did not run and
//! nothing changed (T-3).

/// Result of a call across the boundary.
#[repr(i32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Status {
    /// Success (`ICTUS_STATUS_OK`).
    Ok = 0,
    /// Stride below the record's minimum prefix (`ICTUS_REJECT_BAD_STRIDE`).
    RejectBadStride = -100,
    /// Base not 8-aligned, or NULL with count > 0 (`ICTUS_REJECT_BAD_ALIGNMENT`).
    RejectBadAlignment = -101,
    /// Value or span outside its range (`ICTUS_REJECT_BOUNDS`).
    RejectBounds = -102,
    /// Ring slot recycled or never written (`ICTUS_REJECT_BAD_REF_GENERATION`).
    RejectBadRefGeneration = -103,
    /// No such live lane (`ICTUS_REJECT_UNKNOWN_LANE`).
    RejectUnknownLane = -104,
    /// A tag twice in one of the five arrays (`ICTUS_REJECT_DUPLICATE_LANE`).
    RejectDuplicateLane = -105,
    /// Well-formed but not allowed together or now (`ICTUS_REJECT_ILLEGAL_COMBINATION`).
    RejectIllegalCombination = -106,
    /// Over a declared capacity (`ICTUS_REJECT_BUDGET`).
    RejectBudget = -107,
    /// Seed handle unknown, expired, consumed, used twice, or not matching the admit (`ICTUS_REJECT_STALE_SEED`).
    RejectStaleSeed = -108,
    /// HOST lane protocol broken (`ICTUS_REJECT_HOST_RULES`).
    RejectHostRules = -110,
    /// A referenced lane's sequence has an op in flight (`ICTUS_REJECT_TRANSFER_LOCKED`).
    RejectTransferLocked = -111,
    /// Commit names another row (`ICTUS_REJECT_STALE_NONCE`).
    RejectStaleNonce = -112,
    /// The pool, slots and envelope cannot serve the plan (`ICTUS_NEEDS_REPLAN`).
    NeedsReplan = -113,
    /// `struct_size` too small; malformed document (`ICTUS_REJECT_BAD_STRUCT`).
    RejectBadStruct = -114,
    /// The sequence is claimed (`ICTUS_EBUSY`).
    Busy = -120,
    /// Destination shorter than the sized export (`ICTUS_ERR_BUFFER_TOO_SMALL`).
    BufferTooSmall = -121,
    /// No live sizing with this generation, length and encoding (`ICTUS_ERR_STALE_SIZING`).
    StaleSizing = -122,
    /// The state cannot be cut or published there (`ICTUS_ERR_OUT_OF_BOUNDARY`).
    OutOfBoundary = -123,
    /// Envelope malformed or of another kind, or payload length differs from its range (`ICTUS_ERR_ENVELOPE_MISMATCH`).
    EnvelopeMismatch = -124,
    /// Payload hash differs (`ICTUS_ERR_CHECKSUM`).
    Checksum = -125,
    /// State of another runtime, version or weights; foreign cache key (`ICTUS_ERR_IDENTITY_MISMATCH`).
    IdentityMismatch = -126,
    /// Not offered by this engine, space kind or encoding (`ICTUS_ERR_OP_UNSUPPORTED`).
    Unsupported = -127,
    /// Strategy refused, fail-closed (`ICTUS_ERR_REGISTRATION_REFUSED`).
    RegistrationRefused = -128,
    /// Op, seed, sequence, space, grammar, bias or media handle not known (`ICTUS_ERR_UNKNOWN_HANDLE`).
    UnknownHandle = -129,
    /// No cached state serves that prefix (`ICTUS_ERR_SEED_UNSERVABLE`).
    SeedUnservable = -130,
    /// Ring header or size differs from its descriptor (`ICTUS_ERR_RING_LAYOUT`).
    RingLayout = -131,
    /// **only** inside `AdmitResult.reject_code`: no certificate at or above the floor (`ICTUS_REJECT_CERT_UNMATCHED`).
    RejectCertUnmatched = -140,
    /// The runtime is broken; the bundle must be discarded (`ICTUS_ERR_FATAL`).
    Fatal = -1,
}

/// Every status with its C name, in the order of the layout table.
pub const STATUSES: &[(Status, &str)] = &[
    (Status::Ok, "ICTUS_STATUS_OK"),
    (Status::RejectBadStride, "ICTUS_REJECT_BAD_STRIDE"),
    (Status::RejectBadAlignment, "ICTUS_REJECT_BAD_ALIGNMENT"),
    (Status::RejectBounds, "ICTUS_REJECT_BOUNDS"),
    (Status::RejectBadRefGeneration, "ICTUS_REJECT_BAD_REF_GENERATION"),
    (Status::RejectUnknownLane, "ICTUS_REJECT_UNKNOWN_LANE"),
    (Status::RejectDuplicateLane, "ICTUS_REJECT_DUPLICATE_LANE"),
    (Status::RejectIllegalCombination, "ICTUS_REJECT_ILLEGAL_COMBINATION"),
    (Status::RejectBudget, "ICTUS_REJECT_BUDGET"),
    (Status::RejectStaleSeed, "ICTUS_REJECT_STALE_SEED"),
    (Status::RejectHostRules, "ICTUS_REJECT_HOST_RULES"),
    (Status::RejectTransferLocked, "ICTUS_REJECT_TRANSFER_LOCKED"),
    (Status::RejectStaleNonce, "ICTUS_REJECT_STALE_NONCE"),
    (Status::NeedsReplan, "ICTUS_NEEDS_REPLAN"),
    (Status::RejectBadStruct, "ICTUS_REJECT_BAD_STRUCT"),
    (Status::Busy, "ICTUS_EBUSY"),
    (Status::BufferTooSmall, "ICTUS_ERR_BUFFER_TOO_SMALL"),
    (Status::StaleSizing, "ICTUS_ERR_STALE_SIZING"),
    (Status::OutOfBoundary, "ICTUS_ERR_OUT_OF_BOUNDARY"),
    (Status::EnvelopeMismatch, "ICTUS_ERR_ENVELOPE_MISMATCH"),
    (Status::Checksum, "ICTUS_ERR_CHECKSUM"),
    (Status::IdentityMismatch, "ICTUS_ERR_IDENTITY_MISMATCH"),
    (Status::Unsupported, "ICTUS_ERR_OP_UNSUPPORTED"),
    (Status::RegistrationRefused, "ICTUS_ERR_REGISTRATION_REFUSED"),
    (Status::UnknownHandle, "ICTUS_ERR_UNKNOWN_HANDLE"),
    (Status::SeedUnservable, "ICTUS_ERR_SEED_UNSERVABLE"),
    (Status::RingLayout, "ICTUS_ERR_RING_LAYOUT"),
    (Status::RejectCertUnmatched, "ICTUS_REJECT_CERT_UNMATCHED"),
    (Status::Fatal, "ICTUS_ERR_FATAL"),
];

impl Status {
    /// The number that crosses the boundary.
    pub const fn code(self) -> i32 {
        self as i32
    }

    /// The status with this number, or none for a number outside the table (which a host treats as [`Status::Fatal`]).
    pub fn from_code(code: i32) -> Option<Self> {
        STATUSES.iter().map(|&(status, _)| status).find(|status| status.code() == code)
    }

    /// Whether this refuses a whole plan: the tick did not run and nothing changed.
    pub const fn is_plan_rejection(self) -> bool {
        matches!(self.code(), -114..=-100)
    }

    /// The name of the constant in the C header.
    pub fn c_name(self) -> &'static str {
        STATUSES.iter().find(|&&(status, _)| status == self).map_or("", |&(_, name)| name)
    }
}

impl core::fmt::Display for Status {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "{} ({})", self.c_name(), self.code())
    }
}

impl core::error::Error for Status {}
