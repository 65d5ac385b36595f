/* ictus/capacity.hpp: what is short, and waiting for it. Include ictus.hpp. */
#ifndef ICTUS_CAPACITY_HPP
#define ICTUS_CAPACITY_HPP

#include "base.hpp"

#include <chrono>
#include <cstdint>
#include <optional>
#include <utility>

namespace ictus {

namespace detail {

/* A status of a call that leaves no text. */
inline void check_plain(ictus_status status) {
    if (status != ICTUS_STATUS_OK) throw Error(status, ictus_status_text(status));
}

} // namespace detail

/* A wait that an event loop polls: descriptor() is readable or hung up when there is news. Given up with the object. */
class Wait {
public:
    Wait(ictus_capacity_t of, const ictus_ticket_t &ticket) {
        detail::check_plain(ictus_capacity_wait_begin(of, &ticket, &wait_, &descriptor_));
    }
    Wait(Wait &&other) noexcept : wait_(std::exchange(other.wait_, nullptr)), descriptor_(other.descriptor_) {}
    Wait &operator=(Wait &&other) noexcept {
        std::swap(wait_, other.wait_);
        std::swap(descriptor_, other.descriptor_);
        return *this;
    }
    Wait(const Wait &) = delete;
    Wait &operator=(const Wait &) = delete;
    ~Wait() {
        if (wait_ != nullptr) ictus_capacity_wait_end(wait_, nullptr, nullptr);
    }

    /* Stays the library's, until the wait has ended. */
    std::int32_t descriptor() const noexcept { return descriptor_; }
    /* Ends it: the ticket to go on with, or none when there is no news. */
    std::optional<ictus_ticket_t> end() {
        ictus_ticket_t fresh{};
        std::uint32_t woken = 0;
        detail::check_plain(ictus_capacity_wait_end(std::exchange(wait_, nullptr), &fresh, &woken));
        return woken != 0 ? std::optional<ictus_ticket_t>(fresh) : std::nullopt;
    }

private:
    ictus_wait_t wait_ = nullptr;
    std::int32_t descriptor_ = -1;
};

/* The coordinator of a model or an executor, which it must not outlive. Any thread may use it, also while another one ticks or runs. */
class Capacity {
public:
    explicit Capacity(ictus_capacity_t of) : of_(of) {}

    ictus_ticket_t now() const {
        ictus_ticket_t ticket{};
        detail::check_plain(ictus_capacity_now(of_, &ticket));
        return ticket;
    }
    ictus_memory_t memory() const {
        ictus_memory_t memory{};
        memory.struct_size = sizeof memory;
        detail::check_plain(ictus_capacity_memory(of_, &memory));
        return memory;
    }
    /* Whether a domain that the ticket watches has moved since. */
    bool changed(const ictus_ticket_t &ticket) const {
        std::uint32_t changed = 0;
        detail::check_plain(ictus_capacity_changed(of_, &ticket, &changed));
        return changed != 0;
    }
    /* Waits for news; none when the time is over first. News grant nothing: ask again. */
    std::optional<ictus_ticket_t> wait(const ictus_ticket_t &ticket,
                                       std::optional<std::chrono::nanoseconds> timeout = std::nullopt) const {
        ictus_ticket_t fresh{};
        std::uint32_t woken = 0;
        const std::uint64_t timeout_ns = timeout ? static_cast<std::uint64_t>(timeout->count()) : UINT64_MAX;
        detail::check_plain(ictus_capacity_wait(of_, &ticket, timeout_ns, &fresh, &woken));
        return woken != 0 ? std::optional<ictus_ticket_t>(fresh) : std::nullopt;
    }
    Wait begin_wait(const ictus_ticket_t &ticket) const { return Wait(of_, ticket); }

private:
    ictus_capacity_t of_;
};

/* A ticket that watches what either watches. */
inline ictus_ticket_t ticket_union(const ictus_ticket_t &a, const ictus_ticket_t &b) {
    ictus_ticket_t both{};
    detail::check_plain(ictus_ticket_union(&a, &b, &both));
    return both;
}

/* A device whose bytes several executors share. They go on to count in it when it is gone. */
class DeviceAccount {
public:
    explicit DeviceAccount(std::uint64_t capacity_bytes) {
        detail::check_plain(ictus_account_create(capacity_bytes, &account_));
    }
    DeviceAccount(DeviceAccount &&other) noexcept : account_(std::exchange(other.account_, nullptr)) {}
    DeviceAccount &operator=(DeviceAccount &&other) noexcept {
        std::swap(account_, other.account_);
        return *this;
    }
    DeviceAccount(const DeviceAccount &) = delete;
    DeviceAccount &operator=(const DeviceAccount &) = delete;
    ~DeviceAccount() {
        if (account_ != nullptr) ictus_account_free(account_);
    }

    ictus_account_t handle() const noexcept { return account_; }
    std::uint64_t claimed() const { return level().first; }
    std::uint64_t usable() const { return level().second; }

private:
    std::pair<std::uint64_t, std::uint64_t> level() const {
        std::uint64_t claimed = 0, usable = 0;
        detail::check_plain(ictus_account_level(account_, &claimed, &usable));
        return {claimed, usable};
    }

    ictus_account_t account_ = nullptr;
};

} // namespace ictus

#endif /* ICTUS_CAPACITY_HPP */
