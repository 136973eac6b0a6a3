#include "feed/source.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <string_view>

#include "base/fs.h"
#include "base/text.h"
#include "feed/picture.h"

namespace flatout::feed {
namespace {

// torchvision's IMG_EXTENSIONS: an epoch has as many samples here as there. Those that are not read
// here are `unsupported` samples, not left out.
bool has_picture_name(std::string_view name) {
  constexpr std::string_view kEndings[] = {".jpg", ".jpeg", ".png",  ".ppm", ".bmp",
                                           ".pgm", ".tif",  ".tiff", ".webp"};
  std::string lower(name.substr(name.rfind('.') == std::string_view::npos ? 0 : name.rfind('.')));
  std::transform(lower.begin(), lower.end(), lower.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return std::find(std::begin(kEndings), std::end(kEndings), lower) != std::end(kEndings);
}

class FileDescriptor {
 public:
  explicit FileDescriptor(int fd) : fd_(fd) {}
  ~FileDescriptor() {
    if (fd_ >= 0) ::close(fd_);
  }
  FileDescriptor(const FileDescriptor&) = delete;
  FileDescriptor& operator=(const FileDescriptor&) = delete;
  int get() const { return fd_; }

 private:
  int fd_;
};

class Folder : public Source {
 public:
  uint64_t count() const override { return begin_.size(); }
  int64_t label(uint64_t index) const override { return labels_[index]; }
  std::string name(uint64_t index) const override {
    const size_t end = index + 1 < begin_.size() ? begin_[index + 1] : names_.size();
    const std::string relative = names_.substr(begin_[index], end - begin_[index]);
    return relative.empty() ? root_ : root_ + "/" + relative;
  }
  Result<Verdict> read(uint64_t index, std::vector<uint8_t>& out) const override {
    FLATOUT_TRY_STATUS(read_file(name(index), Limits().file_bytes, out));
    return Verdict{};
  }
  const std::vector<std::string>& classes() const override { return classes_; }

  void set_root(std::string root) { root_ = std::move(root); }
  void set_classes(std::vector<std::string> classes) { classes_ = std::move(classes); }
  void add(std::string_view relative, int64_t label) {
    begin_.push_back(names_.size());
    names_ += relative;
    labels_.push_back(static_cast<int32_t>(label));
  }

 private:
  std::string root_;
  std::string names_;  // one after the other: a million names in one block
  std::vector<uint64_t> begin_;
  std::vector<int32_t> labels_;
  std::vector<std::string> classes_;
};

}  // namespace

Status read_file(const std::string& path, uint64_t limit, std::vector<uint8_t>& out) {
  const FileDescriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  struct stat status {};
  if (file.get() < 0 || ::fstat(file.get(), &status) != 0)
    return fs::error_from_errno(errno, "cannot read " + escape_terminal(path));
  const uint64_t size =
      std::min(static_cast<uint64_t>(std::max<off_t>(status.st_size, 0)), limit + 1);
  out.resize(size);
  uint64_t done = 0;
  while (done < size) {
    const ssize_t got = ::read(file.get(), out.data() + done, size - done);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return fs::error_from_errno(errno, "cannot read " + escape_terminal(path));
    if (got == 0) break;
    done += static_cast<uint64_t>(got);
  }
  out.resize(done);
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

Result<std::unique_ptr<Source>> open_source(const std::string& path) {
  FLATOUT_TRY(std::vector<std::string> files, list_files(path));
  if (files.size() > 1 || (files.size() == 1 && !files[0].empty()))
    std::erase_if(files, [](const std::string& file) { return !has_picture_name(file); });
  if (files.empty())
    return Error{Code::kBadInput, "no pictures in " + escape_terminal(path),
                 "expected are .jpg, .png and .webp files, in one folder for each class"};
  const auto folder_of = [](const std::string& file) {
    const size_t slash = file.find('/');
    return slash == std::string::npos ? std::string() : file.substr(0, slash);
  };
  std::vector<std::string> classes;
  for (const std::string& file : files) {
    std::string folder = folder_of(file);
    if (!folder.empty() && (classes.empty() || classes.back() != folder))
      classes.push_back(std::move(folder));
  }
  std::sort(classes.begin(), classes.end());
  classes.erase(std::unique(classes.begin(), classes.end()), classes.end());
  auto source = std::make_unique<Folder>();
  source->set_root(path);
  // As ImageFolder: by class, then by name; files beside the class folders belong to none.
  if (!classes.empty())
    std::erase_if(files, [&](const std::string& file) { return folder_of(file).empty(); });
  const auto label_of = [&](const std::string& file) {
    return std::lower_bound(classes.begin(), classes.end(), folder_of(file)) - classes.begin();
  };
  std::stable_sort(files.begin(), files.end(), [&](const std::string& a, const std::string& b) {
    return label_of(a) < label_of(b);
  });
  for (const std::string& file : files) source->add(file, classes.empty() ? 0 : label_of(file));
  source->set_classes(std::move(classes));
  return std::unique_ptr<Source>(std::move(source));
}

}  // namespace flatout::feed
