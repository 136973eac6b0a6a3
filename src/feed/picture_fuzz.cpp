// Any bytes: a verdict and nothing else. The whole, a part and a reduced part, strictly and
// leniently; the same bytes give the same verdict again.
#include <cstdint>
#include <cstdlib>

#include "feed/orientation.h"
#include "feed/picture.h"

namespace {

using namespace flatout::feed;

class Touch : public RowSink {
 public:
  explicit Touch(int width) : width_(width) {}
  void restart() override { sum = 0; }
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

struct Result {
  Outcome outcome;
  uint64_t sum;
};

Result decode(PictureDecoder& decoder, std::span<const uint8_t> data, Rect part,
              const Decoding& how) {
  if (!decoder.open(data).ok()) std::abort();  // it opened before
  Touch rows(part.width);
  const Outcome outcome = decoder.decode(part, how, rows).outcome;
  return {outcome, rows.sum};
}

// The same with our entropy decoder, with libjpeg's, and from checkpoints where there are any.
void check(PictureDecoder& decoder, std::span<const uint8_t> data, Rect part, Decoding how) {
  std::vector<Checkpoint> found;
  how.found = &found;
  const Result ours = decode(decoder, data, part, how);
  how.found = nullptr;
  how.stock = true;
  const Result theirs = decode(decoder, data, part, how);
  const bool has_pixels = how.lenient || ours.outcome == Outcome::kOk;
  if (ours.outcome != theirs.outcome || (has_pixels && ours.sum != theirs.sum)) std::abort();
  if (found.empty()) return;
  how.stock = false;
  how.checkpoints = found;
  const Result sought = decode(decoder, data, part, how);
  if (sought.outcome != ours.outcome || sought.sum != ours.sum) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t size) {
  static PictureDecoder decoder({1 << 20, 16 << 20, 1 << 20, 20});
  const std::span<const uint8_t> data(bytes, size);
  exif_orientation(data);
  if (!decoder.open(data).ok()) return 0;
  const Size full = decoder.size();
  const Rect all{0, 0, full.width, full.height};
  Decoding whole;
  whole.whole = true;
  const Outcome first = decode(decoder, data, all, whole).outcome;
  Decoding how;
  how.lenient = true;
  check(decoder, data, all, how);
  const Rect part{full.width / 3, full.height / 2, (full.width + 2) / 3, (full.height + 1) / 2};
  check(decoder, data, part, how);
  if (decoder.reducible()) {
    const Rect half{0, (full.height + 1) / 2 / 2, (full.width + 1) / 2,
                    ((full.height + 1) / 2 + 1) / 2};
    how = {};
    how.denominator = 2;
    check(decoder, data, half, how);
  }
  if (decode(decoder, data, all, whole).outcome != first) std::abort();
  return 0;
}
