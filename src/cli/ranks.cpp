#include "cli/ranks.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <mutex>
#include <system_error>
#include <thread>

#include "base/log.h"
#include "base/text.h"
#include "diagnose/ranks.h"
#include "recorder/rank_place.h"
#include "timeline/import_folder.h"
#include "timeline/ranks.h"
#include "timeline/steps.h"

namespace flatout::cli {
namespace {

constexpr size_t kRunBytes = size_t{64} << 20;  // of each recording that is read beside others
constexpr size_t kMostThreads = 16;

}  // namespace

std::vector<model::Rank> ranks_of(const model::Run& run) {
  std::vector<model::Rank> out;
  for (const timeline::RankProcess& rank : timeline::find_ranks(run)) {
    out.push_back(rank_of(timeline::run_of_rank(run, rank)));
    out.back().restarts = rank.restarts;
  }
  return out;
}

model::Rank rank_of(const model::Run& run) {
  model::Rank rank = diagnose::summarize_rank(run);
  timeline::tell_number(run, rank);
  return rank;
}

void settle(std::vector<model::Rank>& ranks) {
  // Recordings that no launcher gave a number are told apart by the order they were given in.
  const bool numbered =
      std::any_of(ranks.begin(), ranks.end(), [](const model::Rank& r) { return r.number >= 0; });
  for (size_t i = 0; i < ranks.size() && !numbered; ++i) {
    ranks[i].number = static_cast<int32_t>(i);
  }
  std::stable_sort(ranks.begin(), ranks.end(), [](const model::Rank& a, const model::Rank& b) {
    return a.number != b.number ? a.number < b.number : a.begin_unix_ns > b.begin_unix_ns;
  });
  std::vector<model::Rank> last;
  for (model::Rank& rank : ranks) {
    if (!last.empty() && last.back().number == rank.number) {
      last.back().restarts += 1 + rank.restarts;
    } else {
      last.push_back(std::move(rank));
    }
  }
  ranks = std::move(last);
  timeline::align_clocks(ranks);
}

std::vector<std::string> folders_of_job(const std::string& folder) {
  // By its real name: flatout-runs/latest is a link, and what lies beside that is another matter.
  std::error_code error;
  const std::string own = std::filesystem::canonical(folder, error).string();
  if (error || recorder::read_rank_file(own).place.rank != 0) return {};
  std::vector<std::string> all = recorder::folders_of_launch(own);
  std::erase(all, own);
  if (!all.empty()) all.insert(all.begin(), own);
  return all;
}

std::optional<model::Diagnosis> judge_launch(const std::string& folder, const model::Run& run) {
  std::vector<std::string> others = folders_of_job(folder);
  if (others.empty()) return std::nullopt;
  const std::string own = others.front();
  others.erase(others.begin());
  std::vector<model::Rank> ranks = read_ranks(others);
  std::vector<model::Rank> mine = ranks_of(run);
  if (mine.empty()) mine.push_back(rank_of(run));
  for (model::Rank& rank : mine) {
    rank.folder = own;
    ranks.push_back(std::move(rank));
  }
  settle(ranks);
  return diagnose::diagnose_ranks(std::move(ranks));
}

std::vector<model::Rank> read_ranks(const std::vector<std::string>& folders) {
  std::vector<std::vector<model::Rank>> found(folders.size());
  std::atomic<size_t> next{0};
  std::mutex say;
  const auto work = [&] {
    for (size_t i = next++; i < folders.size(); i = next++) {
      timeline::FolderDamage damage;
      const auto run = timeline::read_run_folder(folders[i], &damage, kRunBytes);
      if (!run.ok()) {
        const std::lock_guard lock(say);
        log_warning(run.error().message + ": left out");
        continue;
      }
      found[i] = ranks_of(*run);
      if (found[i].empty()) {
        found[i].push_back(rank_of(*run));
        // What the folder says of itself counts most.
        const recorder::RankPlace place = recorder::read_rank_file(folders[i]).place;
        if (place.is_rank()) found[i].back().number = place.rank;
        if (place.world > 0) found[i].back().world = place.world;
      }
      for (model::Rank& rank : found[i]) rank.folder = folders[i];
    }
  };
  const size_t cores = std::max(1u, std::thread::hardware_concurrency());
  std::vector<std::thread> threads;
  try {
    for (size_t t = 1; t < std::min({cores, kMostThreads, folders.size()}); ++t) {
      threads.emplace_back(work);
    }
  } catch (const std::system_error&) {  // the limits allow no more of them: those there do it all
  }
  work();
  for (std::thread& thread : threads) thread.join();
  std::vector<model::Rank> out;
  for (std::vector<model::Rank>& some : found) {
    for (model::Rank& rank : some) out.push_back(std::move(rank));
  }
  settle(out);
  return out;
}

}  // namespace flatout::cli
