//! The committed C header is what the source says, a C front end reads it as Rust lays it out, and the library exports it (AS-1).
//!
//! `ICTUS_BLESS=1 cargo test --test abi_header` rewrites `include/ictus.h`.

mod support;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::Path;
use std::process::Command;

use ictus::abi::constant::EXTENSION_GROUPS;
use ictus::abi::layout::EXTENSION_RECORDS;
use ictus::record::layout::{self, ConstantGroup, GROUPS, RECORDS, RecordLayout};
use support::{header_folder, library_folder, root, run};

const TABLE: &str = include_str!("abi-layout.tsv");

fn records() -> impl Iterator<Item = &'static RecordLayout> {
    RECORDS.iter().chain(EXTENSION_RECORDS)
}

fn groups() -> impl Iterator<Item = &'static ConstantGroup> {
    GROUPS.iter().chain(EXTENSION_GROUPS)
}

fn committed() -> String {
    std::fs::read_to_string(header_folder().join("ictus.h")).expect("the committed header can be read")
}

/// The numbers of the header that are not the compiler's to know.
fn constants() -> String {
    let mut text = String::new();
    let mut line = |arguments: std::fmt::Arguments<'_>| text.write_fmt(arguments).expect("a string takes any text");
    let version = env!("CARGO_PKG_VERSION");
    line(format_args!(
        "\n/* Version of this header; ictus_version() is the library's. */\n#define ICTUS_VERSION \"{version}\"\n"
    ));
    for (part, value) in ["MAJOR", "MINOR", "PATCH"].iter().zip(version.split('.')) {
        line(format_args!("#define ICTUS_VERSION_{part} {value}\n"));
    }
    line(format_args!(
        "\n/* Hash of all records and constants of this header; ictus_abi_hash() is the library's. */\n\
         #define ICTUS_ABI_HASH {:#018x}ull\n",
        layout::abi_hash()
    ));
    for group in groups() {
        line(format_args!("\n/* {} */\n", group.name));
        for constant in group.constants {
            let value = constant.value;
            let literal = match value {
                ..0 => format!("({value})"),
                // Bits of a 64-bit set, and magic numbers.
                _ if group.name == "CACHE_CLASS" => format!("{value}ull"),
                value if value > i64::from(u32::MAX) => format!("{value:#x}ull"),
                value if group.name == "STATUS" => value.to_string(),
                value => format!("{value}u"),
            };
            line(format_args!("#define {} {literal}\n", constant.name));
        }
    }
    text
}

/// Rust's names in the documentation, as C spells them.
fn in_c_words(text: &str, renames: &BTreeMap<String, String>) -> String {
    let mut words = String::new();
    let mut rest = text;
    while let Some(at) = rest.find("[`") {
        let (before, link) = rest.split_at(at);
        words.push_str(before);
        let end = link.find("`]").expect("a link of the documentation is closed");
        let name = &link[2..end];
        words.push_str(renames.get(name).map_or(name, String::as_str));
        rest = &link[end + 2..];
        // Where the link leads is of no use in C.
        if let Some((_, after)) = rest.strip_prefix('(').and_then(|target| target.split_once(')')) {
            rest = after;
        }
    }
    words.push_str(rest);
    words
}

fn generated() -> String {
    let root = root();
    let mut config = cbindgen::Config::from_file(root.join("cbindgen.toml")).expect("cbindgen.toml can be read");
    config.after_includes = Some(constants());
    let renames: BTreeMap<String, String> = config.export.rename.clone().into_iter().collect();
    // Each of the two follows its modules.
    let builder = cbindgen::Builder::new()
        .with_config(config)
        .with_src(root.join("src/record/mod.rs"))
        .with_src(root.join("src/abi/mod.rs"));
    let mut text = Vec::new();
    builder.generate().expect("cbindgen reads the source").write(&mut text);
    in_c_words(&String::from_utf8(text).expect("a header is text"), &renames)
}

#[test]
fn committed_header_is_the_generated_one() {
    let generated = generated();
    if std::env::var_os("ICTUS_BLESS").is_some() {
        std::fs::create_dir_all(header_folder()).expect("the folder can be made");
        std::fs::write(header_folder().join("ictus.h"), &generated).expect("the header can be written");
    }
    let committed = committed();
    let differs = committed.lines().zip(generated.lines()).enumerate().find(|(_, (old, new))| old != new);
    assert_eq!(differs, None, "first line that differs (ICTUS_BLESS=1 rewrites the header)");
    assert!(
        committed == generated,
        "the header is longer or shorter than the generated one (ICTUS_BLESS=1 rewrites it)"
    );
    assert!(committed.is_ascii());
}

/// Every row of the tables as a static assertion; the compiler of the host is the judge.
fn assertions() -> String {
    let mut text =
        String::from("#include <stddef.h>\n#include \"ictus.h\"\n#ifdef __cplusplus\n#define CHECK static_assert\n");
    text.push_str("#else\n#define CHECK _Static_assert\n#endif\n");
    let mut checks = 0;
    let mut check = |condition: String| {
        checks += 1;
        writeln!(text, "CHECK({condition}, \"{}\");", condition.replace('"', "'")).expect("a string takes any text");
    };
    for record in records() {
        let name = record.c_name;
        check(format!("sizeof({name}) == {}", record.bytes));
        for field in record.fields {
            let field_name = field.name;
            check(format!("offsetof({name}, {field_name}) == {}", field.offset));
            check(format!("sizeof((({name} *)0)->{field_name}) == {}", field.bytes));
        }
    }
    for group in groups() {
        for constant in group.constants {
            let (name, value) = (constant.name, constant.value);
            check(match value {
                ..0 => format!("{name} == {value}"),
                _ => format!("{name} == {value}ull"),
            });
        }
    }
    let rows = TABLE.lines().filter(|line| !line.contains("\tMIN_PREFIX\t")).count();
    assert!(checks >= rows, "every row of the table is checked");
    // Types too, where the compiler can compare them.
    text.push_str("#ifndef __cplusplus\n");
    for record in records() {
        for field in record.fields {
            let of_field = format!("__typeof__((({} *)0)->{})", record.c_name, field.name);
            writeln!(
                text,
                "CHECK(__builtin_types_compatible_p({of_field}, {}), \"{}.{}\");",
                field.c_type, record.c_name, field.name
            )
            .expect("a string takes any text");
        }
    }
    text.push_str("#endif\n");
    text
}

///
#[test]
fn c_and_cpp_compilers_agree_with_every_row_of_the_table() {
    let folder = tempfile::tempdir().expect("a folder");
    for (compiler, standard, file) in [("cc", "-std=c11", "layout.c"), ("c++", "-std=c++17", "layout.cpp")] {
        if !support::has(compiler) {
            println!("skipped: the layout as {compiler} sees it: no such compiler");
            continue;
        }
        let source = folder.path().join(file);
        std::fs::write(&source, assertions()).expect("the source can be written");
        let mut command = Command::new(compiler);
        command.args([standard, "-Wall", "-Wextra", "-Werror", "-fsyntax-only", "-I"]);
        run(command.arg(header_folder()).arg(&source));
        // The judge judges: one wrong row fails.
        std::fs::write(
            &source,
            assertions().replacen("sizeof(ictus_tick_plan_t) == 168", "sizeof(ictus_tick_plan_t) == 160", 1),
        )
        .expect("the source can be written");
        let mut command = Command::new(compiler);
        let status = command.args([standard, "-fsyntax-only", "-I"]).arg(header_folder()).arg(&source).output();
        assert!(!status.expect("the compiler runs").status.success(), "a wrong row is noticed");
    }
}

/// What libclang made of the header, as Rust source.
fn read_by_libclang() -> Option<String> {
    let include = Command::new("gcc").arg("-print-file-name=include").output().ok()?;
    let include = String::from_utf8(include.stdout).ok()?.trim().to_owned();
    if std::process::Command::new("sh")
        .args(["-c", "ls /usr/lib/llvm*/lib/libclang*.so* /usr/lib/*/libclang*.so* 2>/dev/null"])
        .output()
        .ok()?
        .stdout
        .is_empty()
        && std::env::var_os("LIBCLANG_PATH").is_none()
    {
        return None;
    }
    let bindings = bindgen::Builder::default()
        .header(header_folder().join("ictus.h").to_str().expect("a path in UTF-8"))
        .clang_arg(format!("-I{include}"))
        .allowlist_item("(?i)ictus_.*")
        .layout_tests(true)
        .formatter(bindgen::Formatter::None)
        .generate()
        .expect("libclang reads the header");
    Some(bindings.to_string().split_whitespace().collect::<Vec<_>>().join(" "))
}

/// AS-1: sizes and offsets that bindgen asserts, computed by libclang, against the table of the real structs.
#[test]
fn libclang_lays_every_record_out_as_rust_does() {
    let Some(bindings) = read_by_libclang() else {
        println!("skipped: reading the header with a C front end: no libclang (package libclang1)");
        return;
    };
    for record in records() {
        let name = record.c_name;
        let size = format!(":: std :: mem :: size_of :: < {name} > () - {}usize", record.bytes);
        assert!(bindings.contains(&size), "size of {name}: no {size:?}");
        for field in record.fields {
            let offset = format!(":: std :: mem :: offset_of ! ({name} , {}) - {}usize", field.name, field.offset);
            assert!(bindings.contains(&offset), "{name}.{}: no {offset:?}", field.name);
        }
    }
    let sizes = bindings.matches(":: std :: mem :: size_of :: <").count();
    assert!(sizes >= records().count());
    for group in groups() {
        for constant in group.constants {
            let definition = format!("pub const {} : ", constant.name);
            let at = bindings.find(&definition).unwrap_or_else(|| panic!("libclang sees no {}", constant.name));
            let value = bindings[at..].split("= ").nth(1).and_then(|rest| rest.split(" ;").next()).expect("a value");
            assert_eq!(value.replace(' ', "").parse::<i64>().ok(), Some(constant.value), "{}", constant.name);
        }
    }
}

/// Names of functions in the header: those that are followed by a parameter list at the start of a declaration.
fn functions_of_the_header() -> BTreeSet<String> {
    let text = committed();
    let (_, text) = text.split_once("#define ICTUS_H").expect("the guard follows the introduction");
    let code: String = text.lines().map(|line| line.split("//").next().unwrap_or("")).collect::<Vec<_>>().join("\n");
    let mut names = BTreeSet::new();
    for (at, _) in code.match_indices("ictus_") {
        let name: String = code[at..].chars().take_while(|c| c.is_ascii_alphanumeric() || *c == '_').collect();
        if code[at + name.len()..].starts_with('(') {
            names.insert(name);
        }
    }
    names
}

fn symbols(library: &Path, arguments: &[&str]) -> BTreeSet<String> {
    let output = run(Command::new("nm").args(arguments).arg(library));
    output.lines().filter_map(|line| line.split_whitespace().last()).map(str::to_owned).collect()
}

#[test]
fn header_and_library_list_the_same_functions() {
    let declared = functions_of_the_header();
    assert!(declared.contains("ictus_tick") && declared.len() > 30, "{declared:?}");
    if !support::has("nm") {
        println!("skipped: the symbols of the library: no nm (package binutils)");
        return;
    }
    let exported = symbols(&library_folder().join("libictus.so"), &["-D", "--defined-only"]);
    let ours: BTreeSet<String> = exported.iter().filter(|name| name.starts_with("ictus")).cloned().collect();
    assert_eq!(ours, declared, "functions of the library against those of the header");
}

/// The contract's own list, so that none is dropped from both sides (abi.md, section 6).
///
#[test]
fn every_function_of_the_contract_is_declared() {
    let declared = functions_of_the_header();
    let contract = "tick rings_attach state_spaces strategy_register op_poll op_cancel space_match seed_acquire seed_release \
        seed_lease_ticks seed_adopt seq_fork space_export_size space_snapshot space_restore space_snapshot_boundary space_trim \
        space_demote space_promote cache_evict cache_evict_entries tick_lane_sequence tick_sequence_create tick_sequence_free \
        tick_sequence_publish tick_grammar_create tick_grammar_create_structural tick_grammar_free tick_logit_bias_create \
        tick_logit_bias_free media_probe media_encode media_release media_bind unpublish control_attach capability_descriptor \
        model_free version abi_hash";
    for suffix in contract.split_whitespace() {
        assert!(declared.contains(&format!("ictus_{suffix}")), "ictus_{suffix}");
    }
}

#[test]
fn version_of_the_header_is_that_of_the_library() {
    let header = committed();
    // SAFETY: the library's strings are NUL-terminated and live for ever.
    let version = unsafe { std::ffi::CStr::from_ptr(ictus::abi::ictus_version()) }.to_str().expect("ASCII");
    assert_eq!(version, env!("CARGO_PKG_VERSION"));
    assert!(header.contains(&format!("#define ICTUS_VERSION \"{version}\"\n")));
    let parts: Vec<&str> = ["MAJOR", "MINOR", "PATCH"]
        .iter()
        .map(|part| {
            let start = format!("#define ICTUS_VERSION_{part} ");
            header.lines().find_map(|line| line.strip_prefix(&start)).expect("the part is defined")
        })
        .collect();
    assert_eq!(parts.join("."), version);
    assert!(header.contains(&format!("#define ICTUS_ABI_HASH {:#018x}ull\n", ictus::abi::ictus_abi_hash())));
}

#[test]
fn every_status_has_a_text_and_other_numbers_say_so() {
    let text = |status: i32| {
        // SAFETY: the library's strings are NUL-terminated and live for ever.
        unsafe { std::ffi::CStr::from_ptr(ictus::abi::ictus_status_text(status)) }.to_str().expect("ASCII").to_owned()
    };
    let texts: BTreeSet<String> = ictus::record::STATUSES.iter().map(|(status, _)| text(status.code())).collect();
    assert_eq!(texts.len(), ictus::record::STATUSES.len(), "each its own");
    for number in [1, -2, -109, i32::MIN] {
        assert!(text(number).starts_with("no status"), "{number}");
    }
}

/// It once did: the generator was given files that it had already followed a module to.
#[test]
fn every_function_is_declared_once() {
    let text = std::fs::read_to_string(header_folder().join("ictus.h")).expect("the header is committed");
    let declared = text.lines().filter(|line| !line.starts_with(['/', ' ', '*', '#', '}', 't']));
    let mut names: Vec<&str> = declared
        .filter_map(|line| line.split('(').next()?.split([' ', '*']).next_back())
        .filter(|name| name.starts_with("ictus_") && !name.ends_with("_t"))
        .collect();
    assert!(names.len() > 50, "the functions were found");
    names.sort_unstable();
    let twice: Vec<_> = names.windows(2).filter(|pair| pair[0] == pair[1]).collect();
    assert!(twice.is_empty(), "{twice:?}");
}
