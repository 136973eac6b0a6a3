// The C functions of flatout/nn.h that run on a CUDA device.
#include <string>
#include <utility>

#include "nn/c_structs.h"
#include "nn/cuda_batch_norm.h"

namespace {

using namespace flatout;
using nn::read, nn::running_of, nn::statistics_of;

thread_local std::string last_error;

int report(const Status& status) {
  last_error.clear();
  if (status.ok()) return 0;
  last_error = status.error().message;
  return -1;
}

nn::cuda::Queue read(const flatout_nn_cuda_queue& q) {
  return {q.device,
          q.spare_multiprocessors,
          q.stream,
          q.workspace,
          static_cast<size_t>(q.workspace_bytes),
          {}};
}

Result<nn::Shape> known_shape(const flatout_nn_shape* shape,
                              std::pair<const char*, const void*> argument,
                              const flatout_nn_cuda_queue* queue) {
  FLATOUT_TRY_STATUS(nn::check_given({{"shape", shape}, argument, {"queue", queue}}));
  return read(*shape);
}

}  // namespace

extern "C" {

const char* flatout_nn_cuda_error(void) { return last_error.c_str(); }

uint64_t flatout_nn_cuda_workspace_bytes(int32_t device) {
  const auto bytes = nn::cuda::workspace_bytes(device);
  report(bytes.ok() ? Status{} : bytes.error());
  return bytes.ok() ? *bytes : 0;
}

int flatout_nn_cuda_batch_norm_training(const struct flatout_nn_shape* shape,
                                        const struct flatout_nn_forward* forward,
                                        const struct flatout_nn_cuda_queue* queue) {
  const auto known = known_shape(shape, {"forward", forward}, queue);
  if (!known.ok()) return report(known.error());
  return report(nn::cuda::batch_norm_training(*known, read(*forward), statistics_of(*forward),
                                              running_of(*forward), read(*queue)));
}

int flatout_nn_cuda_batch_norm_inference(const struct flatout_nn_shape* shape,
                                         const struct flatout_nn_forward* forward,
                                         const struct flatout_nn_cuda_queue* queue) {
  const auto known = known_shape(shape, {"forward", forward}, queue);
  if (!known.ok()) return report(known.error());
  return report(nn::cuda::batch_norm_inference(*known, read(*forward), forward->running_mean,
                                               forward->running_variance, read(*queue)));
}

int flatout_nn_cuda_batch_norm_backward(const struct flatout_nn_shape* shape,
                                        const struct flatout_nn_backward* backward,
                                        const struct flatout_nn_cuda_queue* queue) {
  const auto known = known_shape(shape, {"backward", backward}, queue);
  if (!known.ok()) return report(known.error());
  return report(nn::cuda::batch_norm_backward(*known, read(*backward), read(*queue)));
}

}  // extern "C"
