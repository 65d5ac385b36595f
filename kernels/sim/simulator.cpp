// The simulator behind device.h: fibers, the scheduler of a block, warp meetings, barriers, memory and its shadow; and the functions of simulator.h
// by which a test, or the driver in this folder, allocates, copies and launches.
//
// # Clock
// A number that grows by one at every start of a launch or block and at every barrier or sync_warp that opens. An access is stamped with it.
// Another thread's access is ordered before mine exactly if its stamp is below the clock at which
//   my launch began (any thread), my block's last barrier opened (a thread of my block), my warp's last sync_warp opened (of my warp).
//
// # Limits
// One launch at a time, on one thread. What it cannot show: speed, registers, bank conflicts, wrong PTX behind a wrapper of common.cuh.
#include "simulator.h"
#include "sanitizer.h"
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <dlfcn.h>
#include <map>
#include <sys/mman.h>
#include <vector>
#ifndef __x86_64__
#include <ucontext.h>
#endif

namespace sim {

Thread* current;
Dim3 block_index, block_size, grid_size;
Entry* entries;

namespace {

constexpr u64 STACK_BYTES = 128 * 1024;
constexpr u64 SHARED_BYTES = 48 * 1024;
constexpr u64 GRAVEYARD_BYTES = IS_SANITIZED ? 0 : 64 << 20;
constexpr u32 WARP_LANES = 32;
constexpr u32 CANARY = 0x5afe57ac;

struct Warp {
    const char *what, *file;
    int line;
    u32 arrived, living, parity, sync_clock;
    Words in[2], out[2];
    sanitizer::Place syncs[2]; // by parity
};

// A copy that a thread started; it runs when the thread waits for its group.
struct Copy {
    Home *to_home, *from_home;
    u8* to;
    const u8* from;
    u32 bytes, group;
};
struct Copies {
    std::deque<Copy> pending;
    u32 groups; // committed
};

struct Launch {
    const Entry* entry;
    void** arguments;
    u32 number, clock_start, block_clock, barrier_clock;
    u32 living, waiting;
    const char* barrier_file;
    int barrier_line;
    u64 random, reachable;
    bool is_fuzzed, failed;
    std::string error;
};

const void* access_place; // where the newest access was compiled to
u32 launches, clock_now = 1, next_thread = WARP_LANES;
Launch launch;
std::vector<Thread> threads;
std::vector<Warp> warps;
std::vector<Copies> copies; // by thread of the block
std::vector<u32> ready;
std::map<const void*, Home> shared_arrays;
u64 shared_used;
std::map<u64, Home> memory; // by the address behind its last byte
std::vector<u8*> stacks;
// Freed memory, overwritten with 0xdd, whose addresses are not given out for a while: who still uses one is told.
std::deque<std::pair<u8*, u64>> graveyard;
u64 buried;
// Of barriers in turn: nobody comes to the next but one before all have left this one. Of launches too.
sanitizer::Place barriers[2], ends_of_launches[2];
u32 barriers_opened;

u64 random_number() {
    u64 z = launch.random += 0x9E3779B97F4A7C15ull;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
    return z ^ (z >> 31);
}

// ---- fibers: the scheduler and the threads hand the processor to each other ----

#ifdef __x86_64__
void* scheduler_stack;
extern "C" void sim_switch(void** save, void* to);
// Callee-saved registers on the old stack, the stack exchanged, the same registers from the new one.
asm(R"(
.text
.type sim_switch, @function
sim_switch:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    ret
.size sim_switch, . - sim_switch
)");
void prepare(Thread& thread, void (*body)()) {
    u64* top = (u64*)(thread.stack + STACK_BYTES) - 2;
    *--top = 0; // what the body would return to; keeps the stack aligned as a call does
    *--top = (u64)(std::uintptr_t)body;
    for (int i = 0; i < 6; i++) *--top = 0;
    thread.stack_pointer = top;
}
void switch_to_thread(Thread& thread) { sim_switch(&scheduler_stack, thread.stack_pointer); }
void switch_to_scheduler() { sim_switch(&current->stack_pointer, scheduler_stack); }
#else
ucontext_t scheduler_context;
std::map<Thread*, ucontext_t> contexts;
void prepare(Thread& thread, void (*body)()) {
    ucontext_t& context = contexts[&thread];
    getcontext(&context);
    context.uc_stack.ss_sp = thread.stack;
    context.uc_stack.ss_size = STACK_BYTES;
    context.uc_link = nullptr;
    makecontext(&context, body, 0);
}
void switch_to_thread(Thread& thread) { swapcontext(&scheduler_context, &contexts[&thread]); }
void switch_to_scheduler() { swapcontext(&contexts[current], &scheduler_context); }
#endif

void to_thread(Thread& thread) {
    sanitizer::leave_scheduler((u32)(&thread - threads.data()), thread.stack, STACK_BYTES);
    switch_to_thread(thread);
    sanitizer::back_in_scheduler();
}
void to_scheduler() {
    void* frames = sanitizer::leave_thread(current->ended);
    switch_to_scheduler();
    sanitizer::back_in_thread(frames);
}

u8* stack(u32 index) {
    while (stacks.size() <= index) {
        void* fresh = mmap(nullptr, STACK_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        stacks.push_back(fresh == MAP_FAILED ? nullptr : (u8*)fresh);
    }
    return stacks[index];
}

// ---- barriers ----

void open_barrier() {
    launch.waiting = 0;
    launch.barrier_clock = ++clock_now;
    barriers_opened++;
    for (u32 i = 0; i < threads.size(); i++)
        if (!threads[i].ended) ready.push_back(i);
}

void end_thread() {
    sanitizer::Unseen unseen;
    Warp& warp = warps[current->warp];
    u64 unfinished = copies[current - threads.data()].pending.size();
    if (unfinished > 0) fail("a thread ended before %llu of its copies, which nobody waited for", unfinished);
    if (warp.arrived > 0) fail("a lane ended while others of its warp wait in %s at %s:%d", warp.what, warp.file, warp.line);
    warp.living--;
    launch.living--;
    current->ended = true;
    if (launch.living > 0 && launch.waiting == launch.living) open_barrier();
}

void thread_body() {
    sanitizer::first_in_thread();
    ends_of_launches[launch.number % 2].take_up();
    launch.entry->call(launch.arguments);
    ends_of_launches[(launch.number + 1) % 2].lay_down();
    barriers[barriers_opened % 2].lay_down(); // whoever ends is waited for no more
    end_thread();
    for (;;) to_scheduler();
}

void start_thread(Thread& thread) {
    sanitizer::begin_stack((u32)(&thread - threads.data()), thread.stack, STACK_BYTES);
    prepare(thread, thread_body);
    thread.started = true;
}

u32 take_ready() {
    u64 index = launch.is_fuzzed ? random_number() % ready.size() : 0;
    u32 thread = ready[index];
    // A fuzzed order keeps running one warp most of the time: then one warp is far ahead of another, as on a device.
    if (launch.is_fuzzed && current && random_number() % 4) {
        for (u64 i = 0; i < ready.size(); i++) {
            if (threads[ready[i]].warp == current->warp) {
                index = i;
                thread = ready[i];
                break;
            }
        }
    }
    ready.erase(ready.begin() + (long)index);
    return thread;
}

void run_block(u32 block) {
    block_index = {block % grid_size.x, block / grid_size.x % grid_size.y, block / grid_size.x / grid_size.y};
    u32 count = block_size.x * block_size.y * block_size.z;
    threads.assign(count, Thread{});
    warps.assign(count / WARP_LANES, Warp{});
    copies.assign(count, Copies{});
    launch.block_clock = launch.barrier_clock = ++clock_now;
    launch.living = count;
    launch.waiting = 0;
    ready.clear();
    current = nullptr;
    for (auto& [site, home] : shared_arrays) {
        ::operator delete[](home.base - (std::uintptr_t)home.base % 16, std::align_val_t(16));
        std::free(home.shadow);
    }
    shared_arrays.clear();
    shared_used = 0;
    for (u32 i = 0; i < count; i++) {
        Thread& thread = threads[i];
        thread.stack = stack(i);
        if (!thread.stack) {
            launch.failed = true;
            launch.error = "no memory for stacks";
            return;
        }
        std::memcpy(thread.stack, &CANARY, sizeof CANARY);
        thread.index = {i % block_size.x, i / block_size.x % block_size.y, i / block_size.x / block_size.y};
        thread.id = next_thread + i;
        thread.lane = i % WARP_LANES;
        thread.warp = i / WARP_LANES;
        warps[thread.warp].living++;
        warps[thread.warp].sync_clock = clock_now;
        ready.push_back(i);
    }
    next_thread += count;
    while (launch.living > 0 && !launch.failed) {
        if (ready.empty()) {
            launch.failed = true;
            launch.error = "deadlock: " + std::to_string(launch.waiting) + " threads wait at a barrier";
            for (Warp& warp : warps)
                if (warp.arrived > 0)
                    launch.error += ", " + std::to_string(warp.arrived) + " lanes in " + warp.what + " at " + warp.file + ":" + std::to_string(warp.line);
            return;
        }
        Thread& thread = threads[take_ready()];
        current = &thread;
        if (!thread.started) start_thread(thread);
        to_thread(thread);
        u32 canary;
        std::memcpy(&canary, thread.stack, sizeof canary);
        if (canary != CANARY && !launch.failed) {
            launch.failed = true;
            launch.error = "a thread's stack overflowed";
        }
    }
}

// ---- shadow ----

u64 elements(const Home& home) { return (home.bytes + home.granule - 1) / home.granule; }

// Of memory that nobody has touched: zeros, which cost nothing until they are.
Shadow* fresh_shadow(u64 count) {
    static_assert(std::is_trivially_copyable_v<Shadow>);
    return (Shadow*)std::calloc(count, sizeof(Shadow));
}

// Makes the elements of the shadow so small that these bytes are whole ones. Each piece of an old element has its history: whatever was noted so
// far covered it wholly. The last element may be cut short by the end.
void split(Home& home, u64 offset, u64 bytes) {
    u32 granule = home.granule;
    u64 end = offset + bytes;
    while (granule > 1 && (offset % granule || (end % granule && end != home.bytes))) granule /= 2;
    if (granule == home.granule) return;
    u32 pieces = home.granule / granule;
    home.granule = granule;
    Shadow *old = home.shadow, *shadow = fresh_shadow(elements(home));
    for (u64 i = 0; i < elements(home); i++) shadow[i] = old[i / pieces];
    home.shadow = shadow;
    std::free(old);
}

const char* describe(const Home* home) { return home->name ? home->name : "device memory"; }

void check_range(const Home* home, const u8* at, u32 bytes, const char* what) {
    if (!home) fail("%s through a null pointer", what);
    u64 offset = (u64)(at - home->base);
    if (at < home->base || offset + bytes > home->bytes)
        fail("out of bounds: %s of %u bytes at offset %lld of %s, which has %llu bytes", what, bytes, (long long)offset, describe(home), home->bytes);
    if ((std::uintptr_t)at % bytes) fail("misaligned: %s of %u bytes at offset %llu of %s", what, bytes, offset, describe(home));
}

bool is_ordered(u32 other, u32 stamp) {
    if (other == current->id || stamp < launch.clock_start) return true;
    if (stamp < launch.block_clock) return false; // another block of this launch
    if (stamp < launch.barrier_clock) return true;
    return other / WARP_LANES == current->id / WARP_LANES && stamp < warps[current->warp].sync_clock;
}

bool reads_are_ordered(const Shadow& shadow) {
    if (shadow.readers == 0) return true;
    if (shadow.shared_launch == launch.number) return false;
    if (shadow.readers == 1) return is_ordered(shadow.reader, shadow.read);
    if (shadow.read < launch.clock_start) return true;
    if (shadow.read < launch.block_clock) return false;
    if (shadow.read < launch.barrier_clock) return true;
    bool same_warp = shadow.readers == 2 && shadow.reader / WARP_LANES == current->id / WARP_LANES;
    return same_warp && shadow.read < warps[current->warp].sync_clock;
}

void remember_reader(Shadow& shadow) {
    bool is_recent = shadow.readers && shadow.read >= launch.barrier_clock;
    if (shadow.readers && shadow.read >= launch.clock_start && shadow.read < launch.block_clock) shadow.shared_launch = launch.number;
    if (!is_recent) {
        shadow.readers = 1;
    } else if (shadow.reader != current->id) {
        bool same_warp = shadow.readers < 3 && shadow.reader / WARP_LANES == current->id / WARP_LANES;
        shadow.readers = same_warp ? 2 : 3;
    }
    shadow.reader = current->id;
    shadow.read = clock_now;
}

} // namespace

void fail(const char* format, ...) {
    char text[512];
    va_list list;
    va_start(list, format);
    vsnprintf(text, sizeof text, format, list);
    va_end(list);
    char place[256];
    Dim3 t = current->index, b = block_index;
    snprintf(place, sizeof place, " [block %u,%u,%u thread %u,%u,%u]", b.x, b.y, b.z, t.x, t.y, t.z);
    launch.error = std::string(text) + place;
    Dl_info info;
    if (access_place && dladdr(access_place, &info)) {
        snprintf(place, sizeof place, " [code +0x%llx]", (u64)((const u8*)access_place - (const u8*)info.dli_fbase) - 1);
        launch.error += place;
    }
    launch.failed = true;
    for (;;) to_scheduler(); // never resumed
}

static void check_read(Home* home, const u8* at, u32 bytes) {
    if (IS_SANITIZED) return;
    check_range(home, at, bytes, "read");
    u64 offset = (u64)(at - home->base);
    if ((offset | bytes) & (home->granule - 1)) split(*home, offset, bytes);
    u64 first = offset / home->granule, last = (offset + bytes - 1) / home->granule;
    for (u64 i = first; i <= last; i++) {
        Shadow& shadow = home->shadow[i];
        if (!shadow.initialised) fail("uninitialised: read of element %llu of %s, which nobody wrote", i, describe(home));
        if (shadow.writer && !is_ordered(shadow.writer, shadow.written))
            fail("race: read of element %llu of %s, which another thread wrote without a barrier between", i, describe(home));
        remember_reader(shadow);
    }
}

static void check_write(Home* home, const u8* at, u32 bytes) {
    if (IS_SANITIZED) return;
    check_range(home, at, bytes, "write");
    u64 offset = (u64)(at - home->base);
    if ((offset | bytes) & (home->granule - 1)) split(*home, offset, bytes);
    u64 first = offset / home->granule, last = (offset + bytes - 1) / home->granule;
    for (u64 i = first; i <= last; i++) {
        Shadow& shadow = home->shadow[i];
        if (shadow.writer && !is_ordered(shadow.writer, shadow.written))
            fail("race: write of element %llu of %s, which another thread wrote without a barrier between", i, describe(home));
        if (!reads_are_ordered(shadow))
            fail("race: write of element %llu of %s, which another thread read without a barrier between", i, describe(home));
        shadow.writer = current->id;
        shadow.written = clock_now;
        shadow.readers = 0;
        shadow.initialised = 1;
    }
}

void note_read(Home* home, const u8* at, u32 bytes) {
    access_place = __builtin_return_address(0);
    check_read(home, at, bytes);
}

void note_write(Home* home, const u8* at, u32 bytes) {
    access_place = __builtin_return_address(0);
    check_write(home, at, bytes);
}

// The bytes that a copy reads, in pieces as large as alignment allows.
static void check_source(Home* home, const u8* from, u32 bytes) {
    if (bytes == 0) return;
    for (u32 done = 0, piece = 16; done < bytes; piece /= 2)
        for (; done + piece <= bytes; done += piece) check_read(home, from + done, piece);
}

// From here until it ran, the place counts as written by this thread, and as unwritten for whoever reads it.
void copy_begin(Home* to_home, u8* to, Home* from_home, const u8* from, u32 bytes) {
    sanitizer::kernel_reads(from, bytes);
    sanitizer::kernel_writes(to, 16);
    sanitizer::Unseen unseen;
    access_place = __builtin_return_address(0);
    if (bytes > 16) fail("copy_async of %u bytes, more than 16", bytes);
    if (to_home && !to_home->name) fail("copy_async to device memory");
    if (from_home && from_home->name) fail("copy_async from a shared array");
    if ((std::uintptr_t)from % 16) fail("misaligned: copy_async from an address that is no multiple of 16");
    check_source(from_home, from, bytes);
    check_write(to_home, to, 16);
    u64 offset = (u64)(to - to_home->base);
    for (u64 i = offset / to_home->granule; !IS_SANITIZED && i * to_home->granule < offset + 16; i++) to_home->shadow[i].initialised = 0;
    std::memset(to, 0xff, 16);
    Copies& own = copies[current - threads.data()];
    own.pending.push_back({to_home, from_home, to, from, bytes, own.groups});
}

void copy_commit() { copies[current - threads.data()].groups++; }

void copy_wait(u32 groups) {
    access_place = __builtin_return_address(0);
    Copies& own = copies[current - threads.data()];
    while (!own.pending.empty() && own.pending.front().group + groups < own.groups) {
        Copy copy = own.pending.front();
        own.pending.pop_front();
        sanitizer::kernel_reads(copy.from, copy.bytes);
        sanitizer::kernel_writes(copy.to, 16);
        sanitizer::Unseen unseen;
        check_source(copy.from_home, copy.from, copy.bytes);
        check_write(copy.to_home, copy.to, 16);
        std::memset(copy.to, 0, 16);
        std::memcpy(copy.to, copy.from, copy.bytes);
    }
}

Home* find(u64 address) {
    auto found = memory.upper_bound(address);
    return found == memory.end() || address < (u64)(std::uintptr_t)found->second.base ? nullptr : &found->second;
}

Home* home_of(u64 address) {
    Home* home = find(address);
    if (!home) fail("an argument points to no live allocation");
    if (home->pending) fail("an argument points to an allocation that its stream has not made yet");
    if (!(launch.reachable >> home->owner & 1)) fail("an argument points to memory of device %u, which is out of reach", home->owner);
    return home;
}

// An array is no better aligned than its declaration says, as on a device, which may put any other one before it.
Home* shared_home(const void* site, u64 bytes, u32 granule, u32 alignment, const char* name) {
    sanitizer::Unseen unseen;
    auto [place, is_new] = shared_arrays.try_emplace(site);
    Home& home = place->second;
    if (is_new) {
        shared_used += (bytes + 15) / 16 * 16;
        u32 shift = alignment % 16;
        home = Home{new (std::align_val_t(16)) u8[bytes + shift] + shift, bytes, granule, fresh_shadow(bytes / granule), name, granule};
        std::memset(home.base, 0xff, bytes);
        if (shared_used > SHARED_BYTES) fail("shared arrays of %llu bytes, more than a block may have", shared_used);
    }
    return &home;
}

static const u32* meet_unseen(const char* what, const char* file, int line, const u32* words, u32 count, Combine combine, u32 parameter) {
    sanitizer::Unseen unseen;
    Warp& warp = warps[current->warp];
    if (warp.living < WARP_LANES) fail("%s at %s:%d, but lanes of the warp have ended", what, file, line);
    if (warp.arrived == 0) {
        warp.what = what;
        warp.file = file;
        warp.line = line;
    } else if (warp.line != line || std::strcmp(warp.file, file) || std::strcmp(warp.what, what)) {
        fail("divergence: %s at %s:%d while lanes of the warp wait in %s at %s:%d", what, file, line, warp.what, warp.file, warp.line);
    }
    u32 parity = warp.parity;
    if (count > 0) std::memcpy(warp.in[parity][current->lane], words, count * sizeof(u32));
    if (++warp.arrived < WARP_LANES) {
        to_scheduler();
        return warp.out[parity][current->lane];
    }
    combine(warp.in[parity], warp.out[parity], parameter);
    warp.arrived = 0;
    warp.parity ^= 1;
    if (count == 0) warp.sync_clock = ++clock_now;
    u32 first = current->warp * WARP_LANES;
    for (u32 lane = 0; lane < WARP_LANES; lane++)
        if (lane != current->lane) ready.push_back(first + lane);
    return warp.out[parity][current->lane];
}

const u32* meet(const char* what, const char* file, int line, const u32* words, u32 count, Combine combine, u32 parameter) {
    sanitizer::Place& sync = warps[current->warp].syncs[warps[current->warp].parity];
    if (count == 0) sync.lay_down();
    const u32* got = meet_unseen(what, file, line, words, count, combine, parameter);
    if (count == 0) sync.take_up();
    return got;
}

static void wait_at_barrier(const char* file, int line) {
    sanitizer::Unseen unseen;
    if (launch.waiting == 0) {
        launch.barrier_file = file;
        launch.barrier_line = line;
    } else if (launch.barrier_line != line || std::strcmp(launch.barrier_file, file)) {
        fail("divergence: a barrier at %s:%d while threads wait at the one at %s:%d", file, line, launch.barrier_file, launch.barrier_line);
    }
    if (++launch.waiting == launch.living) open_barrier();
    to_scheduler();
}

void barrier(const char* file, int line) {
    sanitizer::Place& place = barriers[barriers_opened % 2];
    place.lay_down();
    wait_at_barrier(file, line);
    place.take_up();
}

// ---- memory and launches as a host has them ----

static void mark_written(Home& home, u64 offset, u64 bytes) {
    for (u64 i = offset / home.granule; i * home.granule < offset + bytes; i++) home.shadow[i] = Shadow{0, 0, 0, 0, 0, 0, 1};
}

u64 allocate(u64 bytes, u32 granule) {
    if (bytes == 0 || granule == 0 || granule & (granule - 1)) return 0;
    u64 room = IS_SANITIZED ? bytes : (bytes + 255) / 256 * 256 + 256; // exact: an access past the end is past what was allocated
    u8* base = new (std::align_val_t(256), std::nothrow) u8[room];
    if (!base) return 0;
    Home home{base, bytes, granule, nullptr, nullptr, granule};
    home.shadow = fresh_shadow(elements(home));
    if (!home.shadow) {
        ::operator delete[](base, std::align_val_t(256));
        return 0;
    }
    std::memset(base, 0xff, room);
    u64 address = (u64)(std::uintptr_t)base;
    memory[address + bytes] = home;
    return address;
}

bool release(u64 address) {
    auto found = memory.upper_bound(address);
    if (found == memory.end() || (u64)(std::uintptr_t)found->second.base != address) return false;
    Home home = found->second;
    memory.erase(found);
    std::free(home.shadow);
    std::memset(home.base, 0xdd, home.bytes);
    graveyard.emplace_back(home.base, home.bytes);
    for (buried += home.bytes; buried > GRAVEYARD_BYTES; graveyard.pop_front()) {
        ::operator delete[](graveyard.front().first, std::align_val_t(256));
        buried -= graveyard.front().second;
    }
    return true;
}

void store(Home& home, u64 offset, const void* from, u64 bytes) {
    split(home, offset, bytes);
    std::memcpy(home.base + offset, from, bytes);
    mark_written(home, offset, bytes);
}

void fill(Home& home, u64 offset, u8 value, u64 bytes) {
    split(home, offset, bytes);
    std::memset(home.base + offset, value, bytes);
    mark_written(home, offset, bytes);
}

u64 load(Home& home, u64 offset, void* to, u64 bytes) {
    std::memcpy(to, home.base + offset, bytes);
    for (u64 at = offset; at < offset + bytes; at = (at / home.granule + 1) * home.granule)
        if (!home.shadow[at / home.granule].initialised) return at - offset;
    return bytes;
}

void move(Home& to, u64 to_offset, Home& from, u64 from_offset, u64 bytes) {
    split(to, to_offset, bytes);
    split(from, from_offset, bytes);
    // Elements of one size, that lie alike in both: then each element of the target has the history of one of the source.
    u32 granule = to.granule < from.granule ? to.granule : from.granule;
    if (to.granule != granule) split(to, to_offset, granule < bytes ? granule : bytes);
    if (from.granule != granule) split(from, from_offset, granule < bytes ? granule : bytes);
    std::memmove(to.base + to_offset, from.base + from_offset, bytes);
    for (u64 at = 0; at < bytes; at += granule)
        to.shadow[(to_offset + at) / to.granule] = Shadow{0, 0, 0, 0, 0, 0, from.shadow[(from_offset + at) / from.granule].initialised};
}

const Entry* kernel(const char* name) {
    for (const Entry* entry = entries; entry; entry = entry->next)
        if (!std::strcmp(entry->name, name)) return entry;
    return nullptr;
}

bool run(const Entry& entry, Dim3 grid, void** arguments, u64 seed, u64 reachable, std::string& error) {
    std::string recording = record(entry, grid, arguments);
    ends_of_launches[(launches + 1) % 2].lay_down(); // what the host wrote
    sanitizer::Unseen unseen;
    launch = Launch{};
    access_place = nullptr;
    launch.entry = &entry;
    launch.arguments = arguments;
    launch.number = ++launches;
    launch.clock_start = ++clock_now;
    launch.random = seed;
    launch.reachable = reachable;
    launch.is_fuzzed = seed != 0;
    grid_size = grid;
    block_size = {entry.threads, 1, 1};
    std::vector<u32> order(grid.x * grid.y * grid.z);
    for (u32 i = 0; i < order.size(); i++) order[i] = i;
    if (launch.is_fuzzed)
        for (u64 i = order.size(); i > 1; i--) std::swap(order[i - 1], order[random_number() % i]);
    for (u32 block : order) {
        run_block(block);
        if (launch.failed) {
            error = std::string(entry.name) + ": " + launch.error;
            return false;
        }
    }
    ends_of_launches[(launch.number + 1) % 2].take_up();
    keep(recording);
    return true;
}

} // namespace sim

// ---- the same in C, for tests of single kernels ----

using namespace sim;

// The allocation that has these bytes.
static Home* range(u64 address, u64 bytes) {
    Home* home = find(address);
    return home && address - (u64)(std::uintptr_t)home->base + bytes <= home->bytes ? home : nullptr;
}
static u64 offset_in(const Home* home, u64 address) { return address - (u64)(std::uintptr_t)home->base; }

// Unwritten memory of elements of `granule` bytes, a power of two; 0 when there is none.
SIM_API u64 sim_alloc(u64 bytes, u32 granule) { return bytes % granule ? 0 : allocate(bytes, granule); }

SIM_API int sim_free(u64 address) { return !release(address); }

SIM_API int sim_write(u64 address, const void* from, u64 bytes) {
    Home* home = range(address, bytes);
    if (!home) return 1;
    store(*home, offset_in(home, address), from, bytes);
    return 0;
}

// Elements of an allocation; `unwritten` is the number of the first one that nobody wrote wholly, or of all. Unwritten bytes read as 0xff.
SIM_API int sim_read(u64 address, void* to, u64 bytes, u64* unwritten) {
    Home* home = range(address, bytes);
    if (!home) return 1;
    *unwritten = load(*home, offset_in(home, address), to, bytes) / home->element;
    return 0;
}

// Arguments of a kernel and their sizes; -1 when there is no such kernel.
SIM_API int sim_arguments(const char* name, u32* threads, const u32** sizes) {
    const Entry* entry = kernel(name);
    if (!entry) return -1;
    *threads = entry->threads;
    *sizes = entry->sizes;
    return (int)entry->arguments;
}

// The name of kernel `index`, or null.
SIM_API const char* sim_kernel(u32 index) {
    const Entry* entry = entries;
    while (entry && index--) entry = entry->next;
    return entry ? entry->name : nullptr;
}

// Runs a grid of blocks of the kernel's own size. Seed 0 takes blocks and threads in order, any other one a random order. Answers 0, or 1 with a
// text in `error`.
SIM_API int sim_launch(const char* name, const u32* grid, void** arguments, u64 seed, char* error, u64 error_bytes) {
    const Entry* entry = kernel(name);
    if (!entry || grid[0] == 0 || grid[1] == 0 || grid[2] == 0 || grid[1] > 65535 || grid[2] > 65535) {
        snprintf(error, error_bytes, "%s: no such kernel, or no such grid", name);
        return 1;
    }
    std::string text;
    if (run(*entry, {grid[0], grid[1], grid[2]}, arguments, seed, ~0ull, text)) return 0;
    snprintf(error, error_bytes, "%s", text.c_str());
    return 1;
}
