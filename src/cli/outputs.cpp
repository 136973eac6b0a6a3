#include "cli/outputs.h"

#include <fmt/format.h>
#include <unistd.h>

#include "base/fs.h"
#include "base/log.h"
#include "base/output.h"
#include "report/json.h"
#include "report/text.h"
#include "timeline/steps.h"
#if FLATOUT_HAS_DIAGNOSE_DIAGNOSE
#include "cli/ranks.h"
#include "diagnose/diagnose.h"
#include "diagnose/ranks.h"
#endif
#if FLATOUT_HAS_REPORT_HTML
#include "report/html.h"
#endif
#if FLATOUT_HAS_REPORT_FLAME
#include "report/flame.h"
#endif
#if FLATOUT_HAS_TIMELINE_EXPORT_CHROME
#include "timeline/export_chrome.h"
#endif

namespace flatout::cli {

model::Diagnosis judge(model::Run& run) {
#if FLATOUT_HAS_TIMELINE_STEPS
  timeline::find_steps(run);
#endif
#if FLATOUT_HAS_DIAGNOSE_DIAGNOSE
  std::vector<model::Rank> ranks = ranks_of(run);
  return ranks.size() > 1 ? diagnose::diagnose_ranks(std::move(ranks)) : diagnose::diagnose(run);
#else
  model::Diagnosis none;
  none.verdict = "none";
  none.headline = "this build has no diagnosis";
  return none;
#endif
}

Status write_verdict(const std::string& folder, const model::Run& run,
                     const model::Diagnosis& diagnosis) {
  FLATOUT_TRY_STATUS(
      fs::write_atomically(folder + "/findings.json", report::findings_json(run, diagnosis)));
  return fs::write_atomically(folder + "/run.json", report::run_json(run));
}

Status write_reports(const std::string& folder, const model::Run& run,
                     const model::Diagnosis& diagnosis) {
#if FLATOUT_HAS_REPORT_HTML
  FLATOUT_TRY_STATUS(
      fs::write_atomically(folder + "/report.html", report::render_html(run, diagnosis)));
#endif
#if FLATOUT_HAS_REPORT_FLAME
  FLATOUT_TRY_STATUS(fs::write_atomically(folder + "/stacks.folded", report::folded_stacks(run)));
#endif
#if FLATOUT_HAS_TIMELINE_EXPORT_CHROME
  FLATOUT_TRY_STATUS(timeline::write_chrome_trace(run, folder + "/trace.json.gz"));
#endif
  (void)folder;
  (void)run;
  (void)diagnosis;
  return {};
}

Result<std::string> render(const std::string& format, const model::Run& run,
                           const model::Diagnosis& diagnosis) {
  if (format == "text") return report::render_text(run, diagnosis, report::options_for(1));
  if (format == "json") return report::findings_json(run, diagnosis);
#if FLATOUT_HAS_REPORT_HTML
  if (format == "html") return report::render_html(run, diagnosis);
#endif
#if FLATOUT_HAS_REPORT_FLAME
  if (format == "svg") return report::flame_svg(run);
  if (format == "speedscope") return report::speedscope_json(run);
#endif
  return Error{Code::kBadInput, fmt::format("there is no format '{}'", format),
               "one of html, json, svg, speedscope, text"};
}

int fail(const Error& error) {
  log_error(error.message, error.hint);
  return error.code == Code::kBadInput ? 2 : 1;
}

Status write_text(const std::string& path, const std::string& text) {
  if (!path.empty()) return fs::write_output(path, text);
  return fs::write_all(STDOUT_FILENO, text, "to standard output");
}

}  // namespace flatout::cli
