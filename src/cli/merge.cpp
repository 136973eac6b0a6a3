// flatout merge: the recordings of several ranks as one report.
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "base/fs.h"
#include "base/log.h"
#include "base/text.h"
#include "cli/commands.h"
#include "cli/options.h"
#include "cli/outputs.h"
#include "cli/ranks.h"
#include "diagnose/ranks.h"
#include "recorder/folder.h"
#include "report/html.h"
#include "report/json.h"
#include "report/text.h"
#include "timeline/import_folder.h"
#include "timeline/ranks.h"

namespace flatout::cli {
namespace {

const Usage kMerge{
    "merge",
    "DIR... [-o DIR]",
    "Makes one report of the run folders of a job's ranks: who holds up the others, and why.",
    "  flatout merge flatout-runs/20250101-*-r*\n"
    "  flatout merge node0/flatout-runs node1/flatout-runs -o job   # a folder of run folders\n"
    "  flatout merge --json flatout-runs/*-r*",
    {"output", "verbose"},
    true,
    false,
    false,
    1,
    1'000'000};

/// A run folder itself, or the run folders in a folder.
void add_folders(const std::string& path, std::vector<std::string>& out) {
  if (recorder::is_run_folder(path)) {
    out.push_back(path);
    return;
  }
  const auto names = fs::Root(path).list("");
  if (!names.ok()) {
    log_warning(escape_terminal(path) + " is not a run folder: left out");
    return;
  }
  const size_t before = out.size();
  for (const std::string& name : *names) {
    const std::string inner = path + "/" + name;
    struct stat info;
    const bool folder = ::lstat(inner.c_str(), &info) == 0 && S_ISDIR(info.st_mode);
    if (folder && recorder::is_run_folder(inner)) out.push_back(inner);
  }
  if (out.size() == before) log_warning(escape_terminal(path) + " has no run folder: left out");
}

/// The recording that the report's curves and stacks are of: of a rank that holds up the others,
/// else of the first.
Result<model::Run> shown_run(const model::RankReport& report) {
  const auto late = std::find_if(report.ranks.begin(), report.ranks.end(),
                                 [](const model::Rank& r) { return r.late; });
  const model::Rank& rank = late != report.ranks.end() ? *late : report.ranks.front();
  FLATOUT_TRY(model::Run run, timeline::read_run_folder(rank.folder));
  for (const timeline::RankProcess& one : timeline::find_ranks(run)) {
    if (one.number == rank.number) return timeline::run_of_rank(run, one);
  }
  return run;
}

Status write_folder(const std::string& folder, const model::Run& run,
                    const model::Diagnosis& diagnosis) {
  if (::mkdir(folder.c_str(), 0700) != 0 && errno != EEXIST) {
    return fs::error_from_errno(errno, "cannot make " + escape_terminal(folder));
  }
  FLATOUT_TRY_STATUS(
      fs::write_atomically(folder + "/findings.json", report::findings_json(run, diagnosis)));
  return fs::write_atomically(folder + "/report.html", report::render_html(run, diagnosis));
}

}  // namespace

int merge(const std::vector<std::string>& arguments) {
  int code = 0;
  const auto settings = parse(kMerge, arguments, code);
  if (!settings) return code;
  std::vector<std::string> folders;
  for (const std::string& path : settings->positional) add_folders(path, folders);
  std::vector<model::Rank> ranks = read_ranks(folders);
  if (ranks.empty()) {
    return fail({Code::kNotFound, "nothing to merge",
                 "give the run folders of the ranks: flatout merge flatout-runs/*-r*"});
  }
  const model::Diagnosis diagnosis = diagnose::diagnose_ranks(std::move(ranks));
  const auto run = shown_run(*diagnosis.ranks);
  if (!run.ok()) return fail(run.error());
  if (!settings->output.empty()) {
    const Status written = write_folder(settings->output, *run, diagnosis);
    if (!written.ok()) return fail(written.error());
  }
  report::TextOptions options = report::options_for(STDOUT_FILENO);
  options.folder = settings->output;
  const Status put = write_text("", settings->json ? report::findings_json(*run, diagnosis)
                                                   : report::render_text(*run, diagnosis, options));
  return put.ok() ? 0 : fail(put.error());
}

}  // namespace flatout::cli
