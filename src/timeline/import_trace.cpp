#include "timeline/import_trace.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <optional>
#include <system_error>

#include "base/text.h"
#include "timeline/byte_source.h"
#include "timeline/chrome_chunks.h"
#include "timeline/import_nsight.h"
#include "timeline/import_perfetto.h"
#include "timeline/import_tensorflow.h"

namespace flatout::timeline {

using model::Trace;

namespace {

constexpr size_t kHead = 4096;
constexpr size_t kMostBinary = size_t{4} << 30;  // protobuf's own messages end at 2 GiB

// A source whose first bytes have been looked at already.
class HeadSource : public ByteSource {
 public:
  HeadSource(std::string head, ByteSource& rest) : head_(std::move(head)), rest_(rest) {}
  Result<size_t> read(char* to, size_t size) override {
    if (used_ == head_.size()) return rest_.read(to, size);
    size = std::min(size, head_.size() - used_);
    std::copy_n(head_.data() + used_, size, to);
    used_ += size;
    return size;
  }
  bool damaged() const override { return rest_.damaged(); }

 private:
  std::string head_;
  ByteSource& rest_;
  size_t used_ = 0;
};

Result<Trace> finish_chrome(TraceBuilder& builder, const ScanReport& report,
                            const ByteSource& source, const std::string& name) {
  if (!report.has_list) {
    return Error{Code::kBadInput, fmt::format("{} is JSON without a list of trace events", name),
                 "a trace has \"traceEvents\": export it in Chrome's format"};
  }
  Trace trace = builder.finish(report);
  if (trace.format.empty()) trace.format = "chrome";
  if (source.damaged()) {
    trace.damage.cut_off = true;
    trace.damage.text = "the gzip stream is damaged or ends early";
  }
  return trace;
}

Result<Trace> import_chrome(ByteSource& source, const std::string& name,
                            const TraceOptions& options) {
  TraceBuilder builder(options);
  FLATOUT_TRY(const ScanReport report, scan_chrome(source, builder));
  return finish_chrome(builder, report, source, name);
}

Trace finish_nsight(TraceBuilder& builder, const NsightDamage& damage, uint64_t bytes) {
  ScanReport report;
  report.bytes = bytes;
  report.has_list = true;
  report.complete = damage.empty();
  Trace trace = builder.finish(report);
  trace.format = "nsight";
  trace.damage.text = damage;
  return trace;
}

/// The size of a regular file that is not gzipped (nothing that is read here begins as gzip does);
/// nullopt: it is something else.
Result<std::optional<uint64_t>> plain_size(const std::string& path) {
  std::error_code failed;
  if (!std::filesystem::is_regular_file(path, failed)) return std::optional<uint64_t>();
  const uint64_t size = std::filesystem::file_size(path, failed);
  if (failed) return std::optional<uint64_t>();
  char head[4];
  FLATOUT_TRY(const auto packed, open_range(path, 0, sizeof head));
  FLATOUT_TRY(const size_t got, packed->read(head, sizeof head));
  if (looks_gzipped({head, got})) return std::optional<uint64_t>();
  return std::optional<uint64_t>(size);
}

// Chrome JSON by several threads, Nsight Systems' database in place; nullopt: another way must be
// gone.
Result<std::optional<Trace>> import_file(const std::string& path, const std::string& name,
                                         const TraceOptions& options) {
  FLATOUT_TRY(const auto source, open_source(path, false));
  std::string head(kHead, '\0');
  FLATOUT_TRY(const size_t got, source->read(head.data(), head.size()));
  head.resize(got);
  const bool database = looks_like_sqlite(head);
  if (!database && (options.threads < 2 || !looks_like_chrome(head))) return std::optional<Trace>();
  FLATOUT_TRY(const std::optional<uint64_t> size, plain_size(path));
  if (database) {
    if (!size) return std::optional<Trace>();
    TraceBuilder builder(options);
    FLATOUT_TRY(const NsightDamage damage, import_nsight_file(path, builder));
    return std::optional<Trace>(finish_nsight(builder, damage, *size));
  }
  std::optional<ChunkedImport> chunks;
  if (size && *size > 2 * kChunk) {
    FLATOUT_TRY(chunks, import_file_chunks(path, *size, options, options.threads));
  } else {
    HeadSource whole(std::move(head), *source);
    FLATOUT_TRY(chunks, import_chunks(whole, options, options.threads));
  }
  if (!chunks) return std::optional<Trace>();
  FLATOUT_TRY(Trace trace, finish_chrome(chunks->builder, chunks->report, *source, name));
  return std::optional<Trace>(std::move(trace));
}

// What a trace was packed with that is not unpacked here; nullptr: with nothing known.
const char* unpacker_of(std::string_view head) {
  struct Packed {
    std::string_view magic;
    const char* hint;
  };
  static constexpr Packed kPacked[] = {
      {std::string_view("\xFD"
                        "7zXZ",
                        5),
       "it is packed with xz: xz -dc FILE | flatout trace summary -"},
      {"BZh", "it is packed with bzip2: bzip2 -dc FILE | flatout trace summary -"},
      {"\x28\xB5\x2F\xFD", "it is packed with zstd: zstd -dc FILE | flatout trace summary -"},
      {"PK\x03\x04", "it is a zip file: unzip -p FILE | flatout trace summary -"},
      {"\xFF\xFE", "it is UTF-16: iconv -f UTF-16 -t UTF-8 FILE | flatout trace summary -"},
      {"\xFE\xFF", "it is UTF-16: iconv -f UTF-16 -t UTF-8 FILE | flatout trace summary -"},
  };
  for (const Packed& packed : kPacked)
    if (head.starts_with(packed.magic)) return packed.hint;
  return nullptr;
}

Result<Trace> import_any(ByteSource& source, const std::string& name, const TraceOptions& options) {
  std::string head(kHead, '\0');
  size_t size = 0;
  while (size < head.size()) {
    FLATOUT_TRY(const size_t got, source.read(head.data() + size, head.size() - size));
    if (got == 0) break;
    size += got;
  }
  head.resize(size);
  if (trim(head).empty() && head.size() < kHead) {
    return Error{Code::kBadInput, fmt::format("{} is empty", name),
                 "was the profiler stopped before the program ended?"};
  }
  using Import = bool (*)(std::string_view, TraceBuilder&);
  struct Format {
    std::string_view name;
    bool (*looks_like_it)(std::string_view);
    Import import;
  };
  static constexpr Format kBinary[] = {
      {"tf1", looks_like_run_metadata, import_run_metadata},
      {"xplane", looks_like_xspace, import_xspace},
      {"perfetto", looks_like_perfetto, import_perfetto},
  };
  const bool chrome = looks_like_chrome(head);
  const Format* binary = nullptr;
  for (const Format& format : kBinary) {
    if (binary == nullptr && format.looks_like_it(head)) binary = &format;
  }
  const bool database = looks_like_sqlite(head);
  const char* const packed = unpacker_of(head);
  HeadSource whole(std::move(head), source);
  if (database) {
    FLATOUT_TRY(const std::string bytes, read_all(whole, kMostBinary));
    TraceBuilder builder(options);
    FLATOUT_TRY(const NsightDamage damage, import_nsight(bytes, builder));
    return finish_nsight(builder, damage, bytes.size());
  }
  if (chrome) return import_chrome(whole, name, options);
  if (binary != nullptr) {
    FLATOUT_TRY(const std::string bytes, read_all(whole, kMostBinary));
    TraceBuilder builder(options);
    const bool complete = binary->import(bytes, builder);
    ScanReport report;
    report.bytes = bytes.size();
    report.has_list = true;
    report.complete = complete;
    Trace trace = builder.finish(report);
    trace.format = binary->name;
    return trace;
  }
  return Error{
      Code::kBadInput, fmt::format("{} is no trace that flatout knows", name),
      packed != nullptr
          ? packed
          : "known are Chrome and PyTorch JSON, TensorFlow timelines and XPlane, Perfetto, "
            "Nsight Systems' "
            "SQLite export (nsys export --type sqlite)"};
}

}  // namespace

Result<Trace> import_trace(const std::string& path, const TraceOptions& options) {
  const std::string name = escape_terminal(path);
  // A pipe can be read once: without a look at its head beforehand.
  std::error_code failed;
  std::optional<Trace> known;
  if (std::filesystem::is_regular_file(path, failed)) {
    FLATOUT_TRY(known, import_file(path, name, options));
  }
  if (!known) {
    FLATOUT_TRY(const auto source, open_source(path));
    FLATOUT_TRY(known, import_any(*source, name, options));
  }
  known->file = path;
  return std::move(*known);
}

Result<Trace> import_trace_bytes(std::string_view bytes, const std::string& name,
                                 const TraceOptions& options) {
  const auto source = memory_source(bytes);
  FLATOUT_TRY(Trace trace, import_any(*source, name, options));
  trace.file = name;
  return trace;
}

Result<bool> is_chrome(const std::string& path) {
  FLATOUT_TRY(const auto source, open_source(path));
  char head[256];
  FLATOUT_TRY(const size_t got, source->read(head, sizeof head));
  return looks_like_chrome({head, got});
}

}  // namespace flatout::timeline
