// The models: layers in a row, with what lies between them, on one device.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "train/layer.h"

namespace flatout::train {

/// What a model eats: square pictures of 1 or 3 channels.
struct ModelInfo {
  std::string_view name;
  int channels, side;
};
/// "lenet": LeNet-5 with ReLU and max pooling, 28 x 28 grey. "resnet20": ResNet-20 for CIFAR
/// (arXiv 1512.03385, section 4.2), 32 x 32. nullptr: there is none of that name.
const ModelInfo* find_model(std::string_view name);

template <class T>
class Model {
 public:
  /// `name` as above; for batches of up to `batch`. Parameters are drawn from `seed`; names and
  /// shapes are those of the PyTorch modules of the same structure. Errors: kFull.
  static Result<std::unique_ptr<Model>> make(std::string_view name, int classes, int batch,
                                             uint64_t seed, Device& device);

  /// x: [n][channels][side][side], n at most `batch`; it must stay until backward().
  Result<Score> forward(const T* x, const int* labels, int n, bool training, Exchange* exchange,
                        int part);
  /// `ready(first)` is called as soon as the gradients from the parameter `first` (an index into
  /// plan().values()) on are final.
  Status backward(const std::function<void(size_t first)>& ready);

  const MemoryPlan<T>& plan() const { return plan_; }

 private:
  Model(int batch, Device& device) : plan_(batch), device_(device) {}
  Dims add(std::unique_ptr<Layer<T>> layer);
  void build_lenet(int classes);
  void build_resnet20(int classes);

  MemoryPlan<T> plan_;
  Device& device_;
  Layers<T> layers_;
  std::vector<size_t> first_parameter_;  // of each layer
  std::vector<T*> outputs_;              // of each layer, [batch][out]
  T* d_[2] = {};                         // gradients on their way down
  Pass<T> pass_;
  const T* x_ = nullptr;
};

}  // namespace flatout::train
