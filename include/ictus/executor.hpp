/* ictus/executor.hpp: a model for a host that owns its scheduler. Include ictus.hpp. */
#ifndef ICTUS_EXECUTOR_HPP
#define ICTUS_EXECUTOR_HPP

#include "base.hpp"
#include "capacity.hpp"
#include "model.hpp"

#include <array>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace ictus {

/* A call that an executor refused: it changed nothing. record().blocked says what is short, and its ticket what to wait for. */
class Refusal : public Error {
public:
    Refusal(ictus_status status, const std::string &text, const ictus_refusal_t &record) : Error(status, text), record_(record) {}
    const ictus_refusal_t &record() const noexcept { return record_; }
    /* Something is short for the time being. */
    bool blocked() const noexcept { return record_.kind == ICTUS_REFUSAL_BLOCKED; }
    const ictus_ticket_t &ticket() const noexcept { return record_.blocked.ticket; }

private:
    ictus_refusal_t record_;
};

/* Amounts by domain: units[ICTUS_DOMAIN_BLOCKS - 1]. */
using Units = std::array<std::uint64_t, 7>;

/* What to make an executor with; see ictus_executor_options_t. */
struct ExecutorOptions {
    ictus_executor_options_t record{};

    ExecutorOptions() { record.struct_size = sizeof record; }
    ExecutorOptions &account(const DeviceAccount &account) {
        record.account = account.handle();
        return *this;
    }
};

/* A sequence to be admitted. */
class Admission {
public:
    Admission(std::vector<std::uint32_t> prompt, std::uint64_t ceiling) : prompt_(std::move(prompt)) { record_.ceiling = ceiling; }

    /* Everything that has no function of its own. Pointers are set by the functions below. */
    ictus_admission_t &record() { return record_; }
    /* Outputs that are computed again after a preemption. */
    Admission &replayed(std::vector<std::uint32_t> tokens) {
        replayed_ = std::move(tokens);
        return *this;
    }
    Admission &reuse(bool on = true) {
        record_.flags = on ? record_.flags | ICTUS_ADMISSION_REUSE : record_.flags & ~ICTUS_ADMISSION_REUSE;
        return *this;
    }
    /* The record for ictus_executor_admit; it points into this object. */
    ictus_admission_t built() const {
        ictus_admission_t record = record_;
        record.struct_size = sizeof record;
        record.prompt = prompt_.data();
        record.n_prompt = prompt_.size();
        record.replayed = replayed_.data();
        record.n_replayed = replayed_.size();
        return record;
    }

private:
    ictus_admission_t record_{};
    std::vector<std::uint32_t> prompt_;
    std::vector<std::uint32_t> replayed_;
};

/* A batch, item by item. Items want the plain greedy token, unless they name a record, which must live as long as the batch. */
class Batch {
public:
    Batch &prefill(const ictus_executor_seq_t &seq, std::uint64_t start, std::uint64_t count, std::uint64_t total,
                   const ictus_logits_t *logits = nullptr, bool whole = false) {
        ictus_work_t item = of(seq, ICTUS_WORK_PREFILL, start, logits);
        item.count = count;
        item.total = total;
        item.whole = whole ? 1 : 0;
        return put(item, {});
    }
    Batch &decode(const ictus_executor_seq_t &seq, std::uint64_t at, std::uint32_t token, const ictus_logits_t *logits = nullptr) {
        return put(of(seq, ICTUS_WORK_DECODE, at, logits), {token});
    }
    Batch &verify(const ictus_executor_seq_t &seq, std::uint64_t at, const std::vector<std::uint32_t> &tokens,
                  const ictus_logits_t *logits = nullptr) {
        return put(of(seq, ICTUS_WORK_VERIFY, at, logits), tokens);
    }
    void clear() {
        items_.clear();
        tokens_.clear();
        firsts_.clear();
    }
    std::size_t size() const noexcept { return items_.size(); }
    const std::vector<ictus_work_t> &items() const noexcept { return items_; }

    /* The array for ictus_executor_run; it points into this object, which must stay as it is meanwhile. */
    ictus_array_t build() {
        for (std::size_t index = 0; index < items_.size(); ++index)
            if (items_[index].kind != ICTUS_WORK_PREFILL) items_[index].tokens = tokens_.data() + firsts_[index];
        if (items_.empty()) return {nullptr, 0, 0};
        return {items_.data(), static_cast<std::uint32_t>(items_.size()), sizeof(ictus_work_t)};
    }

private:
    static ictus_work_t of(const ictus_executor_seq_t &seq, std::uint32_t kind, std::uint64_t start, const ictus_logits_t *logits) {
        ictus_work_t item{};
        item.seq = seq;
        item.kind = kind;
        item.start = start;
        item.logits = logits;
        return item;
    }
    Batch &put(ictus_work_t item, const std::vector<std::uint32_t> &tokens) {
        if (item.kind != ICTUS_WORK_PREFILL) item.count = tokens.size();
        firsts_.push_back(tokens_.size());
        tokens_.insert(tokens_.end(), tokens.begin(), tokens.end());
        items_.push_back(item);
        return *this;
    }

    std::vector<ictus_work_t> items_;
    std::vector<std::uint32_t> tokens_;
    std::vector<std::size_t> firsts_;
};

/* What a run answered: a row per item; its tokens are tokens[row.first ...], its values logits[row.first ...]. */
struct Rows {
    std::vector<ictus_row_t> rows;
    std::vector<std::uint32_t> tokens;
    std::vector<float> logits;

    /* The one token of a row. */
    std::uint32_t token(std::size_t index) const {
        const ictus_row_t &row = rows.at(index);
        if (row.kind != ICTUS_OUT_TOKENS || row.count != 1) throw std::out_of_range("ictus: not one token");
        return tokens.at(static_cast<std::size_t>(row.first));
    }
};

/* A core: admit, run, close. Any thread may call it at any time; what is refused is thrown as Refusal, with its evidence. */
class Executor {
public:
    /* Takes over a handle. */
    explicit Executor(ictus_executor_t executor) : executor_(executor), vocab_(info().vocab) {}
    /* Over the weights of a model that is open. */
    explicit Executor(const Model &model, const ExecutorOptions &options = ExecutorOptions()) : Executor(made(model, options)) {}
    /* Opens a model, and makes no engine beside. */
    static Executor open(const std::string &path, const ictus_model_options_t *model_options = nullptr,
                         const ExecutorOptions &options = ExecutorOptions()) {
        char text[512] = "";
        ictus_executor_t executor = nullptr;
        const ictus_status status =
            ictus_executor_open(path.c_str(), model_options, &options.record, text, sizeof text, &executor);
        if (status != ICTUS_STATUS_OK) throw Error(status, text);
        return Executor(executor);
    }
    Executor(Executor &&other) noexcept : executor_(std::exchange(other.executor_, nullptr)), vocab_(other.vocab_) {}
    Executor &operator=(Executor &&other) noexcept {
        std::swap(executor_, other.executor_);
        std::swap(vocab_, other.vocab_);
        return *this;
    }
    Executor(const Executor &) = delete;
    Executor &operator=(const Executor &) = delete;
    /* Shuts it down. */
    ~Executor() {
        if (executor_ != nullptr) ictus_executor_destroy(executor_);
    }

    ictus_executor_t handle() const noexcept { return executor_; }
    Capacity capacity() const { return Capacity(executor_); }
    /* The tick engine on the same core; it can be had once at a time. */
    Model tick_host() {
        ictus_model_t model = nullptr;
        check(ictus_executor_tick_host(executor_, &model));
        return Model(model);
    }
    ictus_executor_info_t info() const {
        ictus_executor_info_t info{};
        info.struct_size = sizeof info;
        check(ictus_executor_info(executor_, &info));
        return info;
    }
    ictus_executor_stats_t stats() const {
        ictus_executor_stats_t stats{};
        stats.struct_size = sizeof stats;
        check(ictus_executor_stats(executor_, &stats));
        return stats;
    }
    void prepare() {
        asked([&](ictus_refusal_t *refusal) { return ictus_executor_prepare(executor_, refusal); });
    }
    ictus_executor_seq_t admit(const Admission &admission) {
        ictus_executor_seq_t seq{};
        const ictus_admission_t record = admission.built();
        asked([&](ictus_refusal_t *refusal) { return ictus_executor_admit(executor_, &record, &seq, refusal); });
        return seq;
    }
    ictus_receipt_t grow(const ictus_blocked_t &blocked) {
        return received([&](ictus_receipt_t *receipt, ictus_refusal_t *refusal) {
            return ictus_executor_grow(executor_, &blocked, receipt, refusal);
        });
    }
    ictus_receipt_t reserve(Batch &batch, std::uint32_t fit = ICTUS_FIT_NOW) {
        return received([&](ictus_receipt_t *receipt, ictus_refusal_t *refusal) {
            return ictus_executor_reserve(executor_, batch.build(), fit, receipt, refusal);
        });
    }
    /* Runs a batch into `rows`, whose buffers are used again. */
    void run(Batch &batch, Rows &rows) {
        std::size_t tokens = 0, values = 0;
        for (const ictus_work_t &item : batch.items()) {
            const bool silent = item.kind == ICTUS_WORK_PREFILL && item.start + item.count != item.total;
            const std::size_t n = silent ? 0 : item.kind == ICTUS_WORK_PREFILL ? 1 : static_cast<std::size_t>(item.count);
            const bool full = item.logits != nullptr && item.logits->kind == ICTUS_LOGITS_FULL;
            (full ? values : tokens) += full ? n * vocab_ : n;
        }
        rows.rows.resize(batch.size());
        rows.tokens.resize(tokens);
        rows.logits.resize(values);
        asked([&](ictus_refusal_t *refusal) {
            return ictus_executor_run(executor_, batch.build(), rows.rows.data(), rows.rows.size(), rows.tokens.data(),
                                      rows.tokens.size(), rows.logits.data(), rows.logits.size(), refusal);
        });
    }
    std::uint64_t frontier(const ictus_executor_seq_t &seq) const {
        std::uint64_t tokens = 0;
        check(ictus_executor_frontier(executor_, seq, &tokens));
        return tokens;
    }
    ictus_receipt_t truncate(const ictus_executor_seq_t &seq, std::uint64_t tokens) {
        return received([&](ictus_receipt_t *receipt, ictus_refusal_t *refusal) {
            return ictus_executor_truncate(executor_, seq, tokens, receipt, refusal);
        });
    }
    Units held(const ictus_executor_seq_t &seq) const {
        Units units{};
        check(ictus_executor_held(executor_, seq, units.data()));
        return units;
    }
    Units frees(const std::vector<ictus_executor_seq_t> &seqs) const {
        Units units{};
        check(ictus_executor_frees(executor_, seqs.data(), seqs.size(), units.data()));
        return units;
    }
    /* `prompt` and `output` are the usage of an answer that is complete (ICTUS_END_COMPLETED). */
    ictus_receipt_t close(const ictus_executor_seq_t &seq, std::uint32_t end, std::uint64_t prompt = 0, std::uint64_t output = 0) {
        return received([&](ictus_receipt_t *receipt, ictus_refusal_t *refusal) {
            return ictus_executor_close(executor_, seq, end, prompt, output, receipt, refusal);
        });
    }
    ictus_receipt_t shutdown() {
        return received([&](ictus_receipt_t *receipt, ictus_refusal_t *refusal) {
            return ictus_executor_shutdown(executor_, receipt, refusal);
        });
    }

private:
    static ictus_executor_t made(const Model &model, const ExecutorOptions &options) {
        ictus_executor_t executor = nullptr;
        detail::check(model.handle(), ictus_executor_create(model.handle(), &options.record, &executor));
        return executor;
    }
    std::string last_error() const {
        return detail::text_of(detail::filled<char>(
            256,
            [&](char *buffer, std::uint64_t capacity, std::uint64_t *bytes) {
                return ictus_executor_last_error(executor_, buffer, capacity, bytes);
            },
            [](ictus_status) {}));
    }
    void check(ictus_status status) const {
        if (status != ICTUS_STATUS_OK) throw Error(status, last_error());
    }
    template <class Call> void asked(Call call) const {
        ictus_refusal_t refusal{};
        refusal.struct_size = sizeof refusal;
        const ictus_status status = call(&refusal);
        if (status == ICTUS_STATUS_OK) return;
        if (refusal.kind != ICTUS_REFUSAL_NONE) throw Refusal(status, last_error(), refusal);
        throw Error(status, last_error());
    }
    template <class Call> ictus_receipt_t received(Call call) const {
        ictus_receipt_t receipt{};
        receipt.struct_size = sizeof receipt;
        asked([&](ictus_refusal_t *refusal) { return call(&receipt, refusal); });
        return receipt;
    }

    ictus_executor_t executor_;
    std::size_t vocab_ = 0;
};

} // namespace ictus

#endif /* ICTUS_EXECUTOR_HPP */
