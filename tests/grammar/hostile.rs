//! Documents that are meant to break the compiler, or to keep it busy: each gets a typed answer within a bounded time.

use std::time::{Duration, Instant};

use ictus::engine::Engine;
use ictus::grammar::{Compiler, GrammarError, Limits, Source, Tokens};
use ictus::record::Status;
use ictus::record::constant::{fault, finish};
use serde_json::json;

use super::scenarios::with_grammar;
use super::words::*;

/// Longest that a document may keep the compiler busy. The limits are counted in work: the slowest takes a second on one core of the
/// machine this was written on, and a test has to pass on a machine that is busy with others.
const PATIENCE: Duration = Duration::from_secs(120);

type Create = fn(&mut dyn Engine, &str) -> Result<u32, Status>;

const SCHEMA: Create = |engine, text| engine.grammar_create(text);
const STRUCTURAL: Create = |engine, text| engine.grammar_create_structural(text);
const REGEX: Create = |engine, text| engine.grammar_create_regex(text);
const LARK: Create = |engine, text| engine.grammar_create_lark(text);

fn listed(count: usize, item: impl Fn(usize) -> String) -> String {
    (0..count).map(item).collect::<Vec<_>>().join(",")
}

/// Documents that have to be refused: too deep, too long, too much work, or nonsense.
fn refused() -> Vec<(&'static str, Create, String)> {
    let nested = |open: &str, inner: &str, close: &str, depth: usize| {
        format!("{}{inner}{}", open.repeat(depth), close.repeat(depth))
    };
    vec![
        ("deep arrays", SCHEMA, nested("[", "1", "]", 100_000)),
        ("deep items", SCHEMA, nested(r#"{"items":"#, "true", "}", 100)),
        ("deeper than any parser", SCHEMA, nested(r#"{"items":"#, "true", "}", 50_000)),
        ("deep sequences", STRUCTURAL, nested(r#"{"type":"sequence","elements":["#, "", "]}", 60)),
        ("deep optionals", STRUCTURAL, {
            nested(r#"{"type":"optional","content":"#, r#"{"type":"any_tokens"}"#, "}", 5_000)
        }),
        ("deep groups", REGEX, nested("(", "a", ")", 10_000)),
        ("deep Lark groups", LARK, format!("start: {}", nested("(", "\"a\"", ")", 50_000))),
        ("deep nested grammars", LARK, format!("start: {}", nested("%lark { start: ", "\"a\"", "}", 2_000))),
        ("too long", SCHEMA, format!(r#"{{"enum":["{}"]}}"#, "x".repeat(2 << 20))),
        ("too long a pattern", REGEX, "a".repeat(2 << 20)),
        ("many objects", SCHEMA, {
            format!(
                r#"{{"anyOf":[{}]}}"#,
                listed(8_000, |n| format!(r#"{{"properties":{{"a{n}":{{"type":"null"}}}}}}"#))
            )
        }),
        ("exponential intersections", SCHEMA, {
            let branch =
                |n| format!(r#"{{"anyOf":[{{"properties":{{"a{n}":{{}}}}}},{{"properties":{{"b{n}":{{}}}}}}]}}"#);
            format!(r#"{{"allOf":[{}]}}"#, listed(30, branch))
        }),
        ("a huge multiple", SCHEMA, json!({"type": "integer", "multipleOf": 1_000_003}).to_string()),
        ("a huge multiple in Lark", LARK, r#"start: %json {"items": {"multipleOf": 1000003}}"#.into()),
        ("a tiny multiple", SCHEMA, json!({"type": "number", "multipleOf": 1e-300}).to_string()),
        ("a multiple of nothing", SCHEMA, json!({"type": "integer", "multipleOf": 0}).to_string()),
        ("a range past all integers", SCHEMA, json!({"type": "integer", "minimum": 1e300}).to_string()),
        ("a range of tiny numbers", SCHEMA, json!({"type": "number", "minimum": 1e-300, "maximum": 1e300}).to_string()),
        ("doubling terminals", LARK, {
            let doubling = |n: usize| format!("X{n}: X{} X{}\n", n + 1, n + 1);
            format!("start: X0\n{}X60: \"a\"\n", (0..60).map(doubling).collect::<String>())
        }),
        ("a reference to itself", SCHEMA, json!({"$ref": "#"}).to_string()),
        ("references in a circle", SCHEMA, {
            json!({"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"}).to_string()
        }),
        ("circles with siblings", SCHEMA, {
            json!({"$defs": {"a": {"allOf": [{"$ref": "#/$defs/a"}, {"$ref": "#/$defs/a"}]}}, "$ref": "#/$defs/a"})
                .to_string()
        }),
        ("a reference to nothing", SCHEMA, json!({"$ref": "#/$defs/nothing"}).to_string()),
        ("a reference to elsewhere", SCHEMA, json!({"$ref": "https://example.com/schema"}).to_string()),
        ("an unknown keyword", SCHEMA, json!({"type": "array", "uniqueItems": true, "contains": {}}).to_string()),
        ("a pattern that is none", SCHEMA, json!({"type": "string", "pattern": "["}).to_string()),
        ("types that are none", SCHEMA, json!({"type": [3, "objekt"]}).to_string()),
        ("a list for a schema", SCHEMA, "[]".into()),
        ("a long text where a type belongs", SCHEMA, json!({"type": "\u{e9}".repeat(300)}).to_string()),
        ("guidance of another type", SCHEMA, json!({"type": "null", "x-guidance": 3}).to_string()),
        ("lookaround", REGEX, r"(?=a)\bx(?<!b)".into()),
        ("a backreference", REGEX, r"(a)\1".into()),
        ("an open escape", REGEX, "a\\".into()),
        ("an open class", REGEX, "[a".into()),
        ("tokens past the vocabulary", LARK, "start: <[0-4294967295]>".into()),
        ("an unknown rule", LARK, "start: nothing".into()),
        ("no start", LARK, "a: \"b\"".into()),
        ("a NUL in Lark", LARK, "start: \"\0\"".into()),
        ("empty Lark", LARK, String::new()),
    ]
}

/// Every hostile document is refused with a status and a reason, twice, in bounded time, and the engine works on.
#[test]
fn hostile_documents_are_refused_in_bounded_time() {
    let mut h = engine(SUPPORTS[0]);
    for (name, create, document) in refused() {
        let started = Instant::now();
        for _ in 0..2 {
            let status = create(&mut h.engine, &document).expect_err(name);
            assert!(matches!(status, Status::RejectBadStruct | Status::Unsupported), "{name}: {status}");
            let reason = h.engine.grammar_refusal().expect("a reason");
            assert!(!reason.is_empty() && reason.len() < 2_000, "{name}: {reason}");
            assert!(!reason.contains("grammar compiler failed"), "{name} should not need the fence: {reason}");
        }
        let took = started.elapsed();
        assert!(took < PATIENCE, "{name} took {took:?}");
        println!("{name}: {:?}, {}", took / 2, h.engine.grammar_refusal().unwrap_or_default());
    }
    let grammar = h.engine.grammar_create(r#"{"const": 7}"#).expect("the engine works on");
    assert_eq!(grammar, 1, "refusals use up no handle");
}

/// Documents with enormous bounds compile: the bounds cost nothing until they are reached. A lane goes on, or faults at a limit.
#[test]
fn enormous_bounds_compile_and_their_masks_are_bounded() {
    let documents: [(Create, String); 10] = [
        (SCHEMA, json!({"type": "string", "maxLength": 1_000_000_000}).to_string()),
        (SCHEMA, json!({"type": "string", "minLength": 100_000, "maxLength": 1_000_000_000}).to_string()),
        (SCHEMA, json!({"type": "array", "items": {"type": "integer"}, "maxItems": 1_000_000_000}).to_string()),
        (SCHEMA, json!({"type": "array", "items": {"type": "null"}, "minItems": 1_000_000}).to_string()),
        (SCHEMA, json!({"type": "string", "pattern": "(a|aa|aaa){1,1000}{1,1000}{1,1000}"}).to_string()),
        (SCHEMA, format!(r#"{{"enum":[{}]}}"#, listed(20_000, |n| format!("\"value{n}\"")))),
        (REGEX, "(a|b)*a(a|b){200}".into()),
        (REGEX, r"\p{L}{100000}".into()),
        (REGEX, "(a|b)?".repeat(5_000)),
        (LARK, "start: \"a\"~1..1000000000".into()),
    ];
    for (create, document) in documents {
        let mut h = engine(SUPPORTS[0]);
        let started = Instant::now();
        let grammar = create(&mut h.engine, &document).unwrap_or_else(|_| panic!("{:?}", h.engine.grammar_refusal()));
        admit(&mut h, 1, &[1, 2, 3], &[], with_grammar(grammar));
        let events = ok(&mut h, |plan| plan.decode(1, 300));
        let limited = events.faults.iter().all(|fault| fault.code == fault::GRAMMAR_OVERFLOW);
        assert!(limited && (events.emits.len() + events.faults.len()) == 1);
        assert!(started.elapsed() < PATIENCE);
    }
}

/// A cursor whose work exceeds the limits faults its lane with code 1, and no other lane notices (T-134).
#[test]
fn cursor_past_its_limits_faults_its_lane_alone() {
    let mut h = engine(SUPPORTS[0]);
    let document = format!("a{}", "{1,9}".repeat(240));
    let grammar = h.engine.grammar_create_regex(&document).expect("it compiles");
    admit(&mut h, 1, &[1, 2, 3], &encode("aaaaaaaa"), with_grammar(grammar));
    admit(&mut h, 2, &[1, 2, 3], &[], |_| {});
    let events = ok(&mut h, |plan| plan.decode(1, 8).decode(2, 8));
    let faults: Vec<(u64, u32)> = events.faults.iter().map(|fault| (fault.lane_tag, fault.code)).collect();
    assert_eq!(faults, [(1, fault::GRAMMAR_OVERFLOW)]);
    assert_eq!(events.emit_for(2).map(|emit| (emit.n_tokens, emit.finish)), Some((8, finish::NONE)));
}

/// What the library panics on is a typed refusal, or a vocabulary that cannot be indexed.
#[test]
fn panics_of_the_library_become_typed_errors() {
    // A token longer than the tree has room for.
    let long: Vec<Box<[u8]>> = vec![vec![b'a'; 4_000].into(), b"\xff<end>".to_vec().into()];
    let special = [("<end>".to_owned(), 1)];
    let tokens = Tokens { tokens: &long, special: &special, end_ids: &[1] };
    for _ in 0..2 {
        let error = Compiler::new(&tokens, Limits::default()).expect_err("too long a token");
        assert!(matches!(error, GrammarError::Vocabulary { .. }), "{error}");
    }
    // A vocabulary without any text compiles, and fits nothing but the empty text.
    let special_only: Vec<Box<[u8]>> = vec![b"\xff<end>".to_vec().into()];
    let tokens = Tokens { tokens: &special_only, special: &[], end_ids: &[0] };
    let compiler = Compiler::new(&tokens, Limits::default()).expect("it has an end token");
    let schema = Source::schema("{}", &Limits::default()).expect("it parses");
    assert!(compiler.compile(schema).is_err(), "no token begins a document");
    // Lists of more classes than the library numbers.
    let many = listed(300, |n| {
        format!(
            r#"{{"type":"json_schema","json_schema":{{"x-guidance":{{"whitespace_pattern":" {{1,{}}}"}}}}}}"#,
            n + 1
        )
    });
    let mut h = engine(SUPPORTS[0]);
    let document = format!(r#"{{"type":"or","elements":[{many}]}}"#);
    for _ in 0..2 {
        let status = h.engine.grammar_create_structural(&document).expect_err("too many classes");
        assert_eq!(status, Status::RejectBadStruct);
    }
    println!("{:?}", h.engine.grammar_refusal());
    assert!(h.engine.grammar_create("true").is_ok(), "the engine works on");
}
