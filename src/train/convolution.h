// Two-dimensional convolution (cross-correlation, as the field has it) with square windows.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "train/layer.h"

namespace flatout::train {

struct ConvolutionShape {
  int outputs = 0;
  int side = 3;  // of the window
  int stride = 1;
  int padding = 1;  // zeros around the picture, at most side - 1
  bool bias = false;
};

/// Where the values under a window lie in a padded image, and which part of it each pixel sees:
/// value (tap, pixel) is image[tap_at[tap] + pixel_at[pixel]].
struct Window {
  Window(Dims padded, int side, int stride);

  int taps, pixels;
  std::vector<int32_t> tap_at, pixel_at;
  std::vector<int32_t> panel_at;  // of taps in a panel of kColumns columns
  std::vector<bool> straight;     // of tiles: columns 0 to 7 and 8 to 15 each lie side by side
};

/// y[o] = bias[o] + sum over i, v, u of weight[o][i][v][u] * x[i][y * stride + v - padding][...].
/// The picture is padded once; tiles of the result are then multiplied straight out of it, without
/// im2col, where pixels lie side by side, and from a gathered panel elsewhere. The gradient of the
/// input is the same operation with the window turned round, on the gradient of the output spread
/// by the stride. Memory: a padded picture for each of kParts parts.
template <class T>
class Convolution : public Layer<T> {
 public:
  Convolution(MemoryPlan<T>& plan, const std::string& name, Dims in, const ConvolutionShape& shape);

  Status forward(const Pass<T>& pass, const T* x, T* y) override;
  Status backward(const Pass<T>& pass, const T* x, const T* y, T* dy, T* dx) override;

 private:
  static Dims output(Dims in, const ConvolutionShape& shape);
  T* image(const Pass<T>& pass, int part) const { return pass.plan->scratch_of(part); }
  void sum_gradients(const Pass<T>& pass, int parts);

  ConvolutionShape shape_;
  Dims padded_, spread_;  // the input padded; the gradient of the output spread and padded
  Window window_, back_;
  int columns_;  // outputs, rounded up to whole tiles
  size_t image_size_, panel_size_;
  T *weight_ = nullptr, *d_weight_ = nullptr, *bias_ = nullptr, *d_bias_ = nullptr;
  T* packed_ = nullptr;  // weights in the order of the tiles' rows
};

}  // namespace flatout::train
