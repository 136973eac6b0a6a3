// Each thread takes kWide values of a plane or a row at once: two 16-byte loads of f32, one of
// 16-bit types, one byte of mask. Sums are f32 over those eight (planes) or over eight rows (rows),
// and f64 from there on. What a split read last, the next pass reads first, while L2 has it.
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include "nn/check.h"
#include "nn/cuda_batch_norm.h"
#include "nn/cuda_plan.h"

namespace flatout::nn::cuda {
namespace {

constexpr int kRowsAtOnce = 8;
constexpr int kWarp = 32;

__device__ float to_float(float v) { return v; }
__device__ float to_float(__nv_bfloat16 v) { return __bfloat162float(v); }
__device__ float to_float(__half v) { return __half2float(v); }
__device__ void from_float(float v, float* to) { *to = v; }
__device__ void from_float(float v, __nv_bfloat16* to) { *to = __float2bfloat16_rn(v); }
__device__ void from_float(float v, __half* to) { *to = __float2half_rn(v); }

// `count` values, and zeros; all of them by wide loads if aligned.
template <bool aligned, class T>
__device__ void load(const T* from, int count, float (&values)[kWide]) {
  if constexpr (aligned) {
    constexpr int kLoads = kWide * sizeof(T) / 16;
    union {
      uint4 wide[kLoads];
      T each[kWide];
    } buffer;
#pragma unroll
    for (int i = 0; i < kLoads; ++i) buffer.wide[i] = reinterpret_cast<const uint4*>(from)[i];
#pragma unroll
    for (int k = 0; k < kWide; ++k) values[k] = to_float(buffer.each[k]);
  } else {
#pragma unroll
    for (int k = 0; k < kWide; ++k) values[k] = k < count ? to_float(from[k]) : 0.0F;
  }
}

template <bool aligned, class T>
__device__ void store(T* to, int count, const float (&values)[kWide]) {
  if constexpr (aligned) {
    constexpr int kStores = kWide * sizeof(T) / 16;
    union {
      uint4 wide[kStores];
      T each[kWide];
    } buffer;
#pragma unroll
    for (int k = 0; k < kWide; ++k) from_float(values[k], &buffer.each[k]);
#pragma unroll
    for (int i = 0; i < kStores; ++i) reinterpret_cast<uint4*>(to)[i] = buffer.wide[i];
  } else {
#pragma unroll
    for (int k = 0; k < kWide; ++k) {
      if (k < count) from_float(values[k], to + k);
    }
  }
}

__device__ double parameter(const void* data, Type type, int c, double otherwise) {
  if (data == nullptr) return otherwise;
  if (type == Type::kBf16) return to_float(static_cast<const __nv_bfloat16*>(data)[c]);
  if (type == Type::kF16) return to_float(static_cast<const __half*>(data)[c]);
  return static_cast<const float*>(data)[c];
}

__device__ void set_parameter(void* data, Type type, int c, double value) {
  if (data == nullptr) return;
  const float v = static_cast<float>(value);
  if (type == Type::kBf16) {
    from_float(v, static_cast<__nv_bfloat16*>(data) + c);
  } else if (type == Type::kF16) {
    from_float(v, static_cast<__half*>(data) + c);
  } else {
    static_cast<float*>(data)[c] = v;
  }
}

// Coefficients by channel, and two sums by split and channel.
struct Workspace {
  double* sums;
  float* shift;
  float* scale;
  float* slope;
  float* offset;
};

Workspace workspace_of(const Plan& plan, void* memory) {
  auto* sums = static_cast<double*>(memory);
  auto* floats = reinterpret_cast<float*>(sums + plan.splits * plan.channels * 2);
  return {sums, floats, floats + plan.channels, floats + 2 * plan.channels,
          floats + 3 * plan.channels};
}

// Where a unit lies, and the first of its channels.
struct Unit {
  int64_t element;
  int64_t mask;
  int channel;
  int count;
};

template <bool rows>
__device__ Unit locate(const Plan& plan, uint32_t unit) {
  if constexpr (rows) {
    const int group = blockIdx.x * plan.columns + threadIdx.x % plan.columns;
    const int channel = group * kWide;
    return {unit * plan.stride + channel, unit * plan.mask_stride + group, channel,
            min(kWide, static_cast<int>(plan.channels) - channel)};
  } else {
    const auto groups = static_cast<uint32_t>(plan.groups);
    const uint32_t image = unit / groups, group = unit % groups;
    const int channel = blockIdx.x;
    return {image * plan.stride + channel * plan.length + group * int64_t{kWide},
            image * plan.mask_stride + channel * plan.groups + group, channel,
            static_cast<int>(min(int64_t{kWide}, plan.length - group * int64_t{kWide}))};
  }
}

// Channels whose values a thread keeps: one of a plane, the unit's of a row.
template <bool rows>
constexpr int kOwn = rows ? kWide : 1;

// Of an array by channel, the values of the unit's channels.
template <bool rows>
__device__ void load_channels(const float* from, const Unit& unit, float (&values)[kOwn<rows>]) {
#pragma unroll
  for (int k = 0; k < kOwn<rows>; ++k) {
    if (!rows || k < unit.count) values[k] = from[unit.channel + k];
  }
}

// A thread's units of its split: begin, begin + step, ... below end.
struct Range {
  uint32_t begin, end, step;
};

template <bool rows>
__device__ Range units_of(const Plan& plan, int split) {
  const auto first = static_cast<uint32_t>(split * plan.per_split);
  const auto end = static_cast<uint32_t>(min(plan.units, (split + 1) * plan.per_split));
  const uint32_t at_once = rows ? kThreads / plan.columns : kThreads;
  const uint32_t mine = rows ? threadIdx.x / plan.columns : threadIdx.x;
  // Threads beyond the last channel have nothing to do.
  const bool idle = rows && (blockIdx.x * plan.columns + threadIdx.x % plan.columns) >= plan.groups;
  return {idle ? end : first + mine, end, at_once};
}

__device__ double warp_sum(double value) {
  for (int by = kWarp / 2; by > 0; by /= 2) value += __shfl_xor_sync(0xFFFFFFFF, value, by);
  return value;
}

// The mean of up to 64 values spread over the channel, for differences that lose no digits. A warp
// a channel.
template <class T>
__global__ void guess_shift(Plan plan, const T* x, float* shift) {
  const int c = (blockIdx.x * blockDim.x + threadIdx.x) / kWarp;
  if (c >= plan.channels) return;
  const int64_t count = plan.outer * plan.length;
  const int64_t taken = min(count, int64_t{64});
  double sum = 0;
  for (int64_t i = threadIdx.x % kWarp; i < taken; i += kWarp) {
    const int64_t j = i * count / taken;
    sum += to_float(x[j / plan.length * plan.stride + c * plan.length + j % plan.length]);
  }
  const double mean = warp_sum(sum) / taken;
  if (threadIdx.x % kWarp == 0) shift[c] = isfinite(mean) ? static_cast<float>(mean) : 0.0F;
}

// Two sums over a block's units: of (x - shift) and its square, or with dy of dz and dz * (x -
// shift).
template <class T, bool rows, bool aligned, bool backward>
__global__ void __launch_bounds__(kThreads)
    add_up(Plan plan, const T* x, const T* dy, const uint8_t* mask, Workspace work) {
  constexpr int kChannels = kOwn<rows>;
  double sum[kChannels] = {}, dot[kChannels] = {};
  float shift[kChannels] = {};
  const Range units = units_of<rows>(plan, blockIdx.y);
  if (units.begin < units.end) {
    load_channels<rows>(work.shift, locate<rows>(plan, units.begin), shift);
  }
  for (uint32_t u = units.begin; u < units.end;) {
    float part[kChannels] = {}, part_dot[kChannels] = {};
    for (int r = 0; r < (rows ? kRowsAtOnce : 1) && u < units.end; ++r, u += units.step) {
      const Unit unit = locate<rows>(plan, u);
      float xs[kWide], ys[kWide];
      load<aligned>(x + unit.element, unit.count, xs);
      uint32_t bits = 0xFF;
      if constexpr (backward) {
        load<aligned>(dy + unit.element, unit.count, ys);
        if (mask != nullptr) bits = mask[unit.mask];
      }
#pragma unroll
      for (int k = 0; k < kWide; ++k) {
        const int own = rows ? k : 0;
        const float centered = aligned || k < unit.count ? xs[k] - shift[own] : 0.0F;
        const float factor = backward ? ((bits >> k) & 1 ? ys[k] : 0.0F) : centered;
        part[own] += factor;
        part_dot[own] += factor * centered;
      }
    }
#pragma unroll
    for (int k = 0; k < kChannels; ++k) {
      sum[k] += part[k];
      dot[k] += part_dot[k];
    }
  }

  __shared__ double shared[2][kThreads * kChannels];
#pragma unroll
  for (int k = 0; k < kChannels; ++k) {
    shared[0][threadIdx.x * kChannels + k] = sum[k];
    shared[1][threadIdx.x * kChannels + k] = dot[k];
  }
  __syncthreads();
  // Value i of the block's first row of threads stands for a channel; those below add to it.
  const int width = rows ? plan.columns * kWide : 1;
  for (int height = kThreads * kChannels / width / 2; height > 0; height /= 2) {
    for (int i = threadIdx.x; i < height * width; i += kThreads) {
      shared[0][i] += shared[0][i + height * width];
      shared[1][i] += shared[1][i + height * width];
    }
    __syncthreads();
  }
  for (int i = threadIdx.x; i < width; i += kThreads) {
    const int64_t c = int64_t{blockIdx.x} * plan.tile + i;
    if (c >= plan.channels) continue;
    double* to = work.sums + (blockIdx.y * plan.channels + c) * 2;
    to[0] = shared[0][i];
    to[1] = shared[1][i];
  }
}

// Both sums of a channel over the splits, for a warp.
__device__ double2 total(const Plan& plan, const Workspace& work, int c) {
  double2 sums = {0, 0};
  for (int s = threadIdx.x % kWarp; s < plan.splits; s += kWarp) {
    const double* from = work.sums + (s * plan.channels + c) * 2;
    sums.x += from[0];
    sums.y += from[1];
  }
  return {warp_sum(sums.x), warp_sum(sums.y)};
}

struct Forwarded {
  const void* gamma;
  const void* beta;
  double epsilon;
  double* mean;
  double* inverse_std;
  void* running_mean;
  void* running_variance;
  double momentum;
  bool unbiased;
  Type parameters;
};

__device__ void set_normalize(const Workspace& work, const Forwarded& f, int c, double mean,
                              double inverse_std) {
  const double scale = parameter(f.gamma, f.parameters, c, 1) * inverse_std;
  const auto shift = static_cast<float>(mean);
  work.shift[c] = shift;
  work.scale[c] = static_cast<float>(scale);
  work.offset[c] =
      static_cast<float>(parameter(f.beta, f.parameters, c, 0) - (mean - shift) * scale);
}

__global__ void settle_forward(Plan plan, Workspace work, Forwarded f) {
  const int c = (blockIdx.x * blockDim.x + threadIdx.x) / kWarp;
  if (c >= plan.channels) return;
  const double2 sums = total(plan, work, c);
  if (threadIdx.x % kWarp != 0) return;
  const double count = static_cast<double>(plan.outer * plan.length);
  const double beside = sums.x / count;
  const double mean = work.shift[c] + beside;
  const double m2 = sums.y - sums.x * beside;
  const double variance = (m2 < 0 ? 0 : m2) / count;  // a NaN stays
  f.mean[c] = mean;
  f.inverse_std[c] = 1 / sqrt(variance + f.epsilon);
  set_normalize(work, f, c, mean, f.inverse_std[c]);
  const double of_running = variance * (f.unbiased ? count / (count - 1) : 1);
  set_parameter(
      f.running_mean, f.parameters, c,
      (1 - f.momentum) * parameter(f.running_mean, f.parameters, c, 0) + f.momentum * mean);
  set_parameter(f.running_variance, f.parameters, c,
                (1 - f.momentum) * parameter(f.running_variance, f.parameters, c, 0) +
                    f.momentum * of_running);
}

__global__ void settle_inference(Plan plan, Workspace work, Forwarded f) {
  const int c = blockIdx.x * blockDim.x + threadIdx.x;
  if (c >= plan.channels) return;
  const double variance = parameter(f.running_variance, f.parameters, c, 1);
  set_normalize(work, f, c, parameter(f.running_mean, f.parameters, c, 0),
                1 / sqrt(variance + f.epsilon));
}

template <class T, bool rows, bool aligned>
__global__ void __launch_bounds__(kThreads)
    normalize(Plan plan, const T* x, const T* residual, T* y, uint8_t* mask, bool relu,
              Workspace work) {
  float shift[kOwn<rows>] = {}, scale[kOwn<rows>] = {}, offset[kOwn<rows>] = {};
  const Range units = units_of<rows>(plan, plan.splits - 1 - blockIdx.y);
  for (uint32_t u = units.begin; u < units.end; u += units.step) {
    const Unit unit = locate<rows>(plan, u);
    if (u == units.begin) {
      load_channels<rows>(work.shift, unit, shift);
      load_channels<rows>(work.scale, unit, scale);
      load_channels<rows>(work.offset, unit, offset);
    }
    float xs[kWide], ys[kWide], rs[kWide];
    load<aligned>(x + unit.element, unit.count, xs);
    if (residual != nullptr) load<aligned>(residual + unit.element, unit.count, rs);
    uint32_t bits = 0;
#pragma unroll
    for (int k = 0; k < kWide; ++k) {
      const int own = rows ? k : 0;
      float value = fmaf(xs[k] - shift[own], scale[own], offset[own]);
      if (residual != nullptr) value += rs[k];
      const bool passes = !(value <= 0);  // a NaN passes
      if (k < unit.count) bits |= static_cast<uint32_t>(passes) << k;
      ys[k] = relu && !passes ? 0.0F : value;
    }
    store<aligned>(y + unit.element, unit.count, ys);
    if (mask != nullptr) mask[unit.mask] = static_cast<uint8_t>(bits);
  }
}

struct Backwarded {
  const void* gamma;
  const double* mean;
  const double* inverse_std;
  bool batch_statistics;
  void* dgamma;
  void* dbeta;
  Type parameters;
};

__global__ void prepare_backward(Plan plan, Workspace work, const double* mean) {
  const int c = blockIdx.x * blockDim.x + threadIdx.x;
  if (c < plan.channels) work.shift[c] = static_cast<float>(mean[c]);
}

__global__ void settle_backward(Plan plan, Workspace work, Backwarded b) {
  const int c = (blockIdx.x * blockDim.x + threadIdx.x) / kWarp;
  if (c >= plan.channels) return;
  const double2 sums = total(plan, work, c);
  if (threadIdx.x % kWarp != 0) return;
  const double count = static_cast<double>(plan.outer * plan.length);
  const double beside = b.mean[c] - work.shift[c];
  const double inverse_std = b.inverse_std[c];
  const double dz_xhat = (sums.y - beside * sums.x) * inverse_std;
  set_parameter(b.dgamma, b.parameters, c, dz_xhat);
  set_parameter(b.dbeta, b.parameters, c, sums.x);
  const double scale = parameter(b.gamma, b.parameters, c, 1) * inverse_std;
  const double slope = b.batch_statistics ? -scale * inverse_std * dz_xhat / count : 0;
  work.scale[c] = static_cast<float>(scale);
  work.slope[c] = static_cast<float>(slope);
  work.offset[c] =
      static_cast<float>(b.batch_statistics ? -scale * sums.x / count - slope * beside : 0);
}

template <class T, bool rows, bool aligned>
__global__ void __launch_bounds__(kThreads)
    gradient(Plan plan, const T* x, const T* dy, const uint8_t* mask, T* dx, T* d_residual,
             Workspace work) {
  float shift[kOwn<rows>] = {}, scale[kOwn<rows>] = {}, slope[kOwn<rows>] = {},
        offset[kOwn<rows>] = {};
  const Range units = units_of<rows>(plan, plan.splits - 1 - blockIdx.y);
  for (uint32_t u = units.begin; u < units.end; u += units.step) {
    const Unit unit = locate<rows>(plan, u);
    if (u == units.begin) {
      load_channels<rows>(work.shift, unit, shift);
      load_channels<rows>(work.scale, unit, scale);
      load_channels<rows>(work.slope, unit, slope);
      load_channels<rows>(work.offset, unit, offset);
    }
    float xs[kWide], dz[kWide];
    load<aligned>(dy + unit.element, unit.count, dz);
    if (x != nullptr) load<aligned>(x + unit.element, unit.count, xs);
    const uint32_t bits = mask == nullptr ? 0xFF : mask[unit.mask];
#pragma unroll
    for (int k = 0; k < kWide; ++k) {
      const int own = rows ? k : 0;
      if (((bits >> k) & 1) == 0) dz[k] = 0;
      xs[k] = x == nullptr
                  ? dz[k] * scale[own]
                  : fmaf(dz[k], scale[own], fmaf(xs[k] - shift[own], slope[own], offset[own]));
    }
    if (dx != nullptr) store<aligned>(dx + unit.element, unit.count, xs);
    if (d_residual != nullptr) store<aligned>(d_residual + unit.element, unit.count, dz);
  }
}

// ---- host

Status check(const Shape& shape, cudaError_t error) {
  if (error == cudaSuccess) return {};
  return Error{Code::kUnsupported,
               "batch norm of x " + shape.text() + ": CUDA: " + cudaGetErrorString(error), ""};
}

Result<Plan> plan_for(const Shape& shape) {
  FLATOUT_TRY_STATUS(check_shape(shape));
  int device = 0, multiprocessors = 0;
  FLATOUT_TRY_STATUS(check(shape, cudaGetDevice(&device)));
  FLATOUT_TRY_STATUS(check(
      shape, cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device)));
  return make_plan(shape, multiprocessors);
}

Status check_workspace(const Shape& shape, const Plan& plan, const Queue& queue) {
  const size_t needed = workspace_bytes(plan);
  if (queue.workspace != nullptr && queue.workspace_bytes >= needed) return {};
  return bad_argument(shape, "the workspace has " + std::to_string(queue.workspace_bytes) +
                                 " bytes; " + std::to_string(needed) + " are needed");
}

bool is_aligned(std::initializer_list<const void*> pointers) {
  for (const void* pointer : pointers) {
    if (reinterpret_cast<uintptr_t>(pointer) % 16 != 0) return false;
  }
  return true;
}

dim3 grid_of(const Plan& plan) {
  return {static_cast<unsigned>(plan.tiles), static_cast<unsigned>(plan.splits)};
}

// Blocks of warps, one for each channel; or of threads.
unsigned blocks_of(const Plan& plan, int threads_a_channel) {
  return static_cast<unsigned>((plan.channels * threads_a_channel + kThreads - 1) / kThreads);
}

// Calls with(T{}, rows, aligned), the last two as std::bool_constant.
template <class With>
void dispatch(const Shape& shape, bool rows, bool aligned, const With& with) {
  const auto by_layout = [&](auto type) {
    if (rows) {
      aligned ? with(type, std::true_type{}, std::true_type{})
              : with(type, std::true_type{}, std::false_type{});
    } else {
      aligned ? with(type, std::false_type{}, std::true_type{})
              : with(type, std::false_type{}, std::false_type{});
    }
  };
  if (shape.type == Type::kBf16) return by_layout(__nv_bfloat16{});
  if (shape.type == Type::kF16) return by_layout(__half{});
  by_layout(float{});
}

Forwarded forwarded(const Shape& shape, const Forward& forward) {
  Forwarded f{};
  f.gamma = forward.gamma;
  f.beta = forward.beta;
  f.epsilon = forward.epsilon;
  f.parameters = shape.parameters;
  return f;
}

void launch_normalize(const Shape& shape, const Plan& plan, const Forward& forward,
                      const Workspace& work, cudaStream_t stream) {
  const bool aligned = plan.aligned && is_aligned({forward.x, forward.residual, forward.y});
  dispatch(shape, plan.rows, aligned, [&](auto type, auto rows, auto whole) {
    using T = decltype(type);
    normalize<T, rows.value, whole.value><<<grid_of(plan), kThreads, 0, stream>>>(
        plan, static_cast<const T*>(forward.x), static_cast<const T*>(forward.residual),
        static_cast<T*>(forward.y), forward.mask, forward.relu, work);
  });
}

}  // namespace

Result<size_t> workspace_bytes(const Shape& shape) {
  FLATOUT_TRY(const Plan plan, plan_for(shape));
  return workspace_bytes(plan);
}

Status batch_norm_training(const Shape& shape, const Forward& forward, const Statistics& statistics,
                           const Running& running, const Queue& queue) {
  FLATOUT_TRY_STATUS(check_forward(shape, forward));
  FLATOUT_TRY_STATUS(check_statistics(shape, statistics.mean, statistics.inverse_std));
  FLATOUT_TRY_STATUS(check_count(shape, static_cast<double>(shape.per_channel())));
  FLATOUT_TRY(const Plan plan, plan_for(shape));
  FLATOUT_TRY_STATUS(check_workspace(shape, plan, queue));
  const Workspace work = workspace_of(plan, queue.workspace);
  auto* const stream = static_cast<cudaStream_t>(queue.stream);
  dispatch(shape, plan.rows, plan.aligned && is_aligned({forward.x}),
           [&](auto type, auto rows, auto whole) {
             using T = decltype(type);
             const auto* x = static_cast<const T*>(forward.x);
             guess_shift<T><<<blocks_of(plan, kWarp), kThreads, 0, stream>>>(plan, x, work.shift);
             add_up<T, rows.value, whole.value, false>
                 <<<grid_of(plan), kThreads, 0, stream>>>(plan, x, nullptr, nullptr, work);
           });
  Forwarded f = forwarded(shape, forward);
  f.mean = statistics.mean;
  f.inverse_std = statistics.inverse_std;
  f.running_mean = running.mean;
  f.running_variance = running.variance;
  f.momentum = running.momentum;
  f.unbiased = running.unbiased;
  settle_forward<<<blocks_of(plan, kWarp), kThreads, 0, stream>>>(plan, work, f);
  launch_normalize(shape, plan, forward, work, stream);
  return check(shape, cudaGetLastError());
}

Status batch_norm_inference(const Shape& shape, const Forward& forward, const void* mean,
                            const void* variance, const Queue& queue) {
  FLATOUT_TRY_STATUS(check_forward(shape, forward));
  FLATOUT_TRY_STATUS(check_needed(shape, mean, "the running mean"));
  FLATOUT_TRY_STATUS(check_needed(shape, variance, "the running variance"));
  FLATOUT_TRY(const Plan plan, plan_for(shape));
  FLATOUT_TRY_STATUS(check_workspace(shape, plan, queue));
  const Workspace work = workspace_of(plan, queue.workspace);
  auto* const stream = static_cast<cudaStream_t>(queue.stream);
  Forwarded f = forwarded(shape, forward);
  f.running_mean = const_cast<void*>(mean);  // read only here
  f.running_variance = const_cast<void*>(variance);
  settle_inference<<<blocks_of(plan, 1), kThreads, 0, stream>>>(plan, work, f);
  launch_normalize(shape, plan, forward, work, stream);
  return check(shape, cudaGetLastError());
}

Status batch_norm_backward(const Shape& shape, const Backward& backward, const Queue& queue) {
  FLATOUT_TRY_STATUS(check_backward(shape, backward));
  FLATOUT_TRY(const Plan plan, plan_for(shape));
  FLATOUT_TRY_STATUS(check_workspace(shape, plan, queue));
  const Workspace work = workspace_of(plan, queue.workspace);
  auto* const stream = static_cast<cudaStream_t>(queue.stream);
  prepare_backward<<<blocks_of(plan, 1), kThreads, 0, stream>>>(plan, work, backward.mean);
  const bool aligned =
      plan.aligned && is_aligned({backward.x, backward.dy, backward.dx, backward.d_residual});
  const Backwarded b{
      backward.gamma,  backward.mean,  backward.inverse_std, backward.batch_statistics,
      backward.dgamma, backward.dbeta, shape.parameters};
  dispatch(shape, plan.rows, aligned, [&](auto type, auto rows, auto whole) {
    using T = decltype(type);
    const auto* x = static_cast<const T*>(backward.x);
    const auto* dy = static_cast<const T*>(backward.dy);
    add_up<T, rows.value, whole.value, true>
        <<<grid_of(plan), kThreads, 0, stream>>>(plan, x, dy, backward.mask, work);
    settle_backward<<<blocks_of(plan, kWarp), kThreads, 0, stream>>>(plan, work, b);
    if (backward.dx == nullptr && backward.d_residual == nullptr) return;
    gradient<T, rows.value, whole.value><<<grid_of(plan), kThreads, 0, stream>>>(
        plan, backward.batch_statistics ? x : nullptr, dy, backward.mask,
        static_cast<T*>(backward.dx), static_cast<T*>(backward.d_residual), work);
  });
  return check(shape, cudaGetLastError());
}

}  // namespace flatout::nn::cuda
