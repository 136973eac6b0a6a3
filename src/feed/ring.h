// io_uring, by its system calls alone (linux/io_uring.h): reads of files that one thread starts and
// waits for together. Used by one thread.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "base/result.h"

namespace flatout::feed {

class Ring {
 public:
  /// Errors: kUnsupported where the kernel or the container does not allow it.
  static Result<std::unique_ptr<Ring>> open(unsigned entries);
  ~Ring();
  Ring(const Ring&) = delete;
  Ring& operator=(const Ring&) = delete;

  /// Each starts an operation whose result comes with `tag`. Its arguments have to live until then.
  /// There may be no more operations under way than entries were asked for.
  void open_file(const char* path, uint64_t tag);
  void read(int fd, uint64_t offset, std::span<uint8_t> into, uint64_t tag);

  struct Done {
    uint64_t tag = 0;
    int result = 0;  // as of the system call; -errno where it failed
  };
  /// Waits for one of them, of which there has to be one.
  Done wait();

 private:
  struct Memory;
  explicit Ring(std::unique_ptr<Memory> memory);
  std::unique_ptr<Memory> memory_;
};

}  // namespace flatout::feed
