// What a loop comes to after its backward pass: told by the order of the lines of the functions
// that lead to that pass. What comes before it makes the batch or the loss, even where no slice
// tells.
#pragma once

#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "diagnose/view.h"

namespace flatout::diagnose {

class AfterBackward {
 public:
  explicit AfterBackward(const RunView& view);

  /// The user's frame that calls what this stack does, in a function that leads to the backward
  /// pass and at a line after it; 0 where it comes before the pass, or no function tells.
  model::FrameId call_of(model::StackId stack) const {
    return stack < calls_.size() ? calls_[stack] : model::FrameId{0};
  }
  /// Time of the training thread's stacks outside of backward passes, in microseconds.
  const std::vector<double>& times() const { return times_; }

 private:
  using Function = std::pair<model::StringId, model::StringId>;  // file, name
  template <typename See>
  void each_user_frame(model::StackId stack, const See& see) const;
  model::FrameId find_call(model::StackId stack) const;

  const RunView& view_;
  std::vector<double> times_;
  std::map<Function, uint32_t> last_;  // of its lines, that lead to the pass
  std::vector<model::FrameId> calls_;
};

}  // namespace flatout::diagnose
