// Files that say what a job asked of device memory: opened here, read by the room devmem.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"
#include "devmem/trace.h"

namespace flatout::cli {

/// The file's bytes, unpacked where it is gzipped. Errors: kNotFound, kDenied, kIo, kBadInput.
Result<std::string> read_memory_file(const std::string& path);
Error damaged_gzip();
/// All traces in it, named after the file. Errors: as above.
Result<std::vector<devmem::Trace>> read_memory_traces(const std::string& path);
/// What --card says. Errors: kBadInput.
Result<uint64_t> read_card(const std::string& size);
/// The error with the path in its message.
Error with_path(Error error, const std::string& path);

/// `flatout devmem batch`, without these two words.
int devmem_batch(const std::vector<std::string>& arguments);

}  // namespace flatout::cli
