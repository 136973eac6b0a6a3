#include "cli/memory_file.h"

#include <fmt/format.h>

#include "base/text.h"
#include "cli/options.h"
#include "devmem/driver.h"
#include "timeline/byte_source.h"

namespace flatout::cli {
namespace {

// Longer files are beyond what is worth holding in memory.
constexpr size_t kMostFileBytes = size_t{8} << 30;

// The file's last name without what says how it is packed.
std::string name_of(std::string_view path) {
  path = path.substr(path.rfind('/') + 1);
  for (const std::string_view end : {".gz", ".jsonl", ".json", ".pickle", ".pkl", ".csv"})
    if (path.ends_with(end) && path.size() > end.size()) path.remove_suffix(end.size());
  return std::string(path);
}

}  // namespace

Error damaged_gzip() { return {Code::kBadInput, "its gzip stream is cut off or damaged", ""}; }

Result<std::string> read_memory_file(const std::string& path) {
  FLATOUT_TRY(const auto source, timeline::open_source(path));
  FLATOUT_TRY(std::string bytes, timeline::read_all(*source, kMostFileBytes));
  if (source->damaged()) return damaged_gzip();
  return bytes;
}

Result<std::vector<devmem::Trace>> read_memory_traces(const std::string& path) {
  FLATOUT_TRY(const std::string bytes, read_memory_file(path));
  return devmem::read_traces(bytes, name_of(path));
}

Result<uint64_t> read_card(const std::string& size) {
  const auto card = parse_bytes(size_words(size));
  if (!card)
    return Error{Code::kBadInput,
                 fmt::format("--card: '{}' is no size of a card", escape_terminal(size)),
                 "--card 24GiB, or in bytes"};
  if (*card < devmem::kPageBytes)
    return Error{
        Code::kBadInput,
        fmt::format("--card {}: a card has {} at least, what its driver gives at a time",
                    escape_terminal(size), format_bytes(static_cast<double>(devmem::kPageBytes))),
        "--card 24GiB"};
  return *card;
}

Error with_path(Error error, const std::string& path) {
  if (error.message.find(path) == std::string::npos)
    error.message = fmt::format("{}: {}", escape_terminal(path), error.message);
  return error;
}

}  // namespace flatout::cli
