#include "train/ranks.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstring>

#include "base/text.h"

namespace flatout::train {
namespace {

using Variable = std::function<const char*(const char*)>;

Result<int> integer(const Variable& variable, const char* name, int low, int high) {
  const char* text = variable(name);
  if (text == nullptr) {
    return Error{Code::kBadInput, fmt::format("{} is not set", name),
                 "torchrun, srun and mpirun set what ranks need"};
  }
  const auto value = parse_number<int>(text);
  if (!value || *value < low || *value > high) {
    return Error{
        Code::kBadInput,
        fmt::format("{}={} is not a number from {} to {}", name, escape_terminal(text), low, high),
        ""};
  }
  return *value;
}

constexpr int kMostRanks = 4096;

/// Variables of one starter.
struct Numbers {
  const char* rank;
  const char* size;
  const char* local_rank;
};

Status numbered(const Variable& variable, const Numbers& names, RankPlace& place) {
  FLATOUT_TRY(place.size, integer(variable, names.size, 1, kMostRanks));
  FLATOUT_TRY(place.rank, integer(variable, names.rank, 0, place.size - 1));
  place.local_rank = place.rank;
  if (variable(names.local_rank) != nullptr) {
    FLATOUT_TRY(place.local_rank, integer(variable, names.local_rank, 0, kMostRanks - 1));
  }
  return {};
}

}  // namespace

std::string first_host(std::string_view nodes) {
  const size_t end = nodes.find_first_of("[,");
  std::string host(nodes.substr(0, end));
  if (end == nodes.npos || nodes[end] == ',') return host;
  const std::string_view inside = nodes.substr(end + 1);
  host += inside.substr(0, inside.find_first_of("-,]"));
  const size_t closed = inside.find(']');
  if (closed != inside.npos) {
    const std::string_view rest = inside.substr(closed + 1);
    host += rest.substr(0, rest.find(','));
  }
  return host;
}

Result<RankPlace> find_rank_place(const Variable& variable) {
  RankPlace place;
  for (const char* local : {"OMPI_COMM_WORLD_LOCAL_SIZE", "LOCAL_WORLD_SIZE"}) {
    if (variable(local) == nullptr) continue;
    FLATOUT_TRY(place.local, integer(variable, local, 1, kMostRanks));
    break;
  }
  for (const Numbers& names :
       {Numbers{"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"},
        Numbers{"PMI_RANK", "PMI_SIZE", "SLURM_LOCALID"}}) {
    if (variable(names.size) == nullptr) continue;
    FLATOUT_TRY_STATUS(numbered(variable, names, place));
    if (place.size > 1) place.carrier = RankPlace::Carrier::kMpi;
    return place;
  }
  const bool torchrun = variable("WORLD_SIZE") != nullptr && variable("RANK") != nullptr;
  // srun sets the number of its tasks; in a batch script alone there is but one of us.
  const bool slurm = !torchrun && variable("SLURM_STEP_NUM_TASKS") != nullptr;
  if (!torchrun && !slurm) return place;
  constexpr Numbers kTorchrun{"RANK", "WORLD_SIZE", "LOCAL_RANK"};
  constexpr Numbers kSlurm{"SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID"};
  FLATOUT_TRY_STATUS(numbered(variable, torchrun ? kTorchrun : kSlurm, place));
  if (place.size == 1) return place;
  place.carrier = RankPlace::Carrier::kSockets;
  if (const char* address = variable("MASTER_ADDR")) {
    place.address = address;
  } else if (const char* nodes = slurm ? variable("SLURM_STEP_NODELIST") : nullptr) {
    place.address = first_host(nodes);
  } else {
    return Error{Code::kBadInput, "MASTER_ADDR is not set", "it names the host of rank 0"};
  }
  if (slurm && variable("MASTER_PORT") == nullptr) {
    FLATOUT_TRY(const int job, integer(variable, "SLURM_JOB_ID", 0, 1 << 30));
    place.port = 20000 + job % 20000;
    return place;
  }
  FLATOUT_TRY(place.port, integer(variable, "MASTER_PORT", 1, 65534));
  // There torchrun's own store listens.
  const char* taken = variable("TORCHELASTIC_USE_AGENT_STORE");
  if (taken != nullptr && std::strcmp(taken, "True") == 0) ++place.port;
  return place;
}

namespace {

/// That all have the same job.
Status agree(Ranks& ranks, const std::vector<JobPart>& job) {
  // Bits, not values: a digest may be no number.
  std::vector<double> mine;
  for (const JobPart& part : job) {
    mine.push_back(std::bit_cast<double>(uint64_t{std::hash<std::string>()(part.value)}));
  }
  std::vector<double> all(static_cast<size_t>(ranks.size()) * mine.size());
  FLATOUT_TRY_STATUS(ranks.gather(mine.data(), mine.size(), all.data()));
  for (size_t r = 0; r < static_cast<size_t>(ranks.size()); ++r) {
    std::string differing;
    for (size_t i = 0; i < job.size(); ++i) {
      const double its = all[r * mine.size() + i];
      if (std::bit_cast<uint64_t>(its) == std::bit_cast<uint64_t>(mine[i])) continue;
      if (i + 1 == job.size() && !differing.empty()) break;
      if (!differing.empty()) differing += ", ";
      differing += fmt::format("{} (here {})", job[i].option, escape_terminal(job[i].value));
    }
    if (differing.empty()) continue;
    return Error{Code::kBadInput,
                 fmt::format("rank {} was started with other options: {}", r, differing),
                 "they must be the same for all ranks"};
  }
  return {};
}

}  // namespace

Result<std::unique_ptr<Ranks>> Ranks::join(const RankPlace& place, const std::vector<JobPart>& job,
                                           Nanos patience) {
  if (place.size == 1) return std::unique_ptr<Ranks>();
  std::unique_ptr<Transport> transport;
  if (place.carrier == RankPlace::Carrier::kSockets) {
    FLATOUT_TRY(transport, open_sockets(place, patience));
  } else {
    FLATOUT_TRY(transport, open_mpi());
  }
  auto ranks = std::make_unique<Ranks>(std::move(transport), patience);
  FLATOUT_TRY_STATUS(agree(*ranks, job));
  return ranks;
}

Status Ranks::take_nccl(int local_rank) {
  FLATOUT_TRY(nccl_, open_nccl(*transport_, local_rank, patience_));
  return {};
}

Status Ranks::average(std::span<float> values) {
  const auto size = static_cast<size_t>(this->size());
  const auto me = static_cast<size_t>(rank());
  const auto slice = [&](size_t r) {
    const size_t first = values.size() * r / size;
    return values.subspan(first, values.size() * (r + 1) / size - first);
  };
  const auto message = [](size_t r, std::span<float> at) {
    return Message{static_cast<int>(r), at.data(), at.size_bytes()};
  };
  // Each rank sums its slice of all, then gives it to all. Nobody is sent an empty one.
  const std::span<float> mine = slice(me);
  parts_.resize(mine.size() * size);
  std::vector<Message> sends;
  std::vector<Message> receives;
  const auto add = [&](std::vector<Message>& to, size_t r, std::span<float> at) {
    if (r != me && !at.empty()) to.push_back(message(r, at));
  };
  for (size_t r = 0; r < size; ++r) {
    add(sends, r, slice(r));
    add(receives, r, {parts_.data() + r * mine.size(), mine.size()});
  }
  FLATOUT_TRY_STATUS(exchange(sends, receives));
  std::copy(mine.begin(), mine.end(), parts_.begin() + static_cast<ptrdiff_t>(me * mine.size()));
  for (size_t i = 0; i < mine.size(); ++i) {
    float sum = 0;
    for (size_t r = 0; r < size; ++r) sum += parts_[r * mine.size() + i];
    mine[i] = sum / static_cast<float>(size);
  }
  sends.clear();
  receives.clear();
  for (size_t r = 0; r < size; ++r) {
    add(sends, r, mine);
    add(receives, r, slice(r));
  }
  return exchange(sends, receives);
}

Status Ranks::gather(const double* mine, size_t count, double* all) {
  std::vector<Message> sends;
  std::vector<Message> receives;
  std::copy(mine, mine + count, all + static_cast<size_t>(rank()) * count);
  for (int r = 0; r < size(); ++r) {
    if (r == rank()) continue;
    sends.push_back({r, all + static_cast<size_t>(rank()) * count, count * sizeof(double)});
    receives.push_back({r, all + static_cast<size_t>(r) * count, count * sizeof(double)});
  }
  return exchange(sends, receives);
}

}  // namespace flatout::train
