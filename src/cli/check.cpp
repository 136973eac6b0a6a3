// flatout check: what will hold a job up, before it starts.
#include "advise/check.h"

#include <unistd.h>

#include <cstdlib>
#include <filesystem>

#include "base/log.h"
#include "base/text.h"
#include "cli/commands.h"
#include "cli/options.h"
#include "cli/outputs.h"
#include "report/advice_json.h"
#include "report/advice_text.h"

namespace flatout::cli {
namespace {

const Usage kCheck{
    "check",
    "[DATA...] [options]",
    "Says before training what on this machine will stop the job or hold it up. Exit code 3 if "
    "something will stop it.",
    "  flatout check\n"
    "  flatout check /data/imagenet            # and where the data lies\n"
    "  flatout check --json && python train.py\n"
    "  flatout check --self                    # what Flatout can measure here",
    {"self", "no_contexts"},
    true,
    false,
    false,
    0,
    1000};

}  // namespace

int check(const std::vector<std::string>& arguments) {
  int code = 0;
  const auto settings = parse(kCheck, arguments, code);
  if (!settings) return code;
  advise::MachineOptions options;
  options.pythons = advise::find_pythons(fs::Root(), std::getenv);
  options.try_contexts = !settings->no_contexts && !settings->self;
  options.access = settings->self;
  for (const std::string& path : settings->positional) {
    std::error_code error;
    const std::filesystem::path full = std::filesystem::canonical(path, error);
    if (error) {
      log_error("cannot look at " + escape_terminal(path) + ": " + error.message());
      return 1;
    }
    options.data.push_back(full.string().substr(1));
  }
  const advise::Machine machine = advise::read_machine(fs::Root(), options);
  const model::CheckUp found =
      settings->self ? advise::check_self(machine) : advise::check_up(machine);
  const Status put = write_text(
      "", settings->json ? report::check_up_json(found)
                         : report::render_check_up(found, report::options_for(STDOUT_FILENO)));
  if (!put.ok()) {
    log_error(put.error().message);
    return 1;
  }
  return found.ok() ? 0 : 3;
}

}  // namespace flatout::cli
