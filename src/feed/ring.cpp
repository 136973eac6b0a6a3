#include "feed/ring.h"

#include <fcntl.h>
#include <linux/io_uring.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstring>

namespace flatout::feed {
namespace {

struct Mapping {
  void* data = MAP_FAILED;
  size_t bytes = 0;

  bool map(int fd, uint64_t at, size_t size) {
    bytes = size;
    data = ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd,
                  static_cast<off_t>(at));
    return data != MAP_FAILED;
  }
  template <class T>
  T* at(uint32_t offset) const {
    return reinterpret_cast<T*>(static_cast<char*>(data) + offset);
  }
  ~Mapping() {
    if (data != MAP_FAILED) ::munmap(data, bytes);
  }
};

}  // namespace

struct Ring::Memory {
  ~Memory() {
    if (fd >= 0) ::close(fd);
  }
  int fd = -1;
  Mapping submissions, entries, completions;
  io_uring_params params{};
  unsigned unsent = 0;

  io_uring_sqe& next(uint8_t operation, uint64_t tag) {
    auto* tail = submissions.at<uint32_t>(params.sq_off.tail);
    const uint32_t place = *tail & *submissions.at<uint32_t>(params.sq_off.ring_mask);
    io_uring_sqe& entry = *entries.at<io_uring_sqe>(place * sizeof(io_uring_sqe));
    entry = {};
    entry.opcode = operation;
    entry.user_data = tag;
    submissions.at<uint32_t>(params.sq_off.array)[place] = place;
    return entry;
  }
  // The kernel looks at it from now on.
  void publish() {
    const std::atomic_ref<uint32_t> tail(*submissions.at<uint32_t>(params.sq_off.tail));
    tail.store(tail.load(std::memory_order_relaxed) + 1, std::memory_order_release);
    ++unsent;
  }
};

Ring::Ring(std::unique_ptr<Memory> memory) : memory_(std::move(memory)) {}
Ring::~Ring() = default;

Result<std::unique_ptr<Ring>> Ring::open(unsigned entries) {
  auto memory = std::make_unique<Memory>();
  io_uring_params& p = memory->params;
  memory->fd = static_cast<int>(::syscall(SYS_io_uring_setup, entries, &p));
  const auto forbidden = [] {
    return Error{Code::kUnsupported,
                 std::string("io_uring is not allowed here: ") + std::strerror(errno),
                 "files are read by threads instead"};
  };
  if (memory->fd < 0) return forbidden();
  // Reads into plain buffers (5.6) came with this flag or before it (5.5, 5.4: the two before).
  if ((p.features & IORING_FEAT_RW_CUR_POS) == 0 ||
      !memory->submissions.map(memory->fd, IORING_OFF_SQ_RING,
                               p.sq_off.array + p.sq_entries * sizeof(uint32_t)) ||
      !memory->entries.map(memory->fd, IORING_OFF_SQES, p.sq_entries * sizeof(io_uring_sqe)) ||
      !memory->completions.map(memory->fd, IORING_OFF_CQ_RING,
                               p.cq_off.cqes + p.cq_entries * sizeof(io_uring_cqe)))
    return Error{Code::kUnsupported, "this kernel's io_uring is too old",
                 "files are read by threads instead"};
  // What forbids one call may let the other pass.
  if (::syscall(SYS_io_uring_enter, memory->fd, 0, 0, 0, nullptr, 0) < 0) return forbidden();
  return std::unique_ptr<Ring>(new Ring(std::move(memory)));
}

void Ring::open_file(const char* path, uint64_t tag) {
  io_uring_sqe& entry = memory_->next(IORING_OP_OPENAT, tag);
  entry.fd = AT_FDCWD;
  entry.addr = reinterpret_cast<uint64_t>(path);
  entry.open_flags = O_RDONLY | O_CLOEXEC | O_NONBLOCK;  // a pipe without a writer is no wait
  memory_->publish();
}

void Ring::read(int fd, uint64_t offset, std::span<uint8_t> into, uint64_t tag) {
  io_uring_sqe& entry = memory_->next(IORING_OP_READ, tag);
  entry.fd = fd;
  entry.off = offset;
  entry.addr = reinterpret_cast<uint64_t>(into.data());
  entry.len = static_cast<uint32_t>(into.size());
  memory_->publish();
}

Ring::Done Ring::wait() {
  Memory& m = *memory_;
  const std::atomic_ref<uint32_t> head(*m.completions.at<uint32_t>(m.params.cq_off.head));
  const std::atomic_ref<uint32_t> tail(*m.completions.at<uint32_t>(m.params.cq_off.tail));
  for (;;) {
    const uint32_t at = head.load(std::memory_order_relaxed);
    const bool is_there = at != tail.load(std::memory_order_acquire);
    if (is_there && m.unsent == 0) {
      const uint32_t mask = *m.completions.at<uint32_t>(m.params.cq_off.ring_mask);
      const io_uring_cqe& done = m.completions.at<io_uring_cqe>(m.params.cq_off.cqes)[at & mask];
      const Done out{done.user_data, done.res};
      head.store(at + 1, std::memory_order_release);
      return out;
    }
    const long sent = ::syscall(SYS_io_uring_enter, m.fd, m.unsent, is_there ? 0 : 1,
                                IORING_ENTER_GETEVENTS, nullptr, 0);
    // Anything else that fails is a mistake of ours.
    FLATOUT_CHECK(sent >= 0 || errno == EINTR || errno == EAGAIN || errno == EBUSY ||
                  errno == ENOMEM);
    if (sent > 0) m.unsent -= static_cast<unsigned>(sent);
  }
}

}  // namespace flatout::feed
