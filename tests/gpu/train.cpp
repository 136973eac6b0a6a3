// A small training job on the driver API, which has one cause of slowness or failure, or one that
// only looks like it: train CAUSE SECONDS. Its kernels spin for as long as they are told, so that
// it takes the same time on a simulated device (sim_cuda.c) and on a real one. Lines that a finding
// has to name end with the comment CAUSE and the cause's name.
#include <flatout/marker.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "driver_api.h"

namespace {

constexpr uint64_t kUs = 1000, kMs = 1000 * kUs, kMiB = 1 << 20, kGiB = 1 << 30;

// One body under several names: spins until the device's clock is `ns` later.
std::string kernel_source() {
  std::string text = ".version 6.0\n.target sm_50\n.address_size 64\n";
  for (const char* name : {"gemm", "sgd_update", "reduce_loss", "batch_norm_collect_statistics",
                           "batch_norm_transform_input", "CUDAFunctor_add_kernel"}) {
    text += std::string(".visible .entry ") + name +
            "(.param .u64 ns)\n{\n.reg .u64 %begin, %now, %ns;\n.reg .pred %p;\n"
            "ld.param.u64 %ns, [ns];\nmov.u64 %begin, %globaltimer;\n"
            "again:\nmov.u64 %now, %globaltimer;\nsub.u64 %now, %now, %begin;\n"
            "setp.lt.u64 %p, %now, %ns;\n@%p bra again;\nret;\n}\n";
  }
  return text;
}

void check(CUresult code, const char* what) {
  if (code == 0) return;
  const char* name = nullptr;
  cuGetErrorName(code, &name);
  std::fprintf(stderr, "%s: %s\n", what, name != nullptr ? name : "unknown error");
  std::exit(1);
}

/// What a framework does on the host for an operation, or a job's own work there.
void work_for(uint64_t ns) {
  for (const uint64_t until = flatout_now() + ns; flatout_now() < until;) {  // CAUSE work
  }
}

struct Size {
  unsigned blocks = 2048, threads = 256;
};

class Device {
 public:
  Device() {
    check(cuInit(0), "cuInit");
    CUdevice device = 0;
    CUcontext context = nullptr;
    check(cuDeviceGet(&device, 0), "cuDeviceGet");
    check(cuDevicePrimaryCtxRetain(&context, device), "cuDevicePrimaryCtxRetain");
    check(cuCtxSetCurrent(context), "cuCtxSetCurrent");
    check(cuModuleLoadData(&module_, kernel_source().c_str()), "cuModuleLoadData");
    check(cuStreamCreate(&compute, 1), "cuStreamCreate");
    check(cuStreamCreate(&copies, 1), "cuStreamCreate");
    for (CUevent* event : {&done_[0], &done_[1], &copied_}) {
      check(cuEventCreate(event, 2), "cuEventCreate");
    }
  }

  void launch(const char* name, uint64_t ns, Size size = {}) {
    CUfunction& function = functions_[name];
    if (function == nullptr) {
      check(cuModuleGetFunction(&function, module_, name), "cuModuleGetFunction");
    }
    void* params[] = {&ns};
    check(cuLaunchKernel(function, size.blocks, 1, 1, size.threads, 1, 1, 0, compute, params,
                         nullptr),
          "cuLaunchKernel");
  }
  void launch_many(int count, const char* name, uint64_t ns, Size size = {}) {
    for (int i = 0; i < count; ++i) launch(name, ns, size);
  }
  CUdeviceptr allocate(uint64_t bytes) {
    CUdeviceptr memory = 0;
    check(cuMemAlloc_v2(&memory, bytes), "cuMemAlloc");
    return memory;
  }
  void copy_ahead(CUdeviceptr to, const void* from, uint64_t bytes) {
    check(cuMemcpyHtoDAsync_v2(to, from, bytes, copies), "cuMemcpyHtoDAsync");
    check(cuEventRecord(copied_, copies), "cuEventRecord");
  }
  void use_copy() { check(cuStreamWaitEvent(compute, copied_, 0), "cuStreamWaitEvent"); }

  /// At most one step is queued behind the one that runs.
  void end_step(int64_t index) {
    CUevent& mine = done_[index % 2];
    CUevent& before = done_[(index + 1) % 2];
    check(cuEventRecord(mine, compute), "cuEventRecord");
    if (index > 0) check(cuEventSynchronize(before), "cuEventSynchronize");
    flatout_step(index);
  }

  CUstream compute = nullptr, copies = nullptr;

 private:
  CUmodule module_ = nullptr;
  std::map<std::string, CUfunction> functions_;
  CUevent done_[2] = {}, copied_ = nullptr;
};

constexpr uint64_t kBatch = 16 * kMiB, kBigBatch = 64 * kMiB;

class Job {
 public:
  explicit Job(Device& d) : d_(d) {
    weights_ = d_.allocate(512 * kMiB);
    check(cuMemAllocHost_v2(&pinned_, kBigBatch), "cuMemAllocHost");
  }

  // ---- what a step does ----

  void healthy() {
    d_.copy_ahead(weights_, pinned_, kBatch);
    d_.launch_many(20, "gemm", 400 * kUs);
    d_.use_copy();
  }
  void launch() { many_small(8 * kUs); }
  void launch_hidden() { many_small(80 * kUs); }
  void launch_graph() { d_.launch("gemm", 150 * 8 * kUs); }
  void sync() {
    for (int i = 0; i < 4; ++i) {
      d_.launch_many(5, "gemm", 400 * kUs);
      log_loss();
    }
  }
  void sync_once() {
    // The loss of the step before: its copy waits for a device that has more to do.
    d_.launch_many(20, "gemm", 400 * kUs);
    work_for(500 * kUs);
  }
  void pageable() {
    check(cuMemcpyHtoD_v2(weights_, pageable_.get(), 24 * kMiB), "cuMemcpyHtoD");  // CAUSE pageable
    d_.launch_many(20, "gemm", 400 * kUs);
    check(cuStreamSynchronize(d_.compute), "cuStreamSynchronize");
  }
  void pageable_little() {
    // Labels: few bytes, on a stream that has nothing else to do.
    check(cuMemcpyHtoD_v2(weights_, pageable_.get(), 4096), "cuMemcpyHtoD");
    healthy();
  }
  void load_weights() {
    for (int i = 0; i < 10; ++i) {
      check(cuMemcpyHtoD_v2(weights_, pageable_.get(), 24 * kMiB), "cuMemcpyHtoD");
    }
  }
  void no_overlap() {
    check(cuMemcpyHtoDAsync_v2(weights_, pinned_, kBigBatch, d_.compute), "cuMemcpyHtoDAsync");
    d_.launch_many(20, "gemm", 400 * kUs);
  }
  void overlap() {
    d_.copy_ahead(weights_, pinned_, kBigBatch);
    d_.launch_many(20, "gemm", 400 * kUs);
    d_.use_copy();
  }
  void round_trip() {
    for (int i = 0; i < 2; ++i) {
      d_.launch_many(10, "gemm", 400 * kUs);
      normalise_on_host();
    }
  }
  void narrow() { d_.launch_many(20, "gemm", 400 * kUs, {4, 128}); }
  void narrow_few() {
    d_.launch_many(19, "gemm", 400 * kUs);
    d_.launch("reduce_loss", 400 * kUs, {1, 256});
  }
  void norm() {
    for (int i = 0; i < 10; ++i) {
      d_.launch("gemm", 400 * kUs);
      d_.launch("batch_norm_collect_statistics", 120 * kUs);
      d_.launch("batch_norm_transform_input", 120 * kUs);
      d_.launch("CUDAFunctor_add_kernel", 160 * kUs);
    }
  }
  void norm_little() {
    for (int i = 0; i < 10; ++i) {
      d_.launch("gemm", 780 * kUs);
      d_.launch("batch_norm_transform_input", 20 * kUs);
    }
  }
  void norm_fused() {
    // One pass over what three kernels read and wrote in turn.
    for (int i = 0; i < 10; ++i) {
      d_.launch("gemm", 400 * kUs);
      d_.launch("CUDAFunctor_add_kernel", 160 * kUs);
    }
  }
  void slow_input() {
    const uint64_t begin = flatout_now();
    timespec pause = {0, 12'000'000};
    nanosleep(&pause, nullptr);
    flatout_slice(FLATOUT_INPUT_WAIT, nullptr, begin);
    d_.launch_many(20, "gemm", 400 * kUs);
    check(cuStreamSynchronize(d_.compute), "cuStreamSynchronize");
  }
  void one_more(uint64_t bytes) { d_.allocate(bytes); }
  void fill(uint64_t bytes) { d_.allocate(bytes); }
  void pieces() {
    size_t left = 0, total = 0;
    check(cuMemGetInfo_v2(&left, &total), "cuMemGetInfo");
    std::vector<CUdeviceptr> blocks;
    for (; left > kGiB; left -= kGiB) blocks.push_back(d_.allocate(kGiB));
    for (size_t i = 0; i < blocks.size(); i += 2) check(cuMemFree_v2(blocks[i]), "cuMemFree");
  }

 private:
  void many_small(uint64_t length) {
    for (int i = 0; i < 150; ++i) {
      work_for(20 * kUs);
      d_.launch("gemm", length);
    }
  }
  void log_loss() {
    float loss = 0;
    check(cuMemcpyDtoH_v2(&loss, weights_, sizeof loss), "cuMemcpyDtoH");
    check(cuStreamSynchronize(d_.compute), "cuStreamSynchronize");  // CAUSE sync
    work_for(1000 * kUs);
  }
  void normalise_on_host() {
    check(cuStreamSynchronize(d_.compute), "cuStreamSynchronize");
    check(cuMemcpyDtoH_v2(pinned_, weights_, kMiB), "cuMemcpyDtoH");
    work_for(4 * kMs);
    check(cuMemcpyHtoDAsync_v2(weights_, pinned_, kMiB, d_.compute), "cuMemcpyHtoDAsync");
  }

  Device& d_;
  CUdeviceptr weights_ = 0;
  void* pinned_ = nullptr;
  std::unique_ptr<char[]> pageable_{new char[24 * kMiB]()};
};

/// What happens once, after so many steps, and what each step is.
struct Cause {
  std::function<void(Job&)> step = &Job::healthy;
  std::function<void(Job&)> at_start, later;
};

const std::map<std::string, Cause>& causes() {
  static const std::map<std::string, Cause> all = {
      {"none", {}},
      {"launch", {&Job::launch}},
      {"launch_hidden", {&Job::launch_hidden}},
      {"launch_graph", {&Job::launch_graph}},
      {"sync", {&Job::sync}},
      {"sync_once", {&Job::sync_once}},
      {"pageable", {&Job::pageable}},
      {"pageable_little", {&Job::pageable_little}},
      {"pageable_once", {&Job::healthy, &Job::load_weights}},
      {"no_overlap", {&Job::no_overlap}},
      {"overlap", {&Job::overlap}},
      {"round_trip", {&Job::round_trip}},
      {"narrow", {&Job::narrow}},
      {"narrow_few", {&Job::narrow_few}},
      {"narrow_full", {&Job::narrow, [](Job& j) { j.fill(60 * kGiB); }}},
      {"norm", {&Job::norm}},
      {"norm_little", {&Job::norm_little}},
      {"norm_fused", {&Job::norm_fused}},
      {"slow_input", {&Job::slow_input}},
      {"needs_8", {&Job::healthy, nullptr, [](Job& j) { j.one_more(8 * kGiB); }}},
      {"needs_80", {&Job::healthy, nullptr, [](Job& j) { j.one_more(80 * kGiB); }}},
      {"needs_56", {&Job::healthy, nullptr, [](Job& j) { j.fill(56 * kGiB); }}},
      {"pieces", {&Job::healthy, &Job::pieces, [](Job& j) { j.one_more(8 * kGiB); }}},
      {"gives_up", {&Job::healthy, nullptr, [](Job&) { std::exit(3); }}},
  };
  return all;
}

}  // namespace

int main(int argc, char** argv) {
  const auto cause = causes().find(argc == 3 ? argv[1] : "");
  if (cause == causes().end()) {
    std::fprintf(stderr, "usage: train CAUSE SECONDS, where CAUSE is one of\n");
    for (const auto& [name, what] : causes()) std::fprintf(stderr, "  %s\n", name.c_str());
    return 2;
  }
  const uint64_t until = flatout_now() + static_cast<uint64_t>(std::atof(argv[2]) * 1e9);
  Device device;
  Job job(device);
  if (cause->second.at_start) cause->second.at_start(job);
  int64_t step = 0;
  for (; flatout_now() < until; ++step) {
    cause->second.step(job);
    device.launch("sgd_update", 100 * kUs);
    device.end_step(step);
    if (step == 100 && cause->second.later) cause->second.later(job);
  }
  std::printf("%lld steps\n", static_cast<long long>(step));
  return 0;
}
