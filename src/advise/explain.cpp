#include "advise/explain.h"

#include <fmt/format.h>

#include <algorithm>

#include "advise/explain_figures.h"
#include "advise/explain_now.h"
#include "base/contains.h"
#include "base/size_text.h"

namespace flatout::advise {

using model::Explanation;

namespace {

constexpr uint64_t kWentOn = 2000;  // lines after the last error: the job did not end of it
// Lines of training that a failed job may print behind its traceback: other ranks, before they
// stop, too, and a standard output of 8 KiB that is only flushed at the exit.
constexpr uint64_t kAfterTheEnd = 200;
constexpr size_t kAlso = 6;
constexpr double kDoubt = 0.85;      // where another line may be the true cause
constexpr double kConfirmed = 0.85;  // where two lines point to it

// What decides: causes before generic ones before symptoms, and among equals the first.
int rank_of(Role role) {
  switch (role) {
    case Role::kCause:
      return 0;
    case Role::kGeneric:
      return 1;
    case Role::kSymptom:
      return 2;
    case Role::kNotice:
      break;
  }
  return 3;
}

const LogEvent* best_of(const std::vector<LogEvent>& events, Weight weight) {
  const LogEvent* best = nullptr;
  for (const LogEvent& event : events) {
    if (event.weight != weight) continue;
    if (best == nullptr) {
      best = &event;
      continue;
    }
    const int a = rank_of(event.rule->role), b = rank_of(best->rule->role);
    // Of one line the rule that stands earlier in the table.
    if (a < b || (a == b && event.line.number == best->line.number && event.rule < best->rule)) {
      best = &event;
    }
  }
  return best;
}

const UnknownException* first_of(const std::vector<UnknownException>& unknown, Weight weight) {
  const auto found =
      std::find_if(unknown.begin(), unknown.end(),
                   [&](const UnknownException& exception) { return exception.weight == weight; });
  return found == unknown.end() ? nullptr : &*found;
}

bool is_cause(const LogEvent* event) {
  return event != nullptr && event->rule->role == Role::kCause;
}
bool is_generic(const LogEvent* event) {
  return event != nullptr && event->rule->role == Role::kGeneric;
}

// An exception of the framework's native part, or for a command that failed: either may have said
// more before.
bool says_little(const UnknownException& exception) {
  const std::string_view text = exception.line.text;
  return contains(text, "CalledProcessError: Command") || contains(text, "errors_impl.") ||
         contains(text, "XlaRuntimeError") ||
         (text.starts_with("RuntimeError") &&
          (contains(text, "CUDA") || contains(text, "cuDNN") || contains(text, "NCCL")));
}

// What an episode comes to: one of `event` and `unknown`, or both where the exception came first
// and may be the true cause.
struct Pick {
  const Episode* episode = nullptr;
  const LogEvent* event = nullptr;
  const UnknownException* unknown = nullptr;
  bool ended = false;  // it ended a process

  bool is_root() const { return unknown != nullptr || is_cause(event); }
};

// What ended a process comes before what was only said, and a cause before what follows from it.
Pick pick_of(const Episode& episode) {
  const LogEvent* ended = best_of(episode.events, Weight::kEnded);
  const LogEvent* said = best_of(episode.events, Weight::kSaid);
  const UnknownException* unknown = first_of(episode.unknown, Weight::kEnded);
  const bool unknown_first =
      unknown != nullptr && (ended == nullptr || unknown->line.number < ended->line.number);
  if (is_cause(ended)) return {&episode, ended, unknown_first ? unknown : nullptr, true};
  if (unknown != nullptr && (unknown_first || !is_generic(ended))) {
    // A death or a cancellation after an exception follows from it, and so do symptoms.
    if (is_cause(said) && says_little(*unknown)) return {&episode, said, unknown, true};
    return {&episode, nullptr, unknown, true};
  }
  if (is_cause(said)) return {&episode, said, nullptr, ended != nullptr};
  if (is_generic(ended)) return {&episode, ended, nullptr, true};
  if (const UnknownException* caught = first_of(episode.unknown, Weight::kSaid)) {
    return {&episode, nullptr, caught, false};
  }
  if (is_generic(said) || ended == nullptr) return {&episode, said, nullptr, false};
  // Both follow from another process's failure: the first is nearer to it.
  const bool said_first = said != nullptr && said->line.number < ended->line.number;
  return {&episode, said_first ? said : ended, nullptr, true};
}

void tell_rule(const LogEvent& event, Explanation& out) {
  const LogRule& rule = *event.rule;
  out.kind = rule.kind;
  out.finding = rule.finding;
  out.sure = rule.sure;
  out.text = rule.text;
  out.advice = rule.advice;
  out.seen.push_back(event.line);
}

class Answer {
 public:
  Answer(const LogReading& log, const Machine& machine) : log_(log), machine_(machine) {
    out_.lines = log.lines;
    out_.bytes = log.bytes;
  }

  Explanation make() {
    const std::optional<Pick> pick = decisive();
    const bool survived =
        pick && log_.went_on && (!pick->ended || log_.ended_well || after() > kAfterTheEnd);
    if (pick && !survived) {
      if (pick->event != nullptr) {
        tell(*pick);
      } else {
        tell_unknown(*pick);
      }
      if (log_.went_on) doubt_since_it_went_on();
    } else if (!log_.suspects.empty() && !log_.went_on && !strong_notice()) {
      tell_suspects();
    } else if (!log_.notices.empty()) {
      tell_notice();
    } else if (!log_.suspects.empty() && !log_.went_on) {
      tell_suspects();
    } else if (log_.bytes == 0) {
      out_.text = "The log is empty: it says nothing of what happened.";
    } else if (log_.no_text) {
      out_.kind = "unknown";
      tell_no_text();
    } else {
      out_.text = fmt::format("No sign of a failure in {} lines.", log_.lines);
      if (survived) out_.text += " There are errors, but the training went on after the last.";
      tell_end();
    }
    name_holder();
    tell_also();
    return std::move(out_);
  }

 private:
  uint64_t after() const { return log_.lines - log_.episodes.back().last_line; }

  // The last episode with a cause; what only follows from one may stand far behind it. Where the
  // job trained on for long, what was before did not end it.
  std::optional<Pick> decisive() const {
    std::optional<Pick> generic, symptom;
    for (auto it = log_.episodes.rbegin(); it != log_.episodes.rend(); ++it) {
      const Pick pick = pick_of(*it);
      if (pick.is_root() && (pick.ended || !generic)) return doubted(pick, it);
      if (is_generic(pick.event)) {
        if (!generic) generic = pick;
      } else {
        symptom = pick;
      }
      if (it->anew) break;
    }
    return generic ? generic : symptom;
  }

  // An exception shortly before it, as of another rank, may be the true cause.
  Pick doubted(Pick pick, std::deque<Episode>::const_reverse_iterator it) const {
    while (pick.unknown == nullptr && !it->anew && ++it != log_.episodes.rend()) {
      pick.unknown = first_of(it->unknown, Weight::kEnded);
    }
    return pick;
  }

  // A notice explains suspicious lines only where they are its own.
  bool strong_notice() const {
    return !log_.notices.empty() &&
           std::all_of(log_.suspects.begin(), log_.suspects.end(), [&](const model::SeenLine& s) {
             return std::any_of(log_.notices.begin(), log_.notices.end(),
                                [&](const LogEvent& n) { return n.line.number == s.number; });
           });
  }

  void take(const LogEvent& event) { tell_rule(event, out_); }

  // Mentioned anywhere, or told in the same episode.
  const LogEvent* confirmation(const Pick& pick) const {
    const std::string_view kind = pick.event->rule->confirmed_by;
    if (kind.empty()) return nullptr;
    for (const std::vector<LogEvent>* events : {&log_.mentions, &pick.episode->events}) {
      const auto found = std::find_if(events->begin(), events->end(), [&](const LogEvent& event) {
        return event.rule->kind == kind;
      });
      if (found != events->end()) return &*found;
    }
    return nullptr;
  }

  void tell(const Pick& pick) {
    take(*pick.event);
    add_figures(log_, *pick.event, out_);
    if (const LogEvent* behind = confirmation(pick)) {
      const model::SeenLine first = out_.seen.front();
      out_.seen.clear();
      take(*behind);
      out_.sure = std::max(out_.sure, kConfirmed);
      out_.seen.insert(out_.seen.begin(), first);
    }
    if (pick.unknown != nullptr) {
      out_.sure *= kDoubt;
      out_.seen.push_back(pick.unknown->line);
    }
    if (after() > kWentOn) {
      out_.sure *= 0.8;
      out_.text += fmt::format(" The log goes on for {} lines after it.", after());
    }
    look_at_machine(pick.event->rule->look, machine_, out_);
  }

  void tell_no_text() {
    out_.text = "Not known: this is no text, so no log that can be read.";
    std::string advice =
        "Give it the job's output as text; what is compressed has to be unpacked first.";
    if (log_.head.starts_with("\xff\xfe") || log_.head.starts_with("\xfe\xff")) {
      advice =
          "It is UTF-16, as PowerShell writes it: iconv -f UTF-16 -t UTF-8 FILE | flatout explain";
    } else if (log_.head.starts_with('\x80')) {
      advice = "It may be a PyTorch memory snapshot: flatout devmem explain FILE";
    }
    out_.advice.push_back({"text", std::move(advice)});
  }

  // What is killed from outside, or hangs, leaves no word.
  void tell_end() {
    out_.well = log_.ended_well;
    if (out_.well) return;
    if (log_.cut_off) {
      out_.text += " The last line is cut off: the job still runs, or was killed from outside.";
    } else {
      out_.text += " It does not say that it ended well, either.";
    }
  }

  void tell_notice() {
    take(log_.notices.front());
    look_at_machine(log_.notices.front().rule->look, machine_, out_);
  }

  void tell_unknown(const Pick& pick) {
    out_.kind = "unknown";
    out_.text = fmt::format("Not known: line {} raises {}, and no rule explains it.",
                            pick.unknown->line.number,
                            std::string_view(pick.unknown->line.text).substr(0, 200));
    out_.seen.push_back(pick.unknown->line);
    for (const UnknownException& other : pick.episode->unknown) {
      if (&other != pick.unknown) out_.seen.push_back(other.line);
    }
    out_.advice.push_back(
        {"traceback", "The traceback above that line names the place in the program."});
  }

  void tell_suspects() {
    out_.kind = "unknown";
    out_.text = "Not known: there are lines that look like an error, and no rule explains them.";
    out_.seen = log_.suspects;
  }

  void doubt_since_it_went_on() {
    out_.sure *= 0.5;
    out_.text += " The log goes on with training after it, so the job may have got over it.";
  }

  // "Stop what holds the memory" names who does.
  void name_holder() {
    const auto most = std::max_element(
        out_.holders.begin(), out_.holders.end(),
        [](const auto& a, const auto& b) { return a.bytes.value_or(0) < b.bytes.value_or(0); });
    if (most == out_.holders.end()) return;
    for (model::Suggestion& advice : out_.advice) {
      if (advice.id != "stop_holder") continue;
      advice.text = fmt::format("Stop {}, which holds {}, or take another device.", most->what,
                                size_text(most->bytes.value_or(0)));
    }
  }

  void tell_also() {
    const auto add = [&](const LogEvent& event) {
      const std::string kind(event.rule->kind);
      if (kind == out_.kind || out_.also.size() >= kAlso ||
          std::find(out_.also.begin(), out_.also.end(), kind) != out_.also.end()) {
        return;
      }
      out_.also.push_back(kind);
    };
    for (const Episode& episode : log_.episodes) {
      for (const LogEvent& event : episode.events) add(event);
    }
    for (const LogEvent& event : log_.notices) add(event);
    for (const LogEvent& event : log_.mentions) add(event);
  }

  const LogReading& log_;
  const Machine& machine_;
  Explanation out_;
};

}  // namespace

Explanation explain(const LogReading& log, const Machine& machine) {
  return Answer(log, machine).make();
}

Explanation explain_event(const LogReading& log, const LogEvent& event) {
  Explanation out;
  tell_rule(event, out);
  add_figures(log, event, out);
  return out;
}

}  // namespace flatout::advise
