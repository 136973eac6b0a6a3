#include "train/layers.h"

#include <algorithm>
#include <cmath>

#include "train/matrix.h"

namespace flatout::train {

// ---- ReLU ----

template <class T>
Status Relu<T>::forward(const Pass<T>& pass, const T* x, T* y) {
  const size_t size = this->in().count();
  pass.over_samples([&](int, int first, int last) {
    for (size_t i = static_cast<size_t>(first) * size; i < static_cast<size_t>(last) * size; ++i) {
      y[i] = x[i] <= 0 ? T{0} : x[i];  // a NaN stays
    }
  });
  return {};
}

template <class T>
Status Relu<T>::backward(const Pass<T>& pass, const T*, const T* y, T* dy, T* dx) {
  if (dx == nullptr) return {};
  const size_t size = this->in().count();
  pass.over_samples([&](int, int first, int last) {
    for (size_t i = static_cast<size_t>(first) * size; i < static_cast<size_t>(last) * size; ++i) {
      dx[i] = y[i] <= 0 ? T{0} : dy[i];
    }
  });
  return {};
}

// ---- pooling ----

template <class T>
MaxPool<T>::MaxPool(MemoryPlan<T>& plan, Dims in)
    : Layer<T>(in, {in.channels, in.height / 2, in.width / 2}) {
  plan.want(&which_, static_cast<size_t>(plan.batch()) * this->out().count());
}

template <class T>
Status MaxPool<T>::forward(const Pass<T>& pass, const T* x, T* y) {
  const Dims in = this->in();
  const Dims out = this->out();
  pass.over_samples([&](int, int first, int last) {
    size_t to = static_cast<size_t>(first) * out.count();
    for (int plane = first * in.channels; plane < last * in.channels; ++plane) {
      const T* from = x + static_cast<ptrdiff_t>(plane) * in.height * in.width;
      for (int v = 0; v < out.height; ++v) {
        const T* above = from + static_cast<ptrdiff_t>(2 * v) * in.width;
        for (int u = 0; u < out.width; ++u, ++to) {
          const T* corner = above + ptrdiff_t{2} * u;
          const T four[4] = {corner[0], corner[1], corner[in.width], corner[in.width + 1]};
          uint8_t best = 0;
          for (uint8_t k = 1; k < 4; ++k) {
            if (four[k] > four[best] || std::isnan(four[k])) best = k;
          }
          y[to] = four[best];
          which_[to] = best;
        }
      }
    }
  });
  return {};
}

template <class T>
Status MaxPool<T>::backward(const Pass<T>& pass, const T*, const T*, T* dy, T* dx) {
  if (dx == nullptr) return {};
  const Dims in = this->in();
  const Dims out = this->out();
  pass.over_samples([&](int, int first, int last) {
    std::fill(dx + static_cast<size_t>(first) * in.count(),
              dx + static_cast<size_t>(last) * in.count(), T{0});
    size_t at = static_cast<size_t>(first) * out.count();
    for (int plane = first * in.channels; plane < last * in.channels; ++plane) {
      T* to = dx + static_cast<ptrdiff_t>(plane) * in.height * in.width;
      for (int v = 0; v < out.height; ++v) {
        for (int u = 0; u < out.width; ++u, ++at) {
          to[(2 * v + which_[at] / 2) * in.width + 2 * u + which_[at] % 2] = dy[at];
        }
      }
    }
  });
  return {};
}

template <class T>
Status GlobalAveragePool<T>::forward(const Pass<T>& pass, const T* x, T* y) {
  const int plane = this->in().height * this->in().width;
  const int channels = this->in().channels;
  pass.over_samples([&](int, int first, int last) {
    for (int c = first * channels; c < last * channels; ++c) {
      T sum = 0;
      for (int p = 0; p < plane; ++p) sum += x[static_cast<ptrdiff_t>(c) * plane + p];
      y[c] = sum / static_cast<T>(plane);
    }
  });
  return {};
}

template <class T>
Status GlobalAveragePool<T>::backward(const Pass<T>& pass, const T*, const T*, T* dy, T* dx) {
  if (dx == nullptr) return {};
  const int plane = this->in().height * this->in().width;
  const int channels = this->in().channels;
  pass.over_samples([&](int, int first, int last) {
    for (int c = first * channels; c < last * channels; ++c) {
      T* to = dx + static_cast<ptrdiff_t>(c) * plane;
      std::fill(to, to + plane, dy[c] / static_cast<T>(plane));
    }
  });
  return {};
}

// ---- dense ----

template <class T>
Dense<T>::Dense(MemoryPlan<T>& plan, const std::string& name, Dims in, int outputs)
    : Layer<T>(in, {outputs, 1, 1}), inputs_(static_cast<int>(in.count())) {
  const T bound = 1 / std::sqrt(static_cast<T>(inputs_));
  plan.parameter(name + ".weight", {outputs, inputs_}, T{0}, bound, &weight_, &d_weight_);
  plan.parameter(name + ".bias", {outputs}, T{0}, T{0}, &bias_, &d_bias_);
  const int batch = plan.batch();
  const auto most = static_cast<size_t>(std::max({inputs_, outputs, batch}));
  // The left matrix is x, dy, or dy turned.
  plan.want(&packed_, static_cast<size_t>(batch) * static_cast<size_t>(std::max(inputs_, outputs)));
  plan.scratch(multiply_scratch(static_cast<int>(most)));
}

template <class T>
Status Dense<T>::forward(const Pass<T>& pass, const T* x, T* y) {
  const int outputs = this->out().channels;
  multiply(pass, pass.n, outputs, inputs_, MatrixView<T>{x, inputs_, 1},
           MatrixView<T>{weight_, 1, inputs_}, packed_, y);
  for (int i = 0; i < pass.n; ++i) {
    for (int o = 0; o < outputs; ++o) y[static_cast<ptrdiff_t>(i) * outputs + o] += bias_[o];
  }
  return {};
}

template <class T>
Status Dense<T>::backward(const Pass<T>& pass, const T* x, const T*, T* dy, T* dx) {
  const int outputs = this->out().channels;
  multiply(pass, outputs, inputs_, pass.n, MatrixView<T>{dy, 1, outputs},
           MatrixView<T>{x, inputs_, 1}, packed_, d_weight_);
  for (int o = 0; o < outputs; ++o) {
    d_bias_[o] = 0;
    for (int i = 0; i < pass.n; ++i) d_bias_[o] += dy[static_cast<ptrdiff_t>(i) * outputs + o];
  }
  if (dx == nullptr) return {};
  multiply(pass, pass.n, inputs_, outputs, MatrixView<T>{dy, outputs, 1},
           MatrixView<T>{weight_, inputs_, 1}, packed_, dx);
  return {};
}

// ---- the residual block ----

template <class T>
ResidualBlock<T>::ResidualBlock(MemoryPlan<T>& plan, const std::string& name, Dims in, int channels,
                                int stride)
    : Layer<T>(in, {channels, (in.height + stride - 1) / stride, (in.width + stride - 1) / stride}),
      stride_(stride),
      first_(plan, name + ".conv1", in, {channels, 3, stride, 1, false}),
      first_norm_(plan, name + ".bn1", this->out(), true),
      second_(plan, name + ".conv2", this->out(), {channels, 3, 1, 1, false}),
      second_norm_(plan, name + ".bn2", this->out(), true) {
  const size_t size = static_cast<size_t>(plan.batch()) * this->out().count();
  plan.want(&sum1_, size);
  plan.want(&middle_, size);
  plan.want(&sum2_, size);
  plan.share(2, &d_middle_, size);
  plan.share(3, &d_shortcut_, size);
}

template <class T>
void ResidualBlock<T>::take_shortcut(const Pass<T>& pass, const T* x, T* to) const {
  const Dims in = this->in();
  const Dims out = this->out();
  const int before = (out.channels - in.channels) / 2;
  pass.over_samples([&](int, int first, int last) {
    T* at = to + static_cast<size_t>(first) * out.count();
    for (int i = first; i < last; ++i) {
      for (int o = 0; o < out.channels; ++o) {
        const int c = o - before;
        if (c < 0 || c >= in.channels) {
          at = std::fill_n(at, out.height * out.width, T{0});
          continue;
        }
        const T* plane = x + (static_cast<ptrdiff_t>(i) * in.channels + c) * in.height * in.width;
        for (int v = 0; v < out.height; ++v) {
          const T* row = plane + static_cast<ptrdiff_t>(v) * stride_ * in.width;
          for (int u = 0; u < out.width; ++u) *at++ = row[ptrdiff_t{u} * stride_];
        }
      }
    }
  });
}

template <class T>
void ResidualBlock<T>::add_shortcut_gradient(const Pass<T>& pass, const T* from, T* dx) const {
  const Dims in = this->in();
  const Dims out = this->out();
  const int before = (out.channels - in.channels) / 2;
  pass.over_samples([&](int, int first, int last) {
    for (int i = first; i < last; ++i) {
      for (int c = 0; c < in.channels; ++c) {
        const T* d =
            from + (static_cast<ptrdiff_t>(i) * out.channels + c + before) * out.height * out.width;
        for (int v = 0; v < out.height; ++v) {
          T* row = dx + ((static_cast<ptrdiff_t>(i) * in.channels + c) * in.height +
                         static_cast<ptrdiff_t>(v) * stride_) *
                            in.width;
          for (int u = 0; u < out.width; ++u) row[ptrdiff_t{u} * stride_] += *d++;
        }
      }
    }
  });
}

template <class T>
Status ResidualBlock<T>::forward(const Pass<T>& pass, const T* x, T* y) {
  FLATOUT_TRY_STATUS(first_.forward(pass, x, sum1_));
  FLATOUT_TRY_STATUS(first_norm_.forward(pass, sum1_, nullptr, middle_));
  FLATOUT_TRY_STATUS(second_.forward(pass, middle_, sum2_));
  const T* shortcut = x;
  if (stride_ != 1 || this->in().channels != this->out().channels) {
    take_shortcut(pass, x, d_shortcut_);
    shortcut = d_shortcut_;
  }
  return second_norm_.forward(pass, sum2_, shortcut, y);
}

template <class T>
Status ResidualBlock<T>::backward(const Pass<T>& pass, const T* x, const T*, T* dy, T* dx) {
  FLATOUT_TRY_STATUS(second_norm_.backward(pass, sum2_, dy, dy, d_shortcut_));
  FLATOUT_TRY_STATUS(second_.backward(pass, middle_, sum2_, dy, d_middle_));
  FLATOUT_TRY_STATUS(first_norm_.backward(pass, sum1_, d_middle_, d_middle_, nullptr));
  FLATOUT_TRY_STATUS(first_.backward(pass, x, sum1_, d_middle_, dx));
  if (dx != nullptr) add_shortcut_gradient(pass, d_shortcut_, dx);
  return {};
}

// ---- the loss ----

template <class T>
Score softmax_cross_entropy(const T* logits, const int* labels, int n, int classes, T* d_logits) {
  Score score;
  for (int i = 0; i < n; ++i, logits += classes, d_logits += classes) {
    const T* best = std::max_element(logits, logits + classes);
    double total = 0;
    for (int c = 0; c < classes; ++c) total += std::exp(static_cast<double>(logits[c] - *best));
    for (int c = 0; c < classes; ++c) {
      const double p = std::exp(static_cast<double>(logits[c] - *best)) / total;
      d_logits[c] = static_cast<T>((p - (c == labels[i] ? 1 : 0)) / n);
    }
    score.loss += (std::log(total) - static_cast<double>(logits[labels[i]] - *best)) / n;
    score.right += best - logits == labels[i] ? 1 : 0;
  }
  return score;
}

template Score softmax_cross_entropy(const float*, const int*, int, int, float*);
template Score softmax_cross_entropy(const double*, const int*, int, int, double*);
template class Relu<float>;
template class Relu<double>;
template class MaxPool<float>;
template class MaxPool<double>;
template class GlobalAveragePool<float>;
template class GlobalAveragePool<double>;
template class Dense<float>;
template class Dense<double>;
template class ResidualBlock<float>;
template class ResidualBlock<double>;

}  // namespace flatout::train
