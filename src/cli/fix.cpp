// flatout fix: try remedies on the job itself, keep what measurably helps.
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <utility>

#include "base/contains.h"
#include "base/fs.h"
#include "base/log.h"
#include "base/text.h"
#include "cli/commands.h"
#include "cli/options.h"
#include "cli/outputs.h"
#include "remedy/fix_file.h"
#include "remedy/fix_html.h"
#include "remedy/fix_text.h"
#include "remedy/isolation.h"
#include "remedy/runner.h"
#include "timeline/import_folder.h"

namespace flatout::cli {
namespace {

const Usage kFix{
    "fix",
    "[options] -- COMMAND...",
    "Runs the job shortly, again and again, without and with each remedy that fits what is found; "
    "keeps what measurably helps.",
    "  flatout fix -- python train.py\n"
    "  flatout fix --budget 10m -- python train.py       # more time, more remedies\n"
    "  flatout fix --json=result.json -- python train.py\n"
    "  flatout run --with fix.json -- python train.py    # the job with what was found",
    {"out", "budget", "yes", "skip", "tune", "allow_changing", "quiet"},
    true,
    true,
    true,
    1,
    1'000'000};

// "90", "90s", "3m", "1h": seconds.
std::optional<double> seconds_of(std::string_view text) {
  double unit = 1;
  if (!text.empty()) {
    const char last = text.back();
    if (last == 'm') unit = 60;
    if (last == 'h') unit = 3600;
    if (last == 's' || last == 'm' || last == 'h') text.remove_suffix(1);
  }
  const auto number = parse_number<double>(text);
  constexpr double kMost = 1e9;  // 31 years
  if (!number || !(*number > 0 && *number * unit <= kMost)) return std::nullopt;
  return *number * unit;
}

// What a run in its folder, which goes on, has done so far: where no agent tells.
std::optional<remedy::OutsideSteps> outside_steps(const std::string& folder) {
  const auto run = timeline::read_run_folder(folder);
  if (!run.ok() || run->steps.source != model::StepSource::kRepetition) return std::nullopt;
  const std::vector<model::Step>& steps = run->steps.steps;
  if (steps.empty()) return std::nullopt;
  return remedy::OutsideSteps{steps.size(), steps.back().end - steps.front().begin};
}

bool asks_and_hears_yes() {
  if (::isatty(STDIN_FILENO) == 0 || ::isatty(STDERR_FILENO) == 0) return false;
  std::fputs("Go on? [y/N] ", stderr);
  const int answer = std::getchar();
  return answer == 'y' || answer == 'Y';
}

struct Results {
  std::string json, page, env;
};

Results results_in(const std::string& folder) {
  const std::string at = folder.empty() ? "" : folder + "/";
  return {at + "fix.json", at + "fix.html", at + "flatout.env"};
}

// What is there under the names of our results has to be one.
Status may_replace(const Results& results) {
  const auto foreign = [](const std::string& path) {
    return Error{Code::kBadInput,
                 escape_terminal(path) + " is there already, and not of flatout fix",
                 "--out DIR puts the result elsewhere"};
  };
  const auto found = remedy::read_fix_file(results.json);
  if (!found.ok() && found.error().code != Code::kNotFound) return foreign(results.json);
  for (const auto& [path, mark] : {std::pair{results.page, remedy::kFixPageMark},
                                   std::pair{results.env, remedy::kEnvFileMark}}) {
    const auto text = fs::Root(path.starts_with('/') ? "/" : ".").read(path, 64 << 20);
    const bool absent = !text.ok() && text.error().code == Code::kNotFound;
    if (!absent && (!text.ok() || !contains(*text, mark))) return foreign(path);
  }
  return {};
}

// Whether the results can be written, before the time for them is spent.
Status make_folder(const std::string& folder) {
  if (::mkdir(folder.c_str(), 0777) != 0 && errno != EEXIST)
    return fs::error_from_errno(errno, "cannot make " + escape_terminal(folder));
  if (::access(folder.c_str(), W_OK | X_OK) != 0)
    return fs::error_from_errno(errno, "cannot write into " + escape_terminal(folder));
  struct stat info = {};
  if (::stat(folder.c_str(), &info) != 0 || !S_ISDIR(info.st_mode))
    return Error{Code::kBadInput, escape_terminal(folder) + " is no folder", "--out DIR"};
  return {};
}

// Says what the trials do to the world; false where the user does not want that.
bool agreed(const remedy::JobRunner& runner, const Settings& settings) {
  if (runner.why_not_isolated().empty()) {
    if (!settings.quiet) {
      log_warning(fmt::format(
          "the trials start the job many times. What they write to files goes to a scratch folder, "
          "except below {}; W&B and "
          "MLflow are offline. Other effects on the network cannot be undone.",
          remedy::kNotIsolated));
    }
    return true;
  }
  log_warning(
      fmt::format("the trials start the job many times, and what they write cannot be kept away "
                  "from your files ({}). Within "
                  "Python, files that are opened for writing and checkpoints go to a scratch "
                  "folder; folders that are made, "
                  "files that are removed or renamed, and what other programs write do not.",
                  escape_terminal(runner.why_not_isolated())));
  if (settings.yes || asks_and_hears_yes()) return true;
  // Root's namespaces are of its own making: the kernel keeps it from less.
  log_error("not started", ::geteuid() == 0
                               ? "--yes goes on all the same"
                               : "--yes goes on all the same; as root files can be kept safe");
  return false;
}

}  // namespace

int fix(const std::vector<std::string>& arguments) {
  int code = 0;
  const auto settings = parse(kFix, arguments, code);
  if (!settings) return code;
  const auto budget = seconds_of(settings->budget);
  if (!budget) {
    return bad_usage(fmt::format("--budget {} is no time", escape_terminal(settings->budget)),
                     "--budget 3m");
  }
  std::vector<std::string> skip;
  for (const std::string_view id : split(settings->skip, ',')) {
    if (id.empty()) continue;
    if (remedy::find_remedy(id) == nullptr) {
      std::string known;
      for (const remedy::Remedy& remedy : remedy::catalogue())
        known += " " + std::string(remedy.id);
      return bad_usage(fmt::format("there is no remedy '{}'", escape_terminal(id)),
                       "there are:" + known);
    }
    skip.emplace_back(id);
  }
  const std::vector<std::string>& command = settings->positional;
  if (command.size() > 1 && command[0].substr(command[0].rfind('/') + 1) == "flatout" &&
      command[1] == "run") {
    return bad_usage("the trials watch the job themselves",
                     "flatout fix -- COMMAND, without `flatout run`");
  }
  const Results results = results_in(settings->out);
  if (const Status made = make_folder(settings->out.empty() ? "." : settings->out); !made.ok()) {
    log_error(made.error().message, made.error().hint);
    return 1;
  }
  if (const Status may = may_replace(results); !may.ok()) {
    log_error(may.error().message, may.error().hint);
    return 2;
  }
  const bool tells = !settings->quiet;
  const auto tell = [tells](const std::string& line) {
    if (tells) fmt::print(stderr, "flatout: {}\n", escape_terminal(line));
  };
  auto opened = remedy::JobRunner::open(command, *budget, judge, tell, outside_steps);
  if (!opened.ok()) {
    log_error(opened.error().message, opened.error().hint);
    return 1;
  }
  remedy::JobRunner& runner = **opened;
  if (!agreed(runner, *settings)) return 1;
  runner.start_clock();
  remedy::SearchOptions options;
  options.tune = settings->tune;
  options.allow_changing = settings->allow_changing;
  options.skip = skip;
  const auto outcome = remedy::search(runner, options);
  if (!outcome.ok()) {
    log_error(outcome.error().message, outcome.error().hint);
    return 1;
  }
  const std::string json = remedy::fix_json(command, *outcome, runner.why_not_isolated().empty());
  Status written = fs::write_atomically(results.json, json);
  if (written.ok()) {
    written = fs::write_atomically(results.env, remedy::env_file(outcome->setting));
  }
  if (written.ok()) {
    written = fs::write_atomically(results.page, remedy::fix_page(command, *outcome, results.json));
  }
  const std::string table = remedy::render_fix(command, *outcome, written.ok() ? results.json : "");
  if (settings->json) {
    if (tells) std::fputs(table.c_str(), stderr);
    if (written.ok()) written = write_text("", json);
  } else {
    if (tells) {
      const Status put = write_text("", table);
      if (!put.ok()) return 1;
    }
    if (!settings->json_file.empty() && written.ok())
      written = write_text(settings->json_file, json);
  }
  if (!written.ok()) {
    log_error(written.error().message, written.error().hint);
    return 1;
  }
  return outcome->nothing_tried() ? 1 : 0;
}

}  // namespace flatout::cli
