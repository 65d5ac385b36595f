//! Which test proves which rule of the contract.
//!
//! The list below is the contract's own: every rule and every scenario, section by section. The test reads the doc comments and names of
//! all tests and writes two tables: a short one into docs/design.md, by section, and docs/rules.md, by rule. `ICTUS_BLESS=1` writes them;
//! without it they must be what is there, and no rule may be without a test but those of which the list says why.
//!
//! A test proves the ids in its doc comment (`T-60`, `T-60 .. T-66`) and in its name (`ts_34_...`).

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

/// A rule without a test fails this test, and so do tables that are old.
const MISSING_FAILS: bool = true;

/// Rules that no test can hold, and why: it is what the table says in the place of a test.
const NOT_HERE: &[(&str, u32, &str)] = &[
    ("A", 24, "not here: arrays are made from slices (`RecordArena::push_records`), not by a builder"),
    ("E", 13, "not here: transcription is answered as unsupported"),
    ("W", 80, "of hosts: where they look for a worker"),
    ("W", 87, "of hosts: which runtime they choose for a file"),
    ("W", 88, "of hosts that tokenize by themselves; this worker brings its tokenizer (W-89)"),
    ("WS", 19, "not here: transcription is answered as unsupported"),
];

/// Section, prefix of its ids, and their numbers as ranges.
type Section = (&'static str, &'static str, &'static [(u32, u32)]);

/// The rules of the contract.
const RULES: &[Section] = &[
    ("shape of a tick", "T", &[(1, 6)]),
    ("structure of a plan", "T", &[(10, 15)]),
    ("plan level", "T", &[(18, 21)]),
    ("admits", "T", &[(24, 36)]),
    ("commits, prefills, decodes, retires", "T", &[(40, 44), (46, 55), (58, 58)]),
    ("capacity", "T", &[(60, 69)]),
    ("retires, commits, admission", "T", &[(70, 82)]),
    ("prefill", "T", &[(84, 94)]),
    ("replayed tails", "T", &[(96, 101)]),
    ("decode rounds", "T", &[(104, 110)]),
    ("picking a token", "T", &[(112, 122)]),
    ("drafts inside rounds", "T", &[(124, 130)]),
    ("faults and fatal", "T", &[(132, 136)]),
    ("emits and events", "T", &[(140, 147)]),
    ("scenarios of ticks", "TS", &[(1, 78)]),
    ("sequences", "S", &[(1, 5)]),
    ("forks, bare sequences", "S", &[(10, 12), (15, 15), (20, 22)]),
    ("adoption", "S", &[(30, 34)]),
    ("seeds", "S", &[(40, 46)]),
    ("prefix cache", "S", &[(47, 60)]),
    ("sizing, snapshot, demote", "S", &[(61, 67)]),
    ("trim", "S", &[(68, 68)]),
    ("envelope and restore", "S", &[(70, 70), (72, 75)]),
    ("identity", "S", &[(80, 84)]),
    ("operations", "S", &[(85, 89)]),
    ("asynchronous operations, more spaces", "S", &[(90, 99)]),
    ("scenarios of state", "SS", &[(1, 61)]),
    ("descriptor and errors", "R", &[(1, 3)]),
    ("primitives", "R", &[(4, 22)]),
    ("fake runtime", "R", &[(30, 39)]),
    ("proposal, depth, gate", "R", &[(40, 48)]),
    ("registration and certificates", "R", &[(50, 57)]),
    ("grammars", "R", &[(60, 66), (68, 69), (72, 73)]),
    ("sizing of pool and window", "R", &[(80, 82)]),
    ("capability descriptor", "R", &[(90, 91)]),
    ("scenarios of runtimes", "RS", &[(1, 36)]),
    ("engine and methods", "E", &[(1, 3), (10, 14)]),
    ("rings and control words", "E", &[(30, 38), (40, 46)]),
    ("numeric agreement", "E", &[(50, 52)]),
    ("scenarios of the engine", "ES", &[(1, 11)]),
    ("names, arrays, records, arena", "A", &[(1, 7), (10, 24)]),
    ("functions of the C layer", "A", &[(30, 39)]),
    ("scenarios of records and arrays", "AS", &[(1, 13)]),
    ("two facades, their surface", "X", &[(1, 7)]),
    ("identity and lifecycle", "X", &[(8, 12)]),
    ("admission", "X", &[(13, 20)]),
    ("epochs and waits", "X", &[(21, 28)]),
    ("growth and the device account", "X", &[(29, 35)]),
    ("running a batch", "X", &[(36, 46)]),
    ("output", "X", &[(47, 51)]),
    ("truncate, reserve, snapshots", "X", &[(52, 57)]),
    ("ends of sequences", "X", &[(58, 61)]),
    ("faults after submission", "X", &[(62, 64)]),
    ("info, stats, shutdown", "X", &[(65, 68)]),
    ("capacity and ticks", "X", &[(69, 72)]),
    ("scenarios of the executor", "XS", &[(1, 69)]),
    ("frames of the link", "W", &[(1, 8)]),
    ("payloads and messages", "W", &[(10, 15)]),
    ("handshake", "W", &[(20, 25)]),
    ("rings and control words over the link", "W", &[(30, 38)]),
    ("buffers", "W", &[(40, 41)]),
    ("ticks over the link", "W", &[(44, 49)]),
    ("match and seeds over the link", "W", &[(50, 52)]),
    ("state operations over the link", "W", &[(55, 59)]),
    ("questions, strategies, ping, drain", "W", &[(60, 62), (65, 67)]),
    ("serve loop and its end", "W", &[(70, 74)]),
    ("worker process", "W", &[(80, 89)]),
    ("how hosts use the link", "W", &[(90, 96)]),
    ("scenarios of the link", "WS", &[(1, 26)]),
];

const BEGIN: &str = "<!-- rules: written by tests/rules.rs -->\n";
const END: &str = "<!-- end of rules -->\n";

type Id = (String, u32);

/// A test and where it stands.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Proof {
    file: String,
    name: String,
}

fn sources(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).expect("the folder can be listed") {
        let path = entry.expect("the entry can be read").path();
        if path.is_dir() {
            sources(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
}

/// The id at the start of a text, such as `TS-12`, and what follows it.
fn id_at(text: &str) -> Option<(Id, &str)> {
    let (prefix, rest) = text.split_once('-')?;
    let known =
        matches!(prefix, "T" | "S" | "R" | "E" | "A" | "X" | "W" | "AS" | "TS" | "SS" | "RS" | "ES" | "XS" | "WS");
    let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
    let number = rest.get(..digits)?.parse().ok()?;
    known.then(|| ((prefix.to_owned(), number), &rest[digits..]))
}

/// All ids in a text; `T-60 .. T-66` is seven.
fn ids_in(text: &str) -> BTreeSet<Id> {
    let mut found = BTreeSet::new();
    let mut range_from: Option<Id> = None;
    let starts = text.char_indices().filter(|&(at, c)| {
        c.is_ascii_uppercase() && !text[..at].ends_with(|before: char| before.is_alphanumeric() || before == '-')
    });
    for (at, _) in starts {
        let Some((id, rest)) = id_at(&text[at..]) else { continue };
        if let Some((prefix, first)) = range_from.take()
            && prefix == id.0
        {
            found.extend((first..id.1).map(|number| (prefix.clone(), number)));
        }
        if rest.trim_start().starts_with("..") {
            range_from = Some(id.clone());
        }
        found.insert(id);
    }
    found
}

/// The ids in the name of a test: `ts_34_...`.
fn ids_in_name(name: &str) -> BTreeSet<Id> {
    let parts: Vec<&str> = name.split('_').collect();
    let pairs = parts.windows(2).filter(|pair| matches!(pair[0], "ts" | "ss" | "rs" | "es" | "x" | "xs" | "ws"));
    pairs.filter_map(|pair| Some((pair[0].to_uppercase(), pair[1].parse().ok()?))).collect()
}

/// The tests of a file with the ids they name.
fn tests_in(text: &str) -> Vec<(String, BTreeSet<Id>)> {
    let lines: Vec<&str> = text.lines().map(str::trim).collect();
    let mut tests = Vec::new();
    for (at, _) in lines.iter().enumerate().filter(|(_, line)| **line == "#[test]") {
        let name = lines[at..].iter().find_map(|line| line.split_once("fn ").map(|(_, rest)| rest));
        let Some(name) = name.and_then(|rest| rest.split(['(', '<']).next()) else { continue };
        let head = lines[..at].iter().rev().take_while(|line| line.starts_with("///") || line.starts_with("#["));
        let mut doc: Vec<&str> = head.filter_map(|line| line.strip_prefix("///")).collect();
        doc.reverse();
        let mut ids = ids_in(&doc.join(" "));
        ids.extend(ids_in_name(name));
        tests.push((name.to_owned(), ids));
    }
    tests
}

fn proofs(root: &Path) -> BTreeMap<Id, BTreeSet<Proof>> {
    let mut files = Vec::new();
    sources(&root.join("src"), &mut files);
    sources(&root.join("tests"), &mut files);
    let mut proofs: BTreeMap<Id, BTreeSet<Proof>> = BTreeMap::new();
    for path in files {
        let file = path.strip_prefix(root).expect("it lies under the root").to_string_lossy().replace('\\', "/");
        let text = std::fs::read_to_string(&path).expect("the source can be read");
        for (name, ids) in tests_in(&text) {
            for id in ids {
                proofs.entry(id).or_default().insert(Proof { file: file.clone(), name: name.clone() });
            }
        }
    }
    proofs
}

fn ids_of(section: &Section) -> Vec<Id> {
    let numbers = section.2.iter().flat_map(|&(first, last)| first..=last);
    numbers.map(|number| (section.1.to_owned(), number)).collect()
}

/// Why a rule has no test, where that is said.
fn reason_without_test(id: &Id) -> Option<&'static str> {
    NOT_HERE
        .iter()
        .find(|&&(prefix, number, _)| (prefix, number) == (id.0.as_str(), id.1))
        .map(|&(_, _, reason)| reason)
}

/// `T-1 .. T-6, T-10`.
fn ranges_of(section: &Section) -> String {
    let prefix = section.1;
    let ranges = section.2.iter().map(|&(first, last)| match first == last {
        true => format!("{prefix}-{first}"),
        false => format!("{prefix}-{first} .. {prefix}-{last}"),
    });
    ranges.collect::<Vec<_>>().join(", ")
}

/// One line per section: how many tests, and in which files most of them lie.
fn short_table(proofs: &BTreeMap<Id, BTreeSet<Proof>>) -> String {
    let mut table = "| rules | about | tests | most of them in |\n|---|---|---|---|\n".to_owned();
    for section in RULES {
        let tests: BTreeSet<&Proof> = ids_of(section).iter().filter_map(|id| proofs.get(id)).flatten().collect();
        let mut by_file: BTreeMap<&str, usize> = BTreeMap::new();
        for proof in &tests {
            *by_file.entry(&proof.file).or_default() += 1;
        }
        let mut files: Vec<(usize, &str)> = by_file.into_iter().map(|(file, count)| (count, file)).collect();
        files.sort_by_key(|&(count, file)| (std::cmp::Reverse(count), file));
        let files: Vec<String> = files.iter().take(3).map(|(_, file)| format!("`{file}`")).collect();
        let _ = writeln!(table, "| {} | {} | {} | {} |", ranges_of(section), section.0, tests.len(), files.join(", "));
    }
    table
}

/// One line per rule, with the names of its tests.
fn long_table(proofs: &BTreeMap<Id, BTreeSet<Proof>>) -> String {
    let mut page = "# Rules and their tests\n\nWritten by `tests/rules.rs` (`ICTUS_BLESS=1 cargo test --test rules`); \
        at most four tests are named for a rule, and in the place of a test the reason why there is none.\n"
        .to_owned();
    for section in RULES {
        let _ = write!(page, "\n## {}: {}\n\n| rule | tests |\n|---|---|\n", ranges_of(section), section.0);
        for id in ids_of(section) {
            let tests: Vec<&Proof> = proofs.get(&id).into_iter().flatten().collect();
            let mut names: Vec<String> =
                tests.iter().take(4).map(|test| format!("`{}` ({})", test.name, test.file)).collect();
            if tests.len() > 4 {
                names.push(format!("and {} more", tests.len() - 4));
            }
            if tests.is_empty() {
                names.extend(reason_without_test(&id).map(str::to_owned));
            }
            let _ = writeln!(page, "| {}-{} | {} |", id.0, id.1, names.join(", "));
        }
    }
    page
}

fn replace_between(text: &str, table: &str) -> String {
    let start = text.find(BEGIN).expect("docs/design.md has the mark of the table") + BEGIN.len();
    let end = start + text[start..].find(END).expect("docs/design.md has the end of the table");
    format!("{}{table}{}", &text[..start], &text[end..])
}

#[test]
fn ranges_and_names_are_read() {
    let id = |prefix: &str, number| (prefix.to_owned(), number);
    let expected = [id("S", 5), id("T", 1), id("T", 2), id("T", 3), id("T", 9), id("TS", 4)];
    assert_eq!(ids_in("T-1 .. T-3, T-9 (S-5) as TS-4 but not FNV-1a or UTF-8."), expected.into());
    assert_eq!(ids_in_name("ts_44_and_ts_45_need_room"), [id("TS", 44), id("TS", 45)].into());
    let text = "/// T-1, and\n/// T-2.\n#[test]\nfn a() {}\n\n/// T-3\nfn b() {}\n    #[test]\n    fn ss_7_c() {}\n";
    let tests = tests_in(text);
    assert_eq!(tests[0], ("a".to_owned(), [id("T", 1), id("T", 2)].into()));
    assert_eq!(tests[1], ("ss_7_c".to_owned(), [id("SS", 7)].into()));
    assert_eq!(tests.len(), 2);
}

#[test]
fn every_rule_has_a_test_and_the_tables_say_which() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let proofs = proofs(root);
    assert!(proofs.len() > 200, "the walk found the tests");
    let missing: Vec<String> = RULES
        .iter()
        .flat_map(ids_of)
        .filter(|id| !proofs.contains_key(id) && reason_without_test(id).is_none())
        .map(|(prefix, number)| format!("{prefix}-{number}"))
        .collect();
    println!("{} rules without a test: {}", missing.len(), missing.join(" "));
    let (design, rules) = (root.join("docs/design.md"), root.join("docs/rules.md"));
    let text = std::fs::read_to_string(&design).expect("there is a design page");
    let (blessed, page) = (replace_between(&text, &short_table(&proofs)), long_table(&proofs));
    if std::env::var_os("ICTUS_BLESS").is_some() {
        std::fs::write(&design, &blessed).expect("the design page can be written");
        std::fs::write(&rules, &page).expect("the page of rules can be written");
    } else {
        let there = std::fs::read_to_string(&rules).unwrap_or_default();
        let fresh = blessed == text && page == there;
        assert!(fresh || !MISSING_FAILS, "the tables of rules are old (ICTUS_BLESS=1 writes them)");
    }
    assert!(missing.is_empty() || !MISSING_FAILS, "rules without a test: {missing:?}");
}
