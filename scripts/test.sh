#!/usr/bin/env bash
# Everything that must hold, in the order of what fails first: formatting, lints, docs, all tests (the C and C++ hosts among
# them), benches once as tests, the first example of the README. Installs what a fresh Debian machine lacks; elsewhere it says what to
# install and which checks it leaves out. Caches nothing outside target/.
set -euo pipefail
cd "$(dirname "$0")/.."

skipped=()
step() { current=$*; printf '\n==> %s\n' "$*"; }
trap 'printf "\n==> stopped in: %s\n" "$current"' ERR

# need COMMAND PACKAGE WHAT: has COMMAND, or installs PACKAGE, or notes that WHAT is left out.
need() {
    command -v "$1" >/dev/null && return
    if command -v apt-get >/dev/null && [ "$(id -u)" = 0 ]; then
        [ -n "${apt_ready:-}" ] || { apt-get update -qq; apt_ready=1; }
        apt-get install -y -qq "$2" >/dev/null && command -v "$1" >/dev/null && return
    fi
    skipped+=("$3: no $1 (package $2)")
}

# libclang is a library: it is there when the loader or a usual folder has it.
need_libclang() {
    local found
    # Not libclang-cpp, which is another library.
    found=$(find /usr/lib /usr/lib64 /usr/local/lib \( -name 'libclang.so*' -o -name 'libclang-[0-9]*.so*' \) 2>/dev/null | head -1)
    [ -n "$found" ] && return
    if command -v apt-get >/dev/null && [ "$(id -u)" = 0 ]; then
        [ -n "${apt_ready:-}" ] || { apt-get update -qq; apt_ready=1; }
        apt-get install -y -qq libclang1 >/dev/null && return
    fi
    skipped+=("reading the header with a C front end: no libclang (package libclang1)")
}

step "tools"
need cc gcc "C hosts"
need c++ g++ "C++ hosts"
need cmake cmake "the installed CMake package"
need pkg-config pkg-config "the installed pkg-config file"
need valgrind valgrind "C hosts under valgrind"
need python3 python3 "fetching the models"
need_libclang

step "models"
./scripts/fetch-models.sh target/models || skipped+=("answers of the two real models: they could not be fetched")

step "crates"
export CARGO_NET_RETRY=${CARGO_NET_RETRY:-10}
cargo fetch --locked --quiet

step "format"
cargo fmt --check

step "lints, warnings as errors"
cargo clippy --all-targets --all-features --quiet -- -D warnings
# What most users build: without what is off by default.
cargo clippy --quiet -- -D warnings

step "docs, warnings as errors"
RUSTDOCFLAGS="-D warnings" cargo doc --no-deps --all-features --quiet

step "tests"
mkdir -p target
set +e
cargo test --all-features --no-fail-fast -- --show-output 2>&1 | tee target/test.log
test_rc=${PIPESTATUS[0]}
set -e

step "fuzz targets of the link under libFuzzer, ten seconds each"
if ./scripts/fuzz.sh 10 >target/fuzz.log 2>&1; then
    grep -E '^==|^stat::number_of_executed' target/fuzz.log
else
    # With the input that broke it: which file has it, and its bytes in base64.
    tail -60 target/fuzz.log
    test_rc=1
fi

step "sanitizer: array decoding under AddressSanitizer"
./scripts/sanitize.sh 2>&1 | tee -a target/test.log || test_rc=1

step "sanitizers: CUDA kernels in the simulator under AddressSanitizer, UndefinedBehaviorSanitizer and ThreadSanitizer"
./scripts/sanitize-kernels.sh 2>&1 | tee -a target/test.log || test_rc=1

step "CUDA kernels through NVIDIA's compiler: fresh, and without spills"
./scripts/check-kernels.sh 2>&1 | tee -a target/test.log || test_rc=1

step "CUDA kernels as machine code, in a build that is asked for it; what they are written in, through PTX"
if home=$(./scripts/install-nvcc.sh target/nvcc); then
    ICTUS_NVCC=1 ICTUS_NVCC_ARCHS=90 NVCC="$home/bin/nvcc" cargo test --quiet --no-default-features --features cuda --test cuda_fatbins --test cuda_wrappers \
        -- --show-output 2>&1 | tee target/machine-code.log || test_rc=1
    cat target/machine-code.log >> target/test.log
else
    skipped+=("a build with machine code of the CUDA kernels: the wheels of nvcc could not be installed")
fi

step "benches, once each"
cargo test --all-features --benches --quiet 2>&1 | tail -40 || test_rc=1

step "the first command of the README"
cargo run --release --quiet --example generate || test_rc=1

step "left out"
while IFS= read -r line; do skipped+=("$line"); done < <(sed -n 's/^skipped: //p' target/test.log | sort -u)
if [ ${#skipped[@]} -eq 0 ]; then echo "nothing"; else printf '%s\n' "${skipped[@]}"; fi

if [ "$test_rc" != 0 ]; then
    # Once more at the end, where a reader looks: what failed, why, and the key that replays it; without the stacks.
    step "failed"
    sed -n '/^failures:$/,/^test result:/p' target/test.log | grep -avE '^ +([0-9]+: |at )' | head -200 || true
    grep -a '^    `-' target/test.log || true
fi
exit "$test_rc"
