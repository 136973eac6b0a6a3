// Any bytes as a trace, of whatever format: nothing crashes, what is kept is consistent, all
// analyses run, and what is written from it can be read again.
#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <string>
#include <string_view>

#include "timeline/chrome_chunks.h"
#include "timeline/import_trace.h"
#include "timeline/trace_analysis.h"
#include "timeline/trace_convert.h"
#include "timeline/trace_diff.h"

namespace {

using namespace flatout;  // NOLINT

void check(const model::Trace& trace) {
  for (size_t i = 0; i < trace.size(); ++i) {
    FLATOUT_CHECK(trace.duration[i] >= 0);
    FLATOUT_CHECK(trace.name[i] < trace.strings.size() && trace.track[i] < trace.tracks.size());
    FLATOUT_CHECK(trace.category[i] < trace.categories.size());
    FLATOUT_CHECK(!model::on_device(trace.kind[i]) || trace.tracks[trace.track[i]].is_stream);
  }
  const timeline::TraceIndex index(trace);
  const model::TraceSummary summary = timeline::summarize(index);
  for (const model::DeviceSummary& d : summary.devices) {
    const model::IdleBlame& idle = d.idle;
    FLATOUT_CHECK(d.times.busy <= d.times.span && d.times.compute <= d.times.busy);
    FLATOUT_CHECK(d.unknown <= idle.other && d.short_wait + d.sync_wait <= idle.host_wait);
    FLATOUT_CHECK(idle.host_wait + idle.input_wait + idle.kernel_wait + idle.other ==
                  d.times.idle());
  }
  if (summary.path) {
    int64_t sum = 0;
    for (const int64_t part : summary.path->parts) sum += part;
    FLATOUT_CHECK(sum == summary.path->length);
    for (const auto& what_if : summary.path->what_if)
      FLATOUT_CHECK(what_if.length <= summary.path->length);
  }
}

void check_same(Result<std::optional<timeline::ChunkedImport>> pieces, const model::Trace& whole) {
  FLATOUT_CHECK(pieces.ok());
  if (!*pieces) return;
  const model::Trace joined = (*pieces)->builder.finish((*pieces)->report);
  FLATOUT_CHECK(joined.size() == whole.size());
  for (size_t i = 0; i < joined.size(); ++i) {
    const auto e = static_cast<model::EventId>(i);
    FLATOUT_CHECK(joined.start[i] == whole.start[i] && joined.name_of(e) == whole.name_of(e));
    FLATOUT_CHECK(joined.track[i] == whole.track[i] && joined.kind[i] == whole.kind[i]);
  }
}

void check_pieces(std::string_view text, const model::Trace& whole) {
  const auto source = timeline::memory_source(text);
  check_same(timeline::import_chunks(*source, {}, 2, 200), whole);
  static const int file = ::memfd_create("trace", MFD_CLOEXEC);
  FLATOUT_CHECK(::ftruncate(file, 0) == 0);
  FLATOUT_CHECK(::pwrite(file, text.data(), text.size(), 0) == static_cast<ssize_t>(text.size()));
  const std::string path = "/proc/self/fd/" + std::to_string(file);
  check_same(timeline::import_file_chunks(path, text.size(), {}, 2, 200), whole);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  auto trace = timeline::import_trace_bytes(bytes);
  if (!trace.ok()) return 0;
  check(*trace);
  timeline::diff_traces(*trace, *trace);
  std::string out;
  FLATOUT_CHECK(timeline::write_chrome(*trace, *timeline::string_sink(out)).ok());
  auto again = timeline::import_trace_bytes(out);
  FLATOUT_CHECK(again.ok() && again->size() == trace->size() && !again->damage.any());
  // What was written, and what was given, read by several threads in pieces: the same, or left to
  // one.
  check_pieces(out, *again);
  if (trace->format == "chrome" && !timeline::looks_gzipped(bytes)) check_pieces(bytes, *trace);
  out.clear();
  FLATOUT_CHECK(timeline::write_perfetto(*trace, *timeline::string_sink(out)).ok());
  if (trace->size() > 0) {
    again = timeline::import_trace_bytes(out);
    FLATOUT_CHECK(again.ok() && again->size() == trace->size());
  }
  return 0;
}
