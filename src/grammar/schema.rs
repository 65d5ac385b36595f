#![forbid(unsafe_code)]
//! What is done to a JSON schema before it is compiled: objects and arrays are closed, whitespace is bounded.
//!
//! A schema that says nothing of further members allows all of them, and a model that may add members forever does. The closing
//! rule (R-68) makes every object that lists its properties, and every array that lists its items, have those alone.

use serde_json::{Map, Value, json};

/// Runs of whitespace between the parts of a document (R-69).
const WHITESPACE: &str = r"[\x20\x0A\x0D\x09]{1,64}";

/// Members that say nothing about which documents fit.
const ANNOTATIONS: [&str; 10] = [
    "type",
    "title",
    "default",
    "description",
    "examples",
    "deprecated",
    "readOnly",
    "writeOnly",
    "$comment",
    "$schema",
];

/// The schema, closed (R-68) and with bounded whitespace (R-69).
pub(super) fn prepare(mut schema: Value) -> Value {
    close(&mut schema);
    bound_whitespace(schema)
}

/// Bounds the whitespace, unless the root sets it itself.
fn bound_whitespace(schema: Value) -> Value {
    let mut root = match schema {
        Value::Object(root) => root,
        Value::Bool(true) => Map::new(),
        other => return other,
    };
    let guidance = root.entry("x-guidance").or_insert_with(|| json!({}));
    if let Value::Object(guidance) = guidance
        && !guidance.contains_key("whitespace_pattern")
        && !guidance.contains_key("whitespace_flexible")
    {
        guidance.insert("whitespace_pattern".into(), WHITESPACE.into());
    }
    Value::Object(root)
}

/// Closes a node and what lies in it. The clauses are those of R-68, in their order.
fn close(node: &mut Value) {
    let Value::Object(node) = node else { return };
    for definitions in ["$defs", "definitions"] {
        close_members(node.get_mut(definitions));
    }
    if ["$ref", "const", "enum"].iter().any(|key| node.contains_key(*key)) {
        return;
    }
    for branches in ["anyOf", "oneOf"] {
        if let Some(branches) = node.get_mut(branches) {
            return close_items(Some(branches));
        }
    }
    if let Some(branches) = node.get_mut("allOf") {
        if let Value::Array(branches) = branches
            && let [only] = branches.as_mut_slice()
        {
            close(only);
        }
        return;
    }
    if node.keys().all(|key| ANNOTATIONS.contains(&key.as_str())) {
        return;
    }
    let typed = node.contains_key("type");
    let has = |node: &Map<String, Value>, keys: [&str; 3]| keys.iter().any(|key| node.contains_key(*key));
    let object = match typed {
        true => is_of_type(node, "object"),
        false => has(node, ["properties", "additionalProperties", "unevaluatedProperties"]),
    };
    let array = match typed {
        true => is_of_type(node, "array"),
        false => !object && has(node, ["items", "prefixItems", "unevaluatedItems"]),
    };
    if object {
        close_object(node);
    }
    if array {
        close_array(node);
    }
}

fn close_object(node: &mut Map<String, Value>) {
    close_members(node.get_mut("properties"));
    close_members(node.get_mut("patternProperties"));
    for additional in ["additionalProperties", "unevaluatedProperties"] {
        if let Some(schema) = node.get_mut(additional) {
            close(schema);
        }
    }
    if !node.contains_key("additionalProperties") && !node.contains_key("unevaluatedProperties") {
        node.insert("additionalProperties".into(), false.into());
    }
}

fn close_array(node: &mut Map<String, Value>) {
    close_items(node.get_mut("prefixItems"));
    for items in ["items", "unevaluatedItems"] {
        match node.get_mut(items) {
            Some(list @ Value::Array(_)) => close_items(Some(list)),
            Some(schema) => close(schema),
            None => {}
        }
    }
    if !node.contains_key("items") && !node.contains_key("unevaluatedItems") {
        node.insert("items".into(), false.into());
    }
}

/// Closes every member of an object.
fn close_members(schemas: Option<&mut Value>) {
    if let Some(Value::Object(schemas)) = schemas {
        schemas.values_mut().for_each(close);
    }
}

/// Closes every element of a list.
fn close_items(schemas: Option<&mut Value>) {
    if let Some(Value::Array(schemas)) = schemas {
        schemas.iter_mut().for_each(close);
    }
}

fn is_of_type(node: &Map<String, Value>, name: &str) -> bool {
    match node.get("type") {
        Some(Value::String(one)) => one == name,
        Some(Value::Array(several)) => several.iter().any(|one| one == name),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn closed(mut schema: Value) -> Value {
        close(&mut schema);
        schema
    }

    /// RS-23, R-68: each clause of the closing rule.
    #[test]
    fn rs_23_each_clause_closes_what_it_says() {
        let integer = json!({"type": "integer"});
        let open = json!({"properties": {"a": integer}});
        let shut = json!({"properties": {"a": integer}, "additionalProperties": false});
        let same = |schema: Value| assert_eq!(closed(schema.clone()), schema);
        let cases = [
            // (1) definitions first, whatever else the node is.
            (json!({"$defs": {"x": open}, "$ref": "#/$defs/x"}), json!({"$defs": {"x": shut}, "$ref": "#/$defs/x"})),
            (json!({"definitions": {"x": open}, "const": 1}), json!({"definitions": {"x": shut}, "const": 1})),
            // (3) branches only; oneOf only where there is no anyOf.
            (json!({"anyOf": [open], "properties": {}}), json!({"anyOf": [shut], "properties": {}})),
            (json!({"oneOf": [open, open]}), json!({"oneOf": [shut, shut]})),
            (json!({"anyOf": [open], "oneOf": [open]}), json!({"anyOf": [shut], "oneOf": [open]})),
            // (4) a single branch.
            (json!({"allOf": [open]}), json!({"allOf": [shut]})),
            // (6) objects, by type or by what they list.
            (open.clone(), shut.clone()),
            (json!({"type": ["object", "null"], "required": ["a"]}), {
                json!({"type": ["object", "null"], "required": ["a"], "additionalProperties": false})
            }),
            (json!({"additionalProperties": open}), json!({"additionalProperties": shut})),
            (json!({"unevaluatedProperties": open}), json!({"unevaluatedProperties": shut})),
            (json!({"type": "object", "patternProperties": {"^a": open}}), {
                json!({"type": "object", "patternProperties": {"^a": shut}, "additionalProperties": false})
            }),
            // (7) arrays.
            (json!({"items": open}), json!({"items": shut})),
            (json!({"prefixItems": [open]}), json!({"prefixItems": [shut], "items": false})),
            (json!({"items": [open]}), json!({"items": [shut]})),
            (json!({"unevaluatedItems": open}), json!({"unevaluatedItems": shut})),
            (json!({"type": "array", "minItems": 1}), json!({"type": "array", "minItems": 1, "items": false})),
            // (6) and (7) on a node of both types.
            (
                json!({"type": ["object", "array"], "minItems": 1}),
                json!({"type": ["object", "array"], "minItems": 1, "additionalProperties": false, "items": false}),
            ),
        ];
        for (schema, expected) in cases {
            assert_eq!(closed(schema.clone()), expected, "{schema}");
            assert_eq!(closed(expected.clone()), expected, "closing twice is closing once: {schema}");
        }
        // (2) references and constants stay.
        same(json!({"$ref": "#/x", "properties": {"a": open}}));
        same(json!({"enum": [1], "type": "object", "properties": {}}));
        same(json!({"const": {}, "properties": {}}));
        // (4) several branches stay.
        same(json!({"allOf": [open, open]}));
        // (5) nothing but a type and annotations.
        for annotation in ANNOTATIONS.iter().filter(|key| **key != "type") {
            let mut schema = json!({"type": "object"});
            schema[*annotation] = json!("text");
            same(schema);
        }
        same(json!({"type": "array"}));
        same(json!({}));
        // Others.
        same(json!({"type": "string", "properties": {"a": open}}));
        same(json!({"type": "string", "maxLength": 3}));
        same(json!({"additionalProperties": true}));
        same(json!(true));
        // An untyped node that lists both is an object.
        assert_eq!(
            closed(json!({"properties": {}, "prefixItems": [open]})),
            json!({"properties": {}, "prefixItems": [open], "additionalProperties": false})
        );
    }

    /// R-69.
    #[test]
    fn whitespace_is_bounded_unless_the_root_says_otherwise() {
        assert_eq!(prepare(json!({"type": "null"}))["x-guidance"]["whitespace_pattern"], WHITESPACE);
        assert_eq!(prepare(json!(true)), json!({"x-guidance": {"whitespace_pattern": WHITESPACE}}));
        assert_eq!(prepare(json!(false)), json!(false));
        for own in [json!({"whitespace_pattern": " "}), json!({"whitespace_flexible": false})] {
            let schema = json!({"type": "null", "x-guidance": own});
            assert_eq!(prepare(schema.clone()), schema);
        }
        let other = prepare(json!({"x-guidance": {"item_separator": ", "}}));
        assert_eq!(other["x-guidance"]["item_separator"], ", ");
        assert_eq!(other["x-guidance"]["whitespace_pattern"], WHITESPACE);
    }
}
