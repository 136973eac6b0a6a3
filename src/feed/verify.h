// flatout feed verify: decodes every file of a data set whole and says what became of it. An
// archive is one file, whose outcome is that of its first flaw.
#pragma once

#include <array>
#include <functional>
#include <string>

#include "base/result.h"
#include "feed/outcome.h"
#include "feed/picture.h"

namespace flatout::feed {

struct Verified {
  std::string file;
  Verdict verdict;
  Size size;  // 0 x 0 where the header cannot be read; of an archive's only one
  std::array<double, 3>
      mean_rgb{};  // of the decoded picture, or the mean of several, 0 to 255; only where ok
  uint64_t samples = 1;
};

/// One file, in memory. Never fails: what is wrong is in the verdict.
Verified verify_picture(PictureDecoder& decoder, std::span<const uint8_t> data);

/// All files below `path` whatever their names, or those that it lists, told in order by `each`.
/// threads 0: one a core. Ends at the first Error of that. Errors: those of list_files and
/// open_named_list; kFull (see unreadable()).
Status verify(const std::string& path, int threads,
              const std::function<Status(const Verified&)>& each);

/// One line of JSON, without its end.
std::string verified_json(const Verified& verified);

}  // namespace flatout::feed
