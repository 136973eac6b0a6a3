#include "train/network.h"

#include <algorithm>
#include <cmath>
#include <cstddef>

#include "train/random.h"

namespace flatout::train {
namespace {

constexpr int kColours = 3;

// out[o][y][x] = bias[o] + sum over i, v, u of w[o][i][v][u] * in[i][y+v-1][x+u-1]; zeros outside.
// The inner loop runs along a row, so that the compiler can use SIMD.
void convolve(const float* in, int channels, int side, const float* w, const float* bias,
              int outputs, float* out) {
  const ptrdiff_t width = side, plane = width * side;
  for (int o = 0; o < outputs; ++o) {
    float* to = out + o * plane;
    std::fill(to, to + plane, bias[o]);
    for (int i = 0; i < channels; ++i) {
      for (int v = -1; v <= 1; ++v) {
        for (int u = -1; u <= 1; ++u) {
          const float k = w[((o * channels + i) * 3 + v + 1) * 3 + u + 1];
          const int x0 = std::max(0, -u);
          const int x1 = std::min(side, side - u);
          for (int y = std::max(0, -v); y < std::min(side, side - v); ++y) {
            const float* from = in + i * plane + (y + v) * width + u;
            float* row = to + y * width;
            for (int x = x0; x < x1; ++x) row[x] += k * from[x];
          }
        }
      }
    }
  }
}

// Gradients of convolve(): dw, db are set; din (may be null) is set.
void convolve_back(const float* in, int channels, int side, const float* w, const float* dout,
                   int outputs, float* dw, float* db, float* din) {
  const ptrdiff_t width = side, plane = width * side;
  if (din != nullptr) std::fill(din, din + channels * plane, 0.0f);
  for (int o = 0; o < outputs; ++o) {
    const float* from = dout + o * plane;
    float sum = 0;
    for (ptrdiff_t p = 0; p < plane; ++p) sum += from[p];
    db[o] = sum;
    for (int i = 0; i < channels; ++i) {
      for (int v = -1; v <= 1; ++v) {
        for (int u = -1; u <= 1; ++u) {
          const int at = ((o * channels + i) * 3 + v + 1) * 3 + u + 1;
          const int x0 = std::max(0, -u);
          const int x1 = std::min(side, side - u);
          // Eight partial sums, because the compiler may not reorder one.
          float part[8] = {};
          for (int y = std::max(0, -v); y < std::min(side, side - v); ++y) {
            const float* a = in + i * plane + (y + v) * width + u;
            const float* d = from + y * width;
            int x = x0;
            for (; x + 8 <= x1; x += 8) {
              for (int k = 0; k < 8; ++k) part[k] += a[x + k] * d[x + k];
            }
            for (; x < x1; ++x) part[0] += a[x] * d[x];
            if (din != nullptr) {
              float* back = din + i * plane + (y + v) * width + u;
              const float weight = w[at];
              for (x = x0; x < x1; ++x) back[x] += weight * d[x];
            }
          }
          dw[at] = ((part[0] + part[4]) + (part[1] + part[5])) +
                   ((part[2] + part[6]) + (part[3] + part[7]));
        }
      }
    }
  }
}

// ReLU, then the largest of each 2 x 2; `which` remembers where, 4 where ReLU gave zero.
void relu_pool(const float* in, int channels, int side, float* out, uint8_t* which) {
  const int half = side / 2;
  const ptrdiff_t width = side, plane = width * side;
  for (int c = 0; c < channels; ++c) {
    for (int y = 0; y < half; ++y) {
      for (int x = 0; x < half; ++x) {
        const float* p = in + c * plane + y * (2 * width) + ptrdiff_t{2} * x;
        const float four[4] = {p[0], p[1], p[width], p[width + 1]};
        int best = 0;
        for (int k = 1; k < 4; ++k) best = four[k] > four[best] ? k : best;
        const int at = (c * half + y) * half + x;
        out[at] = std::max(four[best], 0.0f);
        which[at] = static_cast<uint8_t>(four[best] > 0 ? best : 4);
      }
    }
  }
}

void relu_pool_back(const float* dout, const uint8_t* which, int channels, int side, float* din) {
  const int half = side / 2;
  std::fill(din, din + ptrdiff_t{channels} * side * side, 0.0f);
  for (int c = 0; c < channels; ++c) {
    for (int y = 0; y < half; ++y) {
      for (int x = 0; x < half; ++x) {
        const int at = (c * half + y) * half + x;
        if (which[at] > 3) continue;
        din[c * side * side + (2 * y + which[at] / 2) * side + 2 * x + which[at] % 2] = dout[at];
      }
    }
  }
}

}  // namespace

Network::Network(int channels, uint64_t seed) : c1_(channels), c2_(2 * channels) {
  const auto size = [](int n) { return static_cast<size_t>(n); };
  const int dense = c2_ * (kSide / 4) * (kSide / 4);
  w1_ = 0;
  b1_ = w1_ + size(c1_ * kColours * 9);
  w2_ = b1_ + size(c1_);
  b2_ = w2_ + size(c2_ * c1_ * 9);
  w3_ = b2_ + size(c2_);
  b3_ = w3_ + size(kClasses * dense);
  weights_.resize(b3_ + kClasses);
  velocity_.resize(weights_.size());
  gradient_.resize(weights_.size());
  Random random(seed, 77);
  const auto fill = [&](size_t begin, size_t end, int fan_in) {  // He et al., uniform
    const float bound = std::sqrt(6.0f / static_cast<float>(fan_in));
    for (size_t i = begin; i < end; ++i) weights_[i] = random.range(-bound, bound);
  };
  fill(w1_, b1_, kColours * 9);
  fill(w2_, b2_, c1_ * 9);
  fill(w3_, b3_, dense);
}

void Network::forward_one(const float* x, Sample& s) const {
  constexpr int kHalf = kSide / 2;
  constexpr int kQuarter = kSide / 4;
  const int dense = c2_ * kQuarter * kQuarter;
  const auto size = [](int n) { return static_cast<size_t>(n); };
  s.conv1.resize(size(c1_ * kSide * kSide));
  s.pool1.resize(size(c1_ * kHalf * kHalf));
  s.arg1.resize(s.pool1.size());
  s.conv2.resize(size(c2_ * kHalf * kHalf));
  s.pool2.resize(size(dense));
  s.arg2.resize(s.pool2.size());
  s.logits.resize(kClasses);
  s.probability.resize(kClasses);
  const float* w = weights_.data();
  convolve(x, kColours, kSide, w + w1_, w + b1_, c1_, s.conv1.data());
  relu_pool(s.conv1.data(), c1_, kSide, s.pool1.data(), s.arg1.data());
  convolve(s.pool1.data(), c1_, kHalf, w + w2_, w + b2_, c2_, s.conv2.data());
  relu_pool(s.conv2.data(), c2_, kHalf, s.pool2.data(), s.arg2.data());
  for (int c = 0; c < kClasses; ++c) {
    const float* row = w + w3_ + ptrdiff_t{c} * dense;
    float sum = w[b3_ + static_cast<size_t>(c)];
    for (int i = 0; i < dense; ++i) sum += row[i] * s.pool2[static_cast<size_t>(i)];
    s.logits[static_cast<size_t>(c)] = sum;
  }
  const float most = *std::max_element(s.logits.begin(), s.logits.end());
  float total = 0;
  for (size_t c = 0; c < kClasses; ++c) total += s.probability[c] = std::exp(s.logits[c] - most);
  for (float& p : s.probability) p /= total;
}

void Network::backward_one(const float* x, int label, int count, Sample& s) const {
  constexpr int kHalf = kSide / 2;
  const int dense = static_cast<int>(s.pool2.size());
  s.gradient.resize(weights_.size());
  const float* w = weights_.data();
  float* g = s.gradient.data();
  std::vector<float> d_pool2(s.pool2.size(), 0.0f);
  for (int c = 0; c < kClasses; ++c) {
    const float d = (s.probability[static_cast<size_t>(c)] - (c == label ? 1.0f : 0.0f)) /
                    static_cast<float>(count);
    g[b3_ + static_cast<size_t>(c)] = d;
    float* dw = g + w3_ + ptrdiff_t{c} * dense;
    const float* row = w + w3_ + ptrdiff_t{c} * dense;
    for (int i = 0; i < dense; ++i) {
      dw[i] = d * s.pool2[static_cast<size_t>(i)];
      d_pool2[static_cast<size_t>(i)] += d * row[i];
    }
  }
  s.d_conv.resize(std::max(s.conv1.size(), s.conv2.size()));
  s.d_pool1.resize(s.pool1.size());
  relu_pool_back(d_pool2.data(), s.arg2.data(), c2_, kHalf, s.d_conv.data());
  convolve_back(s.pool1.data(), c1_, kHalf, w + w2_, s.d_conv.data(), c2_, g + w2_, g + b2_,
                s.d_pool1.data());
  relu_pool_back(s.d_pool1.data(), s.arg1.data(), c1_, kSide, s.d_conv.data());
  convolve_back(x, kColours, kSide, w + w1_, s.d_conv.data(), c1_, g + w1_, g + b1_, nullptr);
}

__attribute__((noinline)) Score Network::forward(const Batch& batch, Pool& pool) {
  constexpr size_t kPixels = size_t{kColours} * kSide * kSide;
  samples_.resize(std::max(samples_.size(), batch.labels.size()));
  pool.run(batch.count(), [&](int i) {
    forward_one(batch.x.data() + static_cast<size_t>(i) * kPixels,
                samples_[static_cast<size_t>(i)]);
  });
  Score score;
  for (size_t i = 0; i < batch.labels.size(); ++i) {
    const Sample& s = samples_[i];
    const auto label = static_cast<size_t>(batch.labels[i]);
    score.loss -= std::log(std::max(s.probability[label], 1e-12f)) / batch.count();
    const auto best = std::max_element(s.logits.begin(), s.logits.end()) - s.logits.begin();
    score.right += best == batch.labels[i] ? 1 : 0;
  }
  return score;
}

__attribute__((noinline)) void Network::backward(const Batch& batch, Pool& pool) {
  constexpr size_t kPixels = size_t{kColours} * kSide * kSide;
  pool.run(batch.count(), [&](int i) {
    backward_one(batch.x.data() + static_cast<size_t>(i) * kPixels,
                 batch.labels[static_cast<size_t>(i)], batch.count(),
                 samples_[static_cast<size_t>(i)]);
  });
  std::fill(gradient_.begin(), gradient_.end(), 0.0f);
  for (size_t i = 0; i < batch.labels.size(); ++i) {
    for (size_t k = 0; k < gradient_.size(); ++k) gradient_[k] += samples_[i].gradient[k];
  }
}

__attribute__((noinline)) void Network::update(float rate, float momentum) {
  for (size_t k = 0; k < weights_.size(); ++k) {
    velocity_[k] = momentum * velocity_[k] + gradient_[k];
    weights_[k] -= rate * velocity_[k];
  }
}

std::vector<Tensor> PlainLearner::state() {
  const auto count = static_cast<int64_t>(network_.weights().size());
  return {{"weights", {count}, network_.weights()},
          {"optimizer.velocity", {count}, network_.velocity()}};
}

}  // namespace flatout::train
