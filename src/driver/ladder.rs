#![forbid(unsafe_code)]
//! What happens to a plan that the engine refuses.
//!
//! When there is no room (`NeedsReplan`), less is asked for, in this order and always in this order:
//!
//! | rung | what is given up |
//! |---|---|
//! | `Retires` | nothing: the lanes that ended are published first, which lets the cache give their room back |
//! | `Unpublished` | their state; with them freed, everything is tried again |
//! | `NoAdmits` | new requests; when nothing else runs, all but the best of them |
//! | `OnePrompt` | prompts but the best one, and half of the tick |
//! | `Decodes` | all prompts |
//! | `GiveWay` | the lane of the worst rank: published, in a plan of its own |
//! | `GiveWayFreed` | that lane, its state not kept; the others decode |
//! | `GiveWayAlone` | that lane, its state not kept, and everything else for this tick |
//! | `Alone`, `Least` | when it is the only lane: its work, down to one page or one token |
//! | | the prefix that it was to start from, whose lease keeps a whole entry in the pool |
//! | | then it does not fit at all, and ends with [`Failure::NoRoom`] |
//!
//! The best lane is never given up for another one, so it gets on in every step, and so everything comes to an end.
//!
//! Any other refusal is about one request: admits are tried one by one, then lanes, and the one that is refused alone ends with the status.

use super::draft::{Draft, Level};
use super::event::{Failure, Finish};
use super::lanes::Slot;
use super::scheduler::{Garbage, Progress, Scheduler, next_plan_seq};
use crate::engine::Engine;
use crate::record::Status;

/// How far a plan has been cut down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Rung {
    Full,
    Retires,
    Unpublished,
    NoAdmits,
    OnePrompt,
    Decodes,
    GiveWay(Slot),
    GiveWayFreed(Slot),
    GiveWayAlone(Slot),
    Alone(Slot),
    Least(Slot),
}

impl Rung {
    fn level(self) -> Level {
        match self {
            Self::Full | Self::Unpublished | Self::NoAdmits => Level::Full,
            Self::OnePrompt => Level::OnePrompt,
            Self::Decodes | Self::GiveWayFreed(_) => Level::Decodes,
            Self::Retires | Self::GiveWay(_) | Self::GiveWayAlone(_) => Level::Nothing,
            Self::Alone(slot) => Level::Alone(slot),
            Self::Least(slot) => Level::Least(slot),
        }
    }

    /// The lane that gives way, and whether its state is kept.
    fn victim(self) -> Option<(Slot, bool)> {
        match self {
            Self::GiveWay(slot) => Some((slot, true)),
            Self::GiveWayFreed(slot) | Self::GiveWayAlone(slot) => Some((slot, false)),
            _ => None,
        }
    }
}

/// What to do about a refusal.
enum Answer {
    Again(Rung),
    Done(Progress),
}

impl Scheduler {
    /// Plans until the engine takes one.
    pub(super) fn run(&mut self, engine: &mut dyn Engine) -> Progress {
        // A waiting request may have asked for a lane of a lower priority.
        let asked = self.gives_way.take();
        let mut rung = match asked {
            Some(slot) if self.publishes(slot) => Rung::GiveWay(slot),
            Some(slot) => Rung::GiveWayFreed(slot),
            None => Rung::Full,
        };
        loop {
            // A lease of a job that was sent back would keep its entry in the pool.
            self.sweep(engine);
            let draft = self.draft(next_plan_seq(engine), rung.level(), rung.victim());
            if draft.is_empty() && rung == Rung::Full {
                return Progress::Idle;
            }
            let answer = match draft.is_empty() {
                true => self.ask_for_less(rung),
                false => match engine.tick(&draft.plan, &draft.arena, &mut self.rings) {
                    Ok(view) => {
                        self.settle(&view, &draft);
                        if asked.is_some() {
                            self.no_room = None;
                        }
                        return Progress::Worked;
                    }
                    Err(Status::Fatal) => {
                        self.break_down();
                        return Progress::Worked;
                    }
                    Err(Status::NeedsReplan) => self.ask_for_less(rung),
                    Err(status) => self.single_out(engine, &draft, rung, status),
                },
            };
            match answer {
                Answer::Again(next) => rung = next,
                Answer::Done(progress) => return progress,
            }
        }
    }

    /// The next rung, when there was no room on this one.
    fn ask_for_less(&mut self, rung: Rung) -> Answer {
        Answer::Again(match rung {
            Rung::Full if self.retires.iter().any(|retire| retire.publish) => Rung::Retires,
            Rung::Retires => {
                self.retires.iter_mut().for_each(|retire| retire.publish = false);
                Rung::Unpublished
            }
            Rung::Full | Rung::Unpublished => {
                self.send_back_fresh();
                self.note_no_room();
                Rung::NoAdmits
            }
            Rung::NoAdmits => Rung::OnePrompt,
            Rung::OnePrompt => Rung::Decodes,
            Rung::Decodes => match *self.lanes.order() {
                // Only retires are left, and they cannot be refused for room any more.
                [] => return Answer::Done(Progress::Stalled),
                [slot] => Rung::Alone(slot),
                [.., slot] if self.publishes(slot) => Rung::GiveWay(slot),
                [.., slot] => Rung::GiveWayFreed(slot),
            },
            Rung::GiveWay(slot) => Rung::GiveWayFreed(slot),
            Rung::GiveWayFreed(slot) => Rung::GiveWayAlone(slot),
            // Freeing needs no room: this is not reached with an engine that keeps the contract.
            Rung::GiveWayAlone(_) => return Answer::Done(Progress::Stalled),
            Rung::Alone(slot) => Rung::Least(slot),
            Rung::Least(slot) if self.forget_leases(&[slot]) => Rung::Alone(slot),
            Rung::Least(slot) => {
                self.leave(slot, Finish::Failed(Failure::NoRoom));
                return Answer::Done(Progress::Worked);
            }
        })
    }

    fn publishes(&self, slot: Slot) -> bool {
        self.caches && self.lanes.get(slot).is_some_and(|live| live.job.request.publish)
    }

    /// Fresh jobs wait again; when nothing else runs, all but the best.
    fn send_back_fresh(&mut self) {
        let settled = self.lanes.iter().any(|(_, live)| !live.fresh);
        let fresh: Vec<Slot> = self.lanes.iter().filter(|(_, live)| live.fresh).map(|(slot, _)| slot).collect();
        for slot in fresh.into_iter().skip(usize::from(!settled)) {
            self.send_back(slot);
        }
    }

    /// A fresh job waits again.
    fn send_back(&mut self, slot: Slot) {
        if let Some(live) = self.take_off(slot) {
            self.wait(live.job);
        }
    }

    /// Remembers that there was no room, so that admission does not try again until something has changed.
    pub(super) fn note_no_room(&mut self) {
        self.no_room = Some((self.pool.used_pages(), self.lanes.len(), self.ticks));
    }

    /// Finds the request that a refusal is about.
    fn single_out(&mut self, engine: &mut dyn Engine, draft: &Draft, rung: Rung, status: Status) -> Answer {
        let of_draft = draft.acts.iter().map(|act| act.slot);
        let fresh: Vec<Slot> = of_draft.filter(|&slot| self.lanes.get(slot).is_some_and(|live| live.fresh)).collect();
        if status == Status::RejectStaleSeed && self.forget_leases(&fresh) {
            return Answer::Again(rung);
        }
        match *fresh {
            [] => Answer::Done(self.try_one_by_one(engine)),
            [slot] => {
                self.leave(slot, Finish::Failed(Failure::Rejected(status)));
                Answer::Again(Rung::Full)
            }
            [_, ref others @ ..] => {
                others.iter().for_each(|&slot| self.send_back(slot));
                Answer::Again(Rung::Full)
            }
        }
    }

    /// Lets fresh jobs start cold. Answers whether one of them had a lease.
    fn forget_leases(&mut self, fresh: &[Slot]) -> bool {
        let mut found = false;
        for &slot in fresh {
            let Some(live) = self.lanes.get_mut(slot).filter(|live| live.lease != 0) else { continue };
            self.garbage.push(Garbage::Lease(live.lease));
            live.seed(0, 0);
            found = true;
        }
        found
    }

    /// The engine disagrees about lanes that run: each is tried alone, and one that is refused ends with the status.
    fn try_one_by_one(&mut self, engine: &mut dyn Engine) -> Progress {
        engine.pump();
        let mut progress = Progress::Stalled;
        for retire in std::mem::take(&mut self.retires) {
            self.retires.push(retire);
            let level = Level::Nothing;
            match self.try_alone(engine, level) {
                Ok(()) => progress = Progress::Worked,
                Err(Status::Fatal) => return Progress::Worked,
                // The lane is still there, and in use: it is retired later.
                Err(Status::RejectTransferLocked | Status::NeedsReplan) => {}
                // The lane is gone, or was never there.
                Err(_) => {
                    self.retires.pop();
                    progress = Progress::Worked;
                }
            }
        }
        let kept = std::mem::take(&mut self.retires);
        for slot in self.lanes.order().to_vec() {
            match self.try_alone(engine, Level::Alone(slot)) {
                Ok(()) => progress = Progress::Worked,
                Err(Status::Fatal) => return Progress::Worked,
                Err(Status::RejectTransferLocked | Status::NeedsReplan) => {}
                Err(status) => {
                    self.leave(slot, Finish::Failed(Failure::Rejected(status)));
                    progress = Progress::Worked;
                }
            }
        }
        self.retires.extend(kept);
        progress
    }

    /// Ticks a plan of this level. After `Fatal` everything has ended.
    fn try_alone(&mut self, engine: &mut dyn Engine, level: Level) -> Result<(), Status> {
        let draft = self.draft(next_plan_seq(engine), level, None);
        if draft.is_empty() {
            return Ok(());
        }
        match engine.tick(&draft.plan, &draft.arena, &mut self.rings) {
            Ok(view) => {
                self.settle(&view, &draft);
                Ok(())
            }
            Err(status) => {
                if status == Status::Fatal {
                    self.break_down();
                }
                Err(status)
            }
        }
    }
}
