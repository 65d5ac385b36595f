//! The PTX text that ships has the kernels that the sources have.

use std::path::Path;

use crate::simulator::device;

#[test]
fn cuda_ptx_has_every_kernel_and_only_those() {
    let Some(device) = device() else { return };
    let is_planted = |name: &String| name.starts_with("bad_") || name.starts_with("good_");
    let mut kernels: Vec<String> = device.kernels().into_iter().filter(|name| !is_planted(name)).collect();
    kernels.sort();
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("kernels/ptx");
    let mut entries = Vec::new();
    for entry in std::fs::read_dir(folder).expect("kernels/ptx") {
        let path = entry.expect("an entry").path();
        let text = std::fs::read_to_string(&path).expect("text");
        assert!(text.contains("\n.version 8.0\n"), "{}: drivers from R525 on take it", path.display());
        assert!(text.contains("\n.target sm_80\n"), "{}", path.display());
        entries.extend(text.lines().filter_map(|line| {
            let name = line.strip_prefix(".visible .entry ")?;
            Some(name.split('(').next()?.trim().to_owned())
        }));
    }
    entries.sort();
    assert_eq!(entries, kernels);
}
