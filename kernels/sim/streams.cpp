// The fake driver: in which order the work of streams runs; events, capture and graphs.
//
// # Order
// Nothing runs when it is submitted. A synchronisation runs its own stream, and of others only what events make it wait for: whoever forgot to wait
// meets memory that nobody wrote. (LAZY; EAGER runs everything at once, SEEDED takes any order that waits allow, and threads of kernels in one too.)
//
// # Capture
// A capture is a list of what was submitted, with the stream of each. A stream that waits for an event of the capture becomes a branch of it. A replay
// runs the branches as streams are run, so a missing wait shows there too. Branches may be of several devices; the graph is one piece of work of the stream
// that it is launched in, and orders nothing in the others. Of modes: in THREAD_LOCAL and GLOBAL the capturing thread, in GLOBAL
// any thread, may not synchronise, query, allocate pinned memory and so on.
#include "driver.h"

namespace fake {

namespace {

bool is_done(const std::shared_ptr<Moment>& moment) { return !moment || moment->done; }

void perform(Stream& stream, Item& item) {
    Context& context = *stream.context;
    if (item.work && (context.error == SUCCESS || item.always)) {
        int error;
        if (item.is_host_function) {
            stream.is_busy = true;
            driver.mutex.unlock();
            error = item.work();
            driver.mutex.lock();
            stream.is_busy = false;
            driver.no_longer_busy.notify_all();
        } else {
            error = item.work();
        }
        if (error && context.error == SUCCESS) context.error = error;
    }
    if (item.marks) {
        item.marks->done = true;
        item.marks->time = std::chrono::steady_clock::now();
    }
}

// Runs the next work of a stream or, where it waits, of the stream that it waits for. False when there is none.
bool step(Stream& stream) {
    while (stream.is_busy) driver.no_longer_busy.wait(driver.mutex);
    if (stream.queue.empty()) return false;
    if (std::shared_ptr<Moment> needs = stream.queue.front().needs; !is_done(needs)) {
        std::shared_ptr<Stream> other = needs->stream.lock();
        if (!other || (!step(*other) && !needs->done)) needs->done = true; // its context has ended, or its recording was given up
        return true;
    }
    Item item = std::move(stream.queue.front());
    stream.queue.pop_front();
    perform(stream, item);
    return true;
}

std::vector<std::shared_ptr<Stream>> streams_with_work() {
    std::vector<std::shared_ptr<Stream>> list;
    for (auto& [handle, context] : driver.contexts.entries)
        for (auto& weak : context->streams) {
            std::shared_ptr<Stream> stream = weak.lock();
            if (stream && !stream->queue.empty()) list.push_back(stream);
        }
    return list;
}

void step_anywhere() {
    auto list = streams_with_work();
    if (!list.empty()) step(*list[random_number() % list.size()]);
}

void run_until(const std::function<bool()>& is_enough, Stream& stream) {
    while (!is_enough()) {
        if (driver.options[OPTION_ORDER] == SEEDED && random_number() % 2) step_anywhere();
        else if (!step(stream)) return;
    }
}

void run_to(const std::shared_ptr<Moment>& moment) {
    std::shared_ptr<Stream> stream = moment ? moment->stream.lock() : nullptr;
    if (stream) run_until([&] { return moment->done; }, *stream);
}

// A stream that was destroyed stays until its work is done; somebody must hold it.
std::vector<std::shared_ptr<Stream>> destroyed;

int event_of(void* handle, std::shared_ptr<Event>& event) {
    if (!driver.is_initialised) return refuse(NOT_INITIALIZED, "cuInit was not called");
    std::shared_ptr<Event>* found = driver.events.find(handle);
    if (!found) return refuse(INVALID_HANDLE, "no such event");
    event = *found;
    return event->context->error;
}

// ---- capture ----

void leave(Capture& capture) {
    capture.is_open = false;
    for (auto& weak : capture.branches) {
        std::shared_ptr<Stream> stream = weak.lock();
        if (stream && stream->capture.get() == &capture) stream->capture = nullptr;
    }
}

// Runs the nodes of a graph, branch by branch as they wait for each other. Answers how many ran, by `work` if not null.
u64 replay(const Capture& graph, const std::function<void(u32, const Item&)>& work, bool is_random) {
    std::vector<std::deque<const Item*>> branches(graph.branches.size());
    for (const Capture::Node& node : graph.nodes) branches[node.branch].push_back(&node.item);
    std::set<const Moment*> done;
    u64 ran = 0;
    // A branch whose next node waits for nothing: the first one that branch `from` leads to.
    auto ready = [&](u32 from) {
        while (!branches[from].empty()) {
            const Moment* needs = branches[from].front()->needs.get();
            if (!needs || done.count(needs)) return (int)from;
            from = needs->branch;
        }
        return -1;
    };
    while (!branches[0].empty()) {
        int branch = ready(is_random ? (u32)(random_number() % branches.size()) : 0);
        if (branch < 0) branch = ready(0);
        if (branch < 0) break;
        const Item* item = branches[(u64)branch].front();
        branches[(u64)branch].pop_front();
        ran++;
        work((u32)branch, *item);
        if (item->marks) done.insert(item->marks.get());
    }
    return ran;
}

// An error of a node loses the context of its device, and is the graph's: so also that of the stream that it was launched in.
int run_graph(const Capture& graph) {
    int first = SUCCESS;
    auto work = [&](u32 branch, const Item& item) {
        if (!item.work || first) return;
        std::shared_ptr<Context> context = graph.contexts[branch].lock();
        int error = context ? context->error : INVALID_CONTEXT;
        if (!error) error = item.work();
        if (error && context) context->error = error;
        first = error;
    };
    replay(graph, work, driver.options[OPTION_ORDER] == SEEDED);
    return first;
}

} // namespace

int invalidate(Capture& capture, const char* what) {
    capture.is_invalid = true;
    return refuse(CAPTURE_UNSUPPORTED, "%s while a stream is captured", what);
}

u64 random_number() {
    u64 z = driver.random += 0x9E3779B97F4A7C15ull;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
    return z ^ (z >> 31);
}

int stream_of(void* handle, std::shared_ptr<Stream>& stream) {
    if (!driver.is_initialised) return refuse(NOT_INITIALIZED, "cuInit was not called");
    if (!handle) {
        std::shared_ptr<Context> context;
        int error = current(context);
        if (context) stream = context->null_stream;
        return error;
    }
    std::shared_ptr<Stream>* found = driver.streams.find(handle);
    if (!found) return refuse(INVALID_HANDLE, "no such stream");
    stream = *found;
    return stream->context->error;
}

int own_stream_of(void* handle, std::shared_ptr<Stream>& stream) {
    std::shared_ptr<Context> context;
    if (int error = current(context)) return error;
    if (int error = stream_of(handle, stream)) return error;
    return stream->context == context ? SUCCESS : refuse(INVALID_HANDLE, "the stream is of another context than the thread's");
}

int submit(const std::shared_ptr<Stream>& stream, Item item, bool can_be_captured) {
    if (Capture* capture = stream->capture.get()) {
        if (capture->is_invalid) return refuse(CAPTURE_INVALIDATED, "the capture was invalidated before");
        if (!can_be_captured) return invalidate(*capture, "an allocation, a free or a copy of pageable memory");
        capture->nodes.push_back({stream->branch, std::move(item)});
        return SUCCESS;
    }
    stream->queue.push_back(std::move(item));
    if (stream->context->error || driver.options[OPTION_ORDER] == EAGER) drain(*stream);
    if (driver.options[OPTION_ORDER] == SEEDED && random_number() % 4 == 0) step_anywhere();
    return SUCCESS;
}

void drain(Stream& stream) {
    run_until([&] { return stream.queue.empty() && !stream.is_busy; }, stream);
    for (u64 i = destroyed.size(); i-- > 0;)
        if (destroyed[i]->queue.empty()) destroyed.erase(destroyed.begin() + (long)i);
}

void drain(Context& context) {
    auto streams = context.streams; // the list may change while a host function runs
    for (auto& weak : streams)
        if (std::shared_ptr<Stream> stream = weak.lock()) drain(*stream);
    auto is_gone = [](const std::weak_ptr<Stream>& weak) { return weak.expired(); };
    context.streams.erase(std::remove_if(context.streams.begin(), context.streams.end(), is_gone), context.streams.end());
}

int forbid(const char* what) {
    for (auto& [handle, stream] : driver.streams.entries) {
        Capture* capture = stream->capture.get();
        if (!capture || !capture->is_open || capture->mode == 2) continue;
        if (capture->mode == 1 && capture->thread != std::this_thread::get_id()) continue;
        return invalidate(*capture, what);
    }
    return SUCCESS;
}

// A context of which a stream is captured can be waited for by no thread, in whichever mode.
int forbid_wait(const Context& context) {
    int error = SUCCESS;
    for (auto& [handle, stream] : driver.streams.entries) {
        Capture* capture = stream->capture.get();
        if (capture && capture->is_open && stream->context.get() == &context) error = invalidate(*capture, "a wait for the context");
    }
    return error;
}

} // namespace fake

using namespace fake;

// ---- streams ----

CUDA cuCtxSynchronize() {
    Lock lock(driver.mutex);
    std::shared_ptr<Context> context;
    if (int error = current(context)) return error;
    if (int error = forbid_wait(*context)) return error;
    if (int error = struck(POINT_SYNC)) return error;
    driver.counts.synchronisations++;
    drain(*context);
    return context->error;
}

CUDA cuStreamCreateWithPriority(void** out, u32 flags, int) {
    Lock lock(driver.mutex);
    std::shared_ptr<Context> context;
    if (int error = current(context)) return error;
    if (flags != 1) return refuse(NOT_SUPPORTED, "a stream that orders with the null stream; the fake driver has only others");
    auto stream = std::make_shared<Stream>(Stream{context, false});
    context->streams.push_back(stream);
    u64 handle = driver.handle();
    driver.streams.entries[handle] = stream;
    *out = (void*)(std::uintptr_t)handle;
    return SUCCESS;
}

CUDA cuStreamCreate(void** out, u32 flags) { return cuStreamCreateWithPriority(out, flags, 0); }

CUDA cuStreamDestroy_v2(void* handle) {
    Lock lock(driver.mutex);
    std::shared_ptr<Stream>* found = driver.streams.find(handle);
    if (!found) return refuse(INVALID_HANDLE, "no such stream");
    std::shared_ptr<Stream> stream = *found;
    if (stream->capture) {
        stream->capture->is_invalid = true;
        if (stream->branch == 0) leave(*stream->capture);
        stream->capture = nullptr;
    }
    stream->is_destroyed = true;
    if (!stream->queue.empty()) destroyed.push_back(stream);
    driver.streams.entries.erase((u64)(std::uintptr_t)handle);
    return stream->context->error;
}

CUDA cuStreamSynchronize(void* handle) {
    Lock lock(driver.mutex);
    std::shared_ptr<Stream> stream;
    if (int error = stream_of(handle, stream)) return error;
    if (stream->capture) return invalidate(*stream->capture, "cuStreamSynchronize");
    if (int error = forbid("cuStreamSynchronize")) return error;
    if (int error = struck(POINT_SYNC)) return error;
    driver.counts.synchronisations++;
    drain(*stream);
    return stream->context->error;
}

CUDA cuStreamQuery(void* handle) {
    Lock lock(driver.mutex);
    std::shared_ptr<Stream> stream;
    if (int error = stream_of(handle, stream)) return error;
    if (stream->capture) return invalidate(*stream->capture, "cuStreamQuery");
    if (int error = forbid("cuStreamQuery")) return error;
    bool had_work = step(*stream); // so that polling ends
    if (int error = stream->context->error) return error;
    return had_work ? NOT_READY : SUCCESS;
}

CUDA cuStreamWaitEvent(void* stream_handle, void* event_handle, u32) {
    Lock lock(driver.mutex);
    std::shared_ptr<Stream> stream;
    if (int error = stream_of(stream_handle, stream)) return error;
    std::shared_ptr<Event> event;
    if (int error = event_of(event_handle, event)) return error;
    std::shared_ptr<Moment> moment = event->latest;
    if (!moment) return SUCCESS;
    if (moment->capture && !moment->capture->is_open) return refuse(CAPTURED_EVENT, "a wait for an event of a capture that has ended");
    if (stream->capture && stream->capture != moment->capture) {
        stream->capture->is_invalid = true;
        if (moment->capture) moment->capture->is_invalid = true;
        return moment->capture ? refuse(CAPTURE_MERGE, "a wait would join two captures")
                               : refuse(CAPTURE_ISOLATION, "a captured stream cannot wait for an event that was recorded outside");
    }
    if (moment->capture && !stream->capture) {
        stream->capture = moment->capture;
        stream->branch = (u32)moment->capture->branches.size();
        moment->capture->branches.push_back(stream);
        moment->capture->contexts.push_back(stream->context);
    }
    Item item;
    item.needs = moment;
    return submit(stream, item);
}

CUDA cuLaunchHostFunc(void* handle, void (*function)(void*), void* data) {
    Lock lock(driver.mutex);
    std::shared_ptr<Stream> stream;
    if (int error = stream_of(handle, stream)) return error;
    Item item;
    item.is_host_function = true;
    item.work = [function, data] {
        function(data);
        return SUCCESS;
    };
    // A graph would run it with the lock held.
    return submit(stream, item, false);
}

// ---- events ----

CUDA cuEventCreate(void** out, u32 flags) {
    Lock lock(driver.mutex);
    std::shared_ptr<Context> context;
    if (int error = current(context)) return error;
    u64 handle = driver.handle();
    driver.events.entries[handle] = std::make_shared<Event>(Event{context, (flags & 2) == 0, nullptr});
    *out = (void*)(std::uintptr_t)handle;
    return SUCCESS;
}

CUDA cuEventDestroy_v2(void* handle) {
    Lock lock(driver.mutex);
    std::shared_ptr<Event> event;
    int error = event_of(handle, event);
    if (event) driver.events.entries.erase((u64)(std::uintptr_t)handle);
    return error;
}

CUDA cuEventRecord(void* event_handle, void* stream_handle) {
    Lock lock(driver.mutex);
    std::shared_ptr<Event> event;
    if (int error = event_of(event_handle, event)) return error;
    std::shared_ptr<Stream> stream;
    if (int error = stream_of(stream_handle, stream)) return error;
    if (event->context != stream->context) return refuse(INVALID_HANDLE, "event and stream are of two contexts");
    auto moment = std::make_shared<Moment>();
    moment->stream = stream;
    moment->capture = stream->capture;
    moment->branch = stream->branch;
    Item item;
    item.marks = moment;
    if (int error = submit(stream, item)) return error;
    event->latest = moment;
    return SUCCESS;
}

CUDA cuEventQuery(void* handle) {
    Lock lock(driver.mutex);
    std::shared_ptr<Event> event;
    if (int error = event_of(handle, event)) return error;
    if (event->latest && event->latest->capture) return refuse(CAPTURED_EVENT, "a query of an event of a capture");
    if (int error = forbid("cuEventQuery")) return error;
    if (is_done(event->latest)) return SUCCESS;
    if (std::shared_ptr<Stream> stream = event->latest->stream.lock()) step(*stream); // so that polling ends
    if (int error = event->context->error) return error;
    return NOT_READY;
}

CUDA cuEventSynchronize(void* handle) {
    Lock lock(driver.mutex);
    std::shared_ptr<Event> event;
    if (int error = event_of(handle, event)) return error;
    if (event->latest && event->latest->capture) return refuse(CAPTURED_EVENT, "a wait for an event of a capture");
    if (int error = forbid("cuEventSynchronize")) return error;
    if (int error = struck(POINT_SYNC)) return error;
    driver.counts.synchronisations++;
    run_to(event->latest);
    return event->context->error;
}

CUDA cuEventElapsedTime(float* milliseconds, void* first, void* last) {
    Lock lock(driver.mutex);
    std::shared_ptr<Event> from, to;
    if (int error = event_of(first, from)) return error;
    if (int error = event_of(last, to)) return error;
    if (!from->has_timing || !to->has_timing || !from->latest || !to->latest) return refuse(INVALID_HANDLE, "an event without a time");
    if (!from->latest->done || !to->latest->done) return NOT_READY;
    *milliseconds = std::chrono::duration<float, std::milli>(to->latest->time - from->latest->time).count();
    return SUCCESS;
}

CUDA cuEventElapsedTime_v2(float* milliseconds, void* first, void* last) { return cuEventElapsedTime(milliseconds, first, last); }

// ---- capture and graphs ----

CUDA cuStreamBeginCapture_v2(void* handle, int mode) {
    Lock lock(driver.mutex);
    std::shared_ptr<Stream> stream;
    if (int error = own_stream_of(handle, stream)) return error;
    if (stream->is_null) return refuse(CAPTURE_UNSUPPORTED, "the null stream cannot be captured");
    if (stream->capture) return refuse(ILLEGAL_STATE, "the stream is captured already");
    if (int error = struck(POINT_CAPTURE)) return error;
    auto capture = std::make_shared<Capture>();
    capture->mode = mode;
    capture->thread = std::this_thread::get_id();
    capture->origin = stream;
    capture->branches.push_back(stream);
    capture->contexts.push_back(stream->context);
    stream->capture = capture;
    stream->branch = 0;
    return SUCCESS;
}

CUDA cuStreamIsCapturing(void* handle, int* status) {
    Lock lock(driver.mutex);
    std::shared_ptr<Stream> stream;
    if (int error = stream_of(handle, stream)) return error;
    *status = !stream->capture ? 0 : stream->capture->is_invalid ? 2 : 1;
    return SUCCESS;
}

CUDA cuStreamEndCapture(void* handle, void** out) {
    Lock lock(driver.mutex);
    *out = nullptr;
    std::shared_ptr<Stream> stream;
    if (int error = stream_of(handle, stream)) return error;
    std::shared_ptr<Capture> capture = stream->capture;
    if (!capture) return refuse(ILLEGAL_STATE, "the stream is not captured");
    if (capture->origin.lock() != stream) return refuse(CAPTURE_UNMATCHED, "the capture began in another stream");
    if (capture->mode != 2 && capture->thread != std::this_thread::get_id())
        return refuse(CAPTURE_WRONG_THREAD, "the capture was begun by another thread");
    leave(*capture);
    if (int error = struck(POINT_CAPTURE)) return error;
    if (capture->is_invalid) return refuse(CAPTURE_INVALIDATED, "the capture was invalidated");
    if (replay(*capture, [](u32, const Item&) {}, false) < capture->nodes.size())
        return refuse(CAPTURE_UNJOINED, "the capture has work of another stream, which nothing waits for");
    u64 graph = driver.handle();
    driver.graphs.entries[graph] = capture;
    *out = (void*)(std::uintptr_t)graph;
    return SUCCESS;
}

CUDA cuGraphInstantiateWithFlags(void** out, void* handle, u64 flags) {
    Lock lock(driver.mutex);
    std::shared_ptr<Capture>* graph = driver.graphs.find(handle);
    if (!graph) return refuse(INVALID_HANDLE, "no such graph");
    if (int error = struck(POINT_CAPTURE)) return error;
    if (flags & ~(u64)(1 | 2 | 8)) return refuse(INVALID_VALUE, "flags %llu of a graph", flags);
    u64 executable = driver.handle();
    driver.executables.entries[executable] = *graph;
    *out = (void*)(std::uintptr_t)executable;
    return SUCCESS;
}

static int executable_of(void* handle, std::shared_ptr<Capture>& graph) {
    std::shared_ptr<Capture>* found = driver.executables.find(handle);
    if (!found) return refuse(INVALID_HANDLE, "no such executable graph");
    graph = *found;
    return SUCCESS;
}

CUDA cuGraphUpload(void* handle, void* stream_handle) {
    Lock lock(driver.mutex);
    std::shared_ptr<Stream> stream;
    if (int error = stream_of(stream_handle, stream)) return error;
    std::shared_ptr<Capture> graph;
    return executable_of(handle, graph);
}

CUDA cuGraphLaunch(void* handle, void* stream_handle) {
    Lock lock(driver.mutex);
    std::shared_ptr<Stream> stream;
    if (int error = stream_of(stream_handle, stream)) return error;
    std::shared_ptr<Capture> graph;
    if (int error = executable_of(handle, graph)) return error;
    for (auto& weak : graph->contexts) {
        std::shared_ptr<Context> context = weak.lock();
        if (!context) return refuse(INVALID_CONTEXT, "a graph of a device whose context has ended");
        if (context->error) return context->error;
    }
    if (int error = struck(POINT_CAPTURE)) return error;
    Item item;
    item.work = [graph] {
        driver.counts.graph_launches++;
        return run_graph(*graph);
    };
    return submit(stream, item, false);
}

CUDA cuGraphExecDestroy(void* handle) {
    Lock lock(driver.mutex);
    std::shared_ptr<Capture> graph;
    if (int error = executable_of(handle, graph)) return error;
    driver.executables.entries.erase((u64)(std::uintptr_t)handle);
    return SUCCESS;
}

CUDA cuGraphDestroy(void* handle) {
    Lock lock(driver.mutex);
    if (!driver.graphs.find(handle)) return refuse(INVALID_HANDLE, "no such graph");
    driver.graphs.entries.erase((u64)(std::uintptr_t)handle);
    return SUCCESS;
}
