#include "devmem/trace.h"

#include <algorithm>

#include "base/text.h"
#include "devmem/explain.h"

namespace flatout::devmem {

uint32_t TraceBuilder::number_of_site(std::string_view site) {
  if (site.empty()) return 0;
  const auto [it, is_new] = sites_.try_emplace(std::string(site), trace_.sites.size());
  if (is_new) trace_.sites.emplace_back(site);
  return it->second;
}

void TraceBuilder::refuse(Bytes size, std::string_view site) {
  trace_.failures.push_back({trace_.ops.size(), size, std::string(site)});
}

void TraceBuilder::allocate(uint64_t key, Bytes size, Stream stream, std::string_view site) {
  if (is_live(key)) free(key);
  if (size == 0 || size > kMostBytes - live_bytes_) return skip();
  live_.emplace(key, Block{trace_.blocks, size});
  trace_.ops.push_back({Op::kAllocate, trace_.blocks++, size, stream});
  trace_.site_of.push_back(number_of_site(site));
  live_bytes_ += size;
  trace_.peak_live = std::max(trace_.peak_live, live_bytes_);
}

void TraceBuilder::allocate_before(uint64_t key, Bytes size, Stream stream, std::string_view site) {
  allocate(key, size, stream, site);
  trace_.before = live_bytes_;
}

bool TraceBuilder::free(uint64_t key) {
  const auto it = live_.find(key);
  if (it == live_.end()) {
    skip();
    return false;
  }
  trace_.ops.push_back({Op::kFree, it->second.number, 0, 0});
  live_bytes_ -= it->second.size;
  live_.erase(it);
  return true;
}

void TraceBuilder::mark() {
  trace_.ops.push_back({});
  ++trace_.steps;
}

namespace {

Result<std::vector<Trace>> only(Result<Trace> trace) {
  if (!trace.ok()) return trace.error();
  std::vector<Trace> one;
  one.push_back(std::move(*trace));
  return one;
}

}  // namespace

Result<std::vector<Trace>> read_traces(std::string_view bytes, std::string_view name) {
  if (bytes.starts_with("\xEF\xBB\xBF")) bytes.remove_prefix(3);  // as editors of Windows write
  const std::string_view head = trim(bytes.substr(0, 4096));
  if (head.empty()) return Error{Code::kBadInput, "the file is empty", ""};
  // A log's lines may start with [2023-10-02 ...].
  const size_t second = head.find_first_not_of(" \t\r\n", 1);
  const char next = second == head.npos ? ']' : head[second];
  if (head.front() == '{' || (head.front() == '[' && (next == '{' || next == ']'))) {
    const std::string_view line = head.substr(0, head.find('\n'));
    if (head.front() == '[' || line.find("\"op\"") == std::string_view::npos)
      return read_profiler_trace(bytes, name);
    return only(read_json_lines(bytes, name));
  }
  if (head.starts_with("Thread,Time,Action,")) return only(read_rmm_log(trim(bytes), name));
  if (head.front() != '\x80' && has_bfc_dump(bytes))
    return read_bfc_dumps(bytes, name);  // no pickle
  if (!may_be_snapshot(bytes))
    return Error{Code::kBadInput, "it is none of the kinds of file that say what a job asked for",
                 "memory snapshots of PyTorch, traces of torch.profiler with profile_memory=True, "
                 "logs of RMM, TensorFlow's dumps of its arena, Flatout's JSON lines"};
  return read_snapshot(bytes, name);
}

}  // namespace flatout::devmem
