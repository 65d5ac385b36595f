//! Random hosts on the fake runtime, from one key, against a plain model.
//!
//! Each tick a random legal plan is made from what the model knows, and the model says beforehand what it must answer: tokens,
//! finishes, faults, chunks that were shed, log-probabilities in their order, cells. Now and then one thing in the plan is
//! spoiled first, in a way whose status is known; then it must be refused, twice, without a trace.
//!
//! The model knows the token function of the fake runtime and nothing of the executor: a lane is a list of tokens.

mod host;
mod lane;

#[path = "../common/random.rs"]
#[allow(dead_code, reason = "the simulation uses a part of it")]
mod random;

use host::{Host, Shape};
use random::Random;

/// Shapes of engines that hosts are let loose on.
const SHAPES: [Shape; 4] = [
    Shape { cells: 0, slots: 0, context: 40, vocab: 48, prefill_step: 0, support: 1 },
    Shape { cells: 300, slots: 12, context: 32, vocab: 48, prefill_step: 5, support: 0 },
    Shape { cells: 120, slots: 0, context: 64, vocab: 100, prefill_step: 16, support: 2 },
    Shape { cells: 0, slots: 5, context: 24, vocab: 33, prefill_step: 1, support: 3 },
];

/// T-3, T-106 .. T-109, T-119, T-133, T-140 .. T-145: any host, in any engine, gets what the model says.
#[test]
fn random_hosts_get_what_a_plain_model_says() {
    let mut random = Random::new("random_hosts_get_what_a_plain_model_says");
    for shape in SHAPES {
        let mut host = Host::new(shape, random.next());
        for _ in 0..1500 {
            host.tick();
        }
        host.drain();
        println!("{shape:?}: {:?}", host.stats);
        let stats = host.stats;
        assert!(stats.admitted > 100 && stats.tokens > 500 && stats.refused > 50 && stats.faults > 5, "{stats:?}");
    }
}

/// 10 000 lanes admitted and retired leak no cell and no sequence.
#[test]
fn ten_thousand_lanes_leak_nothing() {
    let mut random = Random::new("ten_thousand_lanes_leak_nothing");
    let shape = Shape { cells: 2000, slots: 64, context: 40, vocab: 40, prefill_step: 8, support: 1 };
    let mut host = Host::new(shape, random.next());
    while host.stats.admitted < 10_000 {
        host.tick();
    }
    host.drain();
    println!("{:?}", host.stats);
}
