#include "feed/source.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <optional>

#include "base/fs.h"
#include "base/text.h"
#include "feed/file_list.h"
#include "feed/files.h"
#include "feed/pack.h"
#include "feed/tar_source.h"
#include "feed/tfrecord_source.h"

namespace flatout::feed {
namespace {

constexpr uint64_t kLongestList = 1ULL << 30;

enum class Kind : uint8_t { kOther, kPicture, kTar, kTfrecord, kPack, kList };

std::string lower(std::string_view text) {
  std::string out(text);
  std::transform(out.begin(), out.end(), out.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return out;
}

// "train-00003-of-01024", as TensorFlow's data sets name their shards.
bool is_numbered_shard(std::string_view name) {
  const size_t of = name.rfind("-of-");
  const auto digits = [](std::string_view s) {
    return !s.empty() &&
           std::all_of(s.begin(), s.end(), [](char c) { return c >= '0' && c <= '9'; });
  };
  if (of == std::string_view::npos || of < 5) return false;
  return digits(name.substr(of + 4)) && digits(name.substr(of - 5, 5));
}

Kind kind_of_name(std::string_view path) {
  if (has_picture_name(path)) return Kind::kPicture;
  const std::string name = lower(path.substr(path.rfind('/') + 1));
  if (name.ends_with(".tar")) return Kind::kTar;
  if (name.find(".tfrec") != std::string::npos || is_numbered_shard(name)) return Kind::kTfrecord;
  if (name.ends_with(".fpack")) return Kind::kPack;
  for (const std::string_view ending : {".txt", ".lst", ".csv", ".tsv", ".json", ".jsonl"}) {
    if (name.ends_with(ending)) return Kind::kList;
  }
  return Kind::kOther;
}

Result<Kind> kind_of_content(const std::string& path) {
  FLATOUT_TRY(const DataFile file, DataFile::open(path));
  std::array<uint8_t, 512> start{};
  FLATOUT_TRY(const size_t got, file.read(0, start));
  const std::string_view text(reinterpret_cast<const char*>(start.data()), got);
  if (text.starts_with(kPackMagic)) return Kind::kPack;
  if (got == start.size() && text.substr(257, 5) == "ustar") return Kind::kTar;
  if (got > 12) {
    const uint32_t masked = masked_crc32c(std::span(start).first(8));
    if (std::equal(start.begin() + 8, start.begin() + 12,
                   reinterpret_cast<const uint8_t*>(&masked)))
      return Kind::kTfrecord;
  }
  return Kind::kOther;
}

std::string folder_of(const std::string& path) {
  const size_t slash = path.rfind('/');
  if (slash == std::string::npos) return ".";
  return slash == 0 ? "/" : path.substr(0, slash);
}

Result<std::unique_ptr<Source>> open_list(const std::string& path) {
  std::vector<uint8_t> bytes;
  FLATOUT_TRY_STATUS(read_file(path, kLongestList, bytes));
  auto list =
      parse_list({reinterpret_cast<const char*>(bytes.data()), bytes.size()}, folder_of(path));
  if (list.ok()) return list;
  return Error{list.error().code, escape_terminal(path) + ": " + list.error().message,
               list.error().hint};
}

// As torchvision's ImageFolder: by class, then by name; files beside the class folders belong to
// none.
std::unique_ptr<Source> open_folder(const std::string& path, std::vector<std::string> files) {
  const auto class_of = [](const std::string& file) {
    const size_t slash = file.find('/');
    return slash == std::string::npos ? std::string() : file.substr(0, slash);
  };
  std::vector<std::string> classes;
  for (const std::string& file : files) {
    std::string name = class_of(file);
    if (!name.empty() && (classes.empty() || classes.back() != name))
      classes.push_back(std::move(name));
  }
  std::sort(classes.begin(), classes.end());
  classes.erase(std::unique(classes.begin(), classes.end()), classes.end());
  if (!classes.empty())
    std::erase_if(files, [&](const std::string& file) { return class_of(file).empty(); });
  const auto label_of = [&](const std::string& file) {
    return std::lower_bound(classes.begin(), classes.end(), class_of(file)) - classes.begin();
  };
  std::stable_sort(files.begin(), files.end(), [&](const std::string& a, const std::string& b) {
    return label_of(a) < label_of(b);
  });
  auto source = std::make_unique<FileList>(path);
  for (const std::string& file : files) source->add(file, classes.empty() ? 0 : label_of(file));
  source->set_classes(std::move(classes));
  return source;
}

// Of one kind, or null where the kind is no archive's.
Result<std::unique_ptr<Source>> open_shards(Kind kind, std::vector<std::string> paths) {
  if (kind == Kind::kTar) return open_tars(std::move(paths));
  if (kind == Kind::kTfrecord) return open_tfrecords(std::move(paths));
  if (kind == Kind::kPack && paths.size() == 1) return open_pack(paths[0]);
  if (kind == Kind::kPack)
    return Error{Code::kBadInput, fmt::format("{} packed files", paths.size()),
                 "name one, or pack their data into one"};
  return std::unique_ptr<Source>();
}

}  // namespace

bool has_picture_name(std::string_view name) {
  constexpr std::string_view kEndings[] = {".jpg", ".jpeg", ".png",  ".ppm", ".bmp",
                                           ".pgm", ".tif",  ".tiff", ".webp"};
  const size_t dot = name.rfind('.');
  const std::string ending = lower(name.substr(dot == std::string_view::npos ? 0 : dot));
  return std::find(std::begin(kEndings), std::end(kEndings), ending) != std::end(kEndings);
}

Result<std::vector<std::string>> expand_braces(const std::string& pattern) {
  constexpr size_t kMost = 1'000'000;
  const size_t open = pattern.find('{');
  const size_t close = pattern.find('}', open == std::string::npos ? 0 : open);
  if (open == std::string::npos || close == std::string::npos)
    return std::vector<std::string>{pattern};
  const std::string_view inside = std::string_view(pattern).substr(open + 1, close - open - 1);
  std::vector<std::string> choices;
  const size_t dots = inside.find("..");
  const auto first = parse_number<uint64_t>(inside.substr(0, dots));
  const auto last = dots == std::string_view::npos
                        ? std::nullopt
                        : parse_number<uint64_t>(inside.substr(dots + 2));
  if (first && last && *first <= *last && *last - *first < kMost) {
    for (uint64_t i = *first; i <= *last; ++i) choices.push_back(fmt::format("{:0{}}", i, dots));
  } else {
    for (const std::string_view each : split(inside, ',')) choices.emplace_back(each);
  }
  FLATOUT_TRY(const std::vector<std::string> tails, expand_braces(pattern.substr(close + 1)));
  if (tails.size() > kMost / choices.size())
    return Error{Code::kBadInput, escape_terminal(pattern) + " stands for over a million names",
                 "name the folder"};
  std::vector<std::string> out;
  for (const std::string& choice : choices) {
    for (const std::string& tail : tails) {
      std::string& name = out.emplace_back(pattern, 0, open);
      name += choice;
      name += tail;
    }
  }
  return out;
}

Status read_file(const std::string& path, uint64_t limit, std::vector<uint8_t>& out) {
  FLATOUT_TRY(const DataFile file, DataFile::open(path));
  out.resize(std::min(file.bytes(), limit + 1));
  FLATOUT_TRY(const size_t got, file.read(0, out));
  out.resize(got);
  return {};
}

Result<std::vector<std::string>> list_files(const std::string& path) {
  namespace sfs = std::filesystem;
  std::error_code error;
  if (sfs::is_regular_file(path, error)) return std::vector<std::string>{""};
  if (error == std::errc::no_such_file_or_directory || !sfs::exists(path, error))
    return Error{Code::kNotFound, "there is no " + escape_terminal(path),
                 "name a folder of pictures or a picture"};
  std::vector<std::string> found;
  sfs::recursive_directory_iterator walk(path, sfs::directory_options::follow_directory_symlink,
                                         error);
  const size_t prefix = path.size() + (path.ends_with('/') ? 0 : 1);
  for (; !error && walk != sfs::recursive_directory_iterator(); walk.increment(error)) {
    const bool hidden = walk->path().filename().native().starts_with('.');
    std::error_code ignored;  // a link that leads nowhere is no file
    if (hidden && walk->is_directory(ignored)) walk.disable_recursion_pending();
    // Links may lead in circles.
    if (walk.depth() > 64) walk.disable_recursion_pending();
    if (!hidden && walk->is_regular_file(ignored))
      found.push_back(walk->path().native().substr(prefix));
  }
  if (error) return fs::error_from_errno(error.value(), "cannot list " + escape_terminal(path));
  std::sort(found.begin(), found.end());
  return found;
}

Result<std::vector<std::string>> list_tars(const std::string& path) {
  std::error_code ignored;
  std::vector<std::string> paths{path};
  if (!std::filesystem::exists(path, ignored)) {
    FLATOUT_TRY(paths, expand_braces(path));
  }
  if (paths.size() == 1 && std::filesystem::is_directory(path, ignored)) {
    FLATOUT_TRY(paths, list_files(path));
    std::erase_if(paths, [](const std::string& file) { return kind_of_name(file) != Kind::kTar; });
    for (std::string& file : paths) file.insert(0, path + "/");
  }
  if (!paths.empty()) return paths;
  return Error{Code::kBadInput, "no .tar files in " + escape_terminal(path),
               "name a tar file, a folder of them, or train-{000..146}.tar"};
}

Result<std::unique_ptr<Source>> open_archive(const std::string& path) {
  Kind kind = kind_of_name(path);
  if (kind == Kind::kOther) {
    FLATOUT_TRY(kind, kind_of_content(path));
  }
  return open_shards(kind, {path});
}

Result<std::unique_ptr<Source>> open_source(const std::string& path) {
  std::error_code ignored;
  std::vector<std::string> paths{path};
  if (!std::filesystem::exists(path, ignored)) {
    FLATOUT_TRY(paths, expand_braces(path));
  }
  const std::string& one = paths[0];
  std::unique_ptr<Source> source;
  if (paths.size() > 1) {
    FLATOUT_TRY(source, open_shards(kind_of_name(paths[0]), paths));
  } else if (std::filesystem::is_directory(one, ignored)) {
    FLATOUT_TRY(std::vector<std::string> files, list_files(one));
    for (const Kind kind : {Kind::kPicture, Kind::kTar, Kind::kTfrecord, Kind::kPack}) {
      std::vector<std::string> found;
      std::copy_if(files.begin(), files.end(), std::back_inserter(found),
                   [&](const std::string& file) { return kind_of_name(file) == kind; });
      if (found.empty()) continue;
      if (kind == Kind::kPicture) {
        source = open_folder(one, std::move(found));
      } else {
        for (std::string& file : found) file.insert(0, one + "/");
        FLATOUT_TRY(source, open_shards(kind, std::move(found)));
      }
      break;
    }
  } else {
    FLATOUT_TRY(std::vector<std::string> itself, list_files(one));
    FLATOUT_TRY(source, open_archive(one));
    if (!source && kind_of_name(one) == Kind::kList) {
      FLATOUT_TRY(source, open_list(one));
    }
    if (!source) source = open_folder(one, std::move(itself));
  }
  if (!source || source->count() == 0) {
    if (source && !source->damage().empty()) {
      const BadSample& bad = source->damage()[0];
      return Error{
          Code::kBadInput,
          fmt::format("nothing can be read of {}: {} ({})", escape_terminal(bad.file),
                      outcome_name(bad.verdict.outcome), escape_terminal(bad.verdict.detail)),
          "fetch it again"};
    }
    return Error{Code::kBadInput, "no pictures in " + escape_terminal(path),
                 "expected are .jpg, .png and .webp files, in one folder for each class, or .tar, "
                 ".tfrecord or .fpack files"};
  }
  return source;
}

}  // namespace flatout::feed
