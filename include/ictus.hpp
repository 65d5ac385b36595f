/* ictus.hpp: C++17 over ictus.h, header-only.
 *
 * Each class owns one handle and releases it: move-only, empty after a move. What the C functions refuse is thrown as
 * ictus::Error, which carries the status and the text of the failure; Model::try_tick returns the status instead, for hosts to which
 * a refused plan is an ordinary answer. Views (Events, Span) point into the model and are valid as long as ictus.h says.
 *
 * Threads: as in ictus.h. A Model may be used from any thread, one call at a time; Model::set_yield and Model::set_latency at any
 * time. Callbacks must not throw; those of this header catch what they call.
 */
#ifndef ICTUS_HPP
#define ICTUS_HPP

#include "ictus.h"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <iterator>
#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace ictus {

/* A call that was refused. Nothing has changed, unless the status is ICTUS_ERR_FATAL. */
class Error : public std::runtime_error {
public:
    Error(ictus_status status, const std::string &text) : std::runtime_error(text), status_(status) {}
    ictus_status status() const noexcept { return status_; }

private:
    ictus_status status_;
};

/* A list that the model owns. */
template <class T> class Span {
public:
    class iterator {
    public:
        using iterator_category = std::forward_iterator_tag;
        using value_type = T;
        using difference_type = std::ptrdiff_t;
        using pointer = const T *;
        using reference = const T &;

        iterator() = default;
        iterator(const unsigned char *at, std::size_t stride) : at_(at), stride_(stride) {}
        reference operator*() const { return *reinterpret_cast<const T *>(at_); }
        pointer operator->() const { return reinterpret_cast<const T *>(at_); }
        iterator &operator++() {
            at_ += stride_;
            return *this;
        }
        iterator operator++(int) {
            iterator before = *this;
            ++*this;
            return before;
        }
        bool operator==(const iterator &other) const { return at_ == other.at_; }
        bool operator!=(const iterator &other) const { return at_ != other.at_; }

    private:
        const unsigned char *at_ = nullptr;
        std::size_t stride_ = 0;
    };

    Span() = default;
    explicit Span(const ictus_array_t &array)
        : data_(static_cast<const unsigned char *>(array.data)), count_(array.count), stride_(array.elem_size) {}

    std::size_t size() const noexcept { return count_; }
    bool empty() const noexcept { return count_ == 0; }
    iterator begin() const { return {data_, stride_}; }
    iterator end() const { return {data_ == nullptr ? nullptr : data_ + count_ * stride_, stride_}; }
    /* Unchecked. */
    const T &operator[](std::size_t index) const { return *reinterpret_cast<const T *>(data_ + index * stride_); }
    const T &at(std::size_t index) const {
        if (index >= count_) throw std::out_of_range("ictus: no element with this index");
        return (*this)[index];
    }

private:
    const unsigned char *data_ = nullptr;
    std::size_t count_ = 0;
    std::size_t stride_ = 0;
};

/* What a tick answered. Valid until the next tick of the model. */
class Events {
public:
    Events() = default;
    explicit Events(const ictus_tick_events_t *record) : record_(record) {}

    const ictus_tick_events_t &record() const { return *record_; }
    std::uint64_t plan_seq() const { return record_->plan_seq; }
    std::uint32_t tick_status() const { return record_->tick_status; }
    Span<ictus_admit_result_t> admit_results() const { return Span<ictus_admit_result_t>(record_->admit_results); }
    Span<ictus_lane_emit_t> emits() const { return Span<ictus_lane_emit_t>(record_->emits); }
    Span<ictus_lane_fault_t> faults() const { return Span<ictus_lane_fault_t>(record_->faults); }
    Span<ictus_shed_entry_t> shed() const { return Span<ictus_shed_entry_t>(record_->shed.entries); }
    Span<ictus_op_complete_t> op_completions() const { return Span<ictus_op_complete_t>(record_->op_completions); }
    Span<ictus_lane_logprob_t> logprobs() const { return Span<ictus_lane_logprob_t>(record_->logprobs); }

    /* The emit of a lane; null when it emitted nothing. */
    const ictus_lane_emit_t *emit_for(std::uint64_t lane_tag) const {
        for (const ictus_lane_emit_t &emit : emits())
            if (emit.lane_tag == lane_tag) return &emit;
        return nullptr;
    }

private:
    const ictus_tick_events_t *record_ = nullptr;
};

/* Builds a plan, record by record. Starts as: no flags, 4096 tokens of prefill, 8 decode lanes, all of the cache may be evicted. */
class Plan {
public:
    explicit Plan(std::uint64_t plan_seq) {
        plan_.struct_size = sizeof plan_;
        plan_.plan_seq = plan_seq;
        plan_.prefill_token_budget = 4096;
        plan_.max_decode_lanes = 8;
        plan_.shed_policy.evictable_cache_classes = UINT64_MAX;
        plan_.shed_policy.max_evict_bytes = UINT64_MAX;
    }

    Plan &flags(std::uint32_t flags) {
        plan_.flags = flags;
        return *this;
    }
    Plan &prefill_budget(std::uint32_t tokens) {
        plan_.prefill_token_budget = tokens;
        return *this;
    }
    Plan &max_decode_lanes(std::uint32_t lanes) {
        plan_.max_decode_lanes = lanes;
        return *this;
    }
    Plan &shed_policy(const ictus_shed_policy_t &policy) {
        plan_.shed_policy = policy;
        return *this;
    }
    /* Told every token as it is picked, on the ticking thread; it must neither throw nor call the model. */
    Plan &on_partial_emit(ictus_partial_emit_fn callback, void *user) {
        plan_.flags |= ICTUS_TICK_PARTIAL_EMITS;
        plan_.on_partial_emit = callback;
        plan_.partial_emit_user = user;
        return *this;
    }
    /* Greedy, until an end token. */
    Plan &admit(std::uint64_t lane_tag, const ictus_token_ref_t &prompt) {
        ictus_lane_admit_t record{};
        record.lane_tag = lane_tag;
        record.prompt = prompt;
        return admit(record);
    }
    Plan &admit(const ictus_lane_admit_t &record) {
        admits_.push_back(record);
        return *this;
    }
    Plan &commit(std::uint64_t lane_tag, std::uint32_t token, std::uint64_t logits_nonce) {
        ictus_lane_commit_t record{};
        record.lane_tag = lane_tag;
        record.token_id = token;
        record.logits_nonce = logits_nonce;
        commits_.push_back(record);
        return *this;
    }
    Plan &prefill(std::uint64_t lane_tag, std::uint32_t token_offset, std::uint32_t token_count) {
        ictus_lane_prefill_t record{};
        record.lane_tag = lane_tag;
        record.token_offset = token_offset;
        record.token_count = token_count;
        prefills_.push_back(record);
        return *this;
    }
    Plan &decode(std::uint64_t lane_tag, std::uint16_t max_new_tokens, std::uint16_t overshoot = 0) {
        ictus_lane_decode_t record{};
        record.lane_tag = lane_tag;
        record.max_new_tokens = max_new_tokens;
        record.overshoot = overshoot;
        decodes_.push_back(record);
        return *this;
    }
    Plan &retire(std::uint64_t lane_tag, bool publish = false) {
        ictus_lane_retire_t record{};
        record.lane_tag = lane_tag;
        record.publish_to_cache = publish ? 1 : 0;
        retires_.push_back(record);
        return *this;
    }

    /* The record for ictus_tick; it points into this builder, which must stay as it is meanwhile. */
    const ictus_tick_plan_t *build() {
        plan_.admits = array_of(admits_);
        plan_.commits = array_of(commits_);
        plan_.prefills = array_of(prefills_);
        plan_.decodes = array_of(decodes_);
        plan_.retires = array_of(retires_);
        return &plan_;
    }

private:
    template <class T> static ictus_array_t array_of(const std::vector<T> &records) {
        if (records.empty()) return {nullptr, 0, 0};
        return {records.data(), static_cast<std::uint32_t>(records.size()), sizeof(T)};
    }

    ictus_tick_plan_t plan_{};
    std::vector<ictus_lane_admit_t> admits_;
    std::vector<ictus_lane_commit_t> commits_;
    std::vector<ictus_lane_prefill_t> prefills_;
    std::vector<ictus_lane_decode_t> decodes_;
    std::vector<ictus_lane_retire_t> retires_;
};

namespace detail {

/* Calls `fill(buffer, capacity, &count)` with a buffer that is large enough. */
template <class T, class Fill, class Check> std::vector<T> filled(std::size_t guess, Fill fill, Check check) {
    std::vector<T> values(guess);
    std::uint64_t count = 0;
    ictus_status status = fill(values.data(), values.size(), &count);
    if (status == ICTUS_ERR_BUFFER_TOO_SMALL) {
        // One more than the count: a text is followed by a NUL that is not counted.
        values.resize(static_cast<std::size_t>(count) + 1);
        status = fill(values.data(), values.size(), &count);
    }
    check(status);
    values.resize(static_cast<std::size_t>(count));
    return values;
}

inline std::string text_of(const std::vector<char> &bytes) { return std::string(bytes.begin(), bytes.end()); }

inline std::string last_error(ictus_model_t model) {
    std::vector<char> text = filled<char>(
        256,
        [&](char *buffer, std::uint64_t capacity, std::uint64_t *bytes) {
            return ictus_model_last_error(model, buffer, capacity, bytes);
        },
        [](ictus_status) {});
    return text_of(text);
}

inline void check(ictus_model_t model, ictus_status status) {
    if (status == ICTUS_STATUS_OK) return;
    std::string text = last_error(model);
    throw Error(status, text.empty() ? ictus_status_text(status) : text);
}

} // namespace detail

/* A text that grows token by token and never shows half a character. Ends with the object. Must not outlive its model. */
class Text {
public:
    Text(ictus_model_t model, std::uint32_t flags) : model_(model) {
        detail::check(model_, ictus_text_begin(model_, flags, &text_));
    }
    Text(Text &&other) noexcept : model_(other.model_), text_(std::exchange(other.text_, 0)) {}
    Text &operator=(Text &&other) noexcept {
        std::swap(model_, other.model_);
        std::swap(text_, other.text_);
        return *this;
    }
    Text(const Text &) = delete;
    Text &operator=(const Text &) = delete;
    ~Text() {
        char rest[8];
        std::uint64_t bytes = 0;
        if (text_ != 0) ictus_text_end(model_, text_, rest, sizeof rest, &bytes);
    }

    /* The text that is certain after this token and was not before. */
    std::string push(std::uint32_t token) {
        return detail::text_of(detail::filled<char>(
            64,
            [&](char *buffer, std::uint64_t capacity, std::uint64_t *bytes) {
                return ictus_text_push(model_, text_, token, buffer, capacity, bytes);
            },
            [&](ictus_status status) { detail::check(model_, status); }));
    }
    /* What is left; the text has ended. */
    std::string end() {
        char rest[8];
        std::uint64_t bytes = 0;
        detail::check(model_, ictus_text_end(model_, text_, rest, sizeof rest, &bytes));
        text_ = 0;
        return std::string(rest, static_cast<std::size_t>(bytes));
    }

private:
    ictus_model_t model_;
    std::uint64_t text_ = 0;
};

/* A bare sequence: freed with the object, unless it was published or released. Must not outlive its model. */
class Sequence {
public:
    Sequence(ictus_model_t model, ictus_sequence_t sequence) : model_(model), sequence_(sequence) {}
    Sequence(Sequence &&other) noexcept : model_(other.model_), sequence_(std::exchange(other.sequence_, nullptr)) {}
    Sequence &operator=(Sequence &&other) noexcept {
        std::swap(model_, other.model_);
        std::swap(sequence_, other.sequence_);
        return *this;
    }
    Sequence(const Sequence &) = delete;
    Sequence &operator=(const Sequence &) = delete;
    ~Sequence() {
        if (sequence_ != nullptr) ictus_tick_sequence_free(model_, sequence_);
    }

    ictus_sequence_t handle() const noexcept { return sequence_; }
    /* Gives the handle up: the caller frees it, or a lane owns it now. */
    ictus_sequence_t release() noexcept { return std::exchange(sequence_, nullptr); }
    Sequence fork(std::uint32_t flags = 0) const {
        ictus_sequence_t child = nullptr;
        detail::check(model_, ictus_seq_fork(sequence_, &child, flags));
        return Sequence(model_, child);
    }
    void publish(const std::vector<std::uint32_t> &tokens) {
        const std::uint32_t count = static_cast<std::uint32_t>(tokens.size());
        detail::check(model_, ictus_tick_sequence_publish(model_, sequence_, tokens.data(), count));
        sequence_ = nullptr;
    }

private:
    ictus_model_t model_;
    ictus_sequence_t sequence_;
};

/* What to open a model with. */
struct Options {
    ictus_model_options_t record{};
    /* Told the bytes that are ready and all bytes; another answer than true breaks off. */
    std::function<bool(std::uint64_t done_bytes, std::uint64_t total_bytes)> on_progress;

    Options() { record.struct_size = sizeof record; }
};

/* A model and its engine. */
class Model {
public:
    /* Takes over a handle. */
    explicit Model(ictus_model_t model) : model_(model) {}
    Model(Model &&other) noexcept : model_(std::exchange(other.model_, nullptr)), on_log_(std::move(other.on_log_)) {}
    Model &operator=(Model &&other) noexcept {
        std::swap(model_, other.model_);
        std::swap(on_log_, other.on_log_);
        return *this;
    }
    Model(const Model &) = delete;
    Model &operator=(const Model &) = delete;
    ~Model() {
        if (model_ != nullptr) ictus_model_free(model_);
    }

    /* Opens a GGUF file or a Hugging Face directory. */
    static Model open(const std::string &path, Options options = Options()) {
        // The views of this header take the library's records as they lie.
        if (ictus_abi_hash() != ICTUS_ABI_HASH)
            throw Error(ICTUS_REJECT_BAD_STRUCT, "ictus: header and library are of different versions");
        char text[512] = "";
        ictus_model_t model = nullptr;
        prepare(options);
        const ictus_status status = ictus_model_open(path.c_str(), &options.record, text, sizeof text, &model);
        if (status != ICTUS_STATUS_OK) throw Error(status, text);
        return Model(model);
    }
    /* The bytes that it would take; nothing is loaded. */
    static ictus_model_plan_t plan(const std::string &path, Options options = Options()) {
        char text[512] = "";
        ictus_model_plan_t plan{};
        plan.struct_size = sizeof plan;
        const ictus_status status = ictus_model_plan(path.c_str(), &options.record, text, sizeof text, &plan);
        if (status != ICTUS_STATUS_OK) throw Error(status, text);
        return plan;
    }

    ictus_model_t handle() const noexcept { return model_; }
    std::string last_error() const { return detail::last_error(model_); }
    ictus_model_info_t info() const {
        ictus_model_info_t info{};
        info.struct_size = sizeof info;
        check(ictus_model_info(model_, &info));
        return info;
    }
    /* JSON; empty when the engine does not say. */
    std::string capability_descriptor() const {
        const char *text = ictus_capability_descriptor(model_);
        return text == nullptr ? std::string() : std::string(text);
    }
    /* Sends what the model has to say up to a level (ICTUS_LOG_*) to a function. */
    void on_log(std::uint32_t level, std::function<void(std::uint32_t level, const char *text)> callback) {
        auto kept = std::make_unique<LogCallback>(std::move(callback));
        check(ictus_model_log(model_, level, log_line, kept.get()));
        on_log_ = std::move(kept);
    }

    /* Rings in memory of the model, for stage_prompt, read_tokens and read_logits. */
    void create_rings() { check(ictus_model_rings_create(model_, nullptr)); }
    void create_rings(ictus_ring_shape_t shape) {
        shape.struct_size = sizeof shape;
        check(ictus_model_rings_create(model_, &shape));
    }
    void attach_rings(const std::vector<ictus_ring_desc_t> &descs) {
        check(ictus_rings_attach(model_, descs.data(), static_cast<std::uint32_t>(descs.size())));
    }
    ictus_token_ref_t stage_prompt(const std::vector<std::uint32_t> &tokens) {
        ictus_token_ref_t reference{};
        check(ictus_model_stage_prompt(model_, tokens.data(), tokens.size(), &reference));
        return reference;
    }
    std::vector<std::uint32_t> read_tokens(const ictus_token_ref_t &reference) const {
        return filled<std::uint32_t>(reference.count, [&](std::uint32_t *buffer, std::uint64_t capacity, std::uint64_t *count) {
            return ictus_model_read_tokens(model_, &reference, buffer, capacity, count);
        });
    }
    std::vector<float> read_logits(const ictus_ring_ref_t &reference) const {
        return filled<float>(0, [&](float *buffer, std::uint64_t capacity, std::uint64_t *count) {
            return ictus_model_read_logits(model_, &reference, buffer, capacity, count);
        });
    }
    void set_yield(bool on) { check(ictus_model_set_yield(model_, on ? 1 : 0)); }
    void set_latency(bool on) { check(ictus_model_set_latency(model_, on ? 1 : 0)); }

    /* Runs a plan. A refusal is thrown, and has changed nothing. */
    Events tick(Plan &plan) {
        Events events;
        check(try_tick(plan, events));
        return events;
    }
    /* Runs a plan; `events` is as before unless the status is ICTUS_STATUS_OK. */
    ictus_status try_tick(Plan &plan, Events &events) {
        const ictus_tick_events_t *record = nullptr;
        const ictus_status status = ictus_tick(model_, plan.build(), &record);
        if (status == ICTUS_STATUS_OK) events = Events(record);
        return status;
    }

    std::vector<std::uint32_t> tokenize(std::string_view text, std::uint32_t flags = ICTUS_TEXT_ADD_SPECIAL) const {
        return filled<std::uint32_t>(text.size() + 2, [&](std::uint32_t *buffer, std::uint64_t capacity, std::uint64_t *count) {
            return ictus_model_tokenize(model_, text.data(), text.size(), flags, buffer, capacity, count);
        });
    }
    std::string detokenize(const std::vector<std::uint32_t> &tokens, std::uint32_t flags = 0) const {
        return detail::text_of(filled<char>(256, [&](char *buffer, std::uint64_t capacity, std::uint64_t *bytes) {
            return ictus_model_detokenize(model_, tokens.data(), tokens.size(), flags, buffer, capacity, bytes);
        }));
    }
    bool is_end(std::uint32_t token) const {
        std::uint32_t is_end = 0;
        check(ictus_model_is_end(model_, token, &is_end));
        return is_end != 0;
    }
    Text begin_text(std::uint32_t flags = 0) { return Text(model_, flags); }
    std::vector<std::uint32_t> chat_tokens(const std::vector<ictus_chat_message_t> &messages,
                                           std::uint32_t flags = ICTUS_CHAT_GENERATION_PROMPT,
                                           std::int64_t now_unix_s = -1) const {
        return filled<std::uint32_t>(256, [&](std::uint32_t *buffer, std::uint64_t capacity, std::uint64_t *count) {
            return ictus_model_chat_tokens(model_, messages.data(), messages.size(), flags, now_unix_s, buffer, capacity, count);
        });
    }

    Sequence create_sequence() {
        const ictus_sequence_t sequence = ictus_tick_sequence_create(model_);
        if (sequence == nullptr) throw Error(ICTUS_NEEDS_REPLAN, last_error());
        return Sequence(model_, sequence);
    }

private:
    using LogCallback = std::function<void(std::uint32_t, const char *)>;

    void check(ictus_status status) const { detail::check(model_, status); }
    template <class T, class Fill> std::vector<T> filled(std::size_t guess, Fill fill) const {
        return detail::filled<T>(guess, fill, [this](ictus_status status) { check(status); });
    }
    static void prepare(Options &options) {
        if (!options.on_progress) return;
        options.record.on_progress = progress;
        options.record.progress_user = &options;
    }
    static std::uint32_t progress(void *user, std::uint64_t done_bytes, std::uint64_t total_bytes) noexcept {
        try {
            return static_cast<Options *>(user)->on_progress(done_bytes, total_bytes) ? 0 : 1;
        } catch (...) {
            return 1;
        }
    }
    static void log_line(void *user, std::uint32_t level, const char *text) noexcept {
        try {
            (*static_cast<LogCallback *>(user))(level, text);
        } catch (...) {
        }
    }

    ictus_model_t model_;
    std::unique_ptr<LogCallback> on_log_;
};

} // namespace ictus

#endif /* ICTUS_HPP */
