// Batch norm over N, H, W with the residual add and the ReLU that follow it in one sweep:
//
//   z = gamma * (x - mean) / sqrt(variance + epsilon) + beta (+ residual),  y = relu ? max(z, 0) :
//   z
//
// Plain functions over dense buffers. x, residual, y, dy, dx, d_residual: [N, C, H, W] or
// [N, H, W, C] of shape.type; gamma, beta, their gradients and running statistics: [C] of
// shape.parameters. Statistics and sums are f64 whatever the type of the data. ReLU keeps one bit
// an element for backward, instead of y.
//
// Where a channel's data fit the cache, training reads x once from memory and writes y once;
// backward reads x and dy once. Source: arXiv 1502.03167, algorithm 1 and section 3.
//
// Every function checks its arguments first: Code::kBadInput names argument and shape. Results do
// not depend on the number of threads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "base/result.h"

namespace flatout::nn {

enum class Layout : uint8_t { kNchw, kNhwc };
enum class Type : uint8_t { kF32, kBf16, kF16, kF64 };

/// Bytes of one element.
constexpr size_t size_of(Type type) { return type == Type::kF64 ? 8 : type == Type::kF32 ? 4 : 2; }

struct Shape {
  int64_t n = 0, c = 0, h = 0, w = 0;
  Layout layout = Layout::kNchw;
  Type type = Type::kF32;        // of x, residual, y and their gradients
  Type parameters = Type::kF32;  // of gamma, beta, their gradients and running statistics

  int64_t per_channel() const { return n * h * w; }
  int64_t elements() const { return n * c * h * w; }
  /// "[32, 64, 56, 56] NCHW f32".
  std::string text() const;
};

/// Bytes of the mask of the ReLU. One bit an element, 1 where its gradient passes; each plane of
/// NCHW and each row of C channels of NHWC begins on a byte.
size_t mask_bytes(const Shape& shape);

/// How many threads work on one call, and whose they are.
struct Threads {
  int count = 1;
  /// Calls task(data) on up to `count` threads at once, the caller's among them, and returns when
  /// all have returned; null: the threads of the OpenMP run time that the process has loaded, or
  /// else threads of our own, which are started once.
  void (*run)(int count, void (*task)(void*), void* data) = nullptr;
};

/// What forward works on. y may be x or residual itself.
struct Forward {
  const void* x = nullptr;
  const void* residual = nullptr;  // null: nothing is added
  const void* gamma = nullptr;     // null: 1
  const void* beta = nullptr;      // null: 0
  double epsilon = 1e-5;
  bool relu = false;
  void* y = nullptr;
  uint8_t* mask = nullptr;  // [mask_bytes] written with relu; null: not kept
};

/// Of a batch, per channel, [C] each: what backward needs.
struct Statistics {
  double* mean = nullptr;
  double* inverse_std = nullptr;  // 1 / sqrt(biased variance + epsilon)
};

/// Running statistics, [C] of shape.parameters each, updated in place:
/// running = (1 - momentum) * running + momentum * batch.
/// PyTorch: its momentum (1 / batches so far where that is None), unbiased. TensorFlow's fused
/// batch norm: 1 - its momentum, unbiased; Keras without fusion: 1 - its momentum, biased.
struct Running {
  void* mean = nullptr;      // null: not kept
  void* variance = nullptr;  // null: not kept
  double momentum = 0.1;
  bool unbiased = true;
};

/// What backward works on. dx and d_residual may be dy itself, but not both.
struct Backward {
  const void* x = nullptr;
  const void* dy = nullptr;
  const void* gamma = nullptr;    // null: 1
  const uint8_t* mask = nullptr;  // of the forward; null: there was no ReLU
  /// What forward normalized with: read only. In inference: running mean, 1 / sqrt(variance + eps).
  const double* mean = nullptr;
  const double* inverse_std = nullptr;
  /// False where mean and inverse_std were constants (inference): dx then has no terms of them.
  bool batch_statistics = true;
  void* dx = nullptr;          // null: not wanted, as the others
  void* d_residual = nullptr;  // dy where the mask lets it pass
  void* dgamma = nullptr;
  void* dbeta = nullptr;
};

/// Forward with the batch's own statistics, which go to `statistics`. Needs more than one value per
/// channel.
Status batch_norm_training(const Shape& shape, const Forward& forward, const Statistics& statistics,
                           const Running& running, const Threads& threads);

/// Forward with given statistics: mean, variance: [C] of shape.parameters.
Status batch_norm_inference(const Shape& shape, const Forward& forward, const void* mean,
                            const void* variance, const Threads& threads);

Status batch_norm_backward(const Shape& shape, const Backward& backward, const Threads& threads);

// The same in stages, for statistics over replicas: each replica computes its part, the parts are
// put together (by combine() within a process, by the caller's all-gather or all-reduce between
// processes), each replica applies the whole.

/// Count, mean and sum of squared deviations from it, per channel: parts of a batch's variance that
/// combine without cancellation.
struct Moments {
  double count = 0;
  double* mean = nullptr;  // [C]
  double* m2 = nullptr;    // [C]
};

/// Fills `moments` (its arrays are the caller's) from x.
Status batch_norm_moments(const Shape& shape, const void* x, const Threads& threads,
                          Moments* moments);

/// into = the moments of both batches together; of an empty one (count 0) mean and m2 are not read.
/// Source: Chan, Golub, LeVeque 1979.
void combine(int64_t channels, const Moments& from, Moments* into);

/// Mean and inverse_std of combined moments, and the update of running statistics.
Status batch_norm_finish(const Shape& shape, const Moments& moments, double epsilon,
                         const Statistics& statistics, const Running& running);

/// Forward with the statistics of batch_norm_finish.
Status batch_norm_apply(const Shape& shape, const Forward& forward, const Statistics& statistics,
                        const Threads& threads);

/// Per channel, [C] each: what backward sums over N, H, W. Parts of replicas add up.
struct BackwardSums {
  double* dz = nullptr;       // of dz: dy where the mask lets it pass
  double* dz_xhat = nullptr;  // of dz * (x - mean) * inverse_std
};

/// Fills `sums`, and d_residual where it is wanted, from x, dy, mask, mean, inverse_std of
/// `backward`.
Status batch_norm_backward_sums(const Shape& shape, const Backward& backward,
                                const Threads& threads, const BackwardSums& sums);

/// dx from the sums over all replicas, which together have `count` values per channel. dgamma and
/// dbeta, where wanted, are `sums` as given: pass what the optimizer should see.
Status batch_norm_backward_apply(const Shape& shape, const Backward& backward,
                                 const BackwardSums& sums, double count, const Threads& threads);

}  // namespace flatout::nn
