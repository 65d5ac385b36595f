//! The README shows the examples as they are. `ICTUS_BLESS=1` writes them into it.

use std::path::Path;

/// Fence that opens a block, and the file that the block shows.
const BLOCKS: [(&str, &str); 2] = [("```rust,no_run\n", "examples/hello.rs"), ("```c\n", "examples/hello.c")];

#[test]
fn readme_shows_the_hello_programs_as_they_are() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let readme = std::fs::read_to_string(root.join("README.md")).expect("there is a README");
    let mut blessed = readme.clone();
    for (fence, file) in BLOCKS {
        let program = std::fs::read_to_string(root.join(file)).expect("the example is there");
        let start = blessed.find(fence).expect("the README has the block") + fence.len();
        let end = start + blessed[start..].find("```").expect("the block ends");
        blessed.replace_range(start..end, &program);
    }
    if std::env::var_os("ICTUS_BLESS").is_some() {
        std::fs::write(root.join("README.md"), &blessed).expect("the README can be written");
    } else {
        assert!(readme == blessed, "the README's programs differ from examples/ (ICTUS_BLESS=1 writes them)");
    }
}
