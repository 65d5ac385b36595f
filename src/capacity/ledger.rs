#![forbid(unsafe_code)]
//! The two ends of a coordinator: what a host reads and waits on, and what a core claims with.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::num::NonZeroU64;
use std::sync::Arc;

use super::account::DeviceAccount;
use super::book::Book;
use super::demand::{Demand, Limits, Settlement};
use super::domain::{DOMAINS, Domain, EVERY, NOTHING, Units};
use super::growth::Growing;
use super::memory::Memory;
use super::refusal::{Bad, Blocked, Lack, Refusal, Remedy, Shortfall};
use super::shared::{Inner, Shared, Woken};
use super::ticket::{Receipt, Ticket};
use super::wait::Wait;

/// What can be seen of a core's capacity, and waited for. A copy is the same coordinator; none of them can claim or free.
#[derive(Clone, Debug)]
pub struct Capacity(pub(super) Arc<Shared>);

impl Capacity {
    /// The number of this coordinator: 64 random bits, never zero.
    pub fn id(&self) -> NonZeroU64 {
        self.0.read(|inner| inner.book.core)
    }

    /// The epochs now; the ticket watches everything.
    pub fn now(&self) -> Ticket {
        self.0.read(|inner| inner.book.ticket(EVERY))
    }

    /// The level of memory, from one hold of the lock. Readable also when poisoned.
    pub fn memory(&self) -> Memory {
        self.0.memory()
    }

    /// Whether a domain that the ticket watches has moved since it was seen.
    ///
    /// # Errors
    /// `Foreign`, `Regressed`, `Poisoned`.
    pub fn changed(&self, ticket: &Ticket) -> Result<bool, Refusal> {
        self.0.with(|inner| {
            if ticket.core() != inner.book.core {
                return Err(Bad::Foreign.into());
            }
            Ok(ticket.changed(&inner.book.epochs)?)
        })
    }

    /// Waits for a domain that the ticket watches to move. One that has moved already is ready at once.
    ///
    /// # Errors
    /// `Foreign`, `Regressed`, `Poisoned`; `Policy` for a ticket that watches nothing.
    pub fn wait(&self, ticket: Ticket) -> Result<Wait, Refusal> {
        let place = self.0.with(|inner| inner.register(ticket))?;
        Ok(Wait::new(Arc::clone(&self.0), place))
    }

    /// Those who wait now.
    pub fn waiters(&self) -> usize {
        self.0.read(Inner::waiters)
    }

    /// How often units were given back whose owner was in doubt.
    pub fn accounting_faults(&self) -> u64 {
        self.0.read(|inner| inner.book.faults)
    }
}

/// The end that claims, releases and grows; whoever has one is part of the core. When the last one goes, the core is gone: waits
/// resolve with `Closed`, and the device account is left.
#[derive(Clone, Debug)]
pub struct Ledger(Arc<Owner>);

#[derive(Debug)]
struct Owner(Capacity);

impl Drop for Owner {
    fn drop(&mut self) {
        let shared = &self.0.0;
        shared.close();
        let core = self.0.id().get();
        tell(shared.account.depart(core));
    }
}

/// Moves the Device epoch of other cores.
pub(super) fn tell(cores: Vec<Arc<Shared>>) {
    for core in cores {
        // One that is poisoned, or has counted to the end, has woken everybody already or never will.
        let _ = core.with(|inner| {
            inner.book.check_epochs(Domain::Device.bit())?;
            inner.book.advance(Domain::Device.bit());
            Ok(())
        });
    }
}

/// A number that no other coordinator has: 64 random bits.
fn draw_id() -> NonZeroU64 {
    loop {
        let mut hasher = RandomState::new().build_hasher();
        hasher.write_u64(0);
        if let Some(id) = NonZeroU64::new(hasher.finish()) {
            return id;
        }
    }
}

impl Ledger {
    /// A coordinator with a device account of its own, as large as its budget; a budget below what is installed counts as that.
    pub fn new(limits: Limits) -> Self {
        let installed = installed_bytes(&limits);
        let mut limits = limits;
        let budget = &mut limits.max[Domain::Budget.index()];
        *budget = installed.max(*budget);
        let account = DeviceAccount::new(*budget);
        let (ledger, joined) = Self::join(limits, installed, &account, u64::MAX);
        debug_assert!(joined.is_ok(), "an account that is as large as what is installed takes it");
        ledger
    }

    /// A coordinator whose bytes are counted with those of other cores. What it has installed is claimed at once.
    ///
    /// `ceiling`: how many bytes all cores of the account may claim together, as this one declares; `u64::MAX` declares nothing.
    ///
    /// # Errors
    /// `Bounds` where what it has installed exceeds its budget or what the account has left, and for a ceiling below what is claimed.
    pub fn with_account(limits: Limits, account: &DeviceAccount, ceiling: u64) -> Result<Self, Refusal> {
        let installed = installed_bytes(&limits);
        if installed > limits.max[Domain::Budget.index()] {
            return Err(Bad::Bounds.into());
        }
        let (ledger, joined) = Self::join(limits, installed, account, ceiling);
        joined?;
        Ok(ledger)
    }

    fn join(limits: Limits, installed: u64, account: &DeviceAccount, ceiling: u64) -> (Self, Result<(), Refusal>) {
        let core = draw_id();
        let mut total = limits.total;
        // A budget is there as a whole; the account counts the bytes of the device.
        total[Domain::Budget.index()] = limits.max[Domain::Budget.index()];
        total[Domain::Device.index()] = u64::MAX;
        let max: Units = std::array::from_fn(|at| limits.max[at].max(total[at]));
        let mut book = Book::new(core, total, max);
        book.claimed[Domain::Budget.index()] = installed;
        let shared = Arc::new(Shared::new(book, account.clone(), limits.block_bytes, limits.static_bytes));
        let joined = account.join(core.get(), ceiling, installed, Arc::downgrade(&shared));
        (Self(Arc::new(Owner(Capacity(shared)))), joined)
    }

    /// The end for hosts.
    pub fn capacity(&self) -> &Capacity {
        &self.0.0
    }

    /// Whether another part of the core holds this ledger too.
    pub fn is_shared(&self) -> bool {
        Arc::strong_count(&self.0) > 1
    }

    pub(super) fn shared(&self) -> &Shared {
        &self.0.0.0
    }

    fn open<T>(&self, operate: impl FnOnce(&mut Inner) -> Result<T, Refusal>) -> Result<T, Refusal> {
        self.shared().with(|inner| {
            if inner.book.closed {
                return Err(Bad::Closed.into());
            }
            let answer = operate(inner);
            if let Err(refusal) = &answer {
                inner.book.note_refusal(refusal);
            }
            answer
        })
    }

    /// Takes all domains of a demand or none; what the demand itself gives back is not taken twice.
    ///
    /// # Errors
    /// `Never`, `Blocked` with what is short, `Policy` for a pressure other than to wait or to recompute, `Exhausted`, `Closed`, `Poisoned`.
    /// Nothing changed.
    pub fn claim(&self, demand: &Demand, pressure: Remedy) -> Result<Receipt, Refusal> {
        self.open(|inner| {
            let gained = inner.book.claim(demand, pressure)?;
            Ok(Receipt { gained, ..receipt(inner, 0) })
        })
    }

    /// Whether a demand would be refused now, and why; it takes nothing.
    ///
    /// # Errors
    /// As [`claim`](Self::claim).
    pub fn check(&self, demand: &Demand, pressure: Remedy) -> Result<(), Refusal> {
        self.open(|inner| inner.book.decide(demand, pressure))
    }

    /// Takes what a batch needs, all or nothing: once what is `shared`, and what each item needs. A refusal says how many items
    /// would have fitted, from the first one.
    ///
    /// # Errors
    /// As [`claim`](Self::claim).
    pub fn claim_batch(&self, shared: &Units, items: &[Units], pressure: Remedy) -> Result<Receipt, Refusal> {
        self.open(|inner| {
            let book = &mut inner.book;
            let sum = |from: Units, items: &[Units]| {
                items.iter().try_fold(from, |sum, item| {
                    let mut next = sum;
                    for (next, more) in next.iter_mut().zip(item) {
                        *next = next.checked_add(*more)?;
                    }
                    Some(next)
                })
            };
            let whole = Demand::of(sum(*shared, items).ok_or(Bad::Exhausted)?);
            let refusal = match book.claim(&whole, pressure) {
                Ok(gained) => return Ok(Receipt { gained, ..receipt(inner, 0) }),
                Err(refusal) => refusal,
            };
            let mut head = *shared;
            let mut fits = 0;
            for item in items {
                let Some(next) = sum(head, std::slice::from_ref(item)) else { break };
                head = next;
                if book.decide(&Demand::of(head), pressure).is_err() {
                    break;
                }
                fits += 1;
            }
            Err(match refusal {
                Refusal::Blocked(blocked) => Refusal::Blocked(Blocked { fits, ..blocked }),
                Refusal::Never(blocked) => Refusal::Never(Blocked { fits, ..blocked }),
                other => other,
            })
        })
    }

    /// Gives claimed units back; each domain of which there are some moves once. Of a domain where less is claimed nothing comes free:
    /// its claims are in doubt, go to quarantine, and are counted as a fault.
    ///
    /// # Errors
    /// `Exhausted`, `Poisoned`; nothing changed.
    pub fn release(&self, units: &Units) -> Result<Receipt, Refusal> {
        self.shared().with(|inner| inner.book.release(units))
    }

    /// Counts measured units as free: those of a closed sequence, whose pages go back before anybody else steps.
    ///
    /// # Errors
    /// `Exhausted`, `Poisoned`; nothing changed.
    pub fn free_measured(&self, units: &Units) -> Result<Receipt, Refusal> {
        self.retire(&NOTHING, units)
    }

    /// Gives claims back and counts measured units as free, in one operation: each domain of which there are some moves once.
    ///
    /// # Errors
    /// `Exhausted`, `Poisoned`; nothing changed.
    pub fn retire(&self, claimed: &Units, measured: &Units) -> Result<Receipt, Refusal> {
        self.retire_quietly(claimed, measured, &mut Woken::default())
    }

    /// As [`retire`](Self::retire), for a caller that holds a lock which a waker may want: whoever has to be woken is added to `woken`.
    ///
    /// # Errors
    /// As there.
    pub fn retire_quietly(&self, claimed: &Units, measured: &Units, woken: &mut Woken) -> Result<Receipt, Refusal> {
        let (receipt, news) = self.shared().collect(|inner| inner.book.retire(claimed, measured));
        woken.add(news);
        receipt
    }

    /// States what the pool says of itself at the end of a submission, and returns claims.
    ///
    /// # Errors
    /// `Exhausted`, `Poisoned`; nothing changed.
    pub fn settle(&self, settlement: &Settlement) -> Result<Receipt, Refusal> {
        self.settle_quietly(settlement, &mut Woken::default())
    }

    /// As [`settle`](Self::settle), for a caller that holds a lock which a waker may want: whoever has to be woken is added to `woken`.
    ///
    /// # Errors
    /// As there.
    pub fn settle_quietly(&self, settlement: &Settlement, woken: &mut Woken) -> Result<Receipt, Refusal> {
        let (receipt, news) = self.shared().collect(|inner| inner.book.settle(settlement));
        woken.add(news);
        receipt
    }

    /// Takes claimed and measured units out of circulation: they are never handed out again, and what can be installed goes down
    /// . Whoever measures does not count them any more.
    ///
    /// # Errors
    /// `Bounds` where so much is not there, `Poisoned`; nothing changed.
    pub fn quarantine(&self, claimed: &Units, measured: &Units) -> Result<(), Refusal> {
        self.shared().with(|inner| inner.book.quarantine(claimed, measured))
    }

    /// Brings units back from quarantine, and moves their domains.
    ///
    /// # Errors
    /// `Bounds` where so much is not there, `Exhausted`, `Poisoned`; nothing changed.
    pub fn lift_quarantine(&self, units: &Units) -> Result<Receipt, Refusal> {
        self.shared().with(|inner| inner.book.lift(units))
    }

    /// The epochs now, watching these domains.
    pub fn ticket(&self, domains: u8) -> Ticket {
        self.shared().read(|inner| inner.book.ticket(domains & EVERY))
    }

    /// What is free of a domain, cached pages that may go included.
    pub fn free(&self, domain: Domain) -> u64 {
        self.shared().read(|inner| inner.book.free(domain, false))
    }

    /// What is installed of a domain, without what is in quarantine.
    pub fn total(&self, domain: Domain) -> u64 {
        self.shared().read(|inner| inner.book.total(domain))
    }

    /// What is used of a domain: measured and claimed.
    pub fn used(&self, domain: Domain) -> u64 {
        self.shared().read(|inner| inner.book.used(domain))
    }

    /// What is promised of a domain, and is in no pool yet.
    pub fn claimed(&self, domain: Domain) -> u64 {
        self.shared().read(|inner| inner.book.claimed[domain.index()])
    }

    /// Nothing is claimed from here on, and all who wait learn of it; what is held can still be given back.
    pub fn close(&self) {
        self.shared().close();
    }

    /// What is missing of each domain that a refusal lists as to be grown, by what is installed now: nothing where somebody else
    /// has grown it.
    ///
    /// # Errors
    /// `Foreign`; `Policy` where growth is not the remedy; `Poisoned`.
    pub fn missing(&self, blocked: &Blocked) -> Result<Units, Refusal> {
        self.shared().with(|inner| {
            if blocked.ticket.core() != inner.book.core {
                return Err(Bad::Foreign.into());
            }
            if blocked.remedy != Remedy::Grow {
                return Err(Bad::Policy.into());
            }
            let mut missing = NOTHING;
            for entry in blocked.shortfalls().iter().filter(|entry| entry.lack == Lack::Growth) {
                missing[entry.domain.index()] = entry.need.saturating_sub(inner.book.total(entry.domain));
            }
            Ok(missing)
        })
    }

    /// Takes device bytes for growth: from the core's budget, then from the account. `blocked` is the refusal that it helps.
    ///
    /// # Errors
    /// `Blocked`, to wait: short are the domains to be grown and the one that has no bytes, the budget when that is too small, else the
    /// device. `Never` for more than the budget can hold. `Closed`, `Exhausted`, `Poisoned`. Nothing changed.
    pub fn take_bytes(&self, bytes: u64, blocked: &Blocked) -> Result<Growing, Refusal> {
        self.open(|inner| {
            let core = inner.book.core.get();
            let used = inner.book.used(Domain::Budget);
            let max = inner.book.max(Domain::Budget);
            let free = max.saturating_sub(used);
            if bytes > free {
                inner.pressed |= inner.growing > 0;
                let pressure =
                    Shortfall { domain: Domain::Budget, lack: Lack::Now, need: bytes, free, total: max, max };
                return Err(short_of_bytes(inner, blocked, pressure));
            }
            let growing = inner.growing.checked_add(bytes).ok_or(Bad::Exhausted)?;
            // The lock is held: a release that this attempt just misses moves the Device epoch after the evidence is made.
            if let Err(level) = self.shared().account.claim(core, bytes) {
                let free = level.usable.saturating_sub(level.claimed);
                let (total, max) = (level.usable, level.usable);
                let pressure = Shortfall { domain: Domain::Device, lack: Lack::Now, need: bytes, free, total, max };
                return Err(short_of_bytes(inner, blocked, pressure));
            }
            // At most the budget's maximum, by the comparison above.
            inner.book.claimed[Domain::Budget.index()] += bytes;
            inner.growing = growing;
            Ok(())
        })?;
        Ok(Growing::new(self.clone(), bytes))
    }

    /// Takes units out that nobody uses, and returns their bytes: to the budget of this core and to all cores of its account.
    ///
    /// # Errors
    /// `Bounds` where so many units are not free or so many bytes not claimed, `Exhausted`, `Poisoned`; nothing changed.
    pub fn uninstall(&self, units: &Units, bytes: u64) -> Result<Receipt, Refusal> {
        let mut others = Vec::new();
        let receipt = self.shared().with(|inner| {
            let moved = Domain::Budget.bit() | Domain::Device.bit();
            inner.book.check_epochs(moved)?;
            if inner.book.claimed[Domain::Budget.index()] < bytes {
                return Err(Bad::Bounds.into());
            }
            inner.book.shrink(units)?;
            inner.book.claimed[Domain::Budget.index()] -= bytes;
            others = self.shared().account.release(inner.book.core.get(), bytes);
            let mut freed = NOTHING;
            freed[Domain::Budget.index()] = bytes;
            freed[Domain::Device.index()] = bytes;
            inner.book.released += 1;
            inner.book.advance(moved);
            Ok(Receipt { freed, ..receipt(inner, moved) })
        })?;
        tell(others);
        Ok(receipt)
    }
}

/// Bytes that a core with these limits holds from the start.
fn installed_bytes(limits: &Limits) -> u64 {
    let bounded = |amount: u64| if amount == u64::MAX { 0 } else { amount };
    let blocks = bounded(limits.total[Domain::Blocks.index()]).saturating_mul(limits.block_bytes);
    let arena = bounded(limits.total[Domain::Workspace.index()]);
    limits.static_bytes.saturating_add(blocks).saturating_add(arena)
}

fn receipt(inner: &Inner, watch: u8) -> Receipt {
    Receipt { freed: NOTHING, gained: NOTHING, decoding: false, pending: false, at: inner.book.ticket(watch) }
}

/// The refusal of growth for which there are no bytes.
fn short_of_bytes(inner: &Inner, blocked: &Blocked, pressure: Shortfall) -> Refusal {
    let seen = inner.book.ticket(0);
    if pressure.need > pressure.max {
        let never = Shortfall { lack: Lack::Never, ..pressure };
        return Refusal::Never(Blocked { ticket: seen, ..Blocked::on(Remedy::Wait, &[never], &seen) });
    }
    let mut short = [Shortfall::UNUSED; DOMAINS];
    let mut n = 0;
    let planned = blocked.shortfalls().iter().filter(|entry| {
        let growth = entry.lack == Lack::Growth;
        growth && entry.domain != pressure.domain && entry.need > inner.book.total(entry.domain)
    });
    for (place, entry) in short.iter_mut().zip(planned.chain([&pressure])) {
        *place = *entry;
        n += 1;
    }
    Refusal::Blocked(Blocked::on(Remedy::Wait, short.get(..n).unwrap_or(&short), &seen))
}
