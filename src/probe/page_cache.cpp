#include "probe/page_cache.h"

#include <cerrno>

#include "base/fs.h"
#include "base/page_residency.h"
#include "probe/reading.h"

namespace flatout::probe {
namespace {

constexpr uint64_t kWindow = 1 << 20;
constexpr uint64_t kWindows = 64;
enum class Way { kAny, kCachestat, kMincore };

Result<Residency> measure(const std::string& path, Way way) {
  FLATOUT_TRY(const QuietFile file, QuietFile::open(path));
  if (!file.may_know()) {
    return Error{Code::kDenied, "the kernel does not say what part of " + path + " is cached",
                 "run flatout as the owner of the file"};
  }
  Residency out;
  out.bytes = file.bytes();
  if (out.bytes == 0) return out;
  out.sampled = out.bytes > kWindow * kWindows;
  const uint64_t windows = out.sampled ? kWindows : 1;
  const uint64_t length = out.sampled ? kWindow : out.bytes;
  const uint64_t last_start = (out.bytes - length) & ~(page_bytes() - 1);
  uint64_t looked_at = 0, cached = 0;
  for (uint64_t i = 0; i < windows; ++i) {
    const double place =
        windows == 1 ? 0 : static_cast<double>(i) / static_cast<double>(windows - 1);
    const uint64_t offset =
        static_cast<uint64_t>(place * static_cast<double>(last_start)) & ~(page_bytes() - 1);
    const auto got = way == Way::kAny         ? cached_bytes(file, offset, length)
                     : way == Way::kCachestat ? cached_by_cachestat(file, offset, length)
                                              : cached_by_mincore(file, offset, length);
    if (!got) return fs::error_from_errno(errno, "cannot see the cached part of " + path);
    looked_at += length;
    cached += got->cached;
  }
  out.cached_bytes = out.sampled ? static_cast<uint64_t>(static_cast<double>(out.bytes) *
                                                         static_cast<double>(cached) /
                                                         static_cast<double>(looked_at))
                                 : cached;
  return out;
}

}  // namespace

Result<Residency> cached_part(const std::string& path) { return measure(path, Way::kAny); }

namespace testing {
Result<Residency> cached_part_mincore(const std::string& path) {
  return measure(path, Way::kMincore);
}
Result<Residency> cached_part_cachestat(const std::string& path) {
  return measure(path, Way::kCachestat);
}
}  // namespace testing

}  // namespace flatout::probe
