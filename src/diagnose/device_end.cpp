// Jobs that the device ended: its memory ran out, or it was lost. And what NVML knows about it.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <set>

#include "base/contains.h"
#include "base/text.h"
#include "devmem/explain.h"
#include "diagnose/device.h"
#include "diagnose/findings.h"

namespace flatout::diagnose {

using model::EntityId;
using model::EntityKind;
using model::Finding;
using model::Run;
using model::SignalId;

namespace {

// A job whose allocation fails may free and try again: only a failure right before its end ended
// it.
constexpr double kLast = 10;                      // seconds
constexpr Nanos kGone = std::chrono::seconds(2);  // without a reading
constexpr double kMuchTaken = 0.05;    // of the memory, by others, from which that is worth a word
constexpr double kMuchUnknown = 0.25;  // the same where it is not known how much was asked for

/// What the agent tells of a failed call: "2 cuMemAlloc_v2 8589934592 123456789 4294967296 ...".
struct Failure {
  int code = 0;
  std::string call;
  double bytes = 0;
  TimePoint at{};
  double left = 0, total = 0;  // of the device's memory then; 0 where it is not known
};

std::optional<Failure> failure(const Run& run, const std::string& key) {
  std::string_view text = run.fact(key);
  if (text.empty()) return std::nullopt;
  Failure out;
  out.code = parse_number<int>(next_word(text)).value_or(0);
  out.call = next_word(text);
  out.bytes = parse_number<double>(next_word(text)).value_or(0);
  out.at = time_point_ns(parse_number<int64_t>(next_word(text)).value_or(0));
  out.left = parse_number<double>(next_word(text)).value_or(0);
  out.total = parse_number<double>(next_word(text)).value_or(0);
  return out;
}

bool is_last(const Run& run, const Failure& f) { return to_s(run.end - f.at) < kLast; }

/// Whether what the job raised may come of a lack of device memory. Libraries name it by codes of
/// their own: CUBLAS_STATUS_ALLOC_FAILED, RESOURCE_EXHAUSTED, an internal error of cuDNN.
bool may_be_memory(const Run& run) {
  if (run.fact("exception.type").empty()) return true;  // another language: nothing is known
  std::string text =
      fmt::format("{}: {}", run.fact("exception.type"), run.fact("exception.message"));
  std::transform(text.begin(), text.end(), text.begin(),
                 [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; });
  constexpr std::array<std::string_view, 8> kWords = {"memory", "alloc",  "oom",  "exhausted",
                                                      "cuda",   "cublas", "nccl", "cudnn"};
  return contains_any(text, kWords);
}

struct Kind {
  std::string_view id, title;
};

Kind out_of_memory_kind(const std::optional<DeviceMemory>& memory, double asked) {
  constexpr Kind kTaken{"gpu.memory_taken", "Another process holds the device's memory"};
  constexpr Kind kPieces{"gpu.oom_fragmented",
                         "The device's memory is free in pieces that are too small"};
  constexpr Kind kTooBig{"gpu.oom_too_big", "The job does not fit into the device's memory"};
  if (!memory) return kTooBig;
  if (asked <= 0) return memory->others > kMuchUnknown * memory->total ? kTaken : kTooBig;
  if (memory->free() >= asked) return kPieces;
  const bool fits_alone = memory->free() + memory->others >= asked;
  return fits_alone && memory->others > kMuchTaken * memory->total ? kTaken : kTooBig;
}

/// `holder`: the name of the process that holds most.
void advise(Finding& f, std::string_view holder) {
  if (f.id == "gpu.memory_taken" && contains(holder, "nvidia-cuda-mps")) {
    remedy(f, "mps",
           "That is MPS, for its clients: echo get_client_list | nvidia-cuda-mps-control names "
           "them. End one, or limit each (CUDA_MPS_PINNED_DEVICE_MEM_LIMIT).");
  } else if (f.id == "gpu.memory_taken") {
    remedy(f, "stop", "End that process, or wait for it; let it take memory as it needs it.");
  } else if (f.id == "gpu.oom_fragmented") {
    remedy(f, "expandable_segments",
           "Allocate what is big first and keep it; "
           "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True.");
  } else {
    remedy(f, "batch", "A smaller batch, checkpointed activations, lower precision.");
  }
}

void add_out_of_memory(const RunView& view, const Failure& call, Findings& findings) {
  auto memory = device_memory(view, view.trainer_process(), call.at);
  if (memory && call.total > 0) {
    memory->total = call.total;
    memory->used = call.total - call.left;
  }
  const Kind kind = out_of_memory_kind(memory, call.bytes);
  Finding& f =
      findings.add_fatal(kind.id, std::string(kind.title), memory && call.bytes > 0 ? 0.9 : 0.6);
  if (call.bytes > 0) {
    f.cost_bytes = call.bytes;
    evidence(f,
             fmt::format("{} asked for {}", escape_terminal(call.call), format_bytes(call.bytes)),
             call.bytes, "bytes", "agent.cuda", 1);
  }
  if (memory) {
    const auto say = [&](std::string text, double bytes) {
      evidence(f, fmt::format("{} {}", format_bytes(bytes), text), bytes, "bytes", "probe.nvml",
               memory->readings);
    };
    say("of its memory are free", memory->free());
    say("it has in all", memory->total);
    if (memory->job > 0) say("the job holds", memory->job);
    if (memory->others > 0) {
      say(fmt::format("others hold, most of it {} (pid {})",
                      memory->other_name.empty() ? "one" : escape_terminal(memory->other_name),
                      memory->other_pid),
          memory->others);
    }
  }
  advise(f, memory ? memory->other_name : "");
}

/// A framework's own message has the figures of its allocator, too.
bool add_by_message(const RunView& view, Findings& findings) {
  const Run& run = view.run();
  const std::string text =
      fmt::format("{}: {}\n{}", run.fact("exception.type"), run.fact("exception.message"),
                  run.fact("exception.traceback"));
  if (!contains(text, "out of memory")) return false;
  const devmem::Explanation why = devmem::explain_text(text);
  constexpr std::array<std::string_view, 3> kIds = {"gpu.memory_taken", "gpu.oom_fragmented",
                                                    "gpu.oom_too_big"};
  const auto id = std::find(kIds.begin(), kIds.end(), why.finding);
  if (id == kIds.end()) return false;
  Finding& f = findings.add_fatal(*id, "The device's memory ran out", why.sure);
  evidence(f, escape_terminal(std::string_view(why.text).substr(0, 300)), 0, "", "agent.exception",
           1);
  for (const devmem::Holder& holder : why.holders) {
    const auto bytes = static_cast<double>(holder.bytes);
    evidence(f, fmt::format("{} {}", format_bytes(bytes), escape_terminal(holder.what)), bytes,
             "bytes", "agent.exception", 1);
  }
  if (!run.fact("exception.file").empty()) {
    f.where = model::Where{std::string(run.fact("exception.file")),
                           parse_number<int64_t>(run.fact("exception.line")).value_or(0),
                           std::string(run.fact("exception.function"))};
  }
  advise(f, "");
  return true;
}

/// Errors of the hardware itself; others (an illegal address, a failed launch) are the job's own,
/// or say nothing of it (46: also a device that is another process's alone).
bool is_hardware(int code) { return code == 214 || code == 220 || code == 226; }

/// The GPUs on which processes of the job hold memory; empty where that is not known.
std::set<EntityId> used_by_job(const Run& run) {
  std::set<int64_t> pids;
  for (const model::Process& p : run.processes) {
    if (p.in_job) pids.insert(p.pid);
  }
  std::set<EntityId> out;
  for (const model::Entity& e : run.entities) {
    if (e.kind == EntityKind::kGpuProcess && pids.contains(e.key)) out.insert(e.parent);
  }
  return out;
}

bool add_lost(const RunView& view, Findings& findings) {
  const Run& run = view.run();
  const auto call = failure(run, "cuda.error");
  const EntityId own = device_of(view, view.trainer_process());
  const std::set<EntityId> used = used_by_job(run);
  for (EntityId i = 0; i < run.entities.size(); ++i) {
    if (run.entities[i].kind != EntityKind::kGpu) continue;
    const int64_t number = run.entities[i].key;
    const std::string_view said = run.fact(fmt::format("gpu.{}.error", number));
    const model::Series* ecc = view.series(SignalId::kGpuEccErrors, i);
    const double broken = ecc == nullptr ? 0 : ecc->increase(run.begin, run.end).value_or(0);
    // Of several GPUs it may not be known which ones the job used: then it was one that worked when
    // the run began, and whose end made a call of the job fail.
    const bool ended = call && is_last(run, *call) && view.series(SignalId::kGpuMemTotal, i);
    if (i != own && !used.contains(i) && !(used.empty() && ended)) continue;
    const bool hardware = call && (is_hardware(call->code) || (broken > 0 && is_last(run, *call)));
    const bool this_one = i == own || broken > 0;  // a call does not name its device
    if (said.empty() && !(hardware && this_one)) continue;
    Finding& f = findings.add_fatal(
        "gpu.lost",
        fmt::format("GPU {} {}", number, said.empty() ? "reported an error" : "was lost"), 0.9);
    if (!said.empty()) {
      evidence(f, fmt::format("the driver says: {}", escape_terminal(said)),
               static_cast<double>(number), "gpu", "probe.nvml", 1);
    }
    if (call) {
      evidence(f, fmt::format("{} returned error {}", escape_terminal(call->call), call->code),
               call->code, "error", "agent.cuda", 1);
    }
    if (broken > 0) {
      evidence(f,
               fmt::format("{} memory errors that could not be corrected", format_number(broken)),
               broken, "errors", "probe.nvml", 1);
    }
    remedy(f, "reset",
           "See dmesg for NVRM's Xid; reset the device or restart the machine, and if it comes "
           "back have the card looked at.");
    return true;
  }
  return false;
}

}  // namespace

EntityId device_of(const RunView& view, model::ProcessId process) {
  const Run& run = view.run();
  EntityId only = model::kNoEntity, held = model::kNoEntity;
  int count = 0;
  double most = -1;
  const int64_t pid = process < run.processes.size() ? run.processes[process].pid : -1;
  for (EntityId i = 0; i < run.entities.size(); ++i) {
    if (run.entities[i].kind == EntityKind::kGpu) {
      only = i;
      ++count;
    }
    if (run.entities[i].kind != EntityKind::kGpuProcess || run.entities[i].key != pid) continue;
    const model::Series* memory = view.series(SignalId::kGpuProcessMem, i);
    const double bytes = memory == nullptr ? 0 : memory->last().value_or(0);
    if (bytes <= most) continue;
    most = bytes;
    held = run.entities[i].parent;
  }
  return count == 1 ? only : held;
}

std::optional<DeviceMemory> device_memory(const RunView& view, model::ProcessId process,
                                          TimePoint at) {
  const Run& run = view.run();
  const EntityId gpu = device_of(view, process);
  const model::Series* total = view.series(SignalId::kGpuMemTotal, gpu);
  const model::Series* used = view.series(SignalId::kGpuMemUsed, gpu);
  if (total == nullptr || used == nullptr || !total->at(at) || !used->at(at)) return std::nullopt;
  DeviceMemory out;
  out.total = *total->at(at);
  out.used = std::max(1.0, *used->at(at));
  out.readings = static_cast<int64_t>(used->readings.size());
  double most = 0;
  for (EntityId i = 0; i < run.entities.size(); ++i) {
    const model::Entity& e = run.entities[i];
    if (e.kind != EntityKind::kGpuProcess || e.parent != gpu) continue;
    const model::Series* held = view.series(SignalId::kGpuProcessMem, i);
    if (held == nullptr || !held->at(at)) continue;
    const double bytes = *held->at(at);
    const auto of_job = [&](const model::Process& p) { return p.in_job && p.pid == e.key; };
    if (std::any_of(run.processes.begin(), run.processes.end(), of_job)) {
      out.job += bytes;
      continue;
    }
    // One that has ended since is told no more.
    if (std::min(at, used->readings.back().at) - held->readings.back().at > kGone) continue;
    out.others += bytes;
    if (bytes <= most) continue;
    most = bytes;
    out.other_pid = e.key;
    const EntityId other = run.entity(EntityKind::kOther, e.key);
    out.other_name = other != model::kNoEntity ? run.entities[other].name : "";
  }
  return out;
}

bool detect_device_end(const RunView& view, Findings& findings) {
  const Run& run = view.run();
  if (add_lost(view, findings)) return true;
  if (!run.fact("exception.type").empty() && add_by_message(view, findings)) return true;
  const auto call = failure(run, "cuda.out_of_memory");
  if (!call || !is_last(run, *call) || !may_be_memory(run)) return false;
  add_out_of_memory(view, *call, findings);
  return true;
}

}  // namespace flatout::diagnose
