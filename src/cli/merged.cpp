#include "cli/merged.h"

#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/fs.h"
#include "base/text.h"
#include "cli/ranks.h"
#include "diagnose/ranks.h"
#include "report/html.h"
#include "report/json.h"
#include "timeline/export_chrome.h"
#include "timeline/import_folder.h"
#include "timeline/ranks.h"

namespace flatout::cli {
namespace {

namespace stdfs = std::filesystem;
using Json = nlohmann::json;

constexpr const char* kMergeFile = "/merge.json";
constexpr const char* kMergedFiles[] = {kMergeFile, "/findings.json", "/report.html",
                                        "/trace.json.gz"};
constexpr size_t kMostTraced = 64;  // ranks; a trace of more can no longer be looked at

// Reads recordings of ranks, one at a time: several ranks may be in one.
class Recordings {
 public:
  Result<model::Run> of(const model::Rank& rank) {
    if (!folder_ || *folder_ != rank.folder) {
      folder_.reset();
      FLATOUT_TRY(whole_, timeline::read_run_folder(rank.folder));
      folder_ = rank.folder;
    }
    const auto inside = timeline::find_ranks(whole_);
    for (const timeline::RankProcess& one : inside) {
      if (one.number == rank.number) return timeline::run_of_rank(whole_, one);
    }
    folder_.reset();  // of one rank alone, which is asked for once
    return std::move(whole_);
  }

 private:
  std::optional<std::string> folder_;
  model::Run whole_;
};

// The late ones, then those with the lowest numbers.
std::vector<const model::Rank*> traced(const model::RankReport& report) {
  std::vector<const model::Rank*> out;
  for (const model::Rank& rank : report.ranks) out.push_back(&rank);
  std::stable_partition(out.begin(), out.end(), [](const model::Rank* r) { return r->late; });
  out.resize(std::min(out.size(), kMostTraced));
  std::sort(out.begin(), out.end(),
            [](const model::Rank* a, const model::Rank* b) { return a->number < b->number; });
  return out;
}

Status write_trace(const std::string& path, const model::RankReport& report) {
  const std::vector<const model::Rank*> ranks = traced(report);
  const model::Rank& first = *ranks.front();
  int64_t earliest = first.begin_unix_ns;
  for (const model::Rank* rank : ranks) {
    if (rank->begin_unix_ns > 0) earliest = std::min(earliest, rank->begin_unix_ns);
  }
  Recordings recordings;
  std::optional<timeline::MergedTrace> trace;
  TimePoint begin;  // of the first rank's recording
  for (const model::Rank* rank : ranks) {
    FLATOUT_TRY(const model::Run run, recordings.of(*rank));
    if (!trace) {
      begin = run.begin;
      trace.emplace(begin - Nanos(first.begin_unix_ns - earliest), ranks.size());
    }
    // Where no common step tells how another machine's clock goes, the time of day has to do.
    Nanos clock = rank->clock - first.clock;
    if (rank->host != first.host && rank->clock == Nanos(0)) {
      clock = (begin - run.begin) + Nanos(rank->begin_unix_ns - first.begin_unix_ns);
    }
    trace->add(run, rank->number, clock);
  }
  return trace->write(path);
}

Result<model::Run> shown_run(const model::RankReport& report) {
  const auto late = std::find_if(report.ranks.begin(), report.ranks.end(),
                                 [](const model::Rank& r) { return r.late; });
  return Recordings().of(late != report.ranks.end() ? *late : report.ranks.front());
}

}  // namespace

Result<model::Run> run_of(const model::Rank& rank) { return Recordings().of(rank); }

Result<Merged> merge_folders(const std::vector<std::string>& folders) {
  std::vector<model::Rank> ranks = read_ranks(folders);
  if (ranks.empty()) {
    return Error{Code::kNotFound, "nothing to merge",
                 "give the run folders of the ranks: flatout merge flatout-runs/*-r*"};
  }
  if (const std::string why = diagnose::not_one_job(ranks); !why.empty()) {
    return Error{Code::kBadInput, "these are not ranks of one job: " + escape_terminal(why),
                 "flatout compare OLD NEW compares two runs"};
  }
  Merged out;
  out.diagnosis = diagnose::diagnose_ranks(std::move(ranks));
  FLATOUT_TRY(out.run, shown_run(*out.diagnosis.ranks));
  return out;
}

Status write_merged(const std::string& folder, const Merged& merged,
                    const std::vector<std::string>& folders) {
  if (::mkdir(folder.c_str(), 0700) != 0 && errno != EEXIST) {
    Error error = fs::error_from_errno(errno, "cannot make " + escape_terminal(folder));
    if (errno == ENOENT) error.hint = "the folder that it is to lie in has to be there";
    return error;
  }
  const bool ours = !merged_from(folder).empty();
  for (const char* name : kMergedFiles) {
    if (ours || !fs::Root(folder).exists(name + 1)) continue;
    return Error{Code::kBadInput,
                 escape_terminal(folder + name) + " is there already, and not of flatout merge",
                 "give a new or empty folder"};
  }
  // By their way from here, so that all may be moved together.
  Json names = Json::array();
  for (const std::string& part : folders) {
    std::error_code error;
    names.push_back(stdfs::proximate(part, folder, error).string());
  }
  const std::string list =
      Json{{"schema", 1}, {"folders", names}}.dump(1, ' ', false, Json::error_handler_t::replace);
  FLATOUT_TRY_STATUS(fs::write_atomically(folder + kMergeFile, list + "\n"));
  FLATOUT_TRY_STATUS(fs::write_atomically(folder + "/findings.json",
                                          report::findings_json(merged.run, merged.diagnosis)));
  FLATOUT_TRY_STATUS(fs::write_atomically(folder + "/report.html",
                                          report::render_html(merged.run, merged.diagnosis)));
  return write_trace(folder + "/trace.json.gz", *merged.diagnosis.ranks);
}

std::vector<std::string> merged_from(const std::string& folder) {
  std::vector<std::string> out;
  const auto text = fs::Root(folder).read(kMergeFile + 1, 16 << 20);
  const Json json = text.ok() ? Json::parse(*text, nullptr, false) : Json();
  const auto names = json.is_object() ? json.find("folders") : json.end();
  if (!json.is_object() || names == json.end() || !names->is_array()) return out;
  for (const Json& name : *names) {
    if (!name.is_string()) continue;
    out.push_back((stdfs::path(folder) / name.get<std::string>()).lexically_normal().string());
  }
  return out;
}

}  // namespace flatout::cli
