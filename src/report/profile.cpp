#include "report/profile.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <set>
#include <tuple>
#include <utility>

#include "report/words.h"

namespace flatout::report {
namespace {

using model::Run;
using model::ThreadState;

constexpr size_t kMaxDepth = 200;

struct Grouping {
  std::vector<uint32_t> of_thread;  // Run::threads -> group
  std::vector<ThreadGroup> groups;
};

Grouping group_threads(const Run& run) {
  Grouping out;
  std::map<std::tuple<std::string, std::string, bool>, uint32_t> ids;
  for (size_t i = 0; i < run.threads.size(); ++i) {
    const model::Thread& t = run.threads[i];
    const bool known = t.process < run.processes.size();
    const std::string process = known ? run.processes[t.process].name : std::string("?");
    const bool training = run.steps.source != model::StepSource::kNone &&
                          run.steps.thread == static_cast<uint32_t>(i);
    const auto [it, fresh] =
        ids.try_emplace({process, t.name, training}, static_cast<uint32_t>(out.groups.size()));
    if (fresh) {
      ThreadGroup group;
      group.name = t.name == process || t.name.empty() ? process : process + ": " + t.name;
      group.training = training;
      out.groups.push_back(std::move(group));
    }
    out.of_thread.push_back(it->second);
  }
  return out;
}

std::string frame_name(const Run& run, const model::Frame& frame) {
  std::string name(run.string(frame.function));
  if (name.empty()) name = "?";
  std::string_view file = run.string(frame.file);
  if (const size_t slash = file.rfind('/'); slash != std::string_view::npos) {
    file.remove_prefix(slash + 1);
  }
  if (file.empty()) return name;
  return frame.line > 0 ? fmt::format("{} ({}:{})", name, file, frame.line)
                        : fmt::format("{} ({})", name, file);
}

class TreeBuilder {
 public:
  TreeBuilder() { nodes_.emplace_back().name = "all threads"; }

  uint32_t child(uint32_t parent, uint64_t key) {
    const auto [it, fresh] =
        index_.try_emplace(std::pair(parent, key), static_cast<uint32_t>(nodes_.size()));
    if (fresh) {
      nodes_.emplace_back().parent = parent;
      fresh_ = true;
    }
    return it->second;
  }
  bool take_fresh() { return std::exchange(fresh_, false); }
  std::vector<ProfileNode>& nodes() { return nodes_; }

 private:
  std::vector<ProfileNode> nodes_;
  std::map<std::pair<uint32_t, uint64_t>, uint32_t> index_;
  bool fresh_ = false;
};

// Keeps the root and the `max_nodes` largest nodes; a node is never larger than its parent, so
// parents stay. Equal sizes: the earlier one, which is the parent.
void prune(std::vector<ProfileNode>& nodes, size_t max_nodes) {
  std::vector<uint32_t> order(nodes.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](uint32_t a, uint32_t b) { return nodes[a].total_us > nodes[b].total_us; });
  if (order.size() > max_nodes) order.resize(max_nodes);
  std::sort(order.begin(), order.end());
  std::vector<uint32_t> moved(nodes.size(), 0);
  std::vector<ProfileNode> kept;
  for (const uint32_t id : order) {
    moved[id] = static_cast<uint32_t>(kept.size());
    kept.push_back(std::move(nodes[id]));
    kept.back().parent = moved[kept.back().parent];
  }
  nodes = std::move(kept);
  for (uint32_t id = 1; id < nodes.size(); ++id) nodes[nodes[id].parent].children.push_back(id);
  for (ProfileNode& node : nodes) {
    std::stable_sort(node.children.begin(), node.children.end(),
                     [&](uint32_t a, uint32_t b) { return nodes[a].total_us > nodes[b].total_us; });
  }
}

}  // namespace

bool on_cpu(ThreadState state) {
  return state == ThreadState::kOnCpuPython || state == ThreadState::kOnCpuNative ||
         state == ThreadState::kKernel;
}

namespace {

// What readings that are alike have in common: there are far fewer kinds than readings.
struct Kind {
  uint32_t group;
  model::StackId stack;
  ThreadState state;
  bool operator<(const Kind& o) const {
    return std::tie(group, stack, state) < std::tie(o.group, o.stack, o.state);
  }
};

// Microseconds by kind; the groups get their times and the number of their threads.
std::map<Kind, double> sum_readings(const Run& run, Grouping& grouping) {
  std::map<Kind, double> sums;
  std::vector<std::set<model::ThreadId>> members(grouping.groups.size());
  for (const model::StackReading& r : run.readings) {
    if (r.thread >= grouping.of_thread.size() || r.state >= ThreadState::kCount) continue;
    if ((r.flags & model::kIdleWorker) != 0) continue;
    const uint32_t group = grouping.of_thread[r.thread];
    members[group].insert(r.thread);
    grouping.groups[group].us[static_cast<size_t>(r.state)] += r.weight_us;
    grouping.groups[group].total_us += r.weight_us;
    sums[{group, r.stack, r.state}] += r.weight_us;
  }
  for (size_t i = 0; i < members.size(); ++i) {
    grouping.groups[i].threads = members[i].size();
    if (members[i].size() > 1) grouping.groups[i].name += fmt::format(" ({})", members[i].size());
  }
  return sums;
}

// Below the root the groups, then the frames from the outermost on, then what a thread waited for.
std::vector<ProfileNode> make_tree(const Run& run, const std::map<Kind, double>& sums,
                                   const std::vector<ThreadGroup>& groups) {
  TreeBuilder tree;
  std::vector<model::FrameId> frames;
  // Frames are equal if function, file and line are; ids of frames may repeat them.
  std::map<std::tuple<model::StringId, model::StringId, uint32_t>, uint64_t> frame_keys;
  for (const auto& [kind, us] : sums) {
    frames.clear();
    for (model::StackId s = kind.stack;
         s != 0 && s < run.stacks.size() && frames.size() < kMaxDepth; s = run.stacks[s].parent) {
      frames.push_back(run.stacks[s].frame);
    }
    const bool running = on_cpu(kind.state);
    const auto add = [&tree, us = us, running](uint32_t node) {
      tree.nodes()[node].total_us += us;
      if (running) tree.nodes()[node].on_cpu_us += us;
    };
    uint32_t node = 0;
    add(node);
    node = tree.child(node, kind.group);
    if (tree.take_fresh()) tree.nodes()[node].name = groups[kind.group].name;
    add(node);
    for (auto id = frames.rbegin(); id != frames.rend(); ++id) {
      const model::Frame frame = *id < run.frames.size() ? run.frames[*id] : model::Frame{};
      const auto known = frame_keys.try_emplace({frame.function, frame.file, frame.line},
                                                frame_keys.size() + 1000);
      node = tree.child(node, known.first->second);
      if (tree.take_fresh()) {
        tree.nodes()[node].name = frame_name(run, frame);
        tree.nodes()[node].file = std::string(run.string(frame.file));
      }
      add(node);
    }
    if (!running) {
      node = tree.child(node, 100 + static_cast<uint64_t>(kind.state) + (uint64_t{1} << 40));
      if (tree.take_fresh()) {
        tree.nodes()[node].name = std::string(label(kind.state));
        tree.nodes()[node].is_state = true;
        tree.nodes()[node].state = kind.state;
      }
      add(node);
    }
  }
  return std::move(tree.nodes());
}

}  // namespace

Profile make_profile(const Run& run, size_t max_nodes) {
  Profile profile;
  Grouping grouping = group_threads(run);
  const std::map<Kind, double> sums = sum_readings(run, grouping);
  profile.nodes = make_tree(run, sums, grouping.groups);
  prune(profile.nodes, std::max<size_t>(max_nodes, 2));
  for (ThreadGroup& g : grouping.groups) {
    if (g.total_us > 0) profile.groups.push_back(std::move(g));
  }
  std::stable_sort(profile.groups.begin(), profile.groups.end(),
                   [](const ThreadGroup& a, const ThreadGroup& b) {
                     return a.training != b.training ? a.training : a.total_us > b.total_us;
                   });
  return profile;
}

}  // namespace flatout::report
