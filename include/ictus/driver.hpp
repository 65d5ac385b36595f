/* ictus/driver.hpp: requests in, tokens and text out. Include ictus.hpp. */
#ifndef ICTUS_DRIVER_HPP
#define ICTUS_DRIVER_HPP

#include "model.hpp"

#include <chrono>
#include <cstdint>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

namespace ictus {

/* What a driver is made with; see ictus_driver_options_t. */
struct DriverOptions {
    ictus_driver_options_t record{};

    DriverOptions() { record.struct_size = sizeof record; }
    /* A thread of its own, rather than Driver::step. */
    DriverOptions &threaded(bool on = true) {
        record.flags = on ? record.flags | ICTUS_DRIVER_THREAD : record.flags & ~ICTUS_DRIVER_THREAD;
        return *this;
    }
};

/* A prompt, how to answer it, and when to stop. Greedy, 256 tokens, until something else is said. */
class Request {
public:
    /* A text, with what the model wants around it. */
    explicit Request(std::string prompt, std::uint32_t text_flags = ICTUS_TEXT_ADD_SPECIAL) : text_(std::move(prompt)) {
        record_.text_flags = text_flags;
    }
    explicit Request(std::vector<std::uint32_t> prompt) : tokens_(std::move(prompt)), of_tokens_(true) {}

    /* Everything that has no function of its own. Pointers are set by the functions below. */
    ictus_request_t &record() { return record_; }
    Request &max_tokens(std::uint64_t tokens) {
        record_.max_tokens = tokens;
        return *this;
    }
    Request &priority(std::int32_t priority) {
        record_.priority = priority;
        return *this;
    }
    Request &deadline(std::chrono::nanoseconds deadline) {
        record_.deadline_ns = static_cast<std::uint64_t>(deadline.count());
        return *this;
    }
    Request &sampling(const ictus_sampling_params_t &params, std::uint64_t rng_counter_base = 0) {
        record_.params = params;
        record_.rng_counter_base = rng_counter_base;
        return *this;
    }
    Request &logprobs(std::uint32_t alternatives) {
        record_.want_logprobs = alternatives + 1;
        return *this;
    }
    Request &stop(std::string text) {
        stops_.push_back(std::move(text));
        return *this;
    }
    Request &stop_token(std::uint32_t token) {
        stop_tokens_.push_back(token);
        return *this;
    }
    Request &bias(std::uint32_t token, float addend) {
        bias_tokens_.push_back(token);
        bias_values_.push_back(addend);
        return *this;
    }
    Request &json_schema(std::string schema) {
        schema_ = std::move(schema);
        return *this;
    }
    Request &structural_tags(std::string document) {
        tags_ = std::move(document);
        return *this;
    }

    /* Calls `use` with the record for ictus_driver_submit, whose pointers are good during that call. */
    template <class Use> auto with_record(Use use) const {
        ictus_request_t record = record_;
        record.struct_size = sizeof record;
        if (of_tokens_) {
            // An empty list is a prompt too, a bad one: it must not look like none.
            static const std::uint32_t none = 0;
            record.prompt_tokens = tokens_.empty() ? &none : tokens_.data();
            record.n_prompt_tokens = tokens_.size();
        } else {
            record.prompt_text = text_.c_str();
            record.prompt_bytes = text_.size();
        }
        std::vector<const char *> stops;
        for (const std::string &text : stops_) stops.push_back(text.c_str());
        record.stop_strings = stops.data();
        record.n_stop_strings = stops.size();
        record.stop_tokens = stop_tokens_.data();
        record.n_stop_tokens = stop_tokens_.size();
        record.bias_tokens = bias_tokens_.data();
        record.bias_values = bias_values_.data();
        record.n_bias = bias_tokens_.size();
        if (!schema_.empty()) record.grammar_schema = schema_.c_str();
        if (!tags_.empty()) record.grammar_tags = tags_.c_str();
        return use(&record);
    }

private:
    ictus_request_t record_{};
    std::string text_;
    std::vector<std::uint32_t> tokens_;
    bool of_tokens_ = false;
    std::vector<std::string> stops_;
    std::vector<std::uint32_t> stop_tokens_;
    std::vector<std::uint32_t> bias_tokens_;
    std::vector<float> bias_values_;
    std::string schema_;
    std::string tags_;
};

/* Something that happened to a request. */
struct DriverEvent {
    /* Kind, reason, statistics. */
    ictus_driver_event_t record{};
    std::vector<std::uint32_t> tokens;
    std::string text;
    std::vector<ictus_lane_logprob_t> logprobs;

    std::uint64_t request() const { return record.request; }
    bool started() const { return record.kind == ICTUS_EVENT_STARTED; }
    bool finished() const { return record.kind == ICTUS_EVENT_FINISHED; }
};

class Driver;

/* The events of one request: for (const DriverEvent &event : stream) ends after the last one. Dropping it before that cancels the
 * request. Must not outlive its driver. */
class Stream {
public:
    class iterator {
    public:
        using iterator_category = std::input_iterator_tag;
        using value_type = DriverEvent;
        using difference_type = std::ptrdiff_t;
        using pointer = const DriverEvent *;
        using reference = const DriverEvent &;

        iterator() = default;
        explicit iterator(Stream *stream) : stream_(stream) { ++*this; }
        reference operator*() const { return stream_->current_; }
        pointer operator->() const { return &stream_->current_; }
        inline iterator &operator++();
        bool operator==(const iterator &other) const { return stream_ == other.stream_; }
        bool operator!=(const iterator &other) const { return stream_ != other.stream_; }

    private:
        Stream *stream_ = nullptr;
    };

    Stream(Driver &driver, std::uint64_t request) : driver_(&driver), request_(request) {}
    Stream(Stream &&other) noexcept
        : driver_(other.driver_), request_(std::exchange(other.request_, 0)), current_(std::move(other.current_)) {}
    Stream &operator=(Stream &&other) noexcept {
        std::swap(driver_, other.driver_);
        std::swap(request_, other.request_);
        std::swap(current_, other.current_);
        return *this;
    }
    Stream(const Stream &) = delete;
    Stream &operator=(const Stream &) = delete;
    inline ~Stream();

    /* 0 once the last event was read. */
    std::uint64_t request() const noexcept { return request_; }
    inline void cancel();
    /* Waits for the next event, stepping a driver without a thread. False after the last one. */
    inline bool next(DriverEvent &event);
    iterator begin() { return iterator(this); }
    iterator end() { return iterator(); }

private:
    friend class iterator;

    Driver *driver_;
    std::uint64_t request_;
    DriverEvent current_;
};

/* Requests in, tokens and text out. Must not outlive its model. */
class Driver {
public:
    explicit Driver(Model &model, const DriverOptions &options = DriverOptions()) : model_(model.handle()) {
        check(ictus_driver_create(model_, &options.record, &driver_));
        threaded_ = (options.record.flags & ICTUS_DRIVER_THREAD) != 0;
    }
    /* Streams point at their driver, so it does not move. */
    Driver(const Driver &) = delete;
    Driver &operator=(const Driver &) = delete;
    ~Driver() { ictus_driver_destroy(driver_); }

    ictus_driver_t handle() const noexcept { return driver_; }
    bool threaded() const noexcept { return threaded_; }
    Stream submit(const Request &request) {
        std::uint64_t number = 0;
        check(request.with_record([&](const ictus_request_t *record) {
            return ictus_driver_submit(driver_, record, &number);
        }));
        return Stream(*this, number);
    }
    /* False when there is no such request any more. */
    bool cancel(std::uint64_t request) {
        const ictus_status status = ictus_driver_cancel(driver_, request);
        if (status == ICTUS_ERR_UNKNOWN_HANDLE) return false;
        check(status);
        return true;
    }
    /* One tick of a driver without a thread: one of ICTUS_DRIVER_IDLE, ICTUS_DRIVER_WORKED, ICTUS_DRIVER_STALLED. */
    std::uint32_t step() {
        std::uint32_t progress = ICTUS_DRIVER_IDLE;
        check(ictus_driver_step(driver_, &progress));
        return progress;
    }
    /* The next event of a request, or of any with 0; a kind of ICTUS_EVENT_NONE when there is none in time. False when none will come. */
    bool next_event(std::uint64_t request, DriverEvent &event, std::uint64_t timeout_ns = UINT64_MAX) {
        event.tokens.resize(16);
        event.text.resize(256);
        event.logprobs.clear();
        ictus_status status = take(request, event, timeout_ns);
        if (status == ICTUS_ERR_BUFFER_TOO_SMALL) {
            event.tokens.resize(static_cast<std::size_t>(event.record.n_tokens));
            // The NUL wants room too.
            event.text.resize(static_cast<std::size_t>(event.record.text_bytes) + 1);
            event.logprobs.resize(static_cast<std::size_t>(event.record.n_logprobs));
            status = take(request, event, timeout_ns);
        }
        if (status == ICTUS_ERR_UNKNOWN_HANDLE) return false;
        check(status);
        event.tokens.resize(static_cast<std::size_t>(event.record.n_tokens));
        event.text.resize(static_cast<std::size_t>(event.record.text_bytes));
        return true;
    }

private:
    void check(ictus_status status) const { detail::check(model_, status); }
    ictus_status take(std::uint64_t request, DriverEvent &event, std::uint64_t timeout_ns) {
        event.record = ictus_driver_event_t{};
        event.record.struct_size = sizeof event.record;
        return ictus_driver_next_event(driver_, request, timeout_ns, &event.record, event.tokens.data(), event.tokens.size(),
                                       event.text.data(), event.text.size(), event.logprobs.data(), event.logprobs.size());
    }

    ictus_model_t model_;
    ictus_driver_t driver_ = nullptr;
    bool threaded_ = false;
};

inline bool Stream::next(DriverEvent &event) {
    while (request_ != 0 && driver_->next_event(request_, event)) {
        if (event.record.kind != ICTUS_EVENT_NONE) {
            if (event.finished()) request_ = 0;
            return true;
        }
        // A driver with a thread was waited for. One without steps here; should it be idle, there is nothing to wait for.
        if (!driver_->threaded() && driver_->step() == ICTUS_DRIVER_IDLE) break;
    }
    request_ = 0;
    return false;
}

inline void Stream::cancel() {
    if (request_ != 0) driver_->cancel(request_);
}

inline Stream::~Stream() {
    if (request_ != 0) ictus_driver_cancel(driver_->handle(), request_);
}

inline Stream::iterator &Stream::iterator::operator++() {
    if (!stream_->next(stream_->current_)) stream_ = nullptr;
    return *this;
}

} // namespace ictus

#endif /* ICTUS_DRIVER_HPP */
