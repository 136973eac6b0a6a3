// Pictures that are files: of a folder, or of a list.
#pragma once

#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include "feed/source.h"

namespace flatout::feed {

class FileList : public Source {
 public:
  static constexpr int64_t kNoLabel = std::numeric_limits<int64_t>::min();

  /// Names that do not begin with '/' are below `root`.
  explicit FileList(std::string root) : root_(std::move(root)) {}
  void add(std::string_view name, int64_t label);
  void set_classes(std::vector<std::string> classes) { classes_ = std::move(classes); }
  void set_empty_classes(std::vector<std::string> empty) { empty_classes_ = std::move(empty); }

  uint64_t count() const override { return begin_.size(); }
  std::string name(uint64_t index) const override;
  Result<Verdict> read(uint64_t index, Sample& out) const override;
  bool extent(uint64_t index, Extent& out) const override;
  const std::vector<std::string>& classes() const override { return classes_; }
  std::vector<std::string> empty_classes() const override { return empty_classes_; }
  const std::vector<BadSample>& damage() const override { return damage_; }

 private:
  std::string root_;
  std::string names_;  // one after the other: a million names in one block
  std::vector<uint64_t> begin_;
  std::vector<int64_t> labels_;
  std::vector<std::string> classes_, empty_classes_;
  std::vector<BadSample> damage_;
};

/// The list that `text` is; its names are below `root`. Lines of a name and a label, divided by a
/// comma, a tab or a blank (a label is a number or a word; classes are the words, sorted; a line
/// may have none); more columns, also divided by semicolons, where a heading says which are the
/// name's ("file", "file_name", "path", "image" and the like) and the label's ("label", "class",
/// "target", "category"); im2rec's lists; JSON: {"name": label}, or an array or lines of [name,
/// label] or of objects with such keys. Errors: kBadInput, with the line.
Result<std::unique_ptr<Source>> parse_list(std::string_view text, const std::string& root);

}  // namespace flatout::feed
