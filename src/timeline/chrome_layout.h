// How the events of a file are laid out. A program writes events of one kind alike: the same keys
// in the same order with the same text between the values. Once one was read key by key, others
// like it are read by comparing that text, which is several times faster and gives the same to the
// last byte. What does not match is read key by key again.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "timeline/chrome_scanner.h"

namespace flatout::timeline {

class EventLayout {
 public:
  /// That of a whole event, which was read without damage. nullopt: it is none that others share.
  static std::optional<EventLayout> of(std::string_view event);

  /// Fills in `e` (but its text and offset) from an event that begins at `p`. The byte after it, or
  /// nullptr: laid out in another way, or its end is not before `end`. The buffer must be padded
  /// (json_scan.h).
  const char* read(const char* p, const char* end, ChromeEvent& e) const;

 private:
  enum class Value : uint8_t { kString, kNumber, kTime, kNested, kNone };
  enum class Field : uint8_t {
    kOther,
    kName,
    kPid,
    kTid,
    kId,
    kTime,
    kDuration,
    kCorrelation,
    kDevice,
    kStream,
    kBytes,
    kBandwidth
  };
  // Some text, and the value after it.
  struct Piece {
    uint32_t text = 0, size = 0;
    Value value = Value::kNone;
    Field field = Field::kOther;
  };
  struct Place {
    size_t piece = SIZE_MAX, at = 0;
  };
  static constexpr size_t kMostPieces = 48;

  const char* read_values(const char* p, const char* end, ChromeEvent& e) const;
  bool members(const char*& p, const char* end, bool arguments);
  bool value(const char* key, size_t size, const char*& p, const char* end, bool arguments);
  bool add(Value value, Field field, const char* begin, const char* stop);
  Place place(const char* p) const;

  std::string text_;  // of all pieces, padded
  std::vector<Piece> pieces_;
  const char* from_ = nullptr;  // while it is made: where the text of the next piece begins
  Place args_begin_, args_last_;
  char phase_ = 0;
  size_t category_ = 0, category_size_ = 0;  // in text_
  uint32_t fields_ = 0;                      // seen so far, a bit each
};

/// The layouts that a file has been seen to have, and which follows which.
class EventLayouts {
 public:
  /// As EventLayout::read(), by whichever fits. `e` must be as made; so it stays where none does.
  const char* read(const char* p, const char* end, ChromeEvent& e);
  void learn(std::string_view event);

 private:
  static constexpr size_t kMost = 16;
  std::vector<EventLayout> all_;
  std::array<uint8_t, kMost> next_{};  // which followed this one last time
  std::array<uint32_t, kMost> hits_{};
  size_t last_ = 0;
  // Files without layouts pay for looking now and then alone.
  uint32_t tried_ = 0, matched_ = 0, pause_ = 0;
};

}  // namespace flatout::timeline
