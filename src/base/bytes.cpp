#include "base/bytes.h"

#include <zlib.h>

namespace flatout {

uint32_t crc32(std::string_view data) {
  return static_cast<uint32_t>(
      ::crc32_z(0, reinterpret_cast<const Bytef*>(data.data()), data.size()));
}

}  // namespace flatout
