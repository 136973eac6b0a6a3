// Steps that stand still: saving, logging, sleeping and polling.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <unordered_map>
#include <unordered_set>

#include "base/stats.h"
#include "base/text.h"
#include "diagnose/findings.h"
#include "diagnose/peer.h"
#include "diagnose/whatif.h"

namespace flatout::diagnose {

using model::Finding;
using model::Part;
using model::SignalId;
using model::Slice;
using model::SliceKind;
using model::Step;

namespace {

// Bytes written per step with a stall from which writing is saving rather than logging.
constexpr double kSaveBytes = 256 * 1024;
// Share of the writing in steps far longer than usual, from which only these write.
constexpr double kMostlySeldom = 0.8;
// The same of one call, where steps are not known.
constexpr double kSaveCall = 32 * 1024;
// Of a call: shorter ones write lines of text, however many.
constexpr double kLongLine = 1024;
// Write calls for each other reason to enter the kernel, from which that is what it does there.
constexpr double kMostly = 10;
// Share of a line's time in writing calls from which the line is there to write.
constexpr double kWritingLine = 0.25;
// Share of the training thread's time at locks in which another thread did something, from which it
// is that which holds the lock.
constexpr double kHeldUp = 0.5;

bool saving(const Cell& c) {
  return c.role == Role::kTrainer && (c.part == Part::kCheckpoint || (c.traits & kInSave) != 0);
}

bool waits_for_others(const Cell& c) {
  return c.role == Role::kTrainer && (c.act == Act::kPoll || c.act == Act::kLock) && !saving(c) &&
         (c.traits & kInLogging) == 0;
}

/// Time per step that the training thread waits, outside of input, for other threads that pass `by`
/// meanwhile.
double held_up(const RunView& view, const Profile::Filter& by) {
  const auto waits = [](const Cell& c) { return waits_for_others(c) && c.part == Part::kOther; };
  if (view.readings(waits) < kFewReadings) return 0;
  const double waiting = view.per_step(Role::kTrainer, waits);
  const double meanwhile =
      view.per_step(Role::kHelper, [&](const Cell& c) { return c.part == Part::kOther && by(c); });
  return meanwhile >= kHeldUp * waiting ? waiting : 0;
}

/// What else the functions that save do with files: open, sync, rename. In the training thread, or
/// in helpers.
class SavePlaces {
 public:
  SavePlaces(const RunView& view, Role role) : run_(view.run()), role_(role) {
    struct Line {
      double all = 0, files = 0;
    };
    std::unordered_map<model::FrameId, Line> lines;
    for (const Cell& c : view.profile().cells()) {
      if (c.user == 0) continue;
      if (c.role == role_ && c.part == Part::kOther) {
        lines[c.user].all += c.seconds;
        if (on_files(c.act)) lines[c.user].files += c.seconds;
      }
      if (!saves(c)) continue;
      functions_.insert(key(c.user));
      users_.insert(c.user);
    }
    for (const auto& [user, line] : lines) {
      if (line.files > kWritingLine * line.all) on_files_.insert(user);
    }
  }
  bool holds(const Cell& c) const {
    return saves(c) ||
           (c.role == role_ && c.part == Part::kOther && c.user != 0 &&
            (on_files(c.act) || on_files_.count(c.user) > 0) && functions_.count(key(c.user)) > 0 &&
            (!outermost(c.user) || follows_a_save(c.user)));
  }

 private:
  bool saves(const Cell& c) const {
    return role_ == Role::kTrainer ? saving(c) : c.role == role_ && (c.traits & kInSave) != 0;
  }
  static bool on_files(Act act) {
    return act == Act::kWrite || act == Act::kMetadata || act == Act::kRead || act == Act::kKernel;
  }
  uint64_t key(model::FrameId id) const { return function_key(run_, id); }
  /// A script's body does all kinds of things: only its own lines say which.
  bool outermost(model::FrameId id) const {
    return run_.string(run_.frames[id].function) == "<module>";
  }
  /// Whether it stands right after a line that saves: fsync, a rename.
  bool follows_a_save(model::FrameId id) const {
    constexpr int64_t kRightAfter = 4;  // lines
    const int64_t line = run_.frames[id].line;
    return std::ranges::any_of(users_, [&](model::FrameId save) {
      const int64_t after = line - run_.frames[save].line;
      return key(save) == key(id) && after > 0 && after <= kRightAfter;
    });
  }
  const model::Run& run_;
  Role role_;
  std::unordered_set<uint64_t> functions_;
  std::unordered_set<model::FrameId> users_;     // lines that save
  std::unordered_set<model::FrameId> on_files_;  // that do little but work on files
};

/// What the training thread writes, to a file, pipe, terminal or socket.
class Writes {
 public:
  explicit Writes(const RunView& view) : run_(view.run()), places_(view, Role::kTrainer) {
    struct Line {
      double all = 0, written = 0, names = 0;
      int64_t readings = 0;
      /// Who writes to files also makes, renames and removes them: a journal.
      double to_files() const { return names < 2 * written ? written + names : written; }
    };
    std::unordered_map<model::FrameId, Line> lines;
    for (const Cell& c : view.profile().cells()) {
      if (c.role != Role::kTrainer || c.user == 0 || saving(c)) continue;
      Line& line = lines[c.user];
      line.all += c.seconds;
      if (c.act == Act::kMetadata) line.names += c.seconds;
      if (!calls(c)) continue;
      line.written += c.seconds;
      line.readings += c.readings;
    }
    for (const auto& [frame, line] : lines) {
      if (line.readings < 2 || line.to_files() <= kWritingLine * line.all) continue;
      places_that_write_.insert(frame);
      if (view.run().frames[frame].line > 0) lines_.insert(frame);
      if (!view.is_python()) functions_.insert(function_key(view.run(), frame));
    }
    const auto increase = [&](SignalId signal) {
      return view.process_increase(signal,
                                   [&](model::ProcessId p) { return p == view.trainer_process(); });
    };
    double written = increase(SignalId::kProcWriteChars);
    // What goes to other ranks is written to sockets.
    if (view.steps().part(Part::kCommunication) > 0) {
      written = std::min(written, increase(SignalId::kProcWriteBytes));
    }
    const double calls = increase(SignalId::kProcWriteCalls);
    // Plain writes are saving too where they are big and nothing else is known to save; without
    // steps by what a call writes.
    const auto plain = [&](bool in_stalls) {
      return view.per_step(Role::kTrainer, [&, in_stalls](const Cell& c) {
        return is_plain(c) && (c.slow_step || !in_stalls);
      });
    };
    const bool seldom = plain(true) > kMostlySeldom * plain(false);
    const auto times = static_cast<double>(seldom ? view.steps().slow : view.steps().count);
    const bool big = view.has_steps() ? written > kSaveBytes * times && written > kLongLine * calls
                                      : written > kSaveCall * calls;
    plain_saves_ = big && view.per_step(Role::kTrainer, saving) <
                              view.per_step(
                                  Role::kTrainer, [&](const Cell& c) { return is_plain(c); });
    kernel_writes_ = !view.is_python() && !places_that_write_.empty() &&
                     calls > kMostly * (increase(SignalId::kProcReadCalls) +
                                        increase(SignalId::kProcMinorFaults) +
                                        increase(SignalId::kProcMajorFaults));
  }
  bool saves(const Cell& c) const { return places_.holds(c) || (plain_saves_ && is_plain(c)); }
  bool logs(const Cell& c) const { return writes(c) && !saves(c); }
  /// Whether the cell's line is there to write.
  bool at_line(const Cell& c) const { return calls(c) || lines_.count(c.user) > 0; }

 private:
  static bool calls(const Cell& c) {
    // Not what goes to another process of the job, nor what hooks do.
    if ((c.traits & (kInQueue | kInHook)) != 0) return false;
    return (c.traits & (kInLogging | kInText)) != 0 || c.act == Act::kWrite ||
           (c.act == Act::kNetwork && c.part != Part::kInputWait && c.part != Part::kCommunication);
  }
  // A write is seen only where it blocks; what it does on a core shows by its line alone.
  bool writes(const Cell& c) const {
    if (c.role != Role::kTrainer || saving(c) || (c.traits & (kInQueue | kInHook)) != 0) {
      return false;
    }
    return calls(c) || (kernel_writes_ && c.act == Act::kKernel) ||
           (places_that_write_.contains(c.user) &&
            (c.act == Act::kKernel || c.act == Act::kMetadata)) ||
           (c.act == Act::kMetadata && c.part != Part::kInputWait && c.user != 0 &&
            functions_.contains(function_key(run_, c.user))) ||
           (lines_.contains(c.user) && (c.act == Act::kNative || c.act == Act::kRead));
  }
  bool is_plain(const Cell& c) const {
    // What writes numbers as text may write a log or a model.
    const bool log = (c.traits & kInLogging) != 0 && (c.traits & kInText) == 0;
    return writes(c) && !log && c.act != Act::kNetwork;
  }

  const model::Run& run_;
  SavePlaces places_;
  // That are there to write: lines, and functions of which no line is known.
  std::unordered_set<model::FrameId> places_that_write_;
  std::unordered_set<model::FrameId> lines_;  // of these the lines: all that they do is for that
  std::unordered_set<uint64_t> functions_;    // with such a line, of a native program
  bool plain_saves_ = false;
  // A native program enters the kernel to write and for hardly anything else. Where it was in
  // between, its lines' stacks do not say.
  bool kernel_writes_ = false;
};

double computing(const Step& s) {
  return to_s(s.part(Part::kForward) + s.part(Part::kBackward) + s.part(Part::kOptimizer));
}

/// Seconds per step that computing takes longer in steps that save and in those that follow for as
/// long as the save took: caches are cold, and the kernel still writes. 0 where chance explains it.
double aftermath(const StepsView& steps) {
  constexpr size_t kFew = 5;
  std::vector<double> after, others;
  size_t at_epochs = 0, saves = 0;
  TimePoint until{};
  for (const Step* s : steps.steady) {
    const Nanos saving = s->part(Part::kCheckpoint);
    const bool follows = s->begin <= until;
    (saving > Nanos(0) || follows ? after : others).push_back(computing(*s));
    if (saving == Nanos(0)) continue;
    until = s->end + saving;
    ++saves;
    if (s->epoch_start) ++at_epochs;
  }
  // What an epoch's first step does besides is not the save's.
  if (saves < kFew || others.size() < kFew || 2 * at_epochs > saves) return 0;
  const double longer = mean(after) - mean(others);
  // Of the mean, squared.
  const auto error_of = [](const std::vector<double>& values) {
    const auto n = static_cast<double>(values.size());
    const double middle = mean(values);
    double sum = 0;
    for (const double x : values) sum += (x - middle) * (x - middle);
    return sum / (n - 1) / n;
  };
  const double error = std::sqrt(error_of(after) + error_of(others));
  if (longer < 3 * error) return 0;
  return longer * static_cast<double>(after.size()) / static_cast<double>(steps.count);
}

void detect_checkpoint(const RunView& view, const Writes& writes, const SavePlaces& elsewhere,
                       Findings& findings) {
  const double part = view.steps().part(Part::kCheckpoint);
  const double outside = view.per_step(Role::kTrainer, [&](const Cell& c) {
    return writes.saves(c) && c.part != Part::kCheckpoint;
  });
  // Another thread that saves blocks the steps where they share a lock.
  const auto saves_elsewhere = [&](const Cell& c) { return elsewhere.holds(c); };
  const double blocked = held_up(view, saves_elsewhere);
  const double later = aftermath(view.steps());
  const double cost = part + outside + blocked + later;
  // Meanwhile workers get ahead: without saves they may be what the steps wait for.
  const double on_core = view.per_step(Role::kTrainer, [&](const Cell& c) {
    return on_cpu(c.act) && (c.part == Part::kCheckpoint || writes.saves(c));
  });
  const double saved =
      std::min(cost, WhatIf(view).saved_by({.trainer = cost, .trainer_cpu = on_core}));
  Finding* f = findings.add("stall.checkpoint", "Saving checkpoints blocks the steps", 0.93, saved);
  if (f == nullptr) return;
  if (blocked > part + outside) f->where = view.where(saves_elsewhere);
  if (!f->where) f->where = view.where(saving);
  if (!f->where) f->where = view.where([&](const Cell& c) { return writes.saves(c); });
  int64_t count = 0;
  double bytes = 0, longest = 0;
  for (const Step* s : view.steps().steady) {
    if (s->part(Part::kCheckpoint) > Nanos(0)) ++count;
  }
  for (const Slice& s : view.run().slices) {
    if (s.kind != SliceKind::kCheckpoint) continue;
    bytes += static_cast<double>(std::max<int64_t>(s.value, 0));
    longest = std::max(longest, to_s(s.length()));
  }
  evidence(*f, fmt::format("saving costs {}, spread over all", per_step_text(view, cost)),
           cost * 1e3, "ms", "timeline", view.steps().count);
  if (cost - saved > kWorthSaying * view.steps().mean) {
    evidence(
        *f, fmt::format("{} of it steps would wait for workers or cores instead", ms(cost - saved)),
        (cost - saved) * 1e3, "ms", "timeline", view.steps().count);
  }
  if (blocked > 0) {
    evidence(*f, fmt::format("{} of it in waiting for the thread that saves", ms(blocked)),
             blocked * 1e3, "ms", "stacks", view.readings(saves_elsewhere));
  }
  if (later > 0) {
    evidence(*f, fmt::format("{} of it in computing, slower after a save", ms(later)), later * 1e3,
             "ms", "timeline", count);
  }
  if (count > 0) {
    evidence(*f, fmt::format("{} steps were held up", count), static_cast<double>(count), "steps",
             "timeline", count);
    evidence(*f, fmt::format("the longest save took {}", ms(longest)), longest * 1e3, "ms",
             "agent.checkpoint", count);
  }
  if (bytes > 0) {
    evidence(*f, fmt::format("{} were saved", format_bytes(bytes)), bytes, "bytes",
             "agent.checkpoint", count);
  }
  remedy(*f, "async_save",
         "Save asynchronously: copy aside, write in another thread; or less often.");
}

void detect_logging(const RunView& view, const Writes& own_writes, const SavePlaces& elsewhere,
                    Findings& findings) {
  double marked = 0;
  int64_t slices = 0;
  size_t step = 0;
  const auto& steady = view.steps().steady;
  for (const Slice& s : view.run().slices) {
    if (s.kind != SliceKind::kLogging || s.thread != view.trainer()) continue;
    while (step < steady.size() && steady[step]->end < s.end) ++step;
    if (step >= steady.size()) break;
    if (s.begin < steady[step]->begin) continue;
    marked += to_s(s.length());
    ++slices;
  }
  const double n = static_cast<double>(std::max<int64_t>(view.steps().count, 1));
  const auto writes = [&](const Cell& c) { return own_writes.logs(c); };
  const int64_t readings = view.readings(writes);
  const double read = view.per_step(Role::kTrainer, writes);
  // A thread that logs holds the steps up where they share a lock, or where its queue is full.
  const auto writes_elsewhere = [&](const Cell& c) {
    return c.role == Role::kHelper && (c.act == Act::kWrite || (c.traits & kInLogging) != 0) &&
           works(c.act) && !elsewhere.holds(c);
  };
  const double blocked = findings.has("stall.checkpoint") ? 0 : held_up(view, writes_elsewhere);
  const double own = std::max(marked / n, readings >= kFewReadings ? read : 0);
  const double cost = own + blocked;
  Finding* f = findings.add("stall.logging", "Printing or logging blocks the steps", 0.9, cost);
  if (f == nullptr) return;
  if (blocked > own) f->where = view.where(writes_elsewhere);
  if (!f->where) {
    f->where = view.where([&](const Cell& c) { return writes(c) && own_writes.at_line(c); });
  }
  evidence(*f, fmt::format("writing and flushing takes {}", per_step_text(view, cost)), cost * 1e3,
           "ms", slices > 0 ? "agent.logging" : "stacks", slices > 0 ? slices : readings);
  const double calls = view.process_increase(
      SignalId::kProcWriteCalls, [&](model::ProcessId p) { return p == view.trainer_process(); });
  if (calls > 0 && view.has_steps()) {
    evidence(*f, fmt::format("{} writes a step", format_number(calls / n)), calls / n, "calls",
             "probe.processes", view.steps().count);
  }
  remedy(*f, "buffer", "Log every N steps, without flushing each time, or from another thread.");
}

/// Hooks of modules mostly look on: statistics of each activation, left from a search for a fault.
void detect_hooks(const RunView& view, Findings& findings) {
  const auto in_hook = [](const Cell& c) {
    return c.role == Role::kTrainer && (c.traits & kInHook) != 0 && c.act != Act::kGc && !saving(c);
  };
  const int64_t readings = view.readings(in_hook);
  if (!view.has_steps() || readings < kFewReadings) return;
  const double cost = view.per_step(Role::kTrainer, in_hook);
  const double on_core =
      view.per_step(Role::kTrainer, [&](const Cell& c) { return in_hook(c) && on_cpu(c.act); });
  Finding* f = findings.add("stall.logging", "Hooks of modules work in each step", 0.7,
                            WhatIf(view).saved_by({.trainer = cost, .trainer_cpu = on_core}));
  if (f == nullptr) return;
  f->where = view.where(in_hook);
  evidence(*f, fmt::format("hooks take {} a step", ms(cost)), cost * 1e3, "ms", "stacks", readings);
  remedy(*f, "fewer_hooks",
         "Look every N steps only, or remove what was registered (handle.remove(), unwatch()).");
}

/// What other threads of the job work while the training thread does this, beyond what they work at
/// other times, per step: who polls for their results still has to wait for these.
double worked_for(const RunView& view, const Profile::Filter& asleep) {
  double meanwhile = 0, elsewhere = 0, sleeps = 0, awake = 0;
  for (size_t i = 0; i < model::kPartCount; ++i) {
    const auto part = static_cast<Part>(i);
    const auto in_part = [=](const Cell& c) { return c.part == part; };
    const double all = view.per_step(Role::kTrainer, in_part);
    if (all <= 0) continue;
    const double slept = view.trainer_in(part, asleep);
    const double worked = view.per_step(Role::kHelper, [&](const Cell& c) {
      return in_part(c) && (on_cpu(c.act) || c.act == Act::kRunQueue);
    });
    meanwhile += slept / all * worked;
    elsewhere += (1 - slept / all) * worked;
    sleeps += slept;
    awake += all - slept;
  }
  const double usual = awake > 0 ? elsewhere / awake * sleeps : 0;
  return std::max(0.0, meanwhile - usual);
}

constexpr double kWatched = 0.7;  // of a main thread's sleep, worked by others meanwhile

/// What threads that need not be the main one work: a main thread without steps may only watch
/// those that train.
double others_work(const RunView& view) {
  const auto busy = [](const Cell& c) { return works(c.act) && (c.traits & kInSpin) == 0; };
  return view.per_step(Role::kHelper, busy) + view.per_step(Role::kPool, busy) +
         view.per_step(Role::kProducer, busy);
}

void detect_idle(const RunView& view, Findings& findings) {
  if (findings.has("stall.idle_wait")) return;
  const auto idle = [](const Cell& c) {
    // Waiting for a device that works is no idle time.
    const bool device = c.part == Part::kSync || c.part == Part::kH2d;
    return c.role == Role::kTrainer && c.act == Act::kSleep && !device && !saving(c) &&
           (c.traits & (kInLogging | kInSubprocess)) == 0;
  };
  const int64_t readings = view.readings(idle);
  if (readings < kFewReadings) return;
  // Sleeping while batches are being made is how some loops wait for input.
  double cost = view.per_step(Role::kTrainer, idle) - worked_for(view, idle);
  if (findings.has("input.decode_cpu") || findings.has("input.too_few_workers")) {
    cost -= view.trainer_in(Part::kInputWait, idle);
  }
  if (!view.is_python() && !view.has_steps() && others_work(view) > kWatched * cost) return;
  Finding* f = findings.add("stall.idle_wait",
                            "The job sleeps or polls" + while_nothing_works(view), 0.9, cost);
  if (f == nullptr) return;
  f->where = view.where(idle);
  evidence(*f, fmt::format("the training thread sleeps {}", per_step_text(view, cost)), cost * 1e3,
           "ms", "stacks", readings);
  if (view.cpu().idle_known) {
    evidence(*f, fmt::format("{} cores were idle", format_number(view.cpu().idle)), view.cpu().idle,
             "cores", "probe.host", view.steps().count);
  }
  remedy(*f, "event", "Wait for an event (a condition, a queue, a future) instead of sleeping.");
}

// Waiting that nobody accounts for: for a lock, a pipe or a peer, while nobody works.
void detect_waits(const RunView& view, Findings& findings) {
  if (findings.has("stall.idle_wait") || findings.has("stall.hang")) return;
  // What loaders whose workers are known do is judged as input.
  const bool input_too = !view.loader().measured && !view.loader().graph &&
                         std::none_of(findings.all().begin(), findings.all().end(),
                                      [](const Finding& f) { return f.id.starts_with("input."); });
  const auto in_part = [&](const Cell& c) {
    return c.part == Part::kOther || (input_too && c.part == Part::kInputWait);
  };
  const auto answers = [](const Cell& c) {
    return c.role == Role::kTrainer && c.act == Act::kNetwork && c.part == Part::kInputWait;
  };
  const auto waits = [&](const Cell& c) {
    return (waits_for_others(c) || answers(c)) && in_part(c);
  };
  if (view.readings(waits) < kFewReadings) return;
  const double wait = view.per_step(Role::kTrainer, waits);
  const double unit = view.has_steps() ? view.steps().mean : 1.0;
  const auto busy = [&](const Cell& c) {
    return in_part(c) && works(c.act) && c.act != Act::kNetwork && (c.traits & kInSpin) == 0;
  };
  double working = view.per_step(Role::kHelper, busy) + view.per_step(Role::kProducer, busy);
  // Under Python a pool computes for whoever calls it; a program without may wait for any thread.
  if (!view.is_python() || view.pool_takes_work()) working += view.per_step(Role::kPool, busy);
  const double cost = wait - working;
  if (working > 0.3 * wait || cost < kWorthSaying * unit) return;
  Finding* f = findings.add("stall.idle_wait",
                            "The training thread waits" + while_nothing_works(view), 0.7, cost);
  if (f == nullptr) return;
  f->where = view.where(waits);
  evidence(*f, fmt::format("it waits {} a step while no other thread works", ms(cost)), cost * 1e3,
           "ms", "stacks", view.readings(waits));
  add_delayed_acks(view, *f);
  remedy(*f, "event", "Find what it waits for; hand results over as soon as they are there.");
}

}  // namespace

void detect_stalls(const RunView& view, Findings& findings) {
  const Writes writes(view);
  const SavePlaces elsewhere(view, Role::kHelper);
  detect_checkpoint(view, writes, elsewhere, findings);
  detect_logging(view, writes, elsewhere, findings);
  detect_hooks(view, findings);
  detect_idle(view, findings);
  if (!view.has_steps()) return;
  detect_waits(view, findings);
}

}  // namespace flatout::diagnose
