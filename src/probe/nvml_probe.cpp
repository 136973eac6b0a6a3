#include "probe/nvml_probe.h"

#include <fmt/format.h>

#include <condition_variable>
#include <mutex>
#include <system_error>
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

}  // namespace

// Shared with the thread; outlives the object if the thread hangs in the driver.
struct NvmlThread::Shared {
  std::mutex mutex;
  std::condition_variable changed;
  bool stop = false, ended = false;
  bool asked = false;   // not to wait until the next round is due
  uint64_t rounds = 0;  // that are done
  News news;
};

void NvmlThread::look_after(const std::shared_ptr<Shared>& shared, const std::string& library) {
  auto nvml = Nvml::open(library);
  std::unique_lock lock(shared->mutex);
  News& news = shared->news;
  if (!nvml.ok()) {
    news.failed = nvml.error();
  } else {
    news.driver = (*nvml)->driver_version();
    news.cuda = (*nvml)->cuda_version();
    for (uint32_t i = 0; i < (*nvml)->count(); ++i) news.facts.push_back((*nvml)->facts(i));
    for (uint64_t round = 0; !shared->stop; ++round) {
      lock.unlock();
      std::vector<Timed> fresh;
      for (uint32_t i = 0; i < (*nvml)->count(); ++i) {
        fresh.push_back({MonotonicClock::now(), (*nvml)->read(i, round % kPcieEvery == 0)});
      }
      lock.lock();
      for (Timed& timed : fresh) news.readings.push_back(std::move(timed));
      if (news.readings.size() > kMaxWaiting) {  // the newest are of use
        const auto beyond = static_cast<std::ptrdiff_t>(news.readings.size() - kMaxWaiting);
        news.readings.erase(news.readings.begin(), news.readings.begin() + beyond);
      }
      shared->asked = false;
      ++shared->rounds;
      shared->changed.notify_all();
      shared->changed.wait_for(lock, kPeriod, [&] { return shared->stop || shared->asked; });
    }
  }
  lock.unlock();
  nvml = Error{};  // shut NVML down before saying so
  lock.lock();
  shared->ended = true;
  shared->changed.notify_all();
}

NvmlThread::NvmlThread(std::string library) : shared_(std::make_shared<Shared>()) {
  try {
    thread_ = std::thread(look_after, shared_, std::move(library));
  } catch (const std::system_error&) {  // the limits allow no more of them
    shared_->ended = true;
    shared_->news.failed = Error{Code::kIo, "no thread could be started to ask the driver", ""};
  }
}

NvmlThread::~NvmlThread() {
  std::unique_lock lock(shared_->mutex);
  shared_->stop = true;
  shared_->changed.notify_all();
  const bool ended = shared_->changed.wait_for(lock, kPatience, [&] { return shared_->ended; });
  lock.unlock();
  if (ended) {
    if (thread_.joinable()) thread_.join();
  } else {
    thread_.detach();  // it hangs in the driver; it owns all that it uses
  }
}

void NvmlThread::ask_now() {
  std::unique_lock lock(shared_->mutex);
  // The round that goes on now may have begun before what is asked about.
  const uint64_t enough = shared_->rounds + 2;
  const TimePoint until = MonotonicClock::now() + kPatience;
  while (shared_->rounds < enough && !shared_->ended && MonotonicClock::now() < until) {
    shared_->asked = true;
    shared_->changed.notify_all();
    const uint64_t before = shared_->rounds;
    shared_->changed.wait_until(lock, until,
                                [&] { return shared_->rounds != before || shared_->ended; });
  }
}

NvmlThread::News NvmlThread::take() {
  const std::lock_guard lock(shared_->mutex);
  News out = shared_->news;
  shared_->news.readings.clear();
  return out;
}

model::Missing missing_gpu(const fs::Root& root, const Error& error) {
  const bool driver = root.exists("proc/driver/nvidia/version") || root.exists("dev/nvidiactl");
  if (!driver) {
    return {"gpu", "no NVIDIA driver", "no GPU is measured; nothing to do on a CPU job"};
  }
  if (error.code == Code::kNotFound) {
    return {"gpu", "there is a driver, but no libnvidia-ml.so.1",
            "in a container: NVIDIA_DRIVER_CAPABILITIES=utility,compute"};
  }
  return {"gpu", error.message, "see whether nvidia-smi works"};
}

namespace {

class NvmlProbe : public Probe {
 public:
  NvmlProbe(const Scope& scope, std::string library)
      : root_(scope.root), library_(std::move(library)) {}

  const char* name() const override { return "nvml"; }
  Nanos period() const override {
    return given_up_ ? Nanos(std::chrono::hours(1)) : Nanos(milliseconds(500));
  }

  void read_after_failure(TimePoint now, model::Sink& sink) override {
    if (thread_) thread_->ask_now();
    read(now, sink);
  }

  void read(TimePoint, model::Sink& sink) override {
    if (given_up_) return;
    if (!thread_) thread_.emplace(library_);
    const NvmlThread::News news = thread_->take();
    if (news.failed) {
      given_up_ = true;
      sink.missing(missing_gpu(root_, *news.failed));
      return;
    }
    if (!news.readings.empty() && !told_) {
      told_ = true;
      sink.fact("gpu.driver_version", news.driver);
      sink.fact("gpu.cuda_version", news.cuda);
      sink.fact("gpu.count", std::to_string(news.facts.size()));
      for (size_t i = 0; i < news.facts.size(); ++i) {
        const std::string key = "gpu." + std::to_string(i);
        sink.fact(key + ".name", news.facts[i].name);
        sink.fact(key + ".uuid", news.facts[i].uuid);
      }
      for (const NvmlThread::Timed& timed : news.readings) {
        for (const MigInstance& part : timed.gpu.instances) {
          sink.fact(fmt::format("gpu.{}.mig.{}.{}", timed.gpu.index, part.gpu_instance,
                                part.compute_instance),
                    part.profile);
        }
      }
    }
    for (const NvmlThread::Timed& timed : news.readings) {
      deliver_gpu(timed.gpu, news.facts[timed.gpu.index], timed.at, sink);
    }
  }

 private:
  fs::Root root_;
  std::string library_;
  std::optional<NvmlThread> thread_;
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
