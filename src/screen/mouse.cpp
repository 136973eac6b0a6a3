#include "screen/mouse.h"

#include <array>
#include <charconv>

namespace flatout::screen {
namespace {

constexpr size_t kLongest = 24;  // three numbers of seven digits
constexpr int kModifiers = 4 | 8 | 16, kWheel = 64;
constexpr int kByteBias = 32;  // what the bytes' values stand above theirs

MouseReport report_of(int button, bool down, int column, int row) {
  MouseReport out;
  out.x = column - 1;
  out.y = row - 1;
  if (!down) return out;
  switch (button & ~kModifiers) {
    case 0:
      out.act = MouseAct::kClick;
      break;
    case kWheel:
      out.act = MouseAct::kWheelUp;
      break;
    case kWheel + 1:
      out.act = MouseAct::kWheelDown;
      break;
    default:  // other buttons, motion, and where bytes are sent 3: up
      break;
  }
  return out;
}

}  // namespace

bool MouseReader::add(unsigned char byte) {
  text_ += static_cast<char>(byte);
  if (form_ == Form::kBytes) return text_.size() < 3;
  const bool inside = (byte >= '0' && byte <= '9') || byte == ';';
  return inside && text_.size() < kLongest;
}

std::optional<MouseReport> MouseReader::report() const {
  std::array<int, 3> numbers{};
  if (form_ == Form::kBytes) {
    if (text_.size() != numbers.size()) return std::nullopt;
    for (size_t i = 0; i < numbers.size(); ++i)
      numbers[i] = static_cast<unsigned char>(text_[i]) - kByteBias;
    return report_of(numbers[0], true, numbers[1], numbers[2]);
  }
  const char* at = text_.data();
  const char* const end = at + text_.size();
  for (size_t i = 0; i < numbers.size(); ++i) {
    const auto [after, error] = std::from_chars(at, end, numbers[i]);
    if (error != std::errc() || after == end) return std::nullopt;
    at = after;
    if (i + 1 < numbers.size() && *at++ != ';') return std::nullopt;
  }
  if (at + 1 != end || (*at != 'M' && *at != 'm')) return std::nullopt;
  return report_of(numbers[0], *at == 'M', numbers[1], numbers[2]);
}

}  // namespace flatout::screen
