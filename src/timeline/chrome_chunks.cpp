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
  std::unique_ptr<ByteSource> source;  // of the text, where its thread reads it by itself
  uint64_t offset;                     // of the text in the unpacked file
  bool last = false;
  TraceBuilder builder;
  std::optional<Result<ScanReport>> report;  // once its thread is done
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

/// Whether an event begins at this brace: after "}, ".
bool is_begin(const char* begin, const char* brace, const char* end) {
  const char* q = brace;
  do {
    if (q-- == begin) return false;
  } while (scan::is_space(*q));
  if (*q != ',') return false;
  do {
    if (q-- == begin) return false;
  } while (scan::is_space(*q));
  return *q == '}' && begins_event(brace, end);
}

/// Where the last event begins that begins in these bytes (which are padded). 0: nowhere.
size_t last_begin(const char* begin, size_t size) {
  for (size_t at = size; at > 0;) {
    const void* const brace = ::memrchr(begin, '{', at);
    if (brace == nullptr) return 0;
    const char* const p = static_cast<const char*>(brace);
    at = static_cast<size_t>(p - begin);
    if (is_begin(begin, p, begin + size)) return at;
  }
  return 0;
}

/// Where the first one does.
size_t first_begin(const char* begin, size_t size) {
  const char* const end = begin + size;
  for (const char* p = begin; p < end; ++p) {
    p = static_cast<const char*>(std::memchr(p, '{', static_cast<size_t>(end - p)));
    if (p == nullptr) return 0;
    if (is_begin(begin, p, end)) return static_cast<size_t>(p - begin);
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
    changed_.wait(lock, [&] { return piece.report.has_value(); });
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
      auto report = read(*piece);
      lock.lock();
      piece->report = std::move(report);
      lock.unlock();
      changed_.notify_all();
    }
  }
  static Result<ScanReport> read(Piece& piece) {
    const ScanFrom from = piece.offset == 0 ? ScanFrom::kStart : ScanFrom::kInList;
    if (piece.source) return scan_chrome(*piece.source, piece.builder, from, piece.offset);
    return scan_chrome_text(piece.view(), piece.builder, from, piece.offset);
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Piece*> waiting_;
  bool stop_ = false;
  std::vector<std::thread> threads_;
};

/// Whether the piece ends where its last event does, so that the cut was between two events.
bool well_cut(const Piece& piece) {
  const ScanReport& r = **piece.report;
  if (!r.has_list || r.bad_events > 0 || r.cut_inside || piece.builder.has_begins_and_ends())
    return false;
  return piece.last || (!r.complete && r.events > 0);
}

/// Pieces in the hands of threads, joined in the file's order.
class Joiner {
 public:
  Joiner(const TraceOptions& options, unsigned threads)
      : out_{{}, TraceBuilder(options)}, options_(options), threads_(threads) {
    options_.host_slices = UINT64_MAX;  // the bound is that of the whole
  }

  std::unique_ptr<Piece> piece(uint64_t offset) {
    auto out = std::make_unique<Piece>(options_, offset);
    std::swap(out->text, spare_);
    return out;
  }
  /// False: some piece was not cut well.
  Result<bool> add(std::unique_ptr<Piece> piece) {
    if (!workers_) workers_ = std::make_unique<Workers>(threads_);
    workers_->take(piece.get());
    pieces_.push_back(std::move(piece));
    return pieces_.size() < threads_ + 2 ? Result<bool>(true) : join();
  }
  Result<std::optional<ChunkedImport>> finish() {
    while (!pieces_.empty()) {
      FLATOUT_TRY(const bool joined, join());
      if (!joined) return std::optional<ChunkedImport>();
    }
    return std::optional<ChunkedImport>(std::move(out_));
  }

 private:
  Result<bool> join() {
    const std::unique_ptr<Piece> piece = std::move(pieces_.front());
    pieces_.pop_front();
    workers_->wait_for(*piece);
    FLATOUT_TRY(const ScanReport report, *piece->report);
    if (!well_cut(*piece)) return false;
    out_.builder.append(piece->builder);
    out_.report.bytes += report.bytes;
    out_.report.events += report.events;
    out_.report.has_list = true;
    out_.report.complete = report.complete;
    out_.report.list_end = report.list_end;
    piece->text.clear();
    std::swap(spare_, piece->text);
    return true;
  }

  ChunkedImport out_;
  TraceOptions options_;
  unsigned threads_;
  std::deque<std::unique_ptr<Piece>> pieces_;
  model::Column<char> spare_;         // its pages are there already
  std::unique_ptr<Workers> workers_;  // goes before the pieces do
};

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

/// Where in the file the first event begins that begins in the bytes from `from` on. 0: it is not
/// told within a megabyte.
Result<uint64_t> next_begin(const std::string& path, uint64_t from, uint64_t size) {
  constexpr size_t kFirst = 16 << 10, kMost = 1 << 20;
  model::Column<char> text;
  FLATOUT_TRY(const auto source, open_range(path, from, size));
  for (size_t wanted = kFirst; wanted <= kMost; wanted *= 4) {
    FLATOUT_TRY(const bool more, fill(*source, text, wanted));
    const size_t at = first_begin(text.begin(), text.size());
    if (at != 0) return from + at;
    if (!more) break;
  }
  return uint64_t{0};
}

}  // namespace

Result<std::optional<ChunkedImport>> import_chunks(ByteSource& source, const TraceOptions& options,
                                                   unsigned threads, size_t chunk) {
  Joiner joiner(options, threads);
  std::string rest;  // begins with an event
  uint64_t offset = 0;
  bool more = true;
  while (more) {
    auto piece = joiner.piece(offset);
    std::copy_n(rest.data(), rest.size(), piece->text.extend(rest.size()));
    FLATOUT_TRY(more, fill(source, piece->text, std::max(chunk, piece->text.size() + chunk / 2)));
    if (!more && offset == 0) {
      // All of it is one piece: nothing to join, and damage is dealt with on the way.
      ChunkedImport out{{}, TraceBuilder(options)};
      out.report = scan_chrome_text(piece->view(), out.builder);
      return std::optional<ChunkedImport>(std::move(out));
    }
    piece->last = !more;
    if (more) {
      const size_t cut = last_begin(piece->text.begin(), piece->text.size());
      if (cut == 0) return std::optional<ChunkedImport>();
      rest.assign(piece->text.begin() + cut, piece->text.end());
      std::fill_n(piece->text.begin() + cut, scan::kScanPadding, '\0');
      piece->text.resize_down(cut);
    }
    offset += piece->text.size();
    FLATOUT_TRY(const bool joined, joiner.add(std::move(piece)));
    if (!joined) return std::optional<ChunkedImport>();
  }
  return joiner.finish();
}

Result<std::optional<ChunkedImport>> import_file_chunks(const std::string& path, uint64_t size,
                                                        const TraceOptions& options,
                                                        unsigned threads, size_t chunk) {
  Joiner joiner(options, threads);
  for (uint64_t begin = 0; begin < size;) {
    uint64_t end = size;
    if (size - begin > chunk + chunk / 2) {
      FLATOUT_TRY(end, next_begin(path, begin + chunk, size));
      if (end == 0) return std::optional<ChunkedImport>();
    }
    auto piece = joiner.piece(begin);
    FLATOUT_TRY(piece->source, open_range(path, begin, end));
    piece->last = end == size;
    begin = end;
    FLATOUT_TRY(const bool joined, joiner.add(std::move(piece)));
    if (!joined) return std::optional<ChunkedImport>();
  }
  return joiner.finish();
}

}  // namespace flatout::timeline
