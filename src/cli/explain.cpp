// flatout explain: why did it fail, from its log.
#include "advise/explain.h"

#include <unistd.h>

#include "base/log.h"
#include "cli/commands.h"
#include "cli/options.h"
#include "cli/outputs.h"
#include "report/advice_json.h"
#include "report/advice_text.h"

namespace flatout::cli {
namespace {

const Usage kExplain{
    "explain",
    "[FILE] [options]",
    "Reads a log or a traceback of any length and says what went wrong first, why, and what to do.",
    "  flatout explain train.log\n"
    "  python train.py 2>&1 | flatout explain\n"
    "  dmesg | flatout explain --json",
    {},
    true,
    false,
    false,
    0,
    1};

}  // namespace

int explain(const std::vector<std::string>& arguments) {
  int code = 0;
  const auto settings = parse(kExplain, arguments, code);
  if (!settings) return code;
  const std::string file = settings->positional.empty() ? "" : settings->positional[0];
  if (file.empty()) tell_standard_input("a log");
  auto log = advise::read_log(file);
  if (!log.ok()) {
    log_error(log.error().message, log.error().hint);
    return 1;
  }
  const model::Explanation explanation =
      advise::explain(*log, advise::read_machine(fs::Root(), {}));
  const Status put = write_text(
      "", settings->json
              ? report::explanation_json(explanation)
              : report::render_explanation(explanation, report::options_for(STDOUT_FILENO)));
  if (!put.ok()) log_error(put.error().message);
  return put.ok() ? 0 : 1;
}

}  // namespace flatout::cli
