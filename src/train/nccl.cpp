// Messages between ranks over NCCL, a card for each, found at run time as MPI is. The trainer
// computes on the CPU: a message is copied to the card, sent from there to another's, and copied
// back. NCCL waits for ever and does not say for whom. So before each exchange every rank hears
// from every other over the transport that brought them together, which names the one that is late
// or gone; and what waits for others runs in a thread that can be left behind. Nothing is torn down
// after a failure, nor NCCL at all, since that waits, too: the process is about to end. The names
// and types are those of NCCL's ABI, unchanged since 2.7.
#include <dlfcn.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <functional>
#include <future>
#include <memory>
#include <optional>
#include <thread>

#include "base/text.h"
#include "train/ranks.h"
#include "wire/cuda_abi.h"

namespace flatout::train {
namespace {

using Communicator = void*;
using Stream = void*;
struct UniqueId {
  std::array<char, 128> bytes;
};
constexpr int kSuccess = 0;  // ncclResult_t
constexpr int kBytes = 0;    // ncclInt8
constexpr const char* kHint = "without --nccl the ranks' messages go by MPI or sockets";

struct Nccl {
  int (*get_unique_id)(UniqueId*) = nullptr;
  int (*comm_init_rank)(Communicator*, int, UniqueId, int) = nullptr;
  int (*comm_get_async_error)(Communicator, int*) = nullptr;
  const char* (*get_error_string)(int) = nullptr;
  int (*group_start)() = nullptr;
  int (*group_end)() = nullptr;
  int (*send)(const void*, size_t, int, int, Communicator, Stream) = nullptr;
  int (*recv)(void*, size_t, int, int, Communicator, Stream) = nullptr;
};

struct Cuda {
  cuda::CUresult (*init)(unsigned) = nullptr;
  cuda::CUresult (*device_get_count)(int*) = nullptr;
  cuda::CUresult (*device_get)(cuda::CUdevice*, int) = nullptr;
  cuda::CUresult (*device_get_uuid)(cuda::CUuuid*, cuda::CUdevice) = nullptr;
  cuda::CUresult (*retain_context)(cuda::Opaque*, cuda::CUdevice) = nullptr;
  cuda::CUresult (*set_context)(cuda::Opaque) = nullptr;
  cuda::CUresult (*allocate)(cuda::CUdeviceptr*, size_t) = nullptr;
  cuda::CUresult (*free)(cuda::CUdeviceptr) = nullptr;
  cuda::CUresult (*copy_in)(cuda::CUdeviceptr, const void*, size_t) = nullptr;
  cuda::CUresult (*copy_out)(void*, cuda::CUdeviceptr, size_t) = nullptr;
  cuda::CUresult (*stream_create)(Stream*, unsigned) = nullptr;
  cuda::CUresult (*stream_synchronize)(Stream) = nullptr;
  cuda::CUresult (*stream_destroy)(Stream) = nullptr;
  cuda::CUresult (*get_error_name)(cuda::CUresult, const char**) = nullptr;
};

/// A shared library and what it lacks.
class Library {
 public:
  static Result<Library> open(const char* name, const char* what) {
    void* const handle = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    if (handle == nullptr) {
      return Error{Code::kNotFound, fmt::format("{}: {}", what, dlerror()), kHint};
    }
    return Library(name, handle);
  }
  template <class Function>
  void find(const char* symbol, Function& into) {
    void* const at = dlsym(handle_, symbol);
    if (at == nullptr && lacks_ == nullptr) lacks_ = symbol;
    std::memcpy(&into, &at, sizeof at);
  }
  Status whole() const {
    if (lacks_ == nullptr) return {};
    return Error{Code::kUnsupported, fmt::format("{} here has no {}", name_, lacks_), kHint};
  }

 private:
  Library(const char* name, void* handle) : name_(name), handle_(handle) {}
  const char* name_;
  void* handle_;
  const char* lacks_ = nullptr;
};

Result<Nccl> load_nccl() {
  FLATOUT_TRY(Library library, Library::open("libnccl.so.2", "--nccl: there is no NCCL"));
  Nccl out;
  library.find("ncclGetUniqueId", out.get_unique_id);
  library.find("ncclCommInitRank", out.comm_init_rank);
  library.find("ncclCommGetAsyncError", out.comm_get_async_error);
  library.find("ncclGetErrorString", out.get_error_string);
  library.find("ncclGroupStart", out.group_start);
  library.find("ncclGroupEnd", out.group_end);
  library.find("ncclSend", out.send);
  library.find("ncclRecv", out.recv);
  FLATOUT_TRY_STATUS(library.whole());
  return out;
}

Result<Cuda> load_cuda() {
  FLATOUT_TRY(Library library, Library::open("libcuda.so.1", "--nccl: there is no NVIDIA driver"));
  Cuda out;
  library.find("cuInit", out.init);
  library.find("cuDeviceGetCount", out.device_get_count);
  library.find("cuDeviceGet", out.device_get);
  library.find("cuDeviceGetUuid", out.device_get_uuid);
  library.find("cuDevicePrimaryCtxRetain", out.retain_context);
  library.find("cuCtxSetCurrent", out.set_context);
  library.find("cuMemAlloc_v2", out.allocate);
  library.find("cuMemFree_v2", out.free);
  library.find("cuMemcpyHtoD_v2", out.copy_in);
  library.find("cuMemcpyDtoH_v2", out.copy_out);
  library.find("cuStreamCreate", out.stream_create);
  library.find("cuStreamSynchronize", out.stream_synchronize);
  library.find("cuStreamDestroy_v2", out.stream_destroy);
  library.find("cuGetErrorName", out.get_error_name);
  FLATOUT_TRY_STATUS(library.whole());
  return out;
}

/// The two libraries, and what their codes mean. Threads left behind keep it.
struct Engine {
  Nccl nccl;
  Cuda cuda;

  Status check(cuda::CUresult result, const char* call) const {
    if (result == cuda::CUDA_SUCCESS) return {};
    if (result == cuda::CUDA_ERROR_NO_DEVICE) {
      return Error{Code::kNotFound, "--nccl: there is no card", kHint};
    }
    const char* name = nullptr;
    if (cuda.get_error_name(result, &name) != cuda::CUDA_SUCCESS || name == nullptr) name = "?";
    return Error{Code::kIo, fmt::format("--nccl: {} gives {} ({})", call, name, result), kHint};
  }
  Status check_nccl(int result, const char* call) const {
    if (result == kSuccess) return {};
    return Error{Code::kIo,
                 fmt::format("--nccl: {} gives \"{}\"", call, nccl.get_error_string(result)),
                 fmt::format("NCCL_DEBUG=WARN has it say more; {}", kHint)};
  }
};

/// A message whose bytes lie on the card.
struct OnCard {
  cuda::CUdeviceptr at;
  size_t bytes;
  int rank;
};

class OverNccl : public Transport {
 public:
  explicit OverNccl(Transport& meeting) : meeting_(meeting) {}
  ~OverNccl() override {
    if (!healthy_) return;
    engine_->cuda.free(room_);
    engine_->cuda.stream_destroy(stream_);
  }
  OverNccl(const OverNccl&) = delete;
  OverNccl& operator=(const OverNccl&) = delete;

  Status open(int local_rank, Nanos patience);
  const char* name() const override { return "nccl"; }
  int rank() const override { return meeting_.rank(); }
  int size() const override { return meeting_.size(); }
  Status exchange(std::span<const Message> sends, std::span<const Message> receives,
                  Nanos patience) override;

 private:
  /// What ranks tell each other before NCCL brings them together.
  struct Ready {
    UniqueId id;  // of rank 0
    cuda::CUuuid card;
    Code code;  // of why it cannot take part
    std::array<char, 236> why_not;
  };
  /// And before each exchange.
  enum class Word : char { kGo, kFailed };

  Status get_ready(int local_rank, Ready& mine);
  Status make_room(size_t bytes);
  /// The rest of an exchange, whose messages all ranks are ready for.
  Status carry(std::vector<OnCard> sends, std::vector<OnCard> receives, Nanos patience);
  /// Runs what may wait for other ranks; errors name those that it waits for in vain.
  Status watch(const char* what, std::function<Status()> work, Nanos patience);
  /// all[r] = the `mine` of rank r. Errors name those that do not answer.
  template <class T>
  Status hear_all(const T& mine, std::vector<T>& all, Nanos patience);
  /// Hears that all ranks go on.
  Status agree_to_go(Nanos patience);

  std::shared_ptr<Engine> engine_ = std::make_shared<Engine>();
  Transport& meeting_;
  cuda::Opaque context_ = nullptr;
  Stream stream_ = nullptr;
  Communicator communicator_ = nullptr;
  cuda::CUdeviceptr room_ = 0;  // for the messages of an exchange
  size_t room_bytes_ = 0;
  bool healthy_ = false;
};

Status OverNccl::open(int local_rank, Nanos patience) {
  Ready mine{};
  const Status ready = get_ready(local_rank, mine);
  if (!ready.ok()) {
    mine.code = ready.error().code;
    ready.error().message.copy(mine.why_not.data(), mine.why_not.size() - 1);
  }
  std::vector<Ready> all;
  const Status heard = hear_all(mine, all, patience);
  if (!ready.ok()) return ready.error();
  if (!heard.ok()) return heard.error();
  for (size_t r = 0; r < all.size(); ++r) {
    if (all[r].why_not[0] == 0) continue;
    return Error{all[r].code, fmt::format("rank {} of {}: {}", r, size(), all[r].why_not.data()),
                 kHint};
  }
  for (size_t r = 0; r < all.size(); ++r) {
    for (size_t other = 0; other < r; ++other) {
      if (std::memcmp(&all[other].card, &all[r].card, sizeof mine.card) != 0) continue;
      return Error{Code::kBadInput,
                   fmt::format("--nccl: ranks {} and {} have the same card", other, r),
                   fmt::format("NCCL takes a card for each rank; {}", kHint)};
    }
  }
  auto made = std::make_shared<Communicator>();
  const auto work = [engine = engine_, context = context_, id = all[0].id, size = size(),
                     rank = rank(), made]() -> Status {
    FLATOUT_TRY_STATUS(engine->check(engine->cuda.set_context(context), "cuCtxSetCurrent"));
    return engine->check_nccl(engine->nccl.comm_init_rank(made.get(), size, id, rank),
                              "ncclCommInitRank");
  };
  FLATOUT_TRY_STATUS(watch("NCCL has not brought the ranks together", work, patience));
  communicator_ = *made;
  healthy_ = true;
  return {};
}

Status OverNccl::get_ready(int local_rank, Ready& mine) {
  FLATOUT_TRY(engine_->cuda, load_cuda());
  FLATOUT_TRY(engine_->nccl, load_nccl());
  const Engine& e = *engine_;
  FLATOUT_TRY_STATUS(e.check(e.cuda.init(0), "cuInit"));
  int cards = 0;
  FLATOUT_TRY_STATUS(e.check(e.cuda.device_get_count(&cards), "cuDeviceGetCount"));
  if (cards == 0) return e.check(cuda::CUDA_ERROR_NO_DEVICE, "");
  // Slurm may show each rank its own card alone.
  cuda::CUdevice device = 0;
  FLATOUT_TRY_STATUS(e.check(e.cuda.device_get(&device, local_rank % cards), "cuDeviceGet"));
  FLATOUT_TRY_STATUS(e.check(e.cuda.device_get_uuid(&mine.card, device), "cuDeviceGetUuid"));
  FLATOUT_TRY_STATUS(e.check(e.cuda.retain_context(&context_, device), "cuDevicePrimaryCtxRetain"));
  FLATOUT_TRY_STATUS(e.check(e.cuda.set_context(context_), "cuCtxSetCurrent"));
  // A stream that the copies, which go by the default one, wait for, and which waits for them.
  FLATOUT_TRY_STATUS(e.check(e.cuda.stream_create(&stream_, 0), "cuStreamCreate"));
  if (rank() != 0) return {};
  return e.check_nccl(e.nccl.get_unique_id(&mine.id), "ncclGetUniqueId");
}

Status OverNccl::make_room(size_t bytes) {
  if (bytes <= room_bytes_) return {};
  const Engine& e = *engine_;
  if (room_ != 0) FLATOUT_TRY_STATUS(e.check(e.cuda.free(room_), "cuMemFree"));
  room_ = 0;
  room_bytes_ = 0;
  FLATOUT_TRY_STATUS(e.check(e.cuda.allocate(&room_, bytes), "cuMemAlloc"));
  room_bytes_ = bytes;
  return {};
}

Status OverNccl::exchange(std::span<const Message> sends, std::span<const Message> receives,
                          Nanos patience) {
  constexpr size_t kAlign = 256;  // NCCL copies aligned messages by whole vectors
  const auto align = [](size_t bytes) { return (bytes + kAlign - 1) / kAlign * kAlign; };
  const Engine& e = *engine_;
  healthy_ = false;  // unless all goes well
  FLATOUT_TRY_STATUS(agree_to_go(patience));
  size_t bytes = 0;
  for (const Message& m : sends) bytes += align(m.bytes);
  for (const Message& m : receives) bytes += align(m.bytes);
  // The thread that speaks need not be the one that joined.
  FLATOUT_TRY_STATUS(e.check(e.cuda.set_context(context_), "cuCtxSetCurrent"));
  FLATOUT_TRY_STATUS(make_room(bytes));
  std::vector<OnCard> from, to;
  cuda::CUdeviceptr at = room_;
  for (const Message& m : sends) {
    FLATOUT_TRY_STATUS(e.check(e.cuda.copy_in(at, m.data, m.bytes), "cuMemcpyHtoD"));
    from.push_back({at, m.bytes, m.rank});
    at += align(m.bytes);
  }
  for (const Message& m : receives) {
    to.push_back({at, m.bytes, m.rank});
    at += align(m.bytes);
  }
  if (bytes > 0) FLATOUT_TRY_STATUS(carry(from, to, patience));
  for (size_t i = 0; i < to.size(); ++i) {
    FLATOUT_TRY_STATUS(
        e.check(e.cuda.copy_out(receives[i].data, to[i].at, to[i].bytes), "cuMemcpyDtoH"));
  }
  healthy_ = true;
  return {};
}

Status OverNccl::carry(std::vector<OnCard> sends, std::vector<OnCard> receives, Nanos patience) {
  const auto work = [engine = engine_, context = context_, communicator = communicator_,
                     stream = stream_, sends = std::move(sends),
                     receives = std::move(receives)]() -> Status {
    const Nccl& nccl = engine->nccl;
    FLATOUT_TRY_STATUS(engine->check(engine->cuda.set_context(context), "cuCtxSetCurrent"));
    // In one group, so that no order of ranks makes two wait for each other.
    int result = nccl.group_start();
    for (const OnCard& m : sends) {
      if (result != kSuccess) break;
      result = nccl.send(reinterpret_cast<const void*>(m.at), m.bytes, kBytes, m.rank, communicator,
                         stream);
    }
    for (const OnCard& m : receives) {
      if (result != kSuccess) break;
      result =
          nccl.recv(reinterpret_cast<void*>(m.at), m.bytes, kBytes, m.rank, communicator, stream);
    }
    const int ended = nccl.group_end();
    FLATOUT_TRY_STATUS(
        engine->check_nccl(result != kSuccess ? result : ended, "NCCL's send and receive"));
    return engine->check(engine->cuda.stream_synchronize(stream), "cuStreamSynchronize");
  };
  return watch("NCCL has not moved the ranks' messages", work, patience);
}

Status OverNccl::watch(const char* what, std::function<Status()> work, Nanos patience) {
  constexpr auto kLook = std::chrono::milliseconds(10);
  constexpr auto kGrace = std::chrono::seconds(1);
  auto ended = std::make_shared<std::promise<Status>>();
  std::future<Status> future = ended->get_future();
  std::thread([ended, work = std::move(work)] { ended->set_value(work()); }).detach();
  const TimePoint begun = MonotonicClock::now();
  std::optional<TimePoint> missed;  // since when a rank is gone
  Status status;
  while (future.wait_for(kLook) != std::future_status::ready) {
    if (Status lost = meeting_.lost(); !lost.ok()) {
      // It may have ended because its part was done: then ours is about to be.
      if (!missed) missed = MonotonicClock::now();
      if (MonotonicClock::now() - *missed > kGrace) return lost;
      continue;
    }
    int state = kSuccess;
    if (communicator_ != nullptr) {
      status = engine_->check_nccl(engine_->nccl.comm_get_async_error(communicator_, &state),
                                   "ncclCommGetAsyncError");
      if (status.ok()) status = engine_->check_nccl(state, "an exchange");
      if (!status.ok()) break;
    }
    if (MonotonicClock::now() - begun < patience) continue;
    // Whoever waits as we do says so now.
    std::vector<Word> all;
    FLATOUT_TRY_STATUS(hear_all(Word::kFailed, all, patience));
    return Error{Code::kTimeout,
                 fmt::format("--nccl: {} in {}, though all of them are there", what,
                             format_duration(patience)),
                 "NCCL_DEBUG=INFO has it say which way it goes; --rank-timeout waits longer"};
  }
  if (status.ok()) status = future.get();
  if (status.ok()) return {};
  // NCCL may know that a rank is gone a little before the others' transport does.
  const TimePoint failed = MonotonicClock::now();
  while (MonotonicClock::now() - failed < kGrace) {
    FLATOUT_TRY_STATUS(meeting_.lost());
    std::this_thread::sleep_for(kLook);
  }
  return status;
}

template <class T>
Status OverNccl::hear_all(const T& mine, std::vector<T>& all, Nanos patience) {
  static_assert(std::is_trivially_copyable_v<T>);
  all.assign(static_cast<size_t>(size()), mine);
  T own = mine;
  std::vector<Message> sends, receives;
  for (int r = 0; r < size(); ++r) {
    if (r == rank()) continue;
    sends.push_back({r, &own, sizeof own});
    receives.push_back({r, &all[static_cast<size_t>(r)], sizeof own});
  }
  return meeting_.exchange(sends, receives, patience);
}

Status OverNccl::agree_to_go(Nanos patience) {
  std::vector<Word> all;
  FLATOUT_TRY_STATUS(hear_all(Word::kGo, all, patience));
  const auto failed = std::find(all.begin(), all.end(), Word::kFailed);
  if (failed == all.end()) return {};
  return Error{Code::kGone, fmt::format("rank {} of {} has given up", failed - all.begin(), size()),
               "see what that rank said last"};
}

}  // namespace

Result<std::unique_ptr<Transport>> open_nccl(Transport& meeting, int local_rank, Nanos patience) {
  auto over = std::make_unique<OverNccl>(meeting);
  FLATOUT_TRY_STATUS(over->open(local_rank, patience));
  return std::unique_ptr<Transport>(std::move(over));
}

}  // namespace flatout::train
