#include "nn/batch_norm.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <type_traits>
#include <vector>

#include "base/half.h"
#include "nn/check.h"
#include "nn/geometry.h"
#include "nn/kernels.h"
#include "nn/parallel.h"

namespace flatout::nn {
namespace {

// Results so large would drive out of the caches what the next operation needs from them anyway.
constexpr int64_t kStreamedSize = 2 << 20;
// Elements for each thread at least: of fewer, waking the others takes as long as the work.
constexpr int64_t kGrain = 32768;

Threads worth_waking(const Shape& shape, const Threads& threads) {
  const int64_t most = std::max<int64_t>(shape.elements() / kGrain, 1);
  return {static_cast<int>(std::min<int64_t>(threads.count, most)), threads.run};
}

Status check_threads(const Shape& shape, const Threads& threads) {
  if (threads.count >= 1) return {};
  return bad_argument(shape,
                      "threads is " + std::to_string(threads.count) + "; at least 1 is needed");
}

// ---- single values

double value_at(const void* data, Type type, int64_t i) {
  switch (type) {
    case Type::kF32:
      return static_cast<const float*>(data)[i];
    case Type::kBf16:
      return from_bf16(static_cast<const uint16_t*>(data)[i]);
    case Type::kF16:
      return from_f16(static_cast<const uint16_t*>(data)[i]);
    case Type::kF64:
      break;
  }
  return static_cast<const double*>(data)[i];
}

void put_at(void* data, Type type, int64_t i, double value) {
  switch (type) {
    case Type::kF32:
      static_cast<float*>(data)[i] = static_cast<float>(value);
      return;
    case Type::kBf16:
      static_cast<uint16_t*>(data)[i] = to_bf16(static_cast<float>(value));
      return;
    case Type::kF16:
      static_cast<uint16_t*>(data)[i] = to_f16(static_cast<float>(value));
      return;
    case Type::kF64:
      static_cast<double*>(data)[i] = value;
  }
}

// ---- a value for each channel. What is done by channel is done in loops that the compiler turns
// into vectors: of small planes there are as many channels as values.

/// As doubles; `otherwise` where there are none.
std::vector<double> values_of(const void* data, Type type, int64_t count, double otherwise) {
  std::vector<double> out(static_cast<size_t>(count), otherwise);
  if (data == nullptr) return out;
  if (type == Type::kF32) {
    std::copy_n(static_cast<const float*>(data), count, out.data());
  } else {
    for (int64_t i = 0; i < count; ++i) out[static_cast<size_t>(i)] = value_at(data, type, i);
  }
  return out;
}

void put_values(void* data, Type type, int64_t count, const double* values) {
  if (data == nullptr) return;
  if (type == Type::kF32) {
    std::transform(values, values + count, static_cast<float*>(data),
                   [](double value) { return static_cast<float>(value); });
  } else {
    for (int64_t i = 0; i < count; ++i) put_at(data, type, i, values[i]);
  }
}

template <class Pointer>
Pointer* advance(Pointer* data, Type type, int64_t elements) {
  using Byte = std::conditional_t<std::is_const_v<Pointer>, const char, char>;
  return data == nullptr
             ? nullptr
             : static_cast<Byte*>(data) + elements * static_cast<int64_t>(size_of(type));
}

// ---- what all passes share

template <class Real>
const Kernels<Real>& kernels_for(Type type, bool rows) {
  if constexpr (std::is_same_v<Real, double>) {
    return double_kernels(rows);
  } else {
    return float_kernels(type, rows);
  }
}

template <class Real>
class Work {
 public:
  Work(const Shape& shape, int arrays, const Threads& threads)
      : shape_(shape),
        threads_(worth_waking(shape, threads)),
        geometry_(shape, arrays, threads_.count),
        kernels_(kernels_for<Real>(shape.type, geometry_.rows())) {}

 protected:
  using Part = Geometry::Part;

  bool may_stream(const void* to) const {
    const int64_t alignment = kernels_.stream_alignment;
    return alignment > 0 && to != nullptr &&
           shape_.elements() * static_cast<int64_t>(size_of(shape_.type)) >= kStreamedSize &&
           reinterpret_cast<uintptr_t>(to) % static_cast<uintptr_t>(alignment) == 0 &&
           geometry_.aligned(alignment);
  }

  std::vector<Real> reals() const {
    return std::vector<Real>(static_cast<size_t>(shape_.c + kSlack));
  }

  // Two sums per channel and chunk.
  void make_sums() {
    sums_stride_ = shape_.c + kSlack;
    sums_.assign(static_cast<size_t>(geometry_.chunks() * 2 * sums_stride_), 0);
  }
  double* sums(int64_t chunk, int which) {
    return sums_.data() + (chunk * 2 + which) * sums_stride_;
  }
  void clear_sums(Range block) {
    for (int64_t i = 0; i < geometry_.chunks() * 2; ++i) {
      std::fill(sums_.data() + i * sums_stride_ + block.begin,
                sums_.data() + i * sums_stride_ + block.end, 0);
    }
  }
  // Of all chunks, in their order; they are then in the first one's place.
  const double* total(Range block, int which) {
    double* sum = sums(0, which);
    for (int64_t k = 1; k < geometry_.chunks(); ++k) {
      const double* more = sums(k, which);
      for (int64_t c = block.begin; c < block.end; ++c) sum[c] += more[c];
    }
    return sum;
  }

  // begin(block), first(block, chunk) of all chunks, settle(block), then second(block, chunk): what
  // was read last comes first again, while a cache has it. Blocks go to threads, or if there are
  // too few, chunks.
  template <class Begin, class First, class Settle, class Second>
  void sweep(const Begin& begin, const First& first, const Settle& settle, const Second& second) {
    const int64_t chunks = geometry_.chunks(), blocks = geometry_.blocks();
    const bool by_block = blocks >= threads_.count;
    const Threads inner = by_block ? Threads{} : threads_;
    parallel_for(by_block ? threads_ : Threads{}, blocks, [&](int64_t b) {
      const Range block = geometry_.block(b);
      begin(block);
      parallel_for(inner, chunks, [&](int64_t k) { first(block, k); });
      settle(block);
      parallel_for(inner, chunks, [&](int64_t k) { second(block, chunks - 1 - k); });
    });
  }

  // Where there is a second pass only: in the order of memory, if chunks are enough for the
  // threads.
  template <class Pass>
  void each_part(const Pass& pass) {
    const int64_t chunks = geometry_.chunks();
    if (chunks >= int64_t{4} * threads_.count) {
      parallel_for(threads_, chunks, [&](int64_t k) { pass(Range{0, shape_.c}, k); });
      return;
    }
    parallel_for(threads_, geometry_.blocks() * chunks,
                 [&](int64_t i) { pass(geometry_.block(i / chunks), i % chunks); });
  }

  const Shape& shape_;
  const Threads threads_;
  const Geometry geometry_;
  const Kernels<Real>& kernels_;

 private:
  int64_t sums_stride_ = 0;
  std::vector<double> sums_;
};

constexpr auto kNothing = [](auto...) {};

constexpr double kLargest = std::numeric_limits<double>::max();

void settle_statistics(Range block, const Moments& moments, double epsilon,
                       const Statistics& statistics) {
  for (int64_t c = block.begin; c < block.end; ++c) {
    statistics.mean[c] = moments.mean[c];
    statistics.inverse_std[c] = 1 / std::sqrt(moments.m2[c] / moments.count + epsilon);
  }
}

// ---- forward

template <class Real>
class ForwardWork : Work<Real> {
  using Base = Work<Real>;
  using Base::geometry_;
  using Base::kernels_;
  using Base::shape_;
  using typename Base::Part;

 public:
  ForwardWork(const Shape& shape, const Forward& forward, const Threads& threads)
      : Base(shape, 1, threads), forward_(forward), shift_(Base::reals()) {}

  void moments(const Moments& moments) {
    Base::make_sums();
    Base::sweep([this](Range block) { guess_shift(block); },
                [this](Range block, int64_t k) { add_moments(block, k); },
                [&](Range block) { settle_moments(block, moments); }, kNothing);
  }

  void training(const Moments& moments, const Statistics& statistics) {
    Base::make_sums();
    prepare_normalize();
    const auto settle = [&](Range block) {
      settle_moments(block, moments);
      settle_statistics(block, moments, forward_.epsilon, statistics);
      set_coefficients(block, statistics.mean, statistics.inverse_std);
    };
    Base::sweep([this](Range block) { guess_shift(block); },
                [this](Range block, int64_t k) { add_moments(block, k); }, settle,
                [this](Range block, int64_t k) { normalize(block, k); });
  }

  void apply(const double* mean, const double* inverse_std) {
    prepare_normalize();
    set_coefficients({0, shape_.c}, mean, inverse_std);
    Base::each_part([this](Range block, int64_t k) { normalize(block, k); });
  }

 private:
  // Differences from any number near the mean lose no digits: the mean of a few values will do, and
  // where it turns out to be far off, settle_moments() goes over the block again.
  void guess_shift(Range block) {
    const int64_t step = geometry_.samples_together() ? block.size() : 1;
    for (int64_t c = block.begin; c < block.end; c += step) {
      pass_moments(geometry_.sample({c, c + step}), {c, c + step}, 0);
    }
    const Tile some = geometry_.sample(block).tile;
    for (int64_t c = block.begin; c < block.end; ++c) {
      const double guess = Base::sums(0, 0)[c] / static_cast<double>(some.outer * some.length);
      shift_[static_cast<size_t>(c)] = std::isfinite(guess) ? static_cast<Real>(guess) : 0;
    }
    Base::clear_sums(block);
  }

  void add_moments(Range block, int64_t chunk) {
    pass_moments(geometry_.part(block, chunk), block, chunk);
  }

  void pass_moments(const Part& part, Range block, int64_t chunk) {
    kernels_.moments(part.tile,
                     {advance(forward_.x, shape_.type, part.element), shift_.data() + block.begin,
                      Base::sums(chunk, 0) + block.begin, Base::sums(chunk, 1) + block.begin});
  }

  void settle_moments(Range block, const Moments& moments) {
    if (!read_moments(block, moments)) {
      Base::clear_sums(block);
      for (int64_t k = 0; k < geometry_.chunks(); ++k) add_moments(block, k);
      read_moments(block, moments);
    }
  }

  // False if a shift was so far from the mean that it cost digits: it is put right.
  bool read_moments(Range block, const Moments& moments) {
    const double* const sums = Base::total(block, 0);
    const double* const squares = Base::total(block, 1);
    int64_t special = 0;  // as wide as what is compared
    for (int64_t c = block.begin; c < block.end; ++c) {
      const double beside = sums[c] / moments.count;
      const double m2 = squares[c] - sums[c] * beside;
      moments.mean[c] = static_cast<double>(shift_[static_cast<size_t>(c)]) + beside;
      moments.m2[c] = m2 > 0 ? m2 : 0;
      // Nor is this true of what is not finite.
      special |= sums[c] * beside <= 4 * moments.m2[c] && squares[c] < kLargest ? 0 : 1;
    }
    return special == 0 || read_special_moments(block, moments);
  }

  bool read_special_moments(Range block, const Moments& moments) {
    bool near = true;
    for (int64_t c = block.begin; c < block.end; ++c) {
      const double sum = Base::sums(0, 0)[c], square = Base::sums(0, 1)[c];
      Real& shift = shift_[static_cast<size_t>(c)];
      if (!std::isfinite(sum) && shape_.type != Type::kBf16) {  // whose sums of eight may overflow
        moments.mean[c] = shift + sum;
        moments.m2[c] = std::numeric_limits<double>::quiet_NaN();
        continue;
      }
      if (!std::isfinite(sum) || !std::isfinite(square)) {
        exact_moments(c, moments);
        continue;
      }
      const double beside = sum / moments.count;
      moments.mean[c] = shift + beside;
      moments.m2[c] = std::max(0.0, square - sum * beside);
      const auto better = static_cast<Real>(moments.mean[c]);
      if (sum * beside > 4 * moments.m2[c] && better != shift) {
        shift = better;
        near = false;
      }
    }
    return near;
  }

  // For data whose squares overflow: one value after the other, in f64.
  void exact_moments(int64_t c, const Moments& moments) {
    const auto values = geometry_.per_channel();
    double sum = 0, square = 0;
    for (int64_t j = 0; j < values; ++j) {
      sum += value_at(forward_.x, shape_.type, geometry_.element(c, j));
    }
    const double mean = sum / moments.count;
    for (int64_t j = 0; j < values; ++j) {
      const double beside = value_at(forward_.x, shape_.type, geometry_.element(c, j)) - mean;
      square += beside * beside;
    }
    moments.mean[c] = mean;
    moments.m2[c] = square;
  }

  void prepare_normalize() {
    scale_ = Base::reals();
    offset_ = Base::reals();
    gamma_ = values_of(forward_.gamma, shape_.parameters, shape_.c, 1);
    beta_ = values_of(forward_.beta, shape_.parameters, shape_.c, 0);
    stream_ =
        Base::may_stream(forward_.y) && forward_.y != forward_.x && forward_.y != forward_.residual;
  }

  // The shift is the mean rounded; what that leaves of it goes into the offset.
  void set_coefficients(Range block, const double* mean, const double* inverse_std) {
    const double *const gamma = gamma_.data(), *const beta = beta_.data();
    Real *const shifts = shift_.data(), *const scales = scale_.data(),
                *const offsets = offset_.data();
    for (int64_t c = block.begin; c < block.end; ++c) {
      const double scale = gamma[c] * inverse_std[c];
      const auto shift = static_cast<Real>(mean[c]);
      shifts[c] = shift;
      scales[c] = static_cast<Real>(scale);
      offsets[c] = static_cast<Real>(beta[c] - (mean[c] - static_cast<double>(shift)) * scale);
    }
  }

  void normalize(Range block, int64_t chunk) {
    const Part part = geometry_.part(block, chunk);
    kernels_.normalize(part.tile, {advance(forward_.x, shape_.type, part.element),
                                   advance(forward_.residual, shape_.type, part.element),
                                   advance(forward_.y, shape_.type, part.element),
                                   forward_.mask == nullptr ? nullptr : forward_.mask + part.mask,
                                   forward_.relu, stream_, shift_.data() + block.begin,
                                   scale_.data() + block.begin, offset_.data() + block.begin});
  }

  const Forward& forward_;
  bool stream_ = false;
  std::vector<Real> shift_, scale_, offset_;
  std::vector<double> gamma_, beta_;
};

// ---- backward

template <class Real>
class BackwardWork : Work<Real> {
  using Base = Work<Real>;
  using Base::geometry_;
  using Base::kernels_;
  using Base::shape_;
  using typename Base::Part;

 public:
  BackwardWork(const Shape& shape, const Backward& backward, const Threads& threads)
      : Base(shape, 2, threads), backward_(backward), shift_(Base::reals()) {
    for (int64_t c = 0; c < shape.c; ++c) {
      shift_[static_cast<size_t>(c)] = static_cast<Real>(backward.mean[c]);
    }
  }

  void sums(const BackwardSums& sums) {
    prepare_sums();
    Base::sweep(
        kNothing, [this](Range block, int64_t k) { add_sums(block, k); },
        [&](Range block) { settle_sums(block, sums); }, kNothing);
  }

  void both(const BackwardSums& sums, double count) {
    prepare_sums();
    prepare_gradient();
    const auto settle = [&](Range block) {
      settle_sums(block, sums);
      set_coefficients(block, &sums, count);
    };
    Base::sweep(
        kNothing, [this](Range block, int64_t k) { add_sums(block, k); }, settle,
        [this](Range block, int64_t k) { gradient(block, k); });
  }

  /// sums null: mean and inverse_std are constants.
  void apply(const BackwardSums* sums, double count) {
    prepare_gradient();
    set_coefficients({0, shape_.c}, sums, count);
    Base::each_part([this](Range block, int64_t k) { gradient(block, k); });
  }

 private:
  const uint8_t* mask_at(const Part& part) const {
    return backward_.mask == nullptr ? nullptr : backward_.mask + part.mask;
  }

  void prepare_sums() {
    Base::make_sums();
    stream_residual_ =
        Base::may_stream(backward_.d_residual) && backward_.d_residual != backward_.dy;
  }

  // d_residual is written here, dx later: two results at once that go past the caches get into each
  // other's way.
  void add_sums(Range block, int64_t chunk) {
    const Part part = geometry_.part(block, chunk);
    kernels_.sums(part.tile,
                  {advance(backward_.x, shape_.type, part.element),
                   advance(backward_.dy, shape_.type, part.element), mask_at(part),
                   advance(backward_.d_residual, shape_.type, part.element), stream_residual_,
                   shift_.data() + block.begin, Base::sums(chunk, 0) + block.begin,
                   Base::sums(chunk, 1) + block.begin});
  }

  void settle_sums(Range block, const BackwardSums& sums) {
    const double* const dz = Base::total(block, 0);
    const double* const dot = Base::total(block, 1);
    const Real* const shift = shift_.data();
    for (int64_t c = block.begin; c < block.end; ++c) {
      const double beside = backward_.mean[c] - static_cast<double>(shift[c]);
      sums.dz[c] = dz[c];
      sums.dz_xhat[c] = (dot[c] - beside * dz[c]) * backward_.inverse_std[c];
    }
  }

  void prepare_gradient() {
    scale_ = Base::reals();
    slope_ = Base::reals();
    offset_ = Base::reals();
    gamma_ = values_of(backward_.gamma, shape_.parameters, shape_.c, 1);
    stream_ = Base::may_stream(backward_.dx) && backward_.dx != backward_.dy;
  }

  // dx = gamma * inverse_std * (dz - mean(dz) - xhat * mean(dz * xhat)).
  void set_coefficients(Range block, const BackwardSums* sums, double count) {
    const double *const gamma = gamma_.data(), *const inverse_std = backward_.inverse_std;
    Real* const scales = scale_.data();
    for (int64_t c = block.begin; c < block.end; ++c) {
      scales[c] = static_cast<Real>(gamma[c] * inverse_std[c]);
    }
    if (sums == nullptr) return;
    const Real* const shift = shift_.data();
    Real *const slopes = slope_.data(), *const offsets = offset_.data();
    for (int64_t c = block.begin; c < block.end; ++c) {
      const double scale = gamma[c] * inverse_std[c];
      const double slope = -scale * inverse_std[c] * sums->dz_xhat[c] / count;
      slopes[c] = static_cast<Real>(slope);
      offsets[c] = static_cast<Real>(-scale * sums->dz[c] / count -
                                     slope * (backward_.mean[c] - static_cast<double>(shift[c])));
    }
  }

  void gradient(Range block, int64_t chunk) {
    const Part part = geometry_.part(block, chunk);
    const void* x = backward_.batch_statistics ? backward_.x : nullptr;
    kernels_.gradient(part.tile, {advance(x, shape_.type, part.element),
                                  advance(backward_.dy, shape_.type, part.element), mask_at(part),
                                  advance(backward_.dx, shape_.type, part.element), stream_,
                                  shift_.data() + block.begin, scale_.data() + block.begin,
                                  slope_.data() + block.begin, offset_.data() + block.begin});
  }

  const Backward& backward_;
  bool stream_ = false, stream_residual_ = false;
  std::vector<Real> shift_, scale_, slope_, offset_;
  std::vector<double> gamma_;
};

/// Calls with(Real{}) for the arithmetic of the type.
template <class With>
void with_real(Type type, const With& with) {
  if (type == Type::kF64) {
    with(double{});
  } else {
    with(float{});
  }
}

// Arrays [C] for a call's own use.
struct Doubles {
  explicit Doubles(const Shape& shape)
      : a(static_cast<size_t>(shape.c)), b(static_cast<size_t>(shape.c)) {}
  std::vector<double> a, b;
};

void update_running(const Shape& shape, const Moments& moments, const Running& running) {
  const double count = moments.count - (running.unbiased ? 1 : 0);
  const auto update = [&](void* kept, const double* batch, double divisor) {
    if (kept == nullptr) return;
    std::vector<double> values = values_of(kept, shape.parameters, shape.c, 0);
    double* const value = values.data();
    for (int64_t c = 0; c < shape.c; ++c) {
      value[c] = (1 - running.momentum) * value[c] + running.momentum * (batch[c] / divisor);
    }
    put_values(kept, shape.parameters, shape.c, value);
  };
  update(running.mean, moments.mean, 1);
  update(running.variance, moments.m2, count);
}

void put_parameter_gradients(const Shape& shape, const Backward& backward,
                             const BackwardSums& sums) {
  put_values(backward.dgamma, shape.parameters, shape.c, sums.dz_xhat);
  put_values(backward.dbeta, shape.parameters, shape.c, sums.dz);
}

}  // namespace

size_t mask_bytes(const Shape& shape) { return Geometry(shape, 1, 1).mask_bytes(); }

Status batch_norm_training(const Shape& shape, const Forward& forward, const Statistics& statistics,
                           const Running& running, const Threads& threads) {
  FLATOUT_TRY_STATUS(check_forward(shape, forward));
  FLATOUT_TRY_STATUS(check_threads(shape, threads));
  FLATOUT_TRY_STATUS(check_statistics(shape, statistics.mean, statistics.inverse_std));
  FLATOUT_TRY_STATUS(check_count(shape, static_cast<double>(shape.per_channel())));
  FLATOUT_TRY_STATUS(check_running(shape, running));
  Doubles own(shape);
  const Moments moments{static_cast<double>(shape.per_channel()), own.a.data(), own.b.data()};
  with_real(shape.type, [&](auto real) {
    ForwardWork<decltype(real)>(shape, forward, threads).training(moments, statistics);
  });
  update_running(shape, moments, running);
  return {};
}

Status batch_norm_inference(const Shape& shape, const Forward& forward, const void* mean,
                            const void* variance, const Threads& threads) {
  FLATOUT_TRY_STATUS(check_forward(shape, forward));
  FLATOUT_TRY_STATUS(check_threads(shape, threads));
  FLATOUT_TRY_STATUS(check_needed(shape, mean, "the running mean"));
  FLATOUT_TRY_STATUS(check_needed(shape, variance, "the running variance"));
  const std::vector<double> means = values_of(mean, shape.parameters, shape.c, 0);
  std::vector<double> inverse_stds = values_of(variance, shape.parameters, shape.c, 0);
  for (double& value : inverse_stds) value = 1 / std::sqrt(value + forward.epsilon);
  with_real(shape.type, [&](auto real) {
    ForwardWork<decltype(real)>(shape, forward, threads).apply(means.data(), inverse_stds.data());
  });
  return {};
}

Status batch_norm_backward(const Shape& shape, const Backward& backward, const Threads& threads) {
  FLATOUT_TRY_STATUS(check_backward(shape, backward));
  FLATOUT_TRY_STATUS(check_threads(shape, threads));
  Doubles own(shape);
  const BackwardSums sums{own.a.data(), own.b.data()};
  const bool wants_sums =
      backward.dgamma != nullptr || backward.dbeta != nullptr || backward.d_residual != nullptr;
  with_real(shape.type, [&](auto real) {
    BackwardWork<decltype(real)> work(shape, backward, threads);
    if (backward.dx != nullptr && backward.batch_statistics) {
      work.both(sums, static_cast<double>(shape.per_channel()));
      return;
    }
    if (wants_sums) work.sums(sums);
    if (backward.dx != nullptr) work.apply(nullptr, 1);
  });
  put_parameter_gradients(shape, backward, sums);
  return {};
}

Status batch_norm_moments(const Shape& shape, const void* x, const Threads& threads,
                          Moments* moments) {
  FLATOUT_TRY_STATUS(check_shape(shape));
  FLATOUT_TRY_STATUS(check_needed(shape, x, "x"));
  FLATOUT_TRY_STATUS(check_needed(shape, moments->mean, "the moments' mean"));
  FLATOUT_TRY_STATUS(check_needed(shape, moments->m2, "the moments' m2"));
  FLATOUT_TRY_STATUS(check_threads(shape, threads));
  moments->count = static_cast<double>(shape.per_channel());
  Forward forward;
  forward.x = x;
  with_real(shape.type, [&](auto real) {
    ForwardWork<decltype(real)>(shape, forward, threads).moments(*moments);
  });
  return {};
}

void combine(int64_t channels, const Moments& from, Moments* into) {
  if (from.count == 0) return;
  if (into->count == 0) {  // whatever the mean of nothing is
    std::copy(from.mean, from.mean + channels, into->mean);
    std::copy(from.m2, from.m2 + channels, into->m2);
    into->count = from.count;
    return;
  }
  const double count = into->count + from.count;
  for (int64_t c = 0; c < channels; ++c) {
    const double apart = from.mean[c] - into->mean[c];
    into->mean[c] += apart * (from.count / count);
    into->m2[c] += from.m2[c] + apart * apart * (into->count * from.count / count);
  }
  into->count = count;
}

Status batch_norm_finish(const Shape& shape, const Moments& moments, double epsilon,
                         const Statistics& statistics, const Running& running) {
  FLATOUT_TRY_STATUS(check_shape(shape));
  FLATOUT_TRY_STATUS(check_needed(shape, moments.mean, "the moments' mean"));
  FLATOUT_TRY_STATUS(check_needed(shape, moments.m2, "the moments' m2"));
  FLATOUT_TRY_STATUS(check_statistics(shape, statistics.mean, statistics.inverse_std));
  FLATOUT_TRY_STATUS(check_epsilon(shape, epsilon));
  FLATOUT_TRY_STATUS(check_count(shape, moments.count));
  FLATOUT_TRY_STATUS(check_running(shape, running));
  settle_statistics({0, shape.c}, moments, epsilon, statistics);
  update_running(shape, moments, running);
  return {};
}

Status batch_norm_apply(const Shape& shape, const Forward& forward, const Statistics& statistics,
                        const Threads& threads) {
  FLATOUT_TRY_STATUS(check_forward(shape, forward));
  FLATOUT_TRY_STATUS(check_threads(shape, threads));
  FLATOUT_TRY_STATUS(check_statistics(shape, statistics.mean, statistics.inverse_std));
  with_real(shape.type, [&](auto real) {
    ForwardWork<decltype(real)>(shape, forward, threads)
        .apply(statistics.mean, statistics.inverse_std);
  });
  return {};
}

Status batch_norm_backward_sums(const Shape& shape, const Backward& backward,
                                const Threads& threads, const BackwardSums& sums) {
  FLATOUT_TRY_STATUS(check_backward(shape, backward));
  FLATOUT_TRY_STATUS(check_threads(shape, threads));
  FLATOUT_TRY_STATUS(check_needed(shape, sums.dz, "the sums' dz"));
  FLATOUT_TRY_STATUS(check_needed(shape, sums.dz_xhat, "the sums' dz_xhat"));
  with_real(shape.type,
            [&](auto real) { BackwardWork<decltype(real)>(shape, backward, threads).sums(sums); });
  return {};
}

Status batch_norm_backward_apply(const Shape& shape, const Backward& backward,
                                 const BackwardSums& sums, double count, const Threads& threads) {
  FLATOUT_TRY_STATUS(check_backward(shape, backward));
  FLATOUT_TRY_STATUS(check_threads(shape, threads));
  FLATOUT_TRY_STATUS(check_needed(shape, sums.dz, "the sums' dz"));
  FLATOUT_TRY_STATUS(check_needed(shape, sums.dz_xhat, "the sums' dz_xhat"));
  FLATOUT_TRY_STATUS(check_count(shape, count));
  if (backward.dx != nullptr) {
    with_real(shape.type, [&](auto real) {
      BackwardWork<decltype(real)>(shape, backward, threads)
          .apply(backward.batch_statistics ? &sums : nullptr, count);
    });
  }
  put_parameter_gradients(shape, backward, sums);
  return {};
}

}  // namespace flatout::nn
