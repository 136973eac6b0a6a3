#include "feed/file_list.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "base/text.h"
#include "feed/files.h"
#include "feed/picture.h"

namespace flatout::feed {
namespace {

using Json = nlohmann::ordered_json;

// A name and its label: none, a number or a word.
struct Row {
  std::string name;
  std::optional<std::string> label;
};

Error bad_line(size_t line, std::string_view what) {
  return Error{Code::kBadInput, fmt::format("line {}: {}", line, what),
               "expected are a name and a label: cat.jpg,3"};
}

constexpr std::string_view kNameKeys[] = {"file",      "file_name", "filename", "path",
                                          "file_path", "filepath",  "image",    "image_path",
                                          "img",       "img_path"};
constexpr std::string_view kLabelKeys[] = {"label",    "class",    "target",
                                           "category", "label_id", "class_id"};

std::string_view unquoted(std::string_view word) {
  if (word.size() >= 2 && word.front() == '"' && word.back() == '"')
    word = word.substr(1, word.size() - 2);
  return word;
}

// A label that is there: an empty one is none.
std::optional<std::string> label_of(std::string_view word) {
  word = trim(word);
  return word.empty() ? std::nullopt : std::optional(std::string(word));
}

// The columns of a line; within quotes a separator is none.
std::vector<std::string_view> cells_of(std::string_view line, char separator) {
  std::vector<std::string_view> cells;
  size_t begin = 0;
  bool quoted = false;
  for (size_t i = 0; i <= line.size(); ++i) {
    if (i < line.size() && line[i] == '"') quoted = !quoted;
    if (i < line.size() && (quoted || line[i] != separator)) continue;
    cells.push_back(unquoted(trim(line.substr(begin, i - begin))));
    begin = i + 1;
  }
  return cells;
}

// im2rec: number, label, name, divided by tabs.
std::optional<Row> im2rec_row(std::string_view line) {
  const auto columns = split(line, '\t');
  if (columns.size() != 3 || !parse_number<uint64_t>(columns[0])) return std::nullopt;
  const auto label = parse_number<double>(columns[1]);
  if (!label) return std::nullopt;
  return Row{std::string(columns[2]), fmt::format("{:.0f}", *label)};
}

Row text_row(std::string_view line) {
  if (const auto row = im2rec_row(line)) return *row;
  for (const char separator : {'\t', ','}) {
    const size_t at = line.rfind(separator);
    if (at == std::string_view::npos) continue;
    return {std::string(unquoted(trim(line.substr(0, at)))),
            label_of(unquoted(trim(line.substr(at + 1))))};
  }
  // A name may have blanks; what follows the last one is a label if the name before it is a
  // picture's.
  const size_t at = line.rfind(' ');
  if (at != std::string_view::npos && has_picture_name(trim(line.substr(0, at))))
    return {std::string(trim(line.substr(0, at))), std::string(trim(line.substr(at + 1)))};
  return {std::string(line), std::nullopt};
}

// What the heading's first names of `keys` stands over, or none of its columns.
template <size_t n>
std::optional<size_t> column_of(const std::vector<std::string_view>& heading,
                                const std::string_view (&keys)[n]) {
  for (const std::string_view key : keys) {
    const auto same = [&](std::string_view cell) {
      return std::equal(cell.begin(), cell.end(), key.begin(), key.end(),
                        [](unsigned char a, char b) { return std::tolower(a) == b; });
    };
    const auto found = std::find_if(heading.begin(), heading.end(), same);
    if (found != heading.end()) return static_cast<size_t>(found - heading.begin());
  }
  return std::nullopt;
}

// Where names and labels stand, as the list's first line tells.
struct Columns {
  char separator;
  size_t name;
  std::optional<size_t> label;
};

// None: the first line is no heading, or one that says nothing.
Result<std::optional<Columns>> columns_of(std::string_view first) {
  for (const char separator : {'\t', ',', ';'}) {
    const auto heading = cells_of(first, separator);
    if (heading.size() < 2) continue;
    const auto name = column_of(heading, kNameKeys);
    if (!name) break;
    auto label = column_of(heading, kLabelKeys);
    if (!label && heading.size() == 2) label = 1 - *name;
    if (!label)
      return Error{
          Code::kBadInput,
          fmt::format("line 1: none of the columns is the label: {}", escape_terminal(first)),
          "call that column label"};
    return std::optional(Columns{separator, *name, label});
  }
  return std::optional<Columns>();
}

// Of a value that is no label: false.
bool json_label(const Json& json, std::optional<std::string>& out) {
  if (json.is_null()) return true;
  if (json.is_string()) out = label_of(json.get_ref<const std::string&>());
  if (json.is_number()) out = json.dump();
  return json.is_string() || json.is_number();
}

template <size_t n>
Json::const_iterator find_any(const Json& json, const std::string_view (&keys)[n]) {
  for (const std::string_view key : keys) {
    const auto found = json.find(key);
    if (found != json.end()) return found;
  }
  return json.end();
}

Result<Row> json_row(const Json& json, size_t line) {
  Row row;
  const Json* label = nullptr;
  if (json.is_string()) {
    row.name = json.get<std::string>();
  } else if (json.is_array() && json.size() == 2 && json[0].is_string()) {
    row.name = json[0].get<std::string>();
    label = &json[1];
  } else if (json.is_object()) {
    const auto name = find_any(json, kNameKeys);
    if (name != json.end() && name->is_string()) row.name = name->get<std::string>();
    const auto found = find_any(json, kLabelKeys);
    if (found != json.end()) label = &*found;
  }
  if (row.name.empty()) return bad_line(line, "no name of a file");
  if (label != nullptr && !json_label(*label, row.label))
    return bad_line(line, "its label is no number and no word");
  return row;
}

Result<std::vector<Row>> json_rows(std::string_view text) {
  std::vector<Row> rows;
  const Json whole = Json::parse(text, nullptr, false);
  size_t number = 0;
  const auto take = [&](const Json& json) -> Status {
    FLATOUT_TRY(Row row, json_row(json, ++number));
    rows.push_back(std::move(row));
    return {};
  };
  if (whole.is_array()) {
    for (const Json& each : whole) FLATOUT_TRY_STATUS(take(each));
    return rows;
  }
  if (whole.is_object() && json_row(whole, 1).ok()) {
    FLATOUT_TRY_STATUS(take(whole));
    return rows;
  }
  if (whole.is_object()) {
    for (const auto& [name, label] : whole.items()) {
      Row row{name, std::nullopt};
      if (!json_label(label, row.label))
        return Error{Code::kBadInput,
                     fmt::format("the label of {} is no number and no word", escape_terminal(name)),
                     "expected are names of files and their labels: {\"cat.jpg\": 3}"};
      rows.push_back(std::move(row));
    }
    return rows;
  }
  std::string_view line;
  while (next_line(text, line)) {
    if (trim(line).empty()) continue;
    const Json json = Json::parse(line, nullptr, false);
    if (json.is_discarded()) return bad_line(number + 1, "no JSON");
    FLATOUT_TRY_STATUS(take(json));
  }
  return rows;
}

Result<std::vector<Row>> text_rows(std::string_view text) {
  std::vector<Row> rows;
  std::string_view line;
  std::optional<Columns> columns;
  size_t number = 0;
  bool first = true;
  while (next_line(text, line)) {
    ++number;
    while (!line.empty() && (line.back() == '\r' || line.back() == ' ')) line.remove_suffix(1);
    if (line.empty() || line.front() == '#') continue;
    if (std::exchange(first, false)) {
      FLATOUT_TRY(columns, columns_of(line));
      if (columns) continue;
    }
    if (!columns) {
      rows.push_back(text_row(line));
      // A name may have commas: "a, b.jpg,3".
      const auto cells = cells_of(line, ',');
      if (cells.size() > 2 && has_picture_name(cells[0]) && !has_picture_name(rows.back().name))
        return bad_line(number,
                        fmt::format("{} columns, and no heading says what they are", cells.size()));
      continue;
    }
    const auto cells = cells_of(line, columns->separator);
    const size_t label = *columns->label;
    if (cells.size() <= std::max(columns->name, label) || cells[columns->name].empty())
      return bad_line(number, "fewer columns than the heading has");
    rows.push_back({std::string(cells[columns->name]), label_of(cells[label])});
  }
  // Columns with a heading: the first name is none of a picture, all others are.
  if (rows.size() > 1 && !has_picture_name(rows[0].name) && has_picture_name(rows[1].name))
    rows.erase(rows.begin());
  return rows;
}

}  // namespace

void FileList::add(std::string_view name, int64_t label) {
  begin_.push_back(names_.size());
  names_ += name;
  labels_.push_back(label);
}

std::string FileList::name(uint64_t index) const {
  const size_t end = index + 1 < begin_.size() ? begin_[index + 1] : names_.size();
  std::string name = names_.substr(begin_[index], end - begin_[index]);
  if (name.starts_with('/')) return name;
  return name.empty() ? root_ : root_ + "/" + name;
}

Result<Verdict> FileList::read(uint64_t index, Sample& out) const {
  out.picture = {};
  out.label = labels_[index];
  FLATOUT_TRY_STATUS(read_file(name(index), Limits().file_bytes, out.bytes));
  out.picture = out.bytes;
  if (out.label == kNoLabel) return Verdict{Outcome::kMissingField, "the list has no label for it"};
  return Verdict{};
}

bool FileList::extent(uint64_t index, Extent& out) const {
  out = {name(index)};
  return true;
}

Result<std::unique_ptr<Source>> parse_list(std::string_view text, const std::string& root) {
  if (text.starts_with("\xEF\xBB\xBF")) text.remove_prefix(3);  // spreadsheets begin UTF-8 so
  const std::string_view start = trim(text.substr(0, 4096));
  const bool json = start.starts_with('{') || start.starts_with('[');
  std::vector<Row> rows;
  if (json) {
    FLATOUT_TRY(rows, json_rows(text));
  } else {
    FLATOUT_TRY(rows, text_rows(text));
  }
  if (rows.empty())
    return Error{Code::kBadInput, "the list is empty",
                 "expected are a name and a label: cat.jpg,3"};
  std::map<std::string, int64_t> labels;
  bool whole = true, numbers = true;
  for (const Row& row : rows) {
    if (!row.label) continue;
    const auto number = label_number(*row.label);
    whole = whole && number && *number != FileList::kNoLabel;
    numbers = numbers && parse_number<double>(*row.label);
    labels[*row.label] = number.value_or(0);
  }
  const bool any = !labels.empty();
  if (numbers && !whole)
    return Error{Code::kBadInput, "there are labels with a fraction",
                 "labels are whole numbers, or words"};
  auto list = std::make_unique<FileList>(root);
  if (!whole) {
    std::vector<std::string> classes;
    for (auto& [word, label] : labels) {
      label = static_cast<int64_t>(classes.size());
      classes.push_back(word);
    }
    list->set_classes(std::move(classes));
  }
  for (const Row& row : rows)
    list->add(row.name, row.label ? labels[*row.label] : any ? FileList::kNoLabel : 0);
  return std::unique_ptr<Source>(std::move(list));
}

}  // namespace flatout::feed
