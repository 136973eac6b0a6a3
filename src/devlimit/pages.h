// Memory of its own: the interposer must not call malloc.
#pragma once

#include <sys/mman.h>

#include <cstddef>

namespace flatout::devlimit {

/// An array.
template <class T>
class Pages {
 public:
  explicit Pages(size_t count) : bytes_(count * sizeof(T)) {
    void* const memory =
        ::mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    data_ = memory == MAP_FAILED ? nullptr : static_cast<T*>(memory);
  }
  ~Pages() {
    if (data_ != nullptr) ::munmap(data_, bytes_);
  }
  Pages(const Pages&) = delete;
  Pages& operator=(const Pages&) = delete;
  /// Zeros at first; nullptr: there is no memory.
  T* data() const { return data_; }

 private:
  size_t bytes_;
  T* data_;
};

/// One of the nodes in `spare`, which are linked by `next`, or of a new page of them; nullptr:
/// there is no memory.
template <class T>
T* from_spare(T*& spare) {
  if (spare == nullptr) {
    constexpr size_t kCount = 1024;
    void* const memory = ::mmap(nullptr, kCount * sizeof(T), PROT_READ | PROT_WRITE,
                                MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) return nullptr;
    for (size_t i = 0; i < kCount; ++i) {
      T* const one = static_cast<T*>(memory) + i;
      one->next = spare;
      spare = one;
    }
  }
  T* const out = spare;
  spare = out->next;
  *out = {};
  return out;
}

}  // namespace flatout::devlimit
