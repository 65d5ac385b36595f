//! TS-1 .. TS-13 and TS-15 over engines that step, pick and cut differently.

use ictus::ring::slot_bytes_for;
use ictus::testing::{Harness, SharedStage, tick_contract};

use super::engine::under_test;
use super::host::{SUPPORTS, fake, small};

/// TS-1 .. TS-15.
#[test]
fn contract_holds_whoever_picks_the_tokens() {
    for support in SUPPORTS {
        tick_contract::run_all(|| fake(|options| options.descriptor.sampling = support));
        tick_contract::run_all(|| {
            fake(|options| {
                small(options);
                options.descriptor.vocab_size = 128;
                options.descriptor.sampling = support;
            })
        });
    }
}

/// TS-1 .. TS-15.
#[test]
fn contract_holds_in_small_prefill_steps() {
    for step in [1, 3, 64] {
        tick_contract::run_all(|| fake(|options| options.descriptor.prefill_step_tokens = step));
    }
}

/// TS-1 .. TS-13, TS-15.
#[test]
fn contract_holds_on_a_head_only_runtime() {
    tick_contract::run_all(|| fake(|options| options.descriptor.truncate_partial = false));
}

/// TS-1 .. TS-15.
#[test]
fn contract_holds_in_a_pool_that_shares_cells() {
    tick_contract::run_all(|| {
        fake(|options| {
            options.descriptor.cells_total = 512;
            options.descriptor.max_seqs = 4;
            options.descriptor.copy_shares_cells = true;
        })
    });
}

/// TS-1 .. TS-15.
#[test]
fn contract_holds_over_shared_rings() {
    tick_contract::run_all(|| {
        let engine = under_test(|options| options.descriptor.vocab_size = 128);
        // Few slots, so that the rings go round.
        let rings = SharedStage::new(3, slot_bytes_for(4 * 256), slot_bytes_for(4 * 128)).expect("a legal shape");
        Harness::with_engine_and_rings(engine, rings)
    });
}
