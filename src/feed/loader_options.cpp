// Which options a loader can have.
#include <fmt/format.h>

#include <cmath>

#include "feed/loader.h"

namespace flatout::feed {

Status LoaderOptions::check() const {
  const auto bad = [](std::string message, std::string hint) {
    return Error{Code::kBadInput, std::move(message), std::move(hint)};
  };
  if (batch < 1 || batch > 65536)
    return bad("a batch holds 1 to 65536 samples", "a batch of 64 is usual");
  if (threads < 0 || threads > 1024)
    return bad("there can be 1 to 1024 threads", "threads=0 asks for one each core");
  if (prefetch < 1 || prefetch > 1024)
    return bad("1 to 1024 batches can be made ahead", "prefetch=2");
  if (augment.width < 1 || augment.width > 16384 || augment.height < 1 || augment.height > 16384)
    return bad("a sample is 1 to 16384 pixels wide and high", "size=224");
  if (ranks < 1 || rank >= ranks)
    return bad(fmt::format("there is no rank {} of {}", rank, ranks), "0 <= rank < ranks");
  if (!(augment.area[0] > 0 && augment.area[0] <= augment.area[1] && augment.area[1] <= 1))
    return bad("the area of a random part is within (0, 1], the smaller first", "scale=(0.08, 1)");
  if (!(augment.ratio[0] > 0 && augment.ratio[0] <= augment.ratio[1] &&
        std::isfinite(augment.ratio[1])))
    return bad("the ratio of a random part is above 0, the smaller first", "ratio=(3/4, 4/3)");
  if (index.empty() || index.find('\0') != std::string::npos)
    return bad("the seek index has no name", "index='memory', index='off' or a file for it");
  if (!(augment.flip >= 0 && augment.flip <= 1)) return bad("flip is a probability", "flip=0.5");
  for (const auto* range : {augment.brightness, augment.contrast, augment.saturation}) {
    if (!(range[0] >= 0 && range[0] <= range[1] && range[1] <= 1000))
      return bad("factors of colours are at least 0, the smaller first", "brightness=(0.6, 1.4)");
  }
  if (!(augment.hue[0] >= -0.5 && augment.hue[0] <= augment.hue[1] && augment.hue[1] <= 0.5))
    return bad("hue is turned by -0.5 to 0.5, the smaller first", "hue=(-0.1, 0.1)");
  if (augment.kind == Augment::Kind::kCenterCrop &&
      augment.shorter < std::max(augment.width, augment.height))
    return bad(fmt::format("the middle {} x {} does not fit a side of {}", augment.width,
                           augment.height, augment.shorter),
               "make resize at least as large as size");
  if (augment.kind == Augment::Kind::kCenterCrop && augment.shorter > 16384)
    return bad("the shorter side is resized to 16384 pixels at most", "resize=256");
  if (augment.rand_operations < 0 || augment.rand_operations > kMostDistortions ||
      augment.rand_magnitude < 0 || augment.rand_magnitude > 30)
    return bad(fmt::format("RandAugment is 0 to {} operations of a magnitude of 0 to 30",
                           kMostDistortions),
               "randaugment=(2, 9)");
  for (const double alpha : {mix.mixup, mix.cutmix}) {
    if (!(alpha >= 0 && alpha <= 1000))
      return bad("mixup and cutmix are the alpha of a Beta distribution, 0 to 1000", "mixup=0.2");
  }
  if (mix.mixup > 0 && type == Type::kU8)
    return bad("mixup is of numbers that are normalised, not of u8", "dtype='f32'");
  if (window.run < 1 || (window.samples > 0 && window.samples < window.run))
    return bad("a shuffle's buffer holds one run of neighbours or more",
               "shuffle_buffer=8192, shuffle_run=256");
  for (const float s : std) {
    if (!(s > 0)) return bad("std has to be above 0", "std=(1, 1, 1) leaves values as they are");
  }
  return {};
}

}  // namespace flatout::feed
