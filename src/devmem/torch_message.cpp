#include "devmem/torch_message.h"

#include <algorithm>
#include <cmath>

#include "base/contains.h"
#include "base/text.h"
#include "devmem/error_blocks.h"

namespace flatout::devmem {
namespace {

constexpr size_t kMostBytes = 8 << 10;  // of a message
constexpr int kMostLines = 16;
constexpr std::string_view kAsked = "Triedtoallocate";
// c10/cuda/CUDAMallocAsyncAllocator.cpp
constexpr std::string_view kAskedAsync = "Currentlyallocated";

// Bytes at the begin of `s` that are no text of the message: blanks, a box's border (U+2500 to
// U+257F), a colour, a line feed as JSON writes it.
size_t decoration(std::string_view s) {
  if (s[0] == ' ' || s[0] == '\t' || s[0] == '\r' || s[0] == '\n' || s[0] == '|') return 1;
  if (s.starts_with("\xe2\x94") || s.starts_with("\xe2\x95")) return std::min<size_t>(3, s.size());
  if (s.starts_with("\x1b[")) {
    const size_t end = s.find_first_of("mK");
    return end > 16 ? 1 : end + 1;  // npos, too
  }
  return s.starts_with("\\n") ? 2 : 0;
}

// The message without any blank, so that it does not matter where it was wrapped.
std::string squeezed(std::string_view text) {
  std::string out;
  int lines = 0;
  std::string_view rest = text.substr(0, kMostBytes);
  for (std::string_view line; next_line(rest, line);) {
    if (lines > 0) line = without_source(line);
    if (++lines > kMostLines || trim(line).empty() || contains(line, "Traceback (most")) break;
    for (size_t i = 0; i < line.size();) {
      const size_t skip = decoration(line.substr(i));
      if (skip == 0) out += line[i];
      i += std::max<size_t>(skip, 1);
    }
  }
  return out;
}

struct Unit {
  std::string_view name;
  double factor;
};
// MPS and NPU write GB for GiB.
constexpr Unit kUnits[] = {{"bytes", 1},    {"KiB", 0x1p10}, {"MiB", 0x1p20},     {"GiB", 0x1p30},
                           {"TiB", 0x1p40}, {"PiB", 0x1p50}, {"KB", 0x1p10},      {"MB", 0x1p20},
                           {"GB", 0x1p30},  {"TB", 0x1p40},  {"EBmemory", 0x1p60}};

std::optional<Bytes> size_of(std::string_view digits, double factor) {
  const auto value = parse_number<double>(digits);
  if (!value || !std::isfinite(*value) || *value < 0) return std::nullopt;
  return static_cast<Bytes>(std::min(*value * factor, 0x1p63));
}

// "2.00GiB" with which `s` begins.
std::optional<Bytes> leading_size(std::string_view s) {
  const size_t end = s.find_first_not_of("0123456789.");
  if (end == s.npos) return std::nullopt;
  for (const Unit& unit : kUnits)
    if (s.substr(end).starts_with(unit.name)) return size_of(s.substr(0, end), unit.factor);
  return std::nullopt;
}

// "2.00GiB" with which `s` ends.
std::optional<Bytes> trailing_size(std::string_view s) {
  for (const Unit& unit : kUnits) {
    if (!s.ends_with(unit.name)) continue;
    const std::string_view head = s.substr(0, s.size() - unit.name.size());
    const size_t before = head.find_last_not_of("0123456789.");
    std::string_view digits = head.substr(before == head.npos ? 0 : before + 1);
    if (digits.starts_with('.')) digits.remove_prefix(1);  // of the sentence before
    return size_of(digits, unit.factor);
  }
  return std::nullopt;
}

std::optional<Bytes> size_after(std::string_view text, std::string_view phrase) {
  const size_t at = text.find(phrase);
  return at == text.npos ? std::nullopt : leading_size(text.substr(at + phrase.size()));
}
std::optional<Bytes> size_before(std::string_view text, std::string_view phrase) {
  const size_t at = text.find(phrase);
  return at == text.npos ? std::nullopt : trailing_size(text.substr(0, at));
}

// "Process 4121 has 18.20 GiB": each that the message names.
std::vector<TorchMessage::Process> listed_processes(std::string_view text) {
  std::vector<TorchMessage::Process> listed;
  for (size_t at; (at = text.find("Process")) != text.npos;) {
    text.remove_prefix(at + 7);
    const size_t digits = text.find_first_not_of("0123456789");
    if (digits == 0 || digits == text.npos) continue;
    const auto pid = parse_number<int64_t>(text.substr(0, digits));
    const std::string_view rest = text.substr(digits);
    if (!pid || !rest.starts_with("has")) continue;
    if (const auto bytes = leading_size(rest.substr(3))) listed.push_back({*pid, *bytes});
  }
  return listed;
}

// In a container getpid() is not the number that NVML gives, so this process stands among the
// others: it is one that can hold what PyTorch holds, the smallest of them.
void find_own(TorchMessage& m) {
  const Bytes reserved = m.allocated.value_or(0) + m.cached.value_or(0);
  if (m.process || reserved == 0) return;
  auto own = m.others.end();
  for (auto it = m.others.begin(); it != m.others.end(); ++it)
    if (it->bytes >= reserved && (own == m.others.end() || it->bytes < own->bytes)) own = it;
  if (own == m.others.end()) return;
  m.process = own->bytes;
  m.others.erase(own);
}

// Up to 1.3 "cached" was what lies unused; later the whole of what is reserved is told.
void read_reserved(std::string_view text, TorchMessage& m) {
  m.cached = size_before(text, "isreservedbyPyTorchbutunallocated");
  if (m.cached) return;
  m.cached = size_before(text, "cached)");
  const auto reserved = size_before(text, "reservedintotalbyPyTorch");
  if (reserved) m.cached = *reserved - std::min(*reserved, m.allocated.value_or(0));
}

// "PYTORCH_CUDA_ALLOC_CONF" of "try setting PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True".
std::string setting_of(std::string_view text) {
  const size_t end = text.find("=expandable_segments");
  const size_t begin = text.substr(0, end).rfind("PYTORCH_");
  if (end != text.npos && begin != text.npos && end - begin < 40)
    return std::string(text.substr(begin, end - begin));
  for (const std::string_view device : {"HIP", "NPU"})
    if (text.starts_with(device)) return "PYTORCH_" + std::string(device) + "_ALLOC_CONF";
  return "PYTORCH_CUDA_ALLOC_CONF";
}

std::optional<TorchMessage> parse_async(std::string_view text) {
  TorchMessage m;
  const auto request = size_after(text, "Requested:");
  if (!request) return std::nullopt;
  m.request = *request;
  m.allocated = size_after(text, "Currentlyallocated:");
  m.total = size_after(text, "Devicelimit:");
  m.free = size_after(text, "Free(accordingtoCUDA):");
  m.allowed = size_after(text, "fraction):");
  // Without a limit it is as large as a number can be.
  if (m.allowed && (*m.allowed >= Bytes{1} << 50)) m.allowed.reset();
  return m;
}

std::optional<TorchMessage> parse_squeezed(std::string_view text) {
  if (contains(text.substr(0, 200), kAskedAsync)) return parse_async(text);
  const size_t asked = text.find(kAsked);
  if (asked > 200) return std::nullopt;  // npos, too
  // Not what another rank says behind it.
  text = text.substr(0, text.find(kAsked, asked + kAsked.size()));
  std::string_view size = text.substr(asked + kAsked.size());
  if (size.starts_with("morethan")) size.remove_prefix(8);
  const auto request = leading_size(size);
  if (!request) return std::nullopt;
  TorchMessage m;
  m.request = *request;
  m.total = size_after(text, "totalcapacityof");
  m.expandable = m.total.has_value();
  if (!m.total) {
    m.total = size_after(text, "totalcapactyof");  // as PyTorch 2.1 spells it
    m.expandable = m.total.has_value();
  }
  if (!m.total) m.total = size_before(text, "totalcapacity;");
  m.free = size_before(text, "isfree");
  if (!m.free) m.free = size_before(text, "free;");
  m.allocated = size_before(text, "isallocatedbyPyTorch");
  if (!m.allocated) m.allocated = size_before(text, "alreadyallocated;");
  read_reserved(text, m);
  m.process = size_after(text, "thisprocesshas");
  m.private_pools = size_before(text, "allocatedinprivatepools");
  m.allowed = size_before(text, "allowed;");
  m.others = listed_processes(text);
  m.expandable |= contains(text, "=expandable_segments");
  m.max_split = contains(text, "max_split_size_mb");
  m.setting = setting_of(text);
  find_own(m);
  if (const auto mps = size_after(text, "MPSallocated:")) {
    m.mps = true;
    m.allocated = mps;
    m.process = *mps + size_after(text, "otherallocations:").value_or(0);
    m.allowed = size_after(text, "maxallowed:");
  }
  return m;
}

}  // namespace

std::optional<TorchMessage> parse_torch_message(std::string_view text) {
  constexpr std::string_view kWords = "out of memory";
  for (size_t at = 0; (at = text.find(kWords, at)) != text.npos; at += kWords.size()) {
    // The device stands before it: "HIP out of memory".
    const size_t word = text.substr(0, at).find_last_not_of("ABCDEFGHIJKLMNOPQRSTUVWXYZ ");
    auto parsed = parse_squeezed(squeezed(text.substr(word == text.npos ? 0 : word + 1)));
    if (parsed) return parsed;
  }
  return std::nullopt;
}

bool sets_expandable_segments(std::string_view text) {
  constexpr std::string_view kOn = "expandable_segments:True";
  for (size_t at = 0; (at = text.find(kOn, at)) != text.npos; at += kOn.size()) {
    const size_t begin = text.substr(0, at).find_last_of("\r\n");
    const std::string_view before = text.substr(0, at).substr(begin == text.npos ? 0 : begin + 1);
    const std::string_view near =
        before.substr(before.size() - std::min<size_t>(before.size(), 80));
    if (contains(near, "ALLOC_CONF") && !contains(near, "setting ")) return true;
  }
  return false;
}

}  // namespace flatout::devmem
