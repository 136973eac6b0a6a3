// Any bytes: a verdict and nothing else. The whole, a part and a reduced part, strictly and
// leniently; the same bytes give the same verdict again.
#include <cstdint>
#include <cstdlib>

#include "feed/picture.h"

namespace {

using namespace flatout::feed;

class Touch : public RowSink {
 public:
  explicit Touch(int width) : width_(width) {}
  void rows(const uint8_t* first, size_t stride, int count) override {
    for (int y = 0; y < count; ++y) {
      for (int x = 0; x < width_ * 4; ++x)
        sum += first[static_cast<size_t>(y) * stride + static_cast<size_t>(x)];
    }
  }
  uint64_t sum = 0;

 private:
  int width_;
};

Outcome decode(PictureDecoder& decoder, std::span<const uint8_t> data, Rect part, int by,
               bool whole, bool lenient) {
  if (!decoder.open(data).ok()) std::abort();  // it opened before
  Touch rows(part.width);
  return decoder.decode(part, by, whole, lenient, rows).outcome;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t size) {
  static PictureDecoder decoder({1 << 20, 16 << 20, 1 << 20, 20});
  const std::span<const uint8_t> data(bytes, size);
  if (!decoder.open(data).ok()) return 0;
  const Size full = decoder.size();
  const Rect all{0, 0, full.width, full.height};
  const Outcome first = decode(decoder, data, all, 1, true, false);
  decode(decoder, data, all, 1, false, true);
  const Rect part{full.width / 3, full.height / 2, (full.width + 2) / 3, (full.height + 1) / 2};
  decode(decoder, data, part, 1, false, true);
  if (decoder.reducible()) {
    const Rect half{0, (full.height + 1) / 2 / 2, (full.width + 1) / 2,
                    ((full.height + 1) / 2 + 1) / 2};
    decode(decoder, data, half, 2, false, false);
  }
  if (decode(decoder, data, all, 1, true, false) != first) std::abort();
  return 0;
}
