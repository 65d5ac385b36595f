#!/bin/sh
# fuzz.sh [SECONDS] [TARGET]...
# Runs each fuzz target of fuzz/ (or those that are named) for so many seconds (30), on copies of its corpus; stops at the first input that
# breaks one. The stable compiler is enough: coverage comes from LLVM's own pass, libFuzzer from the crate libfuzzer-sys, whose C++ needs a
# compiler. `cargo fuzz run TARGET` does the same with a nightly compiler, and has AddressSanitizer, too.
# The same checks run over the corpus in `cargo test --test worker fuzz`.
# With MERGE=1 what a run found that covers code that the corpus does not is put into it, as few files as will do.
# Those may be some hundred: tens of them, with the most new code, are enough for the ordinary tests.
set -eu
cd "$(dirname "$0")/../fuzz"
seconds=${1:-30}
[ $# -eq 0 ] || shift
[ $# -gt 0 ] || set -- frames messages segments worker host
built=../target/fuzz
# What is fuzzed is what is tested: the versions of the crate itself.
cp ../Cargo.lock Cargo.lock
host=$(rustc -vV | sed -n 's/^host: //p')
# With a target named, build scripts and macros are built without these.
RUSTFLAGS="-Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=3 -Cllvm-args=-sanitizer-coverage-inline-8bit-counters \
-Cllvm-args=-sanitizer-coverage-pc-table -Cllvm-args=-sanitizer-coverage-trace-compares --cfg fuzzing -Ccodegen-units=1" \
    cargo build --release --target "$host" --target-dir "$built"
for target; do
    echo "== $target"
    work=$(mktemp -d)
    "$built/$host/release/$target" -max_total_time="$seconds" -rss_limit_mb=2048 -timeout=20 -max_len=4096 -print_final_stats=1 \
        -artifact_prefix="$work/" "$work" "corpus/$target"
    [ -z "${MERGE:-}" ] || "$built/$host/release/$target" -set_cover_merge=1 -use_counters=0 "corpus/$target" "$work"
    rm -rf "$work"
done
