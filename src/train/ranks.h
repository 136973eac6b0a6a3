// Several processes train one model: each takes its part of every batch, and gradients are averaged
// in the order of the ranks, so that all hold the same bits. MPI carries the messages where mpirun
// or srun started its processes, sockets where torchrun or Slurm's variables only number them; NCCL
// where that is asked for.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/result.h"

namespace flatout::train {

/// Who this process is among the others.
struct RankPlace {
  enum class Carrier : uint8_t { kNone, kMpi, kSockets };
  Carrier carrier = Carrier::kNone;
  int rank = 0;
  int size = 1;
  int local = 1;        // ranks on this machine, where that is known
  int local_rank = 0;   // among them; `rank` where that is not known
  std::string address;  // of rank 0, for sockets
  int port = 0;
};

/// From the variables of mpirun (OMPI_COMM_WORLD_*, PMI_*), of torchrun (RANK, WORLD_SIZE,
/// MASTER_ADDR, MASTER_PORT), or of srun (SLURM_PROCID, SLURM_STEP_NUM_TASKS, SLURM_JOB_ID and the
/// first of SLURM_STEP_NODELIST). `variable` is getenv. Errors: kBadInput, naming the variable.
Result<RankPlace> find_rank_place(const std::function<const char*(const char*)>& variable);

/// The first of "node[07-09,12],other": "node07".
std::string first_host(std::string_view nodes);

/// Bytes for a rank, or room for bytes of it.
struct Message {
  int rank;
  void* data;
  size_t bytes;
};

/// Carries messages between ranks.
class Transport {
 public:
  virtual ~Transport() = default;
  virtual const char* name() const = 0;  // mpi, sockets, nccl
  virtual int rank() const = 0;
  virtual int size() const = 0;
  /// Sends and receives all of them, at most one each way for a rank; returns when all are done.
  /// Errors: kGone or kTimeout (nothing has moved for `patience`), naming the ranks to blame.
  virtual Status exchange(std::span<const Message> sends, std::span<const Message> receives,
                          Nanos patience) = 0;
  /// Whether ranks are known to be gone or to have given up, between exchanges; waits for nothing.
  /// Errors: kGone, naming them.
  virtual Status lost() { return {}; }
};

/// The MPI library of the machine (Open MPI), found by dlopen. Errors: kNotFound, kUnsupported.
Result<std::unique_ptr<Transport>> open_mpi();

/// A socket between each two ranks. Errors: kTimeout, naming the ranks that did not come; kBadInput
/// where one comes twice.
Result<std::unique_ptr<Transport>> open_sockets(const RankPlace& place, Nanos patience);

/// NCCL between cards, one for each rank; `meeting`, which outlives it, brings the ranks together
/// and names those that are lost. Errors: kNotFound without NCCL, driver or card; kUnsupported;
/// kBadInput where the machine has fewer cards than ranks; kIo with NCCL's or the driver's own word
/// for it; the same for all ranks.
Result<std::unique_ptr<Transport>> open_nccl(Transport& meeting, int local_rank, Nanos patience);

/// Something that all ranks must agree upon: who differs would wait for messages that never come.
struct JobPart {
  std::string option;  // "--batch", the same for all ranks
  std::string value;
};

class Ranks {
 public:
  /// Joins the others. Null where there is one rank. The last part of `job` is what training begins
  /// with, which follows from the others where those differ, too.
  /// Errors: as above; kBadInput, naming the parts in which a rank differs from this one.
  static Result<std::unique_ptr<Ranks>> join(const RankPlace& place,
                                             const std::vector<JobPart>& job, Nanos patience);
  Ranks(std::unique_ptr<Transport> transport, Nanos patience)
      : transport_(std::move(transport)), patience_(patience) {}

  /// From now on messages go over NCCL. Errors: those of open_nccl.
  Status take_nccl(int local_rank);
  const char* transport() const { return (nccl_ ? nccl_ : transport_)->name(); }
  int rank() const { return transport_->rank(); }
  int size() const { return transport_->size(); }

  /// values = the mean over ranks, summed in their order; the same bits everywhere.
  Status average(std::span<float> values);
  /// all: [size][count], in the order of the ranks.
  Status gather(const double* mine, size_t count, double* all);

 private:
  Status exchange(std::span<const Message> sends, std::span<const Message> receives) {
    return (nccl_ ? nccl_ : transport_)->exchange(sends, receives, patience_);
  }

  std::unique_ptr<Transport> transport_;
  std::unique_ptr<Transport> nccl_;  // may be null
  Nanos patience_;
  std::vector<float> parts_;  // of this rank's slice, from the others
};

}  // namespace flatout::train
