// What the layers of a model need of a device. Each registers its wants first; then all is
// allocated at once, so that a model that does not fit says so before anything is computed.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "train/device.h"
#include "train/learner.h"
#include "train/random.h"

namespace flatout::train {

/// Values of one sample: [channels][height][width].
struct Dims {
  int channels = 0, height = 1, width = 1;
  size_t count() const {
    return static_cast<size_t>(channels) * static_cast<size_t>(height) * static_cast<size_t>(width);
  }
};

/// A parameter or statistic by name, as PyTorch's state_dict has it.
template <class T>
struct Named {
  std::string name;
  std::vector<int64_t> shape;
  std::span<T> values;
};

/// Parts of a batch that threads work on at once, each with memory of its own. Fixed, so that
/// sums over parts do not depend on the number of threads.
inline constexpr int kParts = 16;

template <class T>
class MemoryPlan {
 public:
  /// For batches of up to `batch` samples.
  explicit MemoryPlan(int batch) : batch_(batch) {}

  int batch() const { return batch_; }

  /// A trained array and its gradient, drawn uniformly from -bound to bound around `mean`.
  void parameter(std::string name, std::vector<int64_t> shape, T mean, T bound, T** value,
                 T** gradient) {
    parameters_.push_back({std::move(name), std::move(shape), mean, bound, value, gradient});
  }
  /// An array that is kept with the parameters but not trained.
  void statistic(std::string name, std::vector<int64_t> shape, T value, T** where) {
    statistics_.push_back({std::move(name), std::move(shape), value, T{0}, where, nullptr});
  }
  template <class U>
  void want(U** where, size_t count) {
    wants_.push_back({count * sizeof(U), [where](void* at) { *where = static_cast<U*>(at); }});
  }
  size_t parameter_count() const { return total(parameters_); }  // registered so far
  /// Memory that layers use one after the other, of the size that the largest of them needs.
  void share(size_t slot, T** where, size_t count) {
    shared_.at(slot).count = std::max(shared_.at(slot).count, count);
    shared_.at(slot).where.push_back(where);
  }
  /// Working memory for each of the kParts parts; shared by all layers.
  void scratch(size_t count) { scratch_ = std::max(scratch_, count); }

  /// Allocates all, and draws the parameters from `seed`. Errors: kFull.
  Status provide(Device& device, uint64_t seed);

  // Once provided:
  std::span<T> values() const { return values_; }        // all parameters, one after the other
  std::span<T> gradients() const { return gradients_; }  // in the same order
  const std::vector<Named<T>>& parameters() const { return named_; }
  const std::vector<Named<T>>& statistics() const { return named_statistics_; }
  T* scratch_of(int part) const { return scratch_at_ + static_cast<size_t>(part) * scratch_; }

 private:
  struct Array {
    std::string name;
    std::vector<int64_t> shape;
    T mean, bound;
    T** value;
    T** gradient;
    size_t count() const {
      size_t n = 1;
      for (const int64_t side : shape) n *= static_cast<size_t>(side);
      return n;
    }
  };
  struct Want {
    size_t bytes;
    std::function<void(void*)> give;
  };
  struct Shared {
    size_t count = 0;
    std::vector<T**> where;
  };
  static constexpr size_t kSlots = 4;
  static size_t total(const std::vector<Array>& arrays) {
    size_t n = 0;
    for (const Array& array : arrays) n += array.count();
    return n;
  }

  int batch_;
  std::vector<Array> parameters_, statistics_;
  std::vector<Want> wants_;
  std::array<Shared, kSlots> shared_;
  size_t scratch_ = 0;
  T* scratch_at_ = nullptr;
  std::span<T> values_, gradients_;
  std::vector<Named<T>> named_, named_statistics_;
};

template <class T>
Status MemoryPlan<T>::provide(Device& device, uint64_t seed) {
  const auto allocate = [&](size_t count) -> Result<std::span<T>> {
    FLATOUT_TRY(void* const at, device.allocate(count * sizeof(T)));
    return std::span<T>(static_cast<T*>(at), count);
  };
  FLATOUT_TRY(values_, allocate(total(parameters_)));
  FLATOUT_TRY(gradients_, allocate(values_.size()));
  FLATOUT_TRY(const std::span<T> kept, allocate(total(statistics_)));
  for (const Want& want : wants_) {
    FLATOUT_TRY(void* const at, device.allocate(want.bytes));
    want.give(at);
  }
  for (const Shared& shared : shared_) {
    FLATOUT_TRY(const std::span<T> at, allocate(shared.count));
    for (T** where : shared.where) *where = at.data();
  }
  scratch_ = (scratch_ + 63) / 64 * 64;  // parts begin on a cache line
  FLATOUT_TRY(const std::span<T> scratch, allocate(scratch_ * kParts));
  scratch_at_ = scratch.data();

  Random random(seed, 77);
  size_t at = 0;
  for (const Array& array : parameters_) {
    const std::span<T> values = values_.subspan(at, array.count());
    for (T& value : values) {
      value = array.mean;
      if (array.bound > 0) {
        const auto bound = static_cast<float>(array.bound);
        value += static_cast<T>(random.range(-bound, bound));
      }
    }
    *array.value = values.data();
    *array.gradient = gradients_.data() + at;
    named_.push_back({array.name, array.shape, values});
    at += values.size();
  }
  at = 0;
  for (const Array& array : statistics_) {
    const std::span<T> values = kept.subspan(at, array.count());
    std::fill(values.begin(), values.end(), array.mean);
    *array.value = values.data();
    named_statistics_.push_back({array.name, array.shape, values});
    at += values.size();
  }
  return {};
}

}  // namespace flatout::train
