// The fake driver: modules and launches.
//
// A kernel must be in the module and in the simulator's table, with the same arguments and block size: a module that is older than its source is
// found. PTX text is taken, and fatbins with machine code; a block has exactly the size that its kernel is written for.
#include "driver.h"
#include <cstdio>
#include <cstdlib>

namespace fake {

namespace {

// What the text says of a kernel; false when it has no such entry.
bool declared_in(const std::string& text, const std::string& name, Declared& declared) {
    std::string head = ".visible .entry " + name + "(";
    u64 at = text.find(head);
    if (at == std::string::npos) return false;
    u64 close = text.find(')', at), body = text.find('{', at);
    if (close == std::string::npos || body == std::string::npos) return false;
    for (u64 parameter = text.find(".param .", at); parameter < close; parameter = text.find(".param .", parameter + 1)) {
        u64 digits = parameter + std::strlen(".param .") + 1; // behind the letter of the type
        declared.sizes.push_back((u32)std::strtoul(text.c_str() + digits, nullptr, 10) / 8);
    }
    u64 limit = text.find(".maxntid ", close);
    declared.threads = limit < body ? (u32)std::strtoul(text.c_str() + limit + std::strlen(".maxntid "), nullptr, 10) : 0;
    return true;
}

bool declared_in(const Module& module, const std::string& name, Declared& declared) {
    auto found = module.machine_code.find(name);
    if (found == module.machine_code.end()) return declared_in(module.text, name, declared);
    declared = found->second;
    return true;
}

int check_module(const std::string& text, u64 device) {
    u64 version = text.find(".version "), target = text.find(".target sm_");
    if (version == std::string::npos || target == std::string::npos) return refuse(INVALID_PTX, "a module without .version or .target");
    int major = 0, minor = 0;
    if (std::sscanf(text.c_str() + version, ".version %d.%d", &major, &minor) != 2) return refuse(INVALID_PTX, "a module without a version");
    if (major > 8 || (major == 8 && minor > 7)) return refuse(UNSUPPORTED_PTX_VERSION, "PTX %d.%d, newer than this driver", major, minor);
    u64 capability = std::strtoull(text.c_str() + target + std::strlen(".target sm_"), nullptr, 10);
    if (capability > device) return refuse(NO_BINARY_FOR_GPU, "PTX for sm_%llu, newer than this device", capability);
    return SUCCESS;
}

int function_of(void* handle, std::shared_ptr<Function>& function) {
    std::shared_ptr<Function>* found = driver.functions.find(handle);
    if (!found) return refuse(INVALID_HANDLE, "no such function");
    function = *found;
    return SUCCESS;
}

int error_of(const std::string& text) {
    u64 message = text.find(": ") + 2;
    auto begins = [&](const char* word) { return text.compare(message, std::strlen(word), word) == 0; };
    if (begins("misaligned")) return MISALIGNED_ADDRESS;
    bool is_address = begins("out of bounds") || begins("an argument") || text.find("null pointer") != std::string::npos;
    return is_address ? ILLEGAL_ADDRESS : LAUNCH_FAILED;
}

struct Arguments {
    std::vector<u64> values; // each as long as the largest argument
    std::vector<void*> pointers() {
        std::vector<void*> list;
        for (u64& value : values) list.push_back(&value);
        return list;
    }
};

int run_kernel(const sim::Entry& entry, sim::Dim3 grid, Arguments& arguments, const Context& context) {
    driver.counts.launches++;
    driver.kernels_run.insert(entry.name);
    if (int error = struck(POINT_RUN)) return error;
    std::string text;
    std::vector<void*> pointers = arguments.pointers();
    u64 seed = driver.options[OPTION_ORDER] == SEEDED ? random_number() | 1 : 0;
    u64 reachable = context.peers | 1ull << context.device;
    if (sim::run(entry, grid, pointers.data(), seed, reachable, text)) return SUCCESS;
    return refuse(error_of(text), "%s", text.c_str());
}

} // namespace

} // namespace fake

using namespace fake;

CUDA cuModuleLoadData(void** out, const char* image) {
    Lock lock(driver.mutex);
    std::shared_ptr<Context> context;
    if (int error = current(context)) return error;
    if (int error = forbid("cuModuleLoadData")) return error;
    if (int error = struck(POINT_MODULE)) return error;
    auto module = std::make_shared<Module>(Module{context, "", {}});
    u64 device = capability_of(context->device);
    if (is_fatbin(image)) {
        if (int error = open_fatbin(image, device, module->machine_code)) return error;
    } else if (!std::memcmp(image, "\x7f" "ELF", 4)) {
        return refuse(NO_BINARY_FOR_GPU, "machine code without a fatbin; the fake driver takes text and fatbins");
    } else {
        module->text = image;
        if (int error = check_module(module->text, device)) return error;
    }
    u64 handle = driver.handle();
    driver.modules.entries[handle] = module;
    *out = (void*)(std::uintptr_t)handle;
    return SUCCESS;
}

CUDA cuModuleUnload(void* handle) {
    Lock lock(driver.mutex);
    std::shared_ptr<Module>* found = driver.modules.find(handle);
    if (!found) return refuse(INVALID_HANDLE, "no such module");
    std::shared_ptr<Module> module = *found;
    for (auto function = driver.functions.entries.begin(); function != driver.functions.entries.end();)
        function = function->second->module == module ? driver.functions.entries.erase(function) : std::next(function);
    driver.modules.entries.erase((u64)(std::uintptr_t)handle);
    return module->context->error;
}

CUDA cuModuleGetFunction(void** out, void* handle, const char* name) {
    Lock lock(driver.mutex);
    std::shared_ptr<Module>* module = driver.modules.find(handle);
    if (!module) return refuse(INVALID_HANDLE, "no such module");
    if (int error = (*module)->context->error) return error;
    Declared declared;
    if (!declared_in(**module, name, declared)) return refuse(NOT_FOUND, "the module has no kernel %s", name);
    const sim::Entry* entry = sim::kernel(name);
    if (!entry) return refuse(NOT_FOUND, "the simulator has no kernel %s", name);
    if (declared.sizes != std::vector<u32>(entry->sizes, entry->sizes + entry->arguments) || declared.threads != entry->threads)
        return refuse(INVALID_PTX, "%s in the module has other arguments, or another block size, than its source", name);
    u64 function = driver.handle();
    driver.functions.entries[function] = std::make_shared<Function>(Function{*module, entry});
    *out = (void*)(std::uintptr_t)function;
    return SUCCESS;
}

CUDA cuModuleGetGlobal_v2(u64*, u64*, void*, const char* name) {
    Lock lock(driver.mutex);
    return refuse(NOT_FOUND, "kernels have no global variables, so not %s", name);
}

CUDA cuFuncGetAttribute(int* value, int attribute, void* handle) {
    Lock lock(driver.mutex);
    std::shared_ptr<Function> function;
    if (int error = function_of(handle, function)) return error;
    switch (attribute) {
    case 0: *value = (int)function->entry->threads; return SUCCESS;
    case 8: *value = (int)function->dynamic_shared_limit; return SUCCESS;
    default: return refuse(INVALID_VALUE, "attribute %d of a function is not known to the fake driver", attribute);
    }
}

CUDA cuFuncSetAttribute(void* handle, int attribute, int value) {
    Lock lock(driver.mutex);
    std::shared_ptr<Function> function;
    if (int error = function_of(handle, function)) return error;
    if (attribute != 8 || value < 0 || value > 232448) return refuse(INVALID_VALUE, "attribute %d of a function cannot be %d", attribute, value);
    function->dynamic_shared_limit = (u32)value;
    return SUCCESS;
}

CUDA cuFuncGetParamInfo(void* handle, u64 index, u64* offset, u64* size) {
    Lock lock(driver.mutex);
    std::shared_ptr<Function> function;
    if (int error = function_of(handle, function)) return error;
    const sim::Entry& entry = *function->entry;
    if (index >= entry.arguments) return refuse(INVALID_VALUE, "%s has %u arguments", entry.name, entry.arguments);
    u64 at = 0;
    for (u64 i = 0; i <= index; i++) {
        at = (at + entry.sizes[i] - 1) / entry.sizes[i] * entry.sizes[i];
        if (i < index) at += entry.sizes[i];
    }
    *offset = at;
    if (size) *size = entry.sizes[index];
    return SUCCESS;
}

CUDA cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int* blocks, void* handle, int block_size, u64, u32) {
    Lock lock(driver.mutex);
    std::shared_ptr<Function> function;
    if (int error = function_of(handle, function)) return error;
    if (block_size <= 0) return refuse(INVALID_VALUE, "a block of %d threads", block_size);
    *blocks = 2048 / block_size;
    return SUCCESS;
}

CUDA cuLaunchKernel(void* handle, u32 grid_x, u32 grid_y, u32 grid_z, u32 block_x, u32 block_y, u32 block_z, u32 shared, void* stream_handle,
                    void** parameters, void** extra) {
    Lock lock(driver.mutex);
    std::shared_ptr<Function> function;
    if (int error = function_of(handle, function)) return error;
    std::shared_ptr<Stream> stream;
    if (int error = own_stream_of(stream_handle, stream)) return error;
    const sim::Entry* entry = function->entry;
    if (function->module->context != stream->context) return refuse(INVALID_HANDLE, "%s: function and stream are of two contexts", entry->name);
    if (grid_x == 0 || grid_y == 0 || grid_z == 0 || grid_x > 0x7fffffff || grid_y > 65535 || grid_z > 65535)
        return refuse(INVALID_VALUE, "%s: a grid of %u x %u x %u blocks", entry->name, grid_x, grid_y, grid_z);
    if (block_x != entry->threads || block_y != 1 || block_z != 1)
        return refuse(INVALID_VALUE, "%s: a block of %u x %u x %u threads, written for %u", entry->name, block_x, block_y, block_z, entry->threads);
    if (shared > function->dynamic_shared_limit) return refuse(INVALID_VALUE, "%s: %u bytes of shared memory", entry->name, shared);
    if (extra || (!parameters && entry->arguments > 0)) return refuse(INVALID_VALUE, "%s: no parameters", entry->name);
    driver.counts.launch_calls++;
    if (int error = struck(POINT_LAUNCH)) return error;
    Arguments arguments;
    for (u32 i = 0; i < entry->arguments; i++) {
        u64 value = 0;
        if (entry->sizes[i] > sizeof value) return refuse(NOT_SUPPORTED, "%s: argument %u is a structure", entry->name, i);
        std::memcpy(&value, parameters[i], entry->sizes[i]);
        arguments.values.push_back(value);
    }
    Item item;
    std::weak_ptr<Context> context = stream->context;
    item.work = [entry, grid = sim::Dim3{grid_x, grid_y, grid_z}, arguments, context]() mutable {
        return run_kernel(*entry, grid, arguments, *context.lock());
    };
    return submit(stream, item);
}
