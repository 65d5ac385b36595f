//! Memory and copies.

use cudarc::driver::result;

use crate::fake_driver::Setting;
use crate::{Code, Device, calm, calm_driver, code};

#[test]
fn cuda_bytes_come_back_as_they_went() {
    let Some(driver) = calm_driver() else { return };
    let device = Device::new(0);
    let stream = &device.stream;
    let there = stream.clone_htod(&[1_u16, 2, 3]).expect("memory");
    let mut other = stream.alloc_zeros::<u16>(4).expect("memory");
    stream.memcpy_dtod(&there.slice(1..3), &mut other.slice_mut(1..3)).expect("a copy");
    let back = stream.clone_dtoh(&other).expect("a copy");
    stream.synchronize().expect("the stream ends");
    assert_eq!(back, [0, 2, 3, 0]);
    assert_eq!(driver.statistics().unwritten_reads, 0);
}

/// Unwritten memory is unwritten to the byte, through copies on the device too.
#[test]
fn cuda_copy_of_what_nobody_wrote_is_counted() {
    let Some(driver) = calm_driver() else { return };
    let device = Device::new(0);
    let mut x = device.room(5);
    device.stream.memcpy_htod(&[1.0, 2.0], &mut x.slice_mut(0..2)).expect("a copy");
    let mut y = device.room(5);
    device.stream.memcpy_dtod(&x, &mut y).expect("a copy");
    let back = device.stream.clone_dtoh(&y.slice(0..2)).expect("a copy");
    assert_eq!(back, [1.0, 2.0]);
    assert_eq!(driver.statistics().unwritten_reads, 0);
    let back = device.read(&y);
    assert_eq!(back[..2], [1.0, 2.0]);
    assert!(back[2..].iter().all(|x| x.is_nan()), "{back:?}");
    assert_eq!(driver.statistics().unwritten_reads, 1);
    assert_eq!(driver.error_text(), "a copy to the host of 20 bytes, where nobody wrote the one at offset 8");
}

#[test]
fn cuda_ranges_outside_of_live_memory_are_refused() {
    let Some(_driver) = calm_driver() else { return };
    let device = Device::new(0);
    let stream = device.stream.cu_stream();
    let memory = device.numbers(&[0.0; 4]);
    let address = memory.leak();
    // SAFETY: the driver checks what it is given.
    let copy = |address: u64, len: usize| code(unsafe { result::memcpy_htod_async(address, &vec![0_u8; len], stream) });
    assert_eq!(copy(address, 16), Code::CUDA_SUCCESS);
    assert_eq!(copy(address, 17), Code::CUDA_ERROR_INVALID_VALUE);
    assert_eq!(copy(address + 15, 1), Code::CUDA_SUCCESS);
    assert_eq!(copy(address + 16, 1), Code::CUDA_ERROR_INVALID_VALUE);
    assert_eq!(copy(address - 1, 1), Code::CUDA_ERROR_INVALID_VALUE);
    // SAFETY: the driver checks what it is given.
    let free = || code(unsafe { result::free_async(address, stream) });
    assert_eq!(free(), Code::CUDA_SUCCESS);
    assert_eq!(copy(address, 16), Code::CUDA_ERROR_INVALID_VALUE, "a free was asked for");
    assert_eq!(free(), Code::CUDA_ERROR_INVALID_VALUE, "a second free");
    assert_eq!(code(device.stream.synchronize()), Code::CUDA_SUCCESS, "a refusal leaves nothing behind");
    assert_eq!(free(), Code::CUDA_ERROR_INVALID_VALUE, "a third free");
}

#[test]
fn cuda_memory_is_as_large_as_it_was_set() {
    let Some(driver) = calm_driver() else { return };
    driver.set(Setting::Memory, 1 << 20);
    let device = Device::new(0);
    assert_eq!(device.context.mem_get_info().expect("sizes"), (1 << 20, 1 << 20));
    let half = device.stream.alloc_zeros::<u8>(1 << 19).expect("memory");
    assert_eq!(device.context.mem_get_info().expect("sizes"), (1 << 19, 1 << 20));
    for _ in 0..2 {
        let more = device.stream.alloc_zeros::<u8>((1 << 19) + 1);
        assert_eq!(code(more), Code::CUDA_ERROR_OUT_OF_MEMORY);
    }
    // What a stream is about to free counts as free.
    drop(half);
    let all = device.stream.alloc_zeros::<u8>(1 << 20).expect("memory");
    assert_eq!(device.context.mem_get_info().expect("sizes").0, 0);
    drop(all);
}

#[test]
fn cuda_device_without_pools_allocates_synchronously() {
    let Some(driver) = calm_driver() else { return };
    driver.set(Setting::Pools, 0);
    let device = Device::new(0);
    assert!(!device.context.has_async_alloc());
    let mut x = device.stream.clone_htod(&[1.0, 2.0]).expect("memory");
    let y = device.stream.clone_htod(&[3.0, 4.0]).expect("memory");
    device.add(&mut x, &y).expect("a launch");
    assert_eq!(device.read(&x), [4.0, 6.0]);
    drop((x, y));
    assert_eq!(driver.statistics().live_allocations, 0);
}

/// The source of a copy may change after the call when it is pageable, and not when it is pinned.
#[test]
fn cuda_pinned_source_is_read_when_the_copy_runs() {
    let Some(_driver) = calm_driver() else { return };
    let device = Device::new(0);
    let mut x = device.room(2);
    let mut pageable = vec![1.0_f32, 2.0];
    device.stream.memcpy_htod(&pageable, &mut x).expect("a copy");
    pageable.fill(9.0);
    assert_eq!(device.read(&x), [1.0, 2.0]);

    // SAFETY: it is written before it is read.
    let mut pinned = unsafe { device.context.alloc_pinned_with_flags::<f32>(2, 0) }.expect("pinned memory");
    let mut upload = |is_waited_for: bool| {
        pinned.as_mut_slice().expect("a slice").copy_from_slice(&[1.0, 2.0]);
        device.stream.memcpy_htod(&pinned, &mut x).expect("a copy");
        let copied = device.stream.record_event(None).expect("an event");
        if is_waited_for {
            copied.synchronize().expect("the copy ends");
        }
        pinned.as_mut_slice().expect("a slice").fill(9.0);
        device.read(&x)
    };
    assert_eq!(upload(false), [9.0, 9.0], "too early");
    assert_eq!(upload(true), [1.0, 2.0]);
}

#[test]
fn cuda_pinned_target_has_the_bytes_when_the_stream_was_waited_for() {
    let Some(_driver) = calm_driver() else { return };
    let device = Device::new(0);
    let x = device.numbers(&[1.0, 2.0]);
    // SAFETY: it is written before it is read.
    let mut pinned = unsafe { device.context.alloc_pinned_with_flags::<f32>(2, 0) }.expect("pinned memory");
    pinned.as_mut_slice().expect("a slice").fill(7.0);
    device.stream.memcpy_dtoh(&x, &mut pinned).expect("a copy");
    assert_eq!(pinned.as_slice().expect("a slice"), [7.0, 7.0], "too early");
    device.stream.synchronize().expect("the stream ends");
    assert_eq!(pinned.as_slice().expect("a slice"), [1.0, 2.0]);
}

#[test]
fn cuda_pinned_memory_freed_under_a_copy_is_an_error() {
    let Some(driver) = calm_driver() else { return };
    let device = Device::new(0);
    let mut x = device.room(2);
    // SAFETY: nobody reads it.
    let pinned = unsafe { device.context.alloc_pinned_with_flags::<f32>(2, 0) }.expect("pinned memory");
    device.stream.memcpy_htod(&pinned, &mut x).expect("a copy");
    drop(pinned);
    assert_eq!(code(device.stream.synchronize()), Code::CUDA_ERROR_ILLEGAL_ADDRESS);
    assert_eq!(driver.error_text(), "a copy with pinned memory that was freed before the copy ran");
}

/// A copy to pageable memory: by default done when the call returns, strictly only when the stream was waited for.
#[test]
fn cuda_pageable_target_is_late_when_strict() {
    let Some(driver) = calm_driver() else { return };
    let device = Device::new(0);
    let x = device.numbers(&[1.0, 2.0]);
    let mut target = [0.0_f32; 2];
    device.stream.memcpy_dtoh(&x, &mut target).expect("a copy");
    assert_eq!(target, [1.0, 2.0]);
    driver.set(Setting::Strict, 1);
    device.stream.memcpy_dtoh(&x, &mut target).expect("a copy");
    assert!(target.iter().all(|x| x.is_nan()), "{target:?}");
    device.stream.synchronize().expect("the stream ends");
    assert_eq!(target, [1.0, 2.0]);
}

#[test]
fn cuda_leaks_are_counted() {
    let Some(driver) = calm_driver() else { return };
    let before = driver.statistics();
    {
        let device = Device::new(0);
        let x = device.numbers(&[1.0; 64]);
        let statistics = driver.statistics();
        assert_eq!((statistics.live_allocations, statistics.live_bytes), (1, 256));
        assert_eq!((statistics.live_streams, statistics.live_modules, statistics.live_contexts), (1, 1, 1));
        drop(x);
        assert_eq!(driver.statistics().live_allocations, 0);
    }
    let after = driver.statistics();
    assert_eq!((after.allocations, after.leaked), (1, 0));
    assert_eq!((after.live_streams, after.live_events, after.live_modules, after.live_contexts), (0, 0, 0, 0));
    {
        let device = Device::new(0);
        device.numbers(&[1.0; 64]).leak();
        // SAFETY: nobody reads it.
        std::mem::forget(unsafe { device.context.alloc_pinned::<u8>(1) }.expect("pinned memory"));
        assert_eq!(driver.statistics().live_host_allocations, 1);
    }
    let after = driver.statistics();
    assert_eq!(after.live_allocations, 1, "the forgotten pinned slice holds its context");
    driver.reset();
    assert_eq!(driver.statistics(), before, "a reset frees everything");
}

/// What nobody freed when the last holder of the context let it go.
#[test]
fn cuda_memory_that_outlives_its_context_is_a_leak() {
    let Some(driver) = calm_driver() else { return };
    for forgotten in [0, 1, 2] {
        calm(&driver);
        let device = Device::new(0);
        let kept = device.numbers(&[1.0]);
        for _ in 0..forgotten {
            // SAFETY: nobody uses it.
            unsafe { result::malloc_sync(64) }.expect("memory");
        }
        drop(kept);
        assert_eq!(driver.statistics().leaked, 0, "the context lives");
        drop(device);
        let after = driver.statistics();
        assert_eq!((after.leaked, after.live_allocations, after.live_contexts), (forgotten, 0, 0));
    }
}
