//! Handles: numbers that are looked up, never followed.
//!
//! One table for the whole process, because a sequence handle names its model without carrying it. It holds nothing that a result
//! could depend on: numbers only ascend, so a handle that was released is never given out again, and a foreign pointer is not in
//! the table (the numbers are odd multiples that no allocator returns).
//!
//! # Limits
//! A sequence stays in the table until it is freed or published, its lane is retired or faults, or its model is released. One that
//! a seed handed to a lane stays until its model is released: tens of bytes.

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError, RwLock};

use super::bundle::Bundle;
use super::capacity::WaitObject;
use super::driver::DriverObject;
use super::executor::ExecutorObject;
use crate::capacity::DeviceAccount;
use crate::engine::SeqHandle;
use crate::record::Status;

/// What an `ictus_sequence_t` points to: nothing that C could look at.
#[derive(Debug)]
pub struct OpaqueSequence(());

#[derive(Debug)]
struct Table {
    next: usize,
    models: BTreeMap<usize, Arc<Bundle>>,
    sequences: BTreeMap<usize, Sequence>,
    drivers: BTreeMap<usize, Arc<DriverObject>>,
    waits: BTreeMap<usize, Arc<WaitObject>>,
    executors: BTreeMap<usize, Arc<ExecutorObject>>,
    accounts: BTreeMap<usize, DeviceAccount>,
}

/// A sequence of a model.
#[derive(Clone, Copy, Debug)]
struct Sequence {
    model: usize,
    handle: SeqHandle,
}

static TABLE: RwLock<Table> = RwLock::new(Table {
    next: 1,
    models: BTreeMap::new(),
    sequences: BTreeMap::new(),
    drivers: BTreeMap::new(),
    waits: BTreeMap::new(),
    executors: BTreeMap::new(),
    accounts: BTreeMap::new(),
});

/// Low bits that keep handles apart from each other and from addresses.
const MODEL: usize = 1;
const SEQUENCE: usize = 3;
const DRIVER: usize = 5;
const WAIT: usize = 7;
const EXECUTOR: usize = 9;
const ACCOUNT: usize = 11;
const STEP: usize = 16;

/// A table whose writer panicked is whole: every change below is one insertion or removal.
fn read<T>(body: impl FnOnce(&Table) -> T) -> T {
    body(&TABLE.read().unwrap_or_else(PoisonError::into_inner))
}

fn write<T>(body: impl FnOnce(&mut Table) -> T) -> T {
    body(&mut TABLE.write().unwrap_or_else(PoisonError::into_inner))
}

impl Table {
    fn number(&mut self, kind: usize) -> usize {
        let number = self.next * STEP + kind;
        self.next += 1;
        number
    }
}

/// Enters a model; its number is its handle.
pub(super) fn insert_model(make: impl FnOnce(usize) -> Bundle) -> usize {
    write(|table| {
        let number = table.number(MODEL);
        let bundle = Arc::new(make(number));
        table.models.insert(number, bundle);
        number
    })
}

/// The model with this handle.
pub(super) fn model(number: usize) -> Result<Arc<Bundle>, Status> {
    read(|table| table.models.get(&number).cloned()).ok_or(Status::UnknownHandle)
}

/// Takes a model and its sequences out of the table.
pub(super) fn remove_model(number: usize) -> Result<Arc<Bundle>, Status> {
    write(|table| {
        let bundle = table.models.remove(&number).ok_or(Status::UnknownHandle)?;
        table.sequences.retain(|_, sequence| sequence.model != number);
        Ok(bundle)
    })
}

/// Enters a sequence of a model.
pub(super) fn insert_sequence(model: usize, handle: SeqHandle) -> usize {
    write(|table| {
        let number = table.number(SEQUENCE);
        table.sequences.insert(number, Sequence { model, handle });
        number
    })
}

/// The sequence with this handle, and its model.
pub(super) fn sequence(number: usize) -> Result<(Arc<Bundle>, SeqHandle), Status> {
    read(|table| {
        let sequence = table.sequences.get(&number)?;
        Some((table.models.get(&sequence.model)?.clone(), sequence.handle))
    })
    .ok_or(Status::UnknownHandle)
}

/// The sequence with this handle when it belongs to `model`.
pub(super) fn sequence_of(model: usize, number: usize) -> Result<SeqHandle, Status> {
    read(|table| {
        table.sequences.get(&number).filter(|sequence| sequence.model == model).map(|sequence| sequence.handle)
    })
    .ok_or(Status::UnknownHandle)
}

/// Takes a sequence out of the table.
pub(super) fn remove_sequence(number: usize) {
    write(|table| table.sequences.remove(&number));
}

/// Enters a driver.
pub(super) fn insert_driver(driver: DriverObject) -> usize {
    write(|table| {
        let number = table.number(DRIVER);
        table.drivers.insert(number, Arc::new(driver));
        number
    })
}

/// The driver with this handle.
pub(super) fn driver(number: usize) -> Result<Arc<DriverObject>, Status> {
    read(|table| table.drivers.get(&number).cloned()).ok_or(Status::UnknownHandle)
}

/// Takes a driver out of the table.
pub(super) fn remove_driver(number: usize) -> Result<Arc<DriverObject>, Status> {
    write(|table| table.drivers.remove(&number)).ok_or(Status::UnknownHandle)
}

/// Enters a wait.
pub(super) fn insert_wait(wait: WaitObject) -> usize {
    write(|table| {
        let number = table.number(WAIT);
        table.waits.insert(number, Arc::new(wait));
        number
    })
}

/// Takes a wait out of the table.
pub(super) fn remove_wait(number: usize) -> Result<Arc<WaitObject>, Status> {
    write(|table| table.waits.remove(&number)).ok_or(Status::UnknownHandle)
}

/// Enters an executor.
pub(super) fn insert_executor(executor: ExecutorObject) -> usize {
    write(|table| {
        let number = table.number(EXECUTOR);
        table.executors.insert(number, Arc::new(executor));
        number
    })
}

/// The executor with this handle.
pub(super) fn executor(number: usize) -> Result<Arc<ExecutorObject>, Status> {
    read(|table| table.executors.get(&number).cloned()).ok_or(Status::UnknownHandle)
}

/// Takes an executor out of the table.
pub(super) fn remove_executor(number: usize) -> Result<Arc<ExecutorObject>, Status> {
    write(|table| table.executors.remove(&number)).ok_or(Status::UnknownHandle)
}

/// Enters a device account.
pub(super) fn insert_account(account: DeviceAccount) -> usize {
    write(|table| {
        let number = table.number(ACCOUNT);
        table.accounts.insert(number, account);
        number
    })
}

/// The device account with this handle.
pub(super) fn account(number: usize) -> Result<DeviceAccount, Status> {
    read(|table| table.accounts.get(&number).cloned()).ok_or(Status::UnknownHandle)
}

/// Takes a device account out of the table.
pub(super) fn remove_account(number: usize) -> Result<DeviceAccount, Status> {
    write(|table| table.accounts.remove(&number)).ok_or(Status::UnknownHandle)
}
