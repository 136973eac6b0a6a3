#include "cache/data_set.h"

#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <set>

#include "base/fs.h"
#include "base/page_residency.h"
#include "base/page_size.h"

namespace flatout::cache {
namespace {

namespace stdfs = std::filesystem;

class Lister {
 public:
  void add_named(const std::string& path) {
    struct stat st {};
    if (::stat(path.c_str(), &st) != 0) {
      skip(path, fs::error_from_errno(errno, "cannot look at " + path).message);
    } else if (!S_ISDIR(st.st_mode) && !S_ISREG(st.st_mode)) {
      skip(path, path + " is no regular file");
    } else if (add(path, st)) {
      return;
    }
    out_.lacks_named = true;
  }
  Listed take() { return std::move(out_); }

 private:
  void skip(const std::string& path, std::string reason) {
    out_.skipped.push_back({path, std::move(reason)});
  }
  // False where it is a folder that cannot be opened.
  bool add(const std::string& path, const struct stat& st) {
    if (!S_ISDIR(st.st_mode) && !S_ISREG(st.st_mode)) return true;  // a pipe is no data
    // Of folders, too: links may lead in a circle.
    if (!seen_.emplace(st.st_dev, st.st_ino).second) return true;
    if (S_ISDIR(st.st_mode)) return add_folder(path);
    out_.files.push_back(path);
    return true;
  }
  bool add_folder(const std::string& path) {
    std::error_code error;
    std::vector<std::string> names;
    for (stdfs::directory_iterator it(path, error), end; !error && it != end; it.increment(error)) {
      names.push_back(it->path().string());
    }
    if (error) {
      skip(path, fs::error_from_errno(error.value(), "cannot open the folder " + path).message);
    }
    std::sort(names.begin(), names.end());
    for (const std::string& name : names) add_entry(name);
    return !error;
  }
  void add_entry(const std::string& path) {
    struct stat st {};
    if (::stat(path.c_str(), &st) == 0) {
      add(path, st);
      return;
    }
    const int failed = errno;
    // What went away meanwhile is no longer of the data set; a link that leads nowhere is.
    if (::lstat(path.c_str(), &st) != 0 && errno == ENOENT) return;
    const bool nowhere = S_ISLNK(st.st_mode) && failed == ENOENT;
    skip(path, nowhere ? path + " is a link that leads nowhere"
                       : fs::error_from_errno(failed, "cannot look at " + path).message);
  }

  Listed out_;
  std::set<std::pair<dev_t, ino_t>> seen_;
};

// The parts of the map that a file covers, what is cached of each summed up in bytes. `whole`: all
// of it is.
void draw(const QuietFile& file, bool whole, uint64_t begin, uint64_t part_bytes,
          std::vector<double>& map) {
  const uint64_t page = page_bytes();
  const uint64_t end = begin + file.bytes();
  for (uint64_t part = begin / part_bytes; part < map.size() && part * part_bytes < end; ++part) {
    const uint64_t from = std::max(begin, part * part_bytes) - begin;
    const uint64_t to = std::min(end, (part + 1) * part_bytes) - begin;
    if (whole) {
      map[part] += static_cast<double>(to - from);
      continue;
    }
    // Whole pages from the one that holds `from`; the next part begins with the next.
    const uint64_t first = (from + page - 1) / page * page;
    const uint64_t last = std::min(file.bytes(), (to + page - 1) / page * page);
    if (first >= last) continue;
    if (const auto got = cached_bytes(file, first, last - first)) {
      map[part] += static_cast<double>(got->cached);
    }
  }
}

}  // namespace

Listed list_files(const std::vector<std::string>& paths) {
  Lister lister;
  for (const std::string& path : paths) lister.add_named(path);
  return lister.take();
}

DataSet look_at(const std::vector<std::string>& files, size_t parts) {
  DataSet out;
  for (const std::string& path : files) {
    auto file = QuietFile::open(path);
    if (!file.ok()) {
      out.skipped.push_back({path, file.error().message});
      continue;
    }
    if (!file->may_know()) {
      out.skipped.push_back({path, "only its owner may know what is cached"});
      continue;
    }
    const auto got = cached_bytes(*file, 0, file->bytes());
    if (!got) {
      out.skipped.push_back({path, "the kernel does not say what is cached"});
      continue;
    }
    out.files.push_back({path, file->bytes(), got->cached, got->dirty});
    out.bytes += file->bytes();
    out.cached_bytes += got->cached;
    out.dirty_bytes += got->dirty.value_or(0);
  }
  if (parts == 0 || out.bytes == 0) return out;
  out.map.assign(std::clamp<uint64_t>(out.bytes / page_bytes(), 1, parts), 0);
  const uint64_t part_bytes = (out.bytes + out.map.size() - 1) / out.map.size();
  uint64_t begin = 0;
  for (const CachedFile& file : out.files) {
    if (file.cached_bytes > 0) {
      if (auto open = QuietFile::open(file.path); open.ok()) {
        draw(*open, file.cached_bytes == file.bytes, begin, part_bytes, out.map);
      }
    }
    begin += file.bytes;
  }
  for (size_t i = 0; i < out.map.size(); ++i) {
    const uint64_t from = i * part_bytes, to = std::min(out.bytes, (i + 1) * part_bytes);
    out.map[i] = to > from ? std::min(1.0, out.map[i] / static_cast<double>(to - from)) : 0;
  }
  return out;
}

}  // namespace flatout::cache
