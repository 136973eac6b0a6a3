#include "train/source.h"

#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <vector>

#include "base/fs.h"
#include "base/text.h"

namespace flatout::train {
namespace {

class MemorySource : public Source {
 public:
  MemorySource(std::vector<std::string> blobs, size_t every, std::vector<std::string> rare)
      : blobs_(std::move(blobs)), every_(every), rare_(std::move(rare)) {}

  Result<Image> read(size_t index) const override {
    const bool is_rare = every_ > 0 && index % every_ == every_ / 2;
    const std::vector<std::string>& from = is_rare ? rare_ : blobs_;
    FLATOUT_TRY(const Image image, decode_image(from[index % from.size()]));
    return scale_down(image, kSide);
  }

 private:
  std::vector<std::string> blobs_;
  size_t every_;  // each so many samples one is taken from rare_; 0: none
  std::vector<std::string> rare_;
};

std::vector<std::string> encoded(uint64_t seed, size_t count, int side) {
  std::vector<std::string> out;
  for (size_t i = 0; i < count; ++i) out.push_back(encode_image(draw_image(seed, i, side)));
  return out;
}

}  // namespace

std::unique_ptr<Source> memory_source(uint64_t seed, size_t count, int side, size_t distinct) {
  return std::make_unique<MemorySource>(encoded(seed, std::min(count, distinct), side), 0,
                                        std::vector<std::string>());
}

std::unique_ptr<Source> source_with_huge_samples(uint64_t seed, size_t count) {
  return std::make_unique<MemorySource>(encoded(seed, count, kSide), 200,
                                        encoded(seed + 1, 1, 96 * kSide));
}

Result<std::unique_ptr<TemporaryFolder>> TemporaryFolder::make(const std::string& parent) {
  const char* tmp = getenv("TMPDIR");
  std::string path = !parent.empty() ? parent : tmp != nullptr && tmp[0] != 0 ? tmp : "/tmp";
  path += "/flatout-train-XXXXXX";
  if (mkdtemp(path.data()) == nullptr) {
    return fs::error_from_errno(errno, "cannot make a folder " + escape_terminal(path));
  }
  return std::unique_ptr<TemporaryFolder>(new TemporaryFolder(path));
}

TemporaryFolder::~TemporaryFolder() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

}  // namespace flatout::train
