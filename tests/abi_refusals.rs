//! Every bad argument of every C function gets its status, twice, and leaves no trace (A-30 .. A-39).
//!
//! The engine behind most of these is the real executor over the fake runtime, so that what a refusal must leave alone is real: the
//! same ticks with and without refusals in between give the same tokens and counters.

#![allow(clippy::multiple_unsafe_ops_per_block, reason = "a test calls C functions in a row, all for one reason")]

#[path = "abi_refusals/scripted.rs"]
mod scripted;

use std::ffi::{c_char, c_void};
use std::ptr::{null, null_mut};

use ictus::InstructionSet;
use ictus::abi::constant::instruction_set;
use ictus::abi::*;
use ictus::engine::{Engine, PlanBuilder};
use ictus::executor::Executor;
use ictus::record::constant::{artifact_role, ring_id, ring_kind, ring_role, sampling_flag, strategy_cap};
use ictus::record::view::Plain;
use ictus::record::*;
use ictus::ring::SharedRing;
use ictus::runtime::FakeRuntime;

fn fake() -> ModelHandle {
    let model = adopt_engine(Box::new(Executor::new(FakeRuntime::default())));
    // SAFETY: NULL is all defaults.
    assert_eq!(unsafe { ictus_model_rings_create(model, null()) }, 0);
    model
}

fn free(model: ModelHandle) {
    // SAFETY: a handle is a number.
    assert_eq!(unsafe { ictus_model_free(model) }, 0);
}

/// The call answers with the status, and does so again.
#[track_caller]
fn twice(expected: Status, mut call: impl FnMut() -> i32) {
    for _ in 0..2 {
        assert_eq!(Status::from_code(call()), Some(expected));
    }
}

/// A pointer to `value` off its alignment. It is refused before it is used.
fn off<T>(value: &T) -> *mut T {
    (&raw const *value).cast_mut().wrapping_byte_add(1)
}

fn empty_plan(plan_seq: u64) -> TickPlan {
    PlanBuilder::new(plan_seq).build().0
}

fn last_error(model: ModelHandle) -> String {
    let (mut text, mut bytes) = ([0 as c_char; 512], 0u64);
    // SAFETY: 512 bytes are there.
    assert_eq!(unsafe { ictus_model_last_error(model, text.as_mut_ptr(), 512, &raw mut bytes) }, 0);
    let text: Vec<u8> = text[..bytes as usize].iter().map(|&byte| byte as u8).collect();
    String::from_utf8(text).expect("UTF-8")
}

/// A call by name, and the code it answers.
type Call = (&'static str, Box<dyn Fn() -> i32>);

/// All functions that take a model and answer with a status, with arguments that are well-formed.
fn calls_on(model: ModelHandle) -> Vec<Call> {
    macro_rules! calls {
        ($($name:ident($($argument:expr),*);)*) => {
            // SAFETY: the arguments are NULL or outlive the call.
            vec![$((stringify!($name), Box::new(move || unsafe { $name(model, $($argument),*) }) as Box<dyn Fn() -> i32>)),*]
        };
    }
    let span = TokenRef::zeroed();
    calls! {
        ictus_tick(&raw const *Box::leak(Box::new(empty_plan(900))), Box::leak(Box::new(null())));
        ictus_rings_attach(null(), 0);
        ictus_state_spaces(Box::leak(Box::new(Array::EMPTY)));
        ictus_strategy_register(null(), null_mut());
        ictus_op_poll(1, Box::leak(Box::new(OpStatus::zeroed())));
        ictus_op_cancel(1);
        ictus_pump();
        ictus_space_match(1, span, Array::EMPTY, Box::leak(Box::new(null())));
        ictus_seed_acquire(span, 1, 0, Box::leak(Box::new(0)));
        ictus_seed_release(1);
        ictus_seed_lease_ticks(Box::leak(Box::new(0)));
        ictus_seed_adopt(null_mut(), span, Box::leak(Box::new(0)));
        ictus_cache_evict(Box::leak(Box::new(ShedPolicy::zeroed())), 0, Box::leak(Box::new(0)));
        ictus_cache_evict_entries(Array::EMPTY);
        ictus_tick_sequence_free(null_mut());
        ictus_tick_sequence_publish(null_mut(), null(), 0);
        ictus_tick_grammar_free(1);
        ictus_tick_logit_bias_free(1);
        ictus_media_probe(c"x".as_ptr(), Box::leak(Box::new(MediaInfo::zeroed())));
        ictus_media_encode(c"x".as_ptr(), Box::leak(Box::new(0)), Box::leak(Box::new(MediaInfo::zeroed())));
        ictus_media_release(1);
        ictus_media_bind(1, 1, 0);
        ictus_adapter_load(c"x".as_ptr(), Box::leak(Box::new(0)));
        ictus_adapter_unload(1);
        ictus_adapter_bind(1, 0);
        ictus_adapter_digest(1, Box::leak(Box::new([0u8; 32])).as_mut_ptr());
        ictus_tick_sequence_adapt(null_mut(), 0);
        ictus_space_match_adapted(1, span, Array::EMPTY, 0, Box::leak(Box::new(null())));
        ictus_seed_acquire_adapted(span, 1, 0, 0, Box::leak(Box::new(0)));
        ictus_lora_load(c"x".as_ptr());
        ictus_lora_unload();
        ictus_embed(null(), 0, null_mut(), 0, Box::leak(Box::new(0)));
        ictus_layers(Box::leak(Box::new(0)));
        ictus_forward_stage(null(), 0, 0, 0, null(), 0, null_mut(), 0, Box::leak(Box::new(0)), Box::leak(Box::new(0)));
        ictus_model_sampling_defaults(null_mut());
        ictus_unpublish(null(), 0);
        ictus_control_attach(null_mut(), 0);
        ictus_model_info(null_mut());
        ictus_lane_cost(1, null_mut());
        ictus_timeline_start(null());
        ictus_timeline_stop();
        ictus_model_log(0, None, null_mut());
        ictus_model_rings_create(null());
        ictus_model_stage_prompt(null(), 0, null_mut());
        ictus_model_read_tokens(null(), null_mut(), 0, null_mut());
        ictus_model_read_logits(null(), null_mut(), 0, null_mut());
        ictus_model_tokenize(null(), 0, 0, null_mut(), 0, null_mut());
        ictus_model_detokenize(null(), 0, 0, null_mut(), 0, null_mut());
        ictus_model_is_end(0, null_mut());
        ictus_text_begin(0, null_mut());
        ictus_text_push(1, 0, null_mut(), 0, null_mut());
        ictus_text_end(1, null_mut(), 0, null_mut());
        ictus_model_chat_text(null(), 0, 0, 0, null_mut(), 0, null_mut());
        ictus_model_chat_tokens(null(), 0, 0, 0, null_mut(), 0, null_mut());
    }
}

/// Those that take a sequence.
fn calls_on_sequence(sequence: SequenceHandle) -> Vec<Call> {
    macro_rules! calls {
        ($($name:ident($($argument:expr),*);)*) => {
            // SAFETY: the arguments are NULL or outlive the call.
            vec![$((stringify!($name), Box::new(move || unsafe { $name(sequence, $($argument),*) }) as Box<dyn Fn() -> i32>)),*]
        };
    }
    let (range, buf) = (TokenRange::zeroed(), Buf::zeroed());
    calls! {
        ictus_seq_fork(Box::leak(Box::new(null_mut())), 0);
        ictus_space_export_size(1, range, 0, Box::leak(Box::new(0)), Box::leak(Box::new(0)));
        ictus_space_snapshot(1, 0, buf, 0, Box::leak(Box::new(0)));
        ictus_space_restore(1, buf, Box::leak(Box::new(0)));
        ictus_space_snapshot_boundary(1, 0, Box::leak(Box::new(0)));
        ictus_space_trim(1, 0);
        ictus_space_demote(1, range, 0, buf, 0, Box::leak(Box::new(0)));
        ictus_space_promote(1, range, buf, Box::leak(Box::new(0)));
    }
}

/// NULL, released and foreign handles are unknown to every function.
#[test]
fn models_that_are_none_are_unknown_to_every_function() {
    let released = fake();
    free(released);
    let live = fake();
    // SAFETY: a handle is a number.
    let sequence = unsafe { ictus_tick_sequence_create(live) };
    assert!(!sequence.is_null());
    let local = 0u64;
    let foreign: ModelHandle = (&raw const local).cast_mut().cast();
    for model in [null_mut(), released, foreign, sequence.cast()] {
        for (name, call) in calls_on(model) {
            for _ in 0..2 {
                assert_eq!(Status::from_code(call()), Some(Status::UnknownHandle), "{name} on {model:?}");
            }
        }
        // SAFETY: handles are numbers, and pointers are not reached.
        unsafe {
            twice(Status::UnknownHandle, || ictus_model_free(model));
            twice(Status::UnknownHandle, || ictus_model_set_yield(model, 1));
            twice(Status::UnknownHandle, || ictus_model_set_latency(model, 1));
            twice(Status::UnknownHandle, || ictus_model_last_error(model, null_mut(), 0, null_mut()));
            assert!(ictus_capability_descriptor(model).is_null());
            assert!(ictus_tick_lane_sequence(model, 1).is_null());
            assert!(ictus_tick_sequence_create(model).is_null());
            assert_eq!(ictus_tick_grammar_create(model, c"{}".as_ptr()), 0);
            assert_eq!(ictus_tick_grammar_create_structural(model, c"{}".as_ptr()), 0);
            assert_eq!(ictus_tick_logit_bias_create(model, [1].as_ptr(), [1.0].as_ptr(), 1), 0);
        }
    }
    // Sequences: none, the model's own handle, an address, one that was freed.
    // SAFETY: handles are numbers.
    assert_eq!(unsafe { ictus_tick_sequence_free(live, sequence) }, 0);
    let other = fake();
    // SAFETY: as above.
    let of_another = unsafe { ictus_tick_sequence_create(other) };
    for stale in [null_mut(), live.cast(), foreign.cast(), sequence] {
        for (name, call) in calls_on_sequence(stale) {
            for _ in 0..2 {
                assert_eq!(Status::from_code(call()), Some(Status::UnknownHandle), "{name} on {stale:?}");
            }
        }
    }
    for wrong in [null_mut(), sequence, of_another] {
        let mut lease = 0;
        // SAFETY: the pointers are locals.
        unsafe {
            twice(Status::UnknownHandle, || ictus_tick_sequence_free(live, wrong));
            twice(Status::UnknownHandle, || ictus_tick_sequence_publish(live, wrong, null(), 0));
            twice(Status::UnknownHandle, || ictus_seed_adopt(live, wrong, TokenRef::zeroed(), &raw mut lease));
        }
    }
    // SAFETY: the sequence of the other model lives on.
    assert_eq!(unsafe { ictus_tick_sequence_free(other, of_another) }, 0);
    free(live);
    free(other);
}

/// pointers that are needed and NULL, misaligned, or of a record too short.
fn bad_pointers(model: ModelHandle) {
    let (null_status, misaligned) = (Status::RejectBadStruct, Status::RejectBadAlignment);
    let plan = empty_plan(1);
    let short = TickPlan { struct_size: 151, ..plan };
    let (word, mut events, mut tokens) = (0u64, null(), [0u32; 4]);
    let (reference, mut count) = (TokenRef::zeroed(), 0u64);
    let policy = ShedPolicy::zeroed();
    let (info, shape, status) = (MediaInfo::zeroed(), RingShape::zeroed(), OpStatus::zeroed());
    let span = TokenRef { ring_id: ring_id::TOKENS_IN, generation: 999, ..TokenRef::zeroed() };
    // SAFETY: every pointer is NULL, misaligned (and refused before use), or a local of the size that it says.
    unsafe {
        twice(null_status, || ictus_tick(model, null(), &raw mut events));
        twice(misaligned, || ictus_tick(model, off(&plan), &raw mut events));
        twice(null_status, || ictus_tick(model, &raw const short, &raw mut events));
        twice(null_status, || ictus_tick(model, &raw const plan, null_mut()));
        twice(misaligned, || ictus_tick(model, &raw const plan, off(&events)));
        assert!(events.is_null(), "nothing was written");
        twice(null_status, || ictus_state_spaces(model, null_mut()));
        twice(misaligned, || ictus_state_spaces(model, off(&Array::EMPTY)));
        twice(null_status, || ictus_strategy_register(model, null(), null_mut()));
        twice(null_status, || {
            let short = StrategyRegistration { struct_size: 175, ..StrategyRegistration::zeroed() };
            ictus_strategy_register(model, &raw const short, null_mut())
        });
        twice(null_status, || ictus_op_poll(model, 1, null_mut()));
        twice(misaligned, || ictus_op_poll(model, 1, off(&status)));
        twice(Status::UnknownHandle, || ictus_op_poll(model, 1, (&raw const status).cast_mut()));
        twice(null_status, || ictus_space_match(model, 1, span, Array::EMPTY, null_mut()));
        twice(null_status, || ictus_seed_acquire(model, span, 1, 0, null_mut()));
        twice(Status::RejectBadRefGeneration, || ictus_seed_acquire(model, span, 1, 0, &raw mut count));
        let nowhere = TokenRef { ring_id: 9, ..span };
        twice(Status::RejectBounds, || ictus_seed_acquire(model, nowhere, 1, 0, &raw mut count));
        let stride = Array { elem_size: 8, ..Array::EMPTY };
        twice(Status::RejectBadStride, || {
            ictus_space_match(model, 1, span, stride, (&raw const word).cast_mut().cast())
        });
        twice(Status::RejectBadStride, || ictus_cache_evict_entries(model, stride));
        twice(null_status, || ictus_seed_lease_ticks(model, null_mut()));
        twice(null_status, || ictus_cache_evict(model, null(), 0, &raw mut count));
        twice(null_status, || ictus_cache_evict(model, &raw const policy, 0, null_mut()));
        let bad = ShedPolicy { victim_lanes: Array { elem_size: 4, ..Array::EMPTY }, ..policy };
        twice(Status::RejectBadStride, || ictus_cache_evict(model, &raw const bad, 0, &raw mut count));
        twice(null_status, || ictus_unpublish(model, null(), 1));
        twice(misaligned, || ictus_unpublish(model, off(&tokens[0]), 1));
        twice(null_status, || ictus_media_probe(model, null(), (&raw const info).cast_mut()));
        twice(null_status, || ictus_media_probe(model, c"\xff".as_ptr(), (&raw const info).cast_mut()));
        twice(null_status, || ictus_media_probe(model, c"x".as_ptr(), null_mut()));
        twice(Status::Unsupported, || ictus_media_probe(model, c"x".as_ptr(), (&raw const info).cast_mut()));
        twice(Status::RingLayout, || ictus_control_attach(model, null_mut(), 64));
        twice(Status::RingLayout, || ictus_control_attach(model, off(&word).cast(), 64));
        let segment = [0u64; 8];
        twice(Status::RingLayout, || ictus_control_attach(model, segment.as_ptr().cast_mut().cast(), 64));
        twice(null_status, || ictus_rings_attach(model, null(), 1));
        let desc = RingDesc { struct_size: 47, ..RingDesc::zeroed() };
        twice(null_status, || ictus_rings_attach(model, &raw const desc, 1));
        let small = RingShape { struct_size: 31, ..shape };
        twice(null_status, || ictus_model_rings_create(model, &raw const small));
        let rows = RingShape { struct_size: 32, logits_slots: 4, ..shape };
        twice(Status::RingLayout, || ictus_model_rings_create(model, &raw const rows));
        let huge = RingShape { struct_size: 32, token_slots: u32::MAX, ..shape };
        twice(Status::RejectBounds, || ictus_model_rings_create(model, &raw const huge));
        twice(null_status, || ictus_model_stage_prompt(model, null(), 1, (&raw const reference).cast_mut()));
        twice(null_status, || ictus_model_stage_prompt(model, tokens.as_ptr(), 1, null_mut()));
        twice(Status::RejectBounds, || {
            ictus_model_stage_prompt(model, tokens.as_ptr(), u64::MAX, (&raw const reference).cast_mut())
        });
        twice(Status::RejectBounds, || {
            ictus_model_read_tokens(model, &raw const reference, tokens.as_mut_ptr(), 4, &raw mut count)
        });
        twice(null_status, || ictus_model_read_tokens(model, null(), tokens.as_mut_ptr(), 4, &raw mut count));
        twice(Status::RejectBounds, || ictus_model_log(model, 4, None, null_mut()));
        twice(Status::Unsupported, || ictus_text_begin(model, 0, &raw mut count));
        twice(Status::RejectBounds, || ictus_text_begin(model, 8, &raw mut count));
        twice(Status::UnknownHandle, || ictus_text_push(model, 1, 0, null_mut(), 0, &raw mut count));
        for (tokens, values, n) in [
            (null(), [1.0f32].as_ptr(), 1),
            ([1].as_ptr(), null(), 1),
            ([1].as_ptr(), [1.0].as_ptr(), 0),
            ([1].as_ptr(), [1.0].as_ptr(), -1),
        ] {
            assert_eq!(ictus_tick_logit_bias_create(model, tokens, values, n), 0);
        }
        assert_eq!(ictus_tick_grammar_create(model, null()), 0);
        assert_eq!(ictus_tick_grammar_create(model, c"\xff".as_ptr()), 0);
    }
    assert_eq!((count, events), (0, null()), "no output was written");
}

/// The tokens of a lane over some ticks, with `between` called before each, and the counters at the end.
fn story(model: ModelHandle, between: impl Fn(ModelHandle)) -> (Vec<u32>, u64, u64) {
    let (mut emitted, mut counters) = (Vec::new(), (0, 0));
    let mut staged = TokenRef::zeroed();
    // SAFETY: the pointers are locals.
    assert_eq!(unsafe { ictus_model_stage_prompt(model, [5, 6, 7].as_ptr(), 3, &raw mut staged) }, 0);
    for seq in 1..=6 {
        between(model);
        let mut plan = PlanBuilder::new(seq).decode(4, 2);
        if seq == 1 {
            let forever = |admit: &mut LaneAdmit| admit.params.flags = sampling_flag::IGNORE_EOS;
            plan = plan.admit_with(forever, 4, staged).prefill(4, 0, 3);
        }
        let (plan, _arena) = plan.build();
        let mut events = null();
        // SAFETY: the plan and its arena are alive.
        assert_eq!(unsafe { ictus_tick(model, &raw const plan, &raw mut events) }, 0, "{}", last_error(model));
        // SAFETY: the events stay until the next tick.
        let record = unsafe { *events };
        // SAFETY: an accepted decode has one emit.
        let emit = unsafe { *record.emits.data.cast::<LaneEmit>() };
        let (mut tokens, mut count) = ([0; 4], 0);
        let reference = &raw const emit.token_ref;
        // SAFETY: four tokens fit.
        assert_eq!(unsafe { ictus_model_read_tokens(model, reference, tokens.as_mut_ptr(), 4, &raw mut count) }, 0);
        emitted.extend_from_slice(&tokens[..count as usize]);
        counters = (record.mem.allocated_bytes, record.mem.pool_blocks_used);
    }
    (emitted, counters.0, counters.1)
}

#[test]
fn refused_calls_leave_no_trace_in_what_follows() {
    let (plain, disturbed) = (fake(), fake());
    let expected = story(plain, |_| ());
    assert_eq!(expected.0.len(), 12);
    assert_eq!(story(disturbed, bad_pointers), expected);
    free(plain);
    free(disturbed);
}

/// what a C host registers is read, refused for its reason twice, and granted.
#[test]
fn strategies_are_refused_and_granted_through_c() {
    let drafting = FakeRuntime::with(|options| options.descriptor.verify_rows = true);
    let model = adopt_engine(Box::new(Executor::new(drafting)));
    let config = b"max_draft=3, colour=red";
    let linear =
        CapabilityReq { kind_id: strategy_cap::PROPOSAL_LINEAR, params: Array::over(config), ..Plain::zeroed() };
    // An array begins at a multiple of 8, so the text lies in words.
    let mut words = [0u64; 4];
    for (word, bytes) in words.iter_mut().zip(config.chunks(8)) {
        let mut whole = [0; 8];
        whole[..bytes.len()].copy_from_slice(bytes);
        *word = u64::from_le_bytes(whole);
    }
    let params = Array { data: words.as_ptr().cast(), ..linear.params };
    let linear = CapabilityReq { params, ..linear };
    let tree = CapabilityReq { kind_id: strategy_cap::PROPOSAL_TREE, ..Plain::zeroed() };
    let (own, other) = ([c"fake".as_ptr() as u64], [c"llama".as_ptr() as u64]);
    let artifact =
        Artifact { role: artifact_role::DRAFT_WEIGHTS, load_path: c"nowhere.gguf".as_ptr(), ..Plain::zeroed() };
    let good = StrategyRegistration {
        struct_size: size_of::<StrategyRegistration>() as u64,
        strategy_id: c"prompt-lookup".as_ptr(),
        capabilities: Array::over(std::slice::from_ref(&linear)),
        target_archs: Array::over(&own),
        ..StrategyRegistration::zeroed()
    };
    let mut grant = null();
    let refused = [
        (Status::RejectBadStruct, StrategyRegistration { struct_size: 175, ..good }),
        (Status::RegistrationRefused, StrategyRegistration { strategy_id: null(), ..good }),
        (Status::RegistrationRefused, StrategyRegistration { strategy_id: c"tree".as_ptr(), ..good }),
        (Status::RegistrationRefused, StrategyRegistration { strategy_id: c"\xff".as_ptr(), ..good }),
        (Status::RegistrationRefused, StrategyRegistration { kernel_caps_required: 1, ..good }),
        (Status::RegistrationRefused, StrategyRegistration { target_archs: Array::over(&other), ..good }),
        (
            Status::RegistrationRefused,
            StrategyRegistration { capabilities: Array::over(std::slice::from_ref(&tree)), ..good },
        ),
        (Status::RejectBadStride, StrategyRegistration { taps: Array { elem_size: 15, ..Array::EMPTY }, ..good }),
        (
            Status::RegistrationRefused,
            StrategyRegistration {
                strategy_id: c"draft-model".as_ptr(),
                artifacts: Array::over(std::slice::from_ref(&artifact)),
                ..good
            },
        ),
    ];
    let no_name = "no strategy of this name";
    let reasons = [
        "",
        no_name,
        no_name,
        no_name,
        "kernel capabilities 0x1",
        "made for other architectures",
        "capability",
        "",
        "this engine opens no draft models",
    ];
    for ((status, registration), reason) in refused.iter().zip(reasons) {
        // SAFETY: the record and everything it points at are locals.
        twice(*status, || unsafe { ictus_strategy_register(model, &raw const *registration, &raw mut grant) });
        assert!(grant.is_null(), "nothing was written");
        assert!(last_error(model).contains(reason), "{}", last_error(model));
    }
    // SAFETY: as above; the grant is the model's until the next one.
    unsafe {
        assert_eq!(ictus_strategy_register(model, &raw const good, &raw mut grant), 0);
        let granted = *grant;
        assert_eq!((granted.strategy_slot, granted.certificates.count, granted.reserved_bytes), (1, 1, 0));
        let certificate = *granted.certificates.data.cast::<ExactnessCert>();
        assert_eq!((certificate.cert_id, certificate.verification_shape_class), (1, 1));
    }
    free(model);
}

/// E-42: nothing is attached unless all fit.
#[test]
fn rings_of_which_one_is_wrong_are_not_attached() {
    let model = fake();
    let (good_segment, good) = SharedRing::create(ring_id::TOKENS_OUT, 4, 64).expect("a ring");
    let (bad_segment, mut bad) = SharedRing::create(ring_id::TOKENS_IN, 4, 64).expect("a ring");
    assert_eq!((bad.kind, bad.role), (ring_kind::TOKENS, ring_role::ENGINE_READS));
    bad.slots = 5;
    let descs = [good, bad];
    // SAFETY: two descriptors of live segments.
    unsafe { twice(Status::RingLayout, || ictus_rings_attach(model, descs.as_ptr(), 2)) };
    assert!(last_error(model).starts_with("ictus_rings_attach: "), "{}", last_error(model));
    let mixed = [good, RingDesc { struct_size: 56, ..bad }];
    // SAFETY: as above; the second is refused for its size before its memory is looked at.
    unsafe { twice(Status::RejectBadStruct, || ictus_rings_attach(model, mixed.as_ptr(), 2)) };
    // The rings of before still serve.
    assert_eq!(story(model, |_| ()).0.len(), 12);
    drop((good_segment, bad_segment));
    free(model);
}

/// S-61 .. S-73, A-32, A-36: what state operations refuse through C, twice, with nothing written.
#[test]
fn state_operations_are_refused_with_nothing_written() {
    let model = fake();
    // SAFETY: the pointers are locals, and `sealed` outlives every operation.
    unsafe {
        let bare = ictus_tick_sequence_create(model);
        let mut sealed = sealed_by_the_default_fake(&[5, 6, 7]);
        let (mut op, mut bytes, mut generation, mut boundary) = (0, 0, 0, 9);
        let source = |bytes: &mut [u8]| Buf { ptr: bytes.as_mut_ptr().cast::<c_void>(), len: bytes.len() as u64 };
        let range = |start, end| TokenRange { start, end };
        let mut damaged = sealed.clone();
        damaged[136] ^= 1;
        for (wrong, expected) in [
            (source(&mut damaged), Status::Checksum),
            (source(&mut sealed[..99]), Status::EnvelopeMismatch),
            (Buf { ptr: null_mut(), len: 8 }, Status::RejectBadStruct),
        ] {
            twice(expected, || ictus_space_restore(bare, 1, wrong, &raw mut op));
        }
        let good = source(&mut sealed);
        twice(Status::UnknownHandle, || ictus_space_restore(bare, 7, good, &raw mut op));
        twice(Status::RejectBadStruct, || ictus_space_restore(bare, 1, good, null_mut()));
        assert_eq!(op, 0, "no operation");
        assert_eq!(ictus_space_restore(bare, 1, good, &raw mut op), 0);
        twice(Status::Busy, || ictus_space_restore(bare, 1, good, &raw mut op));
        twice(Status::RejectBounds, || ictus_space_trim(bare, 1, 4));
        twice(Status::UnknownHandle, || ictus_space_trim(bare, 2, 1));
        twice(Status::Unsupported, || {
            ictus_space_export_size(bare, 1, range(0, 3), 1, &raw mut bytes, &raw mut generation)
        });
        twice(Status::RejectBounds, || {
            ictus_space_export_size(bare, 1, range(0, 4), 0, &raw mut bytes, &raw mut generation)
        });
        twice(Status::StaleSizing, || ictus_space_snapshot(bare, 1, 3, good, 2, &raw mut op));
        twice(Status::StaleSizing, || ictus_space_demote(bare, 1, range(0, 3), 0, good, 2, &raw mut op));
        twice(Status::RejectBounds, || ictus_space_promote(bare, 1, range(0, 3), good, &raw mut op));
        twice(Status::UnknownHandle, || ictus_space_snapshot_boundary(bare, 9, 3, &raw mut boundary));
        assert_eq!((op, bytes, generation, boundary), (1, 0, 0, 9), "outputs are written on success only");
        assert_eq!(ictus_space_snapshot_boundary(bare, 1, 99, &raw mut boundary), 0);
        assert_eq!((boundary, ictus_op_cancel(model, op)), (0, 0), "no whole page; cancelling what is done is fine");
        assert_eq!(ictus_space_trim(bare, 1, 2), 0);
    }
    free(model);
}

/// What the default fake would export of these tokens.
fn sealed_by_the_default_fake(tokens: &[u32]) -> Vec<u8> {
    let mut engine = Executor::new(FakeRuntime::default());
    let payload: Vec<u8> = tokens.iter().flat_map(|token| token.to_le_bytes()).collect();
    let bare = engine.create_sequence().expect("a slot");
    ictus::runtime::Runtime::seq_import(engine.primitives_mut(), bare, &payload).expect("there is room");
    let range = TokenRange { start: 0, end: tokens.len() as u64 };
    let sizing = engine.space_export_size(bare, 1, range, 0).expect("it is held");
    let op = engine.space_snapshot(bare, 1, range.end, sizing.bytes, sizing.sizing_gen).expect("it was sized");
    engine.take_op_output(op).expect("it is done")
}

unsafe extern "C" fn keep_line(user: *mut c_void, level: u32, text: *const c_char) {
    // SAFETY: the test passes a list of lines, and the text is NUL-terminated.
    let lines = unsafe { &mut *user.cast::<Vec<(u32, String)>>() };
    // SAFETY: as above.
    lines.push((level, unsafe { std::ffi::CStr::from_ptr(text) }.to_string_lossy().into_owned()));
}

#[test]
fn log_is_silent_until_asked_and_tells_what_failed() {
    let (model, other) = (fake(), fake());
    let mut lines: Vec<(u32, String)> = Vec::new();
    let user = (&raw mut lines).cast::<c_void>();
    // SAFETY: the list outlives the callback, which is taken away before the end.
    unsafe {
        assert_eq!(ictus_seed_release(model, 5), Status::UnknownHandle.code());
        assert_eq!(ictus_model_log(model, 1, Some(keep_line), user), 0);
        assert_eq!(ictus_seed_release(model, 5), Status::UnknownHandle.code());
        assert_eq!(ictus_model_log(model, 2, Some(keep_line), user), 0);
        assert_eq!(ictus_seed_release(model, 5), Status::UnknownHandle.code());
        assert_eq!(ictus_seed_release(other, 5), Status::UnknownHandle.code());
        assert_eq!(ictus_model_log(model, 2, None, user), 0);
        assert_eq!(ictus_seed_release(model, 5), Status::UnknownHandle.code());
    }
    assert_eq!(lines.len(), 1, "{lines:?}");
    assert!(lines[0].0 == 2 && lines[0].1.starts_with("ictus_seed_release: "), "{lines:?}");
    free(model);
    free(other);
}

/// Opening has no model yet: the reason goes into the caller's buffer, cut to fit.
#[test]
fn files_and_options_that_are_refused_say_why() {
    let mut model = null_mut();
    let mut reason = [0x7F as c_char; 64];
    let mut plan = ModelPlan { struct_size: 48, ..ModelPlan::zeroed() };
    let tiny = std::ffi::CString::new(concat!(env!("CARGO_MANIFEST_DIR"), "/models/ictus-tiny.gguf")).expect("no NUL");
    let default = OpenOptions { struct_size: 80, ..OpenOptions::zeroed() };
    let text = |reason: &[c_char; 64]| {
        // SAFETY: the library ended the text with a NUL inside the buffer.
        unsafe { std::ffi::CStr::from_ptr(reason.as_ptr()) }.to_string_lossy().into_owned()
    };
    // SAFETY: the pointers are NULL or locals.
    unsafe {
        let nothing = c"/nonexistent/model.gguf".as_ptr();
        twice(Status::UnknownHandle, || ictus_model_open(nothing, null(), reason.as_mut_ptr(), 64, &raw mut model));
        assert!(text(&reason).contains("/nonexistent/model.gguf"), "{}", text(&reason));
        reason = [0x7F; 64];
        twice(Status::UnknownHandle, || ictus_model_open(nothing, null(), reason.as_mut_ptr(), 8, &raw mut model));
        assert_eq!((text(&reason).len(), reason[8]), (7, 0x7F), "cut to eight bytes with its NUL");
        twice(Status::UnknownHandle, || ictus_model_open(nothing, null(), null_mut(), 0, &raw mut model));
        twice(Status::RejectBadStruct, || ictus_model_open(null(), null(), null_mut(), 0, &raw mut model));
        twice(Status::RejectBadStruct, || ictus_model_open(tiny.as_ptr(), null(), null_mut(), 0, null_mut()));
        twice(Status::RejectBadStruct, || ictus_model_open(tiny.as_ptr(), null(), null_mut(), 8, &raw mut model));
        for (expected, options) in [
            (Status::RejectBadStruct, OpenOptions { struct_size: 79, ..default }),
            (Status::RejectBounds, OpenOptions { threads: 257, ..default }),
            (Status::RejectBounds, OpenOptions { page_size_tokens: 24, ..default }),
            (Status::RejectBounds, OpenOptions { context_tokens: 1 << 30, ..default }),
            (Status::RejectBounds, OpenOptions { device: 2, ..default }),
            (Status::RejectBounds, OpenOptions { kv_type: 3, ..default }),
            (Status::RejectBounds, OpenOptions { struct_size: 176, arithmetic: 2, ..default }),
            (Status::RejectBounds, OpenOptions { log_level: 9, ..default }),
            (Status::RejectBounds, OpenOptions { struct_size: 168, op_fast_checksum: 2, ..default }),
            (Status::RejectBounds, OpenOptions { struct_size: 168, grammar_depth: 65, ..default }),
            (Status::Unsupported, OpenOptions { device: 1, device_index: u32::MAX, ..default }),
            (Status::RejectBounds, OpenOptions { struct_size: 200, device_mask: 3, ..default }),
            (Status::Unsupported, OpenOptions { struct_size: 200, device: 1, device_mask: 1 << 63, ..default }),
            (
                Status::RejectBounds,
                OpenOptions { struct_size: 200, device: 1, device_index: 1, device_mask: 3, ..default },
            ),
            (Status::RejectBounds, OpenOptions { struct_size: 208, instruction_set: 7, ..default }),
            (Status::RejectBounds, OpenOptions { struct_size: 208, device: 1, instruction_set: 1, ..default }),
        ] {
            twice(expected, || ictus_model_open(tiny.as_ptr(), &raw const options, null_mut(), 0, &raw mut model));
        }
        assert!(model.is_null(), "no handle was written");
        let mut short = ModelPlan { struct_size: 47, ..plan };
        twice(Status::RejectBadStruct, || ictus_model_plan(tiny.as_ptr(), null(), null_mut(), 0, &raw mut short));
        assert_eq!(ictus_model_plan(tiny.as_ptr(), null(), null_mut(), 0, &raw mut plan), 0);
    }
    let sum = plan.weights_bytes + plan.kv_pool_bytes + plan.activation_bytes + plan.table_bytes;
    assert!(plan.total_bytes == sum && plan.weights_bytes > 0);
}

/// the option is read from those who know it; each number is the set of that name, and one that the processor lacks is refused.
#[test]
fn instruction_sets_that_the_processor_lacks_are_refused_when_a_model_opens() {
    let tiny = std::ffi::CString::new(concat!(env!("CARGO_MANIFEST_DIR"), "/models/ictus-tiny.gguf")).expect("no NUL");
    let open = |struct_size, instruction_set| {
        let options = OpenOptions { struct_size, threads: 1, instruction_set, ..OpenOptions::zeroed() };
        let (mut model, mut reason) = (null_mut(), [0 as c_char; 64]);
        // SAFETY: the pointers are locals, and the text ends with a NUL inside the buffer.
        let (code, reason) = unsafe {
            let code = ictus_model_open(tiny.as_ptr(), &raw const options, reason.as_mut_ptr(), 64, &raw mut model);
            (code, std::ffi::CStr::from_ptr(reason.as_ptr()).to_string_lossy().into_owned())
        };
        if code == 0 {
            free(model);
        }
        (code, reason)
    };
    assert_eq!(open(200, 99).0, 0, "an older host has no such field");
    let numbers = [
        (instruction_set::PORTABLE, "portable"),
        (instruction_set::AVX2, "avx2"),
        (instruction_set::AVX512, "avx512"),
        (instruction_set::AVX512_VNNI, "avx512-vnni"),
        (instruction_set::NEON, "neon"),
        (instruction_set::NEON_DOTPROD, "neon-dotprod"),
    ];
    assert_eq!(numbers.len(), InstructionSet::ALL.len());
    let mut refused = 0;
    for (number, name) in numbers {
        let set = InstructionSet::named(name).expect("there is one");
        let (code, reason) = open(208, number);
        if set.is_available() {
            assert_eq!(code, 0, "{name}: {reason}");
        } else {
            let why = format!("no device: the processor has no {name} [ICTUS_ERR_OP_");
            assert!(code == Status::Unsupported as i32 && reason.starts_with(&why), "{name}: {reason}");
            refused += 1;
        }
    }
    assert!(refused > 0, "no processor is of two kinds");
}

/// adapters, embeddings, stages and what describes a model.
#[test]
fn bad_arguments_of_adapters_and_whole_texts_are_refused() {
    let model = fake();
    let (mut number, mut count, mut token) = (7u64, 7u64, 7u32);
    let mut vector = [7f32; 4];
    let digest = [0u8; 32];
    // SAFETY: the pointers are NULL, misaligned and refused for it, or locals.
    unsafe {
        twice(Status::RejectBadStruct, || ictus_adapter_load(model, null(), &raw mut number));
        twice(Status::RejectBadStruct, || ictus_adapter_load(model, c"x".as_ptr(), null_mut()));
        twice(Status::RejectBadAlignment, || ictus_adapter_load(model, c"x".as_ptr(), off(&number)));
        twice(Status::RejectBadStruct, || ictus_adapter_load(model, c"\xff".as_ptr(), &raw mut number));
        twice(Status::Unsupported, || ictus_adapter_load(model, c"fake:one".as_ptr(), &raw mut number));
        twice(Status::Unsupported, || ictus_adapter_unload(model, 1));
        twice(Status::Unsupported, || ictus_adapter_bind(model, 1, 1));
        twice(Status::RejectBadStruct, || ictus_adapter_digest(model, 1, null_mut()));
        twice(Status::RejectBadStruct, || ictus_adapter_bytes(model, null_mut()));
        twice(Status::RejectBadAlignment, || ictus_adapter_bytes(model, off(&number)));
        twice(Status::UnknownHandle, || ictus_adapter_digest(model, 1, digest.as_ptr().cast_mut()));
        twice(Status::UnknownHandle, || ictus_tick_sequence_adapt(model, null_mut(), 0));
        twice(Status::RejectBadStruct, || ictus_lora_load(model, null()));
        twice(Status::Unsupported, || ictus_lora_load(model, c"x".as_ptr()));
        twice(Status::Unsupported, || ictus_lora_unload(model));
        twice(Status::RejectBadStruct, || ictus_embed(model, null(), 1, vector.as_mut_ptr(), 4, &raw mut count));
        twice(Status::RejectBadStruct, || ictus_embed(model, [1u32].as_ptr(), 1, null_mut(), 4, &raw mut count));
        twice(Status::RejectBadStruct, || ictus_embed(model, [1u32].as_ptr(), 1, vector.as_mut_ptr(), 4, null_mut()));
        twice(Status::RejectBounds, || {
            ictus_embed(model, [1u32].as_ptr(), u64::MAX, vector.as_mut_ptr(), 4, &raw mut count)
        });
        twice(Status::Unsupported, || ictus_embed(model, [1u32].as_ptr(), 1, vector.as_mut_ptr(), 4, &raw mut count));
        twice(Status::RejectBadStruct, || ictus_layers(model, null_mut()));
        let stage = |tokens, bytes: *mut u64, token: *mut u32| {
            ictus_forward_stage(model, tokens, 1, 0, 1, null(), 0, null_mut(), 0, bytes, token)
        };
        twice(Status::RejectBadStruct, || stage(null(), &raw mut count, &raw mut token));
        twice(Status::RejectBadStruct, || stage([1u32].as_ptr(), null_mut(), &raw mut token));
        twice(Status::RejectBadStruct, || stage([1u32].as_ptr(), &raw mut count, null_mut()));
        twice(Status::Unsupported, || stage([1u32].as_ptr(), &raw mut count, &raw mut token));
        let mut defaults = ClaimedSampling { struct_size: 39, ..ClaimedSampling::zeroed() };
        twice(Status::RejectBadStruct, || ictus_model_sampling_defaults(model, &raw mut defaults));
        defaults.struct_size = 40;
        twice(Status::Unsupported, || ictus_model_sampling_defaults(model, &raw mut defaults));
        twice(Status::RejectBadStruct, || ictus_capability_without_model(null_mut(), 0, null_mut()));
    }
    assert_eq!((number, count, token, vector), (7, 7, 7, [7.0; 4]), "nothing was written");
    // SAFETY: the pointers are NULL with 0, or locals.
    unsafe {
        twice(Status::BufferTooSmall, || ictus_capability_without_model(null_mut(), 0, &raw mut count));
        let mut text = vec![0 as c_char; count as usize + 1];
        assert_eq!(ictus_capability_without_model(text.as_mut_ptr(), text.len() as u64, &raw mut count), 0);
        let text = std::ffi::CStr::from_ptr(text.as_ptr()).to_str().expect("UTF-8");
        assert_eq!(text, ictus::Model::capability_without_model());
        assert_eq!(ictus_layers(model, &raw mut token), 0);
    }
    assert_eq!(token, 0, "the fake has no layers");
    free(model);
}

/// Every code has a sentence, and a number that is none has one too.
#[test]
fn codes_are_explained() {
    let text = |pointer: *const c_char| {
        // SAFETY: a text of the library.
        unsafe { std::ffi::CStr::from_ptr(pointer) }.to_str().expect("ASCII").to_owned()
    };
    for &(status, name) in STATUSES {
        assert_eq!(text(ictus_explain(status.code())), status.explain(), "{name}");
    }
    assert!(text(ictus_explain(-99)).starts_with("No status"));
    assert!(text(ictus_explain_fault(99)).starts_with("No fault"));
    assert_eq!(Some(&*text(ictus_explain_fault(5))), explain_fault(5));
    assert_eq!(Some(&*text(ictus_explain_finish(1))), explain_finish(1));
    assert_eq!(Some(&*text(ictus_explain_shed(1))), explain_shed(1));
    assert_eq!(Some(&*text(ictus_explain_admit(2))), explain_admit(2));
}
