// What other allocators write as text: RMM's log of every request, and the dump of its chunks that
// TensorFlow's arena puts into the job's log when it runs out of memory.
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <utility>

#include "base/text.h"
#include "devmem/trace.h"

namespace flatout::devmem {
namespace {

// Hexadecimal, with or without 0x.
std::optional<uint64_t> parse_address(std::string_view text) {
  text = trim(text);
  if (text.starts_with("0x") || text.starts_with("0X")) text.remove_prefix(2);
  uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value, 16);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

// The word or number right behind `mark`; "" if the line has no such mark.
std::string_view after(std::string_view line, std::string_view mark) {
  const size_t at = line.find(mark);
  if (at == line.npos) return {};
  line = trim(line.substr(at + mark.size()));
  return line.substr(0, line.find_first_of(" \t)"));
}

struct RmmColumns {
  size_t action, pointer, size, stream;
};

// The columns by their names: none of them is needed at a certain place. Errors: kBadInput.
Result<RmmColumns> read_header(std::string_view line) {
  const auto names = split(line, ',');
  const auto column = [&](std::string_view name) {
    return static_cast<size_t>(std::find_if(names.begin(), names.end(),
                                            [&](std::string_view n) { return trim(n) == name; }) -
                               names.begin());
  };
  const RmmColumns out = {column("Action"), column("Pointer"), column("Size"), column("Stream")};
  if (std::max({out.action, out.pointer, out.size, out.stream}) < names.size()) return out;
  return Error{Code::kBadInput, "its first line does not name Action, Pointer, Size and Stream",
               "a log of RMM starts with Thread,Time,Action,Pointer,Size,Stream"};
}

Error bad_line(size_t number, std::string_view what) {
  return {Code::kBadInput, fmt::format("line {}: {}", number, what),
          "a log of RMM has lines like 1403,09:14:05.311042,allocate,0x7f8a40000000,1024,0x0"};
}

}  // namespace

Result<Trace> read_rmm_log(std::string_view bytes, std::string_view name) {
  std::string_view line;
  next_line(bytes, line);
  FLATOUT_TRY(const RmmColumns columns, read_header(line));
  const size_t fields_needed =
      std::max({columns.action, columns.pointer, columns.size, columns.stream}) + 1;
  TraceBuilder builder(name);
  for (size_t number = 2; next_line(bytes, line); ++number) {
    line = trim(line);
    if (line.empty()) continue;
    const auto fields = split(line, ',');
    if (fields.size() < fields_needed)
      return bad_line(number, "it has too few fields, or is cut off");
    const std::string_view action = trim(fields[columns.action]);
    // A request that failed is tried again, or ends the job; it holds nothing.
    if (action == "allocate failure") {
      builder.refuse(
          std::min(parse_number<uint64_t>(fields[columns.size]).value_or(0), kMostBytes));
      continue;
    }
    const auto pointer = parse_address(fields[columns.pointer]);
    if (!pointer) return bad_line(number, "its pointer is no address");
    if (action == "free" || action == "deallocate") {
      builder.free(*pointer);
      continue;
    }
    if (action != "allocate")
      return bad_line(number, fmt::format("'{}' is no action", escape_terminal(action)));
    const auto size = parse_number<uint64_t>(fields[columns.size]);
    const auto stream = parse_address(fields[columns.stream]);
    if (!size || *size > kMostBytes) return bad_line(number, "its size is no number of bytes");
    if (!stream) return bad_line(number, "its stream is no address");
    builder.allocate(*pointer, *size, *stream);
  }
  return builder.take();
}

bool has_bfc_dump(std::string_view bytes) {
  return bytes.find("bfc_allocator") != bytes.npos && bytes.find("InUse at ") != bytes.npos;
}

// A dump has no history: what was live, and then the request that did not fit.
Result<std::vector<Trace>> read_bfc_dumps(std::string_view bytes, std::string_view name) {
  std::vector<Trace> out;
  TraceBuilder builder(name);
  uint64_t request = 0, next_request = 0, chunks = 0;
  std::string_view allocator, next_allocator;
  const auto end_dump = [&] {
    if (chunks == 0) return;
    if (request > 0) {
      builder.refuse(request);
      builder.allocate(UINT64_MAX, request, 0, "the request that was refused");
    }
    builder.rename(fmt::format("{}{}{}", name, allocator.empty() ? "" : ", ", allocator));
    out.push_back(builder.take());
    builder = TraceBuilder(name);
    chunks = request = 0;
  };
  std::string_view line;
  for (size_t number = 1; next_line(bytes, line); ++number) {
    if (line.find("ran out of memory trying to allocate") != line.npos) {
      next_request = parse_number<uint64_t>(after(line, "(rounded to ")).value_or(0);
      next_allocator = after(line, "Allocator (");
    } else if (line.find("Bin (256):") != line.npos) {  // where every dump begins
      end_dump();
      request = std::exchange(next_request, 0);
      allocator = std::exchange(next_allocator, {});
    } else if (const std::string_view place = after(line, "InUse at "); !place.empty()) {
      const auto address = parse_address(place);
      const auto size = parse_number<uint64_t>(after(line, " of size "));
      if (!address || !size || *size > kMostBytes)
        return Error{Code::kBadInput, fmt::format("line {}: the chunk is cut off", number),
                     "a chunk's line reads: InUse at 7f1c8a000000 of size 1280 next 1"};
      builder.allocate(*address, *size, 0);
      ++chunks;
    }
  }
  end_dump();
  if (out.empty())
    return Error{Code::kBadInput, "its dump of TensorFlow's arena shows no chunks", ""};
  return out;
}

}  // namespace flatout::devmem
