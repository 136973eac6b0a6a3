// The functions of nn/batch_norm.h on a CUDA device: x, y, gamma, the mask and all other buffers are
// device memory, the mask has the same layout. Types f32, bf16, f16. Calls return when their kernels
// are queued on `stream` (a cudaStream_t).
//
// Four launches in training: a guess of each channel's mean, sums of differences from it, statistics
// and coefficients, normalization; three on the way back. x is read twice, once more than the least.
#pragma once

#include <cstddef>

#include "nn/batch_norm.h"

namespace flatout::nn::cuda {

/// A stream of the current device, and memory of it for the call's own use.
struct Queue {
  void* stream = nullptr;
  void* workspace = nullptr;  // aligned to 16 bytes
  size_t workspace_bytes = 0;
};

/// What workspace_bytes must be at least on the current device.
Result<size_t> workspace_bytes(const Shape& shape);

Status batch_norm_training(const Shape& shape, const Forward& forward, const Statistics& statistics,
                           const Running& running, const Queue& queue);
Status batch_norm_inference(const Shape& shape, const Forward& forward, const void* mean,
                            const void* variance, const Queue& queue);
Status batch_norm_backward(const Shape& shape, const Backward& backward, const Queue& queue);

}  // namespace flatout::nn::cuda
