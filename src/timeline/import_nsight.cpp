#include "timeline/import_nsight.h"

#include <fmt/format.h>
#include <sqlite3.h>

#include <algorithm>
#include <initializer_list>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <unordered_map>
#include <vector>

#include "base/text.h"

namespace flatout::timeline {

using model::EventKind;

namespace {

// NVTX_EVENTS.eventType
constexpr int64_t kPushPop = 59, kStartEnd = 60;
constexpr int kLongestText = 1 << 20;  // bytes; of a cell

struct Close {
  void operator()(sqlite3* db) const { sqlite3_close(db); }
  void operator()(sqlite3_stmt* statement) const { sqlite3_finalize(statement); }
};
using Database = std::unique_ptr<sqlite3, Close>;

// Any bytes may call themselves a database: nothing in it is executed but reading its tables.
Database harden(sqlite3* db) {
  sqlite3_db_config(db, SQLITE_DBCONFIG_DEFENSIVE, 1, nullptr);
  sqlite3_db_config(db, SQLITE_DBCONFIG_TRUSTED_SCHEMA, 0, nullptr);
  sqlite3_limit(db, SQLITE_LIMIT_LENGTH, kLongestText);
  sqlite3_exec(db, "PRAGMA cell_size_check=ON; PRAGMA temp_store=MEMORY", nullptr, nullptr,
               nullptr);
  return Database(db);
}

// The rows of one table: the columns that were asked for, null where this version has no such.
class Rows {
 public:
  Rows(sqlite3* db, const std::string& table, std::initializer_list<const char*> columns) {
    std::string select;
    for (const char* column : columns) {
      const bool known =
          sqlite3_table_column_metadata(db, "main", table.c_str(), column, nullptr, nullptr,
                                        nullptr, nullptr, nullptr) == SQLITE_OK;
      select += fmt::format("{}{}", select.empty() ? "SELECT " : ", ",
                            known ? fmt::format("\"{}\"", column) : "NULL");
    }
    select += fmt::format(" FROM \"{}\"", table);
    sqlite3_stmt* statement = nullptr;
    state_ = sqlite3_prepare_v2(db, select.c_str(), -1, &statement, nullptr);
    statement_.reset(statement);
  }
  bool next() {
    if (state_ != SQLITE_OK && state_ != SQLITE_ROW) return false;
    state_ = sqlite3_step(statement_.get());
    return state_ == SQLITE_ROW;
  }
  bool whole() const { return state_ == SQLITE_DONE; }
  bool has(int column) const {
    return sqlite3_column_type(statement_.get(), column) != SQLITE_NULL;
  }
  int64_t number(int column) const { return sqlite3_column_int64(statement_.get(), column); }
  std::string_view text(int column) const {
    const unsigned char* const bytes = sqlite3_column_text(statement_.get(), column);
    const int size = sqlite3_column_bytes(statement_.get(), column);
    return bytes != nullptr
               ? std::string_view(reinterpret_cast<const char*>(bytes), static_cast<size_t>(size))
               : std::string_view();
  }

 private:
  std::unique_ptr<sqlite3_stmt, Close> statement_;
  int state_ = SQLITE_ERROR;
};

// "cudaLaunchKernel_v7000", "cudaMemcpyAsync_ptsz": the call without the version of its interface.
std::string_view without_version(std::string_view call) {
  for (const std::string_view suffix : {"_ptsz", "_ptds"}) {
    if (call.ends_with(suffix)) call.remove_suffix(suffix.size());
  }
  const size_t at = call.rfind("_v");
  if (at == std::string_view::npos || at + 2 == call.size()) return call;
  const std::string_view digits = call.substr(at + 2);
  const bool version =
      std::all_of(digits.begin(), digits.end(), [](char c) { return c >= '0' && c <= '9'; });
  return version ? call.substr(0, at) : call;
}

// CUpti_ActivityMemcpyKind, in the words of PyTorch's traces.
std::string_view copy_name(int64_t kind) {
  switch (kind) {
    case 1:
      return "HtoD";
    case 2:
      return "DtoH";
    case 8:
      return "DtoD";
    case 9:
      return "HtoH";
    case 10:
      return "PtoP";
    default:
      return "other";
  }
}

// ENUM_CUDA_MEM_KIND, where the export has no such table
std::string_view usual_memory_name(int64_t kind) {
  static constexpr std::string_view kNames[] = {"Pageable", "Pinned", "Device", "Array", "Managed"};
  return kind >= 0 && kind < 5 ? kNames[kind] : "Unknown";
}

class NsightImporter {
 public:
  NsightImporter(sqlite3* db, TraceBuilder& builder) : db_(db), builder_(builder) {}

  Result<NsightDamage> import() {
    find_tables();
    bool any = false;
    for (const char* table : {"CUPTI_ACTIVITY_KIND_KERNEL", "CUPTI_ACTIVITY_KIND_RUNTIME",
                              "NVTX_EVENTS", "OSRT_API", "TARGET_INFO_SESSION_START_TIME"})
      any = any || tables_.contains(table);
    if (!any) {
      return Error{Code::kBadInput, "this SQLite database was not written by Nsight Systems",
                   "export a report with: nsys export --type sqlite REPORT.nsys-rep"};
    }
    read_strings();
    read_names();
    kernels();
    copies();
    fills();
    graphs();
    calls("CUPTI_ACTIVITY_KIND_RUNTIME", EventKind::kRuntime, "cuda_runtime");
    calls("CUPTI_ACTIVITY_KIND_DRIVER", EventKind::kRuntime, "cuda_driver");
    calls("CUDNN_EVENTS", EventKind::kOp, "cudnn");
    calls("CUBLAS_EVENTS", EventKind::kOp, "cublas");
    calls("OSRT_API", EventKind::kOther, "osrt");
    waits();
    ranges();
    return damage_;
  }

 private:
  // Real tables alone: a view could compute for ever.
  void find_tables() {
    sqlite3_stmt* raw = nullptr;
    sqlite3_prepare_v2(db_, "SELECT name FROM sqlite_master WHERE type = 'table' AND rootpage > 0",
                       -1, &raw, nullptr);
    const std::unique_ptr<sqlite3_stmt, Close> statement(raw);
    while (raw != nullptr && sqlite3_step(raw) == SQLITE_ROW) {
      const unsigned char* const name = sqlite3_column_text(raw, 0);
      if (name != nullptr) tables_.insert(reinterpret_cast<const char*>(name));
    }
  }

  /// Calls visit(rows) for each row of a table that is there.
  template <class Visit>
  void each(const std::string& table, std::initializer_list<const char*> columns, Visit&& visit) {
    if (!tables_.contains(table)) return;
    Rows rows(db_, table, columns);
    while (rows.next()) visit(rows);
    if (!rows.whole() && damage_.empty())
      damage_ = fmt::format("the database is damaged in its table {}", table);
  }

  void read_strings() {
    each("StringIds", {"id", "value"}, [&](const Rows& row) {
      strings_[row.number(0)] = builder_.trace().strings.intern(row.text(1));
    });
  }
  std::string_view string(int64_t id) const {
    const auto at = strings_.find(id);
    return at != strings_.end() ? builder_.trace().strings[at->second] : std::string_view();
  }

  void read_names() {
    model::Trace& trace = builder_.trace();
    each("TARGET_INFO_SESSION_START_TIME", {"utcEpochNs"},
         [&](const Rows& row) { trace.base_time_ns = row.number(0); });
    std::map<int64_t, std::string> boards;
    each("TARGET_INFO_GPU", {"id", "name"}, [&](const Rows& row) {
      if (boards.size() < 4096) boards[row.number(0)] = row.text(1);
    });
    each("TARGET_INFO_CUDA_DEVICE", {"cudaId", "gpuId"}, [&](const Rows& row) {
      const auto board = boards.find(row.number(1));
      if (board != boards.end()) trace.device_names[row.number(0)] = board->second;
    });
    if (trace.device_names.empty()) trace.device_names = std::move(boards);
    each("ENUM_CUDA_MEM_KIND", {"id", "label"}, [&](const Rows& row) {
      if (memory_names_.size() < 100) memory_names_[row.number(0)] = row.text(1);
    });
    each("ThreadNames", {"globalTid", "nameId"}, [&](const Rows& row) {
      set_thread(row.number(0));
      trace.tracks[builder_.track(pid_, tid_)].thread = string(row.number(1));
    });
    each("PROCESSES", {"globalPid", "name"}, [&](const Rows& row) {
      set_thread(row.number(0));
      builder_.name_process(pid_, row.text(1));
    });
  }

  std::string_view memory_name(int64_t kind) const {
    const auto at = memory_names_.find(kind);
    return at != memory_names_.end() ? std::string_view(at->second) : usual_memory_name(kind);
  }

  // A global id is hardware (8 bits), virtual machine (8), process (24), thread (24).
  void set_thread(int64_t global) {
    pid_ = std::to_string(global >> 24 & 0xFFFFFF);
    tid_ = std::to_string(global & 0xFFFFFF);
  }
  // Correlation ids are a process's own.
  uint64_t correlation(int64_t id, int64_t global) {
    if (id <= 0) return 0;
    const int64_t process = global >> 24;
    const auto at = processes_.try_emplace(process, processes_.size()).first;
    return static_cast<uint64_t>(at->second) << 32 | (static_cast<uint64_t>(id) & 0xFFFF'FFFF);
  }

  ImportedSlice slice(const Rows& row, EventKind kind, std::string_view category) {
    ImportedSlice s;
    s.time_ns = row.number(0);
    // Subtracting what a hostile file holds must not overflow.
    const __int128 length = static_cast<__int128>(row.number(1)) - s.time_ns;
    s.duration_ns = static_cast<int64_t>(std::clamp<__int128>(length, 0, INT64_MAX));
    s.kind = kind;
    s.category = category;
    s.pid = pid_;
    s.tid = tid_;
    return s;
  }
  // Columns 2 to 5: deviceId, streamId, correlationId, globalPid.
  ImportedSlice device_slice(const Rows& row, EventKind kind, std::string_view category) {
    ImportedSlice s = slice(row, kind, category);
    s.device = row.number(2);
    s.stream = row.number(3);
    s.correlation = correlation(row.number(4), row.number(5));
    return s;
  }

  void kernels() {
    each("CUPTI_ACTIVITY_KIND_KERNEL",
         {"start", "end", "deviceId", "streamId", "correlationId", "globalPid", "demangledName",
          "shortName"},
         [&](const Rows& row) {
           ImportedSlice s = device_slice(row, EventKind::kKernel, "kernel");
           s.name = string(row.number(row.has(6) ? 6 : 7));
           builder_.add(s);
         });
  }

  void copies() {
    each("CUPTI_ACTIVITY_KIND_MEMCPY",
         {"start", "end", "deviceId", "streamId", "correlationId", "globalPid", "copyKind",
          "srcKind", "dstKind", "bytes"},
         [&](const Rows& row) {
           ImportedSlice s = device_slice(row, EventKind::kMemcpy, "gpu_memcpy");
           const std::string name =
               fmt::format("Memcpy {} ({} -> {})", copy_name(row.number(6)),
                           memory_name(row.number(7)), memory_name(row.number(8)));
           s.name = name;
           if (row.has(9)) s.bytes = static_cast<uint64_t>(std::max<int64_t>(0, row.number(9)));
           builder_.add(s);
         });
  }

  void fills() {
    each("CUPTI_ACTIVITY_KIND_MEMSET",
         {"start", "end", "deviceId", "streamId", "correlationId", "globalPid", "memKind", "bytes"},
         [&](const Rows& row) {
           ImportedSlice s = device_slice(row, EventKind::kMemset, "gpu_memset");
           const std::string name = fmt::format("Memset ({})", memory_name(row.number(6)));
           s.name = name;
           if (row.has(7)) s.bytes = static_cast<uint64_t>(std::max<int64_t>(0, row.number(7)));
           builder_.add(s);
         });
  }

  // Graphs that were recorded whole, not by their nodes.
  void graphs() {
    each("CUPTI_ACTIVITY_KIND_GRAPH_TRACE",
         {"start", "end", "deviceId", "streamId", "correlationId", "globalPid", "graphId"},
         [&](const Rows& row) {
           ImportedSlice s = device_slice(row, EventKind::kKernel, "kernel");
           const std::string name = fmt::format("CUDA graph {}", row.number(6));
           s.name = name;
           builder_.add(s);
         });
  }

  void calls(const std::string& table, EventKind kind, std::string_view category) {
    each(table, {"start", "end", "globalTid", "nameId", "correlationId"}, [&](const Rows& row) {
      set_thread(row.number(2));
      ImportedSlice s = slice(row, kind, category);
      s.name = kind == EventKind::kRuntime ? without_version(string(row.number(3)))
                                           : string(row.number(3));
      if (kind == EventKind::kRuntime) s.correlation = correlation(row.number(4), row.number(2));
      builder_.add(s);
    });
  }

  void waits() {
    each("CUPTI_ACTIVITY_KIND_SYNCHRONIZATION", {"start", "end", "globalPid", "correlationId"},
         [&](const Rows& row) {
           set_thread(row.number(2));
           tid_ = "synchronization";
           ImportedSlice s = slice(row, EventKind::kSync, "cuda_sync");
           s.name = "Synchronize";
           s.correlation = correlation(row.number(3), row.number(2));
           builder_.add(s);
         });
  }

  void ranges() {
    each("NVTX_EVENTS", {"start", "end", "globalTid", "eventType", "text", "textId"},
         [&](const Rows& row) {
           const int64_t type = row.number(3);
           if ((type != kPushPop && type != kStartEnd) || !row.has(1)) return;
           set_thread(row.number(2));
           // Ranges with a start and an end of their own may overlap what is pushed and popped.
           if (type == kStartEnd) tid_ += " (start, end)";
           ImportedSlice s = slice(row, EventKind::kAnnotation, "nvtx");
           const std::string name(row.has(4) ? row.text(4) : string(row.number(5)));
           s.name = name;
           builder_.add(s);
         });
  }

  sqlite3* db_;
  TraceBuilder& builder_;
  std::set<std::string, std::less<>> tables_;
  std::unordered_map<int64_t, model::StringId> strings_;
  std::map<int64_t, size_t> processes_;
  std::map<int64_t, std::string> memory_names_;
  std::string pid_, tid_;  // of the row at hand
  NsightDamage damage_;
};

Result<NsightDamage> import_database(sqlite3* raw, TraceBuilder& builder) {
  const Database db = harden(raw);
  if (sqlite3_exec(raw, "SELECT count(*) FROM sqlite_master", nullptr, nullptr, nullptr) !=
      SQLITE_OK) {
    return Error{Code::kBadInput,
                 fmt::format("the SQLite database cannot be read: {}", sqlite3_errmsg(raw)),
                 "was the export interrupted? Run nsys export again"};
  }
  return NsightImporter(raw, builder).import();
}

}  // namespace

bool looks_like_sqlite(std::string_view head) {
  return head.starts_with(std::string_view("SQLite format 3\0", 16));
}

Result<NsightDamage> import_nsight_file(const std::string& path, TraceBuilder& builder) {
  // As a URI, so that SQLite leaves no journal beside a file that nobody writes.
  std::string uri = "file:";
  for (const char c : path) {
    if (c == '%' || c == '?' || c == '#') {
      uri += fmt::format("%{:02X}", static_cast<unsigned char>(c));
    } else {
      uri += c;
    }
  }
  uri += "?immutable=1";
  sqlite3* db = nullptr;
  const int state =
      sqlite3_open_v2(uri.c_str(), &db, SQLITE_OPEN_READONLY | SQLITE_OPEN_URI, nullptr);
  if (state != SQLITE_OK) {
    const Database closed(db);
    return Error{Code::kBadInput,
                 fmt::format("cannot open {}: {}", escape_terminal(path), sqlite3_errstr(state)),
                 ""};
  }
  return import_database(db, builder);
}

Result<NsightDamage> import_nsight(std::string_view bytes, TraceBuilder& builder) {
  sqlite3* db = nullptr;
  if (sqlite3_open_v2(":memory:", &db, SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE, nullptr) !=
      SQLITE_OK) {
    const Database closed(db);
    return Error{Code::kFull, "no memory to open the database in", ""};
  }
  // Never written to: the flag says so, and the bytes stay the caller's.
  sqlite3_deserialize(db, "main", reinterpret_cast<unsigned char*>(const_cast<char*>(bytes.data())),
                      static_cast<sqlite3_int64>(bytes.size()),
                      static_cast<sqlite3_int64>(bytes.size()), SQLITE_DESERIALIZE_READONLY);
  return import_database(db, builder);
}

}  // namespace flatout::timeline
