// An array in memory of its own: the interposer must not call malloc.
#pragma once

#include <sys/mman.h>

#include <cstddef>

namespace flatout::devlimit {

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

}  // namespace flatout::devlimit
