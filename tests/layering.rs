//! Who may import whom: dependencies point one way.
//!
//! The table below is the architecture. The test reads the `crate::` paths of every source file and fails on an arrow that the
//! table does not have; a second one fails when the table itself has a cycle.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Module and what it may import of this crate. `lib.rs` only declares and re-exports.
const TABLE: &[(&str, &[&str])] = &[
    ("record", &[]),
    ("tensor", &[]),
    ("checkpoint", &["tensor"]),
    ("tokenizer", &["checkpoint"]),
    ("chat", &["tokenizer"]),
    ("ring", &["record"]),
    ("kv", &[]),
    ("capacity", &[]),
    ("sample", &["record"]),
    ("identity", &[]),
    ("prefix", &["identity"]),
    ("transfer", &["record", "identity"]),
    ("grammar", &["record"]),
    ("speculate", &["record"]),
    ("backend", &["tensor", "checkpoint", "sample", "transfer"]),
    ("model", &["tensor", "checkpoint", "backend"]),
    ("runtime", &["record", "checkpoint", "tensor", "kv", "sample", "backend", "model", "transfer"]),
    ("timeline", &[]),
    ("engine", &["record", "ring", "runtime", "timeline", "capacity"]),
    (
        "executor",
        &[
            "timeline",
            "record",
            "ring",
            "runtime",
            "sample",
            "engine",
            "capacity",
            "identity",
            "prefix",
            "transfer",
            "grammar",
            "speculate",
        ],
    ),
    ("facade", &["timeline", "record", "ring", "runtime", "sample", "engine", "capacity", "executor"]),
    ("driver", &["record", "ring", "engine", "tokenizer"]),
    ("testing", &["record", "kv", "ring", "runtime", "sample", "engine", "executor"]),
    ("worker", &["record", "checkpoint", "tokenizer", "ring", "engine"]),
    (
        "open",
        &[
            "worker",
            "record",
            "tensor",
            "checkpoint",
            "tokenizer",
            "chat",
            "backend",
            "model",
            "runtime",
            "engine",
            "grammar",
            "executor",
            "facade",
            "speculate",
        ],
    ),
    (
        "abi",
        &[
            "timeline",
            "capacity",
            "facade",
            "worker",
            "driver",
            "record",
            "checkpoint",
            "ring",
            "engine",
            "runtime",
            "backend",
            "tokenizer",
            "chat",
            "open",
        ],
    ),
];

fn sources(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).expect("the source folder can be listed") {
        let path = entry.expect("the entry can be read").path();
        if path.is_dir() {
            sources(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
}

/// The top module a source file belongs to: `src/kv/pool.rs` and `src/kv.rs` both belong to `kv`.
fn module_of(root: &Path, file: &Path) -> String {
    let relative = file.strip_prefix(root).expect("the file lies under src");
    let first = relative.components().next().expect("a path has a component");
    first.as_os_str().to_string_lossy().trim_end_matches(".rs").to_owned()
}

/// Names after `crate::`, comments and the unit tests at the end of the file left out.
fn imports(text: &str) -> Vec<String> {
    let code = text.split("#[cfg(test)]").next().unwrap_or(text);
    let code: String = code.lines().map(|line| line.split("//").next().unwrap_or(line)).collect::<Vec<_>>().join("\n");
    let mut names = Vec::new();
    for (at, _) in code.match_indices("crate::") {
        if code[..at].ends_with('$') {
            continue;
        }
        let rest = &code[at + "crate::".len()..];
        if let Some(group) = rest.strip_prefix('{') {
            let group = group.split("};").next().unwrap_or(group);
            let mut depth = 0;
            let mut name = String::new();
            for c in group.chars().chain([',']) {
                match c {
                    '{' => depth += 1,
                    '}' => depth -= 1,
                    ',' if depth == 0 => {
                        names.push(name.trim().split("::").next().unwrap_or("").to_owned());
                        name.clear();
                    }
                    _ if depth == 0 => name.push(c),
                    _ => {}
                }
            }
        } else {
            names.push(rest.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect());
        }
    }
    names.retain(|name| !name.is_empty());
    names
}

#[test]
fn modules_import_only_what_the_table_allows() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let table: BTreeMap<&str, &[&str]> = TABLE.iter().copied().collect();
    let mut files = Vec::new();
    sources(&root, &mut files);
    assert!(files.len() > 20, "the walk found the sources");
    let mut wrong = Vec::new();
    for file in files {
        let module = module_of(&root, &file);
        if module == "lib" || module == "bin" {
            continue;
        }
        let Some(allowed) = table.get(module.as_str()) else {
            wrong.push(format!("{}: module {module} is not in the table", file.display()));
            continue;
        };
        let text = std::fs::read_to_string(&file).expect("the source can be read");
        for name in imports(&text) {
            if name != module && !allowed.contains(&name.as_str()) {
                wrong.push(format!("{}: {module} imports {name}", file.display()));
            }
        }
    }
    assert!(wrong.is_empty(), "arrows that the table does not have:\n{}", wrong.join("\n"));
}

#[test]
fn table_has_no_cycle() {
    for (index, (module, allowed)) in TABLE.iter().enumerate() {
        for name in *allowed {
            let target = TABLE.iter().position(|(other, _)| other == name);
            assert!(target.is_some_and(|target| target < index), "{module} -> {name} points up or nowhere");
        }
    }
}

#[test]
fn imports_are_found_in_every_form() {
    let text = "use crate::kv::Pool;\n// crate::comment\nuse crate::{a, b::{c, d}, e};\nlet x = crate::f::g();\n";
    assert_eq!(imports(text), ["kv", "a", "b", "e", "f"]);
}

/// Files and folders that may hold `unsafe`; every other file forbids it in its first lines.
const FENCE: &[&str] = &[
    "abi/",
    "record/view.rs",
    "record/",
    "checkpoint/map.rs",
    "checkpoint/mod.rs",
    "ring/mapping.rs",
    "ring/mod.rs",
    "sample/wide.rs",
    "sample/mod.rs",
    "backend/mod.rs", // a parent cannot forbid what a child needs
    "backend/cpu/",
    "backend/cuda/mod.rs", // as above
    "backend/cuda/arena.rs",
    "backend/cuda/attend.rs",
    "backend/cuda/begun.rs",
    "backend/cuda/current.rs",
    "backend/cuda/driver.rs",
    "backend/cuda/driver/",
    "backend/cuda/fast.rs",
    "backend/cuda/graphs.rs",
    "backend/cuda/launch.rs",
    "backend/cuda/peers.rs",
    "backend/cuda/pick.rs",
    "backend/cuda/players.rs",
    "backend/cuda/probe.rs",
    "backend/cuda/section.rs",
    "backend/cuda/spans.rs",
    "backend/cuda/staging.rs",
    "backend/cuda/tokens.rs",
    "lib.rs",
    "worker/memory.rs",
    "worker/inherit.rs",
    "worker/tokenizer.rs",
    "bin/ictus-worker/main.rs",
    "worker/mod.rs",
];

#[test]
fn unsafe_lives_in_the_fence() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut files = Vec::new();
    sources(&root, &mut files);
    let mut wrong = Vec::new();
    for file in files {
        let name = file.strip_prefix(&root).expect("the file lies under src").to_string_lossy().into_owned();
        if FENCE.iter().any(|fenced| name.starts_with(fenced)) {
            continue;
        }
        let text = std::fs::read_to_string(&file).expect("the source can be read");
        if !text.lines().any(|line| line.trim() == "#![forbid(unsafe_code)]") {
            wrong.push(name);
        }
    }
    assert!(wrong.is_empty(), "files outside the fence that do not forbid unsafe code: {wrong:?}");
}
