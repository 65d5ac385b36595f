//! Whether the bench measures every kernel: simulated devices know what ran there, and a device is measured with the same operations and types, with numbers of
//! rows that choose the same kernels.

use std::collections::BTreeSet;
use std::path::Path;

use super::cuda_device::TestDevice;
use super::{device_sizes, simulated_sizes};

/// Kernels that nothing here launches, and why.
const NOT_MEASURED: [(&str, &str); 2] = [
    ("ictus_place_parts", "parts of rows come together on a group, which wants two devices"),
    ("ictus_own_tokens", "tokens find who has their rows on a group, which wants two devices"),
];

/// Most rows of the kernels of a product, but the last (launch.rs and fast.rs of the backend).
const MOST_ROWS: [usize; 4] = [1, 4, 16, 64];

/// Which of the kernels of products these numbers of rows choose.
fn chosen(rows: &[usize]) -> BTreeSet<usize> {
    rows.iter().map(|&rows| MOST_ROWS.partition_point(|&most| most < rows)).collect()
}

/// The entries of all texts in `kernels/ptx`.
fn entries() -> BTreeSet<String> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("kernels/ptx");
    let files = std::fs::read_dir(folder).expect("the texts are committed").map(|file| file.expect("a file").path());
    let text: String = files.map(|file| std::fs::read_to_string(file).expect("a text")).collect();
    let lines = text.lines().filter_map(|line| line.strip_prefix(".visible .entry "));
    lines.map(|line| line.trim_end_matches('(').to_owned()).collect()
}

/// Asserts that every kernel ran but those that are named, which did not; says nothing of a machine's device.
pub(crate) fn all_were(device: &TestDevice) {
    let TestDevice::Simulated(driver) = device else { return };
    assert_eq!(chosen(simulated_sizes().rows), chosen(device_sizes().rows), "numbers of rows choose the same kernels");
    let ran: BTreeSet<String> = driver.kernels_run().into_iter().collect();
    let named: BTreeSet<String> = NOT_MEASURED.iter().map(|(name, _)| (*name).to_owned()).collect();
    let entries = entries();
    assert!(entries.len() > 100, "the texts have been read: {entries:?}");
    let left: Vec<&String> = entries.difference(&ran).filter(|name| !named.contains(*name)).collect();
    assert!(left.is_empty(), "kernels that are not measured, and no reason: {left:?}");
    let ran_named: Vec<&String> = named.intersection(&ran).collect();
    assert!(ran_named.is_empty(), "kernels that are measured now: {ran_named:?}");
    assert!(named.is_subset(&entries), "kernels that are gone: {named:?}");
}
