// Kernels with one bug each, which the simulator must find, beside versions without it: tests/cuda/planted.rs says what it must say.
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
