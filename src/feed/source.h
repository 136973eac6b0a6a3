// Where samples come from: a numbered set of pictures with labels, readable in any order by any
// thread.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/result.h"
#include "feed/outcome.h"

namespace flatout::feed {

class Source {
 public:
  virtual ~Source() = default;
  virtual uint64_t count() const = 0;
  virtual int64_t label(uint64_t index) const = 0;
  /// For messages: the file, and where in it.
  virtual std::string name(uint64_t index) const = 0;
  /// The picture's bytes, into `out`. Thread-safe. An Error is one of the machine (a file that is
  /// gone); what is wrong with the sample itself is in the verdict.
  virtual Result<Verdict> read(uint64_t index, std::vector<uint8_t>& out) const = 0;
  /// Names of the labels, where they have any; label i is classes()[i].
  virtual const std::vector<std::string>& classes() const = 0;
};

/// Opens what `path` is: a folder of pictures (one folder for each class, sorted, as torchvision's
/// ImageFolder; without such folders all have label 0), or one picture.
/// Errors: kNotFound, kDenied, kBadInput (nothing in it), kIo.
Result<std::unique_ptr<Source>> open_source(const std::string& path);

/// All files below `path` (or itself), sorted, without hidden ones; names relative to it.
Result<std::vector<std::string>> list_files(const std::string& path);

/// Reads a whole file of at most `limit` bytes; a longer one is cut at limit + 1.
Status read_file(const std::string& path, uint64_t limit, std::vector<uint8_t>& out);

}  // namespace flatout::feed
