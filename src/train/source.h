// Where samples come from. A source may be read by several threads at once.
#pragma once

#include <memory>
#include <string>

#include "base/result.h"
#include "train/images.h"

namespace flatout::train {

class Source {
 public:
  virtual ~Source() = default;
  /// The sample number `index`, of size kSide. Errors: of the files, kBadInput.
  virtual Result<Image> read(size_t index) const = 0;
};

/// Encoded images in memory. Each is decoded and scaled down at every read: the larger `side`, the
/// more that costs. Of `count` samples at most `distinct` differ.
std::unique_ptr<Source> memory_source(uint64_t seed, size_t count, int side, size_t distinct);

/// As memory_source() of size kSide, kept by a store that answers each request after 2.5 ms,
/// however many it has at a time.
Result<std::unique_ptr<Source>> distant_source(uint64_t seed, size_t count);

/// As memory_source() of size kSide, but one sample in two hundred is a huge picture (3072 x 3072).
std::unique_ptr<Source> source_with_huge_samples(uint64_t seed, size_t count);

/// Every sample a folder of 768 tiny files, each looked up, opened and read by itself.
Result<std::unique_ptr<Source>> small_files_source(uint64_t seed, size_t count,
                                                   const std::string& folder);

/// All samples in one archive without an index: each read scans it from the start, header by
/// header, as a reader of a tar file does.
Result<std::unique_ptr<Source>> archive_source(uint64_t seed, size_t count,
                                               const std::string& folder);

/// A file per sample, read through a process of its own (`sh -c 'cat FILE'`).
Result<std::unique_ptr<Source>> command_source(uint64_t seed, size_t count,
                                               const std::string& folder);

/// A folder that is removed with all it holds when this goes out of scope.
class TemporaryFolder {
 public:
  /// Under `parent`, else $TMPDIR, else /tmp.
  static Result<std::unique_ptr<TemporaryFolder>> make(const std::string& parent);
  ~TemporaryFolder();
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  const std::string& path() const { return path_; }

 private:
  explicit TemporaryFolder(std::string path) : path_(std::move(path)) {}
  std::string path_;
};

}  // namespace flatout::train
