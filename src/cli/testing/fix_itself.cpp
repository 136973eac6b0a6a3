// A/A trials for bench/fix: the search of `flatout fix`, with a single remedy that changes nothing.
// Prints the verdict, the gain and its bounds; appends the step times of all runs, in order, a line
// of milliseconds each, to a file. Usage: fix_itself [--steps FILE] [--] COMMAND...
#include <fmt/format.h>

#include <fstream>
#include <string>
#include <vector>

#include "cli/outputs.h"
#include "remedy/runner.h"

int main(int argc, char** argv) {
  using namespace flatout;  // the whole program is about it
  std::vector<std::string> command(argv + 1, argv + argc);
  std::string steps;
  if (command.size() > 1 && command[0] == "--steps") {
    steps = command[1];
    command.erase(command.begin(), command.begin() + 2);
  }
  if (!command.empty() && command[0] == "--") command.erase(command.begin());
  if (command.empty()) {
    fmt::print(stderr, "fix_itself [--steps FILE] -- COMMAND...\n");
    return 2;
  }
  constexpr double kBudget = 180;  // seconds, as flatout fix has
  auto runner = remedy::JobRunner::open(command, kBudget, cli::judge, [](const std::string&) {});
  if (!runner.ok()) {
    fmt::print(stderr, "{}\n", runner.error().message);
    return 1;
  }
  const remedy::Remedy nothing{.id = "nothing",
                               .what = "nothing",
                               .fits = [](const remedy::Situation&) { return true; },
                               .environment = {{"FLATOUT_TRIES_NOTHING", "1"}}};
  remedy::SearchOptions options;
  options.instead = {&nothing};
  const auto outcome = remedy::search(**runner, options);
  if (!outcome.ok() || outcome->attempts.empty()) {
    fmt::print(stderr, "{}\n", outcome.ok() ? "nothing was tried" : outcome.error().message);
    return 1;
  }
  const remedy::Attempt& attempt = outcome->attempts.front();
  if (!steps.empty()) {
    std::ofstream out(steps, std::ios::app);
    size_t next[2] = {0, 0};
    for (size_t i = 0; i < attempt.a_seconds.size() + attempt.b_seconds.size(); ++i) {
      const bool is_b = i % 4 == 1 || i % 4 == 2;  // A B B A
      const auto& runs = is_b ? attempt.b_seconds : attempt.a_seconds;
      if (next[is_b] == runs.size()) break;
      std::string line;
      for (const double seconds : runs[next[is_b]++]) line += fmt::format(" {:.4g}", 1e3 * seconds);
      out << line.substr(1) << "\n";
    }
  }
  const remedy::Decision& decision = attempt.decision;
  fmt::print("{}: {:.3f}x ({:.3f} to {:.3f}), {} pairs\n", remedy::name(decision.verdict),
             decision.gain, decision.low, decision.high, decision.pairs);
  return 0;
}
