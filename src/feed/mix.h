// Mixup (arXiv 1710.09412) and cutmix (arXiv 1905.04899) of a finished batch: each sample with the
// one before it, the first with the last, as torchvision's MixUp and CutMix do.
#pragma once

#include <cstdint>
#include <vector>

#include "feed/philox.h"
#include "feed/picture.h"
#include "feed/write.h"

namespace flatout::feed {

struct MixOptions {
  double mixup = 0;   // alpha of the Beta distribution; 0: none
  double cutmix = 0;  // where both are above 0, each batch has one or the other
  bool any() const { return mixup > 0 || cutmix > 0; }
};

/// What becomes of one batch.
struct Mix {
  enum class Kind : uint8_t { kNone, kMixup, kCutmix };
  Kind kind = Kind::kNone;
  float weight = 1;  // of a sample's own label; the rest is the partner's
  Rect box;          // of cutmix: what is the partner's
};

Mix choose_mix(const MixOptions& options, int width, int height, SampleRandom& random);

/// `data`: `count` samples as `sample` describes one. Mixup needs a type that is not u8.
void mix_batch(const Mix& mix, const Target& sample, void* data, int count,
               std::vector<uint8_t>& scratch);

}  // namespace flatout::feed
