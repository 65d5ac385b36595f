//! Every record and constant against the layout table of the contract (A-1 .. A-7, AS-1).
//!
//! `tests/abi-layout.tsv` is the contract; `record::layout` is what the compiler made of our structs. The two are compared
//! row by row, both ways, so that no row of the table goes without a check and nothing of ours without a row.

use std::collections::{BTreeMap, BTreeSet};

use ictus::record::layout::{self, GROUPS, RECORDS};
use ictus::record::{STATUSES, Status};

const TABLE: &str = include_str!("abi-layout.tsv");

fn rows(text: &str) -> Vec<Vec<&str>> {
    text.lines().map(|line| line.split('\t').collect()).collect()
}

///
#[test]
fn every_row_of_the_table_is_what_the_compiler_lays_out() {
    let ours = layout::text();
    let expected: BTreeSet<&str> = TABLE.lines().collect();
    let got: BTreeSet<&str> = ours.lines().collect();
    let missing: Vec<_> = expected.difference(&got).collect();
    let surplus: Vec<_> = got.difference(&expected).collect();
    assert!(missing.is_empty() && surplus.is_empty(), "rows not met: {missing:#?}\nrows of ours instead: {surplus:#?}");
    assert_eq!(expected.len(), TABLE.lines().count(), "the table has no row twice");
    assert_eq!(ours, TABLE, "the rows stand in the order of the table");
}

///
#[test]
fn table_has_only_rows_of_the_three_kinds() {
    for row in rows(TABLE) {
        let columns = match row[0] {
            "sizeof" => 4,
            "field" => 6,
            "const" => 4,
            other => panic!("row of kind {other:?}"),
        };
        assert_eq!(row.len(), columns, "{row:?}");
    }
}

///
#[test]
fn field_widths_of_the_table_sum_to_the_size_of_each_record() {
    let mut size = BTreeMap::new();
    let mut fields: BTreeMap<&str, Vec<(u64, u64)>> = BTreeMap::new();
    for row in rows(TABLE) {
        match row[0] {
            "sizeof" => {
                size.insert(row[1], row[3].parse::<u64>().expect("a size is a number"));
            }
            "field" => {
                let number = |column: usize| row[column].parse::<u64>().expect("offset and width are numbers");
                fields.entry(row[1]).or_default().push((number(3), number(4)));
            }
            _ => {}
        }
    }
    assert_eq!(size.len(), RECORDS.len());
    for (record, bytes) in size {
        let mut end = 0;
        for &(offset, width) in &fields[record] {
            assert_eq!(offset, end, "{record}: a field begins where the one before it ends");
            end += width;
        }
        assert_eq!(end, bytes, "{record}");
    }
}

///
#[test]
fn alignment_is_8_but_for_four_records() {
    use ictus::record::*;
    macro_rules! align {
        ($align:literal: $($record:ident)*) => { $(
            assert_eq!(align_of::<$record>(), $align, stringify!($record));
        )* };
    }
    align!(8: Array TokenRef RingRef Buf TokenRange ShedPolicy LaneAdmit LaneCommit LanePrefill LaneDecode LaneRetire TickPlan
        AdmitResult LaneEmit LaneFault ShedEntry ShedReport OpComplete TickTimings TickMemCounters LaneLogprob TickEvents
        RingDesc StateSpaceDesc Artifact CapabilityReq StrategyRegistration ExactnessCert StrategyGrant OpStatus
        MatchCandidate SpaceMatch MatchResult StateEnvelope MediaInfo);
    align!(4: SamplingParams SpecStats TapSpec);
    align!(1: CacheKey);
}

/// Minimum prefixes equal the size, but for the two records that have grown.
#[test]
fn only_two_records_are_read_shorter_than_they_are() {
    let shorter: Vec<_> = RECORDS
        .iter()
        .filter_map(|record| record.min_prefix_bytes.map(|bytes| (record.name, bytes, record.bytes)))
        .filter(|(_, min, size)| min != size)
        .collect();
    assert_eq!(shorter, [("LaneAdmit", 136, 144), ("TickPlan", 152, 168)]);
}

/// values of enums are integers with a name each.
#[test]
fn constants_have_one_name_each_and_statuses_are_all_listed() {
    let mut names = BTreeSet::new();
    for group in GROUPS {
        for constant in group.constants {
            assert!(names.insert(constant.name), "{} twice", constant.name);
        }
    }
    let statuses = GROUPS.iter().find(|group| group.name == "STATUS").expect("the group is there").constants;
    let named: Vec<_> = STATUSES.iter().map(|&(status, name)| (name, i64::from(status.code()))).collect();
    assert_eq!(statuses.iter().map(|constant| (constant.name, constant.value)).collect::<Vec<_>>(), named);
}

#[test]
fn plan_rejections_are_exactly_the_statuses_from_minus_114_to_minus_100() {
    for &(status, name) in STATUSES {
        assert_eq!(status.is_plan_rejection(), (-114..=-100).contains(&status.code()), "{name}");
        assert_eq!(Status::from_code(status.code()), Some(status));
        assert_eq!(status.c_name(), name);
    }
    for code in [1, -2, -99, -109, -115, -119, -132, -141, i32::MIN, i32::MAX] {
        assert_eq!(Status::from_code(code), None, "{code}");
    }
}

/// The hash is that of the table's bytes, so anybody can compute it from the committed file.
#[test]
fn abi_hash_is_the_xxh3_of_the_table_and_notices_every_row() {
    assert_eq!(layout::abi_hash(), xxhash_rust::xxh3::xxh3_64(TABLE.as_bytes()));
    // The figure is what `xxhsum -H3 tests/abi-layout.tsv` prints: another implementation.
    assert_eq!(layout::abi_hash(), ABI_HASH, "{:#018x}", layout::abi_hash());
    for line in TABLE.lines() {
        let without = TABLE.replacen(&format!("{line}\n"), "", 1);
        assert_ne!(xxhash_rust::xxh3::xxh3_64(without.as_bytes()), ABI_HASH, "{line}");
    }
}

const ABI_HASH: u64 = 0xf417_3bbf_355e_1245;
