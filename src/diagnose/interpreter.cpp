// What the training thread burns on the interpreter, its lock and its collector.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "base/text.h"
#include "diagnose/blame.h"
#include "diagnose/compiling.h"
#include "diagnose/findings.h"
#include "diagnose/input.h"
#include "diagnose/side_work.h"
#include "diagnose/whatif.h"

namespace flatout::diagnose {

using model::Finding;
using model::Part;
using model::Slice;
using model::SliceKind;

namespace {

// Interpreter time in the time on CPU from which operations count as tiny; and how far below what
// was read the truth may lie (standard errors).
constexpr double kTinyOps = 0.14, kSure = 1.28;
// Interpreter time in the forward pass below which its operations are not to blame.
constexpr double kPythonShare = 0.25;
constexpr double kMuchOverhead = 0.1;  // of the step
// Standard errors for lines that were picked from among many with less of it, unless the graph
// counts operations that are little longer than tiny ones.
constexpr double kSurer = 3;
// Interpreter time in a function up to which a library's own loop may start its operations (nn.GRU:
// a twentieth), so that nothing in Python makes them tiny.
constexpr double kLibrarysLoop = 0.05;
// Operations of the autograd graph that take less than this on average, forward and back, are
// mostly dispatch: launching one takes some 5 us each way.
constexpr double kTinyOp = 40e-6;
constexpr double kDispatch = 10e-6;
constexpr double kManyOps = 50;
// Of a call, what is done in a function from which all of the call is one piece of work with it;
// and in an expression's own loop.
constexpr double kMostOfCall = 0.7, kHalfOfCall = 0.5;
// Autograd's anomaly detection keeps a Python stack for each operation (12 us and 2.4 us for each
// of its frames) and looks for NaN in each gradient.
constexpr double kAnomaly = 40e-6;
// The backward pass of an operation takes up to this many times as long as the operation.
constexpr double kBackwardOps = 2.5;

/// A share of so many readings, less so many standard errors.
double surely(double share, double readings, double errors) {
  return share - errors * std::sqrt(share * (1 - share) / readings);
}

bool kernel_works(const Cell& c) { return in_kernel(c.act); }
bool collects(const Cell& c) { return c.act == Act::kGc; }

/// What passes as if it were in native code.
Profile::Filter at_lines_of(const Profile::Filter& filter) {
  return [filter](Cell c) {
    c.act = Act::kNative;
    return filter(c);
  };
}

/// Which lines of the training thread's computing run tiny operations: by their share of time in
/// the interpreter, for big operations have hardly any.
class TinyOperations {
 public:
  /// `aside`: what is told already.
  TinyOperations(const RunView& view, Profile::Filter aside)
      : view_(view), aside_(std::move(aside)) {
    look_at_lines();
    sum_up_places();
  }

  /// Work of the step that these rules are about, on a core.
  bool runs(const Cell& c) const {
    return computing(c) && (c.act == Act::kPython || c.act == Act::kNative);
  }
  // A backward pass is one line, however many operations it runs.
  bool at_tiny(const Cell& c) const {
    return runs(c) && (place(line_of(c)).tiny() ||
                       (c.part != Part::kBackward && place(function_of(c)).tiny()));
  }
  /// The same without backward passes that are at such a line only because a trainer has the loop:
  /// then it is the line of all that the trainer does in Python, too.
  bool tiny(const Cell& c) const {
    return at_tiny(c) && (c.part != Part::kBackward || place(backward_of(c)).tiny());
  }
  /// Whether it belongs to the piece of work that `named` is a line of: its function, what that
  /// calls, the lines that call it, and all else that is done in a call which is mostly that.
  std::function<bool(const Cell&)> with(model::FrameId named) const {
    const uint64_t function = function_of(named);
    std::unordered_set<model::FrameId> lines, callers;
    const auto in_function = [&](model::FrameId frame) { return function_of(frame) == function; };
    each_stack([&](model::StackId, double, const Frames& frames) {
      const auto inside = std::ranges::find_if(frames, in_function);
      if (inside == frames.end()) return;
      lines.insert(frames.front());
      const auto caller = std::find_if_not(inside, frames.end(), in_function);
      if (caller != frames.end() && *caller != kOthersLoop) callers.insert(*caller);
    });
    lines.insert(callers.begin(), callers.end());
    // A loop in an expression is a function of its own, and the line around it the work as a whole.
    auto around = calls_for(in_function, kHalfOfCall);
    std::erase_if(around, [&](model::FrameId frame) { return !callers.contains(frame); });
    const auto calls = calls_for(
        [&](model::FrameId frame) { return in_function(frame) || around.contains(frame); },
        kMostOfCall);
    each_stack([&](model::StackId, double, const Frames& frames) {
      if (std::ranges::any_of(frames, [&](model::FrameId f) { return calls.contains(f); })) {
        lines.insert(frames.front());
      }
    });
    return [this, function, lines = std::move(lines)](const Cell& c) {
      return function_of(c.user) == function || lines.contains(c.user);
    };
  }
  /// Whether Python starts the operation, rather than a library's own loop.
  bool started_by_python(const Cell& c) const {
    const auto known = forward_.find(function_of(c));
    return known != forward_.end() && known->second.started_by_python();
  }
  /// The same of the forward pass: in the function that most of its time is spent in.
  bool started_by_python() const {
    Place most;
    for (const auto& [function, place] : forward_) {
      if (place.readings > most.readings) most = place;
    }
    return most.started_by_python();
  }

 private:
  struct Place {
    double readings = 0, python = 0;
    bool tiny() const { return python_above(kTinyOps); }
    bool started_by_python() const { return python_above(kLibrarysLoop); }
    bool python_above(double share) const {
      return readings > 0 && surely(python / readings, readings, kSure) > share;
    }
  };

  static uint64_t line_of(const Cell& c) { return c.user; }
  /// The line's backward pass.
  static uint64_t backward_of(const Cell& c) { return uint64_t{1} << 62 | c.user; }
  uint64_t function_of(const Cell& c) const { return function_of(c.user); }
  uint64_t function_of(model::FrameId frame) const {
    const auto& frames = view_.run().frames;
    const model::Frame& f = frames[frame < frames.size() ? frame : 0];
    return uint64_t{1} << 63 | static_cast<uint64_t>(f.file) << 32 | f.function;
  }
  Place place(uint64_t key) const {
    const auto known = places_.find(key);
    return known == places_.end() ? Place{} : known->second;
  }
  static double of(const std::unordered_map<model::FrameId, double>& readings, const Cell& c) {
    const auto known = readings.find(c.user);
    return known == readings.end() ? 0 : known->second;
  }

  using Frames = std::vector<model::FrameId>;
  static constexpr model::FrameId kOthersLoop = 0;
  /// The training thread's stacks, with the time in each: the user's frames, inner ones first, and
  /// kOthersLoop between two where an installed package calls the inner one: a trainer's loop, say,
  /// which does much else besides.
  void each_stack(const std::function<void(model::StackId, double, const Frames&)>& look) const {
    const auto& nodes = view_.run().stacks;
    std::vector<double> times(nodes.size());
    for (const model::StackReading& r : view_.run().readings) {
      if (r.thread == view_.trainer() && r.stack < nodes.size()) times[r.stack] += r.weight_us;
    }
    Frames frames;
    for (model::StackId stack = 0; stack < nodes.size(); ++stack) {
      if (times[stack] <= 0) continue;
      frames.clear();
      bool others = false;
      for (model::StackId at = stack; at != 0; at = nodes[at].parent) {
        const model::FrameId frame = nodes[at].frame;
        const Owner owner = view_.stacks().owner(frame);
        if (owner == Owner::kPackage) others = true;
        if (owner != Owner::kUser) continue;
        if (others && !frames.empty()) frames.push_back(kOthersLoop);
        frames.push_back(frame);
        others = false;
      }
      look(stack, times[stack], frames);
    }
  }

  /// Lines of which more than a share of the time goes into frames that pass, and that do not
  /// train.
  std::unordered_set<model::FrameId> calls_for(const std::function<bool(model::FrameId)>& passes,
                                               double share) const {
    struct Call {
      double all = 0, inside = 0;
      bool trains = false;
    };
    std::unordered_map<model::FrameId, Call> calls;
    each_stack([&](model::StackId stack, double time, const Frames& frames) {
      const bool trains = (view_.stacks().traits(stack) & kInCollective) != 0;
      bool inside = false;
      for (const model::FrameId frame : frames) {
        inside = frame != kOthersLoop && (inside || passes(frame));
        if (frame == kOthersLoop) continue;
        Call& call = calls[frame];
        call.all += time;
        call.inside += inside ? time : 0;
        call.trains = call.trains || trains;
      }
    });
    std::unordered_set<model::FrameId> out;
    for (const auto& [frame, call] : calls) {
      if (!call.trains && call.inside > share * call.all) out.insert(frame);
    }
    return out;
  }

  // An optimizer's own loop over parameters is the framework's business. A reading takes a moment:
  // some of that line fall into the part before. Lines of a few steps, which take far longer than
  // the others, are stalls; a collection makes a step longer, whichever line sets it off.
  void look_at_lines() {
    for (const Cell& c : view_.profile().cells()) {
      if (c.role != Role::kTrainer || !on_cpu(c.act)) continue;
      const double readings = static_cast<double>(c.readings);
      in_all_[c.user] += readings;
      if (c.part == Part::kOptimizer) in_optimizer_[c.user] += readings;
      if (c.part != Part::kBackward && c.slow_step && c.act != Act::kGc) {
        in_stalls_[c.user] += readings;
      }
    }
  }
  bool computing(const Cell& c) const {
    return c.role == Role::kTrainer && c.part != Part::kInputWait && c.part != Part::kCheckpoint &&
           c.part != Part::kOptimizer && (c.traits & kNotComputing) == 0 && !aside_(c) &&
           of(in_optimizer_, c) <= 0.5 * of(in_all_, c) &&
           of(in_stalls_, c) <= 0.8 * of(in_all_, c);
  }
  void sum_up_places() {
    // TensorFlow's and JAX' threads compute while the one that called them waits: a line that waits
    // for them runs no tiny operations.
    const bool graphs =
        !view_.run().fact("tensorflow.version").empty() || !view_.run().fact("jax.version").empty();
    for (const Cell& c : view_.profile().cells()) {
      const bool waits = graphs && computing(c) && c.act == Act::kLock;
      if (!waits && !runs(c)) continue;
      const double readings = static_cast<double>(c.readings);
      const double python = c.act == Act::kPython ? readings : 0;
      const auto add = [&](Place& place) {
        place.readings += readings;
        place.python += python;
      };
      if (waits || c.part != Part::kBackward) add(forward_[function_of(c)]);
      if (c.part == Part::kBackward) add(places_[backward_of(c)]);
      add(places_[line_of(c)]);
      add(places_[function_of(c)]);
    }
  }

  const RunView& view_;
  Profile::Filter aside_;
  std::unordered_map<model::FrameId, double> in_optimizer_, in_stalls_, in_all_;
  std::unordered_map<uint64_t, Place> places_;   // by line, its backward pass, and by function
  std::unordered_map<uint64_t, Place> forward_;  // by function, without the backward pass
};

/// What makes few operations of many, in the library that the job computes with.
std::string_view compiler_of(const model::Run& run) {
  // PyTorch's DataLoader feeds others, too.
  const bool torch = graph_operations(run) > 0;
  if (!torch && !run.fact("tensorflow.version").empty()) return "tf.function";
  if (!torch && !run.fact("jax.version").empty()) return "jax.jit";
  return "torch.compile";
}

void detect_python_bound(const RunView& view, Findings& findings) {
  if (!view.has_steps()) return;                 // all start-up is Python
  if (findings.has("cpu.python_bound")) return;  // the calls that all of it is in
  // While threads fight for the interpreter, the time in its lines is theirs as well.
  if (findings.has("input.gil")) return;
  // What a session does with what it is fed is copying.
  if (findings.has("input.feed_dict")) return;
  const TinyOperations operations(view, told_side_work(view, findings));
  const auto at_tiny = [&](const Cell& c) { return operations.at_tiny(c); };
  const auto tiny = [&](const Cell& c) { return operations.tiny(c); };
  const auto runs_backward = [&](const Cell& c) {
    return operations.runs(c) && c.part == Part::kBackward;
  };
  const auto runs_forward = [&](const Cell& c) {
    return operations.runs(c) && c.part != Part::kBackward;
  };
  const auto a_step = [&](const Profile::Filter& filter) {
    return view.per_step(Role::kTrainer, filter);
  };
  const double ops = graph_operations(view.run());  // however few readings there are
  const double forward = a_step(runs_forward);
  const double backward = a_step([&](const Cell& c) { return runs_backward(c) && !tiny(c); });
  // The backward pass of tiny operations is as many tiny operations, run without the interpreter.
  // (What follows the forward pass, such as norms and averages of weights, has none.)
  const auto has_backward = [&](const Cell& c) {
    return runs_forward(c) && (c.part == Part::kForward || c.part == Part::kCompute);
  };
  const double differentiated = a_step(has_backward);
  const auto with_backward = [&](const Profile::Filter& filter) {
    const double there = a_step([&](const Cell& c) { return filter(c) && has_backward(c); });
    const double most = ops > 0 ? kDispatch * ops : backward;
    const double share = differentiated > 0 ? there / differentiated : 0;
    return a_step(filter) + std::min({backward * share, kBackwardOps * there, most});
  };
  const auto interpreters = [&](const Profile::Filter& filter) {
    return a_step([&](const Cell& c) { return filter(c) && c.act == Act::kPython; });
  };
  const double in_lines = a_step(at_tiny), python = interpreters(at_tiny);
  const int64_t readings = view.readings(at_tiny);
  const double sure = ops >= kManyOps && forward + backward < 2 * kTinyOp * ops ? kSure : kSurer;
  // Beside big operations such lines are a cause of their own where they are much of the step. Of
  // many lines that are not, some seem so by chance.
  const bool picked = readings > 0 && with_backward(tiny) > kMuchOverhead * view.steps().mean &&
                      surely(python / in_lines, static_cast<double>(readings), sure) > kTinyOps;
  const double among = picked ? in_lines : std::max(forward, in_lines);
  const auto seen_among =
      static_cast<double>(picked || forward < in_lines ? readings : view.readings(runs_forward));
  const bool by_lines = readings >= kFewReadings && python >= kPythonShare * among &&
                        surely(python / among, seen_among, sure) > kTinyOps;
  const bool tiny_ops =
      ops >= kManyOps && forward + backward > 0 && forward + backward < kTinyOp * ops;
  const bool by_ops = tiny_ops && operations.started_by_python();
  // Beside big operations, Python starts no more of them than there is time for in its functions.
  const auto of_python = [&](const Cell& c) {
    return runs_forward(c) && operations.started_by_python(c);
  };
  const double dispatch = !tiny_ops ? 0
                          : by_ops
                              ? std::min(forward + backward, kDispatch * ops)
                              : std::min(kDispatch * ops, (1 + kBackwardOps) * a_step(of_python));
  const bool by_places = !by_ops && view.readings(of_python) >= kFewReadings &&
                         dispatch > kMuchOverhead * view.steps().mean;
  const bool anomaly = view.run().fact("torch.anomaly") == "True";
  if (!by_lines && !by_ops && !by_places && !(anomaly && ops > 0)) return;
  Profile::Filter lines = tiny;
  if (by_ops && !by_lines) lines = [&](const Cell& c) { return operations.runs(c); };
  if (by_places && !by_lines) lines = of_python;
  // Where not all operations are tiny, one piece of work is named, and what others cost stays.
  double beside = 0;  // on a core for it, and neither in its lines nor in what they call
  if (const auto hottest = view.profile().hottest(lines, view.run()); hottest && !by_ops) {
    lines = [lines, with = operations.with(hottest->frame)](const Cell& c) {
      return lines(c) && with(c);
    };
    // The collector runs since they make so many objects, and the kernel works for these. Which of
    // them has more to do than the interpreter is a cause of its own.
    const auto at_lines = at_lines_of(lines);
    const double alone = interpreters(lines);
    for (const auto& act : {kernel_works, collects}) {
      const double more = a_step([&](const Cell& c) { return act(c) && at_lines(c); });
      if (more < alone) beside += more;
    }
  }
  // Lines are found by their readings, a few of each: what so many operations cost at least is
  // known. What the backward pass has of them is not, but what they take on a core is.
  double overhead = 0;
  if (by_lines || by_ops || by_places) {
    const double unread = a_step([&](const Cell& c) { return runs_forward(c) && is_unread(c); });
    const double share = unread < forward ? unread / (forward - unread) : 0;
    const double more = share * a_step([&](const Cell& c) { return lines(c) && runs_forward(c); });
    overhead = std::max({with_backward(lines) + more, a_step(lines) + beside + more, dispatch});
  }
  // Of operations that are all known, what they compute beyond that stays.
  if (by_ops) {
    const auto runs = [&](const Cell& c) { return operations.runs(c); };
    overhead = std::min({overhead, kDispatch * ops + interpreters(runs), a_step(runs)});
  }
  if (anomaly) overhead = std::max(overhead, kAnomaly * ops);
  const WhatIf whatif(view);
  Finding* f = findings.add("cpu.python_bound",
                            "The interpreter's work on many tiny operations bounds the step", 0.85,
                            whatif.saved_by({.trainer = overhead, .trainer_cpu = overhead}));
  if (f == nullptr) return;
  // The line of a backward pass is the same whatever it goes through. Where all operations are
  // tiny, lines that show it but run few of them are not to blame.
  const Profile::Filter blamed = by_ops ? Profile::Filter(tiny) : lines;
  const auto ahead = [&](const Cell& c) { return blamed(c) && c.part != Part::kBackward; };
  const bool few = by_ops && a_step(ahead) < kPythonShare * forward;
  f->where = view.where(few ? Profile::Filter(runs_forward) : ahead);
  if (!f->where) f->where = view.where(blamed);
  if (!f->where) f->where = view.where(runs_forward);
  const int64_t seen = view.readings(lines);
  // Of few long ones it says nothing: what is tiny is outside the graph.
  if (tiny_ops || anomaly) {
    const double each = (forward + backward) / ops;
    evidence(*f, fmt::format("{} operations a step", format_number(ops)), ops, "operations",
             "agent.graph", 1);
    evidence(*f, fmt::format("each takes {}, back and forth", ms(each)), each * 1e6, "us",
             "agent.graph", seen);
  }
  if (anomaly) {
    f->title = "Autograd's anomaly detection keeps a stack for each operation";
    f->where = setting_line(view.run(), "torch.anomaly.set_at");
    evidence(*f, "torch.is_anomaly_enabled()", 1, "", "agent.settings", 1);
    remedy(*f, "no_anomaly",
           "Switch it off (set_detect_anomaly, Trainer(detect_anomaly=...)): it is for the search "
           "for a NaN.");
    return;
  }
  evidence(*f, fmt::format("{} a step run in lines of tiny operations", ms(overhead)),
           overhead * 1e3, "ms", "stacks", seen);
  const double alone = interpreters(lines);
  evidence(*f, fmt::format("the interpreter alone takes {} of it", ms(alone)), alone * 1e3, "ms",
           "stacks", seen);
  if (beside > 0.1 * overhead) {
    evidence(*f, fmt::format("the kernel and the collector take {} of it", ms(beside)),
             beside * 1e3, "ms", "stacks", seen);
  }
  remedy(*f, "batching",
         fmt::format("Do the same in few big operations: vectorise, fuse, {}.",
                     compiler_of(view.run())));
}

/// Whether the job itself made the collector run more often than Python's own thresholds (700, 10,
/// 10) would have it.
bool collects_eagerly(const model::Run& run) {
  const auto parts = split(run.fact("gc.threshold"), ',');
  if (parts.size() != 3) return false;
  const auto young = parse_number<double>(parts[0]), middle = parse_number<double>(parts[1]);
  const auto old = parse_number<double>(parts[2]);
  if (!young || !middle || !old || *young <= 0) return false;
  return *young < 700 || *young * *middle * *old < 0.5 * 700 * 10 * 10;
}

void detect_gc(const RunView& view, Findings& findings) {
  if (!view.has_steps()) return;
  double slices = 0, longest = 0, collected = 0;
  int64_t count = 0, generation = 0;
  size_t step = 0;
  const auto& steady = view.steps().steady;
  for (const Slice& s : view.run().slices) {
    if (s.kind != SliceKind::kGc || s.thread >= view.run().threads.size()) continue;
    // A collection on any thread of the process holds the interpreter lock.
    if (view.run().threads[s.thread].process != view.trainer_process()) continue;
    while (step < steady.size() && steady[step]->end < s.end) ++step;
    if (step >= steady.size()) break;
    if (s.begin < steady[step]->begin) continue;
    slices += to_s(s.length());
    longest = std::max(longest, to_s(s.length()));
    collected += static_cast<double>(std::max<int64_t>(s.value2, 0));
    generation = std::max(generation, s.value);
    ++count;
  }
  const auto collecting = [](const Cell& c) {
    return c.role == Role::kTrainer && c.act == Act::kGc;
  };
  const double read = view.per_step(Role::kTrainer, collecting);
  const double n = static_cast<double>(std::max<int64_t>(view.steps().count, 1));
  const bool measured = count > 0;
  const double cost = measured ? slices / n : read;
  if (!measured && view.readings(collecting) < kFewReadings) return;
  Finding* f = findings.add("cpu.gc", "Garbage-collector pauses stall the steps", 0.95, cost);
  if (f == nullptr) return;
  if (collects_eagerly(view.run())) f->where = setting_line(view.run(), "gc.threshold.set_at");
  if (!f->where) f->where = view.where(collecting);
  evidence(*f, fmt::format("collecting takes {} a step", ms(cost)), cost * 1e3, "ms",
           measured ? "agent.gc" : "stacks", measured ? count : view.readings(collecting));
  if (measured) {
    evidence(*f, fmt::format("the longest pause took {}", ms(longest)), longest * 1e3, "ms",
             "agent.gc", count);
    evidence(*f, fmt::format("up to generation {}", generation), static_cast<double>(generation),
             "generation", "agent.gc", count);
    evidence(*f, fmt::format("{} objects were freed by it", format_number(collected)), collected,
             "objects", "agent.gc", count);
  }
  remedy(*f, "gc_freeze", "Call gc.freeze() after start-up, raise gc.set_threshold().");
}

/// Threads beside the steps that are never at rest: what they do is not made for a step, and no
/// more of it comes with more steps.
int64_t never_at_rest(const RunView& view) {
  constexpr double kNever = 0.9;
  struct Time {
    double seen = 0, busy = 0;
  };
  std::unordered_map<model::ThreadId, Time> threads;
  for (const model::StackReading& r : view.run().readings) {
    if (view.role(r.thread) != Role::kHelper || r.at < view.steps().windows.front().begin) continue;
    const Act act = act_of(r, view.stacks().traits(r.stack));
    Time& time = threads[r.thread];
    time.seen += r.weight_us * 1e-6;
    if (works(act) || act == Act::kGil) time.busy += r.weight_us * 1e-6;
  }
  return std::ranges::count_if(threads, [&](const auto& thread) {
    return thread.second.seen > kNever * view.seconds() &&
           thread.second.busy > kNever * thread.second.seen;
  });
}

/// Of `wait` per step what is saved where the work that holds the lock moves to processes: there it
/// takes as long, on the cores that there are.
double saved_elsewhere(const RunView& view, double wait) {
  const auto restless = static_cast<double>(never_at_rest(view));
  const double helpers = restless > 0 ? 0 : view.per_step(Role::kHelper, holds_gil);
  const double aside = helpers + view.per_step(Role::kProducer, holds_gil);
  const double own = view.steps().mean - wait, cores = std::max(view.cpu().usable - restless, 1.0);
  const double then =
      std::max(own, (own + aside) / cores) * WhatIf(view).beside(restless + aside / own);
  return std::clamp(view.steps().mean - then, 0.0, wait);
}

/// The training thread waits for the interpreter lock that other threads of its process hold.
void detect_gil(const RunView& view, Findings& findings) {
  if (findings.has("input.gil")) return;
  const auto waits = [](const Cell& c) { return c.role == Role::kTrainer && c.act == Act::kGil; };
  const int64_t readings = view.readings(waits);
  if (readings < kFewReadings) return;
  const double wait = view.per_step(Role::kTrainer, waits);
  // Told already.
  if (findings.has("input.collate") && gil_for_passing(view) > 0.5 * wait) return;
  Finding* f =
      findings.add("input.gil", "Other threads hold the GIL that the training thread wants", 0.9,
                   view.has_steps() ? saved_elsewhere(view, wait) : wait);
  if (f == nullptr) return;
  f->where = view.where(holds_gil);
  evidence(*f, fmt::format("the training thread waits {} a step for the GIL", ms(wait)), wait * 1e3,
           "ms", "stacks", readings);
  unlock(view, *f, "Move that work into processes, or into code that releases the GIL.");
}

}  // namespace

void detect_interpreter(const RunView& view, Findings& findings) {
  detect_gil(view, findings);
  detect_fit_calls(view, findings);
  detect_compiling(view, findings);
  detect_eager(view, findings);
  detect_python_bound(view, findings);
  detect_gc(view, findings);
}

}  // namespace flatout::diagnose
