// What holds the device back, from what the agent recorded of it (model/device.h) and from NVML.
#include <fmt/format.h>

#include <algorithm>

#include "base/text.h"
#include "diagnose/device.h"
#include "diagnose/findings.h"

namespace flatout::diagnose {

using model::DeviceUse;
using model::Finding;
using model::IdleCause;
using model::Part;
using model::SignalId;

namespace {

constexpr double kEnoughSeconds = 0.3;  // recorded, of the device
constexpr uint64_t kFewKernels = 20;
constexpr double kNarrow = 0.25;     // share of the device that kernels fill
constexpr double kBusy = 0.5;        // below that the device waits, whatever it runs
constexpr double kMemoryFree = 0.5;  // for a larger batch
// A batch so many times as large is promised at most: other limits come into play.
constexpr double kLargestBatch = 8;
constexpr double kNormShare = 0.2;  // of the kernels' time
// NVML's reasons for a lower clock that are not the user's choice: power cap, slowdown and thermal
// limits of hardware and driver, power brake.
constexpr uint64_t kThrottled = 0x4 | 0x8 | 0x20 | 0x40 | 0x80;
constexpr uint64_t kByPower = 0x4 | 0x80, kByHeat = 0x20 | 0x40;  // hardware slowdown: either
constexpr double kOften = 0.5;                                    // of the readings

/// What the training thread does while the device waits for it.
bool works_on_host(const Cell& c) {
  return c.role == Role::kTrainer && on_cpu(c.act) && c.part != Part::kSync &&
         c.part != Part::kInputWait;
}

class DeviceDetector {
 public:
  DeviceDetector(const RunView& view, Findings& findings) : view_(view), findings_(findings) {
    step_ = view.has_steps() ? view.steps().mean : 1.0;
    for (const DeviceUse& use : view.run().devices) {
      const bool enough = to_s(use.recorded) >= kEnoughSeconds && use.sum.kernels >= kFewKernels;
      if (enough && (use_ == nullptr || use.recorded > use_->recorded)) use_ = &use;
    }
  }

  void detect() {
    if (use_ != nullptr) {
      sync();
      launches();
      round_trips();
      copies();
      norms();
      small_batch();
    }
    throttled();
  }

 private:
  double busy() const { return use_->share(use_->sum.busy); }

  void show_share(Finding& f, double share, std::string_view what) const {
    evidence(f, fmt::format("{} {}", format_percent(share), what), share, "ratio", "agent.cuda",
             use_->windows);
  }

  void sync() {
    // Without the waits the host runs ahead: then the longer of its own work and the device's
    // counts.
    const double host = 1 - view_.steps().part(Part::kSync) / step_;
    const double left = view_.has_steps() ? 1 - std::max(busy(), std::max(host, 0.0)) : 1;
    const double idle = use_->idle(IdleCause::kSync);
    Finding* f =
        findings_.add("gpu.sync", "The host waits for the device, then the device for the host",
                      0.9, std::min(idle, left) * step_);
    if (f == nullptr) return;
    f->where = view_.where([](const Cell& c) {
      return c.role == Role::kTrainer && c.part == Part::kSync && c.act != Act::kRunQueue;
    });
    show_share(*f, idle, "of the time the device is idle after the host waited for it");
    show_share(*f, busy(), "of the time it works");
    remedy(*f, "async",
           "Move .item(), .cpu() and prints out of the step; copy with non_blocking=True.");
  }

  void launches() {
    const double idle = use_->idle(IdleCause::kLaunch);
    Finding* f = findings_.add("gpu.launch_bound", "The host cannot launch kernels fast enough",
                               0.9, idle * step_);
    if (f == nullptr) return;
    f->where = view_.where(works_on_host);
    show_share(*f, idle,
               "of the time the device waits for the next launch, less than 1 ms each time");
    const double kernel = to_s(use_->sum.kernel_sum) / static_cast<double>(use_->sum.kernels);
    evidence(*f, fmt::format("a kernel takes {} on average", ms(kernel)), kernel * 1e6, "us",
             "agent.cuda", static_cast<int64_t>(use_->sum.kernels));
    if (use_->sum.launches > 0) {
      const double call = to_s(use_->sum.launch_sum) / static_cast<double>(use_->sum.launches);
      evidence(*f, fmt::format("the call that launches it takes {}", ms(call)), call * 1e6, "us",
               "agent.cuda", static_cast<int64_t>(use_->sum.launches));
    }
    remedy(*f, "compile", "torch.compile or a CUDA graph: fewer launches for the same work.");
    remedy(*f, "batch", "A larger batch: more work for each launch.");
  }

  void round_trips() {
    const double idle = use_->idle(IdleCause::kRoundTrip);
    Finding* f = findings_.add("gpu.wrong_device",
                               "A part of the step runs on the CPU while the device waits", 0.8,
                               idle * step_);
    if (f == nullptr) return;
    f->where = view_.where(works_on_host);
    show_share(*f, idle,
               "of the time the device is idle between a copy to the host and one from it");
    remedy(*f, "device", "Move the module and its inputs to the device.");
  }

  void copies() {
    const double exposed = use_->share(use_->sum.exposed_copies);
    const bool pageable = use_->sum.exposed_pageable * 2 > use_->sum.exposed_copies;
    if (pageable && findings_.has("input.h2d_sync")) return;
    Finding* f = findings_.add(pageable ? "input.h2d_sync" : "gpu.no_overlap",
                               pageable ? "Copies to the device come from pageable memory and block"
                                        : "Copies between host and device do not overlap compute",
                               0.9, exposed * step_);
    if (f == nullptr) return;
    if (pageable) {
      f->where = view_.where(
          [](const Cell& c) { return c.role == Role::kTrainer && c.part == Part::kH2d; });
    }
    show_share(*f, exposed, "of the time only copies between host and device run");
    const double bytes =
        static_cast<double>(use_->sum.copy_bytes) / std::max(to_s(use_->recorded) / step_, 1e-9);
    evidence(*f,
             fmt::format("{} are copied a {}", format_bytes(bytes),
                         view_.has_steps() ? "step" : "second"),
             bytes, "bytes", "agent.cuda", static_cast<int64_t>(use_->sum.copy_count));
    if (pageable) {
      remedy(*f, "pin_memory", "Use pin_memory=True and copy with non_blocking=True.");
    } else {
      remedy(*f, "prefetch", "Copy the next batch on a stream of its own while this one computes.");
    }
  }

  void norms() {
    const double all = to_s(use_->sum.kernel_sum), norm = to_s(use_->sum.norm_sum);
    const double follow = to_s(use_->sum.follow_sum);
    if (norm < kNormShare * all || all <= 0) return;
    // What follows disappears into the norm's own pass; a fused norm reads once less of three
    // times.
    const double saved = (follow + norm / 3) / all * use_->share(use_->sum.compute);
    Finding* f = findings_.add("gpu.unfused_norm", "Batch norm, add and ReLU run as many kernels",
                               0.6, saved * step_);
    if (f == nullptr) return;
    show_share(*f, norm / all, "of the kernels' time is batch norm");
    show_share(*f, follow / all, "is adding and ReLU in kernels of their own");
    remedy(*f, "fused_norm",
           "Fused batch norm with add and ReLU, channels-last memory format, or torch.compile.");
  }

  void small_batch() {
    if (use_->sum.kernel_sum.count() <= 0 || busy() < kBusy) return;
    const double filled = to_s(use_->sum.filled) / to_s(use_->sum.kernel_sum);
    const auto memory = device_memory(view_, use_->sum.process, use_->sum.end);
    if (filled > kNarrow || !memory || memory->free() < kMemoryFree * memory->total) return;
    const double larger =
        std::min({1 / std::max(filled, 1e-3), memory->total / memory->used, kLargestBatch});
    const double saved = use_->share(use_->sum.compute) * (1 - 1 / larger);
    Finding* f = findings_.add("gpu.small_batch", "Kernels are too small to fill the device", 0.7,
                               saved * step_);
    if (f == nullptr) return;
    show_share(*f, filled, "of what the device holds at once have the kernels, on average");
    show_share(*f, busy(), "of the time it is busy, which says nothing about how much of it");
    evidence(*f, fmt::format("{} of its memory are free", format_bytes(memory->free())),
             memory->free(), "bytes", "probe.nvml", memory->readings);
    remedy(*f, "batch", "A larger batch: the same kernels' time for more samples.");
  }

  // Where the agent has no windows, NVML's utilisation stands for the busy time.
  void throttled() {
    const model::Run& run = view_.run();
    const model::EntityId gpu =
        device_of(view_, use_ != nullptr ? use_->sum.process : view_.trainer_process());
    const model::Series* bits = view_.series(SignalId::kGpuThrottle, gpu);
    const model::Series* clock = view_.series(SignalId::kGpuClockSm, gpu);
    const model::Series* highest = view_.series(SignalId::kGpuClockSmMax, gpu);
    if (bits == nullptr || clock == nullptr || highest == nullptr || !highest->last()) return;
    double low = 0, sum = 0, free = 0;
    uint64_t seen = 0;
    for (const model::Reading& r : bits->readings) {
      const auto now = static_cast<uint64_t>(r.value);
      const double hz = clock->at(r.at).value_or(0);
      if ((now & kThrottled) == 0) {
        if ((now & 1) == 0) free = std::max(free, hz);  // not idle
        continue;
      }
      ++low;
      sum += hz;
      seen |= now & kThrottled;
    }
    const auto count = static_cast<double>(bits->readings.size());
    if (low < 2 || low < kOften * count) return;
    const double usual = free > 0 ? free : *highest->last(), hz = sum / low;
    if (usual <= 0 || hz >= usual) return;
    const double works = use_ != nullptr ? use_->share(use_->sum.compute) : utilisation(gpu);
    const bool hot = (seen & kByHeat) != 0, power = !hot && (seen & kByPower) != 0;
    Finding* f = findings_.add("gpu.throttled",
                               power ? "The device's clock is lowered to keep its power limit"
                               : hot ? "The device's clock is lowered because it is too hot"
                                     : "The device's clock is lowered by its hardware",
                               0.75, works * (1 - hz / usual) * low / count * step_);
    if (f == nullptr) return;
    evidence(*f, fmt::format("the multiprocessors run at {:.0f} MHz", hz * 1e-6), hz, "Hz",
             "probe.nvml", static_cast<int64_t>(low));
    evidence(*f, fmt::format("they can run at {:.0f} MHz", usual * 1e-6), usual, "Hz", "probe.nvml",
             static_cast<int64_t>(count));
    if (const model::Series* heat = view_.series(SignalId::kGpuTemperature, gpu);
        heat != nullptr && heat->max(run.begin, run.end)) {
      const double degrees = *heat->max(run.begin, run.end);
      evidence(*f, fmt::format("it reaches {:.0f} degrees Celsius", degrees), degrees, "C",
               "probe.nvml", static_cast<int64_t>(heat->readings.size()));
    }
    remedy(*f, "cooling",
           power ? "Raise the power limit (nvidia-smi -pl), or share its budget less."
           : hot ? "Cooling: air flow, fans, fewer hot neighbours."
                 : "Look at its power supply and cooling; nvidia-smi -q -d PERFORMANCE says more.");
  }

  double utilisation(model::EntityId gpu) const {
    const model::Series* util = view_.series(SignalId::kGpuUtil, gpu);
    if (util == nullptr || util->empty()) return 0;
    double sum = 0;
    for (const model::Reading& r : util->readings) sum += r.value;
    return sum / static_cast<double>(util->readings.size());
  }

  const RunView& view_;
  Findings& findings_;
  const DeviceUse* use_ = nullptr;  // of the device that works most for the job
  double step_ = 1;
};

}  // namespace

double device_computes(const model::Run& run) {
  double share = 0;
  for (const model::DeviceUse& use : run.devices) {
    share = std::max(share, use.share(use.sum.compute));
  }
  return share;
}

void detect_device(const RunView& view, Findings& findings) {
  DeviceDetector(view, findings).detect();
}

}  // namespace flatout::diagnose
