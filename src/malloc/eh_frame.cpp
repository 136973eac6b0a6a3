#include "malloc/eh_frame.h"

#include <dlfcn.h>

#include <atomic>
#include <cstddef>
#include <cstring>

// glibc 2.35: finds the object that holds an address without a lock.
#if defined(__GLIBC__)
#if __GLIBC_PREREQ(2, 35)
#define FLATOUT_HAS_FIND_OBJECT 1
#pragma weak _dl_find_object
#endif
#endif

namespace flatout::malloc {
namespace {

#if defined(__x86_64__)
constexpr uint64_t kFp = 6, kSp = 7, kRa = 16;
#elif defined(__aarch64__)
constexpr uint64_t kFp = 29, kSp = 31, kRa = 30;
#else
constexpr uint64_t kFp = ~0u, kSp = ~0u, kRa = ~0u;
#endif

// Encodings of pointers (DW_EH_PE_*): those that linkers write.
constexpr uint8_t kPcRelative4 = 0x1b, kUnsigned4 = 0x03, kHeaderRelative4 = 0x3b;
constexpr uint8_t kPcRelative8 = 0x1c, kAbsolute = 0x00;

template <class T>
T load(const uint8_t* at) {
  T value;
  std::memcpy(&value, at, sizeof value);
  return value;
}

// A piece of the tables; reading past its end gives zeros and makes it bad.
class Cursor {
 public:
  Cursor(const uint8_t* at, const uint8_t* end) : at_(at), end_(end) {}
  bool done() const { return at_ >= end_; }
  bool good() const { return good_; }
  const uint8_t* at() const { return at_; }

  template <class T>
  T get() {
    if (static_cast<size_t>(end_ - at_) < sizeof(T)) return fail<T>();
    const T value = load<T>(at_);
    at_ += sizeof(T);
    return value;
  }
  void skip(uint64_t bytes) {
    if (bytes > static_cast<uint64_t>(end_ - at_)) {
      fail<int>();
    } else {
      at_ += bytes;
    }
  }
  uint64_t uleb() {
    uint64_t value = 0;
    for (unsigned shift = 0; shift < 64; shift += 7) {
      const auto byte = get<uint8_t>();
      value |= uint64_t{byte & 0x7fu} << shift;
      if ((byte & 0x80) == 0) break;
    }
    return value;
  }
  int64_t sleb() {
    uint64_t value = 0;
    unsigned shift = 0;
    uint8_t byte = 0;
    do {
      byte = get<uint8_t>();
      value |= uint64_t{byte & 0x7fu} << shift;
      shift += 7;
    } while ((byte & 0x80) != 0 && shift < 64);
    if ((byte & 0x40) != 0 && shift < 64) value |= ~uint64_t{0} << shift;
    return static_cast<int64_t>(value);
  }
  /// An encoded address, or a length in the same encoding.
  uintptr_t pointer(uint8_t encoding, bool length) {
    const auto base = length ? 0 : reinterpret_cast<uintptr_t>(at_);
    switch (encoding) {
      case kPcRelative4:
        return length ? get<uint32_t>() : base + static_cast<uintptr_t>(int64_t{get<int32_t>()});
      case kPcRelative8:
        return base + get<uint64_t>();
      case kAbsolute:
        return get<uint64_t>();
      default:
        return fail<uintptr_t>();
    }
  }

 private:
  template <class T>
  T fail() {
    good_ = false;
    at_ = end_;
    return T{};
  }
  const uint8_t *at_, *end_;
  bool good_ = true;
};

// The body of a CIE or an FDE after its length; false at the end of the section, and for the 64-bit
// format, which nobody writes.
bool open_entry(const uint8_t* at, Cursor& out) {
  const auto length = load<uint32_t>(at);
  if (length == 0 || length == 0xffffffff) return false;
  out = Cursor(at + 4, at + 4 + length);
  return true;
}

struct Common {  // what a CIE says for its FDEs
  uint64_t code_align = 0;
  int64_t data_align = 0;
  uint8_t encoding = kAbsolute;
  bool augmented = false;
  Cursor instructions{nullptr, nullptr};
};

bool read_common(const uint8_t* at, Common& out) {
  Cursor c(nullptr, nullptr);
  if (!open_entry(at, c) || c.get<uint32_t>() != 0) return false;
  const auto version = c.get<uint8_t>();
  if (version != 1 && version != 3) return false;
  char letters[8];
  size_t n = 0;
  for (char letter; (letter = c.get<char>()) != 0;) {
    if (n == sizeof letters) return false;
    letters[n++] = letter;
  }
  if (n > 0 && letters[0] != 'z') return false;
  out.code_align = c.uleb();
  out.data_align = c.sleb();
  const uint64_t return_register = version == 1 ? c.get<uint8_t>() : c.uleb();
  if (return_register != kRa) return false;
  if (n > 0) {
    out.augmented = true;
    const uint64_t size = c.uleb();
    Cursor data(c.at(), c.at() + size);
    c.skip(size);
    for (size_t i = 1; i < n; ++i) {
      switch (letters[i]) {
        case 'R':
          out.encoding = data.get<uint8_t>();
          break;
        case 'L':
          data.get<uint8_t>();
          break;
        case 'P': {  // the personality routine; indirect ones (0x80) take as much room
          const uint8_t encoding = data.get<uint8_t>() & 0x0f;
          data.skip(encoding == 0x0b || encoding == 0x03 ? 4 : 8);
          break;
        }
        default:  // 'S', a signal's frame, and 'B' say nothing here
          break;
      }
    }
    if (!data.good()) return false;
  }
  out.instructions = c;
  return c.good();
}

struct Cell {  // where a register of the caller's is
  enum Where : uint8_t { kSame, kAt, kUnknown } where = kSame;
  int64_t at = 0;  // from the CFA
};

struct Row {
  uint64_t cfa_register = ~uint64_t{0};
  int64_t cfa_offset = 0;
  Cell fp, ra;

  Cell* cell(uint64_t number) {
    if (number == kFp) return &fp;
    return number == kRa ? &ra : nullptr;
  }
  void set(uint64_t number, Cell::Where where, int64_t at = 0) {
    if (Cell* c = cell(number)) *c = {where, at};
  }
};

// Runs instructions up to the row that holds `pc`. False where one is not known.
bool run(Cursor c, const Common& common, uintptr_t location, uintptr_t pc, const Row& initial,
         Row& row) {
  constexpr unsigned kMostSaved = 8;
  Row saved[kMostSaved];
  unsigned depth = 0;
  const auto factored = [&] { return static_cast<int64_t>(c.uleb()) * common.data_align; };
  const auto signed_factored = [&] { return c.sleb() * common.data_align; };
  const auto restore = [&](uint64_t number) {
    Row start = initial;
    if (Cell* from = start.cell(number)) *row.cell(number) = *from;
  };
  while (!c.done()) {
    const auto op = c.get<uint8_t>();
    const uint64_t low = op & 0x3f;
    uint64_t advance = 0;
    switch (op & 0xc0) {
      case 0x40:  // DW_CFA_advance_loc
        advance = low;
        break;
      case 0x80:  // DW_CFA_offset
        row.set(low, Cell::kAt, factored());
        continue;
      case 0xc0:  // DW_CFA_restore
        restore(low);
        continue;
      default:
        switch (op) {
          case 0x00:  // DW_CFA_nop
            continue;
          case 0x02:  // DW_CFA_advance_loc1, 2, 4
            advance = c.get<uint8_t>();
            break;
          case 0x03:
            advance = c.get<uint16_t>();
            break;
          case 0x04:
            advance = c.get<uint32_t>();
            break;
          case 0x05: {  // DW_CFA_offset_extended
            const uint64_t number = c.uleb();
            row.set(number, Cell::kAt, factored());
            continue;
          }
          case 0x06:  // DW_CFA_restore_extended
            restore(c.uleb());
            continue;
          case 0x07:  // DW_CFA_undefined
            row.set(c.uleb(), Cell::kUnknown);
            continue;
          case 0x08:  // DW_CFA_same_value
            row.set(c.uleb(), Cell::kSame);
            continue;
          case 0x09: {  // DW_CFA_register
            const uint64_t number = c.uleb();
            c.uleb();
            row.set(number, Cell::kUnknown);
            continue;
          }
          case 0x0a:  // DW_CFA_remember_state
            if (depth == kMostSaved) return false;
            saved[depth++] = row;
            continue;
          case 0x0b:  // DW_CFA_restore_state
            if (depth == 0) return false;
            row = saved[--depth];
            continue;
          case 0x0c:  // DW_CFA_def_cfa
            row.cfa_register = c.uleb();
            row.cfa_offset = static_cast<int64_t>(c.uleb());
            continue;
          case 0x0d:  // DW_CFA_def_cfa_register
            row.cfa_register = c.uleb();
            continue;
          case 0x0e:  // DW_CFA_def_cfa_offset
            row.cfa_offset = static_cast<int64_t>(c.uleb());
            continue;
          case 0x0f:  // DW_CFA_def_cfa_expression
            c.skip(c.uleb());
            row.cfa_register = ~uint64_t{0};
            continue;
          case 0x10:    // DW_CFA_expression
          case 0x16: {  // DW_CFA_val_expression
            const uint64_t number = c.uleb();
            c.skip(c.uleb());
            row.set(number, Cell::kUnknown);
            continue;
          }
          case 0x11: {  // DW_CFA_offset_extended_sf
            const uint64_t number = c.uleb();
            row.set(number, Cell::kAt, signed_factored());
            continue;
          }
          case 0x12:  // DW_CFA_def_cfa_sf
            row.cfa_register = c.uleb();
            row.cfa_offset = signed_factored();
            continue;
          case 0x13:  // DW_CFA_def_cfa_offset_sf
            row.cfa_offset = signed_factored();
            continue;
          case 0x14:    // DW_CFA_val_offset
          case 0x15: {  // DW_CFA_val_offset_sf
            const uint64_t number = c.uleb();
            c.uleb();
            row.set(number, Cell::kUnknown);
            continue;
          }
          case 0x2d:  // DW_CFA_AARCH64_negate_ra_state: signed return addresses, stripped anyway
            continue;
          case 0x2e:  // DW_CFA_GNU_args_size
            c.uleb();
            continue;
          default:
            return false;
        }
    }
    location += advance * common.code_align;
    if (location > pc) break;
  }
  return c.good();
}

#if FLATOUT_HAS_FIND_OBJECT
// Rules that were found, by address: a stack is mostly the one before. Two words that threads write
// without a lock; a torn pair is known by the key, which is the address xor the rule. An object
// that is loaded where another was leaves wrong rules: they end a stack early, no more, since
// unwind() never leaves the thread's stack.
struct Slot {
  std::atomic<uint64_t> key, rule;
};
constexpr size_t kSlots = 2048;
Slot g_slots[kSlots];

Slot& slot_of(uintptr_t pc) { return g_slots[(pc ^ pc >> 11) % kSlots]; }

// 0 where a rule does not fit.
uint64_t pack(const FrameRule& rule) {
  const auto fits = [](int32_t at) { return at % 8 == 0 && at / 8 > -0x4000 && at / 8 < 0x4000; };
  if (!fits(rule.fp_at) || !fits(rule.ra_at)) return 0;
  return uint64_t{static_cast<uint32_t>(rule.cfa_offset)} |
         uint64_t{static_cast<uint16_t>(rule.fp_at / 8) & 0x7fffu} << 32 |
         uint64_t{static_cast<uint16_t>(rule.ra_at / 8) & 0x7fffu} << 47 |
         uint64_t{rule.cfa_from_fp ? 1u : 0u} << 62 | uint64_t{1} << 63;
}

FrameRule unpack(uint64_t word) {
  const auto at = [](uint64_t bits) {
    return static_cast<int32_t>(static_cast<int16_t>(bits << 1 & 0xffff)) / 2 * 8;
  };
  return {(word >> 62 & 1) != 0, static_cast<int32_t>(word & 0xffffffff), at(word >> 32 & 0x7fff),
          at(word >> 47 & 0x7fff)};
}
#endif

}  // namespace

bool frame_rule_in(const uint8_t* header, uintptr_t pc, FrameRule& out) {
  if (header[0] != 1 || header[1] != kPcRelative4 || header[2] != kUnsigned4 ||
      header[3] != kHeaderRelative4) {
    return false;
  }
  const auto count = load<uint32_t>(header + 8);
  const uint8_t* const table = header + 12;
  const auto base = reinterpret_cast<uintptr_t>(header);
  const auto address = [&](uint32_t i, unsigned column) {
    return base + static_cast<uintptr_t>(int64_t{load<int32_t>(table + size_t{i} * 8 + column)});
  };
  if (count == 0 || pc < address(0, 0)) return false;
  uint32_t low = 0, high = count;  // the last one that begins at or before pc
  while (high - low > 1) {
    const uint32_t middle = low + (high - low) / 2;
    (address(middle, 0) <= pc ? low : high) = middle;
  }
  Cursor entry(nullptr, nullptr);
  const auto* fde = reinterpret_cast<const uint8_t*>(address(low, 4));
  if (!open_entry(fde, entry)) return false;
  const uint8_t* const common_at = entry.at() - load<uint32_t>(entry.at());
  entry.skip(4);
  Common common;
  if (!read_common(common_at, common)) return false;
  const uintptr_t begin = entry.pointer(common.encoding, false);
  const uintptr_t length = entry.pointer(common.encoding, true);
  if (!entry.good() || pc < begin || pc - begin >= length) return false;
  if (common.augmented) entry.skip(entry.uleb());

  Row initial, row;
  if (!run(common.instructions, common, begin, ~uintptr_t{0}, initial, row)) return false;
  initial = row;
  if (!run(entry, common, begin, pc, initial, row)) return false;
  if ((row.cfa_register != kSp && row.cfa_register != kFp) || row.fp.where == Cell::kUnknown ||
      row.ra.where == Cell::kUnknown) {
    return false;
  }
  out = {row.cfa_register == kFp, static_cast<int32_t>(row.cfa_offset),
         row.fp.where == Cell::kAt ? static_cast<int32_t>(row.fp.at) : 0,
         row.ra.where == Cell::kAt ? static_cast<int32_t>(row.ra.at) : 0};
  return true;
}

bool find_frame_rule(uintptr_t pc, FrameRule& out) {
#if FLATOUT_HAS_FIND_OBJECT
  Slot& slot = slot_of(pc);
  const uint64_t known = slot.rule.load(std::memory_order_relaxed);
  if (known != 0 && (slot.key.load(std::memory_order_relaxed) ^ known) == pc) {
    out = unpack(known);
    return true;
  }
  if (&_dl_find_object == nullptr) return false;
  dl_find_object found{};
  if (_dl_find_object(reinterpret_cast<void*>(pc), &found) != 0) return false;
  const auto* header = static_cast<const uint8_t*>(found.dlfo_eh_frame);
  if (header == nullptr || !frame_rule_in(header, pc, out)) return false;
  if (const uint64_t word = pack(out); word != 0) {
    slot.rule.store(word, std::memory_order_relaxed);
    slot.key.store(pc ^ word, std::memory_order_relaxed);
  }
  return true;
#else
  (void)pc, (void)out;
  return false;
#endif
}

}  // namespace flatout::malloc
