// The functions of nn/batch_norm.h on a CUDA device: x, y, gamma, the mask and all other buffers
// are device memory, the mask has the same layout. Types f32, bf16, f16. Calls return when their
// kernels are queued on `stream` (a cudaStream_t); they may be captured into a graph.
//
// One kernel each way (nn/cuda_kernels.h). x, and on the way back dy, are read once where the
// shared memory of the device's multiprocessors holds a channel, or 32 bytes of each row.
#pragma once

#include <cstddef>

#include "nn/batch_norm.h"
#include "nn/cuda_plan.h"

namespace flatout::nn::cuda {

/// A stream, and memory of its device for the call's own use.
struct Queue {
  int device = -1;                // the thread's current one
  int spare_multiprocessors = 0;  // left to kernels that run beside these
  void* stream = nullptr;
  void* workspace = nullptr;  // aligned to 16 bytes
  size_t workspace_bytes = 0;
  Choice choice;  // for measurements
};

/// What Queue::workspace_bytes must be at least on this device (-1: the current one). Errors:
/// kUnsupported where the device does not run these kernels: its driver is older than the CUDA run
/// time that they were built with, or there is no code for its kind.
Result<size_t> workspace_bytes(int device = -1);

Status batch_norm_training(const Shape& shape, const Forward& forward, const Statistics& statistics,
                           const Running& running, const Queue& queue);
Status batch_norm_inference(const Shape& shape, const Forward& forward, const void* mean,
                            const void* variance, const Queue& queue);
Status batch_norm_backward(const Shape& shape, const Backward& backward, const Queue& queue);

}  // namespace flatout::nn::cuda
