//! The order of streams, and events.

use std::sync::Mutex;

use cudarc::driver::{CudaEvent, result, sys};

use crate::fake_driver::Setting;
use crate::{Code, Device, calm_driver, code};

#[test]
fn cuda_nothing_runs_before_a_synchronisation() {
    let Some(driver) = calm_driver() else { return };
    let device = Device::new(0);
    let (mut x, y) = (device.numbers(&[1.0, 2.0]), device.numbers(&[10.0, 20.0]));
    device.add(&mut x, &y).expect("a launch");
    let other = device.context.new_stream().expect("a stream");
    other.synchronize().expect("the other stream ends");
    assert_eq!((driver.statistics().launches, driver.kernels_run().len()), (0, 0));
    device.stream.synchronize().expect("the stream ends");
    assert_eq!(driver.statistics().launches, 1);
    assert_eq!(driver.kernels_run(), ["ictus_add"]);
    assert_eq!(device.read(&x), [11.0, 22.0]);
}

/// Writes x on one stream and adds it to y on another one, which waits or not. What came of it.
fn across(is_waited_for: bool, device: &Device) -> Result<Vec<f32>, Code> {
    let other = device.context.new_stream().expect("a stream");
    let (mut x, mut y) = (device.room(2), device.numbers(&[10.0, 20.0]));
    device.stream.memcpy_htod(&[1.0, 2.0], &mut x).expect("a copy");
    if is_waited_for {
        other.join(&device.stream).expect("a wait");
    }
    device.add_on(&other, &mut y.as_view_mut(), &x.as_view()).expect("a launch");
    let sum = other.clone_dtoh(&y).and_then(|sum| other.synchronize().map(|()| sum));
    sum.map_err(|error| error.0)
}

#[test]
fn cuda_forgotten_wait_meets_unwritten_memory() {
    let Some(driver) = calm_driver() else { return };
    assert_eq!(across(true, &Device::new(0)), Ok(vec![11.0, 22.0]));
    assert_eq!(across(false, &Device::new(0)), Err(Code::CUDA_ERROR_LAUNCH_FAILED));
    let text = driver.error_text();
    assert!(text.starts_with("ictus_add: uninitialised: read of element 0 of device memory"), "{text}");
}

/// What runs at once hides the mistake, and in any legal order some orders show it; a program that waits has one result in all of them.
#[test]
fn cuda_orders_differ_where_a_wait_is_missing() {
    let Some(driver) = calm_driver() else { return };
    driver.set(Setting::Order, 1);
    assert_eq!(across(false, &Device::new(0)), Ok(vec![11.0, 22.0]));
    let mut shown = 0;
    for seed in 0..20 {
        crate::calm(&driver);
        driver.set(Setting::Order, 2);
        driver.set(Setting::Seed, seed);
        assert_eq!(across(true, &Device::new(0)), Ok(vec![11.0, 22.0]), "seed {seed}");
        shown += usize::from(across(false, &Device::new(0)).is_err());
    }
    assert!(0 < shown && shown < 20, "{shown} of 20 orders show the missing wait");
}

#[test]
fn cuda_memory_of_another_stream_is_there_only_after_a_wait() {
    let Some(driver) = calm_driver() else { return };
    let device = Device::new(0);
    let other = device.context.new_stream().expect("a stream");
    let mut x = device.stream.alloc_zeros::<f32>(2).expect("memory");
    other.memset_zeros(&mut x).expect("a memset");
    assert_eq!(code(other.synchronize()), Code::CUDA_ERROR_ILLEGAL_ADDRESS);
    assert!(driver.error_text().contains("that its stream has not made yet"), "{}", driver.error_text());

    crate::calm(&driver);
    let device = Device::new(0);
    let other = device.context.new_stream().expect("a stream");
    let (mut x, y) = (device.numbers(&[1.0]), device.stream.alloc_zeros::<f32>(1).expect("memory"));
    device.add_on(&other, &mut x.as_view_mut(), &y.as_view()).expect("a launch");
    assert_eq!(code(other.synchronize()), Code::CUDA_ERROR_ILLEGAL_ADDRESS);
    assert!(driver.error_text().contains("that its stream has not made yet"), "{}", driver.error_text());
}

#[test]
fn cuda_memory_freed_before_its_use_is_an_error() {
    let Some(driver) = calm_driver() else { return };
    let device = Device::new(0);
    let (mut x, y) = (device.numbers(&[1.0]), device.numbers(&[2.0]));
    let other = device.context.new_stream().expect("a stream");
    device.add_on(&other, &mut x.as_view_mut(), &y.as_view()).expect("a launch");
    drop(y); // on a stream that does not wait for the launch
    device.stream.synchronize().expect("the stream ends");
    assert_eq!(code(other.synchronize()), Code::CUDA_ERROR_ILLEGAL_ADDRESS);
    let text = driver.error_text();
    assert!(text.starts_with("ictus_add: an argument points to no live allocation"), "{text}");
}

#[test]
fn cuda_wait_is_for_the_recording_that_was_the_last_at_the_call() {
    let Some(_driver) = calm_driver() else { return };
    let device = Device::new(0);
    let other = device.context.new_stream().expect("a stream");
    let mut x = device.room(1);
    let never = device.context.new_event(None).expect("an event");
    other.wait(&never).expect("a wait for nothing");
    other.synchronize().expect("the other stream ends");
    device.stream.memcpy_htod(&[1.0], &mut x).expect("a copy");
    never.record(&device.stream).expect("a recording");
    other.wait(&never).expect("a wait");
    device.stream.memcpy_htod(&[2.0], &mut x).expect("a copy");
    never.record(&device.stream).expect("a recording");
    let back = other.clone_dtoh(&x).expect("a copy");
    assert_eq!(back, [1.0], "the second copy has not run");
    never.synchronize().expect("the event comes");
    assert_eq!(device.read(&x), [2.0]);
}

#[test]
fn cuda_polling_ends() {
    let Some(driver) = calm_driver() else { return };
    let device = Device::new(0);
    let (mut x, y) = (device.numbers(&[0.0]), device.numbers(&[1.0]));
    let other = device.context.new_stream().expect("a stream");
    for _ in 0..3 {
        device.add(&mut x, &y).expect("a launch");
    }
    other.join(&device.stream).expect("a wait");
    let event = other.record_event(None).expect("an event");
    assert!(!event.is_complete());
    let polls = (1..100).take_while(|_| !event.is_complete()).count();
    assert!(polls >= 3, "one step a poll");
    assert_eq!(driver.statistics().launches, 3);
    assert_eq!(driver.statistics().synchronisations, 2, "those that made the numbers");
}

#[test]
fn cuda_events_measure_time() {
    let Some(_driver) = calm_driver() else { return };
    let device = Device::new(0);
    let timed = || device.context.new_event(Some(sys::CUevent_flags::CU_EVENT_DEFAULT)).expect("an event");
    let (from, to): (CudaEvent, CudaEvent) = (timed(), timed());
    let (mut x, y) = (device.numbers(&[0.0]), device.numbers(&[1.0]));
    from.record(&device.stream).expect("a recording");
    device.add(&mut x, &y).expect("a launch");
    to.record(&device.stream).expect("a recording");
    assert!(from.elapsed_ms(&to).expect("a time") > 0.0);
    let untimed = device.stream.record_event(None).expect("an event");
    assert_eq!(code(from.elapsed_ms(&untimed)), Code::CUDA_ERROR_INVALID_HANDLE);
}

#[test]
fn cuda_work_of_a_dropped_stream_is_done() {
    let Some(_driver) = calm_driver() else { return };
    let device = Device::new(0);
    let mut x = device.room(1);
    let other = device.context.new_stream().expect("a stream");
    other.memcpy_htod(&[1.0], &mut x).expect("a copy");
    device.stream.join(&other).expect("a wait");
    drop(other);
    assert_eq!(device.read(&x), [1.0]);
}

/// Host functions run in their place of the stream, and may wait for a thread that uses the driver.
#[test]
fn cuda_host_functions_run_in_order_and_without_the_drivers_lock() {
    static SEEN: Mutex<Vec<u64>> = Mutex::new(Vec::new());
    unsafe extern "C" fn see(_: *mut std::ffi::c_void) {
        let free = std::thread::spawn(|| CudaContextMemory::read().0).join().expect("the thread ends");
        SEEN.lock().expect("no panic").push(free);
    }
    struct CudaContextMemory;
    impl CudaContextMemory {
        fn read() -> (u64, u64) {
            let context = cudarc::driver::CudaContext::new(0).expect("a device");
            let (free, total) = context.mem_get_info().expect("sizes");
            (free as u64, total as u64)
        }
    }
    let Some(driver) = calm_driver() else { return };
    driver.set(Setting::Memory, 4096);
    let device = Device::new(0);
    let x = device.room(1);
    // SAFETY: the function takes nothing.
    let call = || unsafe {
        result::stream::launch_host_function(device.stream.cu_stream(), see, std::ptr::null_mut()).expect("a call")
    };
    call();
    drop(x);
    call();
    assert!(SEEN.lock().expect("no panic").is_empty());
    device.stream.synchronize().expect("the stream ends");
    assert_eq!(*SEEN.lock().expect("no panic"), [4096 - 512, 4096]);
}

#[test]
fn cuda_threads_drive_streams_of_their_own() {
    let Some(driver) = calm_driver() else { return };
    let device = Device::new(0);
    let sums: Vec<Vec<f32>> = std::thread::scope(|scope| {
        let run = |number: u32| {
            let device = &device;
            scope.spawn(move || {
                let stream = device.context.new_stream().expect("a stream");
                let mut x = stream.alloc_zeros::<f32>(3).expect("memory");
                let y = stream.clone_htod(&[number as f32; 3]).expect("memory");
                for _ in 0..50 {
                    device.add_on(&stream, &mut x.as_view_mut(), &y.as_view()).expect("a launch");
                }
                let sum = stream.clone_dtoh(&x).expect("a copy");
                stream.synchronize().expect("the stream ends");
                sum
            })
        };
        let threads: Vec<_> = (0..4).map(run).collect();
        threads.into_iter().map(|thread| thread.join().expect("the thread ends")).collect()
    });
    for (number, sum) in sums.iter().enumerate() {
        assert_eq!(*sum, [50.0 * number as f32; 3]);
    }
    assert_eq!(driver.statistics().launches, 200);
    assert_eq!(driver.statistics().live_allocations, 0);
}
