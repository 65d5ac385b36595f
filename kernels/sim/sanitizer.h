// What a sanitizer of the C++ compiler must be told of fibers and of memory: simulator.cpp calls it, scripts/sanitize-kernels.sh builds it.
//
// SIM_ADDRESS: everything is built with -fsanitize=address,undefined. SIM_THREAD: the kernels alone are built with -fsanitize=thread, the simulator is not. With
// neither, nothing is left of this file.
#pragma once
#include "device.h"
#include <deque>
#if defined(SIM_ADDRESS)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#elif defined(SIM_THREAD)
#include <sanitizer/tsan_interface.h>
extern "C" {
void __tsan_ignore_thread_begin();
void __tsan_ignore_thread_end();
void __tsan_read_range(void* at, unsigned long bytes);
void __tsan_write_range(void* at, unsigned long bytes);
}
#endif

namespace sim::sanitizer {

#if defined(SIM_ADDRESS)

inline const void* scheduler_bottom;
inline std::size_t scheduler_bytes;
inline void* scheduler_frames;

// An old stack's frames may have ended without leaving it.
inline void begin_stack(u32, void* bottom, u64 bytes) { __asan_unpoison_memory_region(bottom, bytes); }
inline void leave_scheduler(u32, void* bottom, u64 bytes) { __sanitizer_start_switch_fiber(&scheduler_frames, bottom, bytes); }
inline void back_in_scheduler() { __sanitizer_finish_switch_fiber(scheduler_frames, nullptr, nullptr); }
inline void first_in_thread() { __sanitizer_finish_switch_fiber(nullptr, &scheduler_bottom, &scheduler_bytes); }
inline void* leave_thread(bool for_good) {
    void* frames = nullptr;
    __sanitizer_start_switch_fiber(for_good ? nullptr : &frames, scheduler_bottom, scheduler_bytes);
    return frames;
}
inline void back_in_thread(void* frames) { __sanitizer_finish_switch_fiber(frames, &scheduler_bottom, &scheduler_bytes); }

#elif defined(SIM_THREAD)

// A stack is one thread's to the sanitizer, for good: so of two blocks' threads with one index it thinks that one came after the other.
inline void* scheduler;
inline std::deque<void*> threads;
inline void begin_stack(u32 index, void*, u64) {
    scheduler = __tsan_get_current_fiber();
    while (threads.size() <= index) threads.push_back(__tsan_create_fiber(0));
}
// A switch orders nothing.
inline void leave_scheduler(u32 index, void*, u64) { __tsan_switch_to_fiber(threads[index], __tsan_switch_to_fiber_no_sync); }
inline void back_in_scheduler() {}
inline void first_in_thread() {}
inline void* leave_thread(bool) {
    __tsan_switch_to_fiber(scheduler, __tsan_switch_to_fiber_no_sync);
    return nullptr;
}
inline void back_in_thread(void*) {}

#else

inline void begin_stack(u32, void*, u64) {}
inline void leave_scheduler(u32, void*, u64) {}
inline void back_in_scheduler() {}
inline void first_in_thread() {}
inline void* leave_thread(bool) { return nullptr; }
inline void back_in_thread(void*) {}

#endif

// Order, for the sanitizer of races: who took up a place has seen what others did before they laid it down there.
struct Place {
#if defined(SIM_THREAD)
    u64 key = 0;
    void lay_down() { __tsan_release(&key); }
    void take_up() { __tsan_acquire(&key); }
#else
    void lay_down() {}
    void take_up() {}
#endif
};

// While it lives, what this thread does is the simulator's work, and no access of a kernel.
struct Unseen {
#if defined(SIM_THREAD)
    Unseen() { __tsan_ignore_thread_begin(); }
    ~Unseen() { __tsan_ignore_thread_end(); }
#else
    Unseen() {}
    ~Unseen() {}
#endif
    Unseen(const Unseen&) = delete;
};

// Accesses of a kernel that the simulator does for it.
inline void kernel_reads([[maybe_unused]] const u8* at, [[maybe_unused]] u32 bytes) {
#if defined(SIM_THREAD)
    __tsan_read_range((void*)at, bytes);
#endif
}
inline void kernel_writes([[maybe_unused]] u8* at, [[maybe_unused]] u32 bytes) {
#if defined(SIM_THREAD)
    __tsan_write_range(at, bytes);
#endif
}

} // namespace sim::sanitizer
