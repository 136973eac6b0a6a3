#include "recorder/fault_file.h"

#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

namespace flatout::recorder {

constexpr size_t kMostText = 16 << 10;

FaultFile::FaultFile() : fd_(::memfd_create("flatout-faults", MFD_CLOEXEC)) {}

FaultFile::~FaultFile() {
  if (fd_ >= 0) ::close(fd_);
}

std::string FaultFile::path() const {
  return fd_ < 0 ? "" : fmt::format("/proc/{}/fd/{}", ::getpid(), fd_);
}

std::string FaultFile::text() const {
  std::string out(kMostText, '\0');
  const ssize_t got = fd_ < 0 ? 0 : ::pread(fd_, out.data(), out.size(), 0);
  out.resize(got > 0 ? static_cast<size_t>(got) : 0);
  return out;
}

}  // namespace flatout::recorder
