// Debuggers, coverage and profilers that the interpreter calls at each line or call, left on.
#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <vector>

#include "base/text.h"
#include "diagnose/blame.h"
#include "diagnose/findings.h"
#include "diagnose/whatif.h"

namespace flatout::diagnose {

using model::Finding;
using model::Step;

namespace {

// Of the interpreter's time, the least that a watcher written in C takes: of calls, or of lines.
constexpr double kOfCalls = 0.5, kOfLines = 0.5;
// To call one in Python, and to make the frame ready that it is given, takes so many times what a
// small one takes itself; and the most that it can be of the interpreter's time.
constexpr double kToCallIt = 1.4, kMost = 0.9;

/// Seconds per step that the training thread is in functions of a file.
double in_file(const RunView& view, std::string_view file) {
  const model::Run& run = view.run();
  std::vector<bool> there(run.stacks.size(), false);
  for (model::StackId stack = 1; stack < run.stacks.size(); ++stack) {
    const model::Frame& f = run.frames[run.stacks[stack].frame];
    const model::StackId caller = run.stacks[stack].parent;
    there[stack] = (caller < stack && there[caller]) || run.string(f.file) == file;
  }
  const auto& steady = view.steps().steady;
  double inside = 0, all = 0;
  size_t at = 0;
  for (const model::StackReading& r : run.readings) {
    if (r.thread != view.trainer() || r.stack >= there.size()) continue;
    while (at < steady.size() && steady[at]->end <= r.at) ++at;
    if (at == steady.size()) break;
    if (r.at < steady[at]->begin) continue;
    all += r.weight_us;
    if (there[r.stack]) inside += r.weight_us;
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
  const double own = place ? in_file(view, place->file) : 0;
  const double cost = place ? std::min(own * (1 + kToCallIt), kMost * python)
                            : python * (tracer.empty() ? kOfCalls : kOfLines);
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
    if (place && &k != f && k.where && k.where->file == place->file) same.push_back(k.id);
  }
  for (const std::string& id : same) findings.drop(id);
  const std::string name = escape_terminal(watcher);
  evidence(*f,
           fmt::format("{} says {}", tracer.empty() ? "sys.getprofile()" : "sys.gettrace()", name),
           1, "", "agent.watchers", 1);
  if (place) {
    evidence(*f, fmt::format("the training thread is in its file for {} a step", ms(own)),
             own * 1e3, "ms", "stacks", view.readings(in_python));
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
