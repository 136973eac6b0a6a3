#include "feed/augment.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace flatout::feed {
namespace {

// As torchvision: ten tries, then the largest part in the middle whose ratio is allowed.
Rect random_part(const Augment& augment, Size size, SampleRandom& random) {
  const double area = static_cast<double>(size.width) * size.height;
  for (int attempt = 0; attempt < 10; ++attempt) {
    const double wanted = area * random.uniform(augment.area[0], augment.area[1]);
    const double ratio =
        std::exp(random.uniform(std::log(augment.ratio[0]), std::log(augment.ratio[1])));
    const int width = static_cast<int>(std::lround(std::sqrt(wanted * ratio)));
    const int height = static_cast<int>(std::lround(std::sqrt(wanted / ratio)));
    const uint64_t x = random.below(static_cast<uint64_t>(std::max(size.width - width, 0)) + 1);
    const uint64_t y = random.below(static_cast<uint64_t>(std::max(size.height - height, 0)) + 1);
    if (width > 0 && width <= size.width && height > 0 && height <= size.height)
      return {static_cast<int>(x), static_cast<int>(y), width, height};
  }
  Rect part{0, 0, size.width, size.height};
  const double ratio = static_cast<double>(size.width) / size.height;
  if (ratio < augment.ratio[0]) {
    part.height = static_cast<int>(std::lround(size.width / augment.ratio[0]));
  } else if (ratio > augment.ratio[1]) {
    part.width = static_cast<int>(std::lround(size.height * augment.ratio[1]));
  }
  part.width = std::clamp(part.width, 1, size.width);
  part.height = std::clamp(part.height, 1, size.height);
  part.x = (size.width - part.width) / 2;
  part.y = (size.height - part.height) / 2;
  return part;
}

// As torchvision's ColorJitter: a factor for each, in an order that is drawn, too.
ColourChange random_colours(const Augment& augment, SampleRandom& random) {
  using Kind = ColourChange::Kind;
  ColourChange change;
  const auto draw = [&](Kind kind, const double range[2], double neutral) {
    if (range[0] == neutral && range[1] == neutral) return;
    change.steps[static_cast<size_t>(change.count++)] = {
        kind, static_cast<float>(random.uniform(range[0], range[1]))};
  };
  draw(Kind::kBrightness, augment.brightness, 1);
  draw(Kind::kContrast, augment.contrast, 1);
  draw(Kind::kSaturation, augment.saturation, 1);
  draw(Kind::kHue, augment.hue, 0);
  for (int left = change.count; left > 1; --left) {
    const size_t chosen = static_cast<size_t>(random.below(static_cast<uint64_t>(left)));
    std::swap(change.steps[chosen], change.steps[static_cast<size_t>(left - 1)]);
  }
  return change;
}

// As torchvision's RandAugment: each operation is any of them, and may come again.
Distortions random_distortions(const Augment& augment, SampleRandom& random) {
  Distortions out;
  for (; out.count < augment.rand_operations; ++out.count) {
    Distortion& step = out.steps[static_cast<size_t>(out.count)];
    step.kind = static_cast<Distortion::Kind>(random.below(Distortion::kKinds));
    bool has_sign = false;
    step.amount = distortion_strength(step.kind, augment.rand_magnitude, augment.width,
                                      augment.height, has_sign);
    if (has_sign && random.below(2) == 1) step.amount = -step.amount;
  }
  return out;
}

}  // namespace

View choose_view(const Augment& augment, Size size, SampleRandom& random) {
  View view;
  view.box = {0, 0, size.width, size.height};
  view.whole_width = augment.width;
  view.whole_height = augment.height;
  switch (augment.kind) {
    case Augment::Kind::kRandomCrop:
      view.box = random_part(augment, size, random);
      break;
    case Augment::Kind::kCenterCrop: {
      const bool wide = size.width > size.height;
      const double longer = std::max(size.width, size.height);
      const double shorter = std::min(size.width, size.height);
      // The product first, as torchvision: 232 * 217 / 203 is 248.
      constexpr double kMost = 1 << 30;
      const int stretched = static_cast<int>(std::min(augment.shorter * longer / shorter, kMost));
      view.whole_width = wide ? stretched : augment.shorter;
      view.whole_height = wide ? augment.shorter : stretched;
      // Halves to even, as Python's round().
      view.skip_x = static_cast<int>(std::nearbyint((view.whole_width - augment.width) / 2.0));
      view.skip_y = static_cast<int>(std::nearbyint((view.whole_height - augment.height) / 2.0));
      break;
    }
    case Augment::Kind::kStretch:
      break;
  }
  view.flip = augment.flip > 0 && random.uniform() < augment.flip;
  view.filter = augment.filter;
  view.colours = random_colours(augment, random);
  view.distortions = random_distortions(augment, random);
  return view;
}

}  // namespace flatout::feed
