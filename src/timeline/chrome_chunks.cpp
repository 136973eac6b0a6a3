#include "timeline/chrome_chunks.h"

#include <algorithm>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "timeline/json_scan.h"

namespace flatout::timeline {
namespace {

// One piece of the text, and what a thread made of it.
struct Piece {
  Piece(const TraceOptions& options, uint64_t at) : offset(at), builder(options) {}
  std::string_view view() const { return {text.begin(), text.size()}; }
  model::Column<char> text;
  uint64_t offset;  // of the text in the unpacked file
  bool last = false;
  TraceBuilder builder;
  ScanReport report;
  bool read = false;  // by its thread; the report holds
};

/// Begins of events have one of these keys behind the brace; objects within arguments seldom do.
bool begins_event(const char* p, const char* end) {
  p = scan::skip_space(p + 1);
  if (p + 8 > end || *p != '"') return false;
  const std::string_view rest(p + 1, static_cast<size_t>(end - p - 1));
  for (const std::string_view key : {"ph\"", "name\"", "cat\"", "pid\"", "tid\"", "ts\"", "args\""})
    if (rest.starts_with(key)) return true;
  return false;
}

/// Where the last event begins that begins in these bytes (which are padded): after "}, ". 0:
/// nowhere.
size_t last_begin(const char* begin, size_t size) {
  const char* const end = begin + size;
  for (size_t at = size; at > 1;) {
    const void* const brace = ::memrchr(begin, '{', at);
    if (brace == nullptr) return 0;
    const char* const p = static_cast<const char*>(brace);
    at = static_cast<size_t>(p - begin);
    if (at == 0) return 0;
    const char* q = p - 1;
    while (q > begin && scan::is_space(*q)) --q;
    if (*q != ',' || q == begin) continue;
    do --q;
    while (q > begin && scan::is_space(*q));
    if (*q == '}' && begins_event(p, end)) return at;
  }
  return 0;
}

/// Threads that turn pieces into columns.
class Workers {
 public:
  explicit Workers(unsigned count) {
    for (unsigned i = 0; i < count; ++i) threads_.emplace_back([this] { work(); });
  }
  ~Workers() {
    {
      const std::lock_guard lock(mutex_);
      stop_ = true;
    }
    changed_.notify_all();
    for (std::thread& thread : threads_) thread.join();
  }
  Workers(const Workers&) = delete;
  Workers& operator=(const Workers&) = delete;

  void take(Piece* piece) {
    {
      const std::lock_guard lock(mutex_);
      waiting_.push_back(piece);
    }
    changed_.notify_all();
  }
  void wait_for(const Piece& piece) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return piece.read; });
  }

 private:
  void work() {
    for (;;) {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [&] { return stop_ || !waiting_.empty(); });
      if (stop_) return;
      Piece* const piece = waiting_.front();
      waiting_.pop_front();
      lock.unlock();
      read(*piece);
      lock.lock();
      piece->read = true;
      lock.unlock();
      changed_.notify_all();
    }
  }
  static void read(Piece& piece) {
    const auto source = memory_source(piece.view());
    auto report =
        scan_chrome(*source, piece.builder,
                    piece.offset == 0 ? ScanFrom::kStart : ScanFrom::kInList, piece.offset);
    if (report.ok()) {
      piece.report = *report;
    } else {
      piece.report.bad_events = 1;  // a value beyond all bounds
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Piece*> waiting_;
  bool stop_ = false;
  std::vector<std::thread> threads_;
};

/// Whether the piece ends where its last event does, so that the cut was between two events.
bool well_cut(const Piece& piece) {
  const ScanReport& r = piece.report;
  if (!r.has_list || r.bad_events > 0 || r.cut_inside || piece.builder.has_begins_and_ends())
    return false;
  if (piece.last) return true;
  if (r.complete || r.events == 0) return false;
  const std::string_view rest = piece.view().substr(r.list_end - piece.offset);
  return std::count(rest.begin(), rest.end(), ',') == 1 &&
         std::all_of(rest.begin(), rest.end(),
                     [](char c) { return c == ',' || scan::is_space(c); });
}

/// Reads until `text` holds `size` bytes, and pads it. False at the source's end.
Result<bool> fill(ByteSource& source, model::Column<char>& text, size_t size) {
  size_t have = text.size();
  text.extend(size + scan::kScanPadding - have);
  bool more = true;
  while (have < size && more) {
    FLATOUT_TRY(const size_t got, source.read(text.begin() + have, size - have));
    have += got;
    more = got > 0;
  }
  text.resize_down(have + scan::kScanPadding);
  std::fill(text.begin() + have, text.end(), '\0');
  text.resize_down(have);
  return more;
}

}  // namespace

Result<std::optional<ChunkedImport>> import_chunks(ByteSource& source, const TraceOptions& options,
                                                   unsigned threads, size_t chunk) {
  ChunkedImport out{{}, TraceBuilder(options)};
  TraceOptions piece_options = options;
  piece_options.host_slices = UINT64_MAX;  // the bound is that of the whole
  std::deque<std::unique_ptr<Piece>> pieces;
  std::unique_ptr<Workers> workers;  // goes before the pieces do
  model::Column<char> rest;          // begins with an event
  uint64_t offset = 0;
  const auto join = [&] {
    const std::unique_ptr<Piece> piece = std::move(pieces.front());
    pieces.pop_front();
    workers->wait_for(*piece);
    if (!well_cut(*piece)) return false;
    out.builder.append(piece->builder);
    out.report.bytes += piece->text.size();
    out.report.events += piece->report.events;
    out.report.has_list = true;
    out.report.complete = piece->report.complete;
    out.report.list_end = piece->report.list_end;
    return true;
  };
  bool more = true;
  while (more) {
    auto piece = std::make_unique<Piece>(piece_options, offset);
    piece->text = std::move(rest);
    FLATOUT_TRY(more, fill(source, piece->text, std::max(chunk, piece->text.size() + chunk / 2)));
    if (!more && offset == 0) {
      // All of it is one piece: nothing to join, and damage is dealt with on the way.
      const auto memory = memory_source(piece->view());
      FLATOUT_TRY(out.report, scan_chrome(*memory, out.builder));
      return std::optional<ChunkedImport>(std::move(out));
    }
    piece->last = !more;
    if (more) {
      const size_t cut = last_begin(piece->text.begin(), piece->text.size());
      if (cut == 0) return std::optional<ChunkedImport>();
      const size_t left = piece->text.size() - cut;
      rest = model::Column<char>();
      std::copy_n(piece->text.begin() + cut, left, rest.extend(left));
      piece->text.resize_down(cut);
    }
    offset += piece->text.size();
    if (!workers) workers = std::make_unique<Workers>(threads);
    workers->take(piece.get());
    pieces.push_back(std::move(piece));
    if (pieces.size() >= threads + 2 && !join()) return std::optional<ChunkedImport>();
  }
  while (!pieces.empty()) {
    if (!join()) return std::optional<ChunkedImport>();
  }
  return std::optional<ChunkedImport>(std::move(out));
}

}  // namespace flatout::timeline
