#include "train/model.h"

#include <algorithm>

#include "train/layers.h"

namespace flatout::train {

const ModelInfo* find_model(std::string_view name) {
  static constexpr ModelInfo kModels[] = {{"lenet", 1, 28}, {"resnet20", 3, 32}};
  for (const ModelInfo& info : kModels) {
    if (info.name == name) return &info;
  }
  return nullptr;
}

template <class T>
Dims Model<T>::add(std::unique_ptr<Layer<T>> layer) {
  layers_.push_back(std::move(layer));
  return layers_.back()->out();
}

template <class T>
void Model<T>::build_lenet(int classes) {
  Dims dims{1, 28, 28};
  const auto begin = [&] { first_parameter_.push_back(plan_.parameter_count()); };
  const auto activation = [&] {
    begin();
    dims = add(std::make_unique<Relu<T>>(dims));
  };
  const auto convolution = [&](const char* name, const ConvolutionShape& shape) {
    begin();
    dims = add(std::make_unique<Convolution<T>>(plan_, name, dims, shape));
    activation();
    begin();
    dims = add(std::make_unique<MaxPool<T>>(plan_, dims));
  };
  const auto dense = [&](const char* name, int outputs) {
    begin();
    dims = add(std::make_unique<Dense<T>>(plan_, name, dims, outputs));
  };
  convolution("conv1", {6, 5, 1, 2, true});
  convolution("conv2", {16, 5, 1, 0, true});
  dense("fc1", 120);
  activation();
  dense("fc2", 84);
  activation();
  dense("fc3", classes);
}

template <class T>
void Model<T>::build_resnet20(int classes) {
  Dims dims{3, 32, 32};
  const auto begin = [&] { first_parameter_.push_back(plan_.parameter_count()); };
  begin();
  dims = add(
      std::make_unique<Convolution<T>>(plan_, "conv1", dims, ConvolutionShape{16, 3, 1, 1, false}));
  begin();
  dims = add(std::make_unique<BatchNormRelu<T>>(plan_, "bn1", dims));
  for (int stage = 0; stage < 3; ++stage) {
    for (int block = 0; block < 3; ++block) {
      const std::string name = "layer" + std::to_string(stage + 1) + "." + std::to_string(block);
      begin();
      dims = add(std::make_unique<ResidualBlock<T>>(plan_, name, dims, 16 << stage,
                                                    stage > 0 && block == 0 ? 2 : 1));
    }
  }
  begin();
  dims = add(std::make_unique<GlobalAveragePool<T>>(dims));
  begin();
  dims = add(std::make_unique<Dense<T>>(plan_, "fc", dims, classes));
}

template <class T>
Result<std::unique_ptr<Model<T>>> Model<T>::make(std::string_view name, int classes, int batch,
                                                 uint64_t seed, Device& device) {
  FLATOUT_CHECK(find_model(name) != nullptr);
  std::unique_ptr<Model> model(new Model(batch, device));
  if (name == "lenet") model->build_lenet(classes);
  if (name == "resnet20") model->build_resnet20(classes);
  MemoryPlan<T>& plan = model->plan_;
  model->outputs_.resize(model->layers_.size());
  for (size_t i = 0; i < model->layers_.size(); ++i) {
    const size_t size = static_cast<size_t>(batch) * model->layers_[i]->out().count();
    plan.want(&model->outputs_[i], size);
    plan.share(0, &model->d_[0], size);
    plan.share(1, &model->d_[1], size);
  }
  FLATOUT_TRY_STATUS(plan.provide(device, seed));
  return model;
}

template <class T>
Result<Score> Model<T>::forward(const T* x, const int* labels, int n, bool training,
                                Exchange* exchange, int part) {
  FLATOUT_CHECK(n > 0 && n <= plan_.batch());
  pass_.n = n;
  pass_.training = training;
  pass_.device = &device_;
  pass_.plan = &plan_;
  pass_.exchange = training ? exchange : nullptr;
  pass_.part = part;
  x_ = x;
  for (size_t i = 0; i < layers_.size(); ++i) {
    FLATOUT_TRY_STATUS(layers_[i]->forward(pass_, x, outputs_[i]));
    x = outputs_[i];
  }
  return softmax_cross_entropy(x, labels, n, layers_.back()->out().channels, d_[0]);
}

template <class T>
Status Model<T>::backward(const std::function<void(size_t first)>& ready) {
  T* dy = d_[0];
  T* dx = d_[1];
  for (size_t i = layers_.size(); i-- > 0;) {
    const T* x = i > 0 ? outputs_[i - 1] : x_;
    FLATOUT_TRY_STATUS(layers_[i]->backward(pass_, x, outputs_[i], dy, i > 0 ? dx : nullptr));
    if (ready) ready(first_parameter_[i]);
    std::swap(dx, dy);
  }
  return {};
}

template class Model<float>;
template class Model<double>;

}  // namespace flatout::train
