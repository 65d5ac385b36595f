//! One failure at the n-th place of a world, for every n.
//!
//! A quiet world is recorded. Then it is replayed, once for each n, with the n-th step of it failing; then with the n-th page, the n-th
//! copy of a sequence, the n-th part of a state that moves. Which plans are refused after that, the model says.

use ictus::runtime::RuntimeError;

use super::host::Host;
use super::random::Random;
use super::runtime::Planned;
use super::shape::Shape;
use super::shrink::{self, Failure};
use super::world::{Action, Stats, World};

/// What fails.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Place {
    Step,
    Page,
    Copy,
    Part,
}

pub(crate) const PLACES: [Place; 4] = [Place::Step, Place::Page, Place::Copy, Place::Part];

impl Place {
    /// The failure behind `n` that go well.
    fn planned(self, n: u64, error: RuntimeError) -> Planned {
        let quiet = Planned::default();
        match self {
            Self::Step => Planned { step: Some((n, error)), ..quiet },
            Self::Page => Planned { page: Some(n), ..quiet },
            Self::Copy => Planned { copy: Some(n), ..quiet },
            Self::Part => Planned { part: Some((n, error)), ..quiet },
        }
    }
}

/// A world in which nothing fails.
fn record(shape: &Shape, key: u64, actions: usize) -> Vec<Action> {
    let mut world = World::new(shape);
    let mut host = Host::new(&world.model, key);
    host.is_quiet();
    let mut log = Vec::new();
    for _ in 0..actions {
        let action = host.next(&world.model);
        log.push(action.clone());
        world.apply(&action).expect("quiet worlds are those of the other tests");
    }
    log
}

/// Replays a log with one failure; answers what was seen, and whether there was a place for it.
fn replay(shape: &Shape, log: &[Action], planned: Planned, key: u64) -> Result<(Stats, bool), String> {
    shrink::quietly(|| {
        let mut world = World::new(shape);
        world.plan_once(planned);
        for action in log {
            if world.model.broken {
                break;
            }
            world.apply(action)?;
        }
        let struck = world.model.planned == Planned::default();
        let last = Host::new(&world.model, key).last(&world.model);
        Ok((world.finish(last)?, struck))
    })
}

/// Every place of this kind in the world of this key, one after another; answers how many there were.
///
/// # Errors
/// What differs, and the place.
pub(crate) fn sweep(shape: &Shape, key: u64, place: Place, actions: usize) -> Result<usize, Box<Failure>> {
    let log = record(shape, key, actions);
    let mut random = Random::from_key(key);
    for n in 0.. {
        let error = *random.pick(&[RuntimeError::Fault(9), RuntimeError::Capacity, RuntimeError::OutOfBoundary]);
        match replay(shape, &log, place.planned(n, error), key) {
            Ok((_, true)) => {}
            Ok((_, false)) => return Ok(n as usize),
            Err(what) => {
                let what = format!("{place:?} {n} fails with {error:?}: {what}");
                return Err(Box::new(Failure { what, log: vec![], shape: shape.clone() }));
            }
        }
    }
    unreachable!("a log has an end")
}
