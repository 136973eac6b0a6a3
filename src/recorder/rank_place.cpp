#include "recorder/rank_place.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/fs.h"
#include "base/text.h"
#include "recorder/launch.h"

namespace flatout::recorder {
namespace {

using Json = nlohmann::json;

/// What a launcher calls these things; nullptr where it does not say.
struct Launcher {
  const char* name;
  const char* mark;  // only its processes have this
  const char* rank;
  const char* world;
  const char* local;
  const char* node;
  std::initializer_list<const char*> job;
  bool mpi = false;  // its processes may be MPI's
};

// The innermost first: Slurm starts what starts the ranks, as a pod does. accelerate and deepspeed
// use torchrun's names. A batch script, too, has SLURM_PROCID: only a step has an id.
const Launcher kLaunchers[] = {
    {"deepspeed",
     "CROSS_RANK",
     "RANK",
     "WORLD_SIZE",
     "LOCAL_RANK",
     "CROSS_RANK",
     {"MASTER_ADDR", "MASTER_PORT"}},
    {"accelerate",
     "ACCELERATE_MIXED_PRECISION",
     "RANK",
     "WORLD_SIZE",
     "LOCAL_RANK",
     "GROUP_RANK",
     {"TORCHELASTIC_RUN_ID", "MASTER_ADDR", "MASTER_PORT"}},
    {"torchrun",
     "TORCHELASTIC_RUN_ID",
     "RANK",
     "WORLD_SIZE",
     "LOCAL_RANK",
     "GROUP_RANK",
     {"TORCHELASTIC_RUN_ID", "MASTER_ADDR", "MASTER_PORT"}},
    {"environment",
     "RANK",
     "RANK",
     "WORLD_SIZE",
     "LOCAL_RANK",
     "NODE_RANK",
     {"MASTER_ADDR", "MASTER_PORT"}},
    {"openmpi",
     "OMPI_COMM_WORLD_RANK",
     "OMPI_COMM_WORLD_RANK",
     "OMPI_COMM_WORLD_SIZE",
     "OMPI_COMM_WORLD_LOCAL_RANK",
     nullptr,
     {"PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid"},
     true},
    {"mvapich",
     "MV2_COMM_WORLD_RANK",
     "MV2_COMM_WORLD_RANK",
     "MV2_COMM_WORLD_SIZE",
     "MV2_COMM_WORLD_LOCAL_RANK",
     nullptr,
     {"MPIRUN_ID"},
     true},
    {"hydra", "PMI_RANK", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", nullptr, {}, true},
    {"slurm",
     "SLURM_STEP_ID",
     "SLURM_PROCID",
     "SLURM_NTASKS",
     "SLURM_LOCALID",
     "SLURM_NODEID",
     {"SLURM_JOB_ID", "SLURM_STEP_ID"},
     true},
    {"kubernetes",
     "JOB_COMPLETION_INDEX",
     "JOB_COMPLETION_INDEX",
     nullptr,
     nullptr,
     "JOB_COMPLETION_INDEX",
     {"JOB_NAME"}},
};

std::optional<int32_t> number(const std::vector<std::string>& environment, const char* name) {
  if (name == nullptr) return std::nullopt;
  const auto value = parse_number<int32_t>(variable(environment, name));
  return value && *value >= 0 ? value : std::nullopt;
}

constexpr int64_t kSameLaunchNs = 60'000'000'000;  // ranks of a launch begin within this time

bool same_launch(const RankFile& a, const RankFile& b) {
  if (a.place.launcher != b.place.launcher || a.place.job != b.place.job) return false;
  // Names may be used again: on one host the launcher's process tells launches apart.
  if (a.host == b.host && a.launcher_pid != b.launcher_pid) return false;
  return b.begin_unix_ns > a.begin_unix_ns - kSameLaunchNs;
}

}  // namespace

std::string host_name() {
  char name[256] = {};
  return ::gethostname(name, sizeof name - 1) == 0 ? std::string(name, std::strcspn(name, "."))
                                                   : "";
}

RankPlace rank_place(const std::vector<std::string>& environment) {
  for (const Launcher& launcher : kLaunchers) {
    if (variable(environment, launcher.mark).empty()) continue;
    const auto rank = number(environment, launcher.rank);
    const auto world = number(environment, launcher.world);
    // One process alone is no job of several.
    if (!rank || (world && *world < 2)) continue;
    RankPlace out;
    out.launcher = launcher.name;
    out.rank = *rank;
    out.world = world.value_or(0);
    out.local = number(environment, launcher.local).value_or(-1);
    out.node = number(environment, launcher.node).value_or(-1);
    for (const char* name : launcher.job) {
      const std::string value = variable(environment, name);
      if (!value.empty()) out.job += (out.job.empty() ? "" : " ") + value;
    }
    return out;
  }
  return {};
}

bool may_use_mpi(const std::vector<std::string>& command,
                 const std::vector<std::string>& environment) {
  static constexpr std::string_view kStarters[] = {"mpirun",  "mpiexec",       "orterun",
                                                   "prterun", "mpiexec.hydra", "mpirun_rsh",
                                                   "srun",    "horovodrun"};
  const bool starts = std::ranges::any_of(command, [](std::string_view word) {
    return std::ranges::find(kStarters, word.substr(word.rfind('/') + 1)) != std::end(kStarters);
  });
  return starts || std::ranges::any_of(kLaunchers, [&](const Launcher& launcher) {
           return launcher.mpi && !variable(environment, launcher.mark).empty();
         });
}

std::string rank_file(const RankPlace& place, int32_t launcher_pid, int64_t begin_unix_ns) {
  Json out{{"schema", 1},
           {"launcher", place.launcher},
           {"job", to_utf8(place.job)},
           {"rank", place.rank},
           {"world_size", place.world},
           {"local_rank", place.local},
           {"node", place.node},
           {"host", to_utf8(host_name())},
           {"launcher_pid", launcher_pid},
           {"begin_unix_ns", begin_unix_ns}};
  return out.dump(2) + "\n";
}

RankFile read_rank_file(const std::string& folder) {
  RankFile out;
  const auto text = fs::Root(folder).read("rank.json", 1 << 16);
  if (!text.ok()) return out;
  const Json json = Json::parse(*text, nullptr, false);
  if (!json.is_object()) return out;
  const auto whole = [&](const char* key, int64_t otherwise) {
    const auto it = json.find(key);
    return it != json.end() && it->is_number_integer() ? it->get<int64_t>() : otherwise;
  };
  const auto word = [&](const char* key) {
    const auto it = json.find(key);
    return it != json.end() && it->is_string() ? it->get<std::string>() : std::string();
  };
  const int64_t rank = whole("rank", -1);
  if (rank < 0 || rank > INT32_MAX) return out;
  out.place.rank = static_cast<int32_t>(rank);
  out.place.world = static_cast<int32_t>(std::clamp<int64_t>(whole("world_size", 0), 0, INT32_MAX));
  out.place.launcher = word("launcher");
  out.place.job = word("job");
  out.host = word("host");
  out.launcher_pid = static_cast<int32_t>(whole("launcher_pid", 0));
  out.begin_unix_ns = std::max<int64_t>(whole("begin_unix_ns", 0), 0);
  return out;
}

std::vector<std::string> folders_of_launch(const std::string& folder) {
  const RankFile mine = read_rank_file(folder);
  if (!mine.place.is_rank()) return {};
  const std::string parent = folder.substr(0, folder.rfind('/'));
  const auto names = fs::Root(parent).list("");
  if (!names.ok()) return {};
  std::map<int32_t, std::pair<int64_t, std::string>> found;
  for (const std::string& name : *names) {
    if (name == "latest" || name.starts_with('.')) continue;  // or only arrives
    const std::string path = fmt::format("{}/{}", parent, name);
    const RankFile other = read_rank_file(path);
    if (!other.place.is_rank() || !same_launch(mine, other)) continue;
    auto& [begin, best] = found[other.place.rank];
    if (best.empty() || other.begin_unix_ns > begin) {
      begin = other.begin_unix_ns;
      best = path;
    }
  }
  std::vector<std::string> out;
  out.reserve(found.size());
  for (auto& [rank, entry] : found) out.push_back(std::move(entry.second));
  return out;
}

}  // namespace flatout::recorder
