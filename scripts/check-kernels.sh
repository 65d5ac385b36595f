#!/usr/bin/env bash
# The CUDA kernels through NVIDIA's own compiler, without a GPU: the committed PTX is what the sources give, and every kernel assembles for
# the architectures below without spilling a register. Prints registers, shared memory and stack of each kernel.
#
#   check-kernels.sh            check
#   check-kernels.sh --bless    write kernels/ptx anew, then check
set -euo pipefail
cd "$(dirname "$0")/.."

archs="sm_80 sm_89 sm_90a sm_100"
if ! home=$(./scripts/install-nvcc.sh target/nvcc); then
    echo "skipped: assembling the CUDA kernels: the compiler's wheels could not be installed"
    exit 0
fi
work=$(mktemp -d target/kernels.XXXXXX)
trap 'rm -rf "$work"' EXIT

# One kernel file: PTX for the oldest architecture, in the language version that drivers from R525 on take. Products and sums stay apart
# (-fmad=false) unless the source fuses them.
compile() {
    local name
    name=$(basename "$1" .cu)
    "$home/bin/nvcc" -std=c++17 -arch=compute_80 --ptx -fmad=false -o "$work/$name.raw" "$1"
    # Names of what is private to a file carry a hash of where the file lies, which is not the same in another folder.
    sed -E -e 's/^\.version .*/.version 8.0/' -e 's/_INTERNAL_[0-9a-f]{8}_([0-9]+_[a-z0-9_]+_cu)_[0-9a-f]{8}/_INTERNAL_00000000_\1_00000000/g' \
        "$work/$name.raw" > "$work/$name.ptx"
}
# One PTX file for one architecture; a line per kernel.
assemble() {
    "$home/bin/ptxas" -v "-arch=$2" -o /dev/null "$1" > "$work/$(basename "$1").$2.log" 2>&1 || { cat "$work/$(basename "$1").$2.log"; return 1; }
}
export -f compile assemble
export home work

printf '%s\n' kernels/*.cu | xargs -P "$(nproc)" -I{} bash -c 'compile {}'
if [ "${1:-}" = --bless ]; then
    mkdir -p kernels/ptx
    rm -f kernels/ptx/*.ptx
    cp "$work"/*.ptx kernels/ptx/
fi
rm "$work"/*.raw
if ! diff -rq "$work" kernels/ptx; then
    echo "kernels/ptx is not what the sources give: scripts/check-kernels.sh --bless writes it anew"
    exit 1
fi
for arch in $archs; do printf "%s $arch\n" "$work"/*.ptx; done | xargs -P "$(nproc)" -L1 bash -c 'assemble "$0" "$1"'

# Of each kernel the numbers of all architectures; spills anywhere are an error, and so is a stack.
cat > "$work/table.awk" <<'AWK'
/Compiling entry function/ { split($0, part, "'"); kernel = part[2]; arch = part[4] }
/bytes stack frame/ { stack[kernel] += $1; spill[kernel] += $5 + $9; if (!(kernel in seen)) { seen[kernel] = 1; order[++count] = kernel } }
/Used [0-9]+ registers/ {
    match($0, /Used [0-9]+ registers/); registers = substr($0, RSTART + 5, RLENGTH - 15)
    shared = 0
    if (match($0, /[0-9]+ bytes smem/)) shared = substr($0, RSTART, RLENGTH - 11)
    used[kernel] = used[kernel] sprintf("%9s", registers); memory[kernel] = shared
}
END {
    printf "%-36s registers on %s; shared bytes\n", "kernel", archs
    for (i = 1; i <= count; i++) {
        kernel = order[i]
        printf "%-36s%s%9s%s\n", kernel, used[kernel], memory[kernel], spill[kernel] + stack[kernel] ? "  SPILLS" : ""
        if (spill[kernel] + stack[kernel]) bad++
    }
    printf "%d kernels, %d that spill\n", count, bad
    exit bad > 0 || count == 0
}
AWK
for arch in $archs; do cat "$work"/*."$arch".log; done > "$work/all.txt"
awk -v archs="$archs" -f "$work/table.awk" "$work/all.txt"
