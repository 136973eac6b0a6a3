#include "report/words.h"

#include <fmt/format.h>
#include <sys/wait.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>

#include "base/text.h"

namespace flatout::report {

using model::Part;
using model::Run;
using model::StepSource;
using model::ThreadState;

namespace {

/// The word of an enumerator; the first for one that has none.
template <size_t N, typename Enum>
std::string_view word_for(const std::array<std::string_view, N>& words, Enum value) {
  const size_t index = static_cast<size_t>(value);
  return index < N ? words[index] : words[0];
}

}  // namespace

std::string_view label(Part part) {
  static constexpr std::array<std::string_view, model::kPartCount> kLabels = {
      "input wait",    "h2d copy", "forward",    "backward", "optimizer",
      "communication", "sync",     "checkpoint", "other",    "compute"};
  const size_t index = static_cast<size_t>(part);
  return index < kLabels.size() ? kLabels[index] : "other";
}

std::string_view label(ThreadState state) {
  static constexpr std::array<std::string_view, static_cast<size_t>(ThreadState::kCount)> kLabels =
      {"unknown state",
       "runs Python",
       "runs native code",
       "waits for a core",
       "waits for the GIL",
       "waits for a lock",
       "waits for disk",
       "waits for a pipe or socket",
       "sleeps",
       "waits for a child process",
       "runs in the kernel",
       "stopped",
       "waits for memory"};
  return word_for(kLabels, state);
}

std::string_view label(model::IdleCause cause) {
  static constexpr std::array<std::string_view, model::kIdleCauses> kLabels = {
      "the host",
      "launches",
      "a host that waits for it",
      "data to go to the host and back",
      "its own streams",
      "the next batch"};
  return word_for(kLabels, cause);
}

std::string_view label(StepSource source) {
  switch (source) {
    case StepSource::kNone:
      return "not seen";
    case StepSource::kMarkers:
      return "marked by the job";
    case StepSource::kHooks:
      return "seen by the agent";
    case StepSource::kRepetition:
      return "found by repetition";
    case StepSource::kTrace:
      return "from the trace";
  }
  return "not seen";
}

std::string where_text(const model::Where& where) {
  std::string out = where.file;
  if (where.line > 0) out += fmt::format(":{}", where.line);
  if (!where.function.empty()) out += (out.empty() ? "in " : " in ") + where.function;
  return out;
}

namespace {

// "ns::(anonymous namespace)::f(std::string const&)" -> "f"
std::string short_function(std::string_view name) {
  constexpr std::string_view kAnonymous = "(anonymous namespace)::";
  size_t open = name.find('(');
  while (open != std::string_view::npos && name.substr(open).starts_with(kAnonymous)) {
    name.remove_prefix(open + kAnonymous.size());
    open = name.find('(');
  }
  name = name.substr(0, open);
  if (name.find('<') == std::string_view::npos) {
    if (const size_t at = name.rfind("::"); at != std::string_view::npos)
      name.remove_prefix(at + 2);
  }
  return std::string(name);
}

}  // namespace

std::string where_text(const model::Where& where, size_t width) {
  model::Where shorter = where;
  if (where_text(shorter).size() > width && shorter.function.find('(') != std::string::npos) {
    if (const std::string name = short_function(shorter.function); !name.empty()) {
      shorter.function = name;
    }
  }
  if (const size_t slash = shorter.file.rfind('/');
      where_text(shorter).size() > width && slash != std::string::npos) {
    shorter.file = shorter.file.substr(slash + 1);
  }
  return where_text(shorter);
}

namespace {

std::string_view signal_name(int number) {
  static constexpr std::array<std::string_view, 32> kNames = {
      "",         "SIGHUP",  "SIGINT",    "SIGQUIT", "SIGILL",   "SIGTRAP", "SIGABRT", "SIGBUS",
      "SIGFPE",   "SIGKILL", "SIGUSR1",   "SIGSEGV", "SIGUSR2",  "SIGPIPE", "SIGALRM", "SIGTERM",
      "SIGSTKFL", "SIGCHLD", "SIGCONT",   "SIGSTOP", "SIGTSTP",  "SIGTTIN", "SIGTTOU", "SIGURG",
      "SIGXCPU",  "SIGXFSZ", "SIGVTALRM", "SIGPROF", "SIGWINCH", "SIGIO",   "SIGPWR",  "SIGSYS"};
  return number > 0 && static_cast<size_t>(number) < kNames.size()
             ? kNames[static_cast<size_t>(number)]
             : std::string_view();
}

}  // namespace

namespace {

std::string ended_text(int wait_status) {
  if (wait_status < 0) return "";
  if (WIFSIGNALED(wait_status)) {
    const int number = WTERMSIG(wait_status);
    const std::string_view known = signal_name(number);
    return known.empty() ? fmt::format("killed by signal {}", number)
                         : fmt::format("killed by {} (signal {})", known, number);
  }
  return fmt::format("exit code {}", WEXITSTATUS(wait_status));
}

}  // namespace

std::string exit_text(const Run& run) {
  return run.finished ? ended_text(run.wait_status) : "still running";
}

std::string exit_text(const model::Rank& rank) {
  if (rank.finished) {
    const std::string text = ended_text(rank.wait_status);
    return text.empty() ? "ended" : text;
  }
  switch (rank.state) {
    case model::RankState::kInCollective:
      return "waits in a collective";
    case model::RankState::kWorking:
      return "works";
    case model::RankState::kBlocked:
      return "waits for something else";
    case model::RankState::kStopped:
      return "stopped";
    case model::RankState::kUnknown:
      break;
  }
  return "still running";
}

std::vector<const model::Rank*> telling_ranks(const model::RankReport& report, size_t most) {
  std::vector<const model::Rank*> out;
  for (const model::Rank& r : report.ranks) out.push_back(&r);
  std::stable_sort(out.begin(), out.end(), [](const model::Rank* a, const model::Rank* b) {
    return a->late != b->late ? a->late : a->own > b->own;
  });
  if (out.size() > most) out.resize(most);
  return out;
}

bool failed(const Run& run) { return run.finished && run.wait_status > 0; }

std::string command_of(const Run& run) {
  if (const std::string_view fact = run.fact("command"); !fact.empty()) return std::string(fact);
  const model::Process* main = run.main_process();
  if (main == nullptr) return "";
  return main->command.empty() ? main->name : main->command;
}

std::vector<const model::Process*> survivors(const Run& run) {
  std::vector<const model::Process*> out;
  if (!run.finished) return out;
  for (const model::Process& p : run.processes) {
    // One without a parent came and went between two looks: only its own words are known.
    if (p.in_job && !p.main && !p.ended && p.ppid != 0) out.push_back(&p);
  }
  return out;
}

std::string factor_text(double factor) {
  if (factor >= 9.95) return fmt::format("{:.0f}x", factor);
  if (factor >= 1.95) return fmt::format("{:.1f}x", factor);
  return fmt::format("{:.2f}x", factor);
}

std::vector<model::SpeedChange> main_changes(const model::Run& run, size_t most) {
  std::vector<model::SpeedChange> changes = run.steps.changes;
  const auto size = [](const model::SpeedChange& c) {
    return std::fabs(std::log(std::max(to_s(c.after), 1e-9) / std::max(to_s(c.before), 1e-9)));
  };
  std::ranges::stable_sort(changes, std::greater<>(), size);
  changes.resize(std::min(changes.size(), most));
  std::ranges::sort(changes, {}, &model::SpeedChange::index);
  return changes;
}

std::string since_begin(const Run& run, TimePoint at) { return format_duration(at - run.begin); }

}  // namespace flatout::report
