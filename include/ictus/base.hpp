/* ictus/base.hpp: failures, and lists that the library owns. Include ictus.hpp. */
#ifndef ICTUS_BASE_HPP
#define ICTUS_BASE_HPP

#include "../ictus.h"

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <stdexcept>
#include <string>
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

} // namespace ictus

#endif /* ICTUS_BASE_HPP */
