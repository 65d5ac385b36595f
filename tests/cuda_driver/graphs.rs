//! Capture into graphs, and their replay.

use cudarc::driver::sys::{
    CUgraphInstantiate_flags as Flags, CUstreamCaptureMode as Mode, CUstreamCaptureStatus as Status,
};
use cudarc::driver::{CudaGraph, CudaSlice, DevicePtr, DevicePtrMut, DriverError, result, sys};

use crate::fake_driver::{Point, Setting};
use crate::{Code, Device, calm_driver, code};

impl Device {
    fn begin(&self) {
        self.stream.begin_capture(Mode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL).expect("a capture begins");
    }

    fn end(&self) -> Result<CudaGraph, Code> {
        let graph = self.stream.end_capture(Flags(0)).map_err(|error| error.0)?;
        Ok(graph.expect("a capture was under way"))
    }
}

#[test]
fn cuda_graph_runs_what_was_captured_each_time() {
    let Some(driver) = calm_driver() else { return };
    let device = Device::new(0);
    let (mut x, mut y) = (device.numbers(&[1.0, 2.0]), device.numbers(&[10.0, 20.0]));
    device.begin();
    assert_eq!(device.stream.capture_status().expect("a status"), Status::CU_STREAM_CAPTURE_STATUS_ACTIVE);
    device.add(&mut x, &y).expect("a launch");
    device.add(&mut x, &y).expect("a launch");
    let graph = device.end().expect("a graph");
    assert_eq!(device.read(&x), [1.0, 2.0], "a capture runs nothing");
    graph.upload().expect("an upload");
    graph.launch().expect("a launch");
    assert_eq!(device.read(&x), [21.0, 42.0]);
    // Addresses are frozen, what lies there is not.
    device.stream.memcpy_htod(&[100.0, 200.0], &mut y).expect("a copy");
    graph.launch().expect("a launch");
    graph.launch().expect("a launch");
    assert_eq!(device.read(&x), [421.0, 842.0]);
    let statistics = driver.statistics();
    assert_eq!((statistics.launches, statistics.graph_launches, statistics.live_graphs), (6, 3, 2));
    drop(graph);
    assert_eq!(driver.statistics().live_graphs, 0);
}

/// Each of these ends the capture, twice in the same way; what was captured does not run, and the stream is as before.
#[test]
fn cuda_capture_allows_no_allocation_no_copy_of_pageable_memory_and_no_wait() {
    let Some(driver) = calm_driver() else { return };
    let device = Device::new(0);
    let (mut x, y) = (device.numbers(&[1.0]), device.numbers(&[10.0]));
    let mut target = device.numbers(&[1.0]);
    let event = device.stream.record_event(None).expect("an event");
    type Call<'a> = (&'a str, Box<dyn FnMut() -> Code + 'a>);
    let mut calls: Vec<Call<'_>> = vec![
        // SAFETY: nobody relies on what it has.
        ("an allocation", Box::new(|| code(unsafe { device.stream.alloc::<f32>(1) }))),
        ("a synchronisation", Box::new(|| code(device.stream.synchronize()))),
        ("a synchronisation of all", Box::new(|| code(device.context.synchronize()))),
        ("a query", Box::new(|| code(event.try_is_complete()))),
        ("a copy of pageable memory", Box::new(|| code(device.stream.memcpy_htod(&[1.0], &mut target)))),
        // SAFETY: nobody reads it.
        ("pinned memory", Box::new(|| code(unsafe { device.context.alloc_pinned::<f32>(1) }))),
    ];
    for (what, call) in &mut calls {
        for _ in 0..2 {
            device.begin();
            device.add(&mut x, &y).expect("a launch");
            assert_eq!(call(), Code::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, "{what}");
            assert_eq!(code(device.add(&mut x, &y)), Code::CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, "after {what}");
            let status = device.stream.capture_status().expect("a status");
            assert_eq!(status, Status::CU_STREAM_CAPTURE_STATUS_INVALIDATED, "after {what}");
            assert_eq!(device.end().err(), Some(Code::CUDA_ERROR_STREAM_CAPTURE_INVALIDATED), "after {what}");
        }
    }
    drop(calls);
    assert_eq!(driver.statistics().launches, 0);
    device.add(&mut x, &y).expect("a launch");
    assert_eq!(device.read(&x), [11.0]);
}

/// Whichever thread asks: engines of other threads must not wait so while a stream of the same device is captured.
#[test]
fn cuda_capture_is_void_when_another_thread_waits_for_the_context() {
    let Some(_driver) = calm_driver() else { return };
    let device = Device::new(0);
    device.begin();
    std::thread::scope(|scope| {
        let waited = scope.spawn(|| code(device.context.synchronize())).join().expect("the thread ends");
        assert_eq!(waited, Code::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    });
    assert_eq!(device.end().err(), Some(Code::CUDA_ERROR_STREAM_CAPTURE_INVALIDATED));
    device.begin();
    device.end().expect("a graph");
}

#[test]
fn cuda_capture_does_not_wait_for_events_from_outside() {
    let Some(_driver) = calm_driver() else { return };
    let device = Device::new(0);
    let event = device.stream.record_event(None).expect("an event");
    device.begin();
    assert_eq!(code(device.stream.wait(&event)), Code::CUDA_ERROR_STREAM_CAPTURE_ISOLATION);
    assert_eq!(device.end().err(), Some(Code::CUDA_ERROR_STREAM_CAPTURE_INVALIDATED));
}

#[test]
fn cuda_capture_begins_once_and_ends_once() {
    let Some(_driver) = calm_driver() else { return };
    let device = Device::new(0);
    assert_eq!(device.end().err(), Some(Code::CUDA_ERROR_ILLEGAL_STATE));
    device.begin();
    let again = device.stream.begin_capture(Mode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);
    assert_eq!(code(again), Code::CUDA_ERROR_ILLEGAL_STATE);
    std::thread::scope(|scope| {
        let end = scope.spawn(|| device.end().err()).join().expect("the thread ends");
        assert_eq!(end, Some(Code::CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD));
        // Other threads go on with other streams.
        scope.spawn(|| {
            let stream = device.context.new_stream().expect("a stream");
            let memory = stream.clone_htod(&[1.0]).expect("memory");
            let copy = stream.clone_dtoh(&memory).expect("a copy");
            stream.synchronize().expect("the stream ends");
            assert_eq!(copy, [1.0]);
        });
    });
    device.end().expect("a graph");
}

/// Another stream that waits for an event of the capture is part of it, and must be waited for.
#[test]
fn cuda_capture_takes_in_streams_that_wait_for_it() {
    let Some(_driver) = calm_driver() else { return };
    let device = Device::new(0);
    let other = device.context.new_stream().expect("a stream");
    let (mut x, mut z, y) = (device.numbers(&[1.0]), device.numbers(&[2.0]), device.numbers(&[10.0]));
    let mut record = |is_joined: bool| {
        device.begin();
        device.add(&mut x, &y).expect("a launch");
        other.join(&device.stream).expect("a wait");
        device.add_on(&other, &mut z.as_view_mut(), &x.as_view()).expect("a launch");
        assert_eq!(other.capture_status().expect("a status"), Status::CU_STREAM_CAPTURE_STATUS_ACTIVE);
        if is_joined {
            device.stream.join(&other).expect("a wait");
            device.add(&mut x, &z).expect("a launch");
        }
        let graph = device.end();
        assert_eq!(other.capture_status().expect("a status"), Status::CU_STREAM_CAPTURE_STATUS_NONE);
        graph
    };
    assert_eq!(record(false).err(), Some(Code::CUDA_ERROR_STREAM_CAPTURE_UNJOINED));
    record(true).expect("a graph").launch().expect("a launch");
    // x is 11, z is 13, x is 24.
    assert_eq!((device.read(&x), device.read(&z)), (vec![24.0], vec![13.0]));
}

/// A wait that is missing inside of a graph shows at its replay.
#[test]
fn cuda_graph_shows_a_forgotten_wait() {
    let Some(driver) = calm_driver() else { return };
    let device = Device::new(0);
    let other = device.context.new_stream().expect("a stream");
    let (mut x, mut z, y) = (device.room(1), device.numbers(&[2.0]), device.numbers(&[10.0]));
    device.begin();
    other.join(&device.stream).expect("a wait");
    other.memcpy_dtod(&y, &mut x).expect("a copy");
    device.add(&mut z, &x).expect("a launch"); // before it waits for the other stream
    device.stream.join(&other).expect("a wait");
    let graph = device.end().expect("a graph");
    graph.launch().expect("a launch");
    assert_eq!(code(device.stream.synchronize()), Code::CUDA_ERROR_LAUNCH_FAILED);
    assert!(driver.error_text().contains("uninitialised"), "{}", driver.error_text());
}

#[test]
fn cuda_graph_meets_memory_that_was_freed() {
    let Some(driver) = calm_driver() else { return };
    let device = Device::new(0);
    let (mut x, y) = (device.numbers(&[1.0]), device.numbers(&[10.0]));
    device.begin();
    device.add(&mut x, &y).expect("a launch");
    let graph = device.end().expect("a graph");
    drop(y);
    graph.launch().expect("a launch");
    assert_eq!(code(device.stream.synchronize()), Code::CUDA_ERROR_ILLEGAL_ADDRESS);
    assert!(driver.error_text().contains("no live allocation"), "{}", driver.error_text());
}

#[test]
fn cuda_graph_has_the_same_result_in_any_legal_order() {
    let Some(driver) = calm_driver() else { return };
    for seed in 0..8 {
        driver.reset();
        driver.set(Setting::Order, 2);
        driver.set(Setting::Seed, seed);
        let device = Device::new(0);
        let other = device.context.new_stream().expect("a stream");
        let (mut x, mut z, y) = (device.numbers(&[1.0]), device.numbers(&[2.0]), device.numbers(&[10.0]));
        device.begin();
        other.join(&device.stream).expect("a wait");
        device.add_on(&other, &mut z.as_view_mut(), &y.as_view()).expect("a launch");
        device.add(&mut x, &y).expect("a launch");
        device.stream.join(&other).expect("a wait");
        device.add(&mut x, &z).expect("a launch");
        let graph = device.end().expect("a graph");
        graph.launch().expect("a launch");
        assert_eq!(device.read(&x), [23.0], "seed {seed}");
        drop(graph);
        // SAFETY: the driver checks what it is given.
        let stale = unsafe { result::graph::launch(std::ptr::dangling_mut(), device.stream.cu_stream()) };
        assert_eq!(code(stale), Code::CUDA_ERROR_INVALID_HANDLE);
    }
}

/// Beginning, ending, making it executable and launching, each by itself; the stream and the graph are as before.
#[test]
fn cuda_calls_of_a_graph_fail_when_they_are_told_to() {
    let Some(driver) = calm_driver() else { return };
    let device = Device::new(0);
    let (mut x, y) = (device.numbers(&[1.0]), device.numbers(&[10.0]));
    let refused = Code::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    driver.inject(Point::Capture, 1, 900);
    assert_eq!(code(device.stream.begin_capture(Mode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL)), refused);
    for nth in [1, 2] {
        device.begin();
        device.add(&mut x, &y).expect("a launch");
        driver.inject(Point::Capture, nth, 900);
        assert_eq!(device.end().err(), Some(refused));
        assert_eq!(device.stream.capture_status().expect("a status"), Status::CU_STREAM_CAPTURE_STATUS_NONE);
        assert_eq!(driver.statistics().live_graphs, 0);
    }
    device.begin();
    device.add(&mut x, &y).expect("a launch");
    let graph = device.end().expect("a graph");
    driver.inject(Point::Capture, 1, 900);
    assert_eq!(code(graph.launch()), refused);
    graph.launch().expect("a launch");
    assert_eq!(device.read(&x), [11.0]);
    let statistics = driver.statistics();
    assert_eq!((statistics.launch_calls, statistics.launches, statistics.graph_launches), (3, 1, 1));
}

/// A copy to memory of another device, in the order of this one's stream.
fn push(from: &Device, to: &Device, source: &CudaSlice<f32>, target: &mut CudaSlice<f32>) -> Result<(), DriverError> {
    let bytes = source.len() * size_of::<f32>();
    let ((source, _), (target, _)) = (source.device_ptr(&from.stream), target.device_ptr_mut(&to.stream));
    let (there, here) = (to.context.cu_ctx(), from.context.cu_ctx());
    // SAFETY: the driver checks what it is given.
    unsafe { result::memcpy_peer_async(there, target, here, source, bytes, from.stream.cu_stream()) }
}

/// Two devices, which reach each other if they can.
fn pair() -> (Device, Device) {
    let (first, second) = (Device::new(0), Device::new(1));
    for (from, to) in [(&first, &second), (&second, &first)] {
        from.context.bind_to_thread().expect("the device");
        // SAFETY: the driver checks what it is given.
        let reached = unsafe { sys::cuCtxEnablePeerAccess(to.context.cu_ctx(), 0) }.result();
        assert!(matches!(code(reached), Code::CUDA_SUCCESS | Code::CUDA_ERROR_PEER_ACCESS_UNSUPPORTED));
    }
    (first, second)
}

/// A stream of another device that waits for an event of the capture is a part of it, with copies between the devices; it must be waited for, and what
/// it does otherwise is in no order with the graph.
#[test]
fn cuda_capture_takes_in_streams_of_other_devices() {
    let Some(driver) = calm_driver() else { return };
    driver.set(Setting::Devices, 2);
    let (first, second) = pair();
    let (mut x, y) = (first.numbers(&[1.0]), first.numbers(&[10.0]));
    let (mut z, mut there) = (second.numbers(&[2.0]), second.room(1));
    let mut record = |is_joined: bool| {
        first.begin();
        first.add(&mut x, &y).expect("a launch");
        push(&first, &second, &x, &mut there).expect("a copy");
        second.stream.join(&first.stream).expect("a wait");
        second.add(&mut z, &there).expect("a launch");
        let status = second.stream.capture_status().expect("a status");
        assert_eq!(status, Status::CU_STREAM_CAPTURE_STATUS_ACTIVE);
        if is_joined {
            first.stream.join(&second.stream).expect("a wait");
        }
        let graph = first.end();
        let status = second.stream.capture_status().expect("a status");
        assert_eq!(status, Status::CU_STREAM_CAPTURE_STATUS_NONE);
        graph
    };
    assert_eq!(record(false).err(), Some(Code::CUDA_ERROR_STREAM_CAPTURE_UNJOINED));
    let graph = record(true).expect("a graph");
    assert_eq!((first.read(&x), second.read(&z)), (vec![1.0], vec![2.0]), "a capture runs nothing");
    graph.launch().expect("a launch");
    assert_eq!(second.read(&z), [2.0], "the other stream waits for nothing by itself");
    second.stream.join(&first.stream).expect("a wait");
    assert_eq!(second.read(&z), [13.0]);
    graph.launch().expect("a launch");
    assert_eq!(first.read(&x), [21.0]);
    second.stream.join(&first.stream).expect("a wait");
    assert_eq!(second.read(&z), [34.0]);
}

/// The wait of a stream of another device that is missing inside of a graph shows at its replay.
#[test]
fn cuda_graph_shows_a_forgotten_wait_between_devices() {
    let Some(driver) = calm_driver() else { return };
    driver.set(Setting::Devices, 2);
    let (first, second) = pair();
    let (mut z, mut there, x) = (first.numbers(&[2.0]), first.room(1), second.numbers(&[1.0]));
    first.begin();
    second.stream.join(&first.stream).expect("a wait");
    push(&second, &first, &x, &mut there).expect("a copy");
    first.add(&mut z, &there).expect("a launch"); // before it waits for the other stream
    first.stream.join(&second.stream).expect("a wait");
    let graph = first.end().expect("a graph");
    graph.launch().expect("a launch");
    assert_eq!(code(first.stream.synchronize()), Code::CUDA_ERROR_LAUNCH_FAILED);
    assert!(driver.error_text().contains("uninitialised"), "{}", driver.error_text());
}

/// Nothing says that a graph takes a copy between devices through the host, so here none does.
#[test]
fn cuda_capture_takes_no_copy_between_devices_out_of_reach() {
    let Some(driver) = calm_driver() else { return };
    driver.set(Setting::Devices, 2);
    driver.set(Setting::Peers, 0);
    let (first, second) = pair();
    let (x, mut there) = (first.numbers(&[1.0]), second.room(1));
    first.begin();
    let refused = code(push(&first, &second, &x, &mut there));
    assert_eq!(refused, Code::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    assert_eq!(first.end().err(), Some(Code::CUDA_ERROR_STREAM_CAPTURE_INVALIDATED));
    push(&first, &second, &x, &mut there).expect("a copy");
    second.stream.join(&first.stream).expect("a wait");
    assert_eq!(second.read(&there), [1.0], "outside of a capture it goes through the host");
}

/// A fault in the part of a graph that is another device's loses that one's context, and is the graph's.
#[test]
fn cuda_fault_of_another_device_is_the_graph_s() {
    let Some(driver) = calm_driver() else { return };
    driver.set(Setting::Devices, 2);
    let (first, second) = pair();
    let (mut x, y) = (first.numbers(&[1.0]), first.numbers(&[10.0]));
    let (mut z, w) = (second.numbers(&[2.0]), second.numbers(&[3.0]));
    first.begin();
    first.add(&mut x, &y).expect("a launch");
    second.stream.join(&first.stream).expect("a wait");
    second.add(&mut z, &w).expect("a launch");
    first.stream.join(&second.stream).expect("a wait");
    let graph = first.end().expect("a graph");
    driver.inject(Point::Run, 2, 700);
    graph.launch().expect("a launch");
    for device in [&first, &second] {
        assert_eq!(code(device.stream.synchronize()), Code::CUDA_ERROR_ILLEGAL_ADDRESS);
    }
    assert_eq!(code(graph.launch()), Code::CUDA_ERROR_ILLEGAL_ADDRESS);
}
