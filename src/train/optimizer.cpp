#include "train/optimizer.h"

#include <fmt/format.h>

#include <cmath>

namespace flatout::train {
namespace {

void update_sgd(const OptimizerOptions& options, float* w, const float* g, float* momentum,
                size_t count) {
  const auto rate = static_cast<float>(options.rate);
  const auto keep = static_cast<float>(options.momentum);
  const auto decay = static_cast<float>(options.weight_decay);
  for (size_t i = 0; i < count; ++i) {
    momentum[i] = keep * momentum[i] + (g[i] + decay * w[i]);
    w[i] -= rate * momentum[i];
  }
}

void update_adam(const OptimizerOptions& options, int64_t step, float* w, const float* g,
                 float* first, float* second, size_t count) {
  const auto t = static_cast<double>(step + 1);
  const auto size = static_cast<float>(options.rate / (1 - std::pow(options.beta1, t)));
  const auto correction = static_cast<float>(std::sqrt(1 - std::pow(options.beta2, t)));
  // 1 - 0.999 in f32 would be off by 5e-5 of itself.
  const auto beta2 = static_cast<float>(options.beta2);
  const auto new1 = static_cast<float>(1 - options.beta1);
  const auto new2 = static_cast<float>(1 - options.beta2);
  const auto epsilon = static_cast<float>(options.epsilon);
  const auto decay = static_cast<float>(options.weight_decay);
  for (size_t i = 0; i < count; ++i) {
    const float d = g[i] + decay * w[i];
    first[i] += new1 * (d - first[i]);
    second[i] = beta2 * second[i] + new2 * d * d;
    w[i] -= size * first[i] / (std::sqrt(second[i]) / correction + epsilon);
  }
}

}  // namespace

Status OptimizerOptions::check() const {
  if (name != "sgd" && name != "adam") {
    return Error{Code::kBadInput, fmt::format("there is no optimizer \"{}\"", name),
                 "--optimizer sgd or --optimizer adam"};
  }
  constexpr double kMost = 1e6;
  const auto bad = [](const char* option, double value, const char* limit) {
    return Error{Code::kBadInput,
                 fmt::format("{} is a number from 0 to {}, not {}", option, limit, value), ""};
  };
  if (!(rate >= 0 && rate <= kMost)) return bad("--learning-rate", rate, "1000000");
  if (!(momentum >= 0 && momentum < 1)) return bad("--momentum", momentum, "less than 1");
  if (!(weight_decay >= 0 && weight_decay <= kMost)) {
    return bad("--weight-decay", weight_decay, "1000000");
  }
  return {};
}

Result<std::unique_ptr<Optimizer>> Optimizer::make(const OptimizerOptions& options, size_t count,
                                                   Device& device) {
  std::unique_ptr<Optimizer> out(new Optimizer(options));
  const std::vector<std::string> names = options.name == "adam"
                                             ? std::vector<std::string>{"exp_avg", "exp_avg_sq"}
                                             : std::vector<std::string>{"momentum"};
  for (const std::string& name : names) {
    FLATOUT_TRY(void* const at, device.allocate(count * sizeof(float)));
    out->state_.push_back({name, {static_cast<float*>(at), count}});
  }
  return out;
}

void Optimizer::update(std::span<float> values, std::span<const float> gradients, int64_t step,
                       Pool& pool) {
  const size_t count = values.size();
  pool.run(kParts, [&](int part) {
    const size_t first = count * static_cast<size_t>(part) / kParts;
    const size_t size = count * static_cast<size_t>(part + 1) / kParts - first;
    float* w = values.data() + first;
    const float* g = gradients.data() + first;
    if (options_.name == "adam") {
      update_adam(options_, step, w, g, state_[0].values.data() + first,
                  state_[1].values.data() + first, size);
    } else {
      update_sgd(options_, w, g, state_[0].values.data() + first, size);
    }
  });
}

}  // namespace flatout::train
