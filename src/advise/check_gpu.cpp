#include <fmt/format.h>

#include <algorithm>
#include <compare>
#include <utility>

#include "advise/found.h"
#include "base/contains.h"
#include "base/size_text.h"
#include "base/text.h"

namespace flatout::advise {
namespace {

constexpr double kGpuInUse = 0.1, kGpuTaken = 0.5;

// NVML's reasons for lower clocks that are no one's wish: hardware, heat, power brake.
constexpr uint64_t kSlowedDown = 0x8 | 0x20 | 0x40 | 0x80;

// What to do about an error of the driver (CUresult in cuda.h).
std::string context_hint(int32_t code) {
  switch (code) {
    case 2:
      return "Its memory is taken: gpu.memory_taken says by whom.";
    case 46:
    case 101:
      return "In exclusive mode another process has it: nvidia-smi -q -d COMPUTE; nvidia-smi -c "
             "DEFAULT, as root.";
    case 802:
      return "The fabric manager does not run: systemctl status nvidia-fabricmanager.";
    case 803:
      return "The driver's kernel module and library differ: reboot.";
    default:
      return "Look in dmesg for NVRM and Xid.";
  }
}

// By its id: CUDA may be shown fewer GPUs than there are, in another order.
bool is_of(const ContextTrial& trial, const Gpu& gpu) {
  return !trial.uuid.empty() && gpu.facts.uuid == trial.uuid;
}

void check_contexts(const Machine& m, Found& found) {
  if (m.context_failure) {
    found.fails("gpu.context",
                fmt::format("No CUDA context can be created: {}.", m.context_failure->message),
                m.context_failure->hint.empty() ? context_hint(0) : m.context_failure->hint);
  }
  for (const ContextTrial& trial : m.contexts) {
    if (trial.code == 0) continue;
    int64_t index = trial.device;
    for (const Gpu& gpu : m.gpus) {
      if (is_of(trial, gpu)) index = gpu.reading.index;
    }
    found.fails("gpu.context",
                fmt::format("On GPU {} no CUDA context can be created: {}.", index, trial.error),
                context_hint(trial.code));
  }
}

// The first two numbers of a version: to these makers of libraries the rest are repairs.
std::pair<int, int> version_pair(std::string_view version) {
  const std::vector<std::string_view> parts = split(version, '.');
  const auto part = [&](size_t i) {
    return i < parts.size() ? parse_number<int>(parts[i]).value_or(0) : 0;
  };
  return {part(0), part(1)};
}

void check_libraries(const Framework& f, Found& found) {
  for (const Library& library : f.libraries) {
    const auto wanted = version_pair(library.wanted), installed = version_pair(library.installed);
    const bool other_major = wanted.first != installed.first;
    if (!other_major && installed >= wanted) continue;
    const std::string text =
        fmt::format("{} {} was built with {} {}, and {} is installed.", f.name, f.version,
                    library.package, library.wanted, library.installed);
    const std::string hint = fmt::format("pip install '{}=={}'", library.package, library.wanted);
    // All frameworks refuse a cuDNN that is older than theirs.
    if (other_major || library.package.starts_with("nvidia-cudnn")) {
      found.fails("gpu.library_mismatch", text, hint);
    } else {
      found.warns("gpu.library_mismatch", text, hint);
    }
  }
}

// "sm_86": machine code, for that architecture and those of its major version that came later;
// "sm_90a": for that one alone; "sm_100f" as sm_100; "compute_90": PTX, for it and all later ones.
bool runs(std::string_view target, int major, int minor) {
  const bool ptx = target.starts_with("compute_");
  std::string_view digits = target.substr(target.find('_') + 1);
  const bool alone = digits.ends_with('a');
  if (alone || digits.ends_with('f')) digits.remove_suffix(1);
  const int number = parse_number<int>(digits).value_or(0);
  const int own = major * 10 + minor;
  if (alone) return number == own;
  return ptx ? number <= own : number / 10 == major && number % 10 <= minor;
}

void check_targets(const Framework& f, const Gpu& gpu, Found& found) {
  const probe::GpuFacts& facts = gpu.facts;
  if (f.targets.empty() || facts.compute_major == 0) return;
  const bool fine = std::any_of(f.targets.begin(), f.targets.end(), [&](const std::string& t) {
    return runs(t, facts.compute_major, facts.compute_minor);
  });
  if (fine) return;
  found.fails("gpu.not_in_build",
              fmt::format("{} {} has no code for GPU {} ({}, sm_{}{}), but for {}.", f.name,
                          f.version, gpu.reading.index, facts.name, facts.compute_major,
                          facts.compute_minor, fmt::join(f.targets, " ")),
              "Install a build for another CUDA version, or a newer or older release.");
}

void check_frameworks(const Machine& m, Found& found) {
  // Where one has CUDA, another without is meant to be so.
  const bool none = std::all_of(m.frameworks.begin(), m.frameworks.end(),
                                [](const Framework& f) { return f.cuda.empty(); });
  // From CUDA 11 on a driver runs all minor versions of its major one.
  const int newest = version_pair(m.cuda_version).first;
  for (const Framework& f : m.frameworks) {
    if (none) {
      found.fails("gpu.cpu_only_build",
                  fmt::format("The installed {} {} is a build without CUDA.", f.name, f.version),
                  "Install the build for your CUDA version.");
    }
    if (newest > 0 && version_pair(f.cuda).first > newest) {
      found.fails("gpu.driver_too_old",
                  fmt::format("{} {} was built for CUDA {}, and the driver {} supports up to {}.",
                              f.name, f.version, f.cuda, m.driver_version, m.cuda_version),
                  "Update the driver, or install a build for the older CUDA.");
    }
    check_libraries(f, found);
    for (const Gpu& gpu : m.gpus) check_targets(f, gpu, found);
  }
}

void check_driver(const Machine& m, Found& found) {
  const bool mismatch = contains(m.gpu_error, "mismatch") ||
                        (!m.driver_version.empty() && !m.kernel_module_version.empty() &&
                         m.driver_version != m.kernel_module_version);
  if (mismatch) {
    found.fails(
        "gpu.driver_mismatch",
        fmt::format("The NVIDIA kernel module is {}, its library {}.", m.kernel_module_version,
                    m.driver_version.empty() ? "of another version" : m.driver_version),
        "Reboot, or reload the nvidia modules.");
  } else if (!m.kernel_module_version.empty() && m.gpus.empty()) {
    found.fails(
        "gpu.unusable",
        fmt::format("The NVIDIA kernel module is loaded, but no GPU can be used: {}.", m.gpu_error),
        "In a container: start it with --gpus all. Else look in dmesg for NVRM.");
  }
}

// A job gets one part of a divided GPU: it is in the way of nothing while one of them is free.
void check_instances(const Machine& m, const Gpu& gpu, Found& found) {
  std::string taken;
  for (const probe::MigInstance& part : gpu.reading.instances) {
    if (!part.mem_total_bytes || !part.mem_used_bytes) return;
    if (share(*part.mem_used_bytes, *part.mem_total_bytes) < kGpuTaken) return;
    const std::string holders = holders_text(m, gpu, &part);
    taken += fmt::format("{}{} of the {} of {}{}", taken.empty() ? "" : ", ",
                         size_text(*part.mem_used_bytes), size_text(*part.mem_total_bytes),
                         part.profile, holders.empty() ? "" : " by " + holders);
  }
  found.fails("gpu.memory_taken",
              fmt::format("All parts of GPU {}, which is divided (MIG), are taken: {}.",
                          gpu.reading.index, taken),
              "Wait, stop it, or take another GPU.");
}

void check_memory_of(const Machine& m, const Gpu& gpu, Found& found) {
  const auto& r = gpu.reading;
  if (!r.instances.empty()) {
    check_instances(m, gpu, found);
    return;
  }
  if (!r.mem_total_bytes || !r.mem_used_bytes) return;
  const double used = share(*r.mem_used_bytes, *r.mem_total_bytes);
  const std::string holders = holders_text(m, gpu);
  const std::string text = fmt::format(
      "{} of GPU {}'s {} are taken{}; {}.", size_text(*r.mem_used_bytes), r.index,
      size_text(*r.mem_total_bytes), holders.empty() ? "" : " by " + holders, free_text(m, gpu));
  if (used >= kGpuTaken) {
    found.fails("gpu.memory_taken", text, "Wait, stop it, or take another GPU.");
  } else if (used >= kGpuInUse) {
    found.warns("gpu.memory_taken", text, "A job that takes the whole card will not fit.");
  }
}

}  // namespace

std::string free_text(const Machine& m, const Gpu& gpu) {
  const uint64_t total = gpu.reading.mem_total_bytes.value_or(0);
  std::string out =
      size_text(total - std::min(total, gpu.reading.mem_used_bytes.value_or(0))) + " are free";
  for (const ContextTrial& trial : m.contexts) {
    if (trial.code == 0 && trial.total_bytes > 0 && is_of(trial, gpu)) {
      out += fmt::format(", {} within a CUDA context", size_text(trial.free_bytes));
    }
  }
  return out;
}

std::string holders_text(const Machine& m, const Gpu& gpu, const probe::MigInstance* part) {
  std::string out;
  for (const probe::GpuProcess& p : gpu.reading.processes) {
    if (part != nullptr && !part->has(p)) continue;
    std::string name;
    for (const Task& task : m.tasks) {
      if (task.pid == p.pid) name = " " + task.command;
    }
    out += fmt::format("{}pid {}{}{}", out.empty() ? "" : ", ", p.pid, name,
                       p.memory_bytes ? " " + size_text(*p.memory_bytes) : "");
  }
  return out;
}

void check_gpus(const Machine& m, Found& found) {
  check_driver(m, found);
  for (const Gpu& gpu : m.gpus) {
    const auto& r = gpu.reading;
    if (!r.error.empty()) {
      found.fails("gpu.lost", fmt::format("GPU {} does not answer: {}.", r.index, r.error),
                  "Reset it or reboot; look in dmesg for Xid.");
      continue;
    }
    check_memory_of(m, gpu, found);
    if (r.throttle_reasons && (*r.throttle_reasons & kSlowedDown) != 0) {
      found.warns("gpu.throttled",
                  fmt::format("GPU {} is slowed down by heat or power{}.", r.index,
                              r.temperature_c ? fmt::format(" ({:.0f} C)", *r.temperature_c) : ""),
                  "Look at its cooling and its power supply.");
    }
    if (r.ecc_errors && *r.ecc_errors > 0) {
      found.warns(
          "gpu.memory_errors",
          fmt::format("GPU {} has counted {} uncorrectable memory errors since it was reset.",
                      r.index, *r.ecc_errors),
          "Reset it; if they come again, replace it.");
    }
  }
  check_contexts(m, found);
  if (!m.gpus.empty()) check_frameworks(m, found);
}

}  // namespace flatout::advise
