#include "devlimit/image_bytes.h"

#include <elf.h>
#include <string.h>

namespace flatout::devlimit {
namespace {

constexpr uint32_t kFatBinary = 0xBA55ED50, kWrapper = 0x466243B1;

struct FatBinary {
  uint32_t magic;
  uint16_t version, header_bytes;
  uint64_t bytes;
};
struct Wrapper {
  uint32_t magic, version;
  const void* image;
};

}  // namespace

uint64_t loaded_bytes(uint64_t bytes) {
  constexpr uint64_t kPage = uint64_t{2} << 20;
  return (bytes + kPage - 1) / kPage * kPage;
}

uint64_t image_bytes(const void* image) {
  if (image == nullptr) return 0;
  uint32_t magic = 0;
  // Text may be shorter than this, but no object in memory ends within an aligned word.
  memcpy(&magic, image, sizeof magic);
  if (magic == kWrapper) return image_bytes(static_cast<const Wrapper*>(image)->image);
  if (magic == kFatBinary) {
    FatBinary header;
    memcpy(&header, image, sizeof header);
    return loaded_bytes(header.header_bytes + header.bytes);
  }
  if (memcmp(&magic, ELFMAG, SELFMAG) == 0) {
    Elf64_Ehdr header;
    memcpy(&header, image, sizeof header);
    return loaded_bytes(header.e_shoff + uint64_t{header.e_shentsize} * header.e_shnum);
  }
  return loaded_bytes(strlen(static_cast<const char*>(image)));
}

}  // namespace flatout::devlimit
