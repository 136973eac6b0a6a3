#include "heap/requests.h"

#include <fmt/format.h>

#include <filesystem>
#include <optional>

#include "base/fs.h"
#include "base/text.h"

namespace flatout::heap {
namespace {

constexpr size_t kMostHead = 4096;             // of a file, to see whose it is
constexpr size_t kMostFile = size_t{4} << 30;  // bytes; a longer one stays as it is
constexpr std::string_view kMark = "{\"op\":\"mark\"}\n";

/// The number behind the last `key` of a line.
std::optional<uint64_t> number_behind(std::string_view line, std::string_view key) {
  const size_t at = line.rfind(key);
  if (at == std::string_view::npos) return std::nullopt;
  const std::string_view rest = line.substr(at + key.size());
  return parse_number<uint64_t>(rest.substr(0, rest.find_first_not_of("0123456789")));
}

/// The name of that process's file in `folder`; "" if there is none.
std::string file_of(const fs::Root& folder, const std::string& first, int32_t pid) {
  for (const std::string& name : folder.list("").value_or({})) {
    if (name != first && !name.starts_with(first + ".")) continue;
    const auto head = folder.read(name, kMostHead);
    if (!head.ok()) continue;
    if (number_behind(head->substr(0, head->find('\n')), "\"pid\":") == static_cast<uint64_t>(pid))
      return name;
  }
  return "";
}

}  // namespace

Status mark_steps(const std::string& path, int32_t pid, const std::vector<uint64_t>& begins) {
  const std::filesystem::path asked(path);
  const std::string folder = asked.has_parent_path() ? asked.parent_path().string() : ".";
  const std::string file = file_of(fs::Root(folder), asked.filename().string(), pid);
  if (file.empty()) {
    return Error{Code::kNotFound, fmt::format("pid {} recorded no request", pid), ""};
  }
  FLATOUT_TRY(const std::string text, fs::Root(folder).read(file, kMostFile));
  if (text.size() == kMostFile) {
    return Error{Code::kUnsupported, fmt::format("the recording of pid {} is too long", pid), ""};
  }
  if (text.find(kMark) != std::string::npos) return {};
  std::string out;
  out.reserve(text.size() + begins.size() * kMark.size());
  size_t step = 0;
  std::string_view rest = text, line;
  while (next_line(rest, line)) {
    if (const auto at = number_behind(line, "\"t\":")) {
      for (; step < begins.size() && begins[step] <= *at; ++step) out += kMark;
    }
    out.append(line);
    out += '\n';
  }
  return fs::write_atomically(folder + "/" + file, out);
}

}  // namespace flatout::heap
