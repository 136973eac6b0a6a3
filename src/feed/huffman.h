// Huffman decoding of sequential JPEG (ITU-T T.81, F.2.2): 64 bits at a time, up to two
// coefficients a look-up, and from the middle of a scan where its place is known.
//
// Only what is written as the standard says is decoded. At the first irregularity decoding ends,
// and the caller decodes the picture with libjpeg, which has rules of its own for damaged data. So
// what is decoded here equals libjpeg's coefficients to the bit, and what is not is libjpeg's.
#pragma once

#include <array>
#include <cstdint>
#include <span>

namespace flatout::feed {

/// The tables of one Huffman code; those of a code that is the same as the one before are kept.
class HuffmanTable {
 public:
  /// As in a DHT segment: lengths[n] codes of n bits (1 to 16) and their symbols, in order. The
  /// code has to be one that libjpeg accepts.
  void make(const uint8_t lengths[17], const uint8_t symbols[256]);

 private:
  friend class ScanDecoder;
  static constexpr int kPairBits = 11;  // looked at to find up to two coefficients
  static constexpr int kShortBits = 9;  // looked at to find one symbol

  // What follows in the bits that were looked at, in one word: bits taken; how far the
  // coefficient's number moves; distance to the first and to the second coefficient; their values.
  // With one coefficient only both are that one. The end of a block moves by kBlockEnd.
  static constexpr unsigned kBlockEnd = 64;
  static constexpr unsigned kNotHere = 128;  // longer than what was looked at
  static uint64_t pair(unsigned bits, unsigned next, unsigned skip, unsigned skip2, int value,
                       int value2) {
    return bits | uint64_t{next} << 8 | uint64_t{skip} << 16 | uint64_t{skip2} << 24 |
           uint64_t{static_cast<uint16_t>(value)} << 32 |
           uint64_t{static_cast<uint16_t>(value2)} << 48;
  }
  static unsigned bits_of(uint64_t pair) { return pair & 0xFF; }
  static unsigned next_of(uint64_t pair) { return (pair >> 8) & 0xFF; }
  static unsigned skip_of(uint64_t pair) { return (pair >> 16) & 0xFF; }
  static unsigned skip2_of(uint64_t pair) { return (pair >> 24) & 0xFF; }
  static int16_t value_of(uint64_t pair) { return static_cast<int16_t>(pair >> 32); }
  static int16_t value2_of(uint64_t pair) { return static_cast<int16_t>(pair >> 48); }

  void make_pairs();

  bool made_ = false;
  std::array<uint8_t, 17> lengths_{};
  std::array<uint8_t, 256> symbols_{};
  std::array<uint16_t, 1 << kShortBits> short_{};  // length << 8 | symbol; 0: a longer code
  std::array<int32_t, 18> limit_{};   // of 16 bits that begin with a code of at most n bits
  std::array<int32_t, 17> offset_{};  // from a code of n bits to its symbol's place
  std::array<uint64_t, 1 << kPairBits> pairs_{};
};

/// Where an MCU begins, and what the DC coefficients before it add up to.
struct Checkpoint {
  uint32_t bit = 0;  // from the scan's first; stuffed zeros count
  int16_t dc[4] = {};
  bool operator==(const Checkpoint&) const = default;
};

/// What a scan consists of.
struct ScanLayout {
  static constexpr int kMostBlocks = 10;  // of an MCU
  int blocks = 0;                         // of an MCU
  uint8_t component[kMostBlocks] = {};    // of each block
  const HuffmanTable* dc[4] = {};         // of each component
  const HuffmanTable* ac[4] = {};
  uint32_t mcus = 0;              // of the scan
  uint32_t restart_interval = 0;  // MCUs; 0: no restart markers
};

class ScanDecoder {
 public:
  /// `scan` begins behind the scan's header and may go on behind its end.
  void start(std::span<const uint8_t> scan, const ScanLayout& layout);
  /// The MCU that next() decodes.
  uint32_t mcu() const { return mcu_; }
  /// Decodes an MCU into the blocks, in natural order; they have to be zero. Without blocks it only
  /// goes on behind it. False, for good, where the data are irregular.
  bool next(int16_t* const* blocks) {
    return blocks != nullptr ? decode<true>(blocks) : decode<false>(nullptr);
  }
  /// Of mcu().
  Checkpoint checkpoint() const;
  /// Goes to an MCU. False where that cannot be its place.
  bool seek(uint32_t mcu, const Checkpoint& place);

 private:
  struct Bits;
  template <bool kStore>
  bool decode(int16_t* const* blocks);
  bool restart();

  ScanLayout layout_;
  const uint8_t* begin_ = nullptr;
  const uint8_t* end_ = nullptr;
  const uint8_t* at_ = nullptr;  // the byte behind those in the buffer
  uint64_t buffer_ = 0;          // the next bits, from the top
  int bits_ = 0;                 // of the buffer
  int beyond_ = 0;               // bits among them that are behind the data, and zero
  uint32_t mcu_ = 0;
  int dc_[4] = {};
};

}  // namespace flatout::feed
