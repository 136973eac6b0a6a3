#include "heap/report.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/text.h"

namespace flatout::heap {
namespace {

using nlohmann::ordered_json;

constexpr size_t kCallers = 4;        // frames shown below a leak
constexpr size_t kMostUnclear = 5;    // lines that may grow
constexpr double kWorthAWord = 0.02;  // of the peak: what may grow is told from here on

std::string bytes(double n) { return format_bytes(n); }
std::string bytes(uint64_t n) { return format_bytes(static_cast<double>(n)); }

std::string where(std::string_view function, std::string_view file, uint32_t line) {
  if (file.empty() && function.empty()) return "(unknown code)";
  const std::string place =
      line > 0 ? fmt::format("{}:{}", escape_terminal(file), line) : escape_terminal(file);
  return function.empty() ? place : fmt::format("{} in {}", place, escape_terminal(function));
}

std::vector<const Site*> unclear_of(const ProcessHeap& heap) {
  std::vector<const Site*> out = leaks_of(heap.sites, false);
  std::erase_if(out, [&](const Site* s) {
    return s->growth->bytes < kWorthAWord * static_cast<double>(heap.record.peak_bytes);
  });
  return out;
}

// What there is to do where a run tells too little.
std::string_view way_out(const ProcessHeap& heap) {
  return heap.record.exact() ? "a longer run tells" : "--full counts every allocation, and tells";
}

void append_unclear(std::string& out, const ProcessHeap& heap) {
  const std::vector<const Site*> unclear = unclear_of(heap);
  if (unclear.empty()) return;
  out += fmt::format("May grow all the time, of too few samples to tell ({}):\n", way_out(heap));
  for (size_t i = 0; i < std::min(unclear.size(), kMostUnclear); ++i) {
    const Site& s = *unclear[i];
    out += fmt::format("  {:>10}  {}\n", "+" + bytes(s.growth->bytes),
                       where(s.function, s.file, s.line));
  }
  if (unclear.size() > kMostUnclear)
    out += fmt::format("  and {} more places\n", unclear.size() - kMostUnclear);
}

void append_leaks(std::string& out, const ProcessHeap& heap, const ReportOptions& options) {
  const std::vector<const Site*> leaks = leaks_of(heap.sites);
  if (heap.readings < kLeastMoments) {
    out += fmt::format("Too few samples{} to tell whether anything leaks: {}.\n", heap.since,
                       way_out(heap));
    return;
  }
  if (leaks.empty()) {
    if (unclear_of(heap).empty()) out += "No leak: no line's memory grows all the time.\n";
    append_unclear(out, heap);
    return;
  }
  out += "Grows all the time and is not freed:\n";
  for (size_t i = 0; i < std::min(leaks.size(), options.lines); ++i) {
    const Site& s = *leaks[i];
    out += fmt::format("  {:>10}", "+" + bytes(s.growth->bytes));
    if (s.bytes_per_step.value_or(0) > 0)
      out += fmt::format("  {} a step", bytes(*s.bytes_per_step));
    out += fmt::format("  {}\n", where(s.function, s.file, s.line));
    const size_t at = blamed_frame(s.stack);
    for (size_t k = at + 1; k < std::min(s.stack.size(), at + 1 + kCallers); ++k) {
      const Frame& f = s.stack[k];
      out += fmt::format("                from {}\n", where(f.function, f.file, f.line));
    }
  }
  if (leaks.size() > options.lines)
    out += fmt::format("  and {} more places\n", leaks.size() - options.lines);
  append_unclear(out, heap);
}

// Whether the last of it was seen.
std::string_view at_end(const ProcessHeap& heap) {
  return heap.record.at_end ? "at its end" : "when it wrote last";
}

void append_peak(std::string& out, const ProcessHeap& heap, const ReportOptions& options) {
  const std::vector<Site>& sites = heap.sites;
  out += fmt::format("\n  {:>10}  {:>10}  {:>10}  {:>8}  {}\n", "at peak",
                     heap.record.at_end ? "at the end" : "at last", "allocated", "blocks", "by");
  size_t shown = 0;
  for (const Site& s : sites) {
    if (shown == options.lines || s.peak_bytes == 0) break;
    ++shown;
    out += fmt::format("  {:>10}  {:>10}  {:>10}  {:>8}  {}\n", bytes(s.peak_bytes),
                       bytes(s.live_bytes), bytes(s.total_bytes), s.total_count,
                       where(s.function, s.file, s.line));
  }
  if (sites.size() > shown) out += fmt::format("  and {} more places\n", sites.size() - shown);
}

ordered_json site_json(const Site& s) {
  ordered_json out;
  out["file"] = to_utf8(s.file);
  out["line"] = s.line;
  out["function"] = to_utf8(s.function);
  const auto stack = [&] {
    ordered_json frames = ordered_json::array();
    for (const Frame& f : s.stack) {
      frames.push_back(
          {{"function", to_utf8(f.function)}, {"file", to_utf8(f.file)}, {"line", f.line}});
    }
    return frames;
  };
  out["bytes"] =
      s.growth && s.growth->certain ? static_cast<uint64_t>(s.growth->bytes) : s.live_bytes;
  out["count"] = s.live_count;
  out["bytes_per_step"] = s.bytes_per_step ? ordered_json(*s.bytes_per_step) : ordered_json();
  out["live_bytes"] = s.live_bytes;
  out["peak_bytes"] = s.peak_bytes;
  out["allocated_bytes"] = s.total_bytes;
  out["allocations"] = s.total_count;
  out["at_moment"] = s.at_moment;
  out["stack"] = stack();
  return out;
}

ordered_json process_json(const ProcessHeap& heap) {
  ordered_json out;
  out["pid"] = heap.record.pid;
  out["command"] = to_utf8(heap.command);
  out["exact"] = heap.record.exact();
  out["python_objects"] = !heap.record.objects_apart;
  out["peak_bytes"] = heap.record.peak_bytes;
  out["live_bytes"] = heap.record.live_bytes;
  out["at_end"] = heap.record.at_end;
  out["written_s"] = heap.written ? ordered_json(to_s(*heap.written)) : ordered_json();
  out["enough_moments"] = heap.readings >= kLeastMoments;
  out["moments_ns"] = heap.record.moments_ns;
  out["leaks"] = ordered_json::array();
  for (const Site* leak : leaks_of(heap.sites)) out["leaks"].push_back(site_json(*leak));
  out["may_leak"] = ordered_json::array();
  for (const Site* site : unclear_of(heap)) out["may_leak"].push_back(site_json(*site));
  out["sites"] = ordered_json::array();
  for (const Site& s : heap.sites) out["sites"].push_back(site_json(s));
  return out;
}

}  // namespace

std::string report_text(const std::vector<ProcessHeap>& heaps, const ReportOptions& options) {
  if (heaps.empty()) return "";
  const ProcessHeap& first = heaps.front();
  std::string out = fmt::format(
      "Host memory of pid {}{}: {} at its peak, {} {} ({}).\n\n", first.record.pid,
      first.command.empty() ? "" : fmt::format(" ({})", escape_terminal(first.command)),
      bytes(first.record.peak_bytes), bytes(first.record.live_bytes), at_end(first),
      first.record.exact()
          ? "every allocation counted"
          : fmt::format("estimated from a sample every {}", bytes(first.record.interval)));
  if (first.record.objects_apart) {
    out +=
        "Python's own objects (lists, str, ...) are not among it: a free-threaded Python keeps "
        "them "
        "in an allocator of its own. Arrays and tensors are.\n\n";
  }
  if (!first.record.at_end) {
    out += fmt::format(
        "It was killed, or ended by _exit or exec: all here is as of its last record{}.\n\n",
        first.written ? fmt::format(", {} into the run", format_duration(*first.written)) : "");
  }
  append_leaks(out, first, options);
  if (!options.leaks) append_peak(out, first, options);
  if (heaps.size() > 1) out += "\nOther processes:\n";
  for (size_t i = 1; i < std::min(heaps.size(), options.lines + 1); ++i) {
    const ProcessHeap& h = heaps[i];
    const std::vector<const Site*> leaks = leaks_of(h.sites);
    out += fmt::format("  pid {}{}: {} at its peak", h.record.pid,
                       h.command.empty() ? "" : fmt::format(" ({})", escape_terminal(h.command)),
                       bytes(h.record.peak_bytes));
    if (!leaks.empty()) {
      const Site& s = *leaks.front();
      out += fmt::format("; grows by {} at {}", bytes(s.growth->bytes),
                         where(s.function, s.file, s.line));
    }
    out += "\n";
  }
  return out;
}

std::string report_json(const std::vector<ProcessHeap>& heaps) {
  ordered_json out = process_json(heaps.empty() ? ProcessHeap{} : heaps.front());
  out["processes"] = ordered_json::array();
  for (size_t i = 1; i < heaps.size(); ++i) out["processes"].push_back(process_json(heaps[i]));
  return out.dump(2) + "\n";
}

}  // namespace flatout::heap
