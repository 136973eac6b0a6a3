#include "diagnose/last_stacks.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <tuple>
#include <vector>

#include "base/text.h"
#include "diagnose/findings.h"

namespace flatout::diagnose {
namespace {

constexpr size_t kMostStacks = 24;
constexpr size_t kMostFrames = 32;

/// Threads that stood at one place, doing one thing.
struct Group {
  LastSeen seen;
  std::vector<model::ThreadId> threads;
  bool training = false;
};

std::string thread_text(const model::Run& run, model::ThreadId id) {
  const model::Thread& t = run.threads[id];
  const int64_t pid = t.process < run.processes.size() ? run.processes[t.process].pid : 0;
  return fmt::format("{} of pid {}",
                     t.name.empty() ? fmt::format("thread {}", t.tid) : escape_terminal(t.name),
                     pid);
}

std::string group_text(const RunView& view, const Group& group) {
  const model::Run& run = view.run();
  std::string out = thread_text(run, group.threads.front());
  if (group.training) out = "the training thread, " + out;
  if (group.threads.size() > 1) out += fmt::format(" and {} more", group.threads.size() - 1);
  out += fmt::format(", {}:", words(group.seen.act));
  size_t shown = 0, frames = 0;
  for (model::StackId at = group.seen.stack; at != 0 && at < run.stacks.size();
       at = run.stacks[at].parent) {
    if (++frames > kMostFrames) continue;
    ++shown;
    const model::Where where = view.stacks().where(run.stacks[at].frame);
    out += fmt::format("\n  {}", where.function.empty() ? "?" : escape_terminal(where.function));
    if (where.line > 0) out += fmt::format(" ({}:{})", escape_terminal(where.file), where.line);
  }
  if (frames > shown) out += fmt::format("\n  and {} frames more", frames - shown);
  if (frames == 0) out += "\n  its stack could not be read";
  return out;
}

}  // namespace

void see(const RunView& view, model::StackReading reading, LastSeen& thread) {
  if (reading.stack == 0 && thread.stack != 0) return;
  reading.flags &= static_cast<uint8_t>(~model::kIdleWorker);
  thread = {act_of(reading, view.stacks().traits(reading.stack)), reading.stack};
}

void add_last_stacks(const RunView& view, const std::map<model::ThreadId, LastSeen>& threads,
                     model::Finding& f) {
  std::map<std::tuple<model::ProcessId, Act, model::StackId>, Group> groups;
  for (const auto& [thread, seen] : threads) {
    if (thread >= view.run().threads.size()) continue;
    Group& group = groups[{view.run().threads[thread].process, seen.act, seen.stack}];
    group.seen = seen;
    group.threads.push_back(thread);
    group.training |= thread == view.trainer();
  }
  std::vector<const Group*> order;
  order.reserve(groups.size());
  for (const auto& [key, group] : groups) order.push_back(&group);
  std::stable_sort(order.begin(), order.end(), [](const Group* a, const Group* b) {
    const auto rank = [](const Group& g) {
      return std::tuple(!g.training, g.seen.stack == 0, -static_cast<int64_t>(g.threads.size()));
    };
    return rank(*a) < rank(*b);
  });
  if (order.size() > kMostStacks) order.resize(kMostStacks);
  for (const Group* group : order) {
    const auto n = static_cast<int64_t>(group->threads.size());
    evidence(f, group_text(view, *group), static_cast<double>(n), "threads", "stacks", n);
  }
}

void add_last_stacks(const RunView& view, const model::Process& process, model::Finding& f) {
  const model::Run& run = view.run();
  const auto id = static_cast<model::ProcessId>(&process - run.processes.data());
  std::map<model::ThreadId, LastSeen> last;
  for (const model::StackReading& r : run.readings) {
    if (r.thread >= run.threads.size() || run.threads[r.thread].process != id) continue;
    see(view, r, last[r.thread]);
  }
  add_last_stacks(view, last, f);
}

}  // namespace flatout::diagnose
