// The kernels of nn/cuda_batch_norm.h: one for each direction, one launch a call. A block reads its
// share of a tile once, keeps it in shared memory, meets the others of its team to learn the tile's
// sums, and finishes the share from there; only what the memory of all blocks cannot hold is read
// again. Results depend on the shape and the device's size alone: sums are added in fixed order.
//
// Differences from a value near the mean are f32, their sums f32 over eight values at most and f64
// from there on.
#pragma once

#include "nn/batch_norm.h"
#include "nn/cuda_sums.h"

namespace flatout::nn::cuda {

__device__ inline float to_float(float v) { return v; }
__device__ inline float to_float(__nv_bfloat16 v) { return __bfloat162float(v); }
__device__ inline float to_float(__half v) { return __half2float(v); }
__device__ inline void from_float(float v, float* to) { *to = v; }
__device__ inline void from_float(float v, __nv_bfloat16* to) { *to = __float2bfloat16_rn(v); }
__device__ inline void from_float(float v, __half* to) { *to = __float2half_rn(v); }

// What a lane loads at once, as the device moves it.
template <size_t bytes>
struct RawOf;
template <>
struct RawOf<16> {
  using Type = uint4;
};
template <>
struct RawOf<8> {
  using Type = uint2;
};
template <>
struct RawOf<4> {
  using Type = uint32_t;
};
template <>
struct RawOf<2> {
  using Type = uint16_t;
};

template <class T, int wide>
struct Pack {
  using Raw = typename RawOf<sizeof(T) * wide>::Type;
  union Both {
    Raw raw;
    T each[wide];
    __device__ Both() {}
  };

  static __device__ Raw load(const T* from) { return *reinterpret_cast<const Raw*>(from); }

  static __device__ void unpack(const Raw& raw, float (&values)[wide]) {
    Both both;
    both.raw = raw;
#pragma unroll
    for (int k = 0; k < wide; ++k) values[k] = to_float(both.each[k]);
  }

  static __device__ Raw pack(const float (&values)[wide]) {
    Both both;
#pragma unroll
    for (int k = 0; k < wide; ++k) from_float(values[k], &both.each[k]);
    return both.raw;
  }

  static __device__ void store(T* to, const Raw& raw) {
    store_at_once(reinterpret_cast<Raw*>(to), raw);
  }
};

__device__ inline double parameter(const void* data, Type type, int64_t c, double otherwise) {
  if (data == nullptr) return otherwise;
  if (type == Type::kBf16) return to_float(static_cast<const __nv_bfloat16*>(data)[c]);
  if (type == Type::kF16) return to_float(static_cast<const __half*>(data)[c]);
  return static_cast<const float*>(data)[c];
}

__device__ inline void set_parameter(void* data, Type type, int64_t c, double value) {
  if (data == nullptr) return;
  const auto v = static_cast<float>(value);
  if (type == Type::kBf16) {
    from_float(v, static_cast<__nv_bfloat16*>(data) + c);
  } else if (type == Type::kF16) {
    from_float(v, static_cast<__half*>(data) + c);
  } else {
    static_cast<float*>(data)[c] = v;
  }
}

__device__ inline uint32_t divide(uint32_t n, const Divisor& by) {
  return (static_cast<uint32_t>((uint64_t{n} * by.factor) >> 32) + n) >> by.shift;
}

// Where a thread's unit lies.
struct Unit {
  int64_t element;
  int64_t mask;
  bool inside;
};

// Units of a thread in a tile: `wide` values each, all of the channels that it begins with.
template <bool rows, int wide>
struct Lane {
  static constexpr int kOwn = rows ? wide : 1;  // channels
  static constexpr uint32_t kByte = 8 / wide;   // lanes of a byte of mask
  const Plan& plan;
  const Place& place;
  int64_t channel;
  uint32_t part;  // of a byte of mask, in values: rows know it beforehand

  __device__ Lane(const Plan& p, const Place& at, int tile) : plan(p), place(at) {
    channel = int64_t{tile} * plan.tile + (rows ? place.column * wide : 0);
    part = rows ? static_cast<uint32_t>(place.column) % kByte * wide : threadIdx.x % kByte * wide;
  }

  // Of rows: whether all lanes of the warp have units inside up to their turn `last`. All call it.
  __device__ bool are_inside(uint32_t last) const {
    const bool is = place.first + last * place.step < place.end && channel < plan.channels;
    return __ballot_sync(kAll, is) == kAll;
  }

  // Of the thread's turn `turn`.
  __device__ Unit unit(uint32_t turn) const {
    const uint32_t u = place.first + turn * place.step;
    if constexpr (rows) {
      return {u * plan.stride + channel, u * plan.mask_stride + channel / 8,
              u < place.end && channel < plan.channels};
    } else {
      const uint32_t image = divide(u, plan.lanes);
      const uint32_t l = u - image * plan.lanes.value;
      return {image * plan.stride + channel * plan.length + l * int64_t{wide},
              image * plan.mask_stride + channel * plan.groups + l / kByte,
              u < place.end && l * int64_t{wide} < plan.length};
    }
  }
};

// Calls step(whole) with a constant that says that all units of the warp up to turn `last` are
// inside, so that nothing is to be asked. For rows alone: of planes it made the code so long that
// it took 6 to 15 % more time.
template <bool rows, int wide, class Step>
__device__ void by_warp(const Lane<rows, wide>& lane, uint32_t last, const Step& step) {
  if constexpr (rows) {
    if (lane.are_inside(last)) {
      step(std::true_type{});
      return;
    }
  }
  step(std::false_type{});
}

// Values per channel of the units below `u`.
__device__ inline double values_below(const Plan& plan, uint32_t u) {
  if (plan.rows) return u;
  const uint32_t image = divide(u, plan.lanes);
  const int64_t rest = int64_t{u - image * plan.lanes.value} * plan.wide;
  return static_cast<double>(image * plan.length + (rest < plan.length ? rest : plan.length));
}

__device__ inline double values_of_member(const Plan& plan, int rank) {
  const uint32_t begin = static_cast<uint32_t>(rank) * plan.share;
  const uint32_t end = begin + plan.share < plan.units ? begin + plan.share : plan.units;
  return values_below(plan, end) - values_below(plan, begin);
}

// Calls settle(channel, i) for each channel of the tile that there is.
template <class Settle>
__device__ void for_channels(const Plan& plan, int tile, const Settle& settle) {
  for (int i = threadIdx.x; i < plan.tile; i += kThreads) {
    const int64_t c = int64_t{tile} * plan.tile + i;
    if (c < plan.channels) settle(c, i);
  }
  __syncthreads();
}

// Of an array by channel of the tile, the values of the thread's channels.
template <int own>
__device__ void own_values(const float* by_channel, int column, float (&values)[own]) {
#pragma unroll
  for (int k = 0; k < own; ++k) values[k] = by_channel[column * own + k];
}

// The byte of mask that holds this lane's `wide` bits is written by its first lane. All lanes of a
// warp call it.
template <int wide>
__device__ void store_mask(uint8_t* mask, const Unit& unit, uint32_t bits) {
  bool writes = unit.inside;
  if constexpr (wide == 4) {
    bits |= __shfl_xor_sync(kAll, bits, 1) << 4;
    writes = writes && threadIdx.x % 2 == 0;
  } else if constexpr (wide == 1) {
    bits = __ballot_sync(kAll, bits != 0) >> (threadIdx.x % kWarp / 8 * 8);
    writes = writes && threadIdx.x % 8 == 0;
  }
  if (writes) mask[unit.mask] = static_cast<uint8_t>(bits);
}

struct ForwardCall {
  const void* x;
  const void* residual;
  const void* gamma;
  const void* beta;
  double epsilon;
  bool relu;
  void* y;
  uint8_t* mask;
  double* mean;
  double* inverse_std;
  void* running_mean;
  void* running_variance;
  double momentum;
  bool unbiased;
  Type parameters;
};

__device__ inline void set_normalize(const Scratch& scratch, const ForwardCall& f, int64_t c, int i,
                                     double mean, double inverse_std) {
  const double scale = parameter(f.gamma, f.parameters, c, 1) * inverse_std;
  const auto shift = static_cast<float>(mean);
  scratch.shift[i] = shift;
  scratch.scale[i] = static_cast<float>(scale);
  scratch.offset[i] =
      static_cast<float>(parameter(f.beta, f.parameters, c, 0) - (mean - shift) * scale);
}

// Turns that a thread loads before it uses the first.
template <bool rows, int wide>
constexpr int kAhead = !rows && wide >= 4 ? 4 : 8;

// y of the block's share of a tile from scratch.shift, scale, offset.
template <class T, bool rows, int wide>
__device__ void normalize(const Plan& plan, const ForwardCall& f, const Place& place,
                          const Lane<rows, wide>& lane, const Scratch& scratch, bool is_kept) {
  using Packed = Pack<T, wide>;
  using Raw = typename Packed::Raw;
  constexpr int kOwn = Lane<rows, wide>::kOwn;
  constexpr int kTurns = 4;
  const auto* x = static_cast<const T*>(f.x);
  const auto* residual = static_cast<const T*>(f.residual);
  auto* y = static_cast<T*>(f.y);
  const Raw* slots = reinterpret_cast<const Raw*>(scratch.kept) + threadIdx.x;
  float shift[kOwn], scale[kOwn], offset[kOwn];
  own_values(scratch.shift, rows ? place.column : 0, shift);
  own_values(scratch.scale, rows ? place.column : 0, scale);
  own_values(scratch.offset, rows ? place.column : 0, offset);
  const uint32_t kept = is_kept ? plan.kept : 0;
  // What was read last is read first: the cache still has it.
  for (uint32_t batch = (plan.turns + kTurns - 1) / kTurns; batch-- > 0;) {
    by_warp(lane, batch * kTurns + kTurns - 1, [&](auto is_whole) {
      constexpr bool whole = decltype(is_whole)::value;
      Raw xs[kTurns], rs[kTurns];
      Unit units[kTurns];
#pragma unroll
      for (int j = 0; j < kTurns; ++j) {
        const uint32_t turn = batch * kTurns + j;
        units[j] = lane.unit(turn);
        if constexpr (whole) {
          units[j].inside = true;
        } else {
          xs[j] = rs[j] = {};
          if (!units[j].inside) continue;
        }
        if (residual != nullptr) rs[j] = Packed::load(residual + units[j].element);
        if (turn >= kept) xs[j] = Packed::load(x + units[j].element);
      }
#pragma unroll
      for (int j = 0; j < kTurns; ++j) {
        const uint32_t turn = batch * kTurns + j;
        if (turn < kept) xs[j] = slots[size_t{turn} * kThreads];
        float values[wide], added[wide];
        Packed::unpack(xs[j], values);
        if (residual != nullptr) Packed::unpack(rs[j], added);
        uint32_t bits = 0;
#pragma unroll
        for (int k = 0; k < wide; ++k) {
          const int own = rows ? k : 0;
          float z = fmaf(values[k] - shift[own], scale[own], offset[own]);
          if (residual != nullptr) z += added[k];
          const bool passes = !(z <= 0);  // a NaN passes
          bits |= static_cast<uint32_t>(passes) << k;
          values[k] = f.relu && !passes ? 0.0F : z;
        }
        if (units[j].inside) Packed::store(y + units[j].element, Packed::pack(values));
        if (f.mask != nullptr) store_mask<wide>(f.mask, units[j], units[j].inside ? bits : 0);
      }
    });
  }
}

template <class T, bool rows, int wide>
__global__ void __launch_bounds__(kThreads, blocks_at_once(rows))
    forward_training(const Plan plan, const ForwardCall f, void* workspace, size_t scratch_size) {
  using Packed = Pack<T, wide>;
  using Raw = typename Packed::Raw;
  using Own = Lane<rows, wide>;
  constexpr int kOwn = Own::kOwn, kTurns = kAhead<rows, wide>;
  constexpr int kFold = rows ? kTurns : 8 / wide;  // turns whose sums are f32
  const Scratch scratch(plan, scratch_size, dynamic_shared());
  const Place place(plan);
  Team team(plan, place, scratch, workspace);
  Raw* slots = reinterpret_cast<Raw*>(scratch.kept) + threadIdx.x;
  const auto* x = static_cast<const T*>(f.x);
  const double all = static_cast<double>(plan.outer * plan.length);

  for (int tile = place.team; tile < plan.tiles; tile += plan.teams) {
    const Own lane(plan, place, tile);
    double sum[kOwn] = {}, squares[kOwn] = {};
    float shift[kOwn] = {};
    uint32_t counted = 0;
    for (uint32_t turn = 0; turn < plan.turns; turn += kTurns) {
      by_warp(lane, turn + kTurns - 1, [&](auto is_whole) {
        constexpr bool whole = decltype(is_whole)::value;
        Raw raw[kTurns];
        bool inside[kTurns];
#pragma unroll
        for (int j = 0; j < kTurns; ++j) {
          const Unit unit = lane.unit(turn + j);
          inside[j] = whole || unit.inside;
          if constexpr (!whole) raw[j] = {};
          if (inside[j]) raw[j] = Packed::load(x + unit.element);
        }
        if (turn == 0) {
          // The warp's mean of them: what differs from it loses no digits.
          float guess[kOwn] = {}, guessed = 0;
#pragma unroll
          for (int j = 0; j < kTurns; ++j) {
            float values[wide];
            Packed::unpack(raw[j], values);
            if (!inside[j]) continue;
            guessed += rows ? 1 : wide;
#pragma unroll
            for (int k = 0; k < wide; ++k) guess[rows ? k : 0] += values[k];
          }
          warp_mean<kOwn>(plan, guess, guessed, shift);
        }
        float part[kOwn] = {}, part_squares[kOwn] = {};
#pragma unroll
        for (int j = 0; j < kTurns; ++j) {
          if (turn + j < plan.kept) slots[size_t{turn + j} * kThreads] = raw[j];
          float values[wide];
          Packed::unpack(raw[j], values);
          if (inside[j]) {
            counted += rows ? 1 : wide;
#pragma unroll
            for (int k = 0; k < wide; ++k) {
              const int own = rows ? k : 0;
              const float centered = values[k] - shift[own];
              part[own] += centered;
              part_squares[own] = fmaf(centered, centered, part_squares[own]);
            }
          }
          if ((j + 1) % kFold == 0) {
#pragma unroll
            for (int k = 0; k < kOwn; ++k) {
              sum[k] += part[k];
              squares[k] += part_squares[k];
              part[k] = part_squares[k] = 0;
            }
          }
        }
      });
    }
    block_moments<kOwn>(plan, scratch, shift, sum, squares, counted);
    team.together([&](const auto& get) -> double2 {
      // As of a block's warps; from the first member's mean, which lies near the others'.
      const int first = threadIdx.x % kWarp;
      double2 of = {0, 0};
      if (first < plan.members) of = get(first);
      const double told = __shfl_sync(kAll, of.x, 0);
      const double near = isfinite(told) ? told : 0;
      double2 sums = {0, 0};
      for (int r = first; r < plan.members;) {
        const double values = values_of_member(plan, r), beside = of.x - near;
        sums.x += values * beside;
        sums.y += of.y + values * beside * beside;
        r += kWarp;
        if (r < plan.members) of = get(r);
      }
      sums = warp_sum(sums);
      const double beside = sums.x / all;
      const double variance = sums.y / all - beside * beside;
      return {near + beside, variance < 0 ? 0 : variance};  // a NaN stays
    });
    for_channels(plan, tile, [&](int64_t c, int i) {
      const double mean = scratch.totals[i].x, variance = scratch.totals[i].y;
      const double inverse_std = 1 / sqrt(variance + f.epsilon);
      set_normalize(scratch, f, c, i, mean, inverse_std);
      if (place.rank != 0) return;
      f.mean[c] = mean;
      f.inverse_std[c] = inverse_std;
      const double of_running = variance * (f.unbiased ? all / (all - 1) : 1);
      const double kept = 1 - f.momentum;
      set_parameter(f.running_mean, f.parameters, c,
                    kept * parameter(f.running_mean, f.parameters, c, 0) + f.momentum * mean);
      set_parameter(
          f.running_variance, f.parameters, c,
          kept * parameter(f.running_variance, f.parameters, c, 0) + f.momentum * of_running);
    });
    normalize<T, rows, wide>(plan, f, place, lane, scratch, true);
  }
}

template <class T, bool rows, int wide>
__global__ void __launch_bounds__(kThreads, blocks_at_once(rows))
    forward_inference(const Plan plan, const ForwardCall f, size_t scratch_size) {
  const Scratch scratch(plan, scratch_size, dynamic_shared());
  const Place place(plan);
  for (int tile = place.team; tile < plan.tiles; tile += plan.teams) {
    __syncthreads();  // the last tile's coefficients have been read
    for_channels(plan, tile, [&](int64_t c, int i) {
      const double variance = parameter(f.running_variance, f.parameters, c, 1);
      set_normalize(scratch, f, c, i, parameter(f.running_mean, f.parameters, c, 0),
                    1 / sqrt(variance + f.epsilon));
    });
    const Lane<rows, wide> lane(plan, place, tile);
    normalize<T, rows, wide>(plan, f, place, lane, scratch, false);
  }
}

struct BackwardCall {
  const void* x;
  const void* dy;
  const void* gamma;
  const uint8_t* mask;
  const double* mean;
  const double* inverse_std;
  bool batch_statistics;
  void* dx;
  void* d_residual;
  void* dgamma;
  void* dbeta;
  Type parameters;
};

// dz: dy where the mask lets it pass. A value that does not pass is 0, whatever it was.
template <class T, int wide>
__device__ void rectify(typename Pack<T, wide>::Raw* raw, uint32_t bits) {
  typename Pack<T, wide>::Both both;
  both.raw = *raw;
#pragma unroll
  for (int k = 0; k < wide; ++k) {
    if (((bits >> k) & 1) == 0) from_float(0.0F, &both.each[k]);
  }
  *raw = both.raw;
}

template <class T, bool rows, int wide>
__global__ void __launch_bounds__(kThreads, blocks_at_once(rows))
    backward(const Plan plan, const BackwardCall b, void* workspace, size_t scratch_size) {
  using Packed = Pack<T, wide>;
  using Raw = typename Packed::Raw;
  using Own = Lane<rows, wide>;
  constexpr int kOwn = Own::kOwn;
  constexpr int kTurns = wide == 1 ? 8 : 4;
  constexpr int kFold = rows ? kTurns : 8 / wide;
  const Scratch scratch(plan, scratch_size, dynamic_shared());
  const Place place(plan);
  Team team(plan, place, scratch, workspace);
  Raw* slots = reinterpret_cast<Raw*>(scratch.kept) + threadIdx.x;  // x, dz in turns
  const auto* x = static_cast<const T*>(b.x);
  const auto* dy = static_cast<const T*>(b.dy);
  auto* dx = static_cast<T*>(b.dx);
  auto* d_residual = static_cast<T*>(b.d_residual);
  const int column = rows ? place.column : 0;
  const double all = static_cast<double>(plan.outer * plan.length);

  for (int tile = place.team; tile < plan.tiles; tile += plan.teams) {
    const Own lane(plan, place, tile);
    const auto load = [&](auto whole, uint32_t turn, Raw* from_x, Raw* dz) {
      Unit unit = lane.unit(turn);
      if constexpr (decltype(whole)::value) {
        unit.inside = true;
      } else {
        *from_x = *dz = {};
      }
      if (unit.inside) {
        *from_x = Packed::load(x + unit.element);
        *dz = Packed::load(dy + unit.element);
      }
      return unit;
    };
    const auto passing = [&](const Unit& unit) -> uint32_t {
      if (b.mask == nullptr || !unit.inside) return 0xFF;
      if constexpr (rows) return b.mask[unit.mask] >> lane.part;
      return b.mask[unit.mask] >> (threadIdx.x % Own::kByte * wide);
    };
    float shift[kOwn];
#pragma unroll
    for (int k = 0; k < kOwn; ++k) {
      const bool known = lane.channel + k < plan.channels;
      shift[k] = known ? static_cast<float>(b.mean[lane.channel + k]) : 0;
    }
    double sum[kOwn] = {}, dot[kOwn] = {};
    for (uint32_t turn = 0; turn < plan.turns; turn += kTurns) {
      by_warp(lane, turn + kTurns - 1, [&](auto whole) {
        Raw xs[kTurns], dzs[kTurns];
        Unit units[kTurns];
        uint32_t bits[kTurns];
#pragma unroll
        for (int j = 0; j < kTurns; ++j) {
          units[j] = load(whole, turn + j, &xs[j], &dzs[j]);
          bits[j] = passing(units[j]);
        }
        float part[kOwn] = {}, part_dot[kOwn] = {};
#pragma unroll
        for (int j = 0; j < kTurns; ++j) {
          rectify<T, wide>(&dzs[j], bits[j]);
          if (d_residual != nullptr && units[j].inside) {
            Packed::store(d_residual + units[j].element, dzs[j]);
          }
          if (turn + j < plan.kept) {
            slots[size_t{turn + j} * 2 * kThreads] = xs[j];
            slots[(size_t{turn + j} * 2 + 1) * kThreads] = dzs[j];
          }
          float values[wide], dz[wide];
          Packed::unpack(xs[j], values);
          Packed::unpack(dzs[j], dz);
#pragma unroll
          for (int k = 0; k < wide; ++k) {
            const int own = rows ? k : 0;
            if (!units[j].inside) continue;
            part[own] += dz[k];
            part_dot[own] = fmaf(dz[k], values[k] - shift[own], part_dot[own]);
          }
          if ((j + 1) % kFold == 0) {
#pragma unroll
            for (int k = 0; k < kOwn; ++k) {
              sum[k] += part[k];
              dot[k] += part_dot[k];
              part[k] = part_dot[k] = 0;
            }
          }
        }
      });
    }
    block_sum<kOwn>(plan, scratch, sum, dot);
    team.together([&](const auto& get) -> double2 {
      double2 sums = {0, 0};
      for (int r = threadIdx.x % kWarp; r < plan.members; r += kWarp) {
        const double2 of = get(r);
        sums.x += of.x;
        sums.y += of.y;
      }
      return warp_sum(sums);
    });
    for_channels(plan, tile, [&](int64_t c, int i) {
      const double2 sums = scratch.totals[i];
      const auto near = static_cast<float>(b.mean[c]);
      const double beside = b.mean[c] - near;
      const double inverse_std = b.inverse_std[c];
      const double dz_xhat = (sums.y - beside * sums.x) * inverse_std;
      const double scale = parameter(b.gamma, b.parameters, c, 1) * inverse_std;
      const double slope = b.batch_statistics ? -scale * inverse_std * dz_xhat / all : 0;
      const double offset = b.batch_statistics ? -scale * sums.x / all - slope * beside : 0;
      scratch.shift[i] = near;
      scratch.scale[i] = static_cast<float>(scale);
      scratch.slope[i] = static_cast<float>(slope);
      scratch.offset[i] = static_cast<float>(offset);
      if (place.rank != 0) return;
      set_parameter(b.dgamma, b.parameters, c, dz_xhat);
      set_parameter(b.dbeta, b.parameters, c, sums.x);
    });
    if (dx == nullptr) continue;
    float scale[kOwn], slope[kOwn], offset[kOwn];
    own_values(scratch.scale, column, scale);
    own_values(scratch.slope, column, slope);
    own_values(scratch.offset, column, offset);
    for (uint32_t batch = (plan.turns + kTurns - 1) / kTurns; batch-- > 0;) {
      by_warp(lane, batch * kTurns + kTurns - 1, [&](auto whole) {
        Raw xs[kTurns], dzs[kTurns];
        Unit units[kTurns];
#pragma unroll
        for (int j = 0; j < kTurns; ++j) {
          const uint32_t turn = batch * kTurns + j;
          if (turn < plan.kept) {
            units[j] = lane.unit(turn);
            if constexpr (decltype(whole)::value) units[j].inside = true;
            xs[j] = slots[size_t{turn} * 2 * kThreads];
            dzs[j] = slots[(size_t{turn} * 2 + 1) * kThreads];
          } else {
            units[j] = load(whole, turn, &xs[j], &dzs[j]);
            rectify<T, wide>(&dzs[j], passing(units[j]));
          }
        }
#pragma unroll
        for (int j = 0; j < kTurns; ++j) {
          float values[wide], dz[wide];
          Packed::unpack(xs[j], values);
          Packed::unpack(dzs[j], dz);
#pragma unroll
          for (int k = 0; k < wide; ++k) {
            const int own = rows ? k : 0;
            // Without batch statistics x has no part in it, were it infinite.
            values[k] =
                b.batch_statistics
                    ? fmaf(dz[k], scale[own], fmaf(values[k] - shift[own], slope[own], offset[own]))
                    : dz[k] * scale[own];
          }
          if (units[j].inside) Packed::store(dx + units[j].element, Packed::pack(values));
        }
      });
    }
  }
}

}  // namespace flatout::nn::cuda
