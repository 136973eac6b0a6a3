// The layer BatchNorm: buffers and parts here, the arithmetic in room nn.
#include <cstring>

#include "train/layers.h"

namespace flatout::train {
namespace {

constexpr double kEpsilon = 1e-5;
constexpr double kMomentum = 0.1;

template <class T>
constexpr nn::Type kType = sizeof(T) == 8 ? nn::Type::kF64 : nn::Type::kF32;

// nn starts tasks through a plain function: the pool it means is the caller's.
thread_local Pool* current_pool = nullptr;

nn::Threads threads_of(Pool& pool) {
  current_pool = &pool;
  nn::Threads threads;
  threads.count = pool.threads();
  threads.run = [](int count, void (*task)(void*), void* data) {
    current_pool->run(count, [&](int) { task(data); });
  };
  return threads;
}

}  // namespace

template <class T>
BatchNorm<T>::BatchNorm(MemoryPlan<T>& plan, const std::string& name, Dims dims, bool relu)
    : dims_(dims), relu_(relu) {
  const auto channels = static_cast<size_t>(dims.channels);
  plan.parameter(name + ".weight", {dims.channels}, T{1}, T{0}, &gamma_, &d_gamma_);
  plan.parameter(name + ".bias", {dims.channels}, T{0}, T{0}, &beta_, &d_beta_);
  plan.statistic(name + ".running_mean", {dims.channels}, T{0}, &running_mean_);
  plan.statistic(name + ".running_var", {dims.channels}, T{1}, &running_variance_);
  plan.want(&mean_, channels);
  plan.want(&inverse_std_, channels);
  Pass<T> whole;
  whole.n = plan.batch();
  plan.want(&mask_, nn::mask_bytes(shape(whole)));
}

template <class T>
nn::Shape BatchNorm<T>::shape(const Pass<T>& pass) const {
  nn::Shape out;
  out.n = pass.n;
  out.c = dims_.channels;
  out.h = dims_.height;
  out.w = dims_.width;
  out.type = out.parameters = kType<T>;
  return out;
}

template <class T>
nn::Running BatchNorm<T>::running() const {
  nn::Running out;
  out.mean = running_mean_;
  out.variance = running_variance_;
  out.momentum = kMomentum;
  return out;
}

// mean_ and inverse_std_ of all parts' values together, put together in the parts' order.
template <class T>
Status BatchNorm<T>::gather_moments(const Pass<T>& pass, const nn::Shape& shape, const T* x) {
  const auto channels = static_cast<size_t>(dims_.channels);
  const size_t size = 1 + 2 * channels;  // count, means, sums of squares
  std::vector<double> mine(size);
  nn::Moments moments{0, mine.data() + 1, mine.data() + 1 + channels};
  FLATOUT_TRY_STATUS(nn::batch_norm_moments(shape, x, threads_of(pass.device->pool()), &moments));
  mine[0] = moments.count;
  std::vector<double> all(size * static_cast<size_t>(pass.exchange->parts()));
  FLATOUT_TRY_STATUS(pass.exchange->gather(pass.part, mine.data(), size, all.data()));
  nn::Moments joint{all[0], all.data() + 1, all.data() + 1 + channels};
  for (size_t at = size; at < all.size(); at += size) {
    nn::combine(dims_.channels, {all[at], all.data() + at + 1, all.data() + at + 1 + channels},
                &joint);
  }
  count_ = joint.count;
  return nn::batch_norm_finish(shape, joint, kEpsilon, {mean_, inverse_std_}, running());
}

template <class T>
Status BatchNorm<T>::forward(const Pass<T>& pass, const T* x, const T* residual, T* y) {
  const nn::Shape shape = this->shape(pass);
  const nn::Threads threads = threads_of(pass.device->pool());
  nn::Forward forward;
  forward.x = x;
  forward.residual = residual;
  forward.gamma = gamma_;
  forward.beta = beta_;
  forward.epsilon = kEpsilon;
  forward.relu = relu_;
  forward.y = y;
  if (!pass.training) {
    return nn::batch_norm_inference(shape, forward, running_mean_, running_variance_, threads);
  }
  forward.mask = relu_ ? mask_ : nullptr;
  count_ = static_cast<double>(shape.per_channel());
  if (pass.exchange == nullptr) {
    return nn::batch_norm_training(shape, forward, {mean_, inverse_std_}, running(), threads);
  }
  FLATOUT_TRY_STATUS(gather_moments(pass, shape, x));
  return nn::batch_norm_apply(shape, forward, {mean_, inverse_std_}, threads);
}

template <class T>
Status BatchNorm<T>::backward(const Pass<T>& pass, const T* x, const T* dy, T* dx, T* d_residual) {
  const nn::Shape shape = this->shape(pass);
  const nn::Threads threads = threads_of(pass.device->pool());
  nn::Backward backward;
  backward.x = x;
  backward.dy = dy;
  backward.gamma = gamma_;
  backward.mask = relu_ ? mask_ : nullptr;
  backward.mean = mean_;
  backward.inverse_std = inverse_std_;
  backward.dx = dx;
  backward.d_residual = d_residual;
  backward.dgamma = d_gamma_;
  backward.dbeta = d_beta_;
  if (pass.exchange == nullptr) return nn::batch_norm_backward(shape, backward, threads);

  const auto channels = static_cast<size_t>(dims_.channels);
  std::vector<double> mine(2 * channels);
  FLATOUT_TRY_STATUS(nn::batch_norm_backward_sums(shape, backward, threads,
                                                  {mine.data(), mine.data() + channels}));
  // The gradients of gamma and beta are of this part alone: they are averaged with all others.
  for (size_t c = 0; c < channels; ++c) {
    d_beta_[c] = static_cast<T>(mine[c]);
    d_gamma_[c] = static_cast<T>(mine[channels + c]);
  }
  backward.dgamma = backward.dbeta = nullptr;
  std::vector<double> all(mine.size() * static_cast<size_t>(pass.exchange->parts()));
  FLATOUT_TRY_STATUS(pass.exchange->gather(pass.part, mine.data(), mine.size(), all.data()));
  for (size_t at = mine.size(); at < all.size(); ++at) all[at % mine.size()] += all[at];
  return nn::batch_norm_backward_apply(shape, backward, {all.data(), all.data() + channels}, count_,
                                       threads);
}

template class BatchNorm<float>;
template class BatchNorm<double>;

}  // namespace flatout::train
