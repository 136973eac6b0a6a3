#include "feed/file_list.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>

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

std::string_view unquoted(std::string_view word) {
  if (word.size() >= 2 && word.front() == '"' && word.back() == '"')
    word = word.substr(1, word.size() - 2);
  return word;
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
            std::string(unquoted(trim(line.substr(at + 1))))};
  }
  // A name may have blanks; what follows the last one is a label if the name before it is a
  // picture's.
  const size_t at = line.rfind(' ');
  if (at != std::string_view::npos && has_picture_name(trim(line.substr(0, at))))
    return {std::string(trim(line.substr(0, at))), std::string(trim(line.substr(at + 1)))};
  return {std::string(line), std::nullopt};
}

std::optional<std::string> json_label(const Json& json) {
  if (json.is_string()) return json.get<std::string>();
  if (json.is_number_integer()) return json.dump();
  return std::nullopt;
}

std::optional<Row> json_row(const Json& json) {
  if (json.is_string()) return Row{json.get<std::string>(), std::nullopt};
  if (json.is_array() && json.size() == 2 && json[0].is_string())
    return Row{json[0].get<std::string>(), json_label(json[1])};
  if (!json.is_object()) return std::nullopt;
  Row row;
  for (const char* key : {"file", "file_name", "path", "image"}) {
    const auto found = json.find(key);
    if (found == json.end() || !found->is_string()) continue;
    row.name = found->get<std::string>();
    break;
  }
  for (const char* key : {"label", "class"}) {
    const auto found = json.find(key);
    if (found != json.end()) row.label = json_label(*found);
    if (row.label) break;
  }
  if (row.name.empty()) return std::nullopt;
  return row;
}

Result<std::vector<Row>> json_rows(std::string_view text) {
  std::vector<Row> rows;
  const Json whole = Json::parse(text, nullptr, false);
  const bool lines = whole.is_discarded();
  if (!lines && whole.is_object() && !json_row(whole)) {
    for (const auto& [name, label] : whole.items()) rows.push_back({name, json_label(label)});
    return rows;
  }
  size_t number = 0;
  const auto take = [&](const Json& json) -> Status {
    ++number;
    auto row = json_row(json);
    if (!row) return bad_line(number, "no name of a file");
    rows.push_back(std::move(*row));
    return {};
  };
  if (!lines && !whole.is_array()) {
    FLATOUT_TRY_STATUS(take(whole));
    return rows;
  }
  if (!lines) {
    for (const Json& each : whole) FLATOUT_TRY_STATUS(take(each));
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

std::vector<Row> text_rows(std::string_view text) {
  std::vector<Row> rows;
  std::string_view line;
  while (next_line(text, line)) {
    while (!line.empty() && (line.back() == '\r' || line.back() == ' ')) line.remove_suffix(1);
    if (!line.empty() && line.front() != '#') rows.push_back(text_row(line));
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
    rows = text_rows(text);
  }
  if (rows.empty())
    return Error{Code::kBadInput, "the list is empty",
                 "expected are a name and a label: cat.jpg,3"};
  std::map<std::string, int64_t> labels;
  bool numbers = true;
  bool any = false;
  for (const Row& row : rows) {
    if (!row.label) continue;
    any = true;
    const auto number = parse_number<int64_t>(*row.label);
    numbers = numbers && number && *number != FileList::kNoLabel;
    labels[*row.label] = number.value_or(0);
  }
  auto list = std::make_unique<FileList>(root);
  if (!numbers) {
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
