// The fake driver: devices, contexts, errors. driver.h says how all of it hangs together.
#include "driver.h"
#include <cstdarg>
#include <cstdio>

namespace fake {

namespace {

thread_local u64 current_handle; // of a context

} // namespace

int refuse(int error, const char* format, ...) {
    char text[1024];
    va_list list;
    va_start(list, format);
    vsnprintf(text, sizeof text, format, list);
    va_end(list);
    driver.error_text = text;
    return error;
}

u64 capability_of(int device) {
    bool is_other = driver.options[OPTION_LAST_CAPABILITY] != 0 && device + 1 == (int)driver.options[OPTION_DEVICES];
    return driver.options[is_other ? OPTION_LAST_CAPABILITY : OPTION_CAPABILITY];
}

int struck(Point point) {
    Injection& injection = driver.injections[point];
    if (injection.left == 0 || --injection.left > 0) return SUCCESS;
    return refuse(injection.error, "injected");
}

int current(std::shared_ptr<Context>& context) {
    if (!driver.is_initialised) return refuse(NOT_INITIALIZED, "cuInit was not called");
    std::shared_ptr<Context>* found = driver.contexts.find((void*)(std::uintptr_t)current_handle);
    if (!found) return refuse(INVALID_CONTEXT, "this thread has no context");
    context = *found;
    return context->error;
}

void end_context(std::shared_ptr<Context> context) {
    drain(*context);
    for (auto allocation = driver.allocations.begin(); allocation != driver.allocations.end();) {
        auto [address, is_own] = std::pair(allocation->first, allocation->second.context.lock() == context);
        ++allocation;
        if (!is_own) continue;
        driver.counts.leaked++;
        release_memory(address);
    }
    auto drop = [&](auto& table) {
        for (auto entry = table.entries.begin(); entry != table.entries.end();)
            entry = entry->second->context == context ? table.entries.erase(entry) : std::next(entry);
    };
    drop(driver.streams);
    drop(driver.events);
    drop(driver.modules);
    for (auto entry = driver.functions.entries.begin(); entry != driver.functions.entries.end();)
        entry = entry->second->module->context == context ? driver.functions.entries.erase(entry) : std::next(entry);
}

} // namespace fake

using namespace fake;

// ---- the library and its devices ----

CUDA cuInit(u32) {
    Lock lock(driver.mutex);
    if (int error = struck(POINT_INIT)) return error;
    if (driver.options[OPTION_DEVICES] == 0) return refuse(NO_DEVICE, "no device");
    driver.is_initialised = true;
    return SUCCESS;
}

CUDA cuDriverGetVersion(int* version) {
    *version = 12080;
    return SUCCESS;
}

CUDA cuDeviceGetCount(int* count) {
    Lock lock(driver.mutex);
    if (!driver.is_initialised) return refuse(NOT_INITIALIZED, "cuInit was not called");
    *count = (int)driver.options[OPTION_DEVICES];
    return SUCCESS;
}

static int check_device(int device) {
    if (!driver.is_initialised) return refuse(NOT_INITIALIZED, "cuInit was not called");
    return device >= 0 && device < (int)driver.options[OPTION_DEVICES] ? SUCCESS : refuse(INVALID_DEVICE, "there is no device %d", device);
}

CUDA cuDeviceGet(int* device, int ordinal) {
    Lock lock(driver.mutex);
    *device = ordinal;
    return check_device(ordinal);
}

CUDA cuDeviceGetName(char* name, int length, int device) {
    Lock lock(driver.mutex);
    if (int error = check_device(device)) return error;
    snprintf(name, (u64)length, "simulated device %d", device);
    return SUCCESS;
}

CUDA cuDeviceGetUuid_v2(u8* uuid, int device) {
    Lock lock(driver.mutex);
    if (int error = check_device(device)) return error;
    for (u32 i = 0; i < 16; i++) uuid[i] = (u8)(0xa0 + i);
    uuid[15] = (u8)device;
    return SUCCESS;
}

CUDA cuDeviceGetUuid(u8* uuid, int device) { return cuDeviceGetUuid_v2(uuid, device); }

CUDA cuDeviceTotalMem_v2(u64* bytes, int device) {
    Lock lock(driver.mutex);
    *bytes = driver.options[OPTION_MEMORY];
    return check_device(device);
}

CUDA cuDeviceGetAttribute(int* value, int attribute, int device) {
    Lock lock(driver.mutex);
    if (int error = check_device(device)) return error;
    int capability = (int)capability_of(device);
    // By the number of the attribute: limits of blocks, grids, shared memory and registers, then what the device has.
    static const std::map<int, int> FIXED = {{1, 1024},  {2, 1024},    {3, 1024},   {4, 64},    {5, 0x7fffffff}, {6, 65535}, {7, 65535}, {8, 49152}, {10, 32},
                                             {12, 65536}, {13, 1000000}, {31, 1},     {36, 1000000}, {37, 4096},    {38, 1 << 20}, {39, 2048}, {40, 1},  {41, 1},
                                             {81, 233472}, {82, 65536}, {83, 0},      {95, 1},    {97, 232448},   {106, 32}};
    auto fixed = FIXED.find(attribute);
    if (fixed != FIXED.end()) *value = fixed->second;
    else if (attribute == 16) *value = (int)driver.options[OPTION_PROCESSORS];
    else if (attribute == 75) *value = capability / 10;
    else if (attribute == 76) *value = capability % 10;
    else if (attribute == 115) *value = (int)driver.options[OPTION_POOLS];
    else return refuse(INVALID_VALUE, "attribute %d is not known to the fake driver", attribute);
    return SUCCESS;
}

CUDA cuDeviceCanAccessPeer(int* can, int device, int peer) {
    Lock lock(driver.mutex);
    if (int error = check_device(device)) return error;
    *can = device != peer && driver.options[OPTION_PEERS];
    return check_device(peer);
}

// ---- contexts: each device has its primary one ----

CUDA cuDevicePrimaryCtxRetain(void** out, int device) {
    Lock lock(driver.mutex);
    if (int error = check_device(device)) return error;
    u64& handle = driver.primary[device];
    if (!handle) {
        handle = driver.handle();
        auto context = std::make_shared<Context>(Context{device});
        context->null_stream = std::make_shared<Stream>(Stream{context, true});
        context->streams.push_back(context->null_stream);
        driver.contexts.entries[handle] = context;
    }
    driver.contexts.entries[handle]->retained++;
    *out = (void*)(std::uintptr_t)handle;
    return SUCCESS;
}

CUDA cuDevicePrimaryCtxRelease_v2(int device) {
    Lock lock(driver.mutex);
    if (int error = check_device(device)) return error;
    auto primary = driver.primary.find(device);
    if (primary == driver.primary.end()) return refuse(INVALID_CONTEXT, "device %d has no context", device);
    std::shared_ptr<Context> context = driver.contexts.entries[primary->second];
    if (--context->retained > 0) return SUCCESS;
    driver.contexts.entries.erase(primary->second);
    driver.primary.erase(primary);
    end_context(context);
    context->null_stream = nullptr;
    return SUCCESS;
}

CUDA cuCtxGetCurrent(void** out) {
    Lock lock(driver.mutex);
    if (!driver.is_initialised) return refuse(NOT_INITIALIZED, "cuInit was not called");
    void* handle = (void*)(std::uintptr_t)current_handle;
    *out = driver.contexts.find(handle) ? handle : nullptr;
    return SUCCESS;
}

CUDA cuCtxSetCurrent(void* handle) {
    Lock lock(driver.mutex);
    if (!driver.is_initialised) return refuse(NOT_INITIALIZED, "cuInit was not called");
    if (handle && !driver.contexts.find(handle)) return refuse(INVALID_CONTEXT, "no such context");
    current_handle = (u64)(std::uintptr_t)handle;
    return SUCCESS;
}

CUDA cuCtxSetFlags(u32) {
    Lock lock(driver.mutex);
    std::shared_ptr<Context> context;
    return current(context);
}

CUDA cuCtxGetStreamPriorityRange(int* least, int* greatest) {
    *least = 0;
    *greatest = -5;
    return SUCCESS;
}

CUDA cuCtxEnablePeerAccess(void* handle, u32 flags) {
    Lock lock(driver.mutex);
    std::shared_ptr<Context> context;
    if (int error = current(context)) return error;
    std::shared_ptr<Context>* peer = driver.contexts.find(handle);
    if (!peer || *peer == context) return refuse(INVALID_CONTEXT, "no context of another device");
    if (flags) return refuse(INVALID_VALUE, "flags of peer access");
    if (!driver.options[OPTION_PEERS]) return refuse(PEER_ACCESS_UNSUPPORTED, "these devices cannot reach each other");
    u64 bit = 1ull << (*peer)->device;
    if (context->peers & bit) return refuse(PEER_ACCESS_ALREADY_ENABLED, "device %d is reachable already", (*peer)->device);
    context->peers |= bit;
    return SUCCESS;
}

CUDA cuCtxDisablePeerAccess(void* handle) {
    Lock lock(driver.mutex);
    std::shared_ptr<Context> context;
    if (int error = current(context)) return error;
    std::shared_ptr<Context>* peer = driver.contexts.find(handle);
    if (!peer) return refuse(INVALID_CONTEXT, "no such context");
    u64 bit = 1ull << (*peer)->device;
    if (!(context->peers & bit)) return refuse(PEER_ACCESS_NOT_ENABLED, "device %d was not reachable", (*peer)->device);
    context->peers &= ~bit;
    return SUCCESS;
}

// ---- errors ----

CUDA cuGetErrorName(int error, const char** name) {
    static const std::map<int, const char*> NAMES = {
        {SUCCESS, "CUDA_SUCCESS"},
        {INVALID_VALUE, "CUDA_ERROR_INVALID_VALUE"},
        {OUT_OF_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY"},
        {NOT_INITIALIZED, "CUDA_ERROR_NOT_INITIALIZED"},
        {NO_DEVICE, "CUDA_ERROR_NO_DEVICE"},
        {INVALID_DEVICE, "CUDA_ERROR_INVALID_DEVICE"},
        {INVALID_IMAGE, "CUDA_ERROR_INVALID_IMAGE"},
        {INVALID_CONTEXT, "CUDA_ERROR_INVALID_CONTEXT"},
        {NO_BINARY_FOR_GPU, "CUDA_ERROR_NO_BINARY_FOR_GPU"},
        {PEER_ACCESS_UNSUPPORTED, "CUDA_ERROR_PEER_ACCESS_UNSUPPORTED"},
        {INVALID_PTX, "CUDA_ERROR_INVALID_PTX"},
        {UNSUPPORTED_PTX_VERSION, "CUDA_ERROR_UNSUPPORTED_PTX_VERSION"},
        {INVALID_HANDLE, "CUDA_ERROR_INVALID_HANDLE"},
        {ILLEGAL_STATE, "CUDA_ERROR_ILLEGAL_STATE"},
        {NOT_FOUND, "CUDA_ERROR_NOT_FOUND"},
        {NOT_READY, "CUDA_ERROR_NOT_READY"},
        {ILLEGAL_ADDRESS, "CUDA_ERROR_ILLEGAL_ADDRESS"},
        {PEER_ACCESS_ALREADY_ENABLED, "CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED"},
        {PEER_ACCESS_NOT_ENABLED, "CUDA_ERROR_PEER_ACCESS_NOT_ENABLED"},
        {MISALIGNED_ADDRESS, "CUDA_ERROR_MISALIGNED_ADDRESS"},
        {LAUNCH_FAILED, "CUDA_ERROR_LAUNCH_FAILED"},
        {NOT_SUPPORTED, "CUDA_ERROR_NOT_SUPPORTED"},
        {CAPTURE_UNSUPPORTED, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED"},
        {CAPTURE_INVALIDATED, "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED"},
        {CAPTURE_MERGE, "CUDA_ERROR_STREAM_CAPTURE_MERGE"},
        {CAPTURE_UNMATCHED, "CUDA_ERROR_STREAM_CAPTURE_UNMATCHED"},
        {CAPTURE_UNJOINED, "CUDA_ERROR_STREAM_CAPTURE_UNJOINED"},
        {CAPTURE_ISOLATION, "CUDA_ERROR_STREAM_CAPTURE_ISOLATION"},
        {CAPTURED_EVENT, "CUDA_ERROR_CAPTURED_EVENT"},
        {CAPTURE_WRONG_THREAD, "CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD"},
    };
    auto found = NAMES.find(error);
    *name = found == NAMES.end() ? nullptr : found->second;
    return found == NAMES.end() ? INVALID_VALUE : SUCCESS;
}

// The texts of a driver are its own; here the name stands for both. `fake_error_text` says what really happened.
CUDA cuGetErrorString(int error, const char** text) { return cuGetErrorName(error, text); }
