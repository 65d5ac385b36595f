#!/bin/sh
# install-nvcc.sh FOLDER
# NVIDIA's CUDA compiler from Python wheels, in an environment of its own in FOLDER: no GPU, no driver, no toolkit. The last line of
# stdout is the compiler's home (bin/nvcc, bin/ptxas); everything else goes to stderr. What already works is left as it is.
set -eu
folder=${1:?usage: install-nvcc.sh FOLDER}
version=13.5.37

home() {
    for found in "$folder"/lib/python3*/site-packages/nvidia/cu13; do
        if [ -x "$found/bin/nvcc" ]; then (cd "$found" && pwd); return; fi
    done
    return 1
}
# Whether it compiles a kernel down to machine code.
works() {
    own=$(home) && "$own/bin/nvcc" --version | grep -q "V$version" || return 1
    probe=$(mktemp -d)
    echo 'extern "C" __global__ void probe(float *x) { x[threadIdx.x] *= 2.f; }' > "$probe/probe.cu"
    "$own/bin/nvcc" -std=c++17 -arch=sm_80 -cubin -o "$probe/probe.cubin" "$probe/probe.cu" >&2 && rm -rf "$probe" && return 0
    rm -rf "$probe"
    return 1
}

command -v g++ >/dev/null || { echo "no g++, which nvcc needs" >&2; exit 1; }
if ! works; then
    command -v python3 >/dev/null || { echo "no python3, which installs the wheels" >&2; exit 1; }
    [ -x "$folder/bin/pip" ] || python3 -m venv "$folder" >&2
    "$folder/bin/pip" install --quiet --disable-pip-version-check "nvidia-cuda-nvcc==$version" "nvidia-cuda-crt==$version" \
        "nvidia-cuda-runtime==$version" "nvidia-nvvm==$version" >&2
    works || { echo "nvcc $version is installed and does not compile" >&2; exit 1; }
fi
home
