// Any bytes as an archive, a list or a packed file: whatever opens can be named and read.
#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "feed/file_list.h"
#include "feed/pack.h"
#include "feed/seek_index.h"
#include "feed/tar_source.h"
#include "feed/tfrecord_source.h"

namespace {

using namespace flatout::feed;

void read_all(const flatout::Result<std::unique_ptr<Source>>& source) {
  if (!source.ok()) return;
  Sample sample;
  const uint64_t count = (*source)->count();
  for (uint64_t i = 0; i < count && i < 100; ++i) {
    (*source)->name(i);
    const auto verdict = (*source)->read(i, sample);
    if (!verdict.ok() || !verdict->ok() || sample.picture.empty()) continue;
    const uint8_t* end = sample.bytes.data() + sample.bytes.size();
    if (sample.picture.data() < sample.bytes.data() ||
        sample.picture.data() + sample.picture.size() > end)
      std::abort();
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t size) {
  static const int fd = ::memfd_create("archive", MFD_CLOEXEC);
  static const std::string path = "/proc/self/fd/" + std::to_string(fd);
  if (::ftruncate(fd, 0) != 0 || ::pwrite(fd, bytes, size, 0) != static_cast<ssize_t>(size))
    std::abort();
  read_all(open_tars({path}));
  read_all(open_tfrecords({path}));
  read_all(open_pack(path));
  const std::string_view text(reinterpret_cast<const char*>(bytes), size);
  const auto list = parse_list(text, ".");
  if (list.ok()) {
    for (uint64_t i = 0; i < (*list)->count(); ++i) (*list)->name(i);
  }
  parse_example(text);
  const auto index = SeekIndex::load(path, size > 0 ? bytes[0] : 1, 0);
  if (index.ok()) (*index)->find(0, 0);
  return 0;
}
