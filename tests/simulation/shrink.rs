//! A failing world, made as small as it goes.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Once;
use std::time::{Duration, Instant};

use ictus::runtime::RuntimeError;

use super::host::Host;
use super::runtime::Planned;
use super::shape::Shape;
use super::world::{Action, World};

/// Why a world failed, and all that was done in it.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) what: String,
    pub(crate) log: Vec<Action>,
    pub(crate) shape: Shape,
}

/// How long a failure is made smaller.
const PATIENCE: Duration = Duration::from_secs(20);

/// Most actions that are shown, the last ones.
const SHOWN_MAX: usize = 12;

thread_local! {
    static QUIET: Cell<bool> = const { Cell::new(false) };
}

/// Runs something and turns a panic into words, without a print.
pub(crate) fn quietly<T>(run: impl FnOnce() -> Result<T, String>) -> Result<T, String> {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let hook = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            if !QUIET.get() {
                hook(info);
            }
        }));
    });
    QUIET.set(true);
    let outcome = catch_unwind(AssertUnwindSafe(run));
    QUIET.set(false);
    outcome.unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        let text = text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
        Err(format!("a panic: {}", text.unwrap_or_default()))
    })
}

/// Applies the actions to a fresh world; what differs, and after how many.
fn replay(shape: &Shape, log: &[Action]) -> Option<(String, usize)> {
    let mut done = 0;
    let outcome = quietly(|| {
        let mut world = World::new(shape);
        for action in log {
            done += 1;
            world.apply(action)?;
        }
        Ok(())
    });
    outcome.err().map(|what| (what, done))
}

impl Failure {
    /// Leaves out whatever can be left out, and describes the rest.
    pub(crate) fn shrunk(mut self) -> String {
        self.shrink();
        let mut actions: Vec<String> = self.log.iter().map(|action| format!("  {action:?}")).collect();
        let hidden = actions.len().saturating_sub(SHOWN_MAX);
        actions.drain(..hidden);
        let head = format!("{}\n{:?}\nafter {hidden} more and these actions:", self.what, self.shape);
        format!("{head}\n{}", actions.join("\n"))
    }

    fn shrink(&mut self) {
        // A failure that the log alone does not show is told as it was.
        let Some((what, done)) = replay(&self.shape, &self.log) else { return };
        self.what = what;
        self.log.truncate(done);
        let started = Instant::now();
        loop {
            let before = format!("{:?}", self.log).len();
            self.leave_out_actions(started);
            self.simplify_plans(started);
            if format!("{:?}", self.log).len() == before || started.elapsed() > PATIENCE {
                break;
            }
        }
    }

    fn leave_out_actions(&mut self, started: Instant) {
        let mut size = self.log.len() / 2;
        while size > 0 {
            let mut at = 0;
            while at < self.log.len() && started.elapsed() < PATIENCE {
                let mut fewer = self.log.clone();
                fewer.drain(at..(at + size).min(fewer.len()));
                match replay(&self.shape, &fewer) {
                    Some((what, done)) => {
                        fewer.truncate(done);
                        self.what = what;
                        self.log = fewer;
                    }
                    None => at += size,
                }
            }
            size /= 2;
        }
    }

    /// Leaves out records of the plans that are left.
    fn simplify_plans(&mut self, started: Instant) {
        for at in 0..self.log.len() {
            if started.elapsed() > PATIENCE {
                return;
            }
            for part in 0..9 {
                for index in (0..12).rev() {
                    let mut fewer = self.log.clone();
                    if simplify(&mut fewer[at], part, index)
                        && let Some((what, done)) = replay(&self.shape, &fewer)
                        && done == fewer.len()
                    {
                        self.what = what;
                        self.log = fewer;
                    }
                }
            }
        }
    }
}

fn drop_at<T>(list: &mut Vec<T>, index: usize) -> bool {
    let found = index < list.len();
    if found {
        list.remove(index);
    }
    found
}

fn simplify(action: &mut Action, part: usize, index: usize) -> bool {
    let Action::Tick(tick) = action else { return false };
    match part {
        0 => drop_at(&mut tick.plan.decodes, index),
        1 => drop_at(&mut tick.plan.prefills, index),
        2 => drop_at(&mut tick.plan.commits, index),
        3 => drop_at(&mut tick.plan.retires, index),
        4 => drop_at(&mut tick.plan.admits, index),
        5 => index == 0 && std::mem::take(&mut tick.yields),
        6 => index == 0 && tick.doom.take().is_some(),
        7 => index == 0 && tick.fail.take().is_some(),
        _ => index == 0 && std::mem::take(&mut tick.trace),
    }
}

/// Runs a world until a step was made to fail fatally, and then some.
pub(crate) fn until_fatal(shape: &Shape, key: u64) -> Result<(), Box<Failure>> {
    let mut log = Vec::new();
    let outcome = quietly(|| {
        let mut world = World::new(shape);
        let mut host = Host::new(&world.model, key);
        for turn in 0..120 {
            let mut action = host.next(&world.model);
            if let Action::Tick(tick) = &mut action
                && turn > 40
            {
                tick.fail = Some(Planned { step: Some((turn % 3, RuntimeError::Fatal)), ..Planned::default() });
            }
            log.push(action.clone());
            match world.model.broken {
                false => world.apply(&action)?,
                true => world.apply_broken(&action)?,
            }
        }
        Ok(())
    });
    outcome.map_err(|what| Box::new(Failure { what, log, shape: shape.clone() }))
}
