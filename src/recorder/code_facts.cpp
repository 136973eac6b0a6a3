#include "recorder/code_facts.h"

#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <cctype>
#include <deque>
#include <filesystem>

#include "base/bytes.h"
#include "base/clock.h"
#include "base/contains.h"
#include "base/text.h"
#include "model/source_files.h"
#include "recorder/launch.h"
#include "recorder/redact.h"

namespace flatout::recorder {
namespace {

namespace stdfs = std::filesystem;

// A project's modules, and not a whole disk where a script lies in the home folder.
constexpr size_t kMostFiles = 256, kMostBytes = 8 << 20, kMostEntries = 20'000;
constexpr size_t kMostOfAFile = 4 << 20;
constexpr int kMostLevels = 4;
constexpr Nanos kMostTime = std::chrono::milliseconds(100);
constexpr size_t kMostPackages = 512;

bool is_file(const std::string& path, int64_t* bytes = nullptr) {
  struct stat info;
  if (::stat(path.c_str(), &info) != 0 || !S_ISREG(info.st_mode)) return false;
  if (bytes != nullptr) *bytes = info.st_size;
  return true;
}

std::string folder_of(const std::string& path) { return path.substr(0, path.rfind('/')); }

/// Of Python itself, or installed by pip: told by its version.
bool is_others(std::string_view file) {
  return model::is_installed(file) || contains(file, "/lib/python3") ||
         contains(file, "/flatout/agent/");
}

struct Program {
  std::string file;    // "" if none was found
  std::string folder;  // where its own modules lie
};

/// `python -m pkg.train`: looked for where Python does.
Program find_module(const fs::Root& root, const JobFacts& job, const std::string& module) {
  std::string path = module;
  std::replace(path.begin(), path.end(), '.', '/');
  std::vector<std::string> places = {job.cwd};
  const std::string more = variable(job.environment, "PYTHONPATH");
  for (const std::string_view place : split(more, ':')) {
    if (place.starts_with('/')) places.emplace_back(place);
  }
  for (const std::string& place : places) {
    for (const char* end : {".py", "/__main__.py"}) {
      const std::string file = fmt::format("{}/{}{}", place, path, end);
      if (!is_file(root.full(file)) || is_others(file)) continue;
      const bool in_package = path.find('/') != std::string::npos || end[0] == '/';
      return {file, in_package ? place + "/" + path.substr(0, path.find('/')) : place};
    }
  }
  return {};
}

/// A module, or the first argument that is a Python file, or a file at all.
Program find_program(const fs::Root& root, const JobFacts& job) {
  Program first;
  for (size_t i = 1; i <= job.command.size(); ++i) {
    // Arguments before the program: `./train` itself is the code only where nothing else is.
    const std::string& word = i < job.command.size() ? job.command[i] : job.command[0];
    if (word == "-m" && i + 1 < job.command.size()) {
      if (Program module = find_module(root, job, job.command[i + 1]); !module.file.empty()) {
        return module;
      }
    }
    if (word.empty() || word[0] == '-') continue;
    // As Python names it in stacks.
    const std::string path =
        stdfs::path(word[0] == '/' ? word : job.cwd + "/" + word).lexically_normal().string();
    if (!is_file(root.full(path))) continue;
    if (path.ends_with(".py")) return {path, folder_of(path)};
    if (first.file.empty() && (i < job.command.size() || word.find('/') != std::string::npos)) {
      first.file = path;
    }
  }
  return first;
}

}  // namespace

void CodeFacts::tell_program(const JobFacts& job, model::Sink& sink) {
  if (job.cwd.empty() || job.command.empty()) return;
  const Program program = find_program(root_, job);
  if (program.file.empty()) return;
  sink.fact("code.file", redact_text(program.file));
  tell_file(program.file, program.file.substr(program.file.rfind('/') + 1), sink);
  if (!program.folder.empty()) tell_folder(program.folder, sink);
}

void CodeFacts::tell_folder(const std::string& folder, model::Sink& sink) {
  struct Place {
    std::string path, name;  // of a file: name below `folder`
    int level = 0;
  };
  std::deque<Place> places{{folder, "", 0}};  // nearest first
  const TimePoint end = MonotonicClock::now() + kMostTime;
  size_t entries = 0;
  while (!places.empty()) {
    const Place place = std::move(places.front());
    places.pop_front();
    std::vector<std::string> files;
    std::error_code error;
    if (place.level > 0 && root_.exists(place.path + "/pyvenv.cfg")) continue;
    for (stdfs::directory_iterator it(root_.full(place.path), error), none; !error && it != none;
         it.increment(error)) {
      if (++entries > kMostEntries || MonotonicClock::now() > end) return;
      const std::string name = it->path().filename().string();
      if (name.starts_with('.') || name == "__pycache__" || name.ends_with("-packages")) continue;
      std::error_code gone;
      if (name.ends_with(".py")) {
        files.push_back(name);
      } else if (place.level < kMostLevels && it->is_directory(gone) && !it->is_symlink(gone)) {
        places.push_back({place.path + "/" + name, place.name + name + "/", place.level + 1});
      }
    }
    std::sort(files.begin(), files.end());
    for (const std::string& name : files) {
      tell_file(place.path + "/" + name, place.name + name, sink);
    }
  }
}

void CodeFacts::tell_file(const std::string& path, const std::string& name, model::Sink& sink) {
  if (files_ >= kMostFiles || bytes_ >= kMostBytes || !told_.insert(path).second) return;
  int64_t size = 0;
  if (!is_file(root_.full(path), &size)) return;
  const auto text = root_.read(path, kMostOfAFile);
  if (!text.ok()) return;
  ++files_;
  bytes_ += text->size();
  sink.fact("code.hash." + redact_text(name), fmt::format("{:08x}, {} bytes", crc32(*text), size));
}

void CodeFacts::tell_seen(const model::Run& run, model::Sink& sink) {
  for (const model::Frame& frame : run.frames) {
    if (frame.kind != model::FrameKind::kPython) continue;
    const std::string file(run.string(frame.file));
    for (const std::string_view folder : {"/site-packages/", "/dist-packages/"}) {
      const size_t at = file.find(folder);
      if (at != std::string::npos) tell_packages(file.substr(0, at + folder.size() - 1), sink);
    }
    if (file.starts_with('/') && file.ends_with(".py") && !is_others(file)) {
      tell_file(file, file, sink);
    }
  }
}

// "numpy-2.1.0.dist-info": pip names the folder by what it holds.
void CodeFacts::tell_packages(const std::string& folder, model::Sink& sink) {
  if (!told_.insert(folder).second) return;
  std::error_code error;
  size_t entries = 0;
  for (stdfs::directory_iterator it(root_.full(folder), error), none; !error && it != none;
       it.increment(error)) {
    if (++entries > kMostEntries || packages_ >= kMostPackages) return;
    std::string name = it->path().filename().string();
    if (!name.ends_with(".dist-info")) continue;
    name.erase(name.rfind('.'));
    const size_t dash = name.find('-');
    if (dash == std::string::npos || dash == 0) continue;
    const std::string version = name.substr(dash + 1);
    name.erase(dash);
    std::transform(name.begin(), name.end(), name.begin(), [](unsigned char c) {
      return c == '_' ? '-' : static_cast<char>(std::tolower(c));
    });
    sink.fact("package." + redact_text(name), redact_text(version));
    ++packages_;
  }
}

}  // namespace flatout::recorder
