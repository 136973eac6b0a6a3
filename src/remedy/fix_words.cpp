#include "remedy/fix_words.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <string_view>

namespace flatout::remedy {

std::string joined(const std::vector<std::string>& words) {
  return fmt::format("{}", fmt::join(words, " "));
}

std::string quoted(const std::string& value) {
  std::string out = "'";
  for (const char c : value) out += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return out + "'";
}

std::string shell_word(const std::string& word) {
  const bool plain = !word.empty() && std::all_of(word.begin(), word.end(), [](unsigned char c) {
    return std::isalnum(c) != 0 ||
           std::string_view("-_./:=,@%+").find(static_cast<char>(c)) != std::string_view::npos;
  });
  return plain ? word : quoted(word);
}

std::string shell_command(const std::vector<std::string>& words) {
  std::string out;
  for (const std::string& word : words) {
    // What stands before the program and has a '=' would be a variable to the shell.
    const bool variable = out.empty() && word.find('=') != std::string::npos;
    out += (out.empty() ? "" : " ") + (variable ? quoted(word) : shell_word(word));
  }
  return out;
}

std::string measured(const Decision& decision) {
  if (decision.pairs == 0) return "-";
  // One look at runs that differ widely bounds nothing.
  if (decision.high > 10 * decision.gain) return fmt::format("{:.2f}x (not sure)", decision.gain);
  return fmt::format("{:.2f}x ({:.2f} to {:.2f})", decision.gain, decision.low, decision.high);
}

std::string nothing_tried(const Outcome& outcome) {
  if (!outcome.nothing_tried() || outcome.stopped || !outcome.stopped_by.empty()) return "";
  std::string out = "Nothing was tried, for want of time: " + joined(outcome.not_tried) + ".";
  if (outcome.short_by > 0) {
    // Runs are not all of one length: a little more than this one would have taken.
    out += fmt::format(" A first trial needs about {:.0f} s more than --budget gave.",
                       std::ceil(1.1 * outcome.short_by));
  }
  return out;
}

std::vector<const model::Finding*> unanswered(const Outcome& outcome) {
  constexpr double kWorthAWord = 1.05;
  const auto answers = [](const Remedy* remedy, const std::string& id) {
    return remedy != nullptr && std::ranges::find(remedy->answers, id) != remedy->answers.end();
  };
  std::vector<const model::Finding*> out;
  for (const model::Finding& finding : outcome.left) {
    if (finding.gain.value_or(0) < kWorthAWord) continue;
    const bool answered = std::ranges::any_of(outcome.attempts,
                                              [&](const Attempt& a) {
                                                return answers(a.candidate.remedy, finding.id);
                                              }) ||
                          std::ranges::any_of(outcome.not_tried, [&](const std::string& id) {
                            return answers(find_remedy(id), finding.id);
                          });
    if (!answered && out.size() < 3) out.push_back(&finding);
  }
  return out;
}

std::string unanswered_words(const model::Finding& finding) {
  std::string out = fmt::format("{} ({:.2f}x)", finding.id, *finding.gain);
  if (finding.where) out += fmt::format(", {}:{}", finding.where->file, finding.where->line);
  if (!finding.remedies.empty()) out += ": " + finding.remedies.front().text;
  return out;
}

std::string nothing_kept(const Outcome& outcome) {
  return outcome.stopped ? "Nothing was sure yet: nothing is kept"
                         : "Nothing measurably helps: nothing is kept";
}

const Attempt* superseded_by(const Outcome& outcome, const Attempt& attempt) {
  const Setting& before = attempt.setting;
  if (before.allocator || !before.prefix.empty()) return nullptr;
  const auto all_in = [](const auto& names, const auto& others) {
    return std::all_of(names.begin(), names.end(),
                       [&](const auto& entry) { return others.contains(entry.first); });
  };
  // In the order in which they were kept.
  bool later = false;
  for (const Attempt& other : outcome.attempts) {
    if (later && other.kept && all_in(before.agent, other.setting.agent) &&
        all_in(before.environment, other.setting.environment)) {
      return &other;
    }
    later |= &other == &attempt;
  }
  return nullptr;
}

std::string verdict_words(const Attempt& attempt) {
  const Decision& decision = attempt.decision;
  if (decision.verdict == Verdict::kUndecided && decision.pairs == 0 && !attempt.note.empty())
    return "not judged";
  std::string out(name(decision.verdict));
  if (attempt.kept) out += ", kept";
  return out;
}

}  // namespace flatout::remedy
