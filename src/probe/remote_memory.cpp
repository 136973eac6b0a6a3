#include "probe/remote_memory.h"

#include <errno.h>
#include <limits.h>
#include <sys/uio.h>

#include <algorithm>
#include <array>
#include <cstring>

namespace flatout::probe {
namespace {

constexpr size_t kMaxBytes = 4 << 20;  // of one reading
constexpr size_t kMaxPieces = 16384;
constexpr size_t kIovecs = 512;  // per call; the kernel takes up to IOV_MAX, 1024
constexpr uint64_t kPage = 4096;
constexpr uint64_t kGap = 1024;  // bytes between two pieces that are read along with them
constexpr int kMaxHoles = 8;     // ranges that have gone away, before the rest is left unread

}  // namespace

Error read_error(int err, int32_t pid) {
  const std::string who = "cannot read the memory of pid " + std::to_string(pid);
  if (err == EPERM || err == EACCES) {
    return Error{Code::kDenied, who,
                 "run flatout as the same user and start the job with `flatout run`, or set "
                 "kernel.yama.ptrace_scope=0, or give flatout CAP_SYS_PTRACE (docker run "
                 "--cap-add SYS_PTRACE)"};
  }
  if (err == ESRCH) return Error{Code::kGone, who + ": it has ended", ""};
  if (err == ENOSYS) return Error{Code::kUnsupported, who + ": process_vm_readv is not there", ""};
  return Error{Code::kIo, who + ": " + std::strerror(err), ""};
}

Result<size_t> ProcessMemory::read(std::span<const RemoteRange> ranges, char* to) {
  std::array<iovec, kIovecs> remote;
  size_t total = 0;
  while (!ranges.empty()) {
    const size_t count = std::min(ranges.size(), kIovecs);
    size_t wanted = 0;
    for (size_t i = 0; i < count; i++) {
      remote[i].iov_base = reinterpret_cast<void*>(ranges[i].address);  // NOLINT: not our address
      remote[i].iov_len = ranges[i].size;
      wanted += ranges[i].size;
    }
    const iovec local{to + total, wanted};
    const ssize_t n = process_vm_readv(pid_, &local, 1, remote.data(), count, 0);
    if (n < 0) {
      if (errno == EFAULT) return total;
      return read_error(errno, pid_);
    }
    total += static_cast<size_t>(n);
    if (static_cast<size_t>(n) < wanted) break;
    ranges = ranges.subspan(count);
  }
  return total;
}

Status RemoteSnapshot::begin() {
  // What the last reading used is what this one reads.
  std::erase_if(pieces_, [](const Piece& p) { return !p.used; });
  for (const Piece& p : added_) {
    if (p.used) pieces_.push_back(p);
  }
  added_.clear();
  std::sort(pieces_.begin(), pieces_.end(), [](const Piece& a, const Piece& b) {
    return a.address != b.address ? a.address < b.address : a.size > b.size;
  });
  // One range costs more than some hundred bytes: pieces that overlap, or lie close together on the
  // same OS page, become one.
  size_t kept = 0;
  for (const Piece& p : pieces_) {
    if (kept != 0) {
      Piece& last = pieces_[kept - 1];
      const uint64_t end = last.address + last.size;
      const bool same_page = (end - 1) / kPage == p.address / kPage;
      if (p.address <= end || (same_page && p.address - end <= kGap)) {
        last.size = static_cast<uint32_t>(std::max(end, p.address + p.size) - last.address);
        continue;
      }
    }
    pieces_[kept++] = p;
  }
  pieces_.resize(kept);

  size_t total = 0;
  for (Piece& p : pieces_) {
    p.offset = static_cast<uint32_t>(total);
    p.used = false;
    total += p.size;
  }
  data_.resize(total);
  budget_ = kMaxBytes;
  trouble_ = {};

  size_t next = 0;
  int holes = 0;
  while (next < pieces_.size()) {
    ranges_.clear();
    size_t wanted = 0;
    for (size_t i = next; i < pieces_.size(); i++) {
      ranges_.push_back({pieces_[i].address, pieces_[i].size});
      wanted += pieces_[i].size;
    }
    calls_ += (ranges_.size() + kIovecs - 1) / kIovecs;
    auto got = memory_.read(ranges_, data_.data() + pieces_[next].offset);
    if (!got.ok()) {
      pieces_.clear();
      return got.error();
    }
    if (*got >= wanted) break;
    // Drop the range that is gone, go on behind it.
    const size_t end = pieces_[next].offset + *got;
    while (next < pieces_.size() && pieces_[next].offset + pieces_[next].size <= end) next++;
    if (next >= pieces_.size()) break;
    pieces_[next].size = 0;
    next++;
    if (++holes > kMaxHoles) {
      for (; next < pieces_.size(); next++) pieces_[next].size = 0;
    }
  }
  std::erase_if(pieces_, [](const Piece& p) { return p.size == 0; });
  return {};
}

RemoteSnapshot::Piece* RemoteSnapshot::find(uint64_t address, size_t size) {
  const uint64_t end = address + size;
  if (end < address) return nullptr;
  auto it = std::upper_bound(pieces_.begin(), pieces_.end(), address,
                             [](uint64_t a, const Piece& p) { return a < p.address; });
  if (it != pieces_.begin()) {
    --it;
    if (address >= it->address && end <= it->address + it->size) return &*it;
  }
  for (auto added = added_.rbegin(); added != added_.rend(); ++added) {
    if (address >= added->address && end <= added->address + added->size) return &*added;
  }
  return nullptr;
}

RemoteSnapshot::Piece* RemoteSnapshot::load(uint64_t address, size_t size) {
  if (size == 0 || size > budget_ || address == 0 || address + size < address ||
      pieces_.size() + added_.size() >= kMaxPieces) {
    return nullptr;
  }
  const size_t offset = data_.size();
  data_.resize(offset + size);
  const RemoteRange range{address, static_cast<uint32_t>(size)};
  calls_++;
  auto got = memory_.read({&range, 1}, data_.data() + offset);
  if (!got.ok()) trouble_ = got.error();
  if (!got.ok() || *got < size) {
    data_.resize(offset);
    return nullptr;
  }
  budget_ -= size;
  added_.push_back({address, static_cast<uint32_t>(size), static_cast<uint32_t>(offset), true});
  return &added_.back();
}

bool RemoteSnapshot::fetch(uint64_t address, size_t size) {
  Piece* piece = find(address, size);
  if (piece == nullptr) piece = load(address, size);
  if (piece == nullptr) return false;
  piece->used = true;
  return true;
}

bool RemoteSnapshot::copy(uint64_t address, void* to, size_t size) {
  Piece* piece = find(address, size);
  if (piece == nullptr) piece = load(address, size);
  if (piece == nullptr) return false;
  piece->used = true;
  std::memcpy(to, data_.data() + piece->offset + (address - piece->address), size);
  return true;
}

bool RemoteSnapshot::copy_once(uint64_t address, void* to, size_t size) {
  if (const Piece* piece = find(address, size)) {
    std::memcpy(to, data_.data() + piece->offset + (address - piece->address), size);
    return true;
  }
  if (size == 0 || size > budget_ || address == 0 || address + size < address) return false;
  const RemoteRange range{address, static_cast<uint32_t>(size)};
  calls_++;
  auto got = memory_.read({&range, 1}, static_cast<char*>(to));
  return got.ok() && *got >= size;
}

}  // namespace flatout::probe
