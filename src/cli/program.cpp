// Picks the command. Its help is the first thing that a new user sees: examples come first.
#include <fmt/format.h>

#include <cstdio>
#include <new>
#include <system_error>

#include "base/log.h"
#include "base/text.h"
#include "cli/commands.h"
#include "cli/json_file.h"
#include "cli/manual.h"
#include "cli/options.h"

namespace flatout::cli {
namespace {

constexpr std::string_view kHelp =
    R"(flatout finds why a training job is slow, erratic or out of memory.

  flatout run -- python train.py        start a job, watch it, name what holds it up
  flatout attach 4121                   the same for a job that runs already
  flatout attach 4121 --dump            what all of its threads do right now
  flatout top                           who uses the cores, memory, disks, GPUs; training jobs
  flatout fix -- python train.py        try what might help on the job itself, keep what does
  flatout report                        the last run's report again
  flatout compare OLD NEW               why yesterday was faster
  flatout trace summary trace.json.gz   what held a job up, from a profiler's trace
  flatout heap --leaks -- python train.py   which lines never free their memory
  flatout devmem replay memory.pickle   how much memory other allocators would take
  flatout feed bench train/             what a data set of pictures costs to read
  flatout check                         what will go wrong, before it starts
  flatout explain train.log             what went wrong first, why, and what to do
  flatout serve flatout-runs            all runs in a browser, live, and metrics for Prometheus

Commands:
  run        start a job and watch it; the exit code is the job's own
  attach     watch a running job from outside
  top        full-screen live view; one look with --once or --json
  fix        try remedies in short runs of the job; say which help, by how much
  report     make the report again from a run folder
  compare    what changed between two runs, and what each change costs
  serve      a live page of runs and metrics for Prometheus over HTTP
  merge      one report of the run folders of a job's ranks
  trace      analysis of traces from PyTorch, TensorFlow, Chrome, Perfetto
  heap       host memory of a job by line: live, peak, what grows
  devmem     device memory: which allocator and batch fit, why it ran out, a limit
  feed       measure, check and pack a data set with Flatout's own input pipeline
  check      what on this machine will stop a job or hold it up
  cache      the page cache of a data set: status, warm, drop
  explain    what went wrong, from a log or a traceback
  train      the embedded trainer: a job to try it on, with causes to build in
  completion for bash, zsh or fish

Each has --help. Options may also be given as variables (FLATOUT_RATE=20): docs/options.md.
)";

struct Command {
  std::string_view name;
  int (*function)(const std::vector<std::string>&);
  std::vector<std::string> parts;  // commands of its own
};

const Command kCommands[] = {
    {"run", run, {}},
    {"attach", attach, {}},
    {"top", top, {}},
    {"fix", fix, {}},
    {"report", report, {}},
    {"compare", compare, {}},
    {"serve", serve, {}},
    {"merge", merge, {}},
    {"trace", trace, {"summary", "report", "diff", "convert", "slice", "record"}},
    {"check", check, {}},
    {"explain", explain, {}},
    {"cache", cache, {"status", "warm", "drop"}},
    {"heap", heap, {}},
    {"devmem", devmem, {"replay", "batch", "explain", "limit"}},
    {"feed", feed, {"bench", "verify", "pack", "index"}},
    {"train", train, {}},
    {"completion", completion, {}},
    {"manual", manual, {}},
};

// Files may be larger than the memory that there is, and no further thread be allowed.
int run_command(const Command& command, const std::vector<std::string>& arguments) {
  const int failed = command.name == "run" ? 125 : 1;
  try {
    return command.function({arguments.begin() + 1, arguments.end()});
  } catch (const std::bad_alloc&) {
    log_error("there is not enough memory to hold what it reads",
              "give it a smaller file, or raise the limit (ulimit -v, the container's)");
    return failed;
  } catch (const std::system_error& error) {
    log_error("cannot start a thread: " + error.code().message(),
              "see ulimit -u and the container's limit of pids: flatout check");
    return failed;
  }
}

}  // namespace

std::vector<Usage> all_usages() {
  std::vector<Usage> out;
  record_usages(&out);
  for (const Command& command : kCommands) {
    if (command.parts.empty()) command.function({});
    for (const std::string& part : command.parts) command.function({part});
  }
  record_usages(nullptr);
  return out;
}

int main_program(const std::vector<std::string>& arguments) {
  if (arguments.empty()) {
    std::fputs(folded(kHelp).c_str(), stderr);
    return 2;
  }
  const std::string& first = arguments[0];
  if (first == "--help" || first == "-h" || first == "help") {
    if (first == "help" && arguments.size() > 1) return main_program({arguments[1], "--help"});
    std::fputs(folded(kHelp).c_str(), stdout);
    return 0;
  }
  if (first == "--version" || first == "-V" || first == "version") {
    fmt::print("flatout {}\n", FLATOUT_VERSION);
    return 0;
  }
  if (first == kLiveView) return live_view({arguments.begin() + 1, arguments.end()});
  std::vector<std::string_view> names;
  for (const Command& command : kCommands) {
    if (first == command.name) return end_json_file(run_command(command, arguments));
    names.push_back(command.name);
  }
  const std::string_view meant = nearest(first, names);
  const std::string shown = escape_terminal(first);
  if (!meant.empty()) {
    return bad_usage(fmt::format("there is no command '{}'", shown),
                     fmt::format("did you mean flatout {}?", meant));
  }
  return bad_usage(fmt::format("there is no command '{}'", shown),
                   first[0] == '-' ? "flatout --help"
                                   : fmt::format("to start a job: flatout run -- {} ...", shown));
}

}  // namespace flatout::cli
