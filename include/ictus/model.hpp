/* ictus/model.hpp: a model, with its texts, sequences and adapters. Include ictus.hpp. */
#ifndef ICTUS_MODEL_HPP
#define ICTUS_MODEL_HPP

#include "base.hpp"
#include "tick.hpp"

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace ictus {

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
    /* The engine in a process of its own: the path of the worker program, or an empty text to look for it. */
    std::optional<std::string> worker;

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
        if (options.worker) options.record.worker = options.worker->c_str();
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

#endif /* ICTUS_MODEL_HPP */
