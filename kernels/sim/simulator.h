// What a host can do with the simulated device: memory, copies, launches. simulator.cpp has it.
#pragma once
#include "device.h"
#include <string>

// A function that the library shows to the outside; everything else is hidden.
#define SIM_API extern "C" __attribute__((visibility("default")))

namespace sim {

// Unwritten memory, filled with 0xff, whose shadow has elements of `granule` bytes (a power of two); 0 when there is none.
u64 allocate(u64 bytes, u32 granule);
// Gives back the allocation that begins here; false when none does.
bool release(u64 address);
// The live allocation that has this byte, or null.
Home* find(u64 address);

// Copies, inside of the allocations. Their accesses lie before the next launch and after the last one.
void store(Home& home, u64 offset, const void* from, u64 bytes);
void fill(Home& home, u64 offset, u8 value, u64 bytes);
// Answers the number of bytes in front of the first one that nobody wrote, or of all.
u64 load(Home& home, u64 offset, void* to, u64 bytes);
// What nobody wrote in the source counts as unwritten in the target.
void move(Home& to, u64 to_offset, Home& from, u64 from_offset, u64 bytes);

// The kernel of this name, or null.
const Entry* kernel(const char* name);
// Runs a grid of blocks of the kernel's own size over memory of the devices in `reachable`, a mask. Seed 0 takes blocks and threads in order, any
// other one a random order. False with a text when the kernel did wrong.
bool run(const Entry& entry, Dim3 grid, void** arguments, u64 seed, u64 reachable, std::string& error);

// ---- record.cpp ----

// A launch as text of bytes: the kernel, its arguments and the memory that they point into; empty when nobody wants it.
std::string record(const Entry& entry, Dim3 grid, void** arguments);
// Adds it to the file of recordings.
void keep(const std::string& recording);

} // namespace sim
