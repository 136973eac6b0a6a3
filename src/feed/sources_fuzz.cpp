// Any bytes as an archive, a list or a packed file: whatever opens can be named and read.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "base/bytes.h"
#include "feed/file_list.h"
#include "feed/pack.h"
#include "feed/seek_index.h"
#include "feed/tar_index.h"
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

// The bytes are the table of an empty archive. What it tells need not be there; reading it must not
// leave the table. The checksum is mended, or hardly any would be taken.
void fuzz_tar_index(const uint8_t* bytes, size_t size) {
  constexpr size_t kHeader = 48, kChecksum = 44;
  std::string table(reinterpret_cast<const char*>(bytes), size);
  if (table.size() >= kHeader) {
    table.replace(0, 8, "FLTTARX1");
    table.replace(8, 8, 8, '\0');
    table.replace(32, 8, 8, '\0');  // of no header at all
    const uint32_t sum = flatout::crc32(std::string_view(table).substr(kHeader));
    table.replace(kChecksum, 4, reinterpret_cast<const char*>(&sum), 4);
  }
  static const std::string archive = "/tmp/flatout_fuzz_" + std::to_string(::getpid()) + ".tar";
  const auto write = [](const std::string& path, const std::string& content) {
    const int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    if (fd < 0 || ::write(fd, content.data(), content.size()) < 0) std::abort();
    ::close(fd);
  };
  write(archive, "");
  write(tar_index_path(archive), table);
  const auto file = DataFile::open(archive);
  if (!file.ok()) std::abort();
  uint64_t names = 0;
  const auto walked =
      walk_tar_index(archive, *file, [&](const TarMember& member) { names += member.name.size(); });
  if (names > size || (!walked.ok() && names > 0)) std::abort();
  ::unlink(archive.c_str());
  ::unlink(tar_index_path(archive).c_str());
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t size) {
  static const int fd = ::memfd_create("archive", MFD_CLOEXEC);
  static const std::string path = "/proc/self/fd/" + std::to_string(fd);
  if (::ftruncate(fd, 0) != 0 || ::pwrite(fd, bytes, size, 0) != static_cast<ssize_t>(size))
    std::abort();
  read_all(open_tars({path}));
  fuzz_tar_index(bytes, size);
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
