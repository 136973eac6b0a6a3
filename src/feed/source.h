// Where samples come from: a numbered set of pictures with labels, readable in any order by any
// thread.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "feed/outcome.h"

namespace flatout::feed {

/// What was read. Its memory is used again by the next.
struct Sample {
  std::vector<uint8_t> bytes;
  std::span<const uint8_t> picture;  // in `bytes`
  int64_t label = 0;
};

/// Where the bytes of a sample lie.
struct Extent {
  std::string path;
  uint64_t offset = 0;
  uint64_t bytes = UINT64_MAX;  // or to the file's end
};

class Source {
 public:
  virtual ~Source() = default;
  virtual uint64_t count() const = 0;
  /// For messages: the file, and where in it.
  virtual std::string name(uint64_t index) const = 0;
  /// Thread-safe. An Error is one of the machine (see unreadable()); what is wrong with the sample
  /// itself is in the verdict.
  virtual Result<Verdict> read(uint64_t index, Sample& out) const = 0;
  /// False where the sample does not lie in one file. Thread-safe and quick.
  virtual bool extent(uint64_t, Extent&) const { return false; }
  /// Names of the labels, where they have any; label i is classes()[i].
  virtual const std::vector<std::string>& classes() const = 0;
  /// Those that no sample has, where they are folders.
  virtual std::vector<std::string> empty_classes() const { return {}; }
  /// Archives that are damaged: what follows the damage is no sample.
  virtual const std::vector<BadSample>& damage() const = 0;
  /// The file of a seek index that was made with the data; "" where there is none.
  virtual std::string seek_index() const { return {}; }
};

/// Opens what `path` is: a folder of pictures (the classes, samples and order of torchvision's
/// ImageFolder; where only files beside the folders are pictures, all have label 0), a picture; a
/// list of them (file_list.h); a tar or WebDataset shard, a TFRecord file, a file of `feed pack`; a
/// folder of such, or a name with braces or wildcards: train-{000..146}.tar, train-*.tar. Errors:
/// kNotFound, kDenied, kBadInput (nothing in it, or it is nothing of these), kIo.
Result<std::unique_ptr<Source>> open_source(const std::string& path);

/// One file that is an archive, by its name or else its first bytes; null where it is none.
/// Errors: kNotFound, kDenied, kIo.
Result<std::unique_ptr<Source>> open_archive(const std::string& path);

/// The pictures that `path` lists; null where it is no list. Errors: kBadInput (of the list, or it
/// is compressed as a whole), kNotFound, kDenied, kIo.
Result<std::unique_ptr<Source>> open_named_list(const std::string& path);

/// The tar files that open_source would open. Errors: kNotFound, kBadInput (there are none).
Result<std::vector<std::string>> list_tars(const std::string& path);

/// All files below `path` (or itself), sorted, without hidden ones; names relative to it. What is
/// no folder is a file: a link that leads nowhere, a pipe.
Result<std::vector<std::string>> list_files(const std::string& path);

/// The verdict on what could not be read: kUnreadable; or the Error where nothing could be read
/// (kFull).
Result<Verdict> unreadable(const Error& error);

/// Reads a whole file of at most `limit` bytes; a longer one is cut at limit + 1.
Status read_file(const std::string& path, uint64_t limit, std::vector<uint8_t>& out);

/// torchvision's IMG_EXTENSIONS: an epoch has as many samples here as there. Those that are not
/// read here are `unsupported` samples, not left out.
bool has_picture_name(std::string_view name);

/// A label that is a number: 3, and 3.0 as spreadsheets write it.
std::optional<int64_t> label_number(std::string_view text);

/// "a{1,2}" and "a{08..11}" spelt out, several braces too; itself where there are none.
/// Errors: kBadInput for more than a million names.
Result<std::vector<std::string>> expand_braces(const std::string& pattern);

}  // namespace flatout::feed
