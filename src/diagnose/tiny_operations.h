// Which of the training thread's lines run operations so small that starting them takes the time.
#pragma once

#include <cstdint>
#include <functional>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "diagnose/view.h"

namespace flatout::diagnose {

// Interpreter time in the time on CPU from which operations count as tiny; and how far below what
// was read the truth may lie (standard errors).
inline constexpr double kTinyOps = 0.14, kSure = 1.28;

/// A share of so many readings, less so many standard errors.
double surely(double share, double readings, double errors);

/// The lines of the training thread's computing, by their share of time in the interpreter: big
/// operations have hardly any.
class TinyOperations {
 public:
  /// `aside`: what is told already.
  TinyOperations(const RunView& view, Profile::Filter aside);
  TinyOperations(const TinyOperations&) = delete;  // its filters know where it is
  TinyOperations& operator=(const TinyOperations&) = delete;

  /// Work of the step that these rules are about, on a core.
  bool runs(const Cell& c) const;
  // A backward pass is one line, however many operations it runs.
  bool at_tiny(const Cell& c) const;
  /// The same without backward passes that are at such a line only because a trainer has the loop:
  /// then it is the line of all that the trainer does in Python, too.
  bool tiny(const Cell& c) const;
  /// Whether it belongs to the piece of work that `named` is a line of: its function, what that
  /// calls, the lines that call it, and all else that is done in a call which is mostly that.
  std::function<bool(const Cell&)> with(model::FrameId named) const;
  /// Whether Python starts the operation, rather than a library's own loop.
  bool started_by_python(const Cell& c) const;
  /// The same of the forward pass: in the function that most of its time is spent in.
  bool started_by_python() const;

 private:
  struct Place {
    double readings = 0, python = 0;
    bool tiny() const;
    bool started_by_python() const;
    bool python_above(double share) const;
  };
  using Frames = std::vector<model::FrameId>;
  using Readings = std::unordered_map<model::FrameId, double>;

  uint64_t function_of(const Cell& c) const { return function_of(c.user); }
  uint64_t function_of(model::FrameId frame) const;
  Place place(uint64_t key) const;
  void each_stack(const std::function<void(model::StackId, double, const Frames&)>& look) const;
  std::unordered_set<model::FrameId> calls_for(const std::function<bool(model::FrameId)>& passes,
                                               double share) const;
  void look_at_lines();
  bool computing(const Cell& c) const;
  void sum_up_places();

  const RunView& view_;
  Profile::Filter aside_;
  Readings in_optimizer_, in_stalls_, in_all_;
  std::unordered_map<uint64_t, Place> places_;   // by line, its backward pass, and by function
  std::unordered_map<uint64_t, Place> forward_;  // by function, without the backward pass
};

}  // namespace flatout::diagnose
