//! The caller's own context: a library leaves current what it found current, on whichever thread, however a call ends.

use cudarc::driver::{CudaContext, result, sys};
use ictus::backend::cuda::CudaBackend;
use ictus::runtime::{Answers, Feed, Input, ModelRuntime, Want};
use ictus::sample::SampleRequest;

use super::*;

/// The context that is current on this thread.
fn current() -> Option<usize> {
    result::ctx::get_current().expect("the driver was started").map(|context| context as usize)
}

/// What the caller has current while engines come, work, fail and go.
fn leaves_it(driver: &cuda_device::FakeDriver, device_mask: u64, whose: &str) {
    let before = current();
    let left = |when: &str| assert_eq!(current(), before, "{whose}, mask {device_mask}: {when}");
    let options = ModelOptions { device_mask, ..options() };
    let plan = Model::plan(model::file(SMALL), &options);
    left("after a plan");
    plan.expect("it fits");
    let model = Model::open(model::file(SMALL), &options).expect("it opens");
    left("after loading");
    let mut engine = model.engine().expect("an engine");
    left("after opening");
    let first = tokens(&mut *engine, &[1, 2, 3, 4, 5], 4);
    left("after ticks");
    // On a thread where nothing is current, and gone there.
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut other = model.engine().expect("another engine");
            assert_eq!(current(), None, "{whose}: after opening elsewhere");
            assert_eq!(tokens(&mut *other, &[1, 2, 3, 4, 5], 4), first);
            assert_eq!(current(), None, "{whose}: after ticks elsewhere");
            drop(other);
            assert_eq!(current(), None, "{whose}: after an end elsewhere");
        });
    });
    left("after another thread");
    drop(engine);
    left("after its end");
    for point in [Point::Alloc, Point::HostAlloc, Point::Module] {
        for nth in [1, 4] {
            driver.inject(point, nth, 2);
            let refused = model.engine().err();
            driver.inject(point, 0, 0);
            left("after a refusal");
            assert!(refused.expect("refused").to_string().contains("out of memory"), "{point:?} {nth}");
        }
    }
    for point in [Point::Run, Point::Launch, Point::Copy, Point::Sync] {
        let mut engine = model.engine().expect("an engine");
        driver.inject(point, 3, ILLEGAL_ADDRESS);
        let ended = try_tokens(&mut *engine, &[1, 2, 3, 4, 5], 3);
        driver.inject(point, 0, 0);
        left("after a failure");
        assert_eq!(ended, Err(Status::Fatal), "{whose}: {point:?}");
        drop(engine);
        left("after the end of one that failed");
    }
    drop(model);
    left("at the end");
}

#[test]
fn cuda_engines_leave_the_caller_s_context_current() {
    let Some(driver) = simulated() else { return };
    driver.set(Setting::Devices, 3);
    for device_mask in [0, 0b11] {
        // Nobody's: the last one that a test on this thread had is gone.
        result::init().expect("the driver starts");
        // SAFETY: no context is made current.
        unsafe { result::ctx::set_current(core::ptr::null_mut::<sys::CUctx_st>()) }.expect("none is current");
        leaves_it(&driver, device_mask, "nobody's");
        // Of another device.
        let other = CudaContext::new(2).expect("a device");
        leaves_it(&driver, device_mask, "another device's");
        assert_eq!(current(), Some(other.cu_ctx() as usize));
        drop(other);
        // The one that the engine uses too.
        let same = CudaContext::new(0).expect("a device");
        let context = same.cu_ctx() as usize;
        let mut engine = open(SMALL).engine().expect("an engine");
        assert_eq!(tokens(&mut *engine, &[1, 2, 3], 2).len(), 2);
        drop(engine);
        assert_eq!(current(), Some(context));
    }
    let left = driver.statistics();
    assert_eq!((left.live_allocations, left.live_host_allocations, left.leaked), (0, 0, 0), "{left:?}");
}

/// A sequence whose prompt is in and of which two steps are under way.
fn two_under_way(checkpoint: &Checkpoint) -> (ModelRuntime<CudaBackend>, Feed<'static>) {
    let mut runtime = model::runtime(backend(), checkpoint, &model::options(KvType::F32, 64));
    runtime.allow_capture(true);
    let sequence = runtime.seq_create().expect("a sequence");
    let prompt = Feed { sequence, input: Input::Tokens(&[1, 2, 3]), want: Want::Nothing };
    runtime.step(&[prompt], &mut Answers::new()).expect("the step runs");
    let feed = Feed { input: Input::Tokens(&[4]), want: Want::Token(SampleRequest::default()), ..prompt };
    runtime.step_begin(&[feed]).expect("it begins");
    runtime.step_begin(&[Feed { input: Input::Picked { feed: 0 }, ..feed }]).expect("it begins");
    (runtime, feed)
}

/// Steps that are begun, ended on another thread, failed, or still under way when their engine goes: the caller's context stays current, nothing is left.
#[test]
fn cuda_steps_under_way_leave_the_caller_s_context_current() {
    let Some(driver) = simulated() else { return };
    driver.set(Setting::Devices, 2);
    let checkpoint = Checkpoint::open(model::file(SMALL)).expect("the model opens");
    let other = CudaContext::new(1).expect("a device");
    let left = |when: &str| assert_eq!(current(), Some(other.cu_ctx() as usize), "{when}");
    for ended in 0..=2 {
        let (mut runtime, feed) = two_under_way(&checkpoint);
        left("after they were begun");
        std::thread::scope(|scope| {
            let elsewhere = scope.spawn(|| {
                for _ in 0..ended {
                    runtime.step_end(&[feed], &mut Answers::new()).expect("it ends");
                    assert_eq!(current(), None, "{ended} ended elsewhere");
                }
            });
            elsewhere.join().expect("it ends");
        });
        drop(runtime);
        left("after their engine went");
        let left = driver.statistics();
        assert_eq!((left.live_allocations, left.live_host_allocations, left.leaked), (0, 0, 0), "{ended}: {left:?}");
    }
    for point in [Point::Run, Point::Sync] {
        let (mut runtime, feed) = two_under_way(&checkpoint);
        driver.inject(point, 1, ILLEGAL_ADDRESS);
        let ends = [(); 2].map(|()| runtime.step_end(&[feed], &mut Answers::new()));
        driver.inject(point, 0, 0);
        left("after a failure");
        assert!(ends.iter().all(|end| end.is_err()), "{point:?}: the first error stays");
        let again = runtime.step(&[feed], &mut Answers::new());
        assert!(again.is_err(), "{point:?}: {again:?}");
        drop(runtime);
        left("after the end of one that failed");
    }
}
