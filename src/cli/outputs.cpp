#include "cli/outputs.h"

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>

#include "base/fs.h"
#include "base/log.h"
#include "base/output.h"
#include "base/text.h"
#include "cli/ranks.h"
#include "diagnose/diagnose.h"
#include "diagnose/ranks.h"
#include "report/flame.h"
#include "report/html.h"
#include "report/json.h"
#include "report/text.h"
#include "timeline/export_chrome.h"
#include "timeline/steps.h"

namespace flatout::cli {

model::Diagnosis judge(model::Run& run) {
  timeline::find_steps(run);
  std::vector<model::Rank> ranks = ranks_of(run);
  return ranks.size() > 1 ? diagnose::diagnose_ranks(std::move(ranks)) : diagnose::diagnose(run);
}

Status write_verdict(const std::string& folder, const model::Run& run,
                     const model::Diagnosis& diagnosis) {
  FLATOUT_TRY_STATUS(
      fs::write_atomically(folder + "/findings.json", report::findings_json(run, diagnosis)));
  return fs::write_atomically(folder + "/run.json", report::run_json(run));
}

Status write_reports(const std::string& folder, const model::Run& run,
                     const model::Diagnosis& diagnosis) {
  FLATOUT_TRY_STATUS(
      fs::write_atomically(folder + "/report.html", report::render_html(run, diagnosis)));
  FLATOUT_TRY_STATUS(fs::write_atomically(folder + "/stacks.folded", report::folded_stacks(run)));
  FLATOUT_TRY_STATUS(timeline::write_chrome_trace(run, folder + "/trace.json.gz"));
  return {};
}

Status check_format(const std::string& format) {
  for (const char* known : {"html", "json", "svg", "speedscope", "text"}) {
    if (format == known) return {};
  }
  return Error{Code::kBadInput, fmt::format("there is no format '{}'", escape_terminal(format)),
               "one of html, json, svg, speedscope, text"};
}

Result<std::string> render(const std::string& format, const model::Run& run,
                           const model::Diagnosis& diagnosis) {
  FLATOUT_TRY_STATUS(check_format(format));
  if (format == "html") return report::render_html(run, diagnosis);
  if (format == "json") return report::findings_json(run, diagnosis);
  if (format == "svg") return report::flame_svg(run);
  if (format == "speedscope") return report::speedscope_json(run);
  return report::render_text(run, diagnosis, report::options_for(STDOUT_FILENO));
}

int fail(const Error& error) {
  log_error(error.message, error.hint);
  return error.code == Code::kBadInput ? 2 : 1;
}

int fail_input(const Error& error) {
  log_error(error.message, error.hint);
  return 1;
}

Status check_output(const std::string& path) {
  if (path.empty()) return {};
  const auto cannot = [&](std::string_view why) {
    return Error{Code::kIo, fmt::format("cannot write {}: {}", escape_terminal(path), why), ""};
  };
  struct stat info;
  if (::stat(path.c_str(), &info) == 0 && S_ISDIR(info.st_mode)) return cannot("it is a folder");
  if (fs::is_special(path)) return {};  // opening it may wait, and be the other side's sign
  const size_t slash = path.rfind('/');
  const std::string parent = slash == path.npos ? "." : path.substr(0, std::max<size_t>(slash, 1));
  if (::stat(parent.c_str(), &info) != 0) {
    return errno == ENOENT ? cannot(fmt::format("there is no folder {}", escape_terminal(parent)))
                           : cannot(std::strerror(errno));
  }
  if (!S_ISDIR(info.st_mode)) return cannot(escape_terminal(parent) + " is no folder");
  if (::access(parent.c_str(), W_OK | X_OK) != 0) return cannot(std::strerror(errno));
  return {};
}

Status write_text(const std::string& path, const std::string& text) {
  if (!path.empty()) return fs::write_output(path, text);
  return fs::write_all(STDOUT_FILENO, text, "to standard output");
}

int end_output(int exit_code) {
  const std::string what = "cannot write to standard output";
  if (std::fflush(stdout) != 0) {
    log_error(fs::error_from_errno(errno, what).message);
  } else if (std::ferror(stdout) != 0) {
    log_error(what);
  } else {
    return exit_code;
  }
  return exit_code == 0 ? 1 : exit_code;
}

}  // namespace flatout::cli
