#!/usr/bin/env bash
# Array decoding under a checker of memory accesses: the unit tests of src/record, which read memory that another party
# describes. Under Miri when it is installed (undefined behaviour of every kind), and under AddressSanitizer in any case (reads
# and writes outside of what was allocated). Both see a small crate that holds src/record alone, so that neither has to build
# the rest; the sanitizer is an unstable flag of the compiler, which RUSTC_BOOTSTRAP opens.
set -euo pipefail
cd "$(dirname "$0")/.."
root=$PWD

crate=target/sanitize
mkdir -p "$crate"
cp Cargo.lock "$crate/Cargo.lock"
cat > "$crate/lib.rs" <<EOF
//! src/record alone.
#[path = "$root/src/record/mod.rs"]
pub mod record;
EOF
cat > "$crate/Cargo.toml" <<EOF
[package]
name = "ictus"
version = "$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -1)"
edition = "2024"
[lib]
path = "lib.rs"
[dependencies]
$(grep -E '^(bytemuck|xxhash-rust|thiserror) = ' Cargo.toml)
[workspace]
EOF

host=$(rustc -vV | sed -n 's/^host: //p')

if cargo miri --version >/dev/null 2>&1; then
    echo "under Miri"
    cargo miri test --quiet --manifest-path "$crate/Cargo.toml" --lib
else
    echo "skipped: array decoding under Miri: cargo miri is not installed (a component of the nightly toolchain)"
fi

echo "under AddressSanitizer"
RUSTC_BOOTSTRAP=1 RUSTFLAGS=-Zsanitizer=address \
    cargo test --quiet --manifest-path "$crate/Cargo.toml" --target "$host" --lib
