// A job that makes no step any more, or made none for a long time.
#include <fmt/format.h>
#include <sys/wait.h>

#include <algorithm>
#include <csignal>
#include <map>
#include <optional>
#include <span>
#include <unordered_set>
#include <utility>

#include "diagnose/findings.h"
#include "diagnose/last_stacks.h"
#include "diagnose/raised.h"

namespace flatout::diagnose {

using model::Finding;
using model::Part;
using model::Slice;
using model::SliceKind;
using model::Step;

namespace {

constexpr double kHangMedians = 10;
constexpr double kHangSeconds = 5;

/// A long time without a step.
struct Silence {
  TimePoint begin, end;
  int64_t after = 0;  // the last step before it
  bool ends_the_run = false;
  bool for_input = false;  // as far as the parts of a step say
  bool in_a_step = false;  // that counts for how long a step takes
  double seconds() const { return to_s(end - begin); }
};

/// What threads did in a silence, in seconds.
struct Waiting {
  double seconds = 0, working = 0, at_locks = 0, for_others = 0, for_input = 0;
  std::map<model::FrameId, double> lines;

  model::FrameId hottest() const {
    model::FrameId best = 0;
    double most = 0;
    for (const auto& [frame, spent] : lines) {
      if (frame != 0 && spent > most) {
        most = spent;
        best = frame;
      }
    }
    return best;
  }
};

struct Waits {
  Waiting trainer, producers, others;  // producers are others, too
  LastSeen trainer_last;
  std::map<model::ThreadId, std::map<std::pair<model::StackId, Act>, double>> stood;
};

/// Where each thread stood longest: what it does while it is ended says nothing about the silence.
std::map<model::ThreadId, LastSeen> places(const Waits& waits) {
  std::map<model::ThreadId, LastSeen> out;
  for (const auto& [thread, seconds] : waits.stood) {
    const auto rank = [](const auto& place) {
      return std::pair(place.first.first != 0, place.second);  // one whose stack is known
    };
    const auto longest =
        std::max_element(seconds.begin(), seconds.end(),
                         [&](const auto& a, const auto& b) { return rank(a) < rank(b); });
    const auto& [stack, act] = longest->first;
    out[thread] = {act, stack};
  }
  return out;
}

/// The time since the last step; if that is none worth the name, the longest time by far that a
/// step took, or that lies between two, where a validation is cut out.
std::optional<Silence> longest_silence(const RunView& view) {
  const model::Run& run = view.run();
  const std::vector<Step>& steps = run.steps.steps;
  if (steps.size() < 5 || view.steps().median <= 0) return std::nullopt;
  std::optional<Silence> longest;
  bool may_hang = false;
  double second = 0;
  const auto see = [&](const Silence& silence, bool may) {
    if (longest && silence.seconds() <= longest->seconds()) {
      second = std::max(second, silence.seconds());
      return;
    }
    if (longest) second = longest->seconds();
    longest = silence;
    may_hang = may;
  };
  for (size_t i = 0; i < steps.size(); ++i) {
    const Step& s = steps[i];
    if (s.validation && i > 0) {
      see({steps[i - 1].end, s.begin, s.index - 1, false, false, false}, true);
    }
    see({s.begin, s.end, s.index - 1, false, s.part(Part::kInputWait) > s.length() / 2, s.judged()},
        !s.warmup && !s.after_gap);
  }
  const auto is_one = [&](const Silence& s, double longest_other) {
    return s.seconds() >= kHangSeconds && s.seconds() >= kHangMedians * view.steps().median &&
           s.seconds() >= 3 * longest_other;
  };
  const Silence last{steps.back().end, run.end, steps.back().index, true, false, false};
  if (is_one(last, longest->seconds())) return last;
  if (may_hang && is_one(*longest, second)) return longest;
  return std::nullopt;
}

/// Threads that were at one batch during most of a silence: known where it came to an end.
std::unordered_set<model::ThreadId> makers_in(const RunView& view, const Silence& silence) {
  std::unordered_set<model::ThreadId> out;
  for (const Slice* s : view.loader().fetches) {
    const auto common = std::min(s->end, silence.end) - std::max(s->begin, silence.begin);
    if (to_s(common) > 0.5 * silence.seconds()) out.insert(s->thread);
  }
  return out;
}

Waits waits_in(const RunView& view, const Silence& silence) {
  Waits out;
  const std::unordered_set<model::ThreadId> makers = makers_in(view, silence);
  for (const model::StackReading& r : view.run().readings) {
    if (r.at < silence.begin || r.at >= silence.end) continue;
    const Traits traits = view.stacks().traits(r.stack);
    const Act act = act_of(r, traits);
    LastSeen seen;
    see(view, r, seen);
    const double seconds = r.weight_us * 1e-6;
    out.stood[r.thread][{seen.stack, seen.act}] += seconds;
    if (r.thread != view.trainer()) {
      if (works(act)) out.others.working += seconds;
      if ((traits & kInFetch) != 0 || makers.contains(r.thread)) {
        out.producers.lines[view.stacks().user_frame(r.stack)] += seconds;
      }
      continue;
    }
    see(view, r, out.trainer_last);
    Waiting& trainer = out.trainer;
    if ((traits & kInLoader) != 0) trainer.for_input += seconds;
    trainer.seconds += seconds;
    if (on_cpu(act) || act == Act::kRunQueue || act == Act::kRead) trainer.working += seconds;
    if (act == Act::kLock) trainer.at_locks += seconds;
    // In a collective it waits for other ranks, of which this run knows nothing.
    const bool here = (traits & kInCollective) == 0;
    if (here && (act == Act::kLock || act == Act::kPoll)) trainer.for_others += seconds;
    trainer.lines[view.stacks().user_frame(r.stack)] += seconds;
  }
  return out;
}

/// Whether the training thread waited for a batch most of a silence, and it never came.
bool waited_in_vain(const RunView& view, const Silence& silence) {
  double seconds = 0;
  for (const Slice& s : view.run().slices) {
    if (s.kind != SliceKind::kInputWait || s.value != 1 || s.thread != view.trainer()) continue;
    if (s.begin >= silence.begin) seconds += to_s(s.end - s.begin);
  }
  return seconds > 0.8 * silence.seconds();
}

/// Whether the job hung in a silence: nobody worked, and its training thread did not either.
bool is_hang(const RunView& view, const Silence& silence, const Waits& waits) {
  const model::Run& run = view.run();
  const Waiting& trainer = waits.trainer;
  // It may be validating or saving: that is work.
  if (trainer.seconds <= 0 || trainer.working > 0.2 * trainer.seconds) return false;
  const bool nobody_works = waits.others.working <= 0.05 * trainer.seconds;
  if (!silence.ends_the_run) return trainer.for_others >= 0.8 * trainer.seconds && nobody_works;
  // A job that ended well may have waited for something after its last step, and then ended. Not so
  // where nobody worked and its training thread waited still, or gave up waiting for a batch: a
  // time limit of the job's ended it.
  if (!run.finished || run.wait_status != 0) return true;
  if (nobody_works && waited_in_vain(view, silence)) return true;
  // A process that is ended is on a core for that, its threads where they stood.
  const LastSeen& last = waits.trainer_last;
  const model::FrameId stood = trainer.hottest();
  const bool stands_there =
      last.act == Act::kLock || (stood != 0 && view.stacks().user_frame(last.stack) == stood);
  return stands_there && trainer.at_locks >= 0.8 * trainer.seconds && nobody_works;
}

/// A hung job is ended by a signal or a time limit in the end: that was no crash.
void forget_end(const model::Run& run, Findings& findings) {
  if (!run.finished || run.wait_status <= 0) return;
  if (run.fact("exception.type").empty()) findings.drop("crash.exception");
  const int code = WIFSIGNALED(run.wait_status)         ? WTERMSIG(run.wait_status)
                   : WEXITSTATUS(run.wait_status) > 128 ? WEXITSTATUS(run.wait_status) - 128
                                                        : 0;
  if (code == SIGTERM || code == SIGKILL || code == SIGHUP || code == SIGQUIT) {
    findings.drop("crash.signal");
  }
}

Finding* add_past(const RunView& view, const Silence& silence, Findings& findings) {
  constexpr std::string_view kTitle = "The job hung for a long time and then went on";
  constexpr double kSure = 0.9;
  const double mean = view.steps().mean;
  const double cost = silence.seconds() / static_cast<double>(view.steps().count);
  if (silence.in_a_step) return findings.add("stall.hang", std::string(kTitle), kSure, cost);
  // It comes on top of what the steps take.
  if (cost < kWorthSaying * (mean + cost)) return nullptr;
  Finding& f = findings.add_outside("stall.hang", std::string(kTitle), kSure);
  f.cost_ms_per_step = cost * 1e3;
  f.gain = (mean + cost) / mean;
  return &f;
}

}  // namespace

void detect_hang(const RunView& view, Findings& findings) {
  const std::optional<Silence> silence = longest_silence(view);
  if (!silence) return;
  const Waits waits = waits_in(view, *silence);
  if (!is_hang(view, *silence, waits)) return;
  Finding* found = nullptr;
  if (silence->ends_the_run) {
    forget_end(view.run(), findings);
    found = &findings.add_fatal("stall.hang", "The job hangs: no step for a long time", 0.9);
  } else {
    found = add_past(view, *silence, findings);
  }
  if (found == nullptr) return;
  Finding& f = *found;
  // A batch that does not come hangs where it is made.
  const Waiting& trainer = waits.trainer;
  const bool for_input = trainer.for_input > 0.5 * trainer.seconds || silence->for_input;
  model::FrameId hottest = for_input ? waits.producers.hottest() : model::FrameId{0};
  if (hottest == 0) hottest = trainer.hottest();
  if (hottest != 0) f.where = view.stacks().where(hottest);
  // What the others wait for may come from a thread that is no more.
  constexpr const char* kThread = "thread_exception.";
  if (const std::string type = exception_type(view.run(), kThread); !type.empty()) {
    if (auto raised = exception_line(view.run(), kThread)) f.where = std::move(raised);
    evidence(
        f, fmt::format("a thread had ended by {}: {}", type, exception_words(view.run(), kThread)),
        1, "threads", "agent.exception", 1);
  }
  evidence(f, fmt::format("no step for {}", ms(silence->seconds())), silence->seconds() * 1e3, "ms",
           "timeline", 1);
  evidence(f, fmt::format("a step usually takes {}", ms(view.steps().median)),
           view.steps().median * 1e3, "ms", "timeline", view.steps().count);
  evidence(f, fmt::format("the last one before was step {}", silence->after),
           static_cast<double>(silence->after), "step", "timeline", 1);
  add_last_stacks(view, places(waits), f);
  remedy(f, "stacks", "See what each thread waits for, below; add time-outs to what waits.");
}

}  // namespace flatout::diagnose
