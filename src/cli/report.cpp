// flatout report, flatout compare: from run folders.
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/fs.h"
#include "base/log.h"
#include "base/text.h"
#include "cli/commands.h"
#include "cli/merged.h"
#include "cli/options.h"
#include "cli/outputs.h"
#include "cli/ranks.h"
#include "diagnose/compare.h"
#include "diagnose/ranks.h"
#include "recorder/folder.h"
#include "report/json.h"
#include "report/text.h"
#include "timeline/import_folder.h"

namespace flatout::cli {
namespace {

using model::Comparison;

const Usage kReport{
    "report",
    "[DIR] [options]",
    "Makes the report again from a run folder; without DIR, of the last run.",
    "  flatout report                                 # text, of flatout-runs/latest\n"
    "  flatout report DIR -o report.html\n"
    "  flatout report DIR --format speedscope -o stacks.json",
    {"format", "output", "verbose"},
    true,
    false,
    false,
    0,
    1};

const Usage kCompare{
    "compare",
    "OLD NEW [options]",
    "Says why one run was faster than another: steps, breakdown, findings, and what changed.",
    "  flatout compare flatout-runs/20250101-* flatout-runs/latest\n"
    "  flatout compare OLD NEW --fail-on slower=5%     # exit code 3 where it is",
    {"fail_on"},
    true,
    false,
    false,
    2,
    2};

Result<model::Run> read_run(const std::string& folder, bool* damaged = nullptr) {
  timeline::FolderDamage damage;
  FLATOUT_TRY(model::Run run, timeline::read_run_folder(folder, &damage));
  if (damaged != nullptr) *damaged = damage.bad != 0;
  if (damage.bad != 0) {
    log_warning(fmt::format("{}: {} damaged blocks were skipped, {} are whole",
                            escape_terminal(folder), damage.bad, damage.blocks));
  }
  return run;
}

// The format that a file's name asks for.
std::string format_of(std::string_view output) {
  if (output.ends_with(".speedscope.json")) return "speedscope";
  if (output.ends_with(".html") || output.ends_with(".htm")) return "html";
  if (output.ends_with(".json")) return "json";
  if (output.ends_with(".svg")) return "svg";
  return "text";
}

// The run folder that a word of the user's means: itself, the last run of a folder of runs, or
// `latest` of those here. Errors: kNotFound, with what to name instead.
Result<std::string> find_run(const std::string& word) {
  struct stat info;
  const bool is_folder = ::stat(word.c_str(), &info) == 0 && S_ISDIR(info.st_mode);
  if (is_folder) {
    for (const char* file : {"series.bin", "events.bin", "merge.json"}) {
      if (fs::Root(word).exists(file)) return word;
    }
  }
  std::vector<std::string> others = {word + "/latest"};
  if (word == "latest") others.emplace_back("flatout-runs/latest");
  for (const std::string& other : others) {
    if (recorder::is_run_folder(other)) return other;
  }
  std::string hint = recorder::is_run_folder("flatout-runs/latest")
                         ? "flatout report flatout-runs/latest; all runs: ls flatout-runs"
                         : "to record a run: flatout run -- COMMAND...";
  for (const std::string& name : fs::Root(word).list("").value_or({})) {
    const std::string inside = fmt::format("{}/{}", word, name);
    // The last one is the newest.
    if (recorder::is_run_folder(inside))
      hint = fmt::format("it holds runs: flatout report {}", escape_terminal(inside));
  }
  if (::lstat(word.c_str(), &info) != 0) {
    return Error{Code::kNotFound,
                 word == "flatout-runs/latest" ? "there is no run here: no flatout-runs/latest"
                                               : "there is no folder " + escape_terminal(word),
                 hint};
  }
  return Error{Code::kNotFound, escape_terminal(word) + " is not a run folder", hint};
}

// "slower=5%" or "slower=0.05": the ratio that is too much.
std::optional<double> slower_limit(std::string_view wanted) {
  if (!wanted.starts_with("slower=")) return std::nullopt;
  wanted.remove_prefix(7);
  const bool percent = wanted.ends_with('%');
  if (percent) wanted.remove_suffix(1);
  const auto value = parse_number<double>(wanted);
  if (!value || *value < 0) return std::nullopt;
  return 1 + *value / (percent ? 100 : 1);
}

int report_merged(const std::string& folder, const std::vector<std::string>& parts,
                  const std::string& format, const std::string& output) {
  const auto merged = merge_folders(parts);
  if (!merged.ok()) return fail(merged.error());
  Result<std::string> rendered = render(format, merged->run, merged->diagnosis);
  if (!rendered.ok()) return fail(rendered.error());
  const Status put = write_text(output, *rendered);
  if (!put.ok()) return fail(put.error());
  if (format == "text" && output.empty() && ::access(folder.c_str(), W_OK) == 0) {
    const Status written = write_merged(folder, *merged, parts);
    if (!written.ok()) log_warning(written.error().message);
  }
  return 0;
}

// A side of `compare`: a run folder, or the ranks of one job, where a merged folder is named or
// that of rank 0, whose report is that of all.
struct Side {
  std::string folder;
  bool merged = false;
  std::vector<model::Rank> ranks;  // none or several; told who is late
};

Result<Side> side_to_compare(const std::string& word) {
  Side side;
  FLATOUT_TRY(side.folder, find_run(word));
  std::vector<std::string> parts = merged_from(side.folder);
  side.merged = !parts.empty();
  if (!side.merged) parts = folders_of_job(side.folder);
  if (parts.empty()) return side;
  std::vector<model::Rank> ranks = read_ranks(parts);
  if (ranks.size() < 2) return side;
  side.ranks = diagnose::diagnose_ranks(std::move(ranks)).ranks->ranks;
  return side;
}

const model::Rank* find_rank(const Side& side, int32_t number) {
  for (const model::Rank& rank : side.ranks) {
    if (rank.number == number) return &rank;
  }
  return nullptr;
}

// The rank to compare, of both sides: one that holds up the others, first in the new run, says why
// they take long; all others only wait for it. nullptr: they have none in common.
const model::Rank* rank_to_compare(const Side& older, const Side& newer) {
  for (const auto& [side, other] : {std::pair(&newer, &older), std::pair(&older, &newer)}) {
    for (const model::Rank& rank : side->ranks) {
      if (rank.late && find_rank(*other, rank.number) != nullptr) return &rank;
    }
  }
  for (const model::Rank& rank : newer.ranks) {
    if (find_rank(older, rank.number) != nullptr) return &rank;
  }
  return nullptr;
}

Error no_single_run(const std::string& word, const Side& side) {
  std::string hint = "compare it with a merged folder, or name the run folders of the same rank";
  if (!side.ranks.empty()) hint += ": here " + escape_terminal(side.ranks.front().folder);
  return {Code::kBadInput,
          fmt::format("{} is the report of {} ranks, and the other side is of one run",
                      escape_terminal(word), side.ranks.size()),
          hint};
}

Result<Comparison> compare_sides(const std::string& old_word, const std::string& new_word) {
  FLATOUT_TRY(const Side older, side_to_compare(old_word));
  FLATOUT_TRY(const Side newer, side_to_compare(new_word));
  const model::Rank* const rank = rank_to_compare(older, newer);
  if (rank == nullptr && older.merged) return no_single_run(old_word, older);
  if (rank == nullptr && newer.merged) return no_single_run(new_word, newer);
  const auto run_on = [&](const Side& side) {
    return rank != nullptr ? run_of(*find_rank(side, rank->number)) : read_run(side.folder);
  };
  FLATOUT_TRY(model::Run old_run, run_on(older));
  FLATOUT_TRY(model::Run new_run, run_on(newer));
  Comparison out = diagnose::compare(old_run, new_run);
  out.old_name = old_word;
  out.new_name = new_word;
  if (rank != nullptr) {
    out.rank = rank->number;
    out.rank_late = rank->late;
  }
  return out;
}

}  // namespace

int report(const std::vector<std::string>& arguments) {
  int code = 0;
  auto settings = parse(kReport, arguments, code);
  if (!settings) return code;
  std::string format = settings->format;
  if (settings->json && !format.empty() && format != "json") {
    return bad_usage("--json and --format " + escape_terminal(format) + " are not one format",
                     "give one of them");
  }
  if (format.empty()) format = settings->json ? "json" : format_of(settings->output);
  if (const Status known = check_format(format); !known.ok()) return fail(known.error());
  const Result<std::string> named =
      find_run(settings->positional.empty() ? "flatout-runs/latest" : settings->positional[0]);
  if (!named.ok()) return fail(named.error());
  const std::string& folder = *named;
  const std::vector<std::string> parts = merged_from(folder);
  if (!parts.empty()) return report_merged(folder, parts, format, settings->output);
  bool damaged = false;
  auto run = read_run(folder, &damaged);
  if (!run.ok()) return fail(run.error());
  model::Diagnosis diagnosis = judge(*run);
  // Rank 0's folder has the report of all ranks that lie beside it.
  if (auto all = judge_launch(folder, *run)) diagnosis = std::move(*all);
  if (format == "text" && settings->output.empty()) {
    report::TextOptions options = report::options_for(STDOUT_FILENO);
    options.folder = folder;
    options.verbose = settings->verbose;
    const Status put = write_text("", report::render_text(*run, diagnosis, options));
    if (!put.ok()) return fail(put.error());
    // The derived files too, where the folder lets us: it may be someone else's, to be read only.
    // What was made of the whole recording is better than what damage leaves.
    const bool better = damaged && ::access((folder + "/findings.json").c_str(), F_OK) == 0;
    if (!better && ::access(folder.c_str(), W_OK) == 0) {
      Status written = write_verdict(folder, *run, diagnosis);
      if (written.ok()) written = write_reports(folder, *run, diagnosis);
      if (!written.ok()) log_warning(written.error().message);
    }
    return 0;
  }
  const auto rendered = render(format, *run, diagnosis);
  if (!rendered.ok()) return fail(rendered.error());
  const Status put = write_text(settings->output, *rendered);
  return put.ok() ? 0 : fail(put.error());
}

int compare(const std::vector<std::string>& arguments) {
  int code = 0;
  const auto settings = parse(kCompare, arguments, code);
  if (!settings) return code;
  const auto limit = slower_limit(settings->fail_on);
  if (!settings->fail_on.empty() && !limit) {
    return bad_usage(fmt::format("cannot read --fail-on {}", escape_terminal(settings->fail_on)),
                     "flatout compare OLD NEW --fail-on slower=5%");
  }
  const auto compared = compare_sides(settings->positional[0], settings->positional[1]);
  if (!compared.ok()) return fail(compared.error());
  const Comparison& comparison = *compared;
  const std::string out =
      settings->json ? report::comparison_json(comparison)
                     : report::render_comparison(comparison, report::options_for(STDOUT_FILENO));
  if (const Status put = write_text("", out); !put.ok()) return fail(put.error());
  if (limit && comparison.verdict == "unknown") {
    log_error("--fail-on cannot be decided", comparison.headline);
    return 1;
  }
  // Slower for sure, and by more than is allowed: noise alone must not stop anybody's work.
  return limit && comparison.verdict == "slower" && comparison.deciding_ratio() > *limit ? 3 : 0;
}

}  // namespace flatout::cli
