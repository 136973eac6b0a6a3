// Which part of a picture a sample shows: torchvision's RandomResizedCrop, Resize with CenterCrop,
// and plain Resize, as plain numbers.
#pragma once

#include "feed/colours.h"
#include "feed/distort.h"
#include "feed/philox.h"
#include "feed/picture.h"
#include "feed/resize.h"

namespace flatout::feed {

struct Augment {
  enum class Kind : uint8_t {
    kRandomCrop,  // a part of random area and ratio, resized to width x height, flipped at times
    kCenterCrop,  // resized so that the shorter side is `shorter`; the middle width x height of it
    kStretch,     // all of it, resized to width x height
  };
  Kind kind = Kind::kRandomCrop;
  int width = 224;
  int height = 224;
  double area[2] = {0.08, 1.0};
  double ratio[2] = {3.0 / 4.0, 4.0 / 3.0};
  double flip = 0.5;
  int shorter = 256;
  Filter filter = Filter::kBilinear;
  // Colour jitter: factors are drawn from these; what is 1 (hue: 0) at both ends is left out.
  double brightness[2] = {1, 1};
  double contrast[2] = {1, 1};
  double saturation[2] = {1, 1};
  double hue[2] = {0, 0};
  // RandAugment: so many operations, of this strength (0 to 30).
  int rand_operations = 0;
  int rand_magnitude = 9;
};

/// `box` of the source is resized to whole_width x whole_height; the sample is the part of that
/// which begins at (skip_x, skip_y), mirrored left to right where `flip`.
struct View {
  Rect box;
  int whole_width = 0;
  int whole_height = 0;
  int skip_x = 0;
  int skip_y = 0;
  bool flip = false;
  Filter filter = Filter::kBilinear;
  ColourChange colours;
  Distortions distortions;
};

View choose_view(const Augment& augment, Size size, SampleRandom& random);

}  // namespace flatout::feed
