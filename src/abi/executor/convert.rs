//! What C says becomes what Rust takes, and back.

use core::ffi::c_char;
use std::sync::Arc;

use super::records::{
    AdmissionRecord, ExecutorChoices, ExecutorInfo, ExecutorSeq, ExecutorStats, LatencyRecord, LogitsRecord,
    ReceiptRecord, RefusalRecord, RowRecord, WorkRecord,
};
use crate::abi::capacity::BlockedRecord;
use crate::abi::constant::executor::{admission_flag, end, executor_flag, logits, out, refusal, work};
use crate::abi::guard::{Failure, Outcome, list, versioned};
use crate::capacity::{Blocked, DOMAINS, Domain, Feature, Lack, Receipt, Refusal, Remedy, Shortfall};
use crate::facade::{
    Admission, Chunk, CoreOptions, End, Fault, Fit, Info, Latency, Logits, Out, Row, Seq, Stats, TokenMask, Work,
};
use crate::record::Status;
use crate::record::view::Plain;

/// A number that names nothing.
fn out_of_range(what: &str, value: u64) -> Failure {
    Failure::new(Status::RejectBounds, format_args!("{what} is {value}"))
}

fn size(value: u64) -> Result<usize, Status> {
    usize::try_from(value).map_err(|_| Status::RejectBounds)
}

/// The options as the Rust API takes them.
pub(super) fn core_options(source: &ExecutorChoices) -> Outcome<CoreOptions> {
    if source.flags & !executor_flag::ALL != 0 {
        return Err(out_of_range("flags", source.flags.into()));
    }
    Ok(CoreOptions {
        mixed: source.flags & executor_flag::UNMIXED == 0,
        max_items: source.max_items,
        max_batch_tokens: source.max_batch_tokens,
        workspace_bytes: source.workspace_bytes,
        workspace_token_bytes: source.workspace_token_bytes,
        ..CoreOptions::default()
    })
}

impl From<Seq> for ExecutorSeq {
    fn from(seq: Seq) -> Self {
        let (core, slot, generation) = seq.to_parts();
        Self { core, slot, generation }
    }
}

impl From<ExecutorSeq> for Seq {
    fn from(seq: ExecutorSeq) -> Self {
        Self::from_parts(seq.core, seq.slot, seq.generation)
    }
}

pub(super) fn fit(code: u32) -> Outcome<Fit> {
    let all = [Fit::Now, Fit::Input, Fit::Ceiling];
    all.into_iter().find(|&fit| fit as u32 == code).ok_or_else(|| out_of_range("fit", code.into()))
}

fn remedy(code: u32) -> Outcome<Remedy> {
    let all = [Remedy::Wait, Remedy::Grow, Remedy::Recompute, Remedy::Quiesce];
    all.into_iter().find(|&remedy| remedy as u32 == code).ok_or_else(|| out_of_range("remedy", code.into()))
}

pub(super) fn feature(code: u32) -> Outcome<Feature> {
    Feature::ALL.into_iter().find(|&f| f as u32 == code).ok_or_else(|| out_of_range("feature", code.into()))
}

/// An admission as the Rust API takes it.
///
/// # Safety
/// The lists of `source` that are not NULL are valid for the counts beside them while `'a` lasts.
pub(super) unsafe fn admission<'a>(source: &AdmissionRecord) -> Outcome<Admission<'a>> {
    if source.flags & !admission_flag::ALL != 0 {
        return Err(out_of_range("flags", source.flags.into()));
    }
    Ok(Admission {
        // SAFETY: the promise of this function.
        prompt: unsafe { list(source.prompt, source.n_prompt) }?,
        // SAFETY: as above.
        replayed: unsafe { list(source.replayed, source.n_replayed) }?,
        ceiling: size(source.ceiling)?,
        fit: fit(source.fit)?,
        pressure: remedy(source.pressure)?,
        reuse: source.flags & admission_flag::REUSE != 0,
        counted: source.flags & admission_flag::UNCOUNTED == 0,
        tag: source.tag,
    })
}

/// What is wanted of a row, as the Rust API takes it.
///
/// # Safety
/// `source` is valid for a read of its record, whose lists that are not NULL are valid for the counts beside them.
pub(super) unsafe fn logits(source: *const LogitsRecord) -> Outcome<Logits> {
    // SAFETY: the promise of this function.
    let source = unsafe { versioned(source) }?;
    let shaped = !source.mask.is_null() || source.n_penalised != 0;
    match source.kind {
        logits::FULL if shaped => {
            Err(Failure::new(Status::RejectIllegalCombination, "a full row has no mask and no penalty"))
        }
        logits::FULL => Ok(Logits::Full),
        logits::GREEDY => {
            // SAFETY: as above.
            let mask = unsafe { list(source.mask, source.n_mask) }?;
            // SAFETY: as above.
            let penalised = unsafe { list(source.penalised, source.n_penalised) }?;
            Ok(Logits::Greedy {
                mask: (!source.mask.is_null()).then(|| TokenMask::new(mask)),
                penalty: if source.penalty == 0.0 { 1.0 } else { source.penalty },
                penalised: Arc::from(penalised),
            })
        }
        kind => Err(out_of_range("logits kind", kind.into())),
    }
}

/// An item as the Rust API takes it.
///
/// # Safety
/// `source.tokens`, when not NULL, is valid for `source.count` tokens while `'a` lasts.
pub(super) unsafe fn item<'a>(source: &WorkRecord, logits: &'a Logits) -> Outcome<Work<'a>> {
    let (seq, at) = (source.seq.into(), size(source.start)?);
    // SAFETY: the promise of this function.
    let tokens = || unsafe { list(source.tokens, source.count) };
    match source.kind {
        work::PREFILL => {
            let chunk = Chunk::new(at, size(source.count)?, size(source.total)?).map_err(|_| Status::RejectBounds)?;
            Ok(Work::Prefill { seq, chunk, whole: source.whole != 0, logits })
        }
        work::DECODE => match tokens()? {
            &[token] => Ok(Work::Decode { seq, at, token, logits }),
            tokens => Err(out_of_range("count of a decode", tokens.len() as u64)),
        },
        work::VERIFY => Ok(Work::Verify { seq, at, tokens: tokens()?, logits }),
        kind => Err(out_of_range("work kind", kind.into())),
    }
}

/// Tokens and values that an item gives at most.
pub(super) fn yields(item: &Work<'_>, vocab: usize) -> (usize, usize) {
    let rows = match item {
        Work::Prefill { chunk, .. } => usize::from(chunk.is_final()),
        Work::Decode { .. } => 1,
        Work::Verify { tokens, .. } => tokens.len(),
    };
    match item.logits() {
        // Selection may be left to the host; this facade always selects.
        Logits::Greedy { .. } => (rows, 0),
        Logits::Full => (0, rows.saturating_mul(vocab)),
    }
}

/// A row without its output.
pub(super) fn row(row: &Row) -> RowRecord {
    let base = RowRecord {
        seq: row.seq.into(),
        ran_start: row.ran.start as u64,
        ran_end: row.ran.end as u64,
        probes: row.probes,
        ..RowRecord::zeroed()
    };
    match &row.out {
        Ok(Out::Silent) => RowRecord { kind: out::SILENT, ..base },
        Ok(Out::Tokens(tokens)) => RowRecord { kind: out::TOKENS, count: tokens.len() as u64, ..base },
        Ok(Out::Logits { rows, .. }) => RowRecord { kind: out::LOGITS, count: *rows as u64, ..base },
        Ok(Out::NoFinite) => RowRecord { kind: out::NO_FINITE, ..base },
        Err(Fault { code, state, detail }) => {
            RowRecord { kind: out::FAULT, fault: *code as u32, state: *state as u32, detail: *detail, ..base }
        }
    }
}

/// How a sequence ends.
pub(super) fn ending(code: u32, prompt: u64, output: u64) -> Outcome<End> {
    match code {
        end::COMPLETED => Ok(End::Completed { prompt: size(prompt)?, output: size(output)? }),
        end::CANCELLED => Ok(End::Cancelled),
        end::FAILED => Ok(End::Failed),
        end::RECOMPUTE => Ok(End::Recompute),
        other => Err(out_of_range("end", other.into())),
    }
}

impl BlockedRecord {
    /// The evidence that came back from outside.
    pub(super) fn blocked(&self) -> Outcome<Blocked> {
        let n = self.n_short as usize;
        let given = self.short_of.get(..n).ok_or_else(|| out_of_range("n_short", self.n_short.into()))?;
        let mut short = [Shortfall::UNUSED; DOMAINS];
        for (place, entry) in short.iter_mut().zip(given) {
            let domain = Domain::ALL.into_iter().find(|domain| domain.code() == entry.domain);
            let lacks = [Lack::Fit, Lack::Now, Lack::Growth, Lack::Never];
            let lack = lacks.into_iter().find(|&lack| lack as u32 == entry.lack);
            *place = Shortfall {
                domain: domain.ok_or_else(|| out_of_range("domain", entry.domain.into()))?,
                lack: lack.ok_or_else(|| out_of_range("lack", entry.lack.into()))?,
                need: entry.need,
                free: entry.free,
                total: entry.total,
                max: entry.max,
            };
        }
        Ok(Blocked {
            remedy: remedy(self.remedy)?,
            short,
            n: n as u8,
            ticket: self.ticket.ticket()?,
            fits: self.fits,
            grew: self.grew,
        })
    }
}

impl RefusalRecord {
    /// Nothing was refused.
    pub(super) fn none(struct_size: u64) -> Self {
        Self { struct_size, kind: refusal::NONE, ..Self::zeroed() }
    }

    pub(super) fn of(source: &Refusal, struct_size: u64) -> Self {
        let none = Self::none(struct_size);
        let evidence = |blocked| BlockedRecord::of(blocked, size_of::<BlockedRecord>() as u64);
        match source {
            Refusal::Blocked(blocked) => Self { kind: refusal::BLOCKED, blocked: evidence(blocked), ..none },
            Refusal::Never(blocked) => Self { kind: refusal::NEVER, blocked: evidence(blocked), ..none },
            Refusal::Unsupported(feature) => Self { kind: refusal::UNSUPPORTED, feature: *feature as u32, ..none },
            Refusal::Bad { why, at } => Self { kind: refusal::BAD, why: *why as u32, at: *at, ..none },
        }
    }
}

impl ReceiptRecord {
    pub(super) fn of(receipt: &Receipt, struct_size: u64) -> Self {
        Self {
            struct_size,
            freed: receipt.freed,
            gained: receipt.gained,
            at: (&receipt.at).into(),
            decoding: receipt.decoding.into(),
            pending: receipt.pending.into(),
        }
    }
}

/// A name, cut to fit and NUL-padded.
fn name(text: &str) -> [c_char; 32] {
    let mut name = [0; 32];
    let last = name.len() - 1;
    for (place, byte) in name.iter_mut().take(last).zip(text.bytes()) {
        *place = byte as c_char;
    }
    name
}

impl ExecutorInfo {
    pub(super) fn of(info: &Info, struct_size: u64) -> Self {
        Self {
            struct_size,
            max_sequences: info.max_sequences,
            max_tokens: info.max_tokens,
            max_items: info.max_items,
            max_batch_tokens: info.max_batch_tokens,
            block_tokens: info.block_tokens,
            blocks: info.blocks,
            static_bytes: info.static_bytes,
            token_bytes: info.token_bytes,
            sequence_bytes: info.sequence_bytes,
            workspace_bytes: info.workspace_bytes,
            workspace_token_bytes: info.workspace_token_bytes,
            vocab: info.vocab,
            kv_bits: info.kv_bits,
            features: info.features,
            _pad0: 0,
            device: name(&info.device),
            architecture: name(&info.architecture),
        }
    }
}

impl From<&Latency> for LatencyRecord {
    fn from(latency: &Latency) -> Self {
        Self { counts: latency.counts, total_ns: latency.total_ns }
    }
}

impl ExecutorStats {
    pub(super) fn of(stats: &Stats, struct_size: u64) -> Self {
        Self {
            struct_size,
            state: stats.state as u32,
            _pad0: 0,
            admissions: stats.admissions,
            blocked: stats.blocked,
            never: stats.never,
            unsupported: stats.unsupported,
            bad: stats.bad,
            runs: stats.runs,
            rows: stats.rows,
            prefill_tokens: stats.prefill_tokens,
            decode_tokens: stats.decode_tokens,
            narrowings: stats.narrowings,
            growths: stats.growths,
            evictions: stats.evictions,
            faults: stats.faults,
            non_finite_rows: stats.non_finite_rows,
            completed: stats.completed,
            prompt_tokens: stats.prompt_tokens,
            output_tokens: stats.output_tokens,
            waiters: stats.waiters,
            accounting_faults: stats.accounting_faults,
            prefill: (&stats.prefill).into(),
            decode: (&stats.decode).into(),
        }
    }
}
