// The device, as a C++ compiler without CUDA sees it: what common.cuh takes its types and operations from in tests.
//
// A thread of a block is a fiber; simulator.cpp runs the fibers of one block after another, in an order that a seed decides. Every access
// goes through `Ptr`, which knows the allocation it points into, and the shadow of that allocation knows of each element who wrote and
// who read it last, and when. So these are errors, found whatever the order was:
//   - an access outside of the allocation, or at an address that is no multiple of its size
//   - a read of what nobody wrote (fresh device memory and fresh shared memory are unwritten, and filled with NaN)
//   - a race: two threads touch an element, one of them writes, and neither a barrier nor (in a warp) sync_warp lies between;
//     of two blocks nothing orders accesses at all
//   - lanes of a warp that meet in different operations, that have ended, or that wait for each other for ever
//   - a barrier that not all living threads reach at the same place
// An error ends the launch; its text names kernel, block, thread and, by an address, the line.
#pragma once
#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <utility>

using u8 = std::uint8_t;
using i8 = std::int8_t;
using u16 = std::uint16_t;
using i32 = std::int32_t;
using u32 = std::uint32_t;
using u64 = unsigned long long;
using f32 = float;
using f64 = double;

struct alignas(16) Quad {
    u32 x, y, z, w;
};
struct alignas(8) Pair {
    u32 x, y;
};

namespace sim {

// Under a sanitizer of the C++ compiler (sanitizer.h) accesses are plain ones, which that sees, and the shadow says nothing.
#if defined(SIM_ADDRESS) || defined(SIM_THREAD)
constexpr bool IS_SANITIZED = true;
#else
constexpr bool IS_SANITIZED = false;
#endif

struct Dim3 {
    u32 x, y, z;
};

// What is known of one element: `clock` values tell what lies between two accesses (see simulator.cpp).
struct Shadow {
    u32 writer, written; // thread, clock
    u32 reader, read;    // one of the readers since the last barrier, clock
    u32 shared_launch;   // the launch in which more than one block read it
    u8 readers;          // 0 none, 1 a thread, 2 threads of one warp, 3 threads of several
    u8 initialised;
};

// An allocation. The shadow begins with elements as large as the allocation was asked for, a power of two, and is split into smaller ones when an
// access covers a part of one.
struct Home {
    u8* base;
    u64 bytes;
    u32 granule; // bytes of an element of the shadow
    Shadow* shadow;
    const char* name;     // of a shared array; null for device memory
    u32 element = 0;      // `granule` as it was asked for
    u32 owner = 0;        // number of the device that has it
    bool pending = false; // a stream will make it, and is not there yet
};

struct Thread {
    void* stack_pointer;
    u8* stack;
    Dim3 index;
    u32 id;   // unique; a warp's begin at a multiple of 32
    u32 lane; // in its warp
    u32 warp; // in its block
    bool started, ended;
};

extern Thread* current;
extern Dim3 block_index, block_size, grid_size;

[[noreturn]] void fail(const char* format, ...) __attribute__((noinline, format(printf, 1, 2)));
void note_read(Home* home, const u8* at, u32 bytes);
void note_write(Home* home, const u8* at, u32 bytes);
Home* home_of(u64 address);
Home* shared_home(const void* site, u64 bytes, u32 granule, u32 alignment, const char* name);

// Operations of a warp: each lane lays down words, the last one to come computes what each lane takes up.
constexpr u32 WORDS = 10;
using Words = u32[32][WORDS];
using Combine = void (*)(const Words& in, Words& out, u32 parameter);
const u32* meet(const char* what, const char* file, int line, const u32* words, u32 count, Combine combine, u32 parameter);
void barrier(const char* file, int line);

// Copies of 16 bytes that run behind a thread's back: simulator.cpp runs them at the last moment, in copy_wait.
void copy_begin(Home* to_home, u8* to, Home* from_home, const u8* from, u32 bytes);
void copy_commit();
void copy_wait(u32 groups);

// An element that a thread may read or write.
template <class T> struct Ref {
    u8* at;
    Home* home;

    Ref(u8* at, Home* home) : at(at), home(home) {}
    Ref(const Ref&) = default;
    operator T() const {
        if constexpr (IS_SANITIZED) return *(const T*)at;
        note_read(home, at, sizeof(T));
        T value;
        std::memcpy(&value, at, sizeof(T));
        return value;
    }
    T operator=(T value) const {
        if constexpr (IS_SANITIZED) return *(T*)at = value;
        note_write(home, at, sizeof(T));
        std::memcpy(at, &value, sizeof(T));
        return value;
    }
    T operator=(const Ref& other) const { return *this = (T)other; }
    T operator+=(T value) const { return *this = (T) * this + value; }
    T operator*=(T value) const { return *this = (T) * this * value; }
};

// A pointer that knows where it may point.
template <class T> struct Ptr {
    using Value = std::remove_const_t<T>;
    u8* at = nullptr;
    Home* home = nullptr;

    Ptr() = default;
    Ptr(u8* at, Home* home) : at(at), home(home) {}
    // From something that may be written to something that may only be read.
    template <class U, class = std::enable_if_t<std::is_same_v<const U, T>>> Ptr(Ptr<U> other) : at(other.at), home(other.home) {}

    explicit operator bool() const { return at != nullptr; }
    Ptr operator+(u64 count) const { return Ptr(at + count * sizeof(T), home); }
    auto operator[](u64 index) const {
        Ref<Value> element{at + index * sizeof(T), home};
        if constexpr (std::is_const_v<T>)
            return (Value)element;
        else
            return element;
    }
    auto operator*() const { return (*this)[0]; }
};

// Tables of the launch: name, block size and the sizes of the arguments as a driver would take them.
struct Entry {
    const char* name;
    u32 threads;
    u32 arguments;
    const u32* sizes;
    void (*call)(void** arguments);
    Entry* next;
};
extern Entry* entries;

template <class P> struct Argument {
    static constexpr u32 SIZE = sizeof(P);
    static P take(const void* from) {
        P value;
        std::memcpy(&value, from, sizeof(P));
        return value;
    }
};
template <class T> struct Argument<Ptr<T>> {
    static constexpr u32 SIZE = 8;
    static Ptr<T> take(const void* from) {
        u64 address;
        std::memcpy(&address, from, 8);
        return address ? Ptr<T>((u8*)(std::uintptr_t)address, home_of(address)) : Ptr<T>();
    }
};

template <auto Kernel> struct Launcher;
template <class... P, void (*Kernel)(P...)> struct Launcher<Kernel> {
    static constexpr u32 SIZES[sizeof...(P)] = {Argument<P>::SIZE...};
    template <std::size_t... I> static void spread(void** arguments, std::index_sequence<I...>) {
        Kernel(Argument<P>::take(arguments[I])...);
    }
    static void call(void** arguments) { spread(arguments, std::index_sequence_for<P...>()); }
    static Entry entry(const char* name, u32 threads) { return Entry{name, threads, sizeof...(P), SIZES, call, nullptr}; }
};
struct Registration {
    explicit Registration(Entry& entry) {
        entry.next = entries;
        entries = &entry;
    }
};

template <class T> Ptr<T> shared_array(const void* site, u64 count, const char* name, u32 alignment = sizeof(T)) {
    Home* home = shared_home(site, count * sizeof(T), sizeof(T), alignment, name);
    return Ptr<T>(home->base, home);
}

template <class T> u32 word_of(T value) {
    static_assert(sizeof(T) == 4);
    u32 word;
    std::memcpy(&word, &value, 4);
    return word;
}
template <class T> T value_of(u32 word) {
    T value;
    std::memcpy(&value, &word, 4);
    return value;
}

} // namespace sim

using sim::Ptr;

#define threadIdx (sim::current->index)
#define blockIdx (sim::block_index)
#define blockDim (sim::block_size)
#define gridDim (sim::grid_size)
#define KERNEL(threads) static void
#define EXPORT(kernel, threads)                                                                                             \
    static sim::Entry kernel##_entry = sim::Launcher<&kernel>::entry(#kernel, threads);                                     \
    static sim::Registration kernel##_registration(kernel##_entry);
#define DEV [[maybe_unused]] static inline
#define DEV_MEMBER
#define RESTRICT
#define UNROLL
#define SHARED(type, name, count)                                                                                           \
    static const char name##_site = 0;                                                                                      \
    Ptr<type> name = sim::shared_array<type>(&name##_site, count, #name)
#define SHARED_QUADS(type, name, count)                                                                                     \
    static const char name##_site = 0;                                                                                      \
    Ptr<type> name = sim::shared_array<type>(&name##_site, count, #name, 16)
// The place of a call, for messages and for the check that all threads are at the same one.
#define SIM_PLACE const char *file = __builtin_FILE(), int line = __builtin_LINE()

DEV void sync_block(SIM_PLACE) { sim::barrier(file, line); }
DEV void sync_warp(SIM_PLACE) {
    sim::meet("sync_warp", file, line, nullptr, 0, [](const sim::Words&, sim::Words&, u32) {}, 0);
}

template <class T> T shuffle_xor(T value, u32 lanes, SIM_PLACE) {
    u32 word = sim::word_of(value);
    auto exchange = [](const sim::Words& in, sim::Words& out, u32 lanes) {
        for (u32 lane = 0; lane < 32; lane++) out[lane][0] = in[(lane ^ lanes) & 31][0];
    };
    return sim::value_of<T>(sim::meet("shuffle_xor", file, line, &word, 1, exchange, lanes)[0]);
}
DEV u32 shuffle_up(u32 value, u32 lanes, SIM_PLACE) {
    auto move = [](const sim::Words& in, sim::Words& out, u32 lanes) {
        for (u32 lane = 0; lane < 32; lane++) out[lane][0] = in[lane < lanes ? lane : lane - lanes][0];
    };
    return sim::meet("shuffle_up", file, line, &value, 1, move, lanes)[0];
}
DEV f32 shuffle_from(f32 value, u32 lane, SIM_PLACE) {
    u32 words[2] = {sim::word_of(value), lane};
    auto fetch = [](const sim::Words& in, sim::Words& out, u32) {
        for (u32 lane = 0; lane < 32; lane++) out[lane][0] = in[in[lane][1] & 31][0];
    };
    return sim::value_of<f32>(sim::meet("shuffle_from", file, line, words, 2, fetch, 0)[0]);
}

// The butterflies of common.cuh in one meeting: the same additions in the same order.
template <class T, class F> T butterfly(const char* what, T value, F join, const char* file, int line) {
    u32 word = sim::word_of(value);
    auto combine = [](const sim::Words& in, sim::Words& out, u32) {
        T values[32], next[32];
        for (u32 lane = 0; lane < 32; lane++) values[lane] = sim::value_of<T>(in[lane][0]);
        for (u32 step = 16; step > 0; step /= 2) {
            for (u32 lane = 0; lane < 32; lane++) next[lane] = F()(values[lane], values[lane ^ step]);
            std::memcpy(values, next, sizeof values);
        }
        for (u32 lane = 0; lane < 32; lane++) out[lane][0] = sim::word_of(values[lane]);
    };
    (void)join;
    return sim::value_of<T>(sim::meet(what, file, line, &word, 1, combine, 0)[0]);
}
struct Plus {
    template <class T> T operator()(T a, T b) const { return a + b; }
};
struct Most {
    template <class T> T operator()(T a, T b) const { return b > a ? b : a; }
};
struct Least {
    template <class T> T operator()(T a, T b) const { return b < a ? b : a; }
};
struct Either {
    template <class T> T operator()(T a, T b) const { return a | b; }
};
DEV u32 warp_or(u32 value, SIM_PLACE) { return butterfly("warp_or", value, Either(), file, line); }
DEV u32 warp_least(u32 value, SIM_PLACE) { return butterfly("warp_least", value, Least(), file, line); }
DEV f32 warp_sum(f32 value, SIM_PLACE) { return butterfly("warp_sum", value, Plus(), file, line); }
DEV u32 warp_sum(u32 value, SIM_PLACE) { return butterfly("warp_sum", value, Plus(), file, line); }
DEV f32 warp_max(f32 value, SIM_PLACE) { return butterfly("warp_max", value, Most(), file, line); }

DEV f32 fused(f32 a, f32 b, f32 c) { return fmaf(a, b, c); }
DEV f64 root(f64 x) { return sqrt(x); }
DEV u32 ones(u32 bits) { return (u32)__builtin_popcount(bits); }
DEV u32 bits_of(f32 x) { return sim::word_of(x); }
DEV f32 float_of(u32 bits) { return sim::value_of<f32>(bits); }
DEV f32 from_f16(u16 bits) {
    _Float16 value;
    std::memcpy(&value, &bits, 2);
    return (f32)value;
}
DEV u16 to_f16(f32 value) {
    if (value != value) return 0x7fff;
    _Float16 half = (_Float16)value;
    u16 bits;
    std::memcpy(&bits, &half, 2);
    return bits;
}
DEV u16 to_bf16(f32 value) {
    u32 word = sim::word_of(value);
    if ((word & 0x7fffffffu) > 0x7f800000u) return 0x7fff;
    return (u16)((word + 0x7fffu + (word >> 16 & 1)) >> 16);
}
DEV i32 dp4a(u32 a, u32 b, i32 c) {
    for (u32 i = 0; i < 32; i += 8) c += (i32)(i8)(a >> i) * (i32)(i8)(b >> i);
    return c;
}
template <class T> Quad load_quad(Ptr<T> from) { return (Quad)sim::Ref<Quad>{from.at, from.home}; }
template <class T> void store_quad(Ptr<T> to, const Quad& quad) { sim::Ref<Quad>{to.at, to.home} = quad; }
template <class T> Pair load_pair(Ptr<T> from) { return (Pair)sim::Ref<Pair>{from.at, from.home}; }
template <class T> u32 load_word(Ptr<T> from) { return (u32)sim::Ref<u32>{from.at, from.home}; }
template <class T> u32 load_half(Ptr<T> from) { return (u16)sim::Ref<u16>{from.at, from.home}; }
template <class T> Ptr<const u8> bytes_of(Ptr<T> from) { return Ptr<const u8>(from.at, from.home); }
DEV u32 choose_bytes(u32 low, u32 high, u32 choice) {
    u64 bytes = (u64)high << 32 | low;
    u32 chosen = 0;
    for (u32 i = 0; i < 4; i++) chosen |= (u32)(bytes >> 8 * (choice >> 4 * i & 7) & 0xff) << 8 * i;
    return chosen;
}

// The last file: it uses what is above.
#include "tensor.h"
