#!/usr/bin/env bash
# gpu.sh [OUT]: everything that only a machine with an NVIDIA GPU can show, in less than ten minutes; figures and logs go to OUT (target/gpu).
#   1. the CUDA tests on the device (ICTUS_CUDA=gpu: a test that needs the simulator says that it was skipped); with an nvcc also what kernels are written in,
#      operation by operation, against what the simulator is held to
#   2. a build with machine code (ICTUS_NVCC=1), where there is an nvcc: whether the driver takes it
#   3. benches/cuda: each operation beside what memory and arithmetic units allow, and whole steps of a model of a billion weights
#   4. torch's kernels on the same shapes, where python3 has torch; both in one table (gpu_table.py)
#   5. the same kernels under compute-sanitizer, where it is installed
# Needs Rust, a C++ compiler, and the driver. Each step has a time of its own, and all together ICTUS_GPU_SECONDS (570): what does not get its time is
# stopped or not begun, and the last lines say so. What fails, and what is left out, is listed there; only what fails is an error.
set -euo pipefail
cd "$(dirname "$0")/.."
out=${1:-target/gpu}
all=${ICTUS_GPU_SECONDS:-570}
export ICTUS_CUDA=${ICTUS_CUDA:-gpu}
mkdir -p "$out"
failed=() skipped=()
step() { printf '\n==> %s (%d s of %d)\n' "$*" "$SECONDS" "$all"; }

# within MOST WHAT COMMAND...: runs a command for at most MOST seconds, or as many as are left; notes it when it fails or does not come to its end.
within() {
    local most=$1 what=$2 rest=$((all - SECONDS)) code=0
    shift 2
    [ "$most" -le "$rest" ] || most=$rest
    if [ "$most" -lt 5 ]; then
        skipped+=("$what: no time was left")
        return 1
    fi
    timeout --kill-after=5 "$most" "$@" || code=$?
    case $code in
    0) return 0 ;;
    124 | 137) skipped+=("$what: stopped after $most s") ;;
    *) failed+=("$what") ;;
    esac
    return 1
}

step "device"
nvidia-smi --query-gpu=name,driver_version,memory.total,compute_cap --format=csv | tee "$out/device.csv" || {
    echo "no NVIDIA driver: nothing to do here" >&2
    exit 1
}

nvcc=${NVCC:-$(command -v nvcc || ls /usr/local/cuda/bin/nvcc 2>/dev/null || true)}
if [ -n "$nvcc" ]; then export NVCC=$nvcc; fi

# Those that a device can run; the others are about the simulator. Real models are taken where scripts/fetch-models.sh has put them (target/models).
tests=(cuda_families cuda_golden cuda_attention cuda_picks cuda_state cuda_engine cuda_fatbins cuda_wrappers)
selected=()
for test in "${tests[@]}"; do selected+=(--test "$test"); done

# All of it in one profile, that of the figures, so that dependencies are built once.
step "build"
within 300 build cargo test --release --all-features --no-run "${selected[@]}" 2> >(tee "$out/build.log" >&2) || true
within 200 "build of the bench" cargo bench --all-features --bench cuda --no-run 2>> "$out/build.log" || true

step "tests on the device"
within 150 tests cargo test --release --all-features --no-fail-fast "${selected[@]}" cuda -- --test-threads=1 --show-output > >(tee "$out/tests.log") 2>&1 || true

step "figures"
within 120 bench cargo bench --all-features --bench cuda 2> "$out/bench.err" > >(tee "$out/ictus.jsonl") || true

step "torch on the same shapes"
if python3 -c 'import torch; assert torch.cuda.is_available()' 2>/dev/null; then
    within 60 torch python3 scripts/peer_torch.py > >(tee "$out/torch.jsonl") || true
else
    skipped+=("torch: python3 has none that sees the device")
fi
sleep 1 # until the last lines are in the files
if command -v python3 >/dev/null; then
    within 20 "the table" python3 scripts/gpu_table.py "$out" > >(tee "$out/table.md") || true
else
    skipped+=("the table: no python3")
fi

step "compute-sanitizer"
sanitizer=$(command -v compute-sanitizer || ls /usr/local/cuda*/bin/compute-sanitizer 2>/dev/null | head -1 || true)
if [ -n "$sanitizer" ]; then
    program=$(cargo test --release --all-features --test cuda_families --no-run 2>&1 | sed -n 's/.*(\(target[^)]*\)).*/\1/p' | tail -1)
    for tool in memcheck racecheck initcheck synccheck; do
        within 90 "$tool" "$sanitizer" --tool "$tool" --error-exitcode 9 "$program" --test-threads=1 > "$out/$tool.log" 2>&1 && echo "$tool: clean"
    done || true
else
    skipped+=("compute-sanitizer: not installed")
fi

step "a build with machine code"
if [ -n "$nvcc" ]; then
    ICTUS_NVCC=1 within 90 "machine code" cargo test --release --no-default-features --features cuda --test cuda_fatbins -- --show-output \
        > >(tee "$out/machine-code.log") 2>&1 || true
else
    skipped+=("machine code: no nvcc")
fi

step "result"
sleep 1
while IFS= read -r line; do skipped+=("$line"); done < <(sed -n 's/^skipped: //p' "$out"/*.log | sort -u)
if [ ${#skipped[@]} -gt 0 ]; then printf 'left out: %s\n' "${skipped[@]}"; fi
if [ ${#failed[@]} -eq 0 ]; then echo "nothing failed; figures and logs are in $out"; else echo "failed: ${failed[*]} (logs in $out)"; exit 1; fi
