// What the fake driver is made of: contexts, streams, events, graphs, and the one state that all of it hangs on.
//
// driver.cpp answers for devices, contexts and errors, memory.cpp for memory and copies, modules.cpp for modules and launches, fatbin.cpp for machine code, streams.cpp for the order
// in which work runs, events, capture and graphs, controls.cpp for what tests ask beside the driver's interface.
//
// # Invariants
// - One lock, held by every call from its first line to its last, except while a host function runs.
// - A handle is a number that is never used again; each kind has a table, so a stale handle is found and answered, not followed.
// - Work refers to memory by address. It is checked at the call and again when the work runs: memory may have died between.
// - An error of running work belongs to its context: from then on every call of that context answers it, as a device does that is lost.
#pragma once
#include "simulator.h"
#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

namespace fake {

// The driver's error numbers, as far as they are answered here.
enum Error : int {
    SUCCESS = 0,
    INVALID_VALUE = 1,
    OUT_OF_MEMORY = 2,
    NOT_INITIALIZED = 3,
    NO_DEVICE = 100,
    INVALID_DEVICE = 101,
    INVALID_IMAGE = 200,
    INVALID_CONTEXT = 201,
    NO_BINARY_FOR_GPU = 209,
    PEER_ACCESS_UNSUPPORTED = 217,
    INVALID_PTX = 218,
    UNSUPPORTED_PTX_VERSION = 222,
    INVALID_HANDLE = 400,
    ILLEGAL_STATE = 401,
    NOT_FOUND = 500,
    NOT_READY = 600,
    ILLEGAL_ADDRESS = 700,
    PEER_ACCESS_ALREADY_ENABLED = 704,
    PEER_ACCESS_NOT_ENABLED = 705,
    MISALIGNED_ADDRESS = 716,
    LAUNCH_FAILED = 719,
    NOT_SUPPORTED = 801,
    CAPTURE_UNSUPPORTED = 900,
    CAPTURE_INVALIDATED = 901,
    CAPTURE_MERGE = 902,
    CAPTURE_UNMATCHED = 903,
    CAPTURE_UNJOINED = 904,
    CAPTURE_ISOLATION = 905,
    CAPTURED_EVENT = 907,
    CAPTURE_WRONG_THREAD = 908,
};

struct Stream;
struct Capture;

struct Context {
    int device;
    u32 retained = 0;
    int error = SUCCESS;    // of work that ran; stays
    u64 peers = 0;          // a mask of devices whose memory its kernels may touch
    std::shared_ptr<Stream> null_stream = nullptr;
    std::vector<std::weak_ptr<Stream>> streams = {}; // destroyed ones too, as long as they have work
};

// One recording of an event: work before it in its stream is done when it is.
struct Moment {
    std::weak_ptr<Stream> stream;
    bool done = false;
    std::chrono::steady_clock::time_point time;
    std::shared_ptr<Capture> capture; // set when it was recorded in a stream that was captured
    u32 branch = 0;                   // in the capture
};

struct Event {
    std::shared_ptr<Context> context;
    bool has_timing;
    std::shared_ptr<Moment> latest; // null: never recorded, which counts as done
};

// A piece of work of a stream: a wait for a moment, a moment to mark, or something to do.
struct Item {
    std::shared_ptr<Moment> needs, marks;
    std::function<int()> work;    // answers an error number, which its context keeps
    bool always = false;          // bookkeeping that happens in a lost context too
    bool is_host_function = false; // runs without the lock
};

// What a captured stream was given, in the order of the calls; several streams, of whichever devices, are the branches of one capture. It is the graph too.
struct Capture {
    struct Node {
        u32 branch;
        Item item;
    };
    int mode;
    std::thread::id thread;
    std::weak_ptr<Stream> origin; // branch 0
    std::vector<std::weak_ptr<Stream>> branches;
    std::vector<std::weak_ptr<Context>> contexts; // of the branches
    bool is_open = true, is_invalid = false;
    std::vector<Node> nodes;
};

struct Stream {
    std::shared_ptr<Context> context;
    bool is_null, is_destroyed = false, is_busy = false; // busy: a host function of it runs
    std::deque<Item> queue = {};
    std::shared_ptr<Capture> capture = nullptr;
    u32 branch = 0;
};

// What a module says of a kernel: bytes of its arguments, and threads of a block.
struct Declared {
    std::vector<u32> sizes;
    u32 threads = 0;
};
struct Module {
    std::shared_ptr<Context> context;
    std::string text;                             // PTX, or nothing
    std::map<std::string, Declared> machine_code; // by kernel, or nothing
};
struct Function {
    std::shared_ptr<Module> module;
    const sim::Entry* entry;
    u32 dynamic_shared_limit = 48 * 1024;
};

struct Allocation {
    u64 bytes;
    int device;
    std::weak_ptr<Context> context;
    bool is_freed = false; // by a call whose work has not run
};
struct HostAllocation {
    u64 bytes, number; // the number tells it from a later one at the same address
};

template <class T> struct Table {
    std::map<u64, T> entries;
    T* find(const void* handle) {
        auto found = entries.find((u64)(std::uintptr_t)handle);
        return found == entries.end() ? nullptr : &found->second;
    }
};

// In which order streams run.
enum Order : u64 { LAZY = 0, EAGER = 1, SEEDED = 2 };
// What tests may set; the same numbers as in tests/common/fake_driver.rs.
enum Option : u32 { OPTION_ORDER, OPTION_SEED, OPTION_STRICT, OPTION_DEVICES, OPTION_MEMORY, OPTION_CAPABILITY, OPTION_POOLS, OPTION_PROCESSORS, OPTION_PEERS, OPTION_LAST_CAPABILITY, OPTIONS };
// Where tests may inject an error.
enum Point : u32 { POINT_INIT, POINT_ALLOC, POINT_HOST_ALLOC, POINT_MODULE, POINT_LAUNCH, POINT_RUN, POINT_COPY, POINT_SYNC, POINT_CAPTURE, POINTS };

// The same fields as in tests/common/fake_driver.rs.
struct Statistics {
    u64 launches, launch_calls, graph_launches, copies, synchronisations, allocations;
    u64 unwritten_reads; // copies to the host of bytes that nobody wrote
    u64 leaked;          // allocations that were live when their context ended
    u64 copies_to_device, copies_to_host; // of the copies, those that the host has an end of
    u64 bytes_to_device, bytes_to_host;   // of those
    u64 live_allocations, live_bytes, live_host_allocations, live_streams, live_events, live_modules, live_graphs, live_contexts;
};

struct Injection {
    u64 left = 0; // calls until it strikes; 0: never
    int error;
};

struct Driver {
    std::mutex mutex;
    std::condition_variable_any no_longer_busy;
    bool is_initialised = false;
    u64 options[OPTIONS];
    u64 random, next_handle = 0x1000, next_number = 1;
    Injection injections[POINTS];
    Statistics counts; // the live ones are counted when they are asked for
    std::string error_text;
    std::set<std::string> kernels_run; // their names
    Table<std::shared_ptr<Context>> contexts;
    Table<std::shared_ptr<Stream>> streams;
    Table<std::shared_ptr<Event>> events;
    Table<std::shared_ptr<Module>> modules;
    Table<std::shared_ptr<Function>> functions;
    Table<std::shared_ptr<Capture>> graphs, executables;
    std::map<int, u64> primary; // context by device
    std::map<u64, Allocation> allocations;
    std::map<u64, HostAllocation> host_allocations;

    u64 handle() { return next_handle += 16; }
};
extern Driver& driver;
using Lock = std::lock_guard<std::mutex>;

// ---- driver.cpp ----

// Keeps a text for sim's caller and answers the number.
int refuse(int error, const char* format, ...) __attribute__((format(printf, 2, 3)));
// Compute capability of a device, such as 90.
u64 capability_of(int device);
// The injected error of this call, or SUCCESS.
int struck(Point point);
// The context of this thread, when there is one and it is not lost; else an error.
int current(std::shared_ptr<Context>& context);
void end_context(std::shared_ptr<Context> context);

// ---- memory.cpp ----

// Bytes of a device that are taken.
u64 used(int device);
void release_memory(u64 address);

// ---- fatbin.cpp ----

bool is_fatbin(const char* image);
// The kernels of the machine code that suits a device of this capability.
int open_fatbin(const char* image, u64 device, std::map<std::string, Declared>& kernels);

// ---- streams.cpp ----

// The stream of a handle; null is the one of this thread's context. With an error of a lost context the stream is there too.
int stream_of(void* handle, std::shared_ptr<Stream>& stream);
// For calls whose stream must be of this thread's context.
int own_stream_of(void* handle, std::shared_ptr<Stream>& stream);
// Gives work to a stream, or to the capture that it is in.
int submit(const std::shared_ptr<Stream>& stream, Item item, bool can_be_captured = true);
// Runs everything that a stream, or every stream of a context, was given.
void drain(Stream& stream);
void drain(Context& context);
// Makes the capture of a stream void, and answers the error of a call that none allows.
int invalidate(Capture& capture, const char* what);
// The error when this thread may not make such a call because of a capture.
int forbid(const char* what);
u64 random_number();

} // namespace fake

#define CUDA SIM_API int
