#include "feed/source.h"

#include <fmt/format.h>
#include <glob.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <filesystem>
#include <optional>

#include "base/fs.h"
#include "base/lower.h"
#include "base/text.h"
#include "feed/file_list.h"
#include "feed/files.h"
#include "feed/pack.h"
#include "feed/picture.h"
#include "feed/tar_source.h"
#include "feed/tfrecord_source.h"

namespace flatout::feed {
namespace {

constexpr uint64_t kLongestList = 1ULL << 30;

enum class Kind : uint8_t { kOther, kPicture, kTar, kTfrecord, kPack, kList };

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

struct Listing {
  std::vector<std::string> files;    // names relative to the folder
  std::vector<std::string> folders;  // in it, not below
};

bool is_hidden(std::string_view name) {
  return name.starts_with('.') || name.find("/.") != std::string_view::npos;
}

Result<Listing> list(const std::string& path) {
  namespace sfs = std::filesystem;
  Listing out;
  std::error_code error;
  sfs::recursive_directory_iterator walk(path, sfs::directory_options::follow_directory_symlink,
                                         error);
  const size_t prefix = path.size() + (path.ends_with('/') ? 0 : 1);
  for (; !error && walk != sfs::recursive_directory_iterator(); walk.increment(error)) {
    std::string name = walk->path().native().substr(prefix);
    std::error_code ignored;  // a link that leads nowhere is no folder
    if (!walk->is_directory(ignored)) {
      out.files.push_back(std::move(name));
      continue;
    }
    // Links may lead in circles.
    if (walk.depth() > 64) walk.disable_recursion_pending();
    if (walk.depth() == 0) out.folders.push_back(std::move(name));
  }
  if (error) return fs::error_from_errno(error.value(), "cannot list " + escape_terminal(path));
  std::sort(out.files.begin(), out.files.end());
  std::sort(out.folders.begin(), out.folders.end());
  return out;
}

std::string_view class_of(std::string_view file) {
  const size_t slash = file.find('/');
  return slash == std::string_view::npos ? std::string_view() : file.substr(0, slash);
}

// Folder by folder: those of one folder lie together, as os.walk() gives them, sorted.
bool is_before(const std::string& a, const std::string& b) {
  const auto parts = [](std::string_view name) {
    const size_t slash = name.rfind('/');
    return slash == std::string_view::npos
               ? std::pair(std::string_view(), name)
               : std::pair(name.substr(0, slash), name.substr(slash + 1));
  };
  const std::string_view a_class = class_of(a), b_class = class_of(b);
  return a_class != b_class ? a_class < b_class : parts(a) < parts(b);
}

// The classes, samples and order of torchvision's ImageFolder: each folder is a class, hidden ones
// and empty ones too; files beside them belong to none. Where only those are pictures, but for
// hidden folders as notebooks leave them, they are all there is, and all of one class.
std::unique_ptr<Source> open_pictures(const std::string& path, const Listing& listing) {
  std::vector<std::string> in_classes, beside;
  bool only_hidden = true;
  for (const std::string& file : listing.files) {
    if (!has_picture_name(file)) continue;
    if (class_of(file).empty()) {
      if (!is_hidden(file)) beside.push_back(file);
      continue;
    }
    only_hidden = only_hidden && is_hidden(class_of(file));
    in_classes.push_back(file);
  }
  auto source = std::make_unique<FileList>(path);
  if (only_hidden && !beside.empty()) {
    for (const std::string& file : beside) source->add(file, 0);
    return source;
  }
  if (in_classes.empty()) return nullptr;
  std::sort(in_classes.begin(), in_classes.end(), is_before);
  std::vector<bool> any(listing.folders.size());
  for (const std::string& file : in_classes) {
    const auto found =
        std::lower_bound(listing.folders.begin(), listing.folders.end(), class_of(file));
    const auto label = found - listing.folders.begin();
    any[static_cast<size_t>(label)] = true;
    source->add(file, label);
  }
  std::vector<std::string> empty;
  for (size_t i = 0; i < any.size(); ++i) {
    if (!any[i]) empty.push_back(listing.folders[i]);
  }
  source->set_classes(listing.folders);
  source->set_empty_classes(std::move(empty));
  return source;
}

// A file that is no archive and no list: null where it is no picture either.
Result<std::unique_ptr<Source>> open_picture(const std::string& path) {
  if (!has_picture_name(path)) {
    std::vector<uint8_t> start;
    FLATOUT_TRY_STATUS(read_file(path, 1 << 16, start));
    const Outcome outcome = PictureDecoder().open(start).outcome;
    if (outcome == Outcome::kNotAnImage || outcome == Outcome::kEmpty)
      return std::unique_ptr<Source>();
  }
  auto source = std::make_unique<FileList>(path);
  source->add("", 0);
  return std::unique_ptr<Source>(std::move(source));
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

// Null where there are none.
Result<std::unique_ptr<Source>> open_shards_in(const std::string& path, const Listing& listing) {
  for (const Kind kind : {Kind::kTar, Kind::kTfrecord, Kind::kPack}) {
    std::vector<std::string> found;
    for (const std::string& file : listing.files) {
      if (!is_hidden(file) && kind_of_name(file) == kind)
        found.push_back(fmt::format("{}/{}", path, file));
    }
    if (!found.empty()) return open_shards(kind, std::move(found));
  }
  return std::unique_ptr<Source>();
}

// The names that braces and wildcards stand for; itself where it is there as it is, or stands for
// nothing.
Result<std::vector<std::string>> names_of(const std::string& path) {
  std::error_code ignored;
  if (std::filesystem::exists(path, ignored)) return std::vector<std::string>{path};
  FLATOUT_TRY(const std::vector<std::string> patterns, expand_braces(path));
  std::vector<std::string> names;
  for (const std::string& pattern : patterns) {
    glob_t found{};
    const bool wild = pattern.find_first_of("*?[") != std::string::npos &&
                      !std::filesystem::exists(pattern, ignored);
    if (wild && ::glob(pattern.c_str(), 0, nullptr, &found) == 0) {
      names.insert(names.end(), found.gl_pathv, found.gl_pathv + found.gl_pathc);
    } else {
      names.push_back(pattern);
    }
    ::globfree(&found);
  }
  return names;
}

Result<std::unique_ptr<Source>> open_several(std::vector<std::string> paths) {
  const Kind kind = kind_of_name(paths[0]);
  for (const std::string& path : paths) {
    if (kind == Kind::kOther || kind == Kind::kPicture || kind == Kind::kList ||
        kind_of_name(path) != kind)
      return Error{Code::kBadInput,
                   escape_terminal(path) + " is no shard of one kind with the others",
                   "several names are of .tar or of TFRecord files; a list (.csv, .json) has "
                   "pictures from anywhere"};
  }
  return open_shards(kind, std::move(paths));
}

// What a compressed archive is called, or "": reading anywhere in one would mean to unpack all.
std::string_view compression_of(std::span<const uint8_t> start) {
  const std::string_view text(reinterpret_cast<const char*>(start.data()), start.size());
  if (text.starts_with("\x1F\x8B")) return "gzip";
  if (text.starts_with("BZh")) return "bzip2";
  if (text.starts_with("\x28\xB5\x2F\xFD")) return "zstd";
  if (text.starts_with(std::string_view("\xFD\x37zXZ\0", 6))) return "xz";
  if (text.starts_with("PK\3\4")) return "zip";
  return {};
}

}  // namespace

bool has_picture_name(std::string_view name) {
  constexpr std::string_view kEndings[] = {".jpg", ".jpeg", ".png",  ".ppm", ".bmp",
                                           ".pgm", ".tif",  ".tiff", ".webp"};
  const size_t dot = name.rfind('.');
  const std::string ending = lower(name.substr(dot == std::string_view::npos ? 0 : dot));
  return std::find(std::begin(kEndings), std::end(kEndings), ending) != std::end(kEndings);
}

std::optional<int64_t> label_number(std::string_view text) {
  if (const auto whole = parse_number<int64_t>(text)) return whole;
  constexpr double kExact = 1LL << 53;
  const auto number = parse_number<double>(text);
  if (!number || std::abs(*number) > kExact || *number != std::trunc(*number)) return std::nullopt;
  return static_cast<int64_t>(*number);
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

namespace {

// Errors: kBadInput, what the file was packed with; those of reading it.
Status refuse_compressed(const std::string& path) {
  std::vector<uint8_t> start;
  FLATOUT_TRY_STATUS(read_file(path, 16, start));
  const std::string_view packer = compression_of(start);
  if (packer.empty()) return {};
  return Error{Code::kBadInput,
               fmt::format("{} is compressed ({}), so nothing can be read from its middle",
                           escape_terminal(path), packer),
               "unpack it; a .tar with the pictures as they are is hardly larger"};
}

}  // namespace

Result<std::vector<std::string>> list_files(const std::string& path) {
  namespace sfs = std::filesystem;
  std::error_code error;
  if (sfs::is_regular_file(path, error)) return std::vector<std::string>{""};
  if (error == std::errc::no_such_file_or_directory || !sfs::exists(path, error))
    return Error{Code::kNotFound, "there is no " + escape_terminal(path),
                 "name a folder of pictures or a picture"};
  FLATOUT_TRY(Listing listing, list(path));
  std::erase_if(listing.files, [](const std::string& file) { return is_hidden(file); });
  return std::move(listing.files);
}

Result<Verdict> unreadable(const Error& error) {
  if (error.code == Code::kFull) return error;
  return Verdict{Outcome::kUnreadable, error.message};
}

Result<std::vector<std::string>> list_tars(const std::string& path) {
  std::error_code ignored;
  FLATOUT_TRY(std::vector<std::string> paths, names_of(path));
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

Result<std::unique_ptr<Source>> open_named_list(const std::string& path) {
  if (kind_of_name(path) == Kind::kList) return open_list(path);
  FLATOUT_TRY_STATUS(refuse_compressed(path));
  return std::unique_ptr<Source>();
}

Result<std::unique_ptr<Source>> open_source(const std::string& path) {
  std::error_code ignored;
  FLATOUT_TRY(const std::vector<std::string> paths, names_of(path));
  const std::string& one = paths[0];
  std::unique_ptr<Source> source;
  if (paths.size() > 1) {
    FLATOUT_TRY(source, open_several(paths));
  } else if (std::filesystem::is_directory(one, ignored)) {
    FLATOUT_TRY(const Listing listing, list(one));
    source = open_pictures(one, listing);
    if (!source) {
      FLATOUT_TRY(source, open_shards_in(one, listing));
    }
  } else {
    FLATOUT_TRY_STATUS(list_files(one));  // says what is in the way
    FLATOUT_TRY(source, open_archive(one));
    if (!source && kind_of_name(one) == Kind::kList) {
      FLATOUT_TRY(source, open_list(one));
    }
    if (!source) {
      FLATOUT_TRY(source, open_picture(one));
    }
    if (!source) FLATOUT_TRY_STATUS(refuse_compressed(one));
    if (!source)
      return Error{Code::kBadInput,
                   escape_terminal(one) + " is no picture, no list of them and no archive",
                   "expected are .jpg, .png, .webp, .txt, .csv, .json, .tar, .tfrecord or .fpack "
                   "files, or a folder of pictures"};
  }
  if (!source || source->count() == 0) {
    if (source && !source->damage().empty()) {
      const BadSample& bad = source->damage()[0];
      return Error{
          Code::kBadInput,
          fmt::format("nothing can be read of {}: {} ({})", escape_terminal(bad.file),
                      outcome_name(bad.verdict.outcome), escape_terminal(bad.verdict.detail)),
          bad.verdict.outcome == Outcome::kUnsupported ? "" : "fetch it again"};
    }
    return Error{Code::kBadInput, "no pictures in " + escape_terminal(path),
                 "expected are .jpg, .png and .webp files, in one folder for each class, or .tar, "
                 ".tfrecord or .fpack files"};
  }
  return source;
}

}  // namespace flatout::feed
