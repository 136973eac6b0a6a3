// Messages between ranks over the machine's MPI library, found at run time: the program needs none
// to run, and no header to build. The names and handles are those of Open MPI's ABI, which has kept
// them from 1.7 to 5; MPICH has others and is told apart by its missing symbol.
#include <dlfcn.h>
#include <fmt/format.h>
#include <limits.h>
#include <unistd.h>

#include <cstring>
#include <thread>

#include "base/text.h"
#include "train/ranks.h"

namespace flatout::train {
namespace {

using Handle = void*;           // of a communicator, type or request
constexpr int kSerialized = 2;  // MPI_THREAD_SERIALIZED: any thread, one at a time
constexpr int kTag = 1;

struct Library {
  int (*init_thread)(int*, char***, int, int*) = nullptr;
  int (*finalize)() = nullptr;
  int (*comm_rank)(Handle, int*) = nullptr;
  int (*comm_size)(Handle, int*) = nullptr;
  int (*isend)(const void*, int, Handle, int, int, Handle, Handle*) = nullptr;
  int (*irecv)(void*, int, Handle, int, int, Handle, Handle*) = nullptr;
  int (*test)(Handle*, int*, void*) = nullptr;
  Handle world = nullptr;
  Handle byte = nullptr;
};

Result<Library> load() {
  constexpr const char* kHint =
      "install openmpi-bin, or start the ranks with torchrun or srun, which need no MPI";
  void* mpi = nullptr;
  for (const char* name : {"libmpi.so.40", "libmpi.so"}) {
    // Its plugins look for its symbols among all.
    mpi = dlopen(name, RTLD_NOW | RTLD_GLOBAL);
    if (mpi != nullptr) break;
  }
  if (mpi == nullptr) {
    return Error{Code::kNotFound, "mpirun started this rank, but libmpi.so.40 cannot be loaded",
                 kHint};
  }
  Library out;
  bool all = true;
  const auto find = [&](const char* name, auto& into) {
    void* symbol = dlsym(mpi, name);
    all = all && symbol != nullptr;
    std::memcpy(&into, &symbol, sizeof symbol);
  };
  find("MPI_Init_thread", out.init_thread);
  find("MPI_Finalize", out.finalize);
  find("MPI_Comm_rank", out.comm_rank);
  find("MPI_Comm_size", out.comm_size);
  find("MPI_Isend", out.isend);
  find("MPI_Irecv", out.irecv);
  find("MPI_Test", out.test);
  find("ompi_mpi_comm_world", out.world);
  find("ompi_mpi_byte", out.byte);
  if (!all) return Error{Code::kUnsupported, "the MPI library here is not Open MPI", kHint};
  return out;
}

class Mpi : public Transport {
 public:
  explicit Mpi(const Library& library) : mpi_(library) {}
  ~Mpi() override {
    // Where ranks are lost it would wait for them; mpirun ends the others once we exit with 1.
    if (!failed_) mpi_.finalize();
  }
  Status open();
  const char* name() const override { return "mpi"; }
  int rank() const override { return rank_; }
  int size() const override { return size_; }
  Status exchange(std::span<const Message> sends, std::span<const Message> receives,
                  Nanos patience) override;

 private:
  Library mpi_;
  int rank_ = 0, size_ = 1;
  bool failed_ = false;
};

Status Mpi::open() {
  int given = 0;
  if (mpi_.init_thread(nullptr, nullptr, kSerialized, &given) != 0 || given < kSerialized ||
      mpi_.comm_rank(mpi_.world, &rank_) != 0 || mpi_.comm_size(mpi_.world, &size_) != 0) {
    failed_ = true;
    return Error{Code::kIo, "MPI cannot be started", ""};
  }
  return {};
}

Status Mpi::exchange(std::span<const Message> sends, std::span<const Message> receives,
                     Nanos patience) {
  struct Pending {
    Handle request;
    int rank;
    bool receives;
  };
  std::vector<Pending> pending;
  for (const Message& m : receives) {
    FLATOUT_CHECK(m.bytes <= INT_MAX);
    pending.push_back({nullptr, m.rank, true});
    failed_ |= mpi_.irecv(m.data, static_cast<int>(m.bytes), mpi_.byte, m.rank, kTag, mpi_.world,
                          &pending.back().request) != 0;
  }
  for (const Message& m : sends) {
    FLATOUT_CHECK(m.bytes <= INT_MAX);
    pending.push_back({nullptr, m.rank, false});
    failed_ |= mpi_.isend(m.data, static_cast<int>(m.bytes), mpi_.byte, m.rank, kTag, mpi_.world,
                          &pending.back().request) != 0;
  }
  TimePoint moved = MonotonicClock::now();
  while (!pending.empty() && !failed_) {
    const size_t before = pending.size();
    std::erase_if(pending, [&](Pending& p) {
      int done = 0;
      failed_ |= mpi_.test(&p.request, &done, nullptr) != 0;
      return done != 0;
    });
    const TimePoint now = MonotonicClock::now();
    if (pending.size() < before) moved = now;
    if (now - moved > patience) {
      std::vector<int> late;
      for (const Pending& p : pending) {
        if (p.receives) late.push_back(p.rank);
      }
      if (late.empty()) {
        for (const Pending& p : pending) late.push_back(p.rank);
      }
      failed_ = true;
      return Error{Code::kTimeout,
                   fmt::format("rank {} of {} has sent nothing for {}", fmt::join(late, ", "),
                               size_, format_duration(patience)),
                   "it hangs or is slow; --rank-timeout waits longer"};
    }
    // MPI moves messages while it is asked; a wait of less than this is not worth a sleep.
    if (now - moved > std::chrono::milliseconds(2)) {
      std::this_thread::sleep_for(std::chrono::microseconds(100));
    } else {
      std::this_thread::yield();
    }
  }
  if (failed_) return Error{Code::kGone, "MPI has lost a rank", "mpirun names it"};
  return {};
}

}  // namespace

Result<std::unique_ptr<Transport>> open_mpi() {
  FLATOUT_TRY(const Library library, load());
  auto mpi = std::make_unique<Mpi>(library);
  FLATOUT_TRY_STATUS(mpi->open());
  return std::unique_ptr<Transport>(std::move(mpi));
}

}  // namespace flatout::train
