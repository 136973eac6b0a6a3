// What the rules of `flatout check` find.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "advise/machine.h"
#include "model/advice.h"

namespace flatout::advise {

class Found {
 public:
  void fails(std::string_view id, std::string text, std::string hint) {
    problems.push_back({std::string(id), std::move(text), std::move(hint), true});
  }
  void warns(std::string_view id, std::string text, std::string hint) {
    problems.push_back({std::string(id), std::move(text), std::move(hint), false});
  }
  std::vector<model::Problem> problems;
};

inline double share(uint64_t part, uint64_t whole) {
  return whole == 0 ? 0 : static_cast<double>(part) / static_cast<double>(whole);
}

/// GPUs, their driver, and the frameworks that would use them.
void check_gpus(const Machine& machine, Found& found);

/// What the driver counts as free of a GPU, and what CUDA did within a context of its own.
std::string free_text(const Machine& machine, const Gpu& gpu);
/// "pid 50 python train.py 800 MiB, ..."; empty where nobody is seen.
std::string holders_text(const Machine& machine, const Gpu& gpu,
                         const probe::MigInstance* part = nullptr);

}  // namespace flatout::advise
