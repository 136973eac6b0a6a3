#include "remedy/fix_text.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/stats.h"
#include "base/text.h"
#include "remedy/fix_file.h"
#include "remedy/fix_words.h"

namespace flatout::remedy {
namespace {

std::string table(const std::vector<Attempt>& attempts) {
  std::vector<std::vector<std::string>> rows = {
      {"remedy", "answers", "predicted", "measured (95 %)", "verdict", "losses"}};
  for (const Attempt& attempt : attempts) {
    rows.push_back(
        {std::string(attempt.candidate.remedy->id),
         attempt.candidate.finding.empty() ? "-" : attempt.candidate.finding,
         attempt.candidate.predicted ? fmt::format("{:.2f}x", *attempt.candidate.predicted) : "-",
         measured(attempt.decision), verdict_words(attempt), std::string(name(attempt.losses))});
  }
  std::vector<size_t> widths(rows[0].size());
  for (const auto& row : rows) {
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  std::string out;
  for (const auto& row : rows) {
    std::string line = " ";
    for (size_t i = 0; i < row.size(); ++i) line += fmt::format(" {:<{}} ", row[i], widths[i]);
    out += line.substr(0, line.find_last_not_of(' ') + 1) + "\n";
  }
  return out;
}

std::string permanent(const Attempt& attempt) {
  const Remedy& remedy = *attempt.candidate.remedy;
  std::string out = fmt::format("  {}: {}\n", remedy.id, attempt.what);
  for (const std::string& line : shell_lines(attempt))
    out += "    shell   " + escape_terminal(line) + "\n";
  if (!attempt.code.empty()) {
    const auto& where = attempt.candidate.where;
    out += "    code    " + attempt.code;
    if (where)
      out += fmt::format("  # for what is at {}:{}", escape_terminal(where->file), where->line);
    out += "\n";
  }
  out += fmt::format("    class   {}; losses of the trials: {}\n", name(remedy.effect),
                     name(attempt.losses));
  if (!remedy.risk.empty()) out += fmt::format("    risk    {}\n", remedy.risk);
  return out;
}

}  // namespace

std::string render_fix(const std::vector<std::string>& command, const Outcome& outcome,
                       const std::string& fix_path) {
  const TrialRun& base = outcome.baseline;
  std::string out =
      fmt::format("As it is: {:.2f} ms a step, {}", 1e3 * mean(base.seconds), base.verdict);
  if (!base.findings.empty()) out += ": " + escape_terminal(base.findings.front().title);
  out += ".\n";
  if (!outcome.tunings.empty()) {
    return out +
           "Nothing is wrong with it, so nothing is changed. `--tune` tries what makes many "
           "jobs faster: " +
           joined(outcome.tunings) + ".\n";
  }
  if (outcome.attempts.empty() && outcome.not_tried.empty()) {
    out += "No remedy that flatout can apply fits what was found.\n";
  } else if (!outcome.attempts.empty()) {
    out += "\n" + table(outcome.attempts);
    for (const Attempt& attempt : outcome.attempts) {
      if (!attempt.note.empty()) {
        out +=
            fmt::format("  {}: {}\n", attempt.candidate.remedy->id, escape_terminal(attempt.note));
      }
    }
  }
  if (const std::string why = nothing_tried(outcome); !why.empty()) return out + why + "\n";
  if (!outcome.not_tried.empty()) {
    out += fmt::format("\nNot tried, for want of time: {} (--budget gives more).\n",
                       joined(outcome.not_tried));
  }
  if (const auto left = unanswered(outcome); !left.empty()) {
    out += "\nLeft, and by hand only, since no remedy could be tried:\n";
    for (const model::Finding* finding : left)
      out += "  " + escape_terminal(unanswered_words(*finding)) + "\n";
  }
  if (outcome.stopped) out += "\nInterrupted: this is what is known so far.\n";
  if (!outcome.stopped_by.empty())
    out += "\nEnded early: " + escape_terminal(outcome.stopped_by) + "\n";
  if (outcome.kept.empty()) {
    return out + "\n" + nothing_kept(outcome) + ".\n";
  }
  if (outcome.together) {
    out += fmt::format("\nAll that is kept, against the job as it is: {}\n",
                       measured(*outcome.together));
  }
  out += "\nTo keep it:\n";
  if (!fix_path.empty()) {
    out += fmt::format("  flatout run --with {} -- {}\n", escape_terminal(shell_word(fix_path)),
                       escape_terminal(shell_command(command)));
  }
  out += "or by hand:\n";
  for (const Attempt& attempt : outcome.attempts) {
    if (attempt.kept && superseded_by(outcome, attempt) == nullptr) out += permanent(attempt);
  }
  return out;
}

}  // namespace flatout::remedy
