#!/usr/bin/env bash
# gpu.sh [OUT]: everything that only a machine with an NVIDIA GPU can show, in some ten minutes; figures and logs go to OUT (target/gpu).
#   1. the CUDA tests on the device (ICTUS_CUDA=gpu: a test that needs the simulator says that it was skipped)
#   2. the same kernels under compute-sanitizer, where it is installed
#   3. benches/cuda: each operation beside the memory's bandwidth, and whole steps of a model of a billion weights
#   4. torch's kernels on the same shapes, where python3 has torch
# Needs Rust, a C++ compiler, and the driver; nvcc only for scripts/check-kernels.sh, which is not part of this.
set -euo pipefail
cd "$(dirname "$0")/.."
out=${1:-target/gpu}
mkdir -p "$out"
failed=()
step() { printf '\n==> %s\n' "$*"; }

step "device"
nvidia-smi --query-gpu=name,driver_version,memory.total,compute_cap --format=csv | tee "$out/device.csv" || {
    echo "no NVIDIA driver: nothing to do here" >&2
    exit 1
}

step "tests on the device"
ICTUS_CUDA=gpu cargo test --all-features --no-fail-fast cuda -- --test-threads=1 2>&1 | tee "$out/tests.log" || failed+=(tests)

step "compute-sanitizer"
sanitizer=$(command -v compute-sanitizer || ls /usr/local/cuda*/bin/compute-sanitizer 2>/dev/null | head -1 || true)
if [ -n "$sanitizer" ]; then
    program=$(cargo test --all-features --test cuda_families --no-run 2>&1 | sed -n 's/.*(\(target[^)]*\)).*/\1/p' | tail -1)
    for tool in memcheck initcheck racecheck synccheck; do
        ICTUS_CUDA=gpu timeout 300 "$sanitizer" --tool "$tool" --error-exitcode 9 "$program" --test-threads=1 \
            > "$out/$tool.log" 2>&1 && echo "$tool: clean" || { echo "$tool: see $out/$tool.log"; failed+=("$tool"); }
    done
else
    echo "skipped: compute-sanitizer: not installed"
fi

step "figures"
cargo bench --all-features --bench cuda 2>"$out/bench.err" | tee "$out/ictus.jsonl" || failed+=(bench)

step "torch on the same shapes"
if python3 -c 'import torch; assert torch.cuda.is_available()' 2>/dev/null; then
    python3 scripts/peer_torch.py | tee "$out/torch.jsonl" || failed+=(torch)
else
    echo "skipped: torch: python3 has none that sees the device"
fi

step "result"
if [ ${#failed[@]} -eq 0 ]; then echo "all of it, in $out"; else echo "failed: ${failed[*]} (logs in $out)"; exit 1; fi
