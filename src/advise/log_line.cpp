#include "advise/log_line.h"

#include <algorithm>

#include "base/contains.h"
#include "base/text.h"

namespace flatout::advise {
namespace {

constexpr size_t kMostOfProgress = 400;  // bytes of a line in which its step stands

bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }
bool is_name(char c) { return is_digit(c) || is_letter(c) || c == '_' || c == '.'; }
char lower(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; }

// `word` as a word of its own; NCCL_DEBUG=INFO is a setting.
bool has_level(std::string_view head, std::string_view word) {
  for (size_t at = head.find(word); at != std::string_view::npos; at = head.find(word, at + 1)) {
    const char before = at == 0 ? ' ' : head[at - 1];
    const size_t end = at + word.size();
    const char after = end == head.size() ? ' ' : head[end];
    if (is_letter(before) || before == '_' || before == '=' || is_letter(after) || after == '_') {
      continue;
    }
    if (!head.substr(0, at).ends_with("NCCL ") || word == "INFO") return true;
  }
  return false;
}

// glog's "W0612 10:00:01", "[W socket.cpp:436]", "[W612 10:00", and TensorFlow's "...: W tensor".
bool has_glog_level(std::string_view head) {
  for (size_t at = 0; at + 1 < head.size(); ++at) {
    const char c = head[at];
    if (c != 'W' && c != 'I' && c != 'D' && c != 'V') continue;
    const char before = at == 0 ? ' ' : head[at - 1];
    const char after = head[at + 1];
    const bool begins = at == 0 || before == '[' || before == ' ' || before == ':';
    if (begins && is_digit(after) && at + 3 < head.size() && is_digit(head[at + 2]) &&
        is_digit(head[at + 3])) {
      return true;
    }
    if (after != ' ') continue;
    if (before == '[' || (at >= 2 && before == ' ' && head[at - 2] == ':')) return true;
  }
  return false;
}

bool is_bar(std::string_view line) {
  constexpr std::string_view kRates[] = {"it/s", "s/it"};
  return contains(line, "|") && contains_any(line, kRates);
}

// "Epoch: [3]", "step 12", "loss=0.5": a word of training and a number behind it.
bool has_counter(std::string_view line) {
  constexpr std::string_view kWords[] = {"epoch", "step",     "iteration", "iter",
                                         "loss",  "accuracy", "acc",       "batch"};
  for (size_t at = 0; at < line.size(); ++at) {
    constexpr std::string_view kFirst = "esilab";
    if (kFirst.find(lower(line[at])) == std::string_view::npos) continue;
    if (at > 0 && (is_letter(line[at - 1]) || line[at - 1] == '.')) continue;
    for (const std::string_view word : kWords) {
      if (line.size() - at <= word.size() ||
          !std::equal(word.begin(), word.end(), line.begin() + static_cast<std::ptrdiff_t>(at),
                      [](char w, char c) { return w == lower(c); })) {
        continue;
      }
      std::string_view rest = line.substr(at + word.size());
      const size_t value = rest.find_first_not_of(" :=[(#'\"\t");
      if (value != std::string_view::npos && value > 0 && value <= 8 && is_digit(rest[value])) {
        return true;
      }
    }
  }
  return false;
}

// "  Warning  Evicted  4m  kubelet  ...": a column of `kubectl describe` and `kubectl get events`,
// where whatever goes wrong is a warning.
bool is_kubernetes_event(std::string_view line) {
  constexpr std::string_view kKind = "Warning  ";
  const size_t kind = line.find(kKind);
  if (kind == std::string_view::npos || (kind > 0 && line[kind - 1] != ' ')) return false;
  const std::string_view reason = trim(line.substr(kind + kKind.size()));
  return !reason.empty() && reason[0] >= 'A' && reason[0] <= 'Z';
}

}  // namespace

bool is_exception(std::string_view line) {
  const size_t end =
      static_cast<size_t>(std::find_if_not(line.begin(), line.end(), is_name) - line.begin());
  if (end == 0 || is_digit(line[0]) || line[0] == '.') return false;
  const std::string_view rest = line.substr(end);
  if (!rest.empty() && !rest.starts_with(": ") && rest != ":") return false;
  const std::string_view name = line.substr(0, end);
  const std::string_view last = name.substr(name.rfind('.') + 1);
  if (last.empty()) return false;
  const bool dotted = last.size() != name.size();
  const bool upper = last[0] >= 'A' && last[0] <= 'Z';
  const bool ends = last.ends_with("rror") || last.ends_with("timeout") || last.ends_with("xit");
  return (upper && (dotted || last.size() > 4)) || ends;
}

std::string_view without_rank(std::string_view line) {
  if (!line.starts_with("[rank") && !line.starts_with("[default")) return line;
  const size_t end = line.find("]:");
  if (end > 16) return line;
  line.remove_prefix(end + 2);
  if (line.starts_with(' ')) line.remove_prefix(1);
  return line;
}

bool is_quoted(std::string_view line) {
  line = trim(line);
  if (line.starts_with("+ ") || line.starts_with("++ ") || line.starts_with("$ ") ||
      line.starts_with("// ")) {
    return true;
  }
  // "#0  0x7f... in main ()" is a debugger's.
  return line.size() > 1 && line[0] == '#' && !is_digit(line[1]);
}

bool is_mere_warning(std::string_view line, size_t at) {
  if (is_kubernetes_event(line)) return false;
  const std::string_view head = line.substr(0, at);
  constexpr std::string_view kLevels[] = {"WARNING", "WARN", "INFO", "DEBUG", "NOTICE"};
  constexpr std::string_view kWords[] = {"Warning",    "warning:",  "[info",       "[warn",
                                         "[debug",     "level=inf", "level=warn",  "level=debug",
                                         "\":\"info",  "\":\"warn", "\": \"info",  "\": \"warn",
                                         "\":\"debug", "wandb: ",   "\": \"debug", "\": \"WARN"};
  return contains_any(head, kWords) || has_glog_level(head) ||
         std::any_of(std::begin(kLevels), std::end(kLevels),
                     [&](std::string_view level) { return has_level(head, level); });
}

bool is_logged_error(std::string_view line) {
  const std::string_view head = line.substr(0, 120);
  return has_level(head, "ERROR") || has_level(head, "CRITICAL");
}

bool is_got_over(std::string_view line, size_t at) {
  constexpr std::string_view kDone[] = {"etrying", "will retry",  "kipping",   "kipped",  "gnoring",
                                        "gnored",  "alling back", "succeeded", "ecovered"};
  constexpr std::string_view kMight[] = {"f you ", " avoid ", "n case of "};
  return contains_any(line, kDone) || contains_any(line.substr(0, at), kMight);
}

Progress progress_of(std::string_view line) {
  line = line.substr(0, kMostOfProgress);
  if (is_bar(line)) return Progress::kBar;
  // Weights & Biases sums up a run that failed, too; Slurm has steps of its own.
  constexpr std::string_view kOthers[] = {"wandb:", "slurmstepd:", "srun:", "    ", "\t"};
  if (std::any_of(std::begin(kOthers), std::end(kOthers),
                  [&](std::string_view other) { return line.starts_with(other); })) {
    return Progress::kNone;
  }
  constexpr std::string_view kEndedWell[] = {
      "exit code 0",           "exit code: 0",         "exited with code 0", "exit status 0",
      "raining complete",      "raining finished",     "raining done",       "inished training",
      "ompleted successfully", "inished successfully", "'train_runtime': "};
  constexpr std::string_view kSaved[] = {"saved", "Saved", "Saving"};
  constexpr std::string_view kModels[] = {"heckpoint", "odel", "eights", ".pt", ".ckpt", "epoch"};
  if (contains_any(line, kEndedWell)) return Progress::kEnd;
  constexpr std::string_view kStudy = " finished with value";  // a trial of Optuna's
  if (contains(line, "Trial ") && contains(line, kStudy)) return Progress::kStep;
  const bool saved = contains_any(line, kSaved) && contains_any(line, kModels);
  return saved || has_counter(line) ? Progress::kStep : Progress::kNone;
}

}  // namespace flatout::advise
