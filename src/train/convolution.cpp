#include "train/convolution.h"

#include <algorithm>
#include <cmath>

#include "train/strips.h"

namespace flatout::train {
namespace {

constexpr int kPixelBlock = 256;  // of the gradient's panel, so that it stays in the first cache

Dims grown(Dims in, int by) { return {in.channels, in.height + by, in.width + by}; }

/// image: [channels][padded.height][padded.width], zero but for x's values, which begin `before`
/// from the corner and lie `stride` apart.
template <class T>
void spread(const T* x, Dims in, int before, int stride, Dims padded, T* image) {
  for (int c = 0; c < in.channels; ++c) {
    for (int v = 0; v < padded.height; ++v, image += padded.width) {
      const int y = v - before;
      if (y < 0 || y % stride != 0 || y / stride >= in.height) {
        std::fill(image, image + padded.width, T{0});
        continue;
      }
      const T* row = x + (static_cast<ptrdiff_t>(c) * in.height + y / stride) * in.width;
      if (stride == 1) {
        std::fill(image, image + before, T{0});
        std::copy(row, row + in.width, image + before);
        std::fill(image + before + in.width, image + padded.width, T{0});
      } else {
        std::fill(image, image + padded.width, T{0});
        for (int u = 0; u < in.width; ++u) image[before + u * stride] = row[u];
      }
    }
  }
}

/// y[rows][pixels] = bias + packed rows times what the window sees of the image.
/// panel: [taps][kColumns], written where a tile is not straight.
template <class T>
void correlate(const Window& window, const T* image, const T* packed, int rows, const T* bias,
               T* panel, T* y) {
  const ptrdiff_t pixels = window.pixels;
  for (int first = 0; first < window.pixels; first += kColumns) {
    const int width = std::min(kColumns, window.pixels - first);
    const int32_t* pixel = window.pixel_at.data() + first;
    const T* b = panel;
    const int32_t* tap = window.panel_at.data();
    ptrdiff_t second = kColumns / 2;
    if (window.straight[static_cast<size_t>(first / kColumns)]) {
      b = image + pixel[0];
      tap = window.tap_at.data();
      second = pixel[kColumns / 2] - pixel[0];
    } else {
      for (int k = 0; k < window.taps; ++k) {
        const T* from = image + window.tap_at[static_cast<size_t>(k)];
        T* to = panel + k * kColumns;
        for (int j = 0; j < width; ++j) to[j] = from[pixel[j]];
        std::fill(to + width, to + kColumns, T{0});
      }
    }
    for_strips(rows, [&](int row, int count) {
      const T* a = packed + static_cast<ptrdiff_t>(row) * window.taps;
      const T* start = bias != nullptr ? bias + row : nullptr;
      T* to = y + row * pixels + first;
      if (width == kColumns) {
        multiply_tile(a, count, b, tap, window.taps, second, start, to, pixels);
        return;
      }
      T tile[kMostRows * kColumns];
      multiply_tile(a, count, b, tap, window.taps, second, start, tile, kColumns);
      for (int i = 0; i < count; ++i)
        std::copy(tile + i * kColumns, tile + i * kColumns + width, to + i * pixels);
    });
  }
}

/// sum[taps][columns] += what the window sees of the image times dy[rows][pixels].
/// panel: [kPixelBlock][kColumns].
template <class T>
void correlate_gradient(const Window& window, const T* image, const T* dy, int rows, T* panel,
                        T* sum, int columns) {
  for (int row = 0; row < rows; row += kColumns) {
    const int width = std::min(kColumns, rows - row);
    for (int first = 0; first < window.pixels; first += kPixelBlock) {
      const int count = std::min(kPixelBlock, window.pixels - first);
      for (int j = 0; j < kColumns; ++j) {
        const T* from = dy + static_cast<ptrdiff_t>(row + j) * window.pixels + first;
        for (int p = 0; p < count; ++p) panel[p * kColumns + j] = j < width ? from[p] : T{0};
      }
      for_strips(window.taps, [&](int tap, int taps) {
        accumulate_tile(image, window.tap_at.data() + tap, taps, window.pixel_at.data() + first,
                        count, panel, sum + static_cast<ptrdiff_t>(tap) * columns + row, columns);
      });
    }
  }
}

}  // namespace

Window::Window(Dims padded, int side, int stride)
    : taps(padded.channels * side * side),
      pixels(((padded.height - side) / stride + 1) * ((padded.width - side) / stride + 1)) {
  const int plane = padded.height * padded.width;
  for (int c = 0; c < padded.channels; ++c) {
    for (int v = 0; v < side; ++v) {
      for (int u = 0; u < side; ++u) tap_at.push_back(c * plane + v * padded.width + u);
    }
  }
  for (int y = 0; y + side <= padded.height; y += stride) {
    for (int x = 0; x + side <= padded.width; x += stride) {
      pixel_at.push_back(y * padded.width + x);
    }
  }
  for (int k = 0; k < taps; ++k) panel_at.push_back(k * kColumns);
  for (int first = 0; first < pixels; first += kColumns) {
    bool side_by_side = first + kColumns <= pixels;
    for (int j = 1; side_by_side && j < kColumns; ++j) {
      const size_t at = static_cast<size_t>(first) + static_cast<size_t>(j);
      side_by_side = j == kColumns / 2 || pixel_at[at] == pixel_at[at - 1] + 1;
    }
    straight.push_back(side_by_side);
  }
}

template <class T>
Dims Convolution<T>::output(Dims in, const ConvolutionShape& shape) {
  const auto side = [&](int length) {
    return (length + 2 * shape.padding - shape.side) / shape.stride + 1;
  };
  return {shape.outputs, side(in.height), side(in.width)};
}

template <class T>
Convolution<T>::Convolution(MemoryPlan<T>& plan, const std::string& name, Dims in,
                            const ConvolutionShape& shape)
    : Layer<T>(in, output(in, shape)),
      shape_(shape),
      padded_(grown(in, 2 * shape.padding)),
      spread_(grown({shape.outputs, in.height, in.width}, shape.side - 1)),
      window_(padded_, shape.side, shape.stride),
      back_(spread_, shape.side, 1),
      columns_((shape.outputs + kColumns - 1) / kColumns * kColumns),
      image_size_(std::max(padded_.count(), spread_.count())),
      panel_size_(static_cast<size_t>(std::max({window_.taps, back_.taps, kPixelBlock})) *
                  kColumns) {
  FLATOUT_CHECK(shape.padding < shape.side);
  const auto inputs = static_cast<int64_t>(in.channels);
  // He et al., arXiv 1502.01852, uniform: the ReLU behind it halves the variance.
  const T bound = std::sqrt(T{6} / static_cast<T>(window_.taps));
  plan.parameter(name + ".weight", {shape.outputs, inputs, shape.side, shape.side}, T{0}, bound,
                 &weight_, &d_weight_);
  if (shape.bias) plan.parameter(name + ".bias", {shape.outputs}, T{0}, T{0}, &bias_, &d_bias_);
  plan.want(&packed_, static_cast<size_t>(shape.outputs) * static_cast<size_t>(window_.taps));
  // Of a part: the image, a panel, and its sums of the gradients of weights and bias.
  plan.scratch(image_size_ + panel_size_ +
               static_cast<size_t>(window_.taps + 1) * static_cast<size_t>(columns_));
}

template <class T>
Status Convolution<T>::forward(const Pass<T>& pass, const T* x, T* y) {
  pack_strips(
      shape_.outputs, window_.taps,
      [&](int o, int k) { return weight_[static_cast<ptrdiff_t>(o) * window_.taps + k]; }, packed_);
  pass.over_samples([&](int part, int first, int last) {
    T* padded = image(pass, part);
    for (int i = first; i < last; ++i) {
      spread(x + static_cast<size_t>(i) * this->in().count(), this->in(), shape_.padding, 1,
             padded_, padded);
      correlate(window_, padded, packed_, shape_.outputs, bias_, padded + image_size_,
                y + static_cast<size_t>(i) * this->out().count());
    }
  });
  return {};
}

template <class T>
Status Convolution<T>::backward(const Pass<T>& pass, const T* x, const T*, T* dy, T* dx) {
  const int side = shape_.side;
  if (dx != nullptr) {  // the window turned round, its inputs for its outputs
    pack_strips(
        this->in().channels, back_.taps,
        [&](int c, int k) {
          const int o = k / (side * side);
          const int turned = side * side - 1 - k % (side * side);
          return weight_[(static_cast<ptrdiff_t>(o) * this->in().channels + c) * side * side +
                         turned];
        },
        packed_);
  }
  const Dims from = this->out();
  pass.over_samples([&](int part, int first, int last) {
    T* padded = image(pass, part);
    T* panel = padded + image_size_;
    T* sum = panel + panel_size_;
    T* sum_bias = sum + static_cast<ptrdiff_t>(window_.taps) * columns_;
    std::fill(sum, sum_bias + columns_, T{0});
    for (int i = first; i < last; ++i) {
      const T* d = dy + static_cast<size_t>(i) * from.count();
      spread(x + static_cast<size_t>(i) * this->in().count(), this->in(), shape_.padding, 1,
             padded_, padded);
      correlate_gradient(window_, padded, d, from.channels, panel, sum, columns_);
      if (d_bias_ != nullptr) {
        for (int o = 0; o < from.channels; ++o) {
          const T* row = d + static_cast<ptrdiff_t>(o) * window_.pixels;
          for (int p = 0; p < window_.pixels; ++p) sum_bias[o] += row[p];
        }
      }
      if (dx == nullptr) continue;
      spread(d, from, side - 1 - shape_.padding, shape_.stride, spread_, padded);
      correlate(back_, padded, packed_, this->in().channels, static_cast<const T*>(nullptr), panel,
                dx + static_cast<size_t>(i) * this->in().count());
    }
  });
  sum_gradients(pass, std::min(pass.n, kParts));
  return {};
}

// Adds the parts' sums in their order.
template <class T>
void Convolution<T>::sum_gradients(const Pass<T>& pass, int parts) {
  const int taps = window_.taps;
  const auto sums_of = [&](int part) { return image(pass, part) + image_size_ + panel_size_; };
  pass.device->pool().run(kParts, [&](int slice) {
    for (int k = taps * slice / kParts; k < taps * (slice + 1) / kParts; ++k) {
      for (int o = 0; o < shape_.outputs; ++o) {
        T sum = 0;
        for (int part = 0; part < parts; ++part) {
          sum += sums_of(part)[static_cast<ptrdiff_t>(k) * columns_ + o];
        }
        d_weight_[static_cast<ptrdiff_t>(o) * taps + k] = sum;
      }
    }
  });
  if (d_bias_ == nullptr) return;
  for (int o = 0; o < shape_.outputs; ++o) {
    d_bias_[o] = 0;
    for (int part = 0; part < parts; ++part) {
      d_bias_[o] += sums_of(part)[static_cast<ptrdiff_t>(taps) * columns_ + o];
    }
  }
}

template class Convolution<float>;
template class Convolution<double>;

}  // namespace flatout::train
