#include "feed/tar_source.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "base/lower.h"
#include "base/text.h"
#include "feed/picture.h"
#include "feed/tar_index.h"

namespace flatout::feed {
namespace {

constexpr uint64_t kBlock = 512;
constexpr uint64_t kLongestText = 1 << 16;  // of a pax header, a GNU long name, a label: bytes
constexpr uint64_t kLongestJson = 1 << 24;  // which may hold more than the label
constexpr size_t kJsonsTried = 100;         // until one has a label

using Block = std::array<uint8_t, kBlock>;

std::string text_field(const Block& block, size_t at, size_t most) {
  const auto* first = reinterpret_cast<const char*>(block.data() + at);
  return {first, strnlen(first, most)};
}

// Octal, or, with the first bit set, binary with the highest byte first (GNU).
bool number_field(const Block& block, size_t at, size_t length, uint64_t& out) {
  out = 0;
  if ((block[at] & 0x80) != 0) {
    for (size_t i = at; i < at + length; ++i) {
      if (out >> 55 != 0) return false;
      out = out << 8 | (i == at ? block[i] & 0x7FU : block[i]);
    }
    return true;
  }
  bool digits = false;
  for (size_t i = at; i < at + length; ++i) {
    const uint8_t c = block[i];
    if (c == ' ' && !digits) continue;
    if (c == ' ' || c == 0) break;
    if (c < '0' || c > '7' || out >> 60 != 0) return false;
    digits = true;
    out = out << 3 | (c - '0');
  }
  return true;
}

bool checksum_is_right(const Block& block) {
  uint64_t told = 0;
  if (!number_field(block, 148, 8, told)) return false;
  uint64_t plain = 0;
  int64_t with_signs = 0;  // as some old programs summed
  for (size_t i = 0; i < kBlock; ++i) {
    const uint8_t byte = i >= 148 && i < 156 ? ' ' : block[i];
    plain += byte;
    with_signs += static_cast<int8_t>(byte);
  }
  return told == plain || static_cast<int64_t>(told) == with_signs;
}

constexpr uint64_t kNotTold = UINT64_MAX;

// "26 path=some/name\n": the two keywords that matter.
void read_pax(std::string_view text, std::string& name, uint64_t& bytes) {
  while (!text.empty()) {
    const size_t blank = text.find(' ');
    if (blank == std::string_view::npos) return;
    const auto length = parse_number<uint64_t>(text.substr(0, blank));
    if (!length || *length <= blank + 1 || *length > text.size()) return;
    std::string_view record = text.substr(blank + 1, *length - blank - 2);
    text.remove_prefix(*length);
    if (record.starts_with("path=")) name = record.substr(5);
    if (record.starts_with("size="))
      bytes = parse_number<uint64_t>(record.substr(5)).value_or(kNotTold);
  }
}

enum class LabelKind : uint8_t { kNone, kNumber, kText, kJson };

// What stands for a label, as text: "" if that is neither a number nor a word.
std::optional<std::string> json_label(std::string_view text) {
  const auto json = nlohmann::json::parse(text, nullptr, false);
  for (const char* key : {"label", "cls", "class"}) {
    if (!json.is_object()) break;
    const auto found = json.find(key);
    if (found == json.end() || found->is_null()) continue;
    if (found->is_string()) return found->get<std::string>();
    return found->is_number() ? found->dump() : std::string();
  }
  return std::nullopt;
}

// Of a member's ending: "jpg" has none, "depth.png" one.
std::ptrdiff_t dots(std::string_view name) {
  name.remove_prefix(name.rfind('/') + 1);
  return std::count(name.begin(), name.end(), '.');
}

std::string_view as_text(const std::vector<uint8_t>& bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

class TarSource : public Source {
 public:
  explicit TarSource(Shards shards) : shards_(std::move(shards)) {}
  Status index();

  uint64_t count() const override { return rows_.size(); }
  std::string name(uint64_t index) const override {
    return shards_.path(rows_[index].shard) + "/" + member_name(index);
  }
  Result<Verdict> read(uint64_t index, Sample& out) const override;
  bool extent(uint64_t index, Extent& out) const override {
    out = {shards_.path(rows_[index].shard), rows_[index].offset, rows_[index].bytes};
    return true;
  }
  const std::vector<std::string>& classes() const override { return classes_; }
  const std::vector<BadSample>& damage() const override { return damage_; }

 private:
  struct Row {
    uint64_t offset = 0;        // of the picture; it has none if it is 0
    uint64_t label_offset = 0;  // with LabelKind::kNumber the label itself
    uint64_t name = 0;          // where it begins in names_
    uint32_t bytes = 0;
    uint32_t label_bytes = 0;
    uint32_t shard = 0;
    LabelKind label = LabelKind::kNone;
    bool further = false;  // a picture behind the first of its name
  };
  const char* member_name(uint64_t index) const { return names_.c_str() + rows_[index].name; }
  void add(size_t shard, const TarMember& member);
  void join(size_t first);
  Status drop_json_without_labels();
  void keep_plainest_pictures();
  Result<std::string> label_text(const Row& row, std::vector<uint8_t>& bytes) const;
  Status label_by_word();
  void label_by_folder();

  Shards shards_;
  std::vector<Row> rows_;
  std::string names_;  // each ends with a zero
  std::string key_;    // of the sample that members are being added to,
  size_t sample_ = 0;  // and its row
  bool has_labels_ = false;
  std::vector<std::string> classes_;
  std::vector<BadSample> damage_;
};

void TarSource::add(size_t shard, const TarMember& member) {
  const size_t slash = member.name.rfind('/');
  const size_t begin = slash == std::string::npos ? 0 : slash + 1;
  const size_t dot = member.name.find('.', begin);
  if (dot == std::string::npos || dot == begin) return;  // no ending, or hidden
  const bool picture = has_picture_name(member.name);
  const std::string ending = lower(member.name.substr(member.name.rfind('.') + 1));
  LabelKind label = LabelKind::kNone;
  if (ending == "cls" || ending == "label") label = LabelKind::kText;
  if (ending == "json") label = LabelKind::kJson;
  if (!picture && label == LabelKind::kNone) return;
  std::string key = std::to_string(shard) + "/" + member.name.substr(0, dot);
  const bool further = key == key_ && picture && rows_[sample_].offset != 0;
  if (key != key_ || further) {
    if (!further) sample_ = rows_.size();
    Row row;
    row.name = names_.size();
    row.shard = static_cast<uint32_t>(shard);
    row.further = further;
    rows_.push_back(row);
  }
  key_ = std::move(key);
  if (picture) {
    Row& row = rows_.back();
    row.offset = member.offset;
    row.bytes = static_cast<uint32_t>(std::min(member.bytes, Limits().file_bytes + 1));
    names_.resize(row.name);
    names_ += member.name + '\0';
    return;
  }
  Row& row = rows_[sample_];
  if (row.offset == 0) {
    names_.resize(row.name);
    names_ += member.name.substr(0, dot) + '\0';
  }
  if (row.label != LabelKind::kText) {  // which goes before JSON
    row.label = label;
    row.label_offset = member.offset;
    const uint64_t most = label == LabelKind::kJson ? kLongestJson : kLongestText;
    row.label_bytes = static_cast<uint32_t>(std::min(member.bytes, most));
  }
}

// Labels that do not lie beside their pictures, as where all .cls members follow all pictures, go
// to the pictures of their names. `first`: the shard's first row.
void TarSource::join(size_t first) {
  std::unordered_map<std::string_view, size_t> labels;  // rows without a picture, by key
  for (size_t i = first; i < rows_.size(); ++i) {
    if (rows_[i].offset != 0 || rows_[i].label == LabelKind::kNone) continue;
    const auto [at, is_new] = labels.emplace(member_name(i), i);
    if (!is_new && rows_[at->second].label == LabelKind::kJson) at->second = i;
  }
  if (labels.empty()) return;
  std::unordered_set<std::string_view> joined;
  for (size_t i = first; i < rows_.size(); ++i) {
    Row& row = rows_[i];
    if (row.offset == 0 || row.further || row.label == LabelKind::kText) continue;
    const std::string_view name = member_name(i);
    const auto found = labels.find(name.substr(0, name.find('.', name.rfind('/') + 1)));
    if (found == labels.end()) continue;
    const Row& label = rows_[found->second];
    joined.insert(found->first);
    if (row.label == LabelKind::kJson && label.label == LabelKind::kJson) continue;
    row.label = label.label;
    row.label_offset = label.label_offset;
    row.label_bytes = label.label_bytes;
  }
  const auto begin = rows_.begin() + static_cast<std::ptrdiff_t>(first);
  rows_.erase(std::remove_if(begin, rows_.end(),
                             [&](const Row& row) {
                               return row.offset == 0 && joined.contains(&names_[row.name]);
                             }),
              rows_.end());
}

Status TarSource::index() {
  for (size_t shard = 0; shard < shards_.count(); ++shard) {
    FLATOUT_TRY(const DataFile file, shards_.file(shard));
    const size_t first = rows_.size();
    const auto each = [&](const TarMember& member) { add(shard, member); };
    // The table beside it where there is one that fits; else the archive itself tells.
    auto walked = walk_tar_index(shards_.path(shard), file, each);
    if (!walked.ok()) walked = walk_tar(file, each);
    FLATOUT_TRY(Verdict verdict, std::move(walked));
    key_.clear();
    join(first);
    if (!verdict.ok()) damage_.push_back({shards_.path(shard), std::move(verdict)});
  }
  FLATOUT_TRY_STATUS(drop_json_without_labels());
  has_labels_ = std::any_of(rows_.begin(), rows_.end(),
                            [](const Row& row) { return row.label != LabelKind::kNone; });
  // Without labels each picture is a sample: 2.1.jpg, 2.2.jpg.
  if (!has_labels_) {
    label_by_folder();
    return {};
  }
  keep_plainest_pictures();
  return label_by_word();
}

// JSON may be captions and the like: then it tells nothing.
Status TarSource::drop_json_without_labels() {
  std::vector<uint8_t> bytes;
  size_t tried = 0;
  for (const Row& row : rows_) {
    if (row.label != LabelKind::kJson) continue;
    FLATOUT_TRY_STATUS(shards_.read(row.shard, row.label_offset, row.label_bytes, bytes));
    if (json_label(as_text(bytes))) return {};
    if (++tried == kJsonsTried) break;
  }
  if (tried == 0) return {};
  for (Row& row : rows_) {
    if (row.label == LabelKind::kJson) row.label = LabelKind::kNone;
  }
  std::erase_if(rows_,
                [](const Row& row) { return row.offset == 0 && row.label == LabelKind::kNone; });
  return {};
}

// Of labelled samples other pictures are masks and the like: x.jpg goes before x.depth.png,
// whichever comes first.
void TarSource::keep_plainest_pictures() {
  size_t sample = 0;
  for (size_t i = 0; i < rows_.size(); ++i) {
    if (!rows_[i].further) {
      sample = i;
    } else if (dots(member_name(i)) < dots(member_name(sample))) {
      rows_[sample].offset = rows_[i].offset;
      rows_[sample].bytes = rows_[i].bytes;
      rows_[sample].name = rows_[i].name;
    }
  }
  std::erase_if(rows_, [](const Row& row) { return row.further; });
}

// "" where there is none.
Result<std::string> TarSource::label_text(const Row& row, std::vector<uint8_t>& bytes) const {
  FLATOUT_TRY_STATUS(shards_.read(row.shard, row.label_offset, row.label_bytes, bytes));
  if (row.label == LabelKind::kText) return std::string(trim(as_text(bytes)));
  return json_label(as_text(bytes)).value_or("");
}

// Words are classes where the first label is one: all are read, once.
Status TarSource::label_by_word() {
  std::vector<uint8_t> bytes;
  std::map<std::string, uint64_t> labels;
  std::vector<std::pair<size_t, decltype(labels)::iterator>> found;
  for (size_t i = 0; i < rows_.size(); ++i) {
    if (rows_[i].label == LabelKind::kNone) continue;
    FLATOUT_TRY(std::string text, label_text(rows_[i], bytes));
    if (text.empty()) continue;  // read() says so
    if (found.empty() && parse_number<double>(text)) return {};
    found.emplace_back(i, labels.emplace(std::move(text), 0).first);
  }
  for (auto& [word, label] : labels) {
    label = classes_.size();
    classes_.push_back(word);
  }
  for (const auto& [i, label] : found) {
    rows_[i].label = LabelKind::kNumber;
    rows_[i].label_offset = label->second;
  }
  return {};
}

void TarSource::label_by_folder() {
  std::map<std::string, uint64_t> labels;
  const auto folder_of = [&](size_t i) {
    const std::string_view name = member_name(i);
    const size_t slash = name.rfind('/');
    if (slash == std::string_view::npos) return std::string();
    const size_t before = name.rfind('/', slash - 1);
    const size_t first = slash == 0 || before == std::string_view::npos ? 0 : before + 1;
    return std::string(name.substr(first, slash - first));
  };
  for (size_t i = 0; i < rows_.size(); ++i) labels.emplace(folder_of(i), 0);
  if (labels.size() < 2) return;
  for (auto& [folder, label] : labels) {
    label = classes_.size();
    classes_.push_back(folder);
  }
  for (size_t i = 0; i < rows_.size(); ++i) {
    rows_[i].label = LabelKind::kNumber;
    rows_[i].label_offset = labels[folder_of(i)];
  }
}

Result<Verdict> TarSource::read(uint64_t index, Sample& out) const {
  const Row& row = rows_[index];
  out.picture = {};
  out.label = 0;
  if (row.offset == 0) return Verdict{Outcome::kMissingField, "the sample has no picture"};
  if (row.label == LabelKind::kNone && has_labels_)
    return Verdict{Outcome::kMissingField, "the sample has no label"};
  if (row.label == LabelKind::kNumber) {
    out.label = static_cast<int64_t>(row.label_offset);
  } else if (row.label != LabelKind::kNone) {
    FLATOUT_TRY(const std::string text, label_text(row, out.bytes));
    if (text.empty()) return Verdict{Outcome::kMissingField, "the sample has no label"};
    const std::optional<int64_t> label = label_number(text);
    if (!label) return Verdict{Outcome::kMissingField, "the sample's label is no number"};
    out.label = *label;
  }
  FLATOUT_TRY_STATUS(shards_.read(row.shard, row.offset, row.bytes, out.bytes));
  out.picture = out.bytes;
  return Verdict{};
}

}  // namespace

Result<Verdict> walk_tar(const DataFile& file, const std::function<void(const TarMember&)>& each) {
  if (file.bytes() == 0) return Verdict{Outcome::kEmpty, "no bytes"};
  uint64_t at = 0;
  std::string long_name;  // for the next member
  uint64_t long_bytes = kNotTold;
  const auto where = [&](std::string_view what) { return fmt::format("{} at byte {}", what, at); };
  for (;;) {
    Block block{};
    FLATOUT_TRY(const size_t got, file.read(at, block));
    if (got < kBlock)
      return Verdict{Outcome::kTruncated,
                     where(got == 0 ? "the archive ends without its end mark" : "a header is cut")};
    if (std::all_of(block.begin(), block.end(), [](uint8_t byte) { return byte == 0; })) break;
    uint64_t bytes = 0;
    if (!checksum_is_right(block) || !number_field(block, 124, 12, bytes))
      return Verdict{Outcome::kCorrupt, where("no valid header")};
    const char type = static_cast<char>(block[156]);
    const bool regular = type == '0' || type == '\0' || type == '7';
    if (regular && long_bytes != kNotTold) bytes = long_bytes;
    // Links, devices and folders have no content, whatever is told.
    if (type >= '1' && type <= '6') bytes = 0;
    const uint64_t first = at + kBlock;
    const uint64_t there = std::min(bytes, file.bytes() - std::min(first, file.bytes()));
    if (type == 'L' || type == 'x') {
      std::vector<uint8_t> text(std::min(there, kLongestText));
      FLATOUT_TRY(const size_t read, file.read(first, text));
      const std::string_view words(reinterpret_cast<const char*>(text.data()), read);
      if (type == 'L') {
        long_name = words.substr(0, words.find('\0'));
      } else {
        read_pax(words, long_name, long_bytes);
      }
    } else {
      if (regular) {
        std::string name = text_field(block, 0, 100);
        const std::string prefix =
            std::memcmp(block.data() + 257, "ustar\0", 6) == 0 ? text_field(block, 345, 155) : "";
        if (!prefix.empty()) name = fmt::format("{}/{}", prefix, name);
        if (!long_name.empty()) name = long_name;
        each({std::move(name), first, there});
      }
      long_name.clear();
      long_bytes = kNotTold;
    }
    if (there < bytes) return Verdict{Outcome::kTruncated, where("a member is cut")};
    at = first + (bytes + kBlock - 1) / kBlock * kBlock;
  }
  return Verdict{};
}

Result<std::unique_ptr<Source>> open_tars(std::vector<std::string> paths) {
  FLATOUT_TRY(Shards shards, Shards::open(std::move(paths)));
  auto source = std::make_unique<TarSource>(std::move(shards));
  FLATOUT_TRY_STATUS(source->index());
  return std::unique_ptr<Source>(std::move(source));
}

}  // namespace flatout::feed
