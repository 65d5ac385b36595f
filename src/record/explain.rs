#![forbid(unsafe_code)]
//! One sentence for every code: what it means, and what a host does about it.
//!
//! # Invariants
//! Every constant of the groups STATUS, FAULT, FINISH, SHED_KIND and ADMIT_STATUS has a text of its own.

use core::ffi::CStr;

use super::Status;
use super::constant::{admit_status, fault, finish, shed_kind};

/// A text of the library as Rust has it.
fn text(text: &'static CStr) -> &'static str {
    // The texts of this file are ASCII.
    text.to_str().unwrap_or_default()
}

impl Status {
    /// What the status means, and what a host does about it.
    pub fn explain(self) -> &'static str {
        text(status(self))
    }
}

/// What a lane fault (`FAULT_*`) means; none for a code that is none.
pub fn explain_fault(code: u32) -> Option<&'static str> {
    fault_text(code).map(text)
}

/// What the end of a lane's tokens (`FINISH_*`) means; none for a code that is none.
pub fn explain_finish(code: u32) -> Option<&'static str> {
    finish_text(code).map(text)
}

/// What was shed (`SHED_*`); none for a code that is none.
pub fn explain_shed(kind: u32) -> Option<&'static str> {
    shed_text(kind).map(text)
}

/// What became of an admit (`ADMIT_*`); none for a code that is none.
pub fn explain_admit(status: u32) -> Option<&'static str> {
    admit_text(status).map(text)
}

pub(crate) fn status(status: Status) -> &'static CStr {
    match status {
        Status::Ok => c"The call succeeded; there is nothing to do.",
        Status::RejectBadStride => {
            c"An array says that its elements are smaller than the oldest known form of their record; set elem_size to the size of the record that the host was compiled with."
        }
        Status::RejectBadAlignment => {
            c"A pointer is not aligned for what it points to, or an array of NULL has elements; align records to 8 bytes and give an empty array the count 0."
        }
        Status::RejectBounds => {
            c"A number lies outside its range: a token, an offset, a length, a slot, a layer; correct the argument, nothing changed."
        }
        Status::RejectBadRefGeneration => {
            c"The ring slot was written again, or never, since the reference was made; write the tokens once more and use the new reference."
        }
        Status::RejectUnknownLane => {
            c"The plan names a lane that is neither live nor admitted in it; it ended or faulted before, so drop it from the host's list."
        }
        Status::RejectDuplicateLane => {
            c"A lane is named twice in one array of the plan; name it once and send the plan again."
        }
        Status::RejectIllegalCombination => {
            c"Every part is well-formed but they do not go together, or not now: a plan number that does not rise, a live tag admitted again, a handle that is in use or gone, a decode of a lane that is not ready; correct the plan."
        }
        Status::RejectBudget => {
            c"The plan asks for more than the engine declared: lanes in a step, tokens of a prompt, bytes; stay below the limits of the capability descriptor."
        }
        Status::RejectStaleSeed => {
            c"The seed lease expired, was used, is unknown, or was made for other tokens, another determinism class or another adapter; match again, acquire a new lease, or admit without one."
        }
        Status::RejectHostRules => {
            c"A HOST lane must commit the token for its last row before it decodes again, and is granted one token at a time; send the commit first."
        }
        Status::RejectTransferLocked => {
            c"A state operation is under way on the sequence of a lane in the plan; poll or cancel the operation, or leave the lane out of this plan."
        }
        Status::RejectStaleNonce => {
            c"The commit names a row other than the last one given to the lane; take the row of the newest events."
        }
        Status::NeedsReplan => {
            c"Pages, slots or memory do not suffice for this even after every eviction that was allowed; admit less, retire or publish lanes, allow more evictions, and plan again."
        }
        Status::RejectBadStruct => {
            c"A needed pointer is NULL, a record is shorter than its oldest form, or a document, file or activation does not read as what it should be; the last error says where."
        }
        Status::Busy => {
            c"The object is in use: by a lane, a lease, an operation, or because the call came from a callback of the same model; wait for it to be free."
        }
        Status::BufferTooSmall => {
            c"The buffer is shorter than what goes into it; the call that sizes it says how many bytes it needs."
        }
        Status::StaleSizing => {
            c"The state changed since it was sized, or was never sized in this length and encoding; size it again and use that generation."
        }
        Status::OutOfBoundary => {
            c"The state cannot be cut, copied or published at that position; ask for the boundary and use it."
        }
        Status::EnvelopeMismatch => {
            c"The bytes are no sealed state of this kind, or are cut short; use the bytes exactly as they were taken."
        }
        Status::Checksum => {
            c"The payload differs from what was sealed; the bytes were damaged on their way, so fetch or export them again."
        }
        Status::IdentityMismatch => {
            c"The state or key belongs to another runtime, version, model or adapter; it is of no use here, so compute it anew."
        }
        Status::Unsupported => {
            c"This engine does not offer that, or not for this kind of state; the capability descriptor says what it offers and why not."
        }
        Status::RegistrationRefused => {
            c"The strategy asks for something that the engine cannot prove safe; go on without drafts, or register one that asks for less."
        }
        Status::UnknownHandle => {
            c"No such model, sequence, lease, operation, grammar, bias, adapter or file is known; it was released, never existed, or cannot be read."
        }
        Status::SeedUnservable => {
            c"No cached state serves this prefix, or it lies where it cannot serve; admit the lane without a seed."
        }
        Status::RingLayout => {
            c"The memory of a ring or of the control words does not look as its descriptor says; make it with the library's constants and attach it once."
        }
        Status::RejectCertUnmatched => {
            c"No certificate of the strategy covers the lane at the class that it asks for; admit it without the strategy, or allow a lower class."
        }
        Status::Fatal => {
            c"The runtime failed in a way that leaves its state unknown; release the model, open it again, and admit the lanes anew from their tokens."
        }
    }
}

pub(crate) fn fault_text(code: u32) -> Option<&'static CStr> {
    Some(match code {
        fault::UNSPECIFIED => c"The lane failed for a reason that has no code; its tag is free after a retire, other lanes are unharmed.",
        fault::GRAMMAR_OVERFLOW => {
            c"The grammar allowed no token, or refused the one that was picked; the text so far is valid as a beginning, so check the schema or the biases."
        }
        fault::REF_SPAN_OOB => {
            c"The lane's tokens or row did not fit into a slot of its ring; make the slots larger or grant fewer tokens."
        }
        fault::STRATEGY => c"The drafts of the lane's strategy could not be verified; admit the lane again without the strategy.",
        fault::OOM_TENTATIVE => {
            c"There was no memory for the lane's next tokens; retire or shrink other lanes and admit it again from its tokens."
        }
        fault::INTERNAL => {
            c"The lane's numbers were not finite or its state was not what it should be; admit it again, and report it if it happens again."
        }
        fault::MEDIA => c"Bound media did not fit the prompt; bind it again at the right place.",
        _ => return None,
    })
}

pub(crate) fn finish_text(code: u32) -> Option<&'static CStr> {
    Some(match code {
        finish::NONE => c"The lane can go on; grant it more tokens.",
        finish::EOS => c"The model ended its text; retire the lane.",
        finish::LENGTH => c"The sequence is as long as the engine allows; retire the lane.",
        finish::GRAMMAR => c"The grammar is complete and allows nothing more; retire the lane.",
        finish::CANCELLED => c"The lane was cancelled before its text ended; retire it.",
        finish::ERROR => c"The lane faulted; its fault record says why.",
        _ => return None,
    })
}

pub(crate) fn shed_text(kind: u32) -> Option<&'static CStr> {
    Some(match kind {
        shed_kind::UNSPECIFIED => c"Something was given up that has no kind.",
        shed_kind::PREFILL_CHUNK => {
            c"Prompt tokens of a lane did not run in this tick; plan them again in the next one."
        }
        shed_kind::CACHE_EVICTION => {
            c"Cached state was dropped to make room; a later match will not find it, and its tokens are computed again when needed."
        }
        _ => return None,
    })
}

pub(crate) fn admit_text(status: u32) -> Option<&'static CStr> {
    Some(match status {
        admit_status::UNSPECIFIED => c"Nothing was decided about the admit; treat the lane as not admitted.",
        admit_status::ADMITTED => c"The lane is live; prefill and decode it.",
        admit_status::REJECTED => {
            c"The lane was not admitted while the rest of the plan ran; its reject code says why, so admit it again differently."
        }
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::record::STATUSES;
    use crate::record::layout::GROUPS;

    #[test]
    fn every_constant_has_a_text_of_its_own() {
        let mut texts = BTreeSet::new();
        let mut check = |name: &str, text: Option<&'static str>| {
            let text = text.unwrap_or_else(|| panic!("{name} has no text"));
            assert!(text.len() > 20 && text.ends_with('.') && text.is_ascii(), "{name}: {text}");
            assert!(texts.insert(text), "{name} has the text of another");
        };
        for &(status, name) in STATUSES {
            check(name, Some(status.explain()));
        }
        let mut seen = 0;
        for group in GROUPS {
            let explain: fn(u32) -> Option<&'static str> = match group.name {
                "FAULT" => explain_fault,
                "FINISH" => explain_finish,
                "SHED_KIND" => explain_shed,
                "ADMIT_STATUS" => explain_admit,
                _ => continue,
            };
            seen += 1;
            for constant in group.constants {
                check(constant.name, explain(constant.value as u32));
            }
            assert_eq!(explain(77), None);
        }
        assert_eq!(seen, 4, "the groups are those of the layout table");
    }
}
