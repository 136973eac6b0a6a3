// The policies by name.
#include <fmt/format.h>

#include "devmem/arena.h"
#include "devmem/bfc.h"
#include "devmem/policy.h"
#include "devmem/torch_policy.h"

namespace flatout::devmem {

const std::vector<std::string_view>& policy_names() {
  static const std::vector<std::string_view> names = {"tf_growth", "tf_all", "torch",
                                                      "torch_expandable", "arena"};
  return names;
}

Result<std::unique_ptr<Policy>> make_policy(std::string_view name, Driver& driver, Bytes limit) {
  std::unique_ptr<Policy> policy;
  if (name == "tf_growth" || name == "tf_all") {
    BfcOptions options;
    options.allow_growth = name == "tf_growth";
    policy = std::make_unique<Bfc>(driver, limit, options);
  } else if (name == "torch" || name == "torch_expandable") {
    TorchOptions options;
    options.expandable = name == "torch_expandable";
    policy = std::make_unique<TorchPolicy>(driver, limit, options);
  } else if (name == "arena") {
    policy = std::make_unique<Arena>(driver, limit);
  } else {
    return Error{Code::kNotFound, fmt::format("there is no policy '{}'", name), ""};
  }
  return policy;
}

}  // namespace flatout::devmem
