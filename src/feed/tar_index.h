// The table of a tar's members, kept in a file beside it, so that opening shards does not have to
// read each header of them. Written by `flatout feed index`, whole or not at all.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "base/result.h"
#include "feed/files.h"
#include "feed/tar_source.h"

namespace flatout::feed {

/// "train-000.tar" has its table in "train-000.tar.index".
std::string tar_index_path(const std::string& tar);

struct TarIndexed {
  uint64_t members = 0;
  Verdict verdict;  // on the archive
};

/// Walks `tar` and writes its table. Errors: kIo, kDenied, kNotFound.
Result<TarIndexed> write_tar_index(const std::string& tar);

/// Tells the members of `file`, which is `tar`, from its table, as walk_tar does. Errors: kNotFound
/// where there is no table; kBadInput where it is damaged, or the archive is another one than it
/// was: then `each` was not called.
Result<Verdict> walk_tar_index(const std::string& tar, const DataFile& file,
                               const std::function<void(const TarMember&)>& each);

}  // namespace flatout::feed
