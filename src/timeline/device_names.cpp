#include "timeline/device_names.h"

#include <charconv>
#include <system_error>

#include "base/contains.h"
#include "base/text.h"

namespace flatout::timeline {

namespace {

std::optional<int64_t> number_after(std::string_view text, std::string_view word) {
  const size_t at = text.find(word);
  if (at == std::string_view::npos) return std::nullopt;
  const std::string_view digits = text.substr(at + word.size());
  int64_t number = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), number);
  if (error != std::errc()) return std::nullopt;
  return number;
}

}  // namespace

int64_t device_of_plane(std::string_view plane) {
  for (const std::string_view kind : {"/device:GPU:", "/device:TPU:", "/device:CUSTOM:", "/gpu:"}) {
    if (contains(plane, kind)) return number_after(plane, kind).value_or(0);
  }
  return -1;
}

std::optional<int64_t> stream_of_line(std::string_view plane, std::string_view line) {
  if (contains(plane, "/device:TPU:") && line == "XLA Ops") return 0;
  return number_after(line, "Stream #");
}

std::optional<NamedStream> stream_by_names(std::string_view process, std::string_view thread) {
  const int64_t device = device_of_plane(process);
  if (device >= 0) {
    // TensorFlow 1: all streams of a device, then each again.
    if (contains(process, "/stream:")) {
      if (!contains(process, "/stream:all")) return std::nullopt;
      return NamedStream{device, 0};
    }
    const auto stream = stream_of_line(process, thread);
    if (!stream) return std::nullopt;
    return NamedStream{device, *stream};
  }
  if (process == "Ascend Hardware" && thread.starts_with("Stream ")) {
    const auto stream = parse_number<int64_t>(thread.substr(7));
    if (stream) return NamedStream{0, *stream};
  }
  // rocprof: a process for each card.
  if (process.starts_with("GPU") && process.size() > 3) {
    const auto card = parse_number<int64_t>(process.substr(3));
    if (card) return NamedStream{*card, 0};
  }
  return std::nullopt;
}

bool is_runtime_call(std::string_view name) {
  return name.starts_with("cuda") || name.starts_with("hip") ||
         (name.starts_with("cu") && name.size() > 2 && name[2] >= 'A' && name[2] <= 'Z');
}

}  // namespace flatout::timeline
