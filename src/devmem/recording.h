// What a pool was asked for, as it happens: the latest requests in memory, and all of them in a
// file where one is named; both are the JSON lines that `flatout devmem replay` reads
// (json_lines.cpp).
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/result.h"
#include "devmem/driver.h"

namespace flatout::devmem {

/// A file of whole lines: what is in it can be read however the process ends.
class LineFile {
 public:
  /// `path`, or, where that is there already (another process of the job was first, or an older
  /// recording), `path`.PID, `path`.PID.2 and so on. Errors: as open(2).
  static Result<std::unique_ptr<LineFile>> create(const std::string& path);
  ~LineFile();
  LineFile(const LineFile&) = delete;
  LineFile& operator=(const LineFile&) = delete;

  void add(std::string_view line);
  void flush();
  const std::string& path() const { return path_; }

 private:
  LineFile(int fd, std::string path) : fd_(fd), path_(std::move(path)) {}
  int fd_;
  std::string path_, buffer_;
};

/// A block that is handed out, as a recording needs it.
struct RecordedBlock {
  uint64_t id = 0;  // counted from 1
  Bytes size = 0;
  Stream stream = 0;
  uint32_t site = 0;  // of Recording::site()
};

class Recording {
 public:
  /// `kept`: how many requests are kept in memory; the older ones go.
  Recording(std::string name, size_t kept) : name_(std::move(name)), kept_(kept) {}

  /// From now on each request goes to a file as well. Errors: those of LineFile.
  Status write_to(const std::string& path);
  void flush();

  /// The number of a place in the job's code; 0: not known.
  uint32_t site(std::string_view text);
  const std::string& site_text(uint32_t site) const { return sites_[site]; }

  void allocated(const RecordedBlock& block);
  void freed(const RecordedBlock& block);
  void refused(Bytes size, Stream stream, uint32_t site);

  /// What is kept, as a trace: first what was born before it, those of `live` and those whose end
  /// is kept.
  std::string lines(std::vector<RecordedBlock> live) const;

 private:
  enum class Kind : uint8_t { kAllocated, kFreed, kRefused };
  struct Entry {
    RecordedBlock block;
    int64_t at_ns;
    Kind kind;
  };
  void add(Kind kind, const RecordedBlock& block);
  std::string line(const Entry& entry, bool before = false) const;
  std::string head() const;

  std::string name_;
  size_t kept_;
  std::vector<Entry> ring_;
  size_t oldest_ = 0;
  std::vector<std::string> sites_ = {""};
  std::unordered_map<std::string, uint32_t> numbers_;
  std::unique_ptr<LineFile> file_;
};

}  // namespace flatout::devmem
