#include "diagnose/framework.h"

#include <string_view>

#include "diagnose/blame.h"

namespace flatout::diagnose {

Framework framework(const model::Run& run) {
  const std::string_view steps = run.fact("steps.framework");
  if (steps == "torch") return Framework::kTorch;
  if (steps == "tensorflow") return Framework::kTensorFlow;
  if (steps == "jax") return Framework::kJax;
  // Nobody told of a step: what is imported is all there is.
  const bool torch = !run.fact("torch.version").empty();
  if (torch && graph_operations(run) > 0) return Framework::kTorch;
  if (!run.fact("tensorflow.version").empty()) return Framework::kTensorFlow;
  if (torch) return Framework::kTorch;
  return run.fact("jax.version").empty() ? Framework::kNone : Framework::kJax;
}

}  // namespace flatout::diagnose
