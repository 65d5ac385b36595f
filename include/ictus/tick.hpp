/* ictus/tick.hpp: what a tick is asked, and what it answers. Include ictus.hpp. */
#ifndef ICTUS_TICK_HPP
#define ICTUS_TICK_HPP

#include "base.hpp"

#include <cstdint>
#include <vector>

namespace ictus {

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

} // namespace ictus

#endif /* ICTUS_TICK_HPP */
