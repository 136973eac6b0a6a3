// A/A trials for bench/fix: the search of `flatout fix`, with a single remedy that changes nothing.
// Prints the verdict, the gain and its bounds. Usage: fix_itself [-- ]COMMAND...
#include <fmt/format.h>

#include <string>
#include <vector>

#include "cli/outputs.h"
#include "remedy/runner.h"

int main(int argc, char** argv) {
  using namespace flatout;  // the whole program is about it
  std::vector<std::string> command(argv + 1, argv + argc);
  if (!command.empty() && command[0] == "--") command.erase(command.begin());
  if (command.empty()) {
    fmt::print(stderr, "fix_itself -- COMMAND...\n");
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
  const remedy::Decision& decision = outcome->attempts.front().decision;
  fmt::print("{}: {:.3f}x ({:.3f} to {:.3f}), {} pairs\n", remedy::name(decision.verdict),
             decision.gain, decision.low, decision.high, decision.pairs);
  return 0;
}
