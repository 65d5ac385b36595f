// The fake driver: memory and copies.
//
// Every range is checked at the call and again when the copy runs. Stricter than a driver where programs that are right cannot tell: no allocation and
// no copy of zero bytes, no copy of pageable memory in a capture.
#include "driver.h"
#include <cstdlib>

namespace fake {

namespace {

constexpr u64 ALIGNMENT = 512;
constexpr u32 GRANULE = 16;

u64 rounded(u64 bytes) { return (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT; }

// The allocation that has these bytes.
std::map<u64, Allocation>::iterator allocation_of(u64 address, u64 bytes) {
    auto found = driver.allocations.upper_bound(address);
    if (found == driver.allocations.begin()) return driver.allocations.end();
    --found;
    return address - found->first + bytes <= found->second.bytes ? found : driver.allocations.end();
}

// At a call: the device of these bytes, or an error.
int check_range(u64 address, u64 bytes, const char* what, int* device = nullptr) {
    if (bytes == 0) return refuse(INVALID_VALUE, "%s: no bytes", what);
    auto found = allocation_of(address, bytes);
    if (found == driver.allocations.end() || found->second.is_freed)
        return refuse(INVALID_VALUE, "%s: %llu bytes at 0x%llx are not inside of a live allocation", what, bytes, address);
    if (device) *device = found->second.device;
    return SUCCESS;
}

// When work runs: the memory, and where in it. Null with a text when it has died, or is not there yet.
sim::Home* memory_at(u64 address, u64 bytes, const char* what, u64& offset) {
    sim::Home* home = sim::find(address);
    offset = home ? address - (u64)(std::uintptr_t)home->base : 0;
    if (home && !home->pending && offset + bytes <= home->bytes) return home;
    refuse(ILLEGAL_ADDRESS, "%s: %llu bytes at 0x%llx %s", what, bytes, address,
           home && home->pending ? "of an allocation that its stream has not made yet" : "that were freed before");
    return nullptr;
}

// The pinned allocation that has these bytes.
const HostAllocation* pinned(const void* at, u64 bytes) {
    u64 address = (u64)(std::uintptr_t)at;
    auto found = driver.host_allocations.upper_bound(address);
    if (found == driver.host_allocations.begin()) return nullptr;
    --found;
    return address - found->first + bytes <= found->second.bytes ? &found->second : nullptr;
}

int allocate(u64* out, u64 bytes, const std::shared_ptr<Context>& context, const std::shared_ptr<Stream>& stream) {
    if (!out || bytes == 0) return refuse(INVALID_VALUE, "an allocation of no bytes");
    if (int error = struck(POINT_ALLOC)) return error;
    u64 total = driver.options[OPTION_MEMORY];
    if (used(context->device) + rounded(bytes) > total) drain(*context); // frees that are under way
    u64 before = used(context->device);
    if (bytes > total || before + rounded(bytes) > total)
        return refuse(OUT_OF_MEMORY, "out of memory: %llu bytes asked for, %llu of %llu used", bytes, before, total);
    u64 address = sim::allocate(bytes, GRANULE);
    if (!address) return refuse(OUT_OF_MEMORY, "out of memory: the machine has none for %llu bytes", bytes);
    sim::Home* home = sim::find(address);
    home->owner = (u32)context->device;
    driver.allocations[address] = Allocation{bytes, context->device, context};
    driver.counts.allocations++;
    *out = address;
    if (!stream) return SUCCESS;
    home->pending = true;
    Item item;
    item.always = true;
    item.work = [address] {
        if (sim::Home* home = sim::find(address)) home->pending = false;
        return SUCCESS;
    };
    int error = submit(stream, item, false);
    if (error) release_memory(address);
    return error;
}

int free_of(u64 address, Allocation*& allocation) {
    auto found = driver.allocations.find(address);
    if (found == driver.allocations.end()) return refuse(INVALID_VALUE, "a free of 0x%llx, where no allocation begins", address);
    if (found->second.is_freed) return refuse(INVALID_VALUE, "a second free of 0x%llx", address);
    allocation = &found->second;
    return SUCCESS;
}

// ---- copies: what is done when they run ----

int to_device(u64 to, const void* from, u64 bytes) {
    u64 offset;
    sim::Home* home = memory_at(to, bytes, "a copy to the device", offset);
    if (!home) return ILLEGAL_ADDRESS;
    sim::store(*home, offset, from, bytes);
    return SUCCESS;
}

int to_host(void* to, u64 from, u64 bytes) {
    u64 offset;
    sim::Home* home = memory_at(from, bytes, "a copy from the device", offset);
    if (!home) return ILLEGAL_ADDRESS;
    u64 written = sim::load(*home, offset, to, bytes);
    if (written == bytes) return SUCCESS;
    driver.counts.unwritten_reads++;
    refuse(SUCCESS, "a copy to the host of %llu bytes, where nobody wrote the one at offset %llu", bytes, written);
    return SUCCESS;
}

int within(u64 to, u64 from, u64 bytes) {
    u64 to_offset, from_offset;
    sim::Home *target = memory_at(to, bytes, "a copy between devices", to_offset), *source = memory_at(from, bytes, "a copy between devices", from_offset);
    if (!target || !source) return ILLEGAL_ADDRESS;
    sim::move(*target, to_offset, *source, from_offset, bytes);
    return SUCCESS;
}

int set(u64 to, u8 value, u64 bytes) {
    u64 offset;
    sim::Home* home = memory_at(to, bytes, "a memset", offset);
    if (!home) return ILLEGAL_ADDRESS;
    sim::fill(*home, offset, value, bytes);
    return SUCCESS;
}

// ---- copies: what is done when they are asked for ----

int copy_start(std::shared_ptr<Stream>& stream, void* handle) {
    if (int error = stream_of(handle, stream)) return error;
    if (int error = struck(POINT_COPY)) return error;
    driver.counts.copies++;
    return SUCCESS;
}

// A check at the time of running: the pinned memory of a copy must not have been freed.
std::function<bool()> still_pinned(const void* at, u64 bytes) {
    u64 number = pinned(at, bytes)->number;
    return [at, bytes, number] {
        const HostAllocation* now = pinned(at, bytes);
        if (now && now->number == number) return true;
        refuse(ILLEGAL_ADDRESS, "a copy with pinned memory that was freed before the copy ran");
        return false;
    };
}

int copy_to_device(u64 to, const void* from, u64 bytes, void* handle) {
    std::shared_ptr<Stream> stream;
    if (int error = copy_start(stream, handle)) return error;
    if (int error = check_range(to, bytes, "a copy to the device")) return error;
    driver.counts.copies_to_device++;
    driver.counts.bytes_to_device += bytes;
    Item item;
    if (pinned(from, bytes)) {
        item.work = [to, from, bytes, is_there = still_pinned(from, bytes)] {
            return is_there() ? to_device(to, from, bytes) : ILLEGAL_ADDRESS;
        };
        return submit(stream, item);
    }
    // Of pageable memory the driver takes a copy; whether a capture may is not certain, so it may not.
    std::vector<u8> bytes_now((const u8*)from, (const u8*)from + bytes);
    item.work = [to, held = std::move(bytes_now)] { return to_device(to, held.data(), held.size()); };
    return submit(stream, item, false);
}

int copy_to_host(void* to, u64 from, u64 bytes, void* handle) {
    std::shared_ptr<Stream> stream;
    if (int error = copy_start(stream, handle)) return error;
    if (int error = check_range(from, bytes, "a copy from the device")) return error;
    driver.counts.copies_to_host++;
    driver.counts.bytes_to_host += bytes;
    Item item;
    if (pinned(to, bytes)) {
        item.work = [to, from, bytes, is_there = still_pinned(to, bytes)] {
            return is_there() ? to_host(to, from, bytes) : ILLEGAL_ADDRESS;
        };
        return submit(stream, item);
    }
    item.work = [to, from, bytes] { return to_host(to, from, bytes); };
    bool is_strict = driver.options[OPTION_STRICT] != 0;
    if (is_strict) std::memset(to, 0xff, bytes);
    if (int error = submit(stream, item, false)) return error;
    if (is_strict) return SUCCESS;
    drain(*stream);
    return stream->context->error;
}

int copy_on_device(u64 to, u64 from, u64 bytes, void* handle, int to_device, int from_device) {
    std::shared_ptr<Stream> stream;
    if (int error = copy_start(stream, handle)) return error;
    int target = 0, source = 0;
    if (int error = check_range(to, bytes, "a copy between devices", &target)) return error;
    if (int error = check_range(from, bytes, "a copy between devices", &source)) return error;
    if ((to_device >= 0 && to_device != target) || (from_device >= 0 && from_device != source))
        return refuse(INVALID_VALUE, "a copy between devices: the memory is of devices %d and %d", target, source);
    if (to < from + bytes && from < to + bytes) return refuse(INVALID_VALUE, "a copy between devices: the ranges overlap");
    Item item;
    item.work = [to, from, bytes] { return within(to, from, bytes); };
    return submit(stream, item);
}

int set_bytes(u64 to, u8 value, u64 bytes, void* handle) {
    std::shared_ptr<Stream> stream;
    if (int error = copy_start(stream, handle)) return error;
    if (int error = check_range(to, bytes, "a memset")) return error;
    Item item;
    item.work = [to, value, bytes] { return set(to, value, bytes); };
    return submit(stream, item);
}

// The synchronous forms: on the null stream, and done when they answer.
int at_once(const char* what, const std::function<int()>& asynchronous) {
    if (int error = forbid(what)) return error;
    if (int error = asynchronous()) return error;
    std::shared_ptr<Context> context;
    if (int error = current(context)) return error;
    drain(*context->null_stream);
    return context->error;
}

} // namespace

u64 used(int device) {
    u64 sum = 0;
    for (auto& [address, allocation] : driver.allocations)
        if (allocation.device == device) sum += rounded(allocation.bytes);
    return sum;
}

void release_memory(u64 address) {
    driver.allocations.erase(address);
    sim::release(address);
}

} // namespace fake

using namespace fake;

CUDA cuMemGetInfo_v2(u64* free_bytes, u64* total) {
    Lock lock(driver.mutex);
    std::shared_ptr<Context> context;
    if (int error = current(context)) return error;
    *total = driver.options[OPTION_MEMORY];
    u64 taken = used(context->device);
    *free_bytes = taken < *total ? *total - taken : 0;
    return SUCCESS;
}

CUDA cuMemAllocAsync(u64* out, u64 bytes, void* handle) {
    Lock lock(driver.mutex);
    std::shared_ptr<Stream> stream;
    if (int error = own_stream_of(handle, stream)) return error;
    if (!driver.options[OPTION_POOLS]) return refuse(NOT_SUPPORTED, "this device has no memory pools");
    return allocate(out, bytes, stream->context, stream);
}

CUDA cuMemFreeAsync(u64 address, void* handle) {
    Lock lock(driver.mutex);
    std::shared_ptr<Stream> stream;
    int error = stream_of(handle, stream);
    if (!stream) return error;
    Allocation* allocation;
    if (int refused = free_of(address, allocation)) return refused;
    Item item;
    item.always = true;
    item.work = [address] {
        release_memory(address);
        return SUCCESS;
    };
    if (int refused = submit(stream, item, false)) return refused;
    // By now an eager stream has done it, and a lost context does it at once.
    auto found = driver.allocations.find(address);
    if (found != driver.allocations.end()) found->second.is_freed = true;
    return error;
}

CUDA cuMemAlloc_v2(u64* out, u64 bytes) {
    Lock lock(driver.mutex);
    std::shared_ptr<Context> context;
    if (int error = current(context)) return error;
    if (int error = forbid("cuMemAlloc")) return error;
    return allocate(out, bytes, context, nullptr);
}

CUDA cuMemFree_v2(u64 address) {
    Lock lock(driver.mutex);
    if (!address) return SUCCESS;
    std::shared_ptr<Context> context;
    int error = current(context);
    if (!context) return error;
    if (int refused = forbid("cuMemFree")) return refused;
    Allocation* allocation;
    if (int refused = free_of(address, allocation)) return refused;
    drain(*context); // as the driver does
    release_memory(address);
    return context->error;
}

CUDA cuMemHostAlloc(void** out, u64 bytes, u32) {
    Lock lock(driver.mutex);
    std::shared_ptr<Context> context;
    if (int error = current(context)) return error;
    if (int error = forbid("cuMemHostAlloc")) return error;
    if (bytes == 0) return refuse(INVALID_VALUE, "an allocation of no bytes");
    if (int error = struck(POINT_HOST_ALLOC)) return error;
    void* memory = std::aligned_alloc(4096, (bytes + 4095) / 4096 * 4096);
    if (!memory) return refuse(OUT_OF_MEMORY, "the machine has no %llu bytes", bytes);
    std::memset(memory, 0xff, bytes);
    driver.host_allocations[(u64)(std::uintptr_t)memory] = HostAllocation{bytes, driver.next_number++};
    *out = memory;
    return SUCCESS;
}

CUDA cuMemFreeHost(void* at) {
    Lock lock(driver.mutex);
    auto found = driver.host_allocations.find((u64)(std::uintptr_t)at);
    if (found == driver.host_allocations.end()) return refuse(INVALID_VALUE, "a free of pinned memory that is none");
    if (int error = forbid("cuMemFreeHost")) return error;
    driver.host_allocations.erase(found);
    std::free(at);
    std::shared_ptr<Context> context;
    return current(context);
}

CUDA cuMemcpyHtoDAsync_v2(u64 to, const void* from, u64 bytes, void* stream) {
    Lock lock(driver.mutex);
    return copy_to_device(to, from, bytes, stream);
}
CUDA cuMemcpyDtoHAsync_v2(void* to, u64 from, u64 bytes, void* stream) {
    Lock lock(driver.mutex);
    return copy_to_host(to, from, bytes, stream);
}
CUDA cuMemcpyDtoDAsync_v2(u64 to, u64 from, u64 bytes, void* stream) {
    Lock lock(driver.mutex);
    return copy_on_device(to, from, bytes, stream, -1, -1);
}
CUDA cuMemsetD8Async(u64 to, u8 value, u64 bytes, void* stream) {
    Lock lock(driver.mutex);
    return set_bytes(to, value, bytes, stream);
}
CUDA cuMemcpyHtoD_v2(u64 to, const void* from, u64 bytes) {
    Lock lock(driver.mutex);
    return at_once("cuMemcpyHtoD", [&] { return copy_to_device(to, from, bytes, nullptr); });
}
CUDA cuMemcpyDtoH_v2(void* to, u64 from, u64 bytes) {
    Lock lock(driver.mutex);
    return at_once("cuMemcpyDtoH", [&] { return copy_to_host(to, from, bytes, nullptr); });
}
CUDA cuMemcpyDtoD_v2(u64 to, u64 from, u64 bytes) {
    Lock lock(driver.mutex);
    return at_once("cuMemcpyDtoD", [&] { return copy_on_device(to, from, bytes, nullptr, -1, -1); });
}
CUDA cuMemsetD8_v2(u64 to, u8 value, u64 bytes) {
    Lock lock(driver.mutex);
    return at_once("cuMemsetD8", [&] { return set_bytes(to, value, bytes, nullptr); });
}
CUDA cuMemcpyPeerAsync(u64 to, void* to_context, u64 from, void* from_context, u64 bytes, void* stream) {
    Lock lock(driver.mutex);
    std::shared_ptr<Context>*target = driver.contexts.find(to_context), *source = driver.contexts.find(from_context);
    if (!target || !source) return refuse(INVALID_CONTEXT, "a copy between devices: no such context");
    std::shared_ptr<Stream> order;
    bool is_captured = stream_of(stream, order) == SUCCESS && order->capture;
    // That a graph takes such a copy through the host is said nowhere, so it does not.
    if (is_captured && *target != *source && !((*source)->peers >> (*target)->device & 1))
        return invalidate(*order->capture, "a copy to a device that is out of reach");
    return copy_on_device(to, from, bytes, stream, (*target)->device, (*source)->device);
}
