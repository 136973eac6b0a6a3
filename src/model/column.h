// Column<T>: one growing array of plain values, for traces of tens of millions of events.
// Grows with realloc, which for large blocks moves pages instead of copying them, and touches no
// page before its time: resident memory is what is used, where std::vector would hold up to three
// times that while it grows.
#pragma once

#include <cstddef>
#include <cstdlib>
#include <new>
#include <type_traits>
#include <utility>

namespace flatout::model {

template <class T>
class Column {
  static_assert(std::is_trivially_copyable_v<T> && std::is_trivially_destructible_v<T>);

 public:
  Column() = default;
  Column(const Column&) = delete;
  Column& operator=(const Column&) = delete;
  Column(Column&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)),
        size_(std::exchange(other.size_, 0)),
        capacity_(std::exchange(other.capacity_, 0)) {}
  Column& operator=(Column&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    std::swap(capacity_, other.capacity_);
    return *this;
  }
  ~Column() { std::free(data_); }

  void push_back(T value) {
    if (size_ == capacity_) grow(size_ + 1);
    data_[size_++] = value;
  }
  /// `count` more, their values not set.
  T* extend(size_t count) {
    if (size_ + count > capacity_) grow(size_ + count);
    T* const out = data_ + size_;
    size_ += count;
    return out;
  }
  void resize_down(size_t size) { size_ = size < size_ ? size : size_; }
  void clear() { size_ = 0; }

  T& operator[](size_t i) { return data_[i]; }
  const T& operator[](size_t i) const { return data_[i]; }
  T& back() { return data_[size_ - 1]; }
  const T& back() const { return data_[size_ - 1]; }
  T* begin() { return data_; }
  T* end() { return data_ + size_; }
  const T* begin() const { return data_; }
  const T* end() const { return data_ + size_; }
  size_t size() const { return size_; }
  bool empty() const { return size_ == 0; }
  size_t bytes() const { return size_ * sizeof(T); }

 private:
  void grow(size_t least) {
    size_t capacity = capacity_ * 2 < 1024 ? 1024 : capacity_ * 2;
    if (capacity < least) capacity = least;
    void* const data = std::realloc(static_cast<void*>(data_), capacity * sizeof(T));
    if (data == nullptr) throw std::bad_alloc();
    data_ = static_cast<T*>(data);
    capacity_ = capacity;
  }

  T* data_ = nullptr;
  size_t size_ = 0, capacity_ = 0;
};

}  // namespace flatout::model
