#include "advise/oom_message.h"

#include <algorithm>

#include "base/text.h"
#include "devmem/explain_torch.h"

namespace flatout::advise {
namespace {

constexpr uint64_t kContext = 512u << 20;

// "2.00 GiB" at the begin of `text`.
std::optional<uint64_t> parse_size(std::string_view text) {
  const size_t digits = text.find_first_not_of("0123456789.");
  if (digits == 0 || digits == std::string_view::npos) return std::nullopt;
  const auto value = parse_number<double>(text.substr(0, digits));
  if (!value || !(*value >= 0 && *value < 1e9)) return std::nullopt;
  std::string_view unit = text.substr(digits);
  while (unit.starts_with(' ')) unit.remove_prefix(1);
  double factor = 0;
  if (unit.starts_with("GiB") || unit.starts_with("GB")) factor = 1 << 30;
  if (unit.starts_with("MiB") || unit.starts_with("MB")) factor = 1 << 20;
  if (unit.starts_with("KiB") || unit.starts_with("KB")) factor = 1 << 10;
  if (unit.starts_with("bytes")) factor = 1;
  if (factor == 0) return std::nullopt;
  return static_cast<uint64_t>(*value * factor);
}

std::optional<uint64_t> size_after(std::string_view text, std::string_view words) {
  const size_t at = text.find(words);
  if (at == std::string_view::npos) return std::nullopt;
  return parse_size(text.substr(at + words.size()));
}

// The size whose last letter stands right before `words`.
std::optional<uint64_t> size_before(std::string_view text, std::string_view words) {
  const size_t at = text.find(words);
  if (at == std::string_view::npos) return std::nullopt;
  std::string_view head = text.substr(0, at);
  const size_t unit = head.find_last_of(' ');
  if (unit == std::string_view::npos || unit == 0) return std::nullopt;
  const size_t begin = head.substr(0, unit).find_last_of(" (;,");
  return parse_size(text.substr(begin == std::string_view::npos ? 0 : begin + 1));
}

}  // namespace

std::optional<uint64_t> OomMessage::held_by_others() const {
  if (!total || !free) return std::nullopt;
  uint64_t mine = 0;
  if (own) {
    mine = *own;
  } else if (allocated) {
    mine = *allocated + unallocated.value_or(0) + kContext;
  } else {
    return std::nullopt;
  }
  const uint64_t known = std::min(*total, mine + *free);
  return *total - known;
}

std::optional<OomMessage> parse_oom_message(std::string_view line) {
  const size_t begin = line.find("out of memory");
  if (begin == std::string_view::npos) return std::nullopt;
  line.remove_prefix(begin);
  OomMessage out;
  out.wanted = size_after(line, "Tried to allocate ");
  out.total = size_after(line, "total capacity of ");
  // As PyTorch 2.1 spells it.
  if (!out.total) out.total = size_after(line, "total capacty of ");
  if (!out.total) out.total = size_before(line, " total capacity");
  out.free = size_before(line, " is free");
  if (!out.free) out.free = size_before(line, " free");
  out.own = size_after(line, "this process has ");
  out.allocated = size_after(line, "Of the allocated memory ");
  if (!out.allocated) out.allocated = size_before(line, " already allocated");
  out.unallocated = size_before(line, " is reserved by PyTorch but unallocated");
  if (!out.unallocated && out.allocated) {
    if (const auto reserved = size_before(line, " reserved in total")) {
      out.unallocated = *reserved - std::min(*reserved, *out.allocated);
    } else {
      out.unallocated = size_before(line, " cached");
    }
  }
  out.allowed = size_before(line, " allowed");
  std::string_view rest = line;
  while (true) {
    const size_t at = rest.find("Process ");
    if (at == std::string_view::npos) break;
    rest.remove_prefix(at + 8);
    const auto pid = parse_number<int32_t>(rest.substr(0, rest.find(' ')));
    const size_t has = rest.find(" has ");
    if (!pid || has == std::string_view::npos || has > 12) continue;
    if (const auto bytes = parse_size(rest.substr(has + 5))) out.others.push_back({*pid, *bytes});
  }
  if (!out.wanted && !out.total) return std::nullopt;
  return out;
}

OomJudgement judge_oom(std::string_view line, const OomMessage& message) {
  devmem::TorchFigures figures;
  if (const auto parsed = devmem::parse_torch_message(line)) {
    figures = *parsed;
  } else {
    figures.request = message.wanted.value_or(0);
    figures.total = message.total.value_or(0);
    figures.free = message.free.value_or(0);
    figures.allocated = message.allocated.value_or(0);
    figures.cached = message.unallocated.value_or(0);
    figures.process = message.own.value_or(0);
    figures.allowed = message.allowed.value_or(0);
  }
  OomJudgement out{OomCause::kOther, devmem::explain_torch(figures)};
  const std::string_view kind = out.said.kind;
  if (kind == "torch_memory_taken") out.cause = OomCause::kTaken;
  if (kind == "torch_oom_fragmented") out.cause = OomCause::kFragmented;
  if (out.said.finding == "gpu.oom_too_big" && kind != "torch_private_pools") {
    out.cause = OomCause::kTooBig;
  }
  return out;
}

}  // namespace flatout::advise
