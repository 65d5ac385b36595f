//! The two real models that `scripts/fetch-models.sh` fetches.

use std::path::PathBuf;

/// SmolLM2 135M Instruct: byte-level vocabulary, chat template.
#[allow(dead_code, reason = "not every test file that takes this module uses all of it")]
pub(crate) const SMOLLM2: &str = "smollm2-135m-instruct-q4_1";
/// Gemma 3 270M: SentencePiece-style vocabulary.
#[allow(dead_code, reason = "not every test file that takes this module uses all of it")]
pub(crate) const GEMMA3: &str = "gemma-3-270m-q4_k_m";

/// Where a model's file is, or a line that says it is not there. `scripts/test.sh` always fetches them.
pub(crate) fn find(name: &str) -> Option<PathBuf> {
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), |dir| root.join(dir));
    // A build folder elsewhere may still go with models in the usual place.
    let found = [target, root.join("target")].map(|dir| dir.join("models").join(format!("{name}.gguf")));
    if let Some(path) = found.iter().find(|path| path.is_file()) {
        return Some(path.clone());
    }
    println!("skipped: {name}.gguf is not in {} (./scripts/fetch-models.sh fetches it)", found[0].display());
    None
}
