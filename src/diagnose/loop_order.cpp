#include "diagnose/loop_order.h"

#include <optional>
#include <set>
#include <utility>

#include "base/contains.h"
#include "model/source_files.h"

namespace flatout::diagnose {
namespace {

using model::FrameId;
using model::StackId;
using model::StringId;

constexpr double kMost = 0.8;      // of the time, that is in one function
constexpr double kAForward = 0.2;  // of the forward passes' time, from which a line is one
constexpr size_t kDeepest = 4096;  // frames; also what ends a cycle

using Function = std::pair<StringId, StringId>;  // file, name

/// Calls see(frame's id, depth) for the Python frames of a stack, the innermost first; depth counts
/// from there.
template <class See>
void for_each_frame(const model::Run& run, StackId stack, const See& see) {
  for (size_t depth = 0; stack != 0 && stack < run.stacks.size() && depth < kDeepest; ++depth) {
    const FrameId id = run.stacks[stack].frame;
    if (id < run.frames.size() && run.frames[id].line > 0) see(id, depth);
    stack = run.stacks[stack].parent;
  }
}

/// Whether the innermost Python frame is an installed library's that is no framework: NumPy's,
/// SciPy's, pandas'.
bool in_data_library(const model::Run& run, StackId stack) {
  while (stack != 0 && stack < run.stacks.size()) {
    const model::Frame& f = run.frames[run.stacks[stack].frame];
    if (f.line > 0) {
      const std::string_view file = run.string(f.file);
      return model::is_installed(file) && !model::in_framework(file);
    }
    stack = run.stacks[stack].parent;
  }
  return false;
}

enum class Under : uint8_t { kUnseen, kData, kOther };

/// What the native code under the innermost Python frame does, where that was seen: whether it
/// makes data. NumPy does, and what draws the samples that come next out of all (torch.randperm,
/// torch.multinomial), as no model would.
Under native_under(const model::Run& run, StackId stack) {
  Under out = Under::kUnseen;
  while (stack != 0 && stack < run.stacks.size()) {
    const model::Frame& f = run.frames[run.stacks[stack].frame];
    if (f.line > 0) return out;
    const std::string_view function = run.string(f.function), file = run.string(f.file);
    if (contains_any(function, {"randperm", "multinomial"}) ||
        contains_any(file, {"/numpy/", "_umath."})) {
      return Under::kData;
    }
    if (!function.starts_with('[')) out = Under::kOther;
    stack = run.stacks[stack].parent;
  }
  return Under::kUnseen;
}

}  // namespace

LoopOrder::Time& LoopOrder::Time::operator+=(const Time& other) {
  input += other.input;
  python += other.python;
  native += other.native;
  data += other.data;
  does_other += other.does_other;
  forward += other.forward;
  return *this;
}

void LoopOrder::add(StackId stack, const Cell& cell) {
  if (cell.part == model::Part::kForward) times_[stack].forward += cell.seconds;
  if (cell.part != model::Part::kInputWait) return;
  Time& time = times_[stack];
  time.input += cell.seconds;
  if (cell.act == Act::kPython) time.python += cell.seconds;
  // What comes round in long steps only is a stall.
  if (!cell.slow_step && (cell.act == Act::kNative || in_kernel(cell.act))) {
    time.native += cell.seconds;
  }
}

double LoopOrder::input_before_forward(const model::Run& run, const StackIndex& stacks) const {
  // The loop is in the innermost function that is in nearly all of both.
  struct Seen {
    Time time;
    double depth = 0;  // summed, weighed by time
  };
  std::map<Function, Seen> functions;
  Time all;
  for (const auto& at : times_) {
    const Time& time = at.second;
    all += time;
    std::set<Function> in;  // it may call itself
    for_each_frame(run, at.first, [&](FrameId id, size_t depth) {
      const model::Frame& f = run.frames[id];
      if (stacks.owner(id) != Owner::kUser || !in.insert({f.file, f.function}).second) return;
      Seen& seen = functions[{f.file, f.function}];
      seen.time += time;
      seen.depth += static_cast<double>(depth) * (time.input + time.forward);
    });
  }
  if (all.input <= 0 || all.forward <= 0) return 0;
  std::optional<Function> loop;
  double nearest = 0;
  for (const auto& [function, seen] : functions) {
    if (seen.time.input < kMost * all.input || seen.time.forward < kMost * all.forward) continue;
    const double depth = seen.depth / (seen.time.input + seen.time.forward);
    if (loop && depth >= nearest) continue;
    loop = function;
    nearest = depth;
  }
  if (!loop) return 0;
  std::map<int32_t, Time> lines;
  for (const auto& [stack, time] : times_) {
    int32_t line = 0;
    for_each_frame(run, stack, [&](FrameId id, size_t) {
      const model::Frame& f = run.frames[id];
      if (line == 0 && Function{f.file, f.function} == *loop) line = f.line;
    });
    if (line == 0) continue;
    Time& at_line = lines[line] += time;
    if (in_data_library(run, stack)) {
      at_line.python += time.native;
      at_line.native -= time.native;
      continue;
    }
    const Under under = native_under(run, stack);
    if (under == Under::kData) at_line.data += time.native;
    if (under == Under::kOther) at_line.does_other += time.native;
  }
  double before = 0;
  for (const auto& [line, time] : lines) {
    before += time.python;
    // Native code is seen in some of the readings.
    if (time.data > 0) before += time.native * time.data / (time.data + time.does_other);
    if (time.forward >= kAForward * all.forward) return before / all.input;
  }
  return 0;
}

}  // namespace flatout::diagnose
