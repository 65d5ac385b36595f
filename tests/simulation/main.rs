//! Random hosts, on the fake runtime and on tiny models, from one key, against a plain model of the whole contract.
//!
//! A *world* is a random engine ([`shape`]), a host that plans and calls at random ([`host`]), and the contract written down a second
//! time as lists and linear scans ([`model`]), from its rules and from nothing of the executor. Every call goes to both; after every
//! call everything that can be seen is compared ([`world`]): statuses, tokens, finishes, faults, what was shed, log-probabilities,
//! memory, cells, cached bytes, candidates, the contents of every sequence, every handle, every byte that leaves.
//!
//! Over a network the tokens are those of an oracle that feeds each text whole, by itself, to a runtime with one page ([`tiny`]). Steps,
//! pages, copies, and parts of states that move fail at random ([`runtime`]), or each in turn ([`sweep`]).
//!
//! When a world fails, the shortest list of actions that still fails is printed, with the command that replays the world.
//!
//! ```text
//! cargo test --test simulation                                 a million events
//! ICTUS_SIM_EVENTS=50000000 cargo test --test simulation       as many as you like; ICTUS_SIM_TINY_EVENTS for the tiny models
//! ICTUS_RNG=<key> cargo test --test simulation <test>          that world first
//! ```

#[path = "../common/gguf.rs"]
#[allow(dead_code, reason = "the simulation uses a part of it")]
mod gguf;
mod host;
#[path = "../common/lora.rs"]
#[allow(dead_code, reason = "the simulation uses a part of it")]
mod lora;
mod model;
mod plan;
mod runtime;
mod shape;
mod shrink;
mod sweep;
mod tiny;
mod world;

#[path = "../common/random.rs"]
#[allow(dead_code, reason = "the simulation uses a part of it")]
mod random;

use host::Host;
use random::Random;
use runtime::AheadCounts;
use shape::Shape;
use shrink::Failure;
use sweep::{PLACES, sweep};
use world::{Action, Stats, World};

/// How many events a run has at least: what the variable says, or this many.
fn events_wanted(variable: &str, default: usize) -> usize {
    std::env::var(variable).ok().and_then(|events| events.parse().ok()).unwrap_or(default)
}

/// Runs a world of `actions` random actions.
fn run_world(shape: &Shape, key: u64, actions: usize) -> Result<Stats, Box<Failure>> {
    let mut log: Vec<Action> = Vec::new();
    let outcome = shrink::quietly(|| {
        let mut world = World::new(shape);
        let mut host = Host::new(&world.model, key);
        for _ in 0..actions {
            if world.model.broken {
                break;
            }
            let action = host.next(&world.model);
            log.push(action.clone());
            let replanned = world.stats.replanned;
            world.apply(&action)?;
            host.crowded = match action {
                Action::Tick(_) => world.stats.replanned > replanned,
                Action::Call(_) | Action::Failing(..) => host.crowded,
            };
        }
        let last = host.last(&world.model);
        world.finish(last)
    });
    outcome.map_err(|what| Box::new(Failure { what, log, shape: shape.clone() }))
}

/// What a person types to see that world fail again.
fn replay_command(key: u64, test: &str) -> String {
    format!("ICTUS_RNG={key} cargo test --test simulation {test}")
}

/// Worlds until there were enough events.
fn run_worlds(name: &str, wanted: usize, actions: usize, shape: impl Fn(&mut Random) -> Shape) -> Stats {
    let mut random = Random::new(name);
    let mut total = Stats::default();
    let mut worlds = 0;
    let mut key = random.key();
    while total.events < wanted {
        let shape = shape(&mut Random::from_key(key));
        match run_world(&shape, key, actions) {
            Ok(stats) => total += stats,
            Err(failure) => panic!("world {worlds}, {}\n{}", replay_command(key, name), failure.shrunk()),
        }
        worlds += 1;
        key = random.next();
    }
    println!("{name}: {worlds} worlds, {total:?}");
    total
}

/// T-1 .. T-6, T-10 .. T-15, T-18 .. T-21, T-24 .. T-36, T-40 .. T-58, T-60 .. T-69, T-70 .. T-82, T-84, T-85, T-88 .. T-93,
/// T-96 .. T-101, T-104 .. T-109, T-119, T-120, T-122, T-132 .. T-135, T-140, T-142 .. T-145, T-147, S-1 .. S-5, S-10 .. S-66,
/// S-68 .. S-75, S-80, S-81, S-85 .. S-89, E-1, E-3, E-30: any host, in any engine, gets what the model says.
/// A-17: half of the plans are of the size before the callback was added.
#[test]
fn random_hosts_get_what_a_plain_model_says() {
    let wanted = events_wanted("ICTUS_SIM_EVENTS", 1_000_000);
    let stats = run_worlds("random_hosts_get_what_a_plain_model_says", wanted, 400, Shape::random);
    assert!(stats.events >= wanted, "{stats:?}");
    for (what, seen) in stats.shares() {
        assert!(seen * 20_000 >= stats.events, "{what} is rarely reached: {stats:?}");
    }
    // Half of the engines begin rounds ahead; the model knows nothing of it.
    let AheadCounts { picked, vain, again, taken_back } = stats.ahead;
    for seen in [picked, vain, again, taken_back] {
        assert!(seen * 10_000 >= stats.events, "rounds ahead are rare: {stats:?}");
    }
}

/// T-90, S-40, S-46, S-53, S-66: the same where a state cannot be cut, with prompts that leave checkpoints.
#[test]
fn random_hosts_of_a_recurrent_runtime_get_what_a_plain_model_says() {
    let wanted = events_wanted("ICTUS_SIM_EVENTS", 200_000);
    run_worlds("random_hosts_of_a_recurrent_runtime_get_what_a_plain_model_says", wanted, 200, Shape::random_recurrent);
}

/// T-30, T-82, T-124 .. T-130, R-32, R-40, R-52: the same with drafts: what is proposed and kept is predicted too.
#[test]
fn random_hosts_with_drafts_get_what_a_plain_model_says() {
    let wanted = events_wanted("ICTUS_SIM_EVENTS", 200_000);
    let stats =
        run_worlds("random_hosts_with_drafts_get_what_a_plain_model_says", wanted, 300, Shape::random_speculating);
    assert!(stats.accepted > 100 && stats.accepted < stats.proposed, "{stats:?}");
}

/// S-96, R-8, R-15, R-22 and the rules of the tests above: the same on pages, with models of every family. What a lane says is what its
/// text says when it is fed by itself, whole, to a runtime with one page.
#[test]
fn random_hosts_of_tiny_models_get_what_a_plain_model_says() {
    let wanted = events_wanted("ICTUS_SIM_TINY_EVENTS", 60_000);
    let stats = run_worlds("random_hosts_of_tiny_models_get_what_a_plain_model_says", wanted, 200, Shape::random_paged);
    for (what, seen) in stats.shares() {
        assert!(seen * 5_000 >= stats.events, "{what} is rarely reached: {stats:?}");
    }
}

/// Sweeps over random worlds, at least so many, and until every kind of place was met.
fn sweep_worlds(name: &str, worlds: usize, actions: usize, shape: impl Fn(&mut Random) -> Shape) {
    let mut random = Random::new(name);
    let mut key = random.key();
    let mut places = [0; PLACES.len()];
    let mut done = 0;
    while done < worlds || places.contains(&0) {
        let shape = shape(&mut Random::from_key(key));
        for (place, count) in PLACES.into_iter().zip(&mut places) {
            match sweep(&shape, key, place, actions) {
                Ok(found) => *count += found,
                Err(failure) => panic!("{}\n{}", replay_command(key, name), failure.shrunk()),
            }
        }
        key = random.next();
        done += 1;
        assert!(done < 20 * worlds, "some places are never met: {places:?}");
    }
    println!("{name}: {done} worlds; steps, pages, copies, parts that failed: {places:?}");
}

/// T-72, T-79, T-92, T-132 .. T-135, S-12, S-56, S-74: whichever step, cell, copy or part of a state fails, each alone.
#[test]
fn every_failure_of_the_fake_runtime_stays_where_it_is() {
    sweep_worlds("every_failure_of_the_fake_runtime_stays_where_it_is", 8, 40, Shape::random);
}

/// The same with pages: the n-th one, be it for growth, for a copy or for an import, is not to be had.
#[test]
fn every_failure_of_a_paged_runtime_stays_where_it_is() {
    sweep_worlds("every_failure_of_a_paged_runtime_stays_where_it_is", 3, 50, Shape::random_paged);
}

/// T-136: after a fatal step the call answers `Fatal`, and so does every later one.
#[test]
fn a_fatal_step_ends_a_world() {
    let mut random = Random::new("a_fatal_step_ends_a_world");
    let mut key = random.key();
    for _ in 0..200 {
        let shape = Shape::random(&mut Random::from_key(key));
        if let Err(failure) = shrink::until_fatal(&shape, key) {
            panic!("{}\n{}", replay_command(key, "a_fatal_step_ends_a_world"), failure.shrunk());
        }
        key = random.next();
    }
}

/// 10 000 lanes admitted and retired leak no cell and no sequence.
#[test]
fn ten_thousand_lanes_leak_nothing() {
    let mut random = Random::new("ten_thousand_lanes_leak_nothing");
    let shape = Shape { cells: 2000, slots: 64, prefill_step: 8, resident: 400, exported: 400, ..Shape::default() };
    let mut admitted = 0;
    let mut key = random.key();
    while admitted < 10_000 {
        match run_world(&shape, key, 4000) {
            Ok(stats) => admitted += stats.admitted,
            Err(failure) => panic!("{}\n{}", replay_command(key, "ten_thousand_lanes_leak_nothing"), failure.shrunk()),
        }
        key = random.next();
    }
}
