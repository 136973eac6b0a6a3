#include "probe/nvml.h"

#include <dlfcn.h>

namespace flatout::probe {
namespace {

// nvml.h: the numbers used here.
using Return = int;
constexpr Return kSuccess = 0, kInsufficientSize = 7, kGpuLost = 15, kResetRequired = 16;
constexpr unsigned kClockSm = 1, kClockMem = 2;
constexpr unsigned kPcieTx = 0, kPcieRx = 1;
constexpr unsigned kTemperatureGpu = 0;
constexpr unsigned kEccUncorrected = 1, kEccVolatile = 0;
constexpr unsigned kMigEnabled = 1;
constexpr unsigned kNoInstance = ~0U;
constexpr unsigned kMaxInstances = 64;
constexpr unsigned long long kNotAvailable = ~0ULL;
constexpr unsigned kMaxDevices = 64;
constexpr unsigned kMaxProcesses = 1024;

using Device = void*;
struct Utilization {
  unsigned gpu, memory;
};
struct Memory {
  unsigned long long total, free, used;
};
struct ProcessV1 {
  unsigned pid;
  unsigned long long memory;
};
struct ProcessV2 {  // also of the _v3 functions
  unsigned pid;
  unsigned long long memory;
  unsigned gpu_instance, compute_instance;
};

std::optional<uint32_t> instance_of(unsigned id) {
  return id == kNoInstance ? std::nullopt : std::optional<uint32_t>(id);
}
void set_instances(GpuProcess&, const ProcessV1&) {}
void set_instances(GpuProcess& out, const ProcessV2& process) {
  out.gpu_instance = instance_of(process.gpu_instance);
  out.compute_instance = instance_of(process.compute_instance);
}

// "NVIDIA H100 80GB HBM3 MIG 1g.10gb": what follows MIG.
std::string profile_of(std::string_view name) {
  const size_t at = name.rfind("MIG ");
  return std::string(at == std::string_view::npos ? name : name.substr(at + 4));
}

}  // namespace

struct Nvml::Api {
  void* library = nullptr;
  bool initialised = false;
  std::vector<Device> devices;

  Return (*init)() = nullptr;
  Return (*shutdown)() = nullptr;
  const char* (*error_string)(Return) = nullptr;
  Return (*get_count)(unsigned*) = nullptr;
  Return (*get_device)(unsigned, Device*) = nullptr;
  Return (*get_name)(Device, char*, unsigned) = nullptr;
  Return (*get_uuid)(Device, char*, unsigned) = nullptr;
  Return (*get_capability)(Device, int*, int*) = nullptr;
  Return (*get_driver)(char*, unsigned) = nullptr;
  Return (*get_cuda)(int*) = nullptr;
  Return (*get_utilization)(Device, Utilization*) = nullptr;
  Return (*get_memory)(Device, Memory*) = nullptr;
  Return (*get_clock)(Device, unsigned, unsigned*) = nullptr;
  Return (*get_max_clock)(Device, unsigned, unsigned*) = nullptr;
  Return (*get_power)(Device, unsigned*) = nullptr;
  Return (*get_power_limit)(Device, unsigned*) = nullptr;
  Return (*get_temperature)(Device, unsigned, unsigned*) = nullptr;
  Return (*get_throttle)(Device, unsigned long long*) = nullptr;
  Return (*get_pcie)(Device, unsigned, unsigned*) = nullptr;
  Return (*get_ecc)(Device, unsigned, unsigned, unsigned long long*) = nullptr;
  Return (*get_compute_v2)(Device, unsigned*, ProcessV2*) = nullptr;
  Return (*get_compute_v1)(Device, unsigned*, ProcessV1*) = nullptr;
  Return (*get_graphics_v2)(Device, unsigned*, ProcessV2*) = nullptr;
  Return (*get_mig_mode)(Device, unsigned*, unsigned*) = nullptr;
  Return (*get_mig_count)(Device, unsigned*) = nullptr;
  Return (*get_mig_device)(Device, unsigned, Device*) = nullptr;
  Return (*get_gpu_instance)(Device, unsigned*) = nullptr;
  Return (*get_compute_instance)(Device, unsigned*) = nullptr;

  ~Api() {
    if (initialised && shutdown != nullptr) shutdown();
    if (library != nullptr) dlclose(library);
  }

  // The first of these names that the library has; null if none.
  template <class F>
  void load(F& function, std::initializer_list<const char*> names) {
    for (const char* name : names) {
      function = reinterpret_cast<F>(dlsym(library, name));
      if (function != nullptr) return;
    }
  }

  void load_all() {
    load(init, {"nvmlInit_v2", "nvmlInit"});
    load(shutdown, {"nvmlShutdown"});
    load(error_string, {"nvmlErrorString"});
    load(get_count, {"nvmlDeviceGetCount_v2", "nvmlDeviceGetCount"});
    load(get_device, {"nvmlDeviceGetHandleByIndex_v2", "nvmlDeviceGetHandleByIndex"});
    load(get_name, {"nvmlDeviceGetName"});
    load(get_uuid, {"nvmlDeviceGetUUID"});
    load(get_capability, {"nvmlDeviceGetCudaComputeCapability"});
    load(get_driver, {"nvmlSystemGetDriverVersion"});
    load(get_cuda, {"nvmlSystemGetCudaDriverVersion_v2", "nvmlSystemGetCudaDriverVersion"});
    load(get_utilization, {"nvmlDeviceGetUtilizationRates"});
    load(get_memory, {"nvmlDeviceGetMemoryInfo"});
    load(get_clock, {"nvmlDeviceGetClockInfo"});
    load(get_max_clock, {"nvmlDeviceGetMaxClockInfo"});
    load(get_power, {"nvmlDeviceGetPowerUsage"});
    load(get_power_limit, {"nvmlDeviceGetEnforcedPowerLimit"});
    load(get_temperature, {"nvmlDeviceGetTemperature"});
    load(get_throttle,
         {"nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons"});
    load(get_pcie, {"nvmlDeviceGetPcieThroughput"});
    load(get_ecc, {"nvmlDeviceGetTotalEccErrors"});
    load(get_compute_v2,
         {"nvmlDeviceGetComputeRunningProcesses_v3", "nvmlDeviceGetComputeRunningProcesses_v2"});
    load(get_compute_v1, {"nvmlDeviceGetComputeRunningProcesses"});
    load(get_graphics_v2,
         {"nvmlDeviceGetGraphicsRunningProcesses_v3", "nvmlDeviceGetGraphicsRunningProcesses_v2"});
    load(get_mig_mode, {"nvmlDeviceGetMigMode"});
    load(get_mig_count, {"nvmlDeviceGetMaxMigDeviceCount"});
    load(get_mig_device, {"nvmlDeviceGetMigDeviceHandleByIndex"});
    load(get_gpu_instance, {"nvmlDeviceGetGpuInstanceId"});
    load(get_compute_instance, {"nvmlDeviceGetComputeInstanceId"});
  }

  std::string explain(Return code) const {
    const char* text = error_string == nullptr ? nullptr : error_string(code);
    return text == nullptr ? "error " + std::to_string(code) : text;
  }

  // The value that `get` writes, or nothing; notes a device that has gone.
  template <class T, class F, class... Args>
  std::optional<T> ask(GpuReading& out, F get, Device device, Args... args) const {
    if (get == nullptr) return std::nullopt;
    T value{};
    const Return code = get(device, args..., &value);
    if (code == kGpuLost || code == kResetRequired) out.error = explain(code);
    if (code != kSuccess) return std::nullopt;
    return value;
  }

  template <class P>
  void list(GpuReading& out, Return (*get)(Device, unsigned*, P*), Device device) const {
    std::vector<P> found(64);
    unsigned count = static_cast<unsigned>(found.size());
    Return code = get(device, &count, found.data());
    if (code == kInsufficientSize && count <= kMaxProcesses) {
      found.resize(count + 16);
      count = static_cast<unsigned>(found.size());
      code = get(device, &count, found.data());
    }
    if (code != kSuccess) return;
    for (size_t i = 0; i < count && i < found.size(); ++i) {
      GpuProcess process;
      process.pid = static_cast<int32_t>(found[i].pid);
      if (found[i].memory != kNotAvailable) process.memory_bytes = found[i].memory;
      set_instances(process, found[i]);
      bool known = false;  // a process may both compute and draw, and CUDA uses one instance only
      for (GpuProcess& other : out.processes) {
        if (other.pid != process.pid) continue;
        known = true;
        if (other.gpu_instance) continue;
        other.gpu_instance = process.gpu_instance;
        other.compute_instance = process.compute_instance;
      }
      if (!known) out.processes.push_back(process);
    }
  }

  void list_processes(GpuReading& out, Device device) const {
    if (get_compute_v2 != nullptr) {
      list(out, get_compute_v2, device);
    } else if (get_compute_v1 != nullptr) {
      list(out, get_compute_v1, device);
    }
    if (get_graphics_v2 != nullptr) list(out, get_graphics_v2, device);
  }

  // The parts of a divided GPU. Their numbers have gaps, and may change at any time.
  void list_instances(GpuReading& out, Device device) const {
    unsigned mode = 0, pending = 0;
    if (get_mig_mode == nullptr || get_mig_device == nullptr ||
        get_mig_mode(device, &mode, &pending) != kSuccess || mode != kMigEnabled) {
      return;
    }
    const unsigned count = ask<unsigned>(out, get_mig_count, device).value_or(0);
    for (unsigned i = 0; i < count && i < kMaxInstances; ++i) {
      Device part = nullptr;
      if (get_mig_device(device, i, &part) != kSuccess || part == nullptr) continue;
      MigInstance& instance = out.instances.emplace_back();
      instance.gpu_instance = ask<unsigned>(out, get_gpu_instance, part).value_or(i);
      instance.compute_instance = ask<unsigned>(out, get_compute_instance, part).value_or(0);
      char text[128] = {};
      if (get_name != nullptr && get_name(part, text, sizeof text - 1) == kSuccess) {
        instance.profile = profile_of(text);
      }
      if (const auto memory = ask<Memory>(out, get_memory, part)) {
        instance.mem_used_bytes = memory->used;
        instance.mem_total_bytes = memory->total;
      }
      // The GPU itself names the processes of all its instances to root only.
      list_processes(out, part);
    }
  }
};

Nvml::Nvml(std::unique_ptr<Api> api) : api_(std::move(api)) {}
Nvml::~Nvml() = default;

Result<std::unique_ptr<Nvml>> Nvml::open(const std::string& library) {
  auto api = std::make_unique<Api>();
  api->library = dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (api->library == nullptr) {
    return Error{Code::kNotFound, "NVML (libnvidia-ml.so.1) is not here", ""};
  }
  api->load_all();
  if (api->init == nullptr || api->get_count == nullptr || api->get_device == nullptr) {
    return Error{Code::kUnsupported, library + " is not NVML", ""};
  }
  const Return code = api->init();
  if (code != kSuccess) {
    return Error{Code::kUnsupported, "NVML does not start: " + api->explain(code), ""};
  }
  api->initialised = true;
  unsigned count = 0;
  if (api->get_count(&count) != kSuccess || count == 0) {
    return Error{Code::kUnsupported, "the NVIDIA driver shows no GPU", ""};
  }
  for (unsigned i = 0; i < count && i < kMaxDevices; ++i) {
    Device device = nullptr;
    // A device that does not answer keeps its number, so that the others keep theirs.
    api->devices.push_back(api->get_device(i, &device) == kSuccess ? device : nullptr);
  }
  return std::unique_ptr<Nvml>(new Nvml(std::move(api)));
}

uint32_t Nvml::count() const { return static_cast<uint32_t>(api_->devices.size()); }

GpuFacts Nvml::facts(uint32_t index) const {
  GpuFacts out;
  const Device device = api_->devices[index];
  char text[128] = {};
  if (device == nullptr) return out;
  if (api_->get_name != nullptr && api_->get_name(device, text, sizeof text - 1) == kSuccess) {
    out.name = text;
  }
  if (api_->get_uuid != nullptr && api_->get_uuid(device, text, sizeof text - 1) == kSuccess) {
    out.uuid = text;
  }
  if (api_->get_capability == nullptr ||
      api_->get_capability(device, &out.compute_major, &out.compute_minor) != kSuccess) {
    out.compute_major = out.compute_minor = 0;
  }
  return out;
}

std::string Nvml::driver_version() const {
  char text[128] = {};
  const bool fine =
      api_->get_driver != nullptr && api_->get_driver(text, sizeof text - 1) == kSuccess;
  return fine ? text : "";
}

std::string Nvml::cuda_version() const {
  int version = 0;
  if (api_->get_cuda == nullptr || api_->get_cuda(&version) != kSuccess) return "";
  return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
}

GpuReading Nvml::read(uint32_t index, bool pcie) const {
  GpuReading out;
  out.index = index;
  const Api& api = *api_;
  const Device device = api.devices[index];
  if (device == nullptr) {
    out.error = "the device does not answer";
    return out;
  }
  const auto scaled = [](std::optional<unsigned> value, double unit) {
    return value ? std::optional<double>(*value * unit) : std::nullopt;
  };
  if (const auto util = api.ask<Utilization>(out, api.get_utilization, device)) {
    out.util_ratio = util->gpu / 100.0;
    out.mem_util_ratio = util->memory / 100.0;
  }
  if (!out.error.empty()) return out;  // lost: each further question may take long
  if (const auto memory = api.ask<Memory>(out, api.get_memory, device)) {
    out.mem_used_bytes = memory->used;
    out.mem_total_bytes = memory->total;
  }
  out.clock_sm_hz = scaled(api.ask<unsigned>(out, api.get_clock, device, kClockSm), 1e6);
  out.clock_mem_hz = scaled(api.ask<unsigned>(out, api.get_clock, device, kClockMem), 1e6);
  out.clock_sm_max_hz = scaled(api.ask<unsigned>(out, api.get_max_clock, device, kClockSm), 1e6);
  out.power_w = scaled(api.ask<unsigned>(out, api.get_power, device), 1e-3);
  out.power_limit_w = scaled(api.ask<unsigned>(out, api.get_power_limit, device), 1e-3);
  out.temperature_c =
      scaled(api.ask<unsigned>(out, api.get_temperature, device, kTemperatureGpu), 1);
  if (const auto bits = api.ask<unsigned long long>(out, api.get_throttle, device)) {
    out.throttle_reasons = *bits;
  }
  const auto ecc =
      api.ask<unsigned long long>(out, api.get_ecc, device, kEccUncorrected, kEccVolatile);
  if (ecc) out.ecc_errors = *ecc;
  if (pcie) {  // in KB/s
    out.pcie_tx_bytes_per_s = scaled(api.ask<unsigned>(out, api.get_pcie, device, kPcieTx), 1e3);
    out.pcie_rx_bytes_per_s = scaled(api.ask<unsigned>(out, api.get_pcie, device, kPcieRx), 1e3);
  }
  api.list_processes(out, device);
  api.list_instances(out, device);
  return out;
}

}  // namespace flatout::probe
