// Debuggers, coverage and profilers that the interpreter calls at each line or call, left on.
#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/text.h"
#include "diagnose/blame.h"
#include "diagnose/findings.h"
#include "diagnose/whatif.h"

namespace flatout::diagnose {

using model::Finding;

namespace {

// Of the interpreter's time, the least that a watcher written in C takes.
constexpr double kInC = 0.5;
// To call one in Python, and to make the frame ready that it is given, takes so many times what a
// small one takes itself; and the most that it can be of the interpreter's time.
constexpr double kToCallIt = 1.4, kMost = 0.9;

/// Whether a stack is in the watcher: in its function, or in what that calls in its file, rather
/// than in a function of the user's that it watches.
bool is_in(const RunView& view, model::StackId stack, const model::Where& watcher) {
  const model::Run& run = view.run();
  for (; stack != 0; stack = run.stacks[stack].parent) {
    const model::Frame& f = run.frames[run.stacks[stack].frame];
    const bool there = run.string(f.file) == watcher.file;
    if (there && run.string(f.function) == watcher.function) return true;
    if (!there && view.stacks().owner(run.stacks[stack].frame) == Owner::kUser) return false;
  }
  return false;
}

/// Seconds per step that the training thread is in the watcher.
double in_watcher(const RunView& view, const model::Where& watcher) {
  const model::Run& run = view.run();
  std::unordered_map<model::StackId, bool> there;
  const auto& steady = view.steps().steady;
  double inside = 0, all = 0;
  size_t at = 0;
  for (const model::StackReading& r : run.readings) {
    if (r.thread != view.trainer() || r.stack >= run.stacks.size()) continue;
    while (at < steady.size() && steady[at]->end <= r.at) ++at;
    if (at == steady.size()) break;
    if (r.at < steady[at]->begin) continue;
    all += r.weight_us;
    const auto [it, added] = there.try_emplace(r.stack);
    if (added) it->second = is_in(view, r.stack, watcher);
    if (it->second) inside += r.weight_us;
  }
  return all > 0 ? inside / all * view.steps().mean : 0;
}

}  // namespace

void detect_watchers(const RunView& view, Findings& findings) {
  const std::string_view tracer = view.run().fact("python.tracer");
  const std::string_view watcher = tracer.empty() ? view.run().fact("python.profiler") : tracer;
  if (watcher.empty() || !view.has_steps()) return;
  const auto in_python = [](const Cell& c) {
    return c.act == Act::kPython || (on_cpu(c.act) && is_unread(c));
  };
  const double python = view.per_step(Role::kTrainer, in_python);
  const auto place = parse_place(watcher);
  const double own = place ? in_watcher(view, *place) : 0;
  const double cost = place ? std::min(own * (1 + kToCallIt), kMost * python) : kInC * python;
  Finding* f = findings.add(
      "cpu.tracing",
      tracer.empty() ? "A profiler is called at each call of Python's"
                     : "A debugger or coverage is called at each line of Python",
      place ? 0.85 : 0.7, WhatIf(view).saved_by({.trainer = cost, .trainer_cpu = cost}));
  if (f == nullptr) return;
  f->where = place;
  // What is said of its own lines is said better here.
  std::vector<std::string> same;
  for (const Finding& k : findings.all()) {
    if (place && &k != f && !k.ended_the_job && k.where && k.where->file == place->file &&
        k.where->function == place->function)
      same.push_back(k.id);
  }
  for (const std::string& id : same) findings.drop(id);
  const std::string name = escape_terminal(watcher);
  evidence(*f,
           fmt::format("{} says {}", tracer.empty() ? "sys.getprofile()" : "sys.gettrace()", name),
           1, "", "agent.watchers", 1);
  if (place) {
    evidence(*f, fmt::format("the training thread is in it for {} a step", ms(own)), own * 1e3,
             "ms", "stacks", view.readings(in_python));
  }
  evidence(*f, fmt::format("the interpreter takes {} a step in all", ms(python)), python * 1e3,
           "ms", "stacks", view.readings(in_python));
  remedy(
      *f, "no_tracing",
      "Start the job without it: no debugger or coverage around it (a sitecustomize or a launcher "
      "may set it), no python -m cProfile or -m trace; flatout shows where time goes at no such "
      "cost.");
}

}  // namespace flatout::diagnose
