#include "nn/cuda_batch_norm.h"

#include <algorithm>
#include <array>
#include <map>

#include "nn/check.h"
#include "nn/cuda_device.h"
#include "nn/cuda_kernels.h"

namespace flatout::nn::cuda {
namespace {

Status check(const std::string& what, cudaError_t error) {
  if (error == cudaSuccess) return {};
  return Error{Code::kUnsupported, what + ": CUDA: " + cudaGetErrorString(error), ""};
}

// Makes a device the thread's current one, as long as this lives.
class Current {
 public:
  explicit Current(int device) {
    error_ = cudaGetDevice(&before_);
    if (error_ != cudaSuccess || device < 0 || device == before_) return;
    error_ = cudaSetDevice(device);
    changed_ = error_ == cudaSuccess;
  }
  ~Current() {
    if (changed_) cudaSetDevice(before_);
  }
  Current(const Current&) = delete;
  Current& operator=(const Current&) = delete;

  cudaError_t error() const { return error_; }

 private:
  cudaError_t error_;
  int before_ = 0;
  bool changed_ = false;
};

std::string name_of(const Shape& shape) { return "batch norm of x " + shape.text(); }

Status check(const Shape& shape, cudaError_t error) {
  return error == cudaSuccess ? Status() : check(name_of(shape), error);
}

Result<Device> current_device(const std::string& what) {
  int number = 0, shared = 0;
  Device device;
  FLATOUT_TRY_STATUS(check(what, cudaGetDevice(&number)));
  FLATOUT_TRY_STATUS(check(what, cudaDeviceGetAttribute(&device.multiprocessors,
                                                        cudaDevAttrMultiProcessorCount, number)));
  FLATOUT_TRY_STATUS(check(
      what, cudaDeviceGetAttribute(&shared, cudaDevAttrMaxSharedMemoryPerMultiprocessor, number)));
  device.shared_bytes = static_cast<size_t>(shared);
  return device;
}

bool is_aligned(std::initializer_list<const void*> pointers) {
  for (const void* pointer : pointers) {
    if (reinterpret_cast<uintptr_t>(pointer) % 16 != 0) return false;
  }
  return true;
}

Result<Plan> plan_for(const Shape& shape, int tensors, bool aligned, const Queue& on) {
  // Those that this thread has made: one takes longer than a launch.
  using Key = std::array<int64_t, 13>;
  thread_local std::map<Key, Plan> known;
  constexpr size_t kMost = 4096;
  int number = 0;
  FLATOUT_TRY_STATUS(check(shape, cudaGetDevice(&number)));
  const Key key = {shape.n,
                   shape.c,
                   shape.h,
                   shape.w,
                   static_cast<int64_t>(shape.layout),
                   static_cast<int64_t>(shape.type),
                   static_cast<int64_t>(shape.parameters),
                   tensors,
                   aligned ? 1 : 0,
                   number,
                   on.spare_multiprocessors,
                   on.choice.members,
                   on.choice.tile_bytes};
  if (const auto found = known.find(key); found != known.end()) return found->second;
  FLATOUT_TRY(Device device, current_device(name_of(shape)));
  device.multiprocessors =
      std::clamp(device.multiprocessors - on.spare_multiprocessors, 1, device.multiprocessors);
  FLATOUT_TRY(const Plan plan, make_plan(shape, device, tensors, aligned, on.choice));
  if (known.size() >= kMost) known.clear();
  known.emplace(key, plan);
  return plan;
}

unsigned blocks_of(const Plan& plan) { return static_cast<unsigned>(plan.teams * plan.members); }

template <bool rows, int wide>
struct Way {
  static constexpr bool kRows = rows;
  static constexpr int kWide = wide;
};

// with(T{}, Way<rows, wide>{}).
template <class With>
Status dispatch(const Shape& shape, const Plan& plan, const With& with) {
  const auto by_way = [&](auto type, auto widest) {
    constexpr int kWidest = decltype(widest)::value;
    if (plan.wide == kWidest) {
      return plan.rows ? with(type, Way<true, kWidest>{}) : with(type, Way<false, kWidest>{});
    }
    if constexpr (kWidest != 4) {
      if (plan.wide == 4)
        return plan.rows ? with(type, Way<true, 4>{}) : with(type, Way<false, 4>{});
    }
    return plan.rows ? with(type, Way<true, 1>{}) : with(type, Way<false, 1>{});
  };
  if (shape.type == Type::kBf16) return by_way(__nv_bfloat16{}, std::integral_constant<int, 8>{});
  if (shape.type == Type::kF16) return by_way(__half{}, std::integral_constant<int, 8>{});
  return by_way(float{}, std::integral_constant<int, 4>{});
}

// Queues a kernel whose teams meet.
template <auto kernel, class Call>
Status launch(const Shape& shape, const Plan& plan, const Queue& on, const Call& call) {
  const size_t needed = workspace_bytes(plan);
  if (on.workspace == nullptr || on.workspace_bytes < needed) {
    return bad_argument(shape, "the workspace has " + std::to_string(on.workspace_bytes) +
                                   " bytes; " + std::to_string(needed) + " are needed");
  }
  const bool together = plan.members > 1;
  if (together) {
    FLATOUT_TRY_STATUS(check(
        shape, cudaMemsetAsync(on.workspace, 0, needed, static_cast<cudaStream_t>(on.stream))));
  }
  return check(shape, queue<kernel>(Launch{blocks_of(plan), kThreads, plan.shared_bytes,
                                           plan.most_shared_bytes, together, on.stream},
                                    plan, call, on.workspace, scratch_bytes(plan)));
}

ForwardCall call_of(const Shape& shape, const Forward& forward) {
  ForwardCall f{};
  f.x = forward.x;
  f.residual = forward.residual;
  f.gamma = forward.gamma;
  f.beta = forward.beta;
  f.epsilon = forward.epsilon;
  f.relu = forward.relu;
  f.y = forward.y;
  f.mask = forward.mask;
  f.parameters = shape.parameters;
  return f;
}

}  // namespace

Result<size_t> workspace_bytes(int device) {
  const std::string what = "batch norm on this device";
  const Current current(device);
  FLATOUT_TRY_STATUS(check(what, current.error()));
  FLATOUT_TRY(const Device known, current_device(what));
  cudaFuncAttributes attributes{};
  FLATOUT_TRY_STATUS(
      check(what, cudaFuncGetAttributes(
                      &attributes, reinterpret_cast<const void*>(&backward<float, false, 4>))));
  return workspace_bytes(known);
}

Status batch_norm_training(const Shape& shape, const Forward& forward, const Statistics& statistics,
                           const Running& running, const Queue& on) {
  FLATOUT_TRY_STATUS(check_forward(shape, forward));
  FLATOUT_TRY_STATUS(check_statistics(shape, statistics.mean, statistics.inverse_std));
  FLATOUT_TRY_STATUS(check_count(shape, static_cast<double>(shape.per_channel())));
  FLATOUT_TRY_STATUS(check_running(shape, running));
  const Current current(on.device);
  FLATOUT_TRY_STATUS(check(shape, current.error()));
  const bool aligned = is_aligned({forward.x, forward.residual, forward.y});
  FLATOUT_TRY(const Plan plan, plan_for(shape, 1, aligned, on));
  ForwardCall f = call_of(shape, forward);
  f.mean = statistics.mean;
  f.inverse_std = statistics.inverse_std;
  f.running_mean = running.mean;
  f.running_variance = running.variance;
  f.momentum = running.momentum;
  f.unbiased = running.unbiased;
  return dispatch(shape, plan, [&](auto type, auto way) {
    using Kernels = decltype(way);
    return launch<&forward_training<decltype(type), Kernels::kRows, Kernels::kWide>>(shape, plan,
                                                                                     on, f);
  });
}

Status batch_norm_inference(const Shape& shape, const Forward& forward, const void* mean,
                            const void* variance, const Queue& on) {
  FLATOUT_TRY_STATUS(check_forward(shape, forward));
  FLATOUT_TRY_STATUS(check_needed(shape, mean, "the running mean"));
  FLATOUT_TRY_STATUS(check_needed(shape, variance, "the running variance"));
  const Current current(on.device);
  FLATOUT_TRY_STATUS(check(shape, current.error()));
  const bool aligned = is_aligned({forward.x, forward.residual, forward.y});
  FLATOUT_TRY(const Plan plan, plan_for(shape, 1, aligned, on));
  ForwardCall f = call_of(shape, forward);
  f.running_mean = const_cast<void*>(mean);  // read only here
  f.running_variance = const_cast<void*>(variance);
  return dispatch(shape, plan, [&](auto type, auto way) {
    using Kernels = decltype(way);
    const Launch blocks{blocks_of(plan),        kThreads, scratch_bytes(plan),
                        plan.most_shared_bytes, false,    on.stream};
    return check(shape, queue<&forward_inference<decltype(type), Kernels::kRows, Kernels::kWide>>(
                            blocks, plan, f, scratch_bytes(plan)));
  });
}

Status batch_norm_backward(const Shape& shape, const Backward& b, const Queue& on) {
  FLATOUT_TRY_STATUS(check_backward(shape, b));
  const Current current(on.device);
  FLATOUT_TRY_STATUS(check(shape, current.error()));
  const bool aligned = is_aligned({b.x, b.dy, b.dx, b.d_residual});
  FLATOUT_TRY(const Plan plan, plan_for(shape, 2, aligned, on));
  const BackwardCall call{
      b.x,  b.dy,         b.gamma,  b.mask,  b.mean,          b.inverse_std, b.batch_statistics,
      b.dx, b.d_residual, b.dgamma, b.dbeta, shape.parameters};
  return dispatch(shape, plan, [&](auto type, auto way) {
    using Kernels = decltype(way);
    return launch<&backward<decltype(type), Kernels::kRows, Kernels::kWide>>(shape, plan, on, call);
  });
}

}  // namespace flatout::nn::cuda
