// flatout merge: the recordings of several ranks as one report.
#include <sys/stat.h>
#include <unistd.h>

#include "base/fs.h"
#include "base/log.h"
#include "base/text.h"
#include "cli/commands.h"
#include "cli/merged.h"
#include "cli/options.h"
#include "cli/outputs.h"
#include "recorder/folder.h"
#include "report/json.h"
#include "report/text.h"

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
    std::string inner = path;
    inner.append("/").append(name);
    struct stat info;
    const bool folder = ::lstat(inner.c_str(), &info) == 0 && S_ISDIR(info.st_mode);
    if (folder && recorder::is_run_folder(inner)) out.push_back(inner);
  }
  if (out.size() == before) log_warning(escape_terminal(path) + " has no run folder: left out");
}

}  // namespace

int merge(const std::vector<std::string>& arguments) {
  int code = 0;
  const auto settings = parse(kMerge, arguments, code);
  if (!settings) return code;
  std::vector<std::string> folders;
  for (const std::string& path : settings->positional) add_folders(path, folders);
  const auto merged = merge_folders(folders);
  if (!merged.ok()) return fail(merged.error());
  if (!settings->output.empty()) {
    const Status written = write_merged(settings->output, *merged, folders);
    if (!written.ok()) return fail(written.error());
  }
  report::TextOptions options = report::options_for(STDOUT_FILENO);
  options.folder = settings->output;
  options.verbose = settings->verbose;
  const Status put =
      write_text("", settings->json ? report::findings_json(merged->run, merged->diagnosis)
                                    : report::render_text(merged->run, merged->diagnosis, options));
  return put.ok() ? 0 : fail(put.error());
}

}  // namespace flatout::cli
