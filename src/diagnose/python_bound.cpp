// Many tiny operations: what the interpreter takes to start them, and at which lines.
#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <string_view>

#include "base/text.h"
#include "diagnose/blame.h"
#include "diagnose/findings.h"
#include "diagnose/framework.h"
#include "diagnose/side_work.h"
#include "diagnose/tiny_operations.h"
#include "diagnose/whatif.h"

namespace flatout::diagnose {

using model::Finding;
using model::Part;

namespace {

// Interpreter time in the forward pass below which its operations are not to blame.
constexpr double kPythonShare = 0.25;
constexpr double kMuchOverhead = 0.1;  // of the step
// Standard errors for lines that were picked from among many with less of it, unless the graph
// counts operations that are little longer than tiny ones.
constexpr double kSurer = 3;
// Operations of the autograd graph that take less than this on average, forward and back, are
// mostly dispatch: launching one takes some 5 us each way.
constexpr double kTinyOp = 40e-6;
constexpr double kDispatch = 10e-6;
constexpr double kManyOps = 50;
// Autograd's anomaly detection keeps a Python stack for each operation (12 us and 2.4 us for each
// of its frames) and looks for NaN in each gradient.
constexpr double kAnomaly = 40e-6;
// The backward pass of an operation takes up to this many times as long as the operation.
constexpr double kBackwardOps = 2.5;

bool kernel_works(const Cell& c) { return in_kernel(c.act); }
bool collects(const Cell& c) { return c.act == Act::kGc; }

/// What passes as if it were in native code.
Profile::Filter at_lines_of(const Profile::Filter& filter) {
  return [filter](Cell c) {
    c.act = Act::kNative;
    return filter(c);
  };
}

/// What makes few operations of many, in the library that the job computes with.
std::string_view compiler_of(const model::Run& run) {
  switch (framework(run)) {
    case Framework::kTensorFlow:
      return "tf.function";
    case Framework::kJax:
      return "jax.jit";
    default:
      return "torch.compile";
  }
}

/// What the tiny operations of one run cost. They are told by lines that the interpreter has too
/// much of, by the graph's count of operations (all are tiny then), or, where that counts and big
/// ones lie between, by the places that start them in Python.
class PythonBound {
 public:
  PythonBound(const RunView& view, const Findings& findings)
      : view_(view),
        operations_(view, told_side_work(view, findings)),
        ops_(graph_operations(view.run())),
        anomaly_(view.run().fact("torch.anomaly") == "True") {
    forward_ = a_step(forward_work());
    backward_ = a_step([this](const Cell& c) {
      return operations_.runs(c) && c.part == Part::kBackward && !operations_.tiny(c);
    });
    differentiated_ = a_step([this](const Cell& c) { return has_backward(c); });
    look_at_operations();
    look_at_lines();
    if (is_told()) choose_lines();
  }
  PythonBound(const PythonBound&) = delete;  // its filters know where it is
  PythonBound& operator=(const PythonBound&) = delete;

  bool is_told() const { return by_lines_ || by_ops_ || by_places_ || (anomaly_ && ops_ > 0); }
  void tell(Findings& findings) const;

 private:
  double a_step(const Profile::Filter& filter) const {
    return view_.per_step(Role::kTrainer, filter);
  }
  double interpreters(const Profile::Filter& filter) const {
    return a_step([&](const Cell& c) { return filter(c) && c.act == Act::kPython; });
  }
  bool runs_forward(const Cell& c) const {
    return operations_.runs(c) && c.part != Part::kBackward;
  }
  // What follows the forward pass, such as norms and averages of weights, has none.
  bool has_backward(const Cell& c) const {
    return runs_forward(c) && (c.part == Part::kForward || c.part == Part::kCompute);
  }
  Profile::Filter all_work() const {
    return [this](const Cell& c) { return operations_.runs(c); };
  }
  Profile::Filter forward_work() const {
    return [this](const Cell& c) { return runs_forward(c); };
  }
  Profile::Filter tiny_work() const {
    return [this](const Cell& c) { return operations_.tiny(c); };
  }
  Profile::Filter work_of_python() const {
    return [this](const Cell& c) { return runs_forward(c) && operations_.started_by_python(c); };
  }

  void look_at_operations();
  void look_at_lines();
  void choose_lines();
  double with_backward(const Profile::Filter& filter) const;
  double of_lines() const;
  double overhead() const;
  std::optional<model::Where> where() const;
  void tell_anomaly(Finding& f) const;

  const RunView& view_;
  const TinyOperations operations_;
  const double ops_;  // of the graph, a step: however few readings there are
  const bool anomaly_;
  double forward_ = 0, backward_ = 0, differentiated_ = 0;  // seconds a step
  bool tiny_ops_ = false;                                   // on average, in the graph
  bool by_ops_ = false, by_places_ = false, by_lines_ = false;
  double dispatch_ = 0;    // of the graph's operations, at least
  Profile::Filter lines_;  // that are to blame
  double beside_ = 0;      // on a core for them, and neither in these lines nor in what they call
};

void PythonBound::look_at_operations() {
  const double all = forward_ + backward_;
  tiny_ops_ = ops_ >= kManyOps && all > 0 && all < kTinyOp * ops_;
  if (!tiny_ops_) return;
  by_ops_ = operations_.started_by_python();
  if (by_ops_) {
    dispatch_ = std::min(all, kDispatch * ops_);
    return;
  }
  // Beside big operations, Python starts no more of them than there is time for in its functions.
  dispatch_ = std::min(kDispatch * ops_, (1 + kBackwardOps) * a_step(work_of_python()));
  by_places_ = view_.readings(work_of_python()) >= kFewReadings &&
               dispatch_ > kMuchOverhead * view_.steps().mean;
}

void PythonBound::look_at_lines() {
  const auto at_tiny = [this](const Cell& c) { return operations_.at_tiny(c); };
  const int64_t readings = view_.readings(at_tiny);
  if (readings < kFewReadings) return;
  const double in_lines = a_step(at_tiny), python = interpreters(at_tiny);
  const bool little_longer = ops_ >= kManyOps && forward_ + backward_ < 2 * kTinyOp * ops_;
  const double errors = little_longer ? kSure : kSurer;
  const auto seen = static_cast<double>(readings);
  // Beside big operations such lines are a cause of their own where they are much of the step. Of
  // many lines that are not, some seem so by chance.
  const bool picked = with_backward(tiny_work()) > kMuchOverhead * view_.steps().mean &&
                      surely(python / in_lines, seen, errors) > kTinyOps;
  const bool alone = picked || forward_ < in_lines;
  const double among = alone ? in_lines : forward_;
  const double seen_among = alone ? seen : static_cast<double>(view_.readings(forward_work()));
  by_lines_ =
      python >= kPythonShare * among && surely(python / among, seen_among, errors) > kTinyOps;
}

/// Where not all operations are tiny, one piece of work is named, and what others cost stays.
void PythonBound::choose_lines() {
  lines_ = by_lines_    ? tiny_work()
           : by_ops_    ? all_work()
           : by_places_ ? work_of_python()
                        : tiny_work();
  if (by_ops_) return;
  const auto hottest = view_.profile().hottest(lines_, view_.run());
  if (!hottest) return;
  lines_ = [lines = lines_, with = operations_.with(hottest->frame)](const Cell& c) {
    return lines(c) && with(c);
  };
  // The collector runs since they make so many objects, and the kernel works for these. Which of
  // them has more to do than the interpreter is a cause of its own.
  const auto at_lines = at_lines_of(lines_);
  const double alone = interpreters(lines_);
  for (const auto& act : {kernel_works, collects}) {
    const double more = a_step([&](const Cell& c) { return act(c) && at_lines(c); });
    if (more < alone) beside_ += more;
  }
}

/// The backward pass of tiny operations is as many tiny operations, run without the interpreter.
double PythonBound::with_backward(const Profile::Filter& filter) const {
  const double there = a_step([&](const Cell& c) { return filter(c) && has_backward(c); });
  const double most = ops_ > 0 ? kDispatch * ops_ : backward_;
  const double share = differentiated_ > 0 ? there / differentiated_ : 0;
  return a_step(filter) + std::min({backward_ * share, kBackwardOps * there, most});
}

/// Lines are found by their readings, a few of each: what so many operations cost at least is
/// known. What the backward pass has of them is not, but what they take on a core is.
double PythonBound::of_lines() const {
  const double unread = a_step([this](const Cell& c) { return runs_forward(c) && is_unread(c); });
  const double share = unread < forward_ ? unread / (forward_ - unread) : 0;
  const double more =
      share * a_step([this](const Cell& c) { return lines_(c) && runs_forward(c); });
  return std::max({with_backward(lines_) + more, a_step(lines_) + beside_ + more, dispatch_});
}

double PythonBound::overhead() const {
  double overhead = by_lines_ || by_ops_ || by_places_ ? of_lines() : 0;
  // Of operations that are all known, what they compute beyond that stays.
  if (by_ops_) {
    overhead =
        std::min({overhead, kDispatch * ops_ + interpreters(all_work()), a_step(all_work())});
  }
  return anomaly_ ? std::max(overhead, kAnomaly * ops_) : overhead;
}

/// The line of a backward pass is the same whatever it goes through. Where all operations are tiny,
/// lines that show it but run few of them are not to blame.
std::optional<model::Where> PythonBound::where() const {
  const Profile::Filter blamed = by_ops_ ? tiny_work() : lines_;
  const Profile::Filter ahead = [&](const Cell& c) {
    return blamed(c) && c.part != Part::kBackward;
  };
  const bool few = by_ops_ && a_step(ahead) < kPythonShare * forward_;
  for (const Profile::Filter& filter : {few ? forward_work() : ahead, blamed, forward_work()}) {
    if (auto found = view_.where(filter)) return found;
  }
  return std::nullopt;
}

void PythonBound::tell_anomaly(Finding& f) const {
  f.title = "Autograd's anomaly detection keeps a stack for each operation";
  f.where = setting_line(view_.run(), "torch.anomaly.set_at");
  evidence(f, "torch.is_anomaly_enabled()", 1, "", "agent.settings", 1);
  remedy(f, "no_anomaly",
         "Switch it off (set_detect_anomaly, Trainer(detect_anomaly=...)): it is for the search "
         "for a NaN.");
}

void PythonBound::tell(Findings& findings) const {
  const double overhead = this->overhead();
  Finding* f = findings.add("cpu.python_bound",
                            "The interpreter's work on many tiny operations bounds the step", 0.85,
                            WhatIf(view_).saved_by({.trainer = overhead, .trainer_cpu = overhead}));
  if (f == nullptr) return;
  f->where = where();
  const int64_t seen = view_.readings(lines_);
  // Of few long ones it says nothing: what is tiny is outside the graph.
  if (tiny_ops_ || anomaly_) {
    const double each = (forward_ + backward_) / ops_;
    evidence(*f, fmt::format("{} operations a step", format_number(ops_)), ops_, "operations",
             "agent.graph", 1);
    evidence(*f, fmt::format("each takes {}, back and forth", ms(each)), each * 1e6, "us",
             "agent.graph", seen);
  }
  if (anomaly_) {
    tell_anomaly(*f);
    return;
  }
  evidence(*f, fmt::format("{} a step run in lines of tiny operations", ms(overhead)),
           overhead * 1e3, "ms", "stacks", seen);
  const double alone = interpreters(lines_);
  evidence(*f, fmt::format("the interpreter alone takes {} of it", ms(alone)), alone * 1e3, "ms",
           "stacks", seen);
  if (beside_ > 0.1 * overhead) {
    evidence(*f, fmt::format("the kernel and the collector take {} of it", ms(beside_)),
             beside_ * 1e3, "ms", "stacks", seen);
  }
  remedy(*f, "batching",
         fmt::format("Do the same in few big operations: vectorise, fuse, {}.",
                     compiler_of(view_.run())));
}

}  // namespace

void detect_python_bound(const RunView& view, Findings& findings) {
  if (!view.has_steps()) return;                 // all start-up is Python
  if (findings.has("cpu.python_bound")) return;  // the calls that all of it is in
  // While threads fight for the interpreter, the time in its lines is theirs as well.
  if (findings.has("input.gil")) return;
  // What a session does with what it is fed is copying.
  if (findings.has("input.feed_dict")) return;
  const PythonBound bound(view, findings);
  if (bound.is_told()) bound.tell(findings);
}

}  // namespace flatout::diagnose
