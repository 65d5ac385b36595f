// The fake driver: what tests ask beside the driver's interface. tests/common/fake_driver.rs has the same numbers and fields.
#include "driver.h"
#include <cstdlib>

namespace fake {

Driver& driver = *new Driver(); // never destroyed: threads may outlive the end of the program's main function

namespace {

// `lazy`, `eager`, or a number: any order, drawn from that seed.
void take_order(const char* text) {
    if (!text || !std::strcmp(text, "lazy")) return;
    if (!std::strcmp(text, "eager")) {
        driver.options[OPTION_ORDER] = EAGER;
        return;
    }
    driver.options[OPTION_ORDER] = SEEDED;
    driver.options[OPTION_SEED] = std::strtoull(text, nullptr, 0);
}

void take_number(Option option, const char* name) {
    if (const char* text = std::getenv(name)) driver.options[option] = std::strtoull(text, nullptr, 0);
}

void begin() {
    const u64 DEFAULTS[OPTIONS] = {LAZY, 0, 0, 1, 1ull << 30, 90, 1, 4, 1, 0};
    std::memcpy(driver.options, DEFAULTS, sizeof DEFAULTS);
    take_order(std::getenv("ICTUS_FAKE_CUDA_ORDER"));
    take_number(OPTION_STRICT, "ICTUS_FAKE_CUDA_STRICT");
    take_number(OPTION_DEVICES, "ICTUS_FAKE_CUDA_DEVICES");
    take_number(OPTION_MEMORY, "ICTUS_FAKE_CUDA_MEMORY");
    driver.random = driver.options[OPTION_SEED];
    for (Injection& injection : driver.injections) injection = Injection{};
    driver.counts = Statistics{};
    driver.error_text.clear();
    driver.kernels_run.clear();
}

struct Begin {
    Begin() { begin(); }
} at_load;

} // namespace

} // namespace fake

using namespace fake;

// Ends all contexts, frees everything, and sets options, injections and counts back; handles from before are answered with an error.
SIM_API void fake_reset() {
    Lock lock(driver.mutex);
    for (auto& [handle, context] : driver.contexts.entries) {
        end_context(context);
        context->null_stream = nullptr;
    }
    driver.contexts.entries.clear();
    driver.primary.clear();
    driver.streams.entries.clear();
    driver.events.entries.clear();
    driver.modules.entries.clear();
    driver.functions.entries.clear();
    driver.graphs.entries.clear();
    driver.executables.entries.clear();
    for (auto& [address, allocation] : driver.host_allocations) std::free((void*)(std::uintptr_t)address);
    driver.host_allocations.clear();
    driver.is_initialised = false;
    begin();
}

// 1 when there is no such option, or it cannot have this value.
SIM_API int fake_set(u32 option, u64 value) {
    Lock lock(driver.mutex);
    if (option >= OPTIONS || (option == OPTION_ORDER && value > SEEDED) || (option == OPTION_DEVICES && value > 16)) return 1;
    driver.options[option] = value;
    if (option == OPTION_SEED) driver.random = value;
    return 0;
}

// The `nth` call from now on (1 is the next one) at this point answers `error`; 0 takes it back. 1 when there is no such point.
SIM_API int fake_inject(u32 point, u64 nth, int error) {
    Lock lock(driver.mutex);
    if (point >= POINTS) return 1;
    driver.injections[point] = Injection{nth, error};
    return 0;
}

SIM_API void fake_statistics(Statistics* out) {
    Lock lock(driver.mutex);
    Statistics& counts = driver.counts;
    counts.live_allocations = counts.live_bytes = 0;
    for (auto& [address, allocation] : driver.allocations) {
        if (allocation.is_freed) continue;
        counts.live_allocations++;
        counts.live_bytes += allocation.bytes;
    }
    counts.live_host_allocations = driver.host_allocations.size();
    counts.live_streams = driver.streams.entries.size();
    counts.live_events = driver.events.entries.size();
    counts.live_modules = driver.modules.entries.size();
    counts.live_graphs = driver.graphs.entries.size() + driver.executables.entries.size();
    counts.live_contexts = driver.contexts.entries.size();
    *out = counts;
}

// The newest text of an error or of a warning, cut to `bytes` with its NUL.
SIM_API void fake_error_text(char* out, u64 bytes) {
    Lock lock(driver.mutex);
    if (bytes > 0) snprintf(out, bytes, "%s", driver.error_text.c_str());
}

// The names of the kernels that ran since the last reset, a line each, cut to `bytes` with their NUL; the bytes that all of them take.
SIM_API u64 fake_kernels_run(char* out, u64 bytes) {
    Lock lock(driver.mutex);
    std::string names;
    for (const std::string& name : driver.kernels_run) names += name + "\n";
    if (bytes > 0) snprintf(out, bytes, "%s", names.c_str());
    return names.size() + 1;
}
