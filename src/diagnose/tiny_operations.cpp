#include "diagnose/tiny_operations.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "diagnose/blame.h"

namespace flatout::diagnose {

using model::Part;

namespace {

// Interpreter time in a function up to which a library's own loop may start its operations (nn.GRU:
// a twentieth), so that nothing in Python makes them tiny.
constexpr double kLibrarysLoop = 0.05;
// Of a call, what is done in a function from which all of the call is one piece of work with it;
// and in an expression's own loop.
constexpr double kMostOfCall = 0.7, kHalfOfCall = 0.5;
constexpr model::FrameId kOthersLoop = 0;

uint64_t line_of(const Cell& c) { return c.user; }
/// The line's backward pass.
uint64_t backward_of(const Cell& c) { return uint64_t{1} << 62 | c.user; }

double of(const std::unordered_map<model::FrameId, double>& readings, const Cell& c) {
  const auto known = readings.find(c.user);
  return known == readings.end() ? 0 : known->second;
}

}  // namespace

double surely(double share, double readings, double errors) {
  return share - errors * std::sqrt(share * (1 - share) / readings);
}

bool TinyOperations::Place::tiny() const { return python_above(kTinyOps); }
bool TinyOperations::Place::started_by_python() const { return python_above(kLibrarysLoop); }
bool TinyOperations::Place::python_above(double share) const {
  return readings > 0 && surely(python / readings, readings, kSure) > share;
}

TinyOperations::TinyOperations(const RunView& view, Profile::Filter aside)
    : view_(view), aside_(std::move(aside)) {
  look_at_lines();
  sum_up_places();
}

// An optimizer's own loop over parameters is the framework's business. A reading takes a moment:
// some of that line fall into the part before. Lines of a few steps, which take far longer than
// the others, are stalls; a collection makes a step longer, whichever line sets it off.
void TinyOperations::look_at_lines() {
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

bool TinyOperations::computing(const Cell& c) const {
  return c.role == Role::kTrainer && c.part != Part::kInputWait && c.part != Part::kCheckpoint &&
         c.part != Part::kOptimizer && (c.traits & kNotComputing) == 0 && !aside_(c) &&
         of(in_optimizer_, c) <= 0.5 * of(in_all_, c) && of(in_stalls_, c) <= 0.8 * of(in_all_, c);
}

void TinyOperations::sum_up_places() {
  // TensorFlow's and JAX' threads compute while the one that called them waits: a line that waits
  // for them runs no tiny operations.
  const bool graphs = view_.pool_takes_work();
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

uint64_t TinyOperations::function_of(model::FrameId frame) const {
  return uint64_t{1} << 63 | function_key(view_.run(), frame);
}

TinyOperations::Place TinyOperations::place(uint64_t key) const {
  const auto known = places_.find(key);
  return known == places_.end() ? Place{} : known->second;
}

/// The training thread's stacks, with the time in each: the user's frames, inner ones first, and
/// kOthersLoop between two where an installed package calls the inner one: a trainer's loop, say,
/// which does much else besides.
void TinyOperations::each_stack(
    const std::function<void(model::StackId, double, const Frames&)>& look) const {
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
std::unordered_set<model::FrameId> TinyOperations::calls_for(
    const std::function<bool(model::FrameId)>& passes, double share) const {
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

bool TinyOperations::runs(const Cell& c) const {
  return computing(c) && (c.act == Act::kPython || c.act == Act::kNative);
}

bool TinyOperations::at_tiny(const Cell& c) const {
  return runs(c) &&
         (place(line_of(c)).tiny() || (c.part != Part::kBackward && place(function_of(c)).tiny()));
}

bool TinyOperations::tiny(const Cell& c) const {
  return at_tiny(c) && (c.part != Part::kBackward || place(backward_of(c)).tiny());
}

std::function<bool(const Cell&)> TinyOperations::with(model::FrameId named) const {
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
  const auto calls =
      calls_for([&](model::FrameId frame) { return in_function(frame) || around.contains(frame); },
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

bool TinyOperations::started_by_python(const Cell& c) const {
  const auto known = forward_.find(function_of(c));
  return known != forward_.end() && known->second.started_by_python();
}

bool TinyOperations::started_by_python() const {
  Place most;
  for (const auto& [function, place] : forward_) {
    if (place.readings > most.readings) most = place;
  }
  return most.started_by_python();
}

}  // namespace flatout::diagnose
