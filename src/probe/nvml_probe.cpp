#include "probe/nvml_probe.h"

#include <condition_variable>
#include <mutex>
#include <thread>

#include "base/text.h"
#include "probe/reading.h"

namespace flatout::probe {
namespace {

using model::EntityKind;
using model::SignalId;
using std::chrono::milliseconds;

constexpr Nanos kPeriod = milliseconds(500);
constexpr uint64_t kPcieEvery = 8;              // rounds
constexpr size_t kMaxWaiting = 1024;            // readings not yet fetched
constexpr Nanos kPatience = milliseconds(200);  // for the thread's end

struct Timed {
  TimePoint at;
  GpuReading gpu;
};

// Shared by the probe and its thread; outlives the probe if the thread hangs in the driver.
struct Shared {
  std::mutex mutex;
  std::condition_variable changed;
  bool stop = false, ended = false, opened = false;
  std::optional<Error> failed;
  std::vector<Timed> waiting;
  std::vector<GpuFacts> facts;
  std::string driver, cuda;
};

void look_after(const std::shared_ptr<Shared>& shared, const std::string& library) {
  auto nvml = Nvml::open(library);
  std::unique_lock lock(shared->mutex);
  if (!nvml.ok()) {
    shared->failed = nvml.error();
  } else {
    shared->driver = (*nvml)->driver_version();
    shared->cuda = (*nvml)->cuda_version();
    for (uint32_t i = 0; i < (*nvml)->count(); ++i) {
      shared->facts.push_back((*nvml)->facts(i));
    }
    shared->opened = true;
    for (uint64_t round = 0; !shared->stop; ++round) {
      lock.unlock();
      std::vector<Timed> fresh;
      for (uint32_t i = 0; i < (*nvml)->count(); ++i) {
        fresh.push_back({MonotonicClock::now(), (*nvml)->read(i, round % kPcieEvery == 0)});
      }
      lock.lock();
      for (Timed& timed : fresh) {
        if (shared->waiting.size() < kMaxWaiting) shared->waiting.push_back(std::move(timed));
      }
      shared->changed.notify_all();
      shared->changed.wait_for(lock, kPeriod, [&] { return shared->stop; });
    }
  }
  lock.unlock();
  nvml = Error{};  // shut NVML down before saying so
  lock.lock();
  shared->ended = true;
  shared->changed.notify_all();
}

class NvmlProbe : public Probe {
 public:
  NvmlProbe(const Scope& scope, std::string library)
      : root_(scope.root), library_(std::move(library)) {}

  ~NvmlProbe() override {
    if (!shared_) return;
    std::unique_lock lock(shared_->mutex);
    shared_->stop = true;
    shared_->changed.notify_all();
    const bool ended = shared_->changed.wait_for(lock, kPatience, [&] { return shared_->ended; });
    lock.unlock();
    if (ended) {
      thread_.join();
    } else {
      thread_.detach();  // it hangs in the driver; it owns all that it uses
    }
  }

  const char* name() const override { return "nvml"; }
  Nanos period() const override {
    return given_up_ ? Nanos(std::chrono::hours(1)) : Nanos(milliseconds(500));
  }

  void read(TimePoint, model::Sink& sink) override {
    if (given_up_) return;
    if (!shared_) {
      shared_ = std::make_shared<Shared>();
      thread_ = std::thread(look_after, shared_, library_);
    }
    std::vector<Timed> fresh;
    std::unique_lock lock(shared_->mutex);
    fresh.swap(shared_->waiting);
    if (shared_->failed) {
      given_up_ = true;
      say_missing(*shared_->failed, sink);
      return;
    }
    const std::vector<GpuFacts> facts = shared_->facts;
    const std::string driver = shared_->driver, cuda = shared_->cuda;
    lock.unlock();
    if (!fresh.empty() && !told_) {
      told_ = true;
      sink.fact("gpu.driver_version", driver);
      sink.fact("gpu.cuda_version", cuda);
      sink.fact("gpu.count", std::to_string(facts.size()));
      for (size_t i = 0; i < facts.size(); ++i) {
        const std::string key = "gpu." + std::to_string(i);
        sink.fact(key + ".name", facts[i].name);
        sink.fact(key + ".uuid", facts[i].uuid);
      }
    }
    for (const Timed& timed : fresh) {
      deliver_gpu(timed.gpu, facts[timed.gpu.index], timed.at, sink);
    }
  }

 private:
  void say_missing(const Error& error, model::Sink& sink) const {
    const bool driver = root_.exists("proc/driver/nvidia/version") || root_.exists("dev/nvidiactl");
    if (!driver) {
      sink.missing({"gpu", "no NVIDIA driver", "no GPU is measured; nothing to do on a CPU job"});
    } else if (error.code == Code::kNotFound) {
      sink.missing({"gpu", "there is a driver, but no libnvidia-ml.so.1",
                    "in a container: NVIDIA_DRIVER_CAPABILITIES=utility,compute"});
    } else {
      sink.missing({"gpu", error.message, "see whether nvidia-smi works"});
    }
  }

  fs::Root root_;
  std::string library_;
  std::shared_ptr<Shared> shared_;
  std::thread thread_;
  bool given_up_ = false, told_ = false;
};

}  // namespace

void deliver_gpu(const GpuReading& gpu, const GpuFacts& facts, TimePoint at, model::Sink& sink) {
  const model::EntityId entity =
      sink.entity(EntityKind::kGpu, gpu.index, facts.name, model::kNoEntity);
  if (!gpu.error.empty()) {
    sink.fact("gpu." + std::to_string(gpu.index) + ".error", gpu.error);
    return;
  }
  const Deliver give(sink, entity, at);
  give(SignalId::kGpuUtil, gpu.util_ratio);
  give(SignalId::kGpuMemUtil, gpu.mem_util_ratio);
  give(SignalId::kGpuMemUsed, gpu.mem_used_bytes);
  give(SignalId::kGpuMemTotal, gpu.mem_total_bytes);
  give(SignalId::kGpuClockSm, gpu.clock_sm_hz);
  give(SignalId::kGpuClockSmMax, gpu.clock_sm_max_hz);
  give(SignalId::kGpuClockMem, gpu.clock_mem_hz);
  give(SignalId::kGpuPower, gpu.power_w);
  give(SignalId::kGpuPowerLimit, gpu.power_limit_w);
  give(SignalId::kGpuTemperature, gpu.temperature_c);
  give(SignalId::kGpuThrottle, gpu.throttle_reasons);
  give(SignalId::kGpuPcieTx, gpu.pcie_tx_bytes_per_s);
  give(SignalId::kGpuPcieRx, gpu.pcie_rx_bytes_per_s);
  give(SignalId::kGpuEccErrors, gpu.ecc_errors);
  if (!gpu.util_ratio) {
    sink.missing({"gpu.util_ratio", "the driver does not tell the utilisation of this device",
                  "a MIG instance has none"});
  }
  for (const GpuProcess& process : gpu.processes) {
    const model::EntityId of = sink.entity(EntityKind::kGpuProcess, process.pid,
                                           "gpu" + std::to_string(gpu.index), entity);
    const Deliver mem(sink, of, at);
    mem(SignalId::kGpuProcessMem, process.memory_bytes);
    if (!process.memory_bytes) {
      sink.missing({"gpu.process_mem_bytes", "the driver does not tell the memory per process",
                    "run flatout as root, or outside the container"});
    }
  }
}

std::unique_ptr<Probe> make_nvml_probe(const Scope& scope, const std::string& library) {
  return std::make_unique<NvmlProbe>(scope, library);
}

}  // namespace flatout::probe
