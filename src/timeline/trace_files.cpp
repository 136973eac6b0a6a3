#include "timeline/trace_files.h"

#include <algorithm>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <string_view>

#include "base/text.h"

namespace flatout::timeline {
namespace {

namespace fs = std::filesystem;
using Names = std::vector<std::string>;

constexpr std::string_view kProfiles = "plugins/profile";  // a folder for each recording in it

// Names of what is in `folder`, last ones first: those of recordings are times.
Names names_in(const fs::path& folder, bool folders) {
  Names names;
  std::error_code failed;
  for (fs::directory_iterator it(folder, failed), end; !failed && it != end; it.increment(failed)) {
    std::error_code unknown;
    const bool is_folder = it->is_directory(unknown);
    if (is_folder == folders && (is_folder || it->is_regular_file(unknown)))
      names.push_back(it->path().filename().string());
  }
  std::sort(names.begin(), names.end(), std::greater<>());
  return names;
}

struct Written {
  std::string_view by;  // the process or host
  std::string_view at;  // later ones are longer, or come later
};

// PyTorch's HOST_PID.TIME.pt.trace.json.gz; HOST.xplane.pb, and HOST.trace.json.gz beside it, which
// holds less.
std::optional<Written> written(std::string_view name) {
  if (name.ends_with(".xplane.pb")) return Written{name.substr(0, name.size() - 10), "x"};
  if (name.ends_with(".gz")) name.remove_suffix(3);
  if (!name.ends_with(".trace.json")) return std::nullopt;
  name.remove_suffix(11);
  if (!name.ends_with(".pt")) return Written{name, ""};
  name.remove_suffix(3);
  const size_t dot = name.rfind('.');
  if (dot == name.npos) return Written{name, ""};
  return Written{name.substr(0, dot), name.substr(dot + 1)};
}

bool is_later(std::string_view a, std::string_view b) {
  return a.size() != b.size() ? a.size() > b.size() : a > b;
}

// The newest trace of each process or host that lies in `folder` itself.
Names traces_in(const fs::path& folder) {
  const Names names = names_in(folder, false);
  struct Newest {
    std::string_view at;
    const std::string* name;
  };
  std::map<std::string_view, Newest> newest;
  for (const std::string& name : names) {
    const auto one = written(name);
    if (!one) continue;
    const auto [it, added] = newest.try_emplace(one->by, Newest{one->at, &name});
    if (!added && is_later(one->at, it->second.at)) it->second = {one->at, &name};
  }
  Names out;
  for (const auto& [by, one] : newest) out.push_back((folder / *one.name).string());
  return out;
}

// Of a folder with a folder for each recording, the last that holds traces.
Names last_recording(const fs::path& folder) {
  for (const std::string& name : names_in(folder, true)) {
    if (Names files = traces_in(folder / name); !files.empty()) return files;
  }
  return {};
}

Names profiler_files(const fs::path& folder) {
  if (Names files = traces_in(folder); !files.empty()) return files;
  if (folder.filename() == "profile") return last_recording(folder);
  if (Names files = last_recording(folder / kProfiles); !files.empty()) return files;
  // Keras has folders for training and validation, of which one was recorded last.
  Names last;
  const auto recording = [](const Names& files) {
    return fs::path(files.front()).parent_path().filename();
  };
  for (const std::string& name : names_in(folder, true)) {
    Names files = last_recording(folder / name / kProfiles);
    if (!files.empty() && (last.empty() || recording(last) < recording(files)))
      last = std::move(files);
  }
  return last;
}

}  // namespace

Result<std::vector<std::string>> trace_files(const std::string& path) {
  std::error_code failed;
  if (!fs::is_directory(path, failed)) return std::vector{path};
  const fs::path own = fs::path(path) / kRunTrace;
  if (fs::exists(own, failed)) return std::vector{own.string()};
  fs::path folder = fs::path(path).lexically_normal();
  if (!folder.has_filename()) folder = folder.parent_path();
  Names files = profiler_files(folder);
  if (!files.empty()) return files;
  return Error{Code::kBadInput, "no trace is in the folder " + escape_terminal(path),
               "name the trace files themselves"};
}

}  // namespace flatout::timeline
