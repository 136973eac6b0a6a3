// What a training loop without a loader does before its forward pass, told from what it does after
// the step (metrics, logging): by the order of its lines.
#pragma once

#include <map>

#include "diagnose/profile.h"
#include "diagnose/stacks.h"
#include "model/run.h"

namespace flatout::diagnose {

class LoopOrder {
 public:
  /// A reading of the training thread.
  void add(model::StackId stack, const Cell& cell);

  /// Share of the time between one step's end and the next forward pass that goes to Python (the
  /// interpreter, and native code that holds its lock, as most of NumPy's does; an operator of a
  /// framework lets go of it), to libraries that are no framework (NumPy), and to drawing which
  /// samples come next, at lines of the loop that come before the forward pass. 0 where no function
  /// of the user's does both.
  double input_before_forward(const model::Run& run, const StackIndex& stacks) const;

 private:
  struct Time {
    // Of the input: in Python, and in native code in steps of the usual length.
    double input = 0, python = 0, native = 0, forward = 0;
    // Of the native code, as far as it was seen: what makes data, and the rest.
    double data = 0, does_other = 0;
    Time& operator+=(const Time& other);
  };
  std::map<model::StackId, Time> times_;
};

}  // namespace flatout::diagnose
