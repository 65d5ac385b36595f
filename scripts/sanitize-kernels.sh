#!/usr/bin/env bash
# The CUDA kernels, compiled for the simulator, under the sanitizers of the C++ compiler: every kernel of the engine, on launches of the tests of kernels. A second opinion
# beside the simulator's own checks, which these builds leave out: accesses are plain ones here, and what watches them knows nothing of ours.
#
#   address, undefined    what lies past the end of device memory, of shared arrays and of local arrays; loads at wrong addresses; shifts, overflows
#   thread                two threads of a block, one element, and no barrier between
#
# 1. The tests of kernels run once in the plain simulator, which writes down some launches of each kernel (kernels/sim/record.cpp).
# 2. tests/cuda/replay.cpp runs them again in a build with a sanitizer; numbers are not compared.
# 3. Each sanitizer must find what is wrong with kernels that have a bug (tests/cuda/planted.cu), and nothing in those beside them.
#
# Keeps what it builds in target/sanitized. About a minute on two idle cores. What is missing on the machine is said and left out.
set -euo pipefail
cd "$(dirname "$0")/.."

export CXX=${CXX:-c++}
export built=target/sanitized
recording=$built/launches
mkdir -p "$built"
command -v "$CXX" >/dev/null || { echo "skipped: CUDA kernels under sanitizers: no C++ compiler ($CXX)"; exit 0; }

# Flags of a kind, for kernels and for the simulator. The sanitizer of races must not see the simulator itself: it is what orders the threads.
kernel_flags() {
    case $1 in
    address) echo "-DSIM_ADDRESS -fsanitize=address,undefined -fno-sanitize-recover=all" ;;
    thread) echo "-DSIM_THREAD -fsanitize=thread" ;;
    esac
}
host_flags() { if [ "$1" = thread ]; then echo "-DSIM_THREAD"; else kernel_flags "$1"; fi; }
link_flags() { if [ "$1" = thread ]; then echo "-fsanitize=thread"; else echo "-fsanitize=address,undefined"; fi; }

# compile KIND SOURCE: an object, unless there is one that is newer than everything it is made of.
compile() {
    local object flags
    object=$built/$1/$(basename "$2").o
    [ -f "$object" ] && [ -z "$(find kernels/*.cuh kernels/sim scripts/sanitize-kernels.sh "$2" -newer "$object" -type f)" ] && return
    case $2 in *.cu) flags=$(kernel_flags "$1") ;; *) flags=$(host_flags "$1") ;; esac
    "$CXX" -std=c++17 -O1 -g1 -ffp-contract=off -fno-strict-aliasing -fno-omit-frame-pointer -Wall -Wextra -Werror $flags \
        -Ikernels -x c++ -c "$2" -o "$object.unfinished" && mv "$object.unfinished" "$object"
}
export -f compile kernel_flags host_flags

export ASAN_OPTIONS=redzone=64:detect_leaks=0 # the simulator keeps the last block's arrays, and fibers just stop
export UBSAN_OPTIONS=print_stacktrace=1
export TSAN_OPTIONS=halt_on_error=1:exitcode=66

# A program of KIND; for races without randomly placed memory, which some kernels place where the sanitizer has its own.
start() {
    local kind=$1
    shift
    if [ "$kind" = thread ] && [ -n "$fixed_places" ]; then setarch -R "$@"; else "$@"; fi
}
fixed_places=
if command -v setarch >/dev/null && setarch -R true 2>/dev/null; then fixed_places=yes; fi

kinds=()
mkdir -p "$built/address" "$built/thread"
echo 'int main() { return 0; }' > "$built/empty.cpp"
for kind in address thread; do
    if ! "$CXX" $(link_flags $kind) "$built/empty.cpp" -o "$built/$kind/empty" 2>"$built/$kind/empty.log"; then
        echo "skipped: CUDA kernels under the sanitizer of $kind: $CXX does not link with it ($(tail -1 "$built/$kind/empty.log"))"
    elif ! start $kind "$built/$kind/empty" 2>"$built/$kind/empty.log"; then
        hint=""
        [ $kind = address ] || [ -n "$fixed_places" ] || hint="; setarch -R, which would place memory where it can, is not to be had"
        echo "skipped: CUDA kernels under the sanitizer of $kind: its programs do not run here ($(head -1 "$built/$kind/empty.log")$hint)"
    else
        kinds+=($kind)
    fi
done
[ ${#kinds[@]} -gt 0 ] || exit 0

build() {
    for kind in "${kinds[@]}"; do
        for source in kernels/sim/simulator.cpp kernels/sim/record.cpp tests/cuda/replay.cpp tests/cuda/planted.cu kernels/*.cu; do echo "$kind $source"; done
    done | xargs -P "$(nproc)" -L1 bash -c 'compile "$0" "$1"' || return 1
    for kind in "${kinds[@]}"; do
        local objects=()
        for source in kernels/sim/{simulator,record}.cpp tests/cuda/replay.cpp tests/cuda/planted.cu kernels/*.cu; do objects+=("$built/$kind/$(basename "$source").o"); done
        "$CXX" $(link_flags "$kind") -o "$built/$kind/replay" "${objects[@]}" -ldl || return 1
    done
}
record() {
    rm -f "$recording"
    # One test at a time and one key, so that the launches are the same each time. Encodings of state are launched through the backend alone.
    ICTUS_RNG=1 ICTUS_CUDA=sim ICTUS_SIM_RECORD=$PWD/$recording cargo test --quiet --all-features --test cuda --test cuda_state -- --test-threads=1 \
        matches match_ shared_pages is_as_far decodes rounded columns:: rows:: greedy_token drawn_tokens logprobs shaped cuda_pages_are_encoded > "$built/record.log" 2>&1 || { tail -40 "$built/record.log"; return 1; }
}
record & recorder=$!
failed=0
build || failed=1
wait $recorder || failed=1
[ $failed = 0 ] || { echo "the kernels were not built for the sanitizers, or their launches not recorded"; exit 1; }

# replay KIND: all launches; of what goes wrong the last launch and what is said of it.
replay() {
    local log=$built/$1/replay.log
    if start "$1" timeout 900 "$built/$1/replay" recorded "$recording" > "$log" 2>&1; then
        echo "$1: clean: $(tail -1 "$log")"
    else
        echo "$1: FAILED"
        tail -60 "$log"
        return 1
    fi
}
# planted KIND WANT KERNEL...: each must end with a text that has WANT; or, where that is empty, well and in silence.
planted() {
    local kind=$1 want=$2 kernel text wrong=0
    shift 2
    for kernel; do
        if text=$(start "$kind" "$built/$kind/replay" planted "$kernel" 2>&1); then
            [ -z "$want" ] && [ -z "$text" ] || { echo "$kind: FAILED: $kernel, which should end with: $want"; wrong=1; }
        else
            [ -n "$want" ] && grep -q "$want" <<< "$text" || { echo "$kind: FAILED: $kernel: $text"; wrong=1; }
        fi
    done
    return $wrong
}

rc=0
running=()
for kind in "${kinds[@]}"; do
    replay "$kind" & running+=($!)
done
for kind in "${kinds[@]}"; do
    planted $kind "" good_shared_sum good_warp_exchange good_copy good_two_copies || rc=1
    case $kind in
    address)
        planted address heap-buffer-overflow bad_write_past_shared bad_read_past_end bad_read_before_start || rc=1
        planted address "misaligned address" bad_misaligned bad_misaligned_shared || rc=1
        planted address "out of bounds for type" bad_read_past_local || rc=1
        ;;
    thread) planted thread "data race" bad_missing_barrier bad_write_after_read bad_missing_sync_warp bad_copy_without_barrier bad_copy_over_what_is_read || rc=1 ;;
    esac
done
for one in "${running[@]}"; do wait "$one" || rc=1; done
[ $rc = 0 ] && echo "planted bugs: all found"
exit $rc
