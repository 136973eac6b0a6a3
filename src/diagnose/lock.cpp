// Threads that compute for the training thread and wait for one another at a lock of the job's.
#include <fmt/format.h>

#include <algorithm>

#include "base/text.h"
#include "diagnose/findings.h"

namespace flatout::diagnose {

namespace {

// Part of the threads' work that goes to taking and releasing locks, from which they contend: a
// lock that nobody else wants takes some nanoseconds.
constexpr double kContended = 0.1;

bool in_team(const Cell& c) { return c.role == Role::kPool || c.role == Role::kTrainer; }
bool at_lock(const Cell& c) {
  return in_team(c) && at_lock_of_jobs(c) &&
         (c.act == Act::kLock || c.act == Act::kRunQueue || on_cpu(c.act));
}
bool waits_at_lock(const Cell& c) { return at_lock(c) && c.act == Act::kLock; }

}  // namespace

void detect_lock(const RunView& view, Findings& findings) {
  // Python's threads take turns by another lock, and their lines say little of this one.
  if (view.is_python() || view.readings(waits_at_lock) < kFewReadings) return;
  const auto of_pool = [&](const Profile::Filter& filter) {
    return view.profile().seconds(
        [&](const Cell& c) { return c.role == Role::kPool && filter(c); });
  };
  const auto works = [](const Cell& c) { return on_cpu(c.act) && !at_lock(c); };
  const auto seen = [](const Cell& c) { return c.user != 0 || c.traits != 0; };
  const double locking = of_pool(at_lock);
  double working = of_pool([&](const Cell& c) { return works(c) && seen(c); });
  // What shows no stack may be either. Where that is most of it, hardly anything but those who are
  // blocked shows one.
  const double unseen = of_pool([&](const Cell& c) { return works(c) && !seen(c); });
  if (unseen > working) working += unseen;
  if (locking < kContended * (locking + working)) return;
  const double share = locking / (locking + working);
  // The training thread waits for them, as long as it has nothing to wait for itself.
  const double joined = view.per_step(Role::kTrainer, [](const Cell& c) {
    return !at_lock(c) && c.part != model::Part::kInputWait &&
           (c.act == Act::kLock || c.act == Act::kPoll);
  });
  const double own = view.per_step(Role::kTrainer, at_lock);
  model::Finding* f = findings.add(
      "cpu.lock", "Threads that compute wait for one another at a lock", 0.8, own + joined * share);
  if (f == nullptr) return;
  f->where = view.where(at_lock);
  evidence(*f,
           fmt::format("{} of what these threads do is to take the lock and to release it",
                       format_percent(share)),
           share, "ratio", "stacks", view.readings(at_lock));
  evidence(*f, fmt::format("the training thread waits for them {}", per_step_text(view, joined)),
           joined * 1e3, "ms", "stacks", view.steps().count);
  remedy(
      *f, "own_state",
      "Let each thread add up what it finds by itself, and take the lock once for the sum. What "
      "the lock protects goes from core to core with it, so more than the waiting may be saved.");
  remedy(*f, "fewer_locks", "Take the lock for many samples at a time, or split what it protects.");
}

}  // namespace flatout::diagnose
