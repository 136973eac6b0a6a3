// Sums by channel over a warp, a block and the blocks of a team, for nn/cuda_kernels.h. After
// nn/cuda_device.h, or what tests have in its place.
#pragma once

#include "nn/cuda_plan.h"

namespace flatout::nn::cuda {

constexpr int kWarps = kThreads / kWarp;
constexpr unsigned kAll = 0xFFFFFFFF;  // lanes of a warp

// A block's place in its team, and its threads' in the block.
struct Place {
  int team, rank;
  uint32_t begin, end;  // units of the share
  uint32_t first;       // of this thread
  uint32_t step;
  int column;

  __device__ explicit Place(const Plan& plan) {
    const auto block = static_cast<int>(blockIdx.x);
    const auto thread = static_cast<int>(threadIdx.x);
    team = block / plan.members;
    rank = block % plan.members;
    begin = static_cast<uint32_t>(rank) * plan.share;
    end = begin + plan.share < plan.units ? begin + plan.share : plan.units;
    column = thread % plan.columns;
    first = begin + static_cast<uint32_t>(thread / plan.columns);
    step = static_cast<uint32_t>(kThreads / plan.columns);
  }
};

__device__ inline double2 warp_sum(double2 value) {
  for (int by = kWarp / 2; by > 0; by /= 2) {
    value.x += __shfl_xor_sync(kAll, value.x, by);
    value.y += __shfl_xor_sync(kAll, value.y, by);
  }
  return value;
}

// A block's shared memory.
struct Scratch {
  double2* by_warp;  // [kWarps][tile]
  double* counted;   // [kWarps][tile]
  double2* totals;   // [tile]
  float* shift;      // [tile], as the others
  float* scale;
  float* slope;
  float* offset;
  unsigned char* kept;

  __device__ Scratch(const Plan& plan, size_t bytes, unsigned char* memory) {
    by_warp = reinterpret_cast<double2*>(memory);
    totals = by_warp + int64_t{kWarps} * plan.tile;
    counted = reinterpret_cast<double*>(totals + plan.tile);
    shift = reinterpret_cast<float*>(counted + int64_t{kWarps} * plan.tile);
    scale = shift + plan.tile;
    slope = scale + plan.tile;
    offset = slope + plan.tile;
    kept = memory + bytes;
  }
};

// Over the lanes of the warp that have the thread's channels.
__device__ inline double2 column_sum(const Plan& plan, double2 value) {
  for (int by = kWarp / 2; by >= plan.columns; by /= 2) {
    value.x += __shfl_xor_sync(kAll, value.x, by);
    value.y += __shfl_xor_sync(kAll, value.y, by);
  }
  return value;
}

// scratch.totals: both sums over the block, by channel.
template <int own>
__device__ void block_sum(const Plan& plan, const Scratch& scratch, const double (&a)[own],
                          const double (&b)[own]) {
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
#pragma unroll
  for (int k = 0; k < own; ++k) {
    const double2 sum = column_sum(plan, {a[k], b[k]});
    if (lane < plan.columns) scratch.by_warp[warp * plan.tile + lane * own + k] = sum;
  }
  __syncthreads();
  for (int i = threadIdx.x; i < plan.tile; i += kThreads) {
    double2 sum = {0, 0};
    for (int w = 0; w < kWarps; ++w) {
      sum.x += scratch.by_warp[w * plan.tile + i].x;
      sum.y += scratch.by_warp[w * plan.tile + i].y;
    }
    scratch.totals[i] = sum;
  }
  __syncthreads();
}

// The mean of what the lanes of the thread's column have: `sums` by channel, `count` values each.
template <int own>
__device__ void warp_mean(const Plan& plan, const float (&sums)[own], float count,
                          float (&means)[own]) {
  float all[own];
#pragma unroll
  for (int k = 0; k < own; ++k) all[k] = sums[k];
  for (int by = kWarp / 2; by >= plan.columns; by /= 2) {
    count += __shfl_xor_sync(kAll, count, by);
#pragma unroll
    for (int k = 0; k < own; ++k) all[k] += __shfl_xor_sync(kAll, all[k], by);
  }
#pragma unroll
  for (int k = 0; k < own; ++k) {
    const float mean = all[k] / count;
    means[k] = isfinite(mean) ? mean : 0.0F;
  }
}

// scratch.totals: {mean, sum of squared deviations} over the block, by channel, from sums and
// squares of the threads' differences from `shift`, which is the warp's own. Source: Chan, Golub,
// LeVeque 1979.
template <int own>
__device__ void block_moments(const Plan& plan, const Scratch& scratch, const float (&shift)[own],
                              const double (&sum)[own], const double (&squares)[own],
                              uint32_t values) {
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  for (int by = kWarp / 2; by >= plan.columns; by /= 2) {
    values += __shfl_xor_sync(kAll, values, by);
  }
  const double per_value = values > 0 ? 1.0 / values : 0;
#pragma unroll
  for (int k = 0; k < own; ++k) {
    const double2 sums = column_sum(plan, {sum[k], squares[k]});
    if (lane < plan.columns) {
      const int at = warp * plan.tile + lane * own + k;
      const double beside = sums.x * per_value;
      scratch.by_warp[at] = {shift[k] + beside, sums.y - sums.x * beside};
      scratch.counted[at] = values;
    }
  }
  __syncthreads();
  for (int i = threadIdx.x; i < plan.tile; i += kThreads) {
    const double first = scratch.by_warp[i].x;  // which has the first values
    const double near = isfinite(first) ? first : 0;
    double count = 0;
    double2 sums = {0, 0};
    for (int w = 0; w < kWarps; ++w) {
      const double2 of = scratch.by_warp[w * plan.tile + i];
      const double n = scratch.counted[w * plan.tile + i];
      if (n == 0) continue;
      const double beside = of.x - near;
      count += n;
      sums.x += n * beside;
      sums.y += of.y + n * beside * beside;
    }
    const double beside = count > 0 ? sums.x / count : 0;
    scratch.totals[i] = {near + beside, sums.y - sums.x * beside};
  }
  __syncthreads();
}

// Of a team, for one tile.
__device__ inline int64_t letters_of_tile(const Plan& plan) {
  return int64_t{plan.tile} * (plan.members + 1);
}

// The blocks of a team exchange two numbers a channel for each tile. All threads of all members
// call together() for each tile of the team.
class Team {
 public:
  __device__ Team(const Plan& plan, const Place& place, const Scratch& scratch, void* workspace)
      : plan_(plan), place_(place), scratch_(scratch) {
    letters_ = static_cast<Letter*>(workspace) + int64_t{place.team} * 2 * letters_of_tile(plan);
  }

  // scratch.totals[channel of the tile]: of this block's before, of all members' combined after.
  // combine(get) is called by whole warps, whose lanes share the members between them; get(r) is
  // what member r has, and waits for it.
  template <class Combine>
  __device__ void together(const Combine& combine) {
    if (plan_.members == 1) {
      for (int i = threadIdx.x / kWarp; i < plan_.tile; i += kWarps) {
        const double2 own = scratch_.totals[i];
        const double2 out = combine([&](int) { return own; });
        if (threadIdx.x % kWarp == 0) scratch_.totals[i] = out;
      }
      __syncthreads();
      return;
    }
    ++meetings_;
    // This tile's and the one's before, which some still read.
    Letter* const letters = letters_ + meetings_ % 2 * letters_of_tile(plan_);
    Letter* const answers = letters + int64_t{plan_.tile} * plan_.members;
    for (int i = threadIdx.x; i < plan_.tile; i += kThreads) {
      send(letters + int64_t{i} * plan_.members + place_.rank, scratch_.totals[i], meetings_);
    }
    // A single channel is combined by each member itself; of many, each member does some, and
    // answers to all: they have little to read then.
    const bool alone = plan_.tile == 1;
    const int warp = threadIdx.x / kWarp;
    const int stride = alone ? 1 : plan_.members * kWarps;
    for (int i = alone ? warp : place_.rank + warp * plan_.members; i < plan_.tile; i += stride) {
      const Letter* const of = letters + int64_t{i} * plan_.members;
      const double2 out = combine([&](int r) { return receive(of + r, meetings_); });
      if (threadIdx.x % kWarp != 0) continue;
      if (alone) {
        scratch_.totals[i] = out;
      } else {
        send(answers + i, out, meetings_);
      }
    }
    if (!alone) {
      for (int i = threadIdx.x; i < plan_.tile; i += kThreads) {
        scratch_.totals[i] = receive(answers + i, meetings_);
      }
    }
    __syncthreads();
  }

 private:
  const Plan& plan_;
  const Place& place_;
  const Scratch& scratch_;
  Letter* letters_;  // [2][tile][members] and the answers [tile] after each
  uint32_t meetings_ = 0;
};

}  // namespace flatout::nn::cuda
