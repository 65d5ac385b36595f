//! Whether a document fits a schema: a plain reading of the keywords that the generated schemas use, independent of the compiler.
//!
//! Objects that list their properties, and arrays that list their items, are closed as R-68 has it.

use fancy_regex::Regex;
use serde_json::{Map, Value};

/// Why a document does not fit, with the place.
pub(crate) type Verdict = Result<(), String>;

/// Judges a document by the root schema.
pub(crate) fn judge(document: &Value, root: &Value) -> Verdict {
    fits(document, root, root, "$")
}

fn fits(value: &Value, schema: &Value, root: &Value, at: &str) -> Verdict {
    let schema = match schema {
        Value::Bool(true) => return Ok(()),
        Value::Object(schema) => schema,
        other => return Err(format!("{at}: nothing fits {other}")),
    };
    if let Some(target) = schema.get("$ref").and_then(Value::as_str) {
        let pointer = target.strip_prefix('#').expect("references stay in the document");
        return fits(value, root.pointer(pointer).expect("the target is there"), root, at);
    }
    if let Some(only) = schema.get("const") {
        return expect(value == only, at, format!("{value} is not {only}"));
    }
    if let Some(list) = schema.get("enum").and_then(Value::as_array) {
        return expect(list.contains(value), at, format!("{value} is none of {list:?}"));
    }
    if let Some(branches) = schema.get("anyOf").and_then(Value::as_array) {
        let fitting = branches.iter().any(|branch| fits(value, branch, root, at).is_ok());
        return expect(fitting, at, format!("{value} fits no branch"));
    }
    if let Some(kind) = schema.get("type") {
        let kinds: Vec<&str> = match kind {
            Value::String(one) => vec![one],
            several => several.as_array().expect("types").iter().filter_map(Value::as_str).collect(),
        };
        let fitting = kinds.iter().any(|kind| is_a(value, kind));
        expect(fitting, at, format!("{value} is not of type {kinds:?}"))?;
    }
    match value {
        Value::Object(members) => object(members, schema, root, at),
        Value::Array(items) => array(items, schema, root, at),
        Value::String(text) => string(text, schema, at),
        Value::Number(number) => numeric(number.as_f64().expect("a number"), schema, at),
        _ => Ok(()),
    }
}

fn is_a(value: &Value, kind: &str) -> bool {
    match kind {
        "object" => value.is_object(),
        "array" => value.is_array(),
        "string" => value.is_string(),
        "boolean" => value.is_boolean(),
        "null" => value.is_null(),
        "number" => value.is_number(),
        "integer" => value.as_f64().is_some_and(|number| number.fract() == 0.0),
        other => panic!("unknown type {other}"),
    }
}

fn object(members: &Map<String, Value>, schema: &Map<String, Value>, root: &Value, at: &str) -> Verdict {
    let none = Map::new();
    let properties = schema.get("properties").and_then(Value::as_object).unwrap_or(&none);
    for (name, member) in members {
        let place = format!("{at}.{name}");
        match (properties.get(name), schema.get("additionalProperties")) {
            (Some(schema), _) | (None, Some(schema)) => fits(member, schema, root, &place)?,
            (None, None) => return Err(format!("{place}: not declared")),
        }
    }
    for name in schema.get("required").and_then(Value::as_array).into_iter().flatten() {
        let name = name.as_str().expect("a name");
        expect(members.contains_key(name), at, format!("{name} is missing"))?;
    }
    Ok(())
}

fn array(items: &[Value], schema: &Map<String, Value>, root: &Value, at: &str) -> Verdict {
    within(items.len() as f64, schema, ["minItems", "maxItems"], at)?;
    let prefix = schema.get("prefixItems").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
    for (number, item) in items.iter().enumerate() {
        let place = format!("{at}[{number}]");
        match (prefix.get(number), schema.get("items")) {
            (Some(schema), _) | (None, Some(schema)) => fits(item, schema, root, &place)?,
            (None, None) => return Err(format!("{place}: past the listed items")),
        }
    }
    Ok(())
}

fn string(text: &str, schema: &Map<String, Value>, at: &str) -> Verdict {
    within(text.chars().count() as f64, schema, ["minLength", "maxLength"], at)?;
    if let Some(pattern) = schema.get("pattern").and_then(Value::as_str) {
        let regex = Regex::new(pattern).expect("the pattern parses");
        expect(regex.is_match(text).expect("the match ends"), at, format!("{text:?} does not match {pattern}"))?;
    }
    Ok(())
}

fn numeric(number: f64, schema: &Map<String, Value>, at: &str) -> Verdict {
    within(number, schema, ["minimum", "maximum"], at)?;
    let bound = |key: &str| schema.get(key).and_then(Value::as_f64);
    expect(bound("exclusiveMinimum").is_none_or(|least| number > least), at, format!("{number} is at the minimum"))?;
    expect(bound("exclusiveMaximum").is_none_or(|most| number < most), at, format!("{number} is at the maximum"))?;
    let divides = bound("multipleOf").is_none_or(|multiple| number % multiple == 0.0);
    expect(divides, at, format!("{number} is no multiple"))
}

fn within(measure: f64, schema: &Map<String, Value>, [least, most]: [&str; 2], at: &str) -> Verdict {
    let bound = |key: &str| schema.get(key).and_then(Value::as_f64);
    let inside = bound(least).is_none_or(|least| measure >= least) && bound(most).is_none_or(|most| measure <= most);
    expect(inside, at, format!("{measure} is outside of {least} and {most}"))
}

fn expect(holds: bool, at: &str, otherwise: String) -> Verdict {
    if holds { Ok(()) } else { Err(format!("{at}: {otherwise}")) }
}

/// The judge is only worth something if it finds faults.
#[test]
fn judge_tells_fitting_documents_from_others() {
    use serde_json::json;
    let schema = json!({"type": "object", "required": ["a"], "properties": {
        "a": {"type": "integer", "minimum": 3, "maximum": 5},
        "b": {"type": "string", "minLength": 2, "maxLength": 3, "pattern": "^[xy]+$"},
        "c": {"type": "array", "items": {"$ref": "#/$defs/d"}, "maxItems": 1},
        "e": {"prefixItems": [{"const": 1}]},
        "f": {"anyOf": [{"type": "null"}, {"enum": ["u"]}]},
        "g": {"type": "number", "exclusiveMinimum": 0, "multipleOf": 2}},
        "$defs": {"d": {"type": ["boolean", "null"]}}});
    let good = json!({"a": 4, "b": "xy", "c": [null], "e": [1], "f": "u", "g": 4});
    assert_eq!(judge(&good, &schema), Ok(()));
    let bad = [
        json!([]),
        json!({}),
        json!({"a": 6}),
        json!({"a": 3.5}),
        json!({"a": 4, "z": 1}),
        json!({"a": 4, "b": "x"}),
        json!({"a": 4, "b": "xyxy"}),
        json!({"a": 4, "b": "ab"}),
        json!({"a": 4, "c": [null, true]}),
        json!({"a": 4, "c": ["x"]}),
        json!({"a": 4, "e": [2]}),
        json!({"a": 4, "e": [1, 2]}),
        json!({"a": 4, "f": "v"}),
        json!({"a": 4, "g": 0}),
        json!({"a": 4, "g": 3}),
    ];
    for document in bad {
        assert!(judge(&document, &schema).is_err(), "{document}");
    }
}
