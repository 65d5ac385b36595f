//! Grammars through the C API: the four kinds of documents, what refuses them, and a lane that is held to one.

#![allow(clippy::multiple_unsafe_ops_per_block, reason = "a test calls C functions in a row, all for one reason")]

use core::ffi::{CStr, c_char};
use core::ptr::{null, null_mut};

use ictus::abi::*;
use ictus::executor::Executor;
use ictus::record::constant::{finish, sampling_flag};
use ictus::record::view::Plain;
use ictus::record::{LaneAdmit, LaneEmit, Status, TokenRef};
use ictus::runtime::FakeRuntime;
use ictus::testing::PlanBuilder;

#[path = "tick_scenarios/engine.rs"]
mod engine;
#[path = "grammar/words.rs"]
#[expect(dead_code, reason = "the harness of the other tests is not used here")]
mod words;

const CREATES: [(&str, unsafe extern "C" fn(ModelHandle, *const c_char) -> u32, &CStr); 4] = [
    ("schema", ictus_tick_grammar_create, c"{\"type\": \"boolean\"}"),
    ("structural", ictus_tick_grammar_create_structural, c"{\"type\": \"const_string\", \"value\": \"<call>x\"}"),
    ("regex", ictus_grammar_create_regex, c"a+b"),
    ("Lark", ictus_grammar_create_lark, c"start: \"x\" | \"(\" start \")\""),
];

fn model() -> ModelHandle {
    let fake = FakeRuntime::with(|options| words::speaking(options, words::SUPPORTS[0]));
    let model = adopt_engine(Box::new(Executor::new(fake)));
    // SAFETY: NULL is all defaults.
    assert_eq!(unsafe { ictus_model_rings_create(model, null()) }, 0);
    model
}

fn last_error(model: ModelHandle) -> String {
    let mut bytes = vec![0u8; 4096];
    let mut needed = 0;
    // SAFETY: the buffer and the count are locals.
    let status =
        unsafe { ictus_model_last_error(model, bytes.as_mut_ptr().cast(), bytes.len() as u64, &raw mut needed) };
    assert_eq!(status, 0);
    let end = bytes.iter().position(|&byte| byte == 0).expect("a NUL");
    String::from_utf8(bytes[..end].to_vec()).expect("text")
}

/// each kind compiles; NULL, bytes that are no text and documents that are none are refused twice, with a reason, and use up no
/// handle.
#[test]
fn documents_compile_and_refusals_have_reasons() {
    let model = model();
    let mut handle = 0;
    for (name, create, document) in CREATES {
        for bad in [c"\xff\xfe".as_ptr(), c"{".as_ptr(), c"".as_ptr(), null()] {
            if bad == c"".as_ptr() && name == "regex" {
                continue;
            }
            for _ in 0..2 {
                // SAFETY: a text with a NUL, or NULL.
                assert_eq!(unsafe { create(model, bad) }, 0, "{name}");
                assert!(!last_error(model).is_empty(), "{name}");
            }
        }
        handle += 1;
        // SAFETY: a text with a NUL.
        assert_eq!(unsafe { create(model, document.as_ptr()) }, handle, "{name}: {}", last_error(model));
    }
    // SAFETY: a text with a NUL.
    assert_eq!(unsafe { ictus_tick_grammar_create(model, c"{\"enum\": []}".as_ptr()) }, 0);
    assert!(last_error(model).contains("no text fits the grammar"), "{}", last_error(model));
    // SAFETY: a handle is a number.
    unsafe {
        assert_eq!(ictus_tick_grammar_free(model, handle), 0);
        for _ in 0..2 {
            assert_eq!(ictus_tick_grammar_free(model, handle), Status::UnknownHandle.code());
        }
        assert_eq!(ictus_model_free(model), 0);
    }
    for (name, create, document) in CREATES {
        // SAFETY: a text with a NUL; the handle is stale, which is refused.
        assert_eq!(unsafe { create(model, document.as_ptr()) }, 0, "{name} on a freed model");
        // SAFETY: as above.
        assert_eq!(unsafe { create(null_mut(), document.as_ptr()) }, 0, "{name} on no model");
    }
}

/// What grammars may cost is the host's to say when it opens a model; a document that exceeds it is refused with the limit in words.
#[test]
fn limits_of_grammars_come_from_the_options_of_the_model() {
    let path = std::ffi::CString::new(concat!(env!("CARGO_MANIFEST_DIR"), "/models/ictus-tiny.gguf")).expect("no NUL");
    let document =
        c"{\"type\": \"array\", \"items\": {\"type\": \"array\", \"items\": {\"type\": \"string\"}}}".as_ptr();
    let sized = OpenOptions { struct_size: size_of::<OpenOptions>() as u64, threads: 1, ..OpenOptions::zeroed() };
    let open = |options: OpenOptions| {
        let mut model = null_mut();
        // SAFETY: the path has a NUL, the others are locals.
        let status = unsafe { ictus_model_open(path.as_ptr(), &raw const options, null_mut(), 0, &raw mut model) };
        assert_eq!(status, 0);
        model
    };
    let tight = [
        ("defaults", sized, None),
        ("its size is not that of the new fields", OpenOptions { struct_size: 104, grammar_depth: 1, ..sized }, None),
        ("length", OpenOptions { grammar_document_bytes: 20, ..sized }, Some("20")),
        ("depth", OpenOptions { grammar_depth: 1, ..sized }, Some("1")),
        ("compilation", OpenOptions { grammar_compile_fuel: 1, ..sized }, Some("")),
    ];
    for (name, options, refusal) in tight {
        let model = open(options);
        // SAFETY: a text with a NUL, and a model that is open.
        let made = unsafe { ictus_tick_grammar_create(model, document) };
        let reason = last_error(model);
        assert_eq!(made, u32::from(refusal.is_none()), "{name}: {reason}");
        assert!(reason.contains(refusal.unwrap_or_default()), "{name}: {reason}");
        println!("{name}: {reason}");
        // SAFETY: it is open.
        assert_eq!(unsafe { ictus_model_free(model) }, 0);
    }
}

/// a lane that is admitted with a grammar of the C API finishes by it.
#[test]
fn lane_is_held_to_a_grammar_of_the_c_api() {
    let model = model();
    // SAFETY: a text with a NUL.
    let grammar = unsafe { ictus_grammar_create_regex(model, c"(ok|name){3}".as_ptr()) };
    assert_eq!(grammar, 1);
    let mut staged = TokenRef::zeroed();
    // SAFETY: the pointers are locals.
    assert_eq!(unsafe { ictus_model_stage_prompt(model, [5, 6, 7].as_ptr(), 3, &raw mut staged) }, 0);
    let change = |admit: &mut LaneAdmit| {
        admit.grammar_handle = grammar;
        admit.params.flags = sampling_flag::IGNORE_EOS;
    };
    let (plan, _arena) = PlanBuilder::new(1).admit_with(change, 4, staged).prefill(4, 0, 3).decode(4, 64).build();
    let mut events = null();
    // SAFETY: the plan and its arena are alive.
    assert_eq!(unsafe { ictus_tick(model, &raw const plan, &raw mut events) }, 0, "{}", last_error(model));
    // SAFETY: the events stay until the next tick.
    let record = unsafe { *events };
    // SAFETY: as above, and there is one emit.
    let emit: LaneEmit = unsafe { record.emits.data.cast::<LaneEmit>().read() };
    assert_eq!((record.emits.count, emit.finish), (1, finish::GRAMMAR));
    let mut tokens = [0u32; 64];
    let mut count = 0;
    // SAFETY: the buffer holds as many tokens as are said.
    let status =
        unsafe { ictus_model_read_tokens(model, &raw const emit.token_ref, tokens.as_mut_ptr(), 64, &raw mut count) };
    assert_eq!(status, 0);
    let text = words::text(&tokens[..count as usize]);
    assert!(text.replace("name", "ok") == "okokok", "{text}");
    // SAFETY: a handle is a number.
    assert_eq!(unsafe { ictus_model_free(model) }, 0);
}
