#![forbid(unsafe_code)]
//! The capability descriptor: what an engine can do, as JSON (R-90, R-91).
//!
//! A member is `true`, a number or a list, or a string that says why not. Every value follows from the runtime's descriptor, so
//! it changes with what they offer. How a text is embedded is a list: the pooling, and `normalised` where the vector
//! is scaled to length 1.
//!
//! ```text
//!   of the code       what the runtime can do whatever it loads    without a model: static_part
//!   of the load       what the model and the options decide        added by a load, never in contradiction (R-91)
//! ```
//! The one exception is R-90: a head-only model takes verification and drafts away.

use serde_json::{Map, Value, json};

use crate::record::constant::{encoding, misc, space_flag, space_kind};
use crate::runtime::{Descriptor, SamplingDefaults};

/// Version of the document.
const DESCRIPTOR_VERSION: u32 = 1;

/// The document without a model: what depends on the runtime's code alone (R-91).
///
/// Of `code` count the members that no model and no option decides.
pub fn capability_without_model(code: &Descriptor) -> String {
    static_part(code).to_string()
}

/// The document of a loaded engine; `lists_vocabulary` says whether the runtime does (R-19).
pub(super) fn capability(descriptor: &Descriptor, lists_vocabulary: bool) -> String {
    let mut document = static_part(descriptor);
    let mut add = |section: &str, members: Value| {
        if let (Some(target), Value::Object(members)) = (section_of(&mut document, section), members) {
            target.extend(members);
        }
    };
    add("", json!({ "architecture": descriptor.architecture, "backend": descriptor.backend }));
    if let Some(defaults) = descriptor.sampling_defaults {
        add("", json!({ "sampling_defaults": sampling_defaults(&defaults) }));
    }
    add("load", load(descriptor));
    add("workload", embedding(descriptor));
    add("serving", serving(descriptor));
    add("state", state(descriptor));
    add("ops", ops(descriptor));
    add("sampling", json!({ "grammar": or(lists_vocabulary, descriptor, "lists no vocabulary") }));
    add("limits", limits(descriptor));
    document.to_string()
}

/// A section of the document, made when it is not there; the top for no name.
fn section_of<'v>(document: &'v mut Value, section: &str) -> Option<&'v mut Map<String, Value>> {
    let top = document.as_object_mut()?;
    match section {
        "" => Some(top),
        name => top.entry(name).or_insert_with(|| json!({})).as_object_mut(),
    }
}

/// `true`, or in the runtime's name why not.
fn or(holds: bool, descriptor: &Descriptor, why_not: &str) -> Value {
    if holds { Value::Bool(true) } else { Value::String(format!("{} {why_not}", descriptor.runtime_id)) }
}

fn static_part(code: &Descriptor) -> Value {
    let text_only = || or(false, code, "takes and gives text only");
    let verifies = or(code.verify_rows, code, "answers one row per feed");
    let strategies = if code.verify_rows { json!(["prompt-lookup"]) } else { json!([]) };
    let parks = |encodings: &[u8], why_not| {
        or(encodings.iter().any(|encoding| code.export_encodings.contains(encoding)), code, why_not)
    };
    let adapts = or(code.workloads.adapters, code, "computes without adapters");
    json!({
        "descriptor_version": DESCRIPTOR_VERSION,
        "runtime": { "id": code.runtime_id, "version": code.runtime_version },
        "load": {
            "paged_kv": or(code.copy_shares_cells, code, "keeps the state of each sequence apart"),
            "prefix_cache": true,
        },
        "workload": { "causal_generation": true, "speech_to_text": text_only() },
        "modalities": {
            "image_encode": text_only(),
            "gemma_audio_encode": text_only(),
            "whisper_transcribe": text_only(),
            "whisper_translate": text_only(),
        },
        "serving": {
            "sequences": true,
            "host_logits": true,
            "prefix_seed": true,
            "round_granular": true,
            "multi_row_verification": verifies,
            "speculation_strategies": strategies,
            "park_lossless": parks(&[encoding::LOSSLESS], "exports nothing without loss"),
            "park_lossy": parks(&[encoding::Q8, encoding::Q4], "exports nothing with loss"),
        },
        "adaptation": { "lora_load": adapts.clone(), "lora_active_on_inference": adapts },
        "ops": { "cache_evict_entries": true },
        "sampling": {
            "logit_bias": true,
            "penalties": true,
            "top_logprobs_max": misc::MAX_TOP_LOGPROBS,
            "engine_argmax": or(code.sampling.greedy, code, "answers rows, the executor picks from them"),
            "engine_draws": or(code.sampling.draws, code, "answers rows, the executor draws from them"),
        },
        "determinism": { "seed_reproducible": true, "batch_invariant": true },
    })
}

fn load(descriptor: &Descriptor) -> Value {
    json!({
        "kv_bits": descriptor.kv_bits,
        "activation_bits": descriptor.activation_bits,
        "max_batch_size": descriptor.max_batch,
    })
}

/// Whether there are vectors of texts, and what they are made of. Hosts read a member of their contract as yes, or as no with its reason (W-96), so
/// how a vector is pooled stands in a member of its own.
fn embedding(descriptor: &Descriptor) -> Value {
    let made_of = match descriptor.workloads.embedding {
        None => vec![],
        Some(embedding) if embedding.normalised => vec![embedding.pooling.name(), "normalised"],
        Some(embedding) => vec![embedding.pooling.name()],
    };
    let has = or(descriptor.workloads.embedding.is_some(), descriptor, "has no embedding of this model");
    json!({ "embedding": has, "embedding_pooling": made_of })
}

/// What the options decide, and R-90.
fn serving(descriptor: &Descriptor) -> Value {
    let splits = descriptor.prefill_step_tokens != 0;
    let mut members = json!({ "tick_yield": or(splits, descriptor, "runs a prompt in one step") });
    if !descriptor.truncate_partial
        && let Some(members) = members.as_object_mut()
    {
        let why_not = or(false, descriptor, "cannot cut the state of this model back to an accepted token");
        members.insert("multi_row_verification".to_owned(), why_not);
        members.insert("speculation_strategies".to_owned(), json!([]));
    }
    members
}

fn state(descriptor: &Descriptor) -> Value {
    let cuttable = |what: &str| or(descriptor.truncate_partial, descriptor, &format!("{what} at its head only"));
    json!({
        "legacy_save_load": or(false, descriptor, "saves state by snapshot and restore"),
        "rollback": cuttable("cuts the state of this model"),
        "shared_prefix_seed": cuttable("seeds from the state of this model"),
        "recurrent_snapshot": or(descriptor.recurrent, descriptor, "keeps keys and values, no recurrence"),
    })
}

fn ops(descriptor: &Descriptor) -> Value {
    let mut offered = descriptor.spaces.iter().filter(|space| space.flags & space_flag::OPS_UNAVAILABLE == 0);
    let exports = descriptor.export_encodings.contains(&encoding::LOSSLESS) && offered.clone().next().is_some();
    let pages = offered.any(|space| space.kind == space_kind::PAGED_TOKEN_KV);
    json!({
        "snapshot_restore": or(exports, descriptor, "offers no operations on state"),
        "seq_fork": or(descriptor.truncate_partial, descriptor, "copies the state of this model at its head only"),
        "space_promote": or(exports && pages && descriptor.truncate_partial, descriptor, "demotes no part of a sequence"),
    })
}

fn limits(descriptor: &Descriptor) -> Value {
    json!({
        "max_seq_len": descriptor.max_seq_len,
        "max_seqs": descriptor.max_seqs,
        "page_size_tokens": descriptor.page_size_tokens.max(1),
        "cells_total": descriptor.cells_total,
        "cache_resident_cells": descriptor.cache_resident_cells,
        "cache_exported_cells": descriptor.cache_exported_cells,
    })
}

/// The members that the checkpoint claims.
fn sampling_defaults(defaults: &SamplingDefaults) -> Value {
    // In their shortest decimal form, as documents have them: 0.6, not 0.6000000238418579.
    let short = |value: f32| value.to_string().parse::<f64>().map_or(Value::Null, Value::from);
    let members = [
        ("temperature", defaults.temperature.map(short)),
        ("top_p", defaults.top_p.map(short)),
        ("top_k", defaults.top_k.map(Value::from)),
        ("min_p", defaults.min_p.map(short)),
        ("repetition_penalty", defaults.repetition_penalty.map(short)),
        ("do_sample", defaults.do_sample.map(Value::from)),
    ];
    let claimed = members.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?)));
    Value::Object(claimed.collect())
}
