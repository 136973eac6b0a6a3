// Messages between ranks over NCCL, a card for each, found at run time as MPI is. The trainer
// computes on the CPU: a message is copied to the card, sent from there to another's, and copied
// back. NCCL waits for ever and does not say for whom, so before each exchange every rank hears
// from every other over the transport that brought them together, which names the one that is late
// or gone. The names and types are those of NCCL's ABI, unchanged since 2.7.
#include <dlfcn.h>
#include <fmt/format.h>

#include <array>
#include <chrono>
#include <cstring>
#include <future>
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
constexpr int kSuccess = 0, kInProgress = 7;  // ncclResult_t
constexpr int kBytes = 0;                     // ncclInt8
constexpr const char* kHint = "without --nccl the ranks' messages go by MPI or sockets";

struct Nccl {
  int (*get_unique_id)(UniqueId*) = nullptr;
  int (*comm_init_rank)(Communicator*, int, UniqueId, int) = nullptr;
  int (*comm_destroy)(Communicator) = nullptr;
  int (*comm_abort)(Communicator) = nullptr;
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
  cuda::CUresult (*stream_query)(Stream) = nullptr;
  cuda::CUresult (*get_error_name)(cuda::CUresult, const char**) = nullptr;
};

/// A shared library and what it lacks.
class Library {
 public:
  static Result<Library> open(const char* name, const char* what) {
    void* const handle = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    if (handle == nullptr) {
      return Error{Code::kNotFound, fmt::format("{}: {} cannot be loaded", what, name), kHint};
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
  FLATOUT_TRY(Library library, Library::open("libnccl.so.2", "--nccl"));
  Nccl out;
  library.find("ncclGetUniqueId", out.get_unique_id);
  library.find("ncclCommInitRank", out.comm_init_rank);
  library.find("ncclCommDestroy", out.comm_destroy);
  library.find("ncclCommAbort", out.comm_abort);
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
  library.find("cuStreamQuery", out.stream_query);
  library.find("cuGetErrorName", out.get_error_name);
  FLATOUT_TRY_STATUS(library.whole());
  return out;
}

class OverNccl : public Transport {
 public:
  OverNccl(const Nccl& nccl, const Cuda& cuda, std::unique_ptr<Transport> meeting)
      : nccl_(nccl), cuda_(cuda), meeting_(std::move(meeting)) {}
  ~OverNccl() override {
    // Lost ranks would be waited for; the process is about to end in any case.
    if (communicator_ != nullptr && !failed_) nccl_.comm_destroy(communicator_);
  }
  OverNccl(const OverNccl&) = delete;
  OverNccl& operator=(const OverNccl&) = delete;

  Status open(int local_rank, Nanos patience);
  const char* name() const override { return "nccl"; }
  int rank() const override { return meeting_->rank(); }
  int size() const override { return meeting_->size(); }
  Status exchange(std::span<const Message> sends, std::span<const Message> receives,
                  Nanos patience) override;

 private:
  Status check(cuda::CUresult result, const char* call) const {
    if (result == cuda::CUDA_SUCCESS) return {};
    const char* name = nullptr;
    if (cuda_.get_error_name(result, &name) != cuda::CUDA_SUCCESS || name == nullptr) name = "?";
    return Error{Code::kIo, fmt::format("--nccl: {} gives {} ({})", call, name, result), kHint};
  }
  Status check_nccl(int result, const char* call) const {
    if (result == kSuccess) return {};
    return Error{Code::kIo, fmt::format("{} gives \"{}\"", call, nccl_.get_error_string(result)),
                 fmt::format("NCCL_DEBUG=WARN has it say more; {}", kHint)};
  }
  Status take_card(int local_rank, Nanos patience);
  Status meet(Nanos patience);
  Status make_room(size_t bytes);
  /// Until the messages on their way are there.
  Status wait(Nanos patience);
  /// Hears from every rank, all: [size][bytes]. Errors name those that do not answer.
  Status hear_all(const void* mine, size_t bytes, char* all, Nanos patience);
  Status hear_all(Nanos patience) {
    std::vector<char> all(static_cast<size_t>(size()));
    return hear_all("", 1, all.data(), patience);
  }
  /// Which rank does not answer, where that is why NCCL failed.
  Error lost_or(const Error& otherwise, Nanos patience);

  Nccl nccl_;
  Cuda cuda_;
  std::unique_ptr<Transport> meeting_;
  cuda::CUdevice device_ = 0;
  cuda::Opaque context_ = nullptr;
  Stream stream_ = nullptr;
  Communicator communicator_ = nullptr;
  cuda::CUdeviceptr room_ = 0;
  size_t room_bytes_ = 0;
  bool failed_ = false;
};

Status OverNccl::open(int local_rank, Nanos patience) {
  FLATOUT_TRY_STATUS(take_card(local_rank, patience));
  FLATOUT_TRY_STATUS(meet(patience));
  return check(cuda_.stream_create(&stream_, 0), "cuStreamCreate");
}

Status OverNccl::take_card(int local_rank, Nanos patience) {
  FLATOUT_TRY_STATUS(check(cuda_.init(0), "cuInit"));
  int cards = 0;
  FLATOUT_TRY_STATUS(check(cuda_.device_get_count(&cards), "cuDeviceGetCount"));
  if (cards == 0) return Error{Code::kNotFound, "--nccl: there is no card", kHint};
  // Slurm may show each rank its own card alone.
  FLATOUT_TRY_STATUS(check(cuda_.device_get(&device_, local_rank % cards), "cuDeviceGet"));
  cuda::CUuuid mine{};
  FLATOUT_TRY_STATUS(check(cuda_.device_get_uuid(&mine, device_), "cuDeviceGetUuid"));
  std::vector<cuda::CUuuid> all(static_cast<size_t>(size()));
  FLATOUT_TRY_STATUS(hear_all(&mine, sizeof mine, reinterpret_cast<char*>(all.data()), patience));
  for (size_t r = 0; r < all.size(); ++r) {
    if (static_cast<int>(r) == rank() || std::memcmp(&all[r], &mine, sizeof mine) != 0) continue;
    return Error{Code::kBadInput,
                 fmt::format("--nccl: ranks {} and {} have the same card", rank(), r),
                 fmt::format("NCCL takes a card for each rank; {}", kHint)};
  }
  FLATOUT_TRY_STATUS(check(cuda_.retain_context(&context_, device_), "cuDevicePrimaryCtxRetain"));
  return check(cuda_.set_context(context_), "cuCtxSetCurrent");
}

Status OverNccl::meet(Nanos patience) {
  UniqueId id{};
  std::vector<Message> sends, receives;
  if (rank() == 0) {
    FLATOUT_TRY_STATUS(check_nccl(nccl_.get_unique_id(&id), "ncclGetUniqueId"));
    for (int r = 1; r < size(); ++r) sends.push_back({r, &id, sizeof id});
  } else {
    receives.push_back({0, &id, sizeof id});
  }
  FLATOUT_TRY_STATUS(meeting_->exchange(sends, receives, patience));
  FLATOUT_TRY_STATUS(hear_all(patience));
  // It returns when all have called it. Where one never does, this thread is left behind, and the
  // process ends.
  auto made = std::make_shared<std::promise<std::pair<int, Communicator>>>();
  auto future = made->get_future();
  std::thread([nccl = nccl_, set = cuda_.set_context, context = context_, id, size = size(),
               rank = rank(), made] {
    Communicator communicator = nullptr;
    set(context);
    const int result = nccl.comm_init_rank(&communicator, size, id, rank);
    made->set_value({result, communicator});
  }).detach();
  if (future.wait_for(patience) != std::future_status::ready) {
    failed_ = true;
    return lost_or({Code::kTimeout,
                    fmt::format("NCCL has not brought the {} ranks together in {}", size(),
                                format_duration(patience)),
                    "NCCL_DEBUG=INFO has it say which way it tries; --rank-timeout waits longer"},
                   patience);
  }
  const auto [result, communicator] = future.get();
  communicator_ = communicator;
  failed_ = result != kSuccess;
  return check_nccl(result, "ncclCommInitRank");
}

Status OverNccl::make_room(size_t bytes) {
  if (bytes <= room_bytes_) return {};
  if (room_ != 0) FLATOUT_TRY_STATUS(check(cuda_.free(room_), "cuMemFree"));
  room_ = 0;
  room_bytes_ = 0;
  FLATOUT_TRY_STATUS(check(cuda_.allocate(&room_, bytes), "cuMemAlloc"));
  room_bytes_ = bytes;
  return {};
}

Status OverNccl::exchange(std::span<const Message> sends, std::span<const Message> receives,
                          Nanos patience) {
  constexpr size_t kAlign = 256;  // NCCL copies aligned messages by whole vectors
  size_t bytes = 0;
  const auto place = [&](const Message& m) {
    const size_t at = bytes;
    bytes += (m.bytes + kAlign - 1) / kAlign * kAlign;
    return at;
  };
  std::vector<size_t> from, to;
  for (const Message& m : sends) from.push_back(place(m));
  for (const Message& m : receives) to.push_back(place(m));
  FLATOUT_TRY_STATUS(hear_all(patience));
  if (bytes == 0) return {};
  // The thread that speaks need not be the one that joined.
  FLATOUT_TRY_STATUS(check(cuda_.set_context(context_), "cuCtxSetCurrent"));
  FLATOUT_TRY_STATUS(make_room(bytes));
  const auto on_card = [&](size_t at) { return reinterpret_cast<void*>(room_ + at); };
  for (size_t i = 0; i < sends.size(); ++i) {
    FLATOUT_TRY_STATUS(
        check(cuda_.copy_in(room_ + from[i], sends[i].data, sends[i].bytes), "cuMemcpyHtoD"));
  }
  // In one group, so that no order of ranks makes two wait for each other.
  int result = nccl_.group_start();
  for (size_t i = 0; i < sends.size() && result == kSuccess; ++i) {
    result =
        nccl_.send(on_card(from[i]), sends[i].bytes, kBytes, sends[i].rank, communicator_, stream_);
  }
  for (size_t i = 0; i < receives.size() && result == kSuccess; ++i) {
    result = nccl_.recv(on_card(to[i]), receives[i].bytes, kBytes, receives[i].rank, communicator_,
                        stream_);
  }
  const int ended = nccl_.group_end();
  Status status = check_nccl(result != kSuccess ? result : ended, "NCCL's send and receive");
  if (status.ok()) status = wait(patience);
  if (!status.ok()) {
    failed_ = true;
    nccl_.comm_abort(communicator_);
    return lost_or(status.error(), patience);
  }
  for (size_t i = 0; i < receives.size(); ++i) {
    FLATOUT_TRY_STATUS(
        check(cuda_.copy_out(receives[i].data, room_ + to[i], receives[i].bytes), "cuMemcpyDtoH"));
  }
  return {};
}

Status OverNccl::wait(Nanos patience) {
  const TimePoint begun = MonotonicClock::now();
  while (true) {
    const cuda::CUresult result = cuda_.stream_query(stream_);
    if (result == cuda::CUDA_SUCCESS) return {};
    if (result != cuda::CUDA_ERROR_NOT_READY) return check(result, "cuStreamQuery");
    const Nanos waited = MonotonicClock::now() - begun;
    if (waited < std::chrono::milliseconds(2)) {
      std::this_thread::yield();
      continue;
    }
    int state = kSuccess;
    FLATOUT_TRY_STATUS(
        check_nccl(nccl_.comm_get_async_error(communicator_, &state), "ncclCommGetAsyncError"));
    if (state != kInProgress) FLATOUT_TRY_STATUS(check_nccl(state, "NCCL"));
    if (waited > patience) {
      return Error{Code::kTimeout,
                   fmt::format("NCCL has moved nothing for {}", format_duration(patience)),
                   "--rank-timeout waits longer"};
    }
    std::this_thread::sleep_for(std::chrono::microseconds(100));
  }
}

Status OverNccl::hear_all(const void* mine, size_t bytes, char* all, Nanos patience) {
  std::vector<char> own(bytes);
  std::memcpy(own.data(), mine, bytes);
  std::vector<Message> sends, receives;
  for (int r = 0; r < size(); ++r) {
    char* const at = all + static_cast<size_t>(r) * bytes;
    if (r == rank()) {
      std::memcpy(at, mine, bytes);
      continue;
    }
    sends.push_back({r, own.data(), bytes});
    receives.push_back({r, at, bytes});
  }
  Status status = meeting_->exchange(sends, receives, patience);
  failed_ |= !status.ok();
  return status;
}

Error OverNccl::lost_or(const Error& otherwise, Nanos patience) {
  const Status heard = hear_all(patience);
  return heard.ok() ? otherwise : heard.error();
}

}  // namespace

Result<std::unique_ptr<Transport>> open_nccl(std::unique_ptr<Transport> meeting, int local_rank,
                                             Nanos patience) {
  FLATOUT_TRY(const Cuda cuda, load_cuda());
  FLATOUT_TRY(const Nccl nccl, load_nccl());
  auto over = std::make_unique<OverNccl>(nccl, cuda, std::move(meeting));
  FLATOUT_TRY_STATUS(over->open(local_rank, patience));
  return std::unique_ptr<Transport>(std::move(over));
}

}  // namespace flatout::train
