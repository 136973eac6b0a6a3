#include "feed/huffman.h"

#include <algorithm>
#include <cstring>

namespace flatout::feed {
namespace {

// Zigzag number to place in the block.
constexpr uint8_t kNatural[64] = {0,  1,  8,  16, 9,  2,  3,  10, 17, 24, 32, 25, 18, 11, 4,  5,
                                  12, 19, 26, 33, 40, 48, 41, 34, 27, 20, 13, 6,  7,  14, 21, 28,
                                  35, 42, 49, 56, 57, 50, 43, 36, 29, 22, 15, 23, 30, 37, 44, 51,
                                  58, 59, 52, 45, 38, 31, 39, 46, 53, 60, 61, 54, 47, 55, 62, 63};

constexpr unsigned kSixteenZeros = 0xF0;  // other symbols without a value end the block

// T.81, F.2.2.1: `size` bits as a signed number.
constexpr int extend(unsigned value, unsigned size) {
  return static_cast<int>(value) -
         (size > 0 && value < 1U << (size - 1) ? static_cast<int>((1U << size) - 1) : 0);
}

uint64_t load_big_endian(const uint8_t* p) {
  uint64_t word;
  std::memcpy(&word, p, sizeof word);
  if constexpr (__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__) word = __builtin_bswap64(word);
  return word;
}

// A byte 0xFF is followed by a stuffed zero or makes a marker.
bool has_ff(uint64_t word) {
  constexpr uint64_t kOnes = 0x0101010101010101;
  return ((~word - kOnes) & word & (kOnes << 7)) != 0;
}

}  // namespace

// The bits at hand, in variables of their own so that they stay in registers.
struct ScanDecoder::Bits {
  uint64_t buffer;
  int count;
  int beyond;
  const uint8_t* at;
  const uint8_t* end;

  // At least 56 bits. Behind the data, and behind a marker, there are zeros.
  [[gnu::always_inline]] void fill() {
    if (end - at >= 8) [[likely]] {
      const uint64_t word = load_big_endian(at);
      if (!has_ff(word)) [[likely]] {
        // The bits below the last whole byte are of the next one, which adds the same bits again.
        buffer |= word >> count;
        at += (63 - count) >> 3;
        count |= 56;
        return;
      }
    }
    while (count <= 56) {
      uint64_t byte = 0;
      if (at < end && *at != 0xFF) {
        byte = *at++;
      } else if (end - at >= 2 && at[1] == 0) {
        byte = 0xFF;
        at += 2;
      } else {
        beyond += 8;
      }
      buffer |= byte << (56 - count);
      count += 8;
    }
  }
  [[gnu::always_inline]] void need(int wanted) {
    if (count < wanted) [[unlikely]]
      fill();
  }
  [[gnu::always_inline]] unsigned peek(int wanted) const {
    return static_cast<unsigned>(buffer >> (64 - wanted));
  }
  [[gnu::always_inline]] void drop(unsigned taken) {
    buffer <<= taken & 63;
    count -= static_cast<int>(taken);
  }
  // 0 to 16.
  [[gnu::always_inline]] unsigned take(unsigned wanted) {
    if (wanted == 0) return 0;
    const unsigned value = peek(static_cast<int>(wanted));
    drop(wanted);
    return value;
  }
};

void HuffmanTable::make(const uint8_t lengths[17], const uint8_t symbols[256]) {
  int count = 0;
  for (int n = 1; n <= 16; ++n) count += lengths[n];
  const size_t used = static_cast<size_t>(std::min(count, 256));
  if (made_ && std::equal(lengths + 1, lengths + 17, lengths_.begin() + 1) &&
      std::equal(symbols, symbols + used, symbols_.begin()))
    return;
  made_ = true;
  std::copy(lengths, lengths + 17, lengths_.begin());
  std::copy(symbols, symbols + used, symbols_.begin());
  short_.fill(0);
  int32_t code = 0;
  int32_t place = 0;
  for (int n = 1; n <= 16; ++n) {
    const size_t at = static_cast<size_t>(n);
    offset_[at] = place - code;
    for (int i = 0; i < lengths[n] && place < static_cast<int32_t>(used); ++i, ++code, ++place) {
      if (n > kShortBits) continue;
      const auto first = short_.begin() + (code << (kShortBits - n));
      std::fill(first, first + (1 << (kShortBits - n)),
                static_cast<uint16_t>(n << 8 | symbols_[static_cast<size_t>(place)]));
    }
    limit_[at] = code << (16 - n);
    code <<= 1;
  }
  limit_[17] = 1 << 16;
  make_pairs();
}

// First one coefficient, or the end of the block, for all bits that can be looked at; then with
// what the rest of the bits hold.
void HuffmanTable::make_pairs() {
  pairs_.fill(pair(0, kNotHere, 63, 63, 0, 0));
  size_t place = 0;
  int32_t code = 0;
  for (int n = 1; n <= kPairBits; ++n, code <<= 1) {
    for (int i = 0; i < lengths_[static_cast<size_t>(n)]; ++i, ++code) {
      const unsigned symbol = symbols_[place++];
      const unsigned run = symbol >> 4;
      const unsigned size = symbol & 15;
      const int rest = kPairBits - n - static_cast<int>(size);
      if (rest < 0) continue;
      const unsigned bits = static_cast<unsigned>(n) + size;
      for (unsigned value = 0; value < 1U << size; ++value) {
        uint64_t entry = pair(bits, run + 1, run, run, extend(value, size), extend(value, size));
        if (size == 0 && symbol != kSixteenZeros) entry = pair(bits, kBlockEnd, 0, 0, 0, 0);
        const size_t first =
            (static_cast<size_t>(code) << (kPairBits - n)) + (size_t{value} << rest);
        std::fill_n(pairs_.begin() + static_cast<std::ptrdiff_t>(first), size_t{1} << rest, entry);
      }
    }
  }
  const std::array<uint64_t, 1 << kPairBits> one = pairs_;
  for (size_t i = 0; i < one.size(); ++i) {
    const unsigned bits = bits_of(one[i]);
    const unsigned next = next_of(one[i]);
    if (next >= kBlockEnd) continue;
    const uint64_t then = one[(i << bits) & (one.size() - 1)];
    if (next_of(then) == kNotHere || bits + bits_of(then) > kPairBits) continue;
    const bool ends = next_of(then) == kBlockEnd;
    const unsigned skip2 = ends ? skip_of(one[i]) : next + skip_of(then);
    pairs_[i] = pair(bits + bits_of(then), ends ? kBlockEnd : next + next_of(then), skip_of(one[i]),
                     skip2, value_of(one[i]), ends ? value_of(one[i]) : value_of(then));
  }
}

void ScanDecoder::start(std::span<const uint8_t> scan, const ScanLayout& layout) {
  layout_ = layout;
  begin_ = scan.data();
  end_ = begin_ + scan.size();
  at_ = begin_;
  buffer_ = 0;
  bits_ = beyond_ = 0;
  mcu_ = 0;
  std::fill(std::begin(dc_), std::end(dc_), 0);
}

template <bool kStore>
bool ScanDecoder::decode([[maybe_unused]] int16_t* const* blocks) {
  if (layout_.restart_interval > 0 && mcu_ > 0 && mcu_ % layout_.restart_interval == 0 &&
      !restart())
    return false;
  using Table = HuffmanTable;
  Bits bits{buffer_, bits_, beyond_, at_, end_};
  // One symbol, of any length; the bits of a coefficient may follow it without another fill().
  const auto symbol = [&bits](const Table& table) __attribute__((always_inline)) {
    bits.need(32);
    const unsigned look = table.short_[bits.peek(Table::kShortBits)];
    if (look != 0) [[likely]] {
      bits.drop(look >> 8);
      return static_cast<int>(look & 0xFF);
    }
    const int32_t code = static_cast<int32_t>(bits.peek(16));
    size_t n = Table::kShortBits + 1;
    while (code >= table.limit_[n]) ++n;
    if (n > 16) return -1;
    bits.drop(static_cast<unsigned>(n));
    const int32_t place = (code >> (16 - n)) + table.offset_[n];
    return int{table.symbols_[static_cast<size_t>(place)]};
  };
  for (int b = 0; b < layout_.blocks; ++b) {
    const size_t component = layout_.component[b];
    [[maybe_unused]] int16_t* const block = kStore ? blocks[b] : nullptr;
    const int size = symbol(*layout_.dc[component]);
    if (size < 0 || size > 15) return false;
    const unsigned difference = bits.take(static_cast<unsigned>(size));
    int& dc = dc_[component];
    dc += extend(difference, static_cast<unsigned>(size));
    if (dc < INT16_MIN || dc > INT16_MAX) return false;
    if constexpr (kStore) block[0] = static_cast<int16_t>(dc);

    const Table& ac = *layout_.ac[component];
    const uint64_t* const pairs = ac.pairs_.data();
    unsigned k = 1;
    while (k < 64) {
      bits.need(Table::kPairBits);
      const uint64_t pair = pairs[bits.peek(Table::kPairBits)];
      const unsigned next = k + Table::next_of(pair);
      if (next < 64) [[likely]] {
        if constexpr (kStore) {
          block[kNatural[k + Table::skip_of(pair)]] = Table::value_of(pair);
          block[kNatural[k + Table::skip2_of(pair)]] = Table::value2_of(pair);
        }
        k = next;
        bits.drop(Table::bits_of(pair));
        continue;
      }
      // The block ends here, by its mark, if there is room for a coefficient before it and then for
      // the mark.
      const unsigned place = k + Table::skip_of(pair);
      if (Table::next_of(pair) == Table::kBlockEnd && place < 63) [[likely]] {
        if constexpr (kStore) block[kNatural[place]] = Table::value_of(pair);
        bits.drop(Table::bits_of(pair));
        break;
      }
      // One symbol at a time: it is a long one, or the block ends with its last coefficient.
      const int found = symbol(ac);
      if (found < 0) return false;
      const unsigned length = static_cast<unsigned>(found) & 15;
      if (length == 0 && found != static_cast<int>(kSixteenZeros)) break;
      k += static_cast<unsigned>(found) >> 4;
      if (k > 63) return false;
      const unsigned value = bits.take(length);
      if constexpr (kStore) block[kNatural[k]] = static_cast<int16_t>(extend(value, length));
      ++k;
    }
  }
  if (bits.count < bits.beyond) return false;  // bits were taken that are not there
  buffer_ = bits.buffer;
  bits_ = bits.count;
  beyond_ = bits.beyond;
  at_ = bits.at;
  ++mcu_;
  return true;
}

template bool ScanDecoder::decode<true>(int16_t* const* blocks);
template bool ScanDecoder::decode<false>(int16_t* const* blocks);

// Before the marker there is less than a byte, which only fills up the last one.
bool ScanDecoder::restart() {
  const uint32_t number = mcu_ / layout_.restart_interval - 1;
  if (bits_ - beyond_ >= 8 || end_ - at_ < 2 || at_[0] != 0xFF || at_[1] != 0xD0 + (number & 7))
    return false;
  at_ += 2;
  buffer_ = 0;
  bits_ = beyond_ = 0;
  std::fill(std::begin(dc_), std::end(dc_), 0);
  return true;
}

Checkpoint ScanDecoder::checkpoint() const {
  const uint8_t* byte = at_;
  int left = bits_ - beyond_;
  for (; left > 0; left -= 8)
    byte -= byte - begin_ >= 2 && byte[-1] == 0 && byte[-2] == 0xFF ? 2 : 1;
  Checkpoint place;
  place.bit = static_cast<uint32_t>(byte - begin_) * 8 + static_cast<uint32_t>(-left);
  for (size_t i = 0; i < 4; ++i) place.dc[i] = static_cast<int16_t>(dc_[i]);
  return place;
}

bool ScanDecoder::seek(uint32_t mcu, const Checkpoint& place) {
  if (mcu >= layout_.mcus || place.bit / 8 >= static_cast<uint64_t>(end_ - begin_)) return false;
  Bits bits{0, 0, 0, begin_ + place.bit / 8, end_};
  bits.fill();
  bits.drop(place.bit % 8);
  buffer_ = bits.buffer;
  bits_ = bits.count;
  beyond_ = bits.beyond;
  at_ = bits.at;
  mcu_ = mcu;
  for (size_t i = 0; i < 4; ++i) dc_[i] = place.dc[i];
  return true;
}

}  // namespace flatout::feed
