// The readings of the stacks summed up: a tree of frames below one root per kind of thread. The
// flame graph, folded stacks, speedscope and the bars of thread states are drawn from it.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "model/run.h"

namespace flatout::report {

using StateTimes = std::array<double, static_cast<size_t>(model::ThreadState::kCount)>;  // us

/// Whether a thread in this state has a core.
bool on_cpu(model::ThreadState state);

/// Threads that do the same: equal process name and thread name (the workers of a loader).
struct ThreadGroup {
  std::string name;  // "train.py: MainThread", "pt_data_worker (4)"
  size_t threads = 0;
  bool training = false;  // holds the training thread
  StateTimes us{};
  double total_us = 0;
};

struct ProfileNode {
  std::string name;  // "__getitem__ (data.py:41)"
  std::string file;  // whole path, for the tooltip; "" for groups and states
  uint32_t parent = 0;
  std::vector<uint32_t> children;  // largest first
  double total_us = 0;
  double on_cpu_us = 0;
  bool is_state = false;  // a leaf that says what the thread waited for
  model::ThreadState state = model::ThreadState::kUnknown;
};

struct Profile {
  std::vector<ProfileNode> nodes;   // 0: the root
  std::vector<ThreadGroup> groups;  // the training thread's first, then by time
};

/// At most about `max_nodes` nodes: the smallest are left out, and so are readings of idle pool
/// threads.
Profile make_profile(const model::Run& run, size_t max_nodes = 3000);

}  // namespace flatout::report
