// Kernels with one bug each, which the simulator must find, beside versions without it: tests/cuda/planted.rs says what it must say. Of some of
// them scripts/sanitize-kernels.sh says what a sanitizer must find.
#include "common.cuh"

// Sum of 64 numbers by shared memory; BARRIER false leaves out the barrier between writing and reading.
template <bool BARRIER> DEV void shared_sum(Ptr<f32> out, Ptr<const f32> x) {
    SHARED(f32, values, 64);
    values[threadIdx.x] = x[threadIdx.x];
    if (BARRIER) sync_block();
    f32 sum = 0.0f;
    for (u32 i = 0; i < 64; i++) sum += values[i];
    out[threadIdx.x] = sum;
}
KERNEL(64) good_shared_sum(Ptr<f32> out, Ptr<const f32> x) { shared_sum<true>(out, x); }
EXPORT(good_shared_sum, 64)
KERNEL(64) bad_missing_barrier(Ptr<f32> out, Ptr<const f32> x) { shared_sum<false>(out, x); }
EXPORT(bad_missing_barrier, 64)

// Reads a neighbour's value, then overwrites its own: the barrier between reading and writing is missing.
KERNEL(64) bad_write_after_read(Ptr<f32> out, Ptr<const f32> x) {
    SHARED(f32, values, 64);
    values[threadIdx.x] = x[threadIdx.x];
    sync_block();
    f32 next = values[(threadIdx.x + 1) % 64];
    values[threadIdx.x] = next;
    sync_block();
    out[threadIdx.x] = values[threadIdx.x];
}
EXPORT(bad_write_after_read, 64)

// An exchange inside warps: with sync_warp it is right, without it a race.
template <bool SYNC> DEV void warp_exchange(Ptr<f32> out, Ptr<const f32> x) {
    SHARED(f32, values, 64);
    values[threadIdx.x] = x[threadIdx.x];
    if (SYNC) sync_warp();
    out[threadIdx.x] = values[threadIdx.x ^ 1];
}
KERNEL(64) good_warp_exchange(Ptr<f32> out, Ptr<const f32> x) { warp_exchange<true>(out, x); }
EXPORT(good_warp_exchange, 64)
KERNEL(64) bad_missing_sync_warp(Ptr<f32> out, Ptr<const f32> x) { warp_exchange<false>(out, x); }
EXPORT(bad_missing_sync_warp, 64)

KERNEL(64) bad_read_past_end(Ptr<f32> out, Ptr<const f32> x) { out[threadIdx.x] = x[threadIdx.x + 1]; }
EXPORT(bad_read_past_end, 64)

KERNEL(64) bad_write_past_shared(Ptr<f32> out, Ptr<const f32> x) {
    SHARED(f32, values, 63);
    SHARED(f32, others, 64);
    others[threadIdx.x] = 0.0f;
    values[threadIdx.x] = x[threadIdx.x];
    out[threadIdx.x] = others[threadIdx.x];
}
EXPORT(bad_write_past_shared, 64)

KERNEL(64) bad_read_before_start(Ptr<f32> out, Ptr<const f32> x) { out[threadIdx.x] = x[(u64)threadIdx.x - 1]; }
EXPORT(bad_read_before_start, 64)

KERNEL(64) bad_misaligned(Ptr<f32> out, Ptr<const f32> x) { out[threadIdx.x] = float_of(load_quad(x + threadIdx.x).x); }
EXPORT(bad_misaligned, 64)

// A whole quad of an array that begins wherever a number may.
KERNEL(64) bad_misaligned_shared(Ptr<f32> out, Ptr<const f32> x) {
    SHARED(f32, values, 64);
    values[threadIdx.x] = x[threadIdx.x];
    sync_block();
    out[threadIdx.x] = float_of(load_quad(values + threadIdx.x / 4 * 4).x);
}
EXPORT(bad_misaligned_shared, 64)

// Past the end of an array in registers: the simulator does not look there, sanitizers do (scripts/sanitize-kernels.sh).
KERNEL(64) bad_read_past_local(Ptr<f32> out, Ptr<const f32> x) {
    f32 own[4] = {1.0f, 2.0f, 3.0f, 4.0f};
    out[threadIdx.x] = own[(u32)x[threadIdx.x] % 8];
}
EXPORT(bad_read_past_local, 64)

KERNEL(64) bad_null(Ptr<f32> out, Ptr<const f32> x) { out[threadIdx.x] = x[threadIdx.x]; }
EXPORT(bad_null, 64)

// Writes half of a shared array and reads all of it.
KERNEL(64) bad_uninitialised_shared(Ptr<f32> out, Ptr<const f32> x) {
    SHARED(f32, values, 64);
    if (threadIdx.x < 32) values[threadIdx.x] = x[threadIdx.x];
    sync_block();
    out[threadIdx.x] = values[threadIdx.x];
}
EXPORT(bad_uninitialised_shared, 64)

// Adds to memory that nobody set to zero.
KERNEL(64) bad_uninitialised_memory(Ptr<f32> out, Ptr<const f32> x) { out[threadIdx.x] += x[threadIdx.x]; }
EXPORT(bad_uninitialised_memory, 64)

// Leaves the last element out.
KERNEL(64) bad_forgotten_output(Ptr<f32> out, Ptr<const f32> x) {
    if (threadIdx.x < 63) out[threadIdx.x] = x[threadIdx.x];
}
EXPORT(bad_forgotten_output, 64)

// Two blocks write the same elements.
KERNEL(64) bad_race_of_blocks(Ptr<f32> out, Ptr<const f32> x) { out[threadIdx.x] = x[threadIdx.x]; }
EXPORT(bad_race_of_blocks, 64)

// Each block reads what the others overwrite.
KERNEL(64) bad_block_reads_another(Ptr<f32> out, Ptr<const f32>) {
    f32 value = out[(threadIdx.x + 64 * (blockIdx.x + 1)) % (64 * gridDim.x)];
    out[threadIdx.x + 64 * blockIdx.x] = value;
}
EXPORT(bad_block_reads_another, 64)

KERNEL(64) bad_divergent_barrier(Ptr<f32> out, Ptr<const f32> x) {
    if (threadIdx.x < 32)
        sync_block();
    else
        sync_block(); // another place
    out[threadIdx.x] = x[threadIdx.x];
}
EXPORT(bad_divergent_barrier, 64)

KERNEL(64) bad_divergent_warp(Ptr<f32> out, Ptr<const f32> x) {
    f32 value = x[threadIdx.x];
    if (threadIdx.x % 32 < 16)
        value = warp_sum(value);
    else
        value = warp_max(value);
    out[threadIdx.x] = value;
}
EXPORT(bad_divergent_warp, 64)

KERNEL(64) bad_ended_lane(Ptr<f32> out, Ptr<const f32> x) {
    if (threadIdx.x == 63) return;
    out[threadIdx.x] = warp_sum(x[threadIdx.x]);
}
EXPORT(bad_ended_lane, 64)

// Half a warp waits at a barrier, the other half in a warp operation.
KERNEL(64) bad_deadlock(Ptr<f32> out, Ptr<const f32> x) {
    if (threadIdx.x % 32 < 16) sync_block();
    out[threadIdx.x] = warp_sum(x[threadIdx.x]);
}
EXPORT(bad_deadlock, 64)

KERNEL(64) bad_too_much_shared(Ptr<f32> out, Ptr<const f32> x) {
    SHARED(f32, values, 12289);
    values[threadIdx.x] = x[threadIdx.x];
    out[threadIdx.x] = values[threadIdx.x];
}
EXPORT(bad_too_much_shared, 64)

// A sum in the order in which threads happen to come, as an atomic addition gives it. No rule of memory is broken, so only the bits tell.
KERNEL(64) bad_order_dependent(Ptr<f32> out, Ptr<const f32> x) {
    f32 sum;
    std::memcpy(&sum, out.at, sizeof sum);
    sum += x[threadIdx.x];
    std::memcpy(out.at, &sum, sizeof sum);
}
EXPORT(bad_order_dependent, 64)

// Sixteen threads copy four numbers each to shared memory, and all read them. What is wrong: 0 nothing, 1 no wait, 2 no commit, 3 a wait that lets the newest group be under way,
// 4 no barrier behind the wait, 5 the place is read when the next copy begins, 6 a source that is not aligned, 7 a copy that nobody waits for.
template <u32 WRONG> DEV void copied(Ptr<f32> out, Ptr<const f32> x) {
    SHARED_QUADS(f32, values, 64);
    u32 place = 4 * threadIdx.x % 64;
    if (WRONG == 5) {
        values[threadIdx.x] = 0.0f;
        sync_block();
        out[threadIdx.x] = values[63 - threadIdx.x];
    }
    if (threadIdx.x < 16) copy_async(values + place, WRONG == 6 ? x + place / 2 : x + place, place == 60 ? 12 : 16);
    if (WRONG != 2) copy_commit();
    if (WRONG != 1 && WRONG != 7) copy_wait<WRONG == 3 ? 1 : 0>();
    if (WRONG == 7) return;
    if (WRONG != 4) sync_block();
    out[threadIdx.x] = values[threadIdx.x];
}
#define COPIED(name, WRONG)                                                                                                     \
    KERNEL(64) name(Ptr<f32> out, Ptr<const f32> x) { copied<WRONG>(out, x); }                                                  \
    EXPORT(name, 64)
COPIED(good_copy, 0)
COPIED(bad_copy_without_wait, 1)
COPIED(bad_copy_without_commit, 2)
COPIED(bad_copy_wait_too_short, 3)
COPIED(bad_copy_without_barrier, 4)
COPIED(bad_copy_over_what_is_read, 5)
COPIED(bad_copy_misaligned, 6)
COPIED(bad_copy_that_outlives_its_thread, 7)

// Two groups under way, and a wait for the older one: its numbers are there, those of the newer one are not.
template <bool NEWER> DEV void two_copies(Ptr<f32> out, Ptr<const f32> x) {
    SHARED_QUADS(f32, values, 64);
    for (u32 half = 0; half < 2; half++) {
        if (threadIdx.x < 8) copy_async(values + 32 * half + 4 * threadIdx.x, x + 32 * half + 4 * threadIdx.x);
        copy_commit();
    }
    copy_wait<1>();
    sync_block();
    out[threadIdx.x] = values[threadIdx.x % 32 + (NEWER ? 32 : 0)];
    copy_wait<0>();
}
KERNEL(64) good_two_copies(Ptr<f32> out, Ptr<const f32> x) { two_copies<false>(out, x); }
EXPORT(good_two_copies, 64)
KERNEL(64) bad_newer_copy(Ptr<f32> out, Ptr<const f32> x) { two_copies<true>(out, x); }
EXPORT(bad_newer_copy, 64)

// Half a warp multiplies in one type, half in another.
KERNEL(64) bad_divergent_mma(Ptr<f32> out, Ptr<const f32> x) {
    u32 a[4] = {1, 2, 3, 4}, b[2] = {5, 6};
    f32 c[4] = {0.0f, 0.0f, 0.0f, x[threadIdx.x]};
    if (threadIdx.x % 32 < 16)
        mma_bf16(c, a, b);
    else
        mma_f16(c, a, b);
    out[threadIdx.x] = c[0];
}
EXPORT(bad_divergent_mma, 64)

// Matrices out of shared memory that another lane has just written.
KERNEL(64) bad_matrices_without_barrier(Ptr<f32> out, Ptr<const f32> x) {
    SHARED_QUADS(f32, values, 256);
    u32 lane = threadIdx.x % 32, words[4];
    for (u32 i = 0; i < 4; i++) values[128 * (threadIdx.x / 32) + 32 * i + lane] = x[threadIdx.x];
    load_matrices(words, values + 128 * (threadIdx.x / 32) + 4 * lane);
    out[threadIdx.x] = float_of(words[0]);
}
EXPORT(bad_matrices_without_barrier, 64)
