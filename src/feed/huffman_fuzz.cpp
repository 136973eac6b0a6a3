// Scans of any bytes, below headers that are whole: what our entropy decoder takes for regular has
// the coefficients that libjpeg finds, and libjpeg has nothing to say against it.
#include "feed/huffman.h"

#include <algorithm>
#include <cstdint>
#include <cstdlib>

#include "feed/testing/coefficients.h"
#include "feed/testing/pictures.h"

namespace {

using namespace flatout::feed;
using testing::JpegKind;

// The first byte chooses the picture; the second whether the rest replaces its scan, replaces the
// bytes of its tables and scan here and there, or is all of it.
std::vector<uint8_t> picture_from(const uint8_t* bytes, size_t size) {
  JpegKind kind;
  constexpr int kFactors[][2] = {{1, 1}, {2, 1}, {2, 2}, {1, 2}};
  kind.width = kind.height = 40;
  kind.h = kFactors[bytes[0] & 3][0];
  kind.v = kFactors[bytes[0] & 3][1];
  kind.restart = (bytes[0] & 4) != 0 ? 3 : 0;
  kind.optimize = (bytes[0] & 8) != 0;
  kind.quality = (bytes[0] & 16) != 0 ? 100 : 60;
  kind.noise = (bytes[0] & 32) != 0;
  std::vector<uint8_t> picture = testing::make_jpeg(kind, bytes[0]);
  const unsigned mode = bytes[1] % 3;
  bytes += 2;
  size -= 2;
  if (mode == 0) return {bytes, bytes + size};
  if (mode == 1) {
    const uint8_t start[] = {0xFF, 0xDA};
    const auto scan =
        std::search(picture.begin(), picture.end(), std::begin(start), std::end(start));
    picture.erase(scan + 14 - (kind.grey ? 4 : 0), picture.end());
    picture.insert(picture.end(), bytes, bytes + size);
    return picture;
  }
  for (; size >= 3; bytes += 3, size -= 3) {
    const size_t at = 20 + (bytes[0] << 8 | bytes[1]) % (picture.size() - 20);
    picture[at] = bytes[2];
  }
  return picture;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t size) {
  if (size < 2) return 0;
  const std::vector<uint8_t> picture = picture_from(bytes, size);
  const auto ours = testing::by_ours(picture);
  if (!ours) return 0;
  if (!ours->same_from_checkpoints) std::abort();
  bool damaged = false;
  const auto theirs = testing::by_libjpeg(picture, &damaged);
  if (damaged) std::abort();
  if (theirs && *theirs != ours->coefficients) std::abort();
  return 0;
}
