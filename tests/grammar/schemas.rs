//! Random schemas, and the property: whatever the model says under one of them fits it.

use ictus::engine::Engine;
use ictus::record::LaneAdmit;
use ictus::record::constant::{finish, sampling};
use serde_json::{Map, Value, json};

use super::judge::judge;
use super::random::Random;
use super::words::*;

/// Schemas that the property test draws.
const SCHEMAS: usize = 150;
/// Names of properties; some need escapes, some begin like others.
const NAMES: [&str; 10] = ["ok", "name", "name2", "value", "a b", "\"q\"", "na\u{ef}ve", "id", "type", "items"];
/// Patterns whose texts are short.
const PATTERNS: [&str; 4] = ["^[a-c]{1,4}$", "^\\d{2}-\\d{2}$", "^(ok|name)?x$", "^[A-Z][a-z]{0,3}$"];

/// What the documents of a schema may be.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Extent {
    /// Recursion and numbers of any length: whoever draws ends them sooner or later.
    Open,
    /// Nothing that a greedy model could go on with for ever.
    Bounded,
}

/// A random schema: an object, or now and then any other type.
pub(crate) fn draw(random: &mut Random, extent: Extent) -> Value {
    let depth = if extent == Extent::Open { 3 } else { 2 };
    let schema = if random.below(6) == 0 { node(random, depth, extent) } else { Value::Null };
    let mut schema = if schema.is_object() { schema } else { object(random, depth, extent) };
    let end = match extent {
        Extent::Open => {
            json!({"anyOf": [{"type": "null"}, {"type": "array", "items": {"$ref": "#/$defs/leaf"}, "maxItems": 1}]})
        }
        Extent::Bounded => {
            json!({"anyOf": [{"type": "null"}, {"type": "array", "items": {"$ref": "#/$defs/tag"}, "maxItems": 1}]})
        }
    };
    schema["$defs"] = json!({
        "leaf": {"type": "object", "properties": {"next": {"$ref": "#/$defs/end"}, "tag": {"$ref": "#/$defs/tag"}}, "required": ["tag"]},
        "tag": {"enum": ["x", "y"]},
        "end": end,
    });
    match (random.below(2), extent) {
        (0, _) => schema["x-guidance"] = json!({"whitespace_flexible": false}),
        // A small model may take all 64 blanks between any two parts; that the bound holds is RS-13's.
        (_, Extent::Bounded) => schema["x-guidance"] = json!({"whitespace_pattern": "[ \\n]{1,3}"}),
        (_, Extent::Open) => {}
    }
    schema
}

fn node(random: &mut Random, depth: usize, extent: Extent) -> Value {
    match random.below(if depth == 0 { 7 } else { 12 }) {
        0 => json!({"type": "boolean"}),
        1 => integer(random),
        2 => string(random),
        3 => json!({"enum": words(random)}),
        4 => json!({"const": random.pick(&NAMES)}),
        5 if extent == Extent::Open => number(random),
        5 => integer(random),
        6 => json!({"type": ["null", "boolean"]}),
        7 | 8 => object(random, depth - 1, extent),
        9 => array(random, depth - 1, extent),
        10 => {
            let branches: Vec<Value> = (0..random.between(2, 3)).map(|_| node(random, depth - 1, extent)).collect();
            json!({ "anyOf": branches })
        }
        _ => json!({"$ref": "#/$defs/leaf"}),
    }
}

fn object(random: &mut Random, depth: usize, extent: Extent) -> Value {
    let mut names = NAMES.to_vec();
    random.shuffle(&mut names);
    names.truncate(random.between(1, 4));
    let properties: Map<String, Value> =
        names.iter().map(|name| ((*name).to_owned(), node(random, depth, extent))).collect();
    let required: Vec<&str> = names.into_iter().filter(|_| random.below(3) > 0).collect();
    let mut schema = json!({"type": "object", "properties": properties, "required": required});
    if random.below(4) == 0 {
        schema["description"] = json!("an object");
    }
    schema
}

fn array(random: &mut Random, depth: usize, extent: Extent) -> Value {
    let least = random.below(3);
    if random.below(3) == 0 {
        let prefix: Vec<Value> = (0..random.between(1, 3)).map(|_| node(random, depth, extent)).collect();
        return json!({"type": "array", "minItems": prefix.len(), "prefixItems": prefix});
    }
    json!({"type": "array", "items": node(random, depth, extent), "minItems": least, "maxItems": least + random.below(3)})
}

fn string(random: &mut Random) -> Value {
    if random.below(3) == 0 {
        return json!({"type": "string", "pattern": random.pick(&PATTERNS)});
    }
    let least = random.below(4);
    json!({"type": "string", "minLength": least, "maxLength": least + random.below(9)})
}

fn integer(random: &mut Random) -> Value {
    let least = random.below(200) as i64 - 100;
    let most = least + random.below(1000) as i64;
    match random.below(4) {
        0 => json!({"type": "integer", "multipleOf": random.between(1, 12), "minimum": 0, "maximum": 500}),
        1 => json!({"type": "integer", "exclusiveMinimum": least, "exclusiveMaximum": most + 2}),
        _ => json!({"type": "integer", "minimum": least, "maximum": most}),
    }
}

fn number(random: &mut Random) -> Value {
    let least = random.below(100) as f64 / 4.0 - 10.0;
    json!({"type": "number", "minimum": least, "maximum": least + random.between(1, 50) as f64 / 2.0})
}

fn words(random: &mut Random) -> Vec<Value> {
    (0..random.between(1, 4)).map(|n| if n == 3 { json!(n) } else { json!(random.pick(&NAMES)) }).collect()
}

/// random rows under random schemas give documents that fit, at any way of picking.
#[test]
fn random_documents_fit_their_random_schemas() {
    let mut random = Random::new("random_documents_fit_their_random_schemas");
    for number in 0..SCHEMAS {
        let schema = draw(&mut random, Extent::Open);
        let mut h = engine(SUPPORTS[number % SUPPORTS.len()]);
        let grammar = h.engine.grammar_create(&schema.to_string());
        let grammar = grammar.unwrap_or_else(|_| panic!("{schema}: {:?}", h.engine.grammar_refusal()));
        // Random rows love long strings; what closes a value is made a little likelier.
        let closing = [b'"', b'}', b']', b',', b'1'].map(i32::from);
        let bias = h.engine.logit_bias_create(&closing, &[2.0; 5]).expect("bias is offered");
        let base = random.next();
        let change = |admit: &mut LaneAdmit| {
            admit.grammar_handle = grammar;
            admit.logit_bias_handle = bias;
            admit.sampling = sampling::GPU_GUMBEL;
            admit.params.temperature = 5.0;
            admit.params.top_p = 1.0;
            admit.rng_counter_base = base;
        };
        admit(&mut h, 1, &[1, 2, number as u32], &[], change);
        let (tokens, finished) = decode(&mut h, 1, 4000);
        assert_eq!(finished, finish::GRAMMAR, "{schema} {:?}", text(&tokens));
        let said: String = text(tokens.strip_suffix(&[END]).or(tokens.strip_suffix(&[STOP])).unwrap_or(&tokens));
        let document: Value = serde_json::from_str(&said).unwrap_or_else(|error| panic!("{said:?}: {error}\n{schema}"));
        if let Err(reason) = judge(&document, &schema) {
            panic!("{reason}\n{document}\n{schema}");
        }
    }
}
