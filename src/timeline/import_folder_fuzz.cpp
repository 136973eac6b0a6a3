// Any bytes as events.bin: read, or one clear error.
#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdint>
#include <string>

#include "base/bytes.h"
#include "timeline/import_folder.h"
#include "wire/messages.h"

namespace {

std::string make_folder() {
  char name[] = "/tmp/flatout-fuzz-XXXXXX";
  static const std::string folder = ::mkdtemp(name);
  std::atexit([] {
    ::unlink((folder + "/events.bin").c_str());
    ::unlink((folder + "/series.bin").c_str());
    ::rmdir(folder.c_str());
  });
  return folder;
}

void write_file(const std::string& path, const std::string& bytes) {
  const int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
  if (fd < 0 || ::write(fd, bytes.data(), bytes.size()) < 0) std::abort();
  ::close(fd);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const std::string folder = make_folder();
  const std::string bytes(reinterpret_cast<const char*>(data), size);
  // Once as it is, once in a block whose checksum is right.
  std::string block;
  flatout::put(block, flatout_block{FLATOUT_BLOCK_MAGIC, FLATOUT_WIRE_VERSION,
                                    static_cast<uint32_t>(size), flatout::crc32(bytes)});
  write_file(folder + "/events.bin", bytes + block + bytes);
  write_file(folder + "/series.bin", block);
  flatout::timeline::FolderDamage damage;
  (void)flatout::timeline::read_run_folder(folder, &damage, 1 << 20);
  return 0;
}
