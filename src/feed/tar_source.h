// Pictures in tar files, WebDataset shards among them: each is read where it lies, so that a tar is
// as good as a folder for an order that goes anywhere.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "feed/files.h"
#include "feed/source.h"

namespace flatout::feed {

struct TarMember {
  std::string name;
  uint64_t offset = 0;  // of its first byte
  uint64_t bytes = 0;   // as many as are there
};

/// Tells the regular files of a tar (POSIX ustar and pax, GNU) in order. The verdict is on the
/// archive: what follows damage is not told. Errors: kIo.
Result<Verdict> walk_tar(const DataFile& file, const std::function<void(const TarMember&)>& each);

/// As WebDataset groups them: members that follow each other with equal names up to the first dot
/// make a sample. Its label is its .cls or .label member, or "label", "cls" or "class" of its .json
/// where the first .json has one; where no sample has any of these, the folder that it lies in. A
/// label that lies elsewhere in the shard than beside its picture counts too, unlike there.
Result<std::unique_ptr<Source>> open_tars(std::vector<std::string> paths);

}  // namespace flatout::feed
