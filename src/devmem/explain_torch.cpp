#include "devmem/explain_torch.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>

#include "base/text.h"

namespace flatout::devmem {
namespace {

// "2.00 GiB" with which `s` begins; 0 if it does not.
Bytes leading_bytes(std::string_view s) {
  const size_t end = s.find_first_not_of("0123456789.");
  if (end == 0 || end == s.npos) return 0;
  const auto value = parse_number<double>(s.substr(0, end));
  if (!value) return 0;
  s.remove_prefix(end);
  if (s.starts_with(' ')) s.remove_prefix(1);
  constexpr std::pair<std::string_view, double> kUnits[] = {
      {"bytes", 1}, {"KiB", 1024}, {"MiB", 1048576}, {"GiB", 1073741824}, {"TiB", 1099511627776.0}};
  for (const auto& [unit, factor] : kUnits)
    if (s.starts_with(unit) && *value * factor < 1e15) return static_cast<Bytes>(*value * factor);
  return 0;
}

Bytes bytes_after(std::string_view text, std::string_view phrase) {
  const size_t at = text.find(phrase);
  return at == text.npos ? 0 : leading_bytes(text.substr(at + phrase.size()));
}

// The size that stands in the two words before `phrase`.
Bytes bytes_before(std::string_view text, std::string_view phrase) {
  const size_t at = text.find(phrase);
  if (at == text.npos || at == 0) return 0;
  std::string_view before = text.substr(0, at);
  while (before.ends_with(' ')) before.remove_suffix(1);
  const size_t unit = before.rfind(' ');
  if (unit == before.npos || unit == 0) return 0;
  const size_t number = before.find_last_not_of("0123456789.", unit - 1);
  return leading_bytes(before.substr(number == before.npos ? 0 : number + 1));
}

std::string words(Bytes bytes) { return format_bytes(static_cast<double>(bytes)); }

Bytes in_tensors(const TorchFigures& f) {
  return f.allocated - std::min(f.allocated, f.private_pools);
}

// "Process 4121 has 18.20 GiB": of each that the message names.
std::vector<Bytes> listed_processes(std::string_view text) {
  std::vector<Bytes> listed;
  while (true) {
    const size_t at = text.find("Process ");
    if (at == text.npos) return listed;
    text.remove_prefix(at + 8);
    const size_t digits = text.find_first_not_of("0123456789");
    if (digits == 0 || digits == text.npos) continue;
    text.remove_prefix(digits);
    if (text.starts_with(" has ")) listed.push_back(leading_bytes(text.substr(5)));
  }
}

// From this share of the card on what others hold is a good part of it.
bool is_much(Bytes bytes, const TorchFigures& f) {
  constexpr double kMuch = 0.15;
  return f.total > 0 && static_cast<double>(bytes) >= kMuch * static_cast<double>(f.total);
}

// What others must hold though the message names none: what is left over, where that is more than
// contexts and libraries take.
Bytes unnamed(const TorchFigures& f) {
  const Bytes known = std::max(f.process, f.allocated + f.cached) + f.free;
  const Bytes left = f.total - std::min(f.total, known);
  return is_much(left, f) ? left : 0;
}

std::vector<Holder> holders_of(const TorchFigures& f) {
  std::vector<Holder> holders;
  const auto add = [&](std::string_view what, Bytes bytes) {
    if (bytes > 0) holders.push_back({std::string(what), bytes});
  };
  add("tensors of this process", in_tensors(f));
  add("private pools (CUDA graphs), idle", f.allocated - in_tensors(f));
  add("PyTorch's cache (reserved but unallocated)", f.cached);
  const Bytes known = f.allocated + f.cached;
  add("context and libraries of this process", f.process > known ? f.process - known : 0);
  add("other processes", f.others);
  add("free", f.free);
  return holders;
}

}  // namespace

std::optional<TorchFigures> parse_torch_message(std::string_view text) {
  const size_t begin = text.rfind(kTorchMessage);
  if (begin == text.npos) return std::nullopt;
  text.remove_prefix(begin);
  if (const size_t end = text.find("\n\n"); end != text.npos) text = text.substr(0, end);
  TorchFigures f;
  f.request = bytes_after(text, "Tried to allocate ");
  f.total = bytes_after(text, "total capacity of ");
  if (f.total == 0) f.total = bytes_after(text, "total capacty of ");  // as PyTorch 2.1 spells it
  if (f.total == 0) f.total = bytes_before(text, "total capacity;");
  f.free = bytes_before(text, "is free");
  if (f.free == 0) f.free = bytes_before(text, "free;");
  f.allocated = bytes_before(text, "is allocated by PyTorch");
  if (f.allocated == 0) f.allocated = bytes_before(text, "already allocated;");
  f.cached = bytes_before(text, "is reserved by PyTorch but unallocated");
  for (const std::string_view phrase : {"reserved in total by PyTorch", "cached)"}) {
    const Bytes reserved = bytes_before(text, phrase);
    // Up to 1.3 "cached" was what lies unused; later the whole of what is reserved.
    if (reserved > 0)
      f.cached = phrase[0] == 'c' || reserved < f.allocated ? reserved : reserved - f.allocated;
  }
  f.process = bytes_after(text, "this process has ");
  f.private_pools = bytes_before(text, "allocated in private pools");
  f.allowed = bytes_before(text, "allowed;");
  const Bytes reserved = f.allocated + f.cached;
  std::vector<Bytes> listed = listed_processes(text);
  if (f.process == 0 && reserved > 0) {
    // In a container getpid() is not the number that NVML gives, so this process stands among the
    // others: it is one that can hold what PyTorch holds, the smallest of them.
    std::sort(listed.begin(), listed.end());
    const auto own = std::lower_bound(listed.begin(), listed.end(), reserved);
    if (own != listed.end()) {
      f.process = *own;
      listed.erase(own);
    }
  }
  for (const Bytes bytes : listed) f.others += bytes;
  if (f.total > 0) {
    const Bytes not_theirs = std::max(f.process, reserved) + f.free;
    f.others = std::min(f.others, f.total - std::min(f.total, not_theirs));
  }
  return f;
}

Explanation explain_torch(const TorchFigures& given) {
  TorchFigures f = given;
  if (f.others == 0) f.others = unnamed(f);
  Explanation e;
  e.holders = holders_of(f);
  const Bytes lacking = f.request > f.free ? f.request - f.free : 0;
  const bool hole_is_known = f.largest_hole > 0;
  const std::string asked = fmt::format("PyTorch asked for {} with {} free{}", words(f.request),
                                        words(f.free), f.total > 0 ? " of " + words(f.total) : "");
  // What live data must shrink to: everything that scales with the batch shrinks alike.
  const Bytes live = in_tensors(f);
  const Bytes fit = live + f.free + (f.cached < lacking ? f.cached : 0);
  const double share =
      live + f.request > 0 ? static_cast<double>(fit) / static_cast<double>(live + f.request) : 1;
  const Advice smaller{fmt::format("A batch of at most {} of this one, if all of it scales with "
                                   "the batch; or checkpointing, mixed precision.",
                                   format_percent(std::min(share, 0.99))),
                       ""};

  if (f.total > 0 && f.request > f.total) {
    e.kind = "torch_request_exceeds_card";
    e.finding = "gpu.oom_too_big";
    e.sure = 0.95;
    e.text =
        fmt::format("{}: this one tensor is larger than the card, whatever else is freed.", asked);
    e.advice.push_back(
        {"Look at the shape at that line: a broadcast or an outer product that was not meant, or a "
         "length that was not bounded.",
         ""});
    return e;
  }
  if (f.allowed > 0 && f.allocated + f.cached + f.request > f.allowed && f.free >= f.request) {
    e.kind = "torch_limit";
    e.finding = "gpu.oom_too_big";
    e.sure = 0.95;
    e.text = fmt::format(
        "{}, but this process may take only {} (set_per_process_memory_fraction, "
        "or the limit of Flatout's pools).",
        asked, words(f.allowed));
    e.advice.push_back({"Raise the fraction, if the rest of the card is this job's.", ""});
    e.advice.push_back(smaller);
    return e;
  }
  if (lacking > 0 && f.private_pools >= lacking &&
      f.private_pools > std::max(f.cached, given.others)) {
    e.kind = "torch_private_pools";
    e.finding = "gpu.oom_too_big";
    e.sure = 0.8;
    e.text = fmt::format("{}: {} lie idle in pools of CUDA graphs, which serve nothing else.",
                         asked, words(f.private_pools));
    e.advice.push_back(
        {"Fewer captured shapes, or one pool shared by all graphs (torch.cuda.graph_pool_handle).",
         ""});
    return e;
  }
  // What lies idle here is beside the point where others hold a good part, and more.
  const bool taken = f.others > 0 && f.others >= lacking && lacking > 0 && f.others > f.cached;
  const bool much = is_much(f.others, f) && f.others >= f.request;
  if (lacking > 0 && f.cached >= lacking && f.cached >= f.request / 2 && !(taken && much)) {
    e.kind = "torch_oom_fragmented";
    e.finding = "gpu.oom_fragmented";
    e.sure = hole_is_known ? 0.95 : 0.8;
    e.text = fmt::format(
        "{}, while {} lie unused in its cache, in pieces that are too small{}. The memory is "
        "there; it is not in one piece.",
        asked, words(f.cached),
        hole_is_known ? fmt::format(" (the largest is {})", words(f.largest_hole)) : "");
    e.advice.push_back({"Let the cache map its pages together.",
                        "env:PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"});
    return e;
  }
  if (taken) {
    e.kind = "torch_memory_taken";
    e.finding = "gpu.memory_taken";
    e.sure = 0.9;
    e.text = fmt::format("{}: other processes hold {}. Without them it would fit.", asked,
                         words(f.others));
    e.advice.push_back(
        {"Stop those processes, if they are left over (nvidia-smi shows them), or take another "
         "card.",
         ""});
    return e;
  }
  if (lacking == 0 && f.request > 0) {
    e.kind = "torch_free_but_refused";
    e.finding = "gpu.memory_taken";
    e.sure = 0.5;
    e.text = fmt::format(
        "{}: there was room when the message was written, not when the driver was asked. Another "
        "process took and gave back memory, or a limit that CUDA does not show applies. It is not "
        "fragmentation.",
        asked);
    e.advice.push_back({"See who shares the card while the job runs: nvidia-smi.", ""});
    return e;
  }
  e.kind = "torch_oom_too_big";
  e.finding = "gpu.oom_too_big";
  e.sure = f.total > 0 ? 0.9 : 0.6;
  e.text = fmt::format(
      "{}: live tensors hold {}, and the {} in the cache would not have been enough. The job does "
      "not fit{}.",
      asked, words(live), words(f.cached),
      f.total > 0 ? "" : ", unless other processes hold a part of the card");
  e.advice.push_back(smaller);
  return e;
}

}  // namespace flatout::devmem
