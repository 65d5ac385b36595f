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

#include <chrono>
#include <array>
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
    /* Empty, it will hold state of an adapter, say from a restore; 0 is the model alone. */
    void adapt(std::uint64_t adapter) { detail::check(model_, ictus_tick_sequence_adapt(model_, sequence_, adapter)); }
    void publish(const std::vector<std::uint32_t> &tokens) {
        const std::uint32_t count = static_cast<std::uint32_t>(tokens.size());
        detail::check(model_, ictus_tick_sequence_publish(model_, sequence_, tokens.data(), count));
        sequence_ = nullptr;
    }

private:
    ictus_model_t model_;
    ictus_sequence_t sequence_;
};

/* A loaded adapter: unloaded with the object; lanes that have it keep it. Must not outlive its model. */
class Adapter {
public:
    Adapter(ictus_model_t model, std::uint64_t adapter) : model_(model), adapter_(adapter) {}
    Adapter(Adapter &&other) noexcept : model_(other.model_), adapter_(std::exchange(other.adapter_, 0)) {}
    Adapter &operator=(Adapter &&other) noexcept {
        std::swap(model_, other.model_);
        std::swap(adapter_, other.adapter_);
        return *this;
    }
    Adapter(const Adapter &) = delete;
    Adapter &operator=(const Adapter &) = delete;
    ~Adapter() {
        if (adapter_ != 0) ictus_adapter_unload(model_, adapter_);
    }

    std::uint64_t handle() const noexcept { return adapter_; }
    /* The next lane that is admitted under the tag has it. */
    void bind(std::uint64_t lane_tag) const { detail::check(model_, ictus_adapter_bind(model_, lane_tag, adapter_)); }
    /* Identity of what it computes. */
    std::array<std::uint8_t, 32> digest() const {
        std::array<std::uint8_t, 32> digest{};
        detail::check(model_, ictus_adapter_digest(model_, adapter_, digest.data()));
        return digest;
    }

private:
    ictus_model_t model_;
    std::uint64_t adapter_;
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
    /* What a live lane has cost so far. */
    ictus_lane_cost_t lane_cost(std::uint64_t lane_tag) const {
        ictus_lane_cost_t cost{};
        cost.struct_size = sizeof cost;
        check(ictus_lane_cost(model_, lane_tag, &cost));
        return cost;
    }
    /* Records what the engine does into a file for a trace viewer, until timeline_stop. */
    void timeline_start(const std::string &path) { check(ictus_timeline_start(model_, path.c_str())); }
    void timeline_stop() { check(ictus_timeline_stop(model_)); }
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

    /* What the model recommends for sampling; never applied unasked. */
    ictus_claimed_sampling_t sampling_defaults() const {
        ictus_claimed_sampling_t defaults{};
        defaults.struct_size = sizeof defaults;
        check(ictus_model_sampling_defaults(model_, &defaults));
        return defaults;
    }

    /* Loads a LoRA adapter from a PEFT directory or a GGUF file. */
    Adapter load_adapter(const std::string &path) {
        std::uint64_t adapter = 0;
        check(ictus_adapter_load(model_, path.c_str(), &adapter));
        return Adapter(model_, adapter);
    }
    /* The adapter of lanes that are admitted later and whose tag is not bound. */
    void load_default_adapter(const std::string &path) { check(ictus_lora_load(model_, path.c_str())); }
    void unload_default_adapter() { check(ictus_lora_unload(model_)); }

    /* The pooled hidden states of a text; the capability descriptor says how they are pooled. */
    std::vector<float> embed(const std::vector<std::uint32_t> &tokens) const {
        return filled<float>(info().hidden, [&](float *buffer, std::uint64_t capacity, std::uint64_t *count) {
            return ictus_embed(model_, tokens.data(), tokens.size(), buffer, capacity, count);
        });
    }
    std::uint32_t layers() const {
        std::uint32_t layers = 0;
        check(ictus_layers(model_, &layers));
        return layers;
    }
    /* Runs some layers over a text. The last stage gives no bytes but sets `token`, which is ICTUS_NO_TOKEN otherwise. */
    std::vector<std::uint8_t> forward_stage(const std::vector<std::uint32_t> &tokens, std::uint32_t first, std::uint32_t end,
                                            const std::vector<std::uint8_t> &incoming, std::uint32_t &token) const {
        return filled<std::uint8_t>(0, [&](std::uint8_t *buffer, std::uint64_t capacity, std::uint64_t *bytes) {
            return ictus_forward_stage(model_, tokens.data(), tokens.size(), first, end, incoming.data(), incoming.size(),
                                       buffer, capacity, bytes, &token);
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

#endif /* ICTUS_HPP */
