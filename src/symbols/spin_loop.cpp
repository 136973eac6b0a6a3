#include "symbols/spin_loop.h"

#include <cstdint>

namespace flatout::symbols {

namespace {

constexpr size_t kAround = 16;  // bytes to either side in which the hint counts

#if defined(__x86_64__)

/// One instruction of those that a waiting loop is made of; length 0: any other.
struct Instruction {
  size_t length = 0;
  uint32_t loaded = 0;  // the register that it sets, a bit
  uint32_t used = 0;    // the registers of its address
  bool memory = false;
  bool jump = false;
  bool always = false;  // of a jump
  int8_t offset = 0;    // of a jump, from its end
};

/// Intel 64 and IA-32 Architectures Software Developer's Manual, volume 2, chapter 2 and appendix
/// A.
class Decoder {
 public:
  explicit Decoder(std::string_view code) : code_(code) {}

  Instruction next(size_t at) {
    at_ = begin_ = at;
    out_ = {};
    narrow_ = false;
    rex_ = 0;
    uint8_t op = byte();
    if (op == 0x66) {
      narrow_ = true;
      op = byte();
    }
    if (op >= 0x40 && op <= 0x4F) {
      rex_ = op;
      op = byte();
    }
    if (!decode(op) || at_ > code_.size()) return {};
    out_.length = at_ - begin_;
    return out_;
  }

 private:
  uint8_t byte() {
    const uint8_t b = at_ < code_.size() ? static_cast<uint8_t>(code_[at_]) : 0;
    at_++;
    return b;
  }

  bool decode(uint8_t op) {
    switch (op) {
      case 0x90:  // NOP
        return true;
      case 0xEB:  // JMP rel8
        jump();
        out_.always = true;
        return true;
      case 0x63:  // MOVSXD
      case 0x8A:
      case 0x8B:  // MOV
        return operands(kLoads, 0);
      case 0x38:
      case 0x39:
      case 0x3A:
      case 0x3B:  // CMP
      case 0x84:
      case 0x85:  // TEST
        return operands(kCompares, 0);
      case 0x3C:
      case 0xA8:  // CMP, TEST al, imm8
        at_ += 1;
        return true;
      case 0x3D:
      case 0xA9:  // CMP, TEST eax, imm
        at_ += narrow_ ? 2 : 4;
        return true;
      case 0x80:
      case 0x83:  // CMP r/m, imm8
        return digit() == 7 && operands(kCompares, 1);
      case 0x81:  // CMP r/m, imm
        return digit() == 7 && operands(kCompares, narrow_ ? 2 : 4);
      case 0xF6:  // TEST r/m, imm8
        return digit() == 0 && operands(kCompares, 1);
      case 0xF7:
        return digit() == 0 && operands(kCompares, narrow_ ? 2 : 4);
      case 0x0F:
        return decode_long(byte());
      default:
        if (op < 0x70 || op > 0x7F) return false;  // Jcc rel8
        jump();
        return true;
    }
  }

  bool decode_long(uint8_t op) {
    switch (op) {
      case 0x1F:  // NOP r/m
        return operands(kCompares, 0);
      case 0xB6:
      case 0xB7:
      case 0xBE:
      case 0xBF:  // MOVZX, MOVSX
        return operands(kLoads, 0);
      default:
        return false;
    }
  }

  void jump() {
    out_.jump = true;
    out_.offset = static_cast<int8_t>(byte());
  }

  uint8_t digit() const {
    return at_ < code_.size() ? (static_cast<uint8_t>(code_[at_]) >> 3) & 7 : 0;
  }

  enum Kind : uint8_t { kLoads, kCompares };

  /// ModRM, SIB and displacement. What is not loaded from memory may be a count: no such loop.
  bool operands(Kind kind, size_t immediate) {
    const uint8_t modrm = byte();
    const int mod = modrm >> 6, reg = ((modrm >> 3) & 7) | ((rex_ & 4) << 1), rm = modrm & 7;
    if (kind == kLoads) {
      if (mod == 3) return false;
      out_.loaded = 1U << reg;
    }
    if (mod != 3) {
      out_.memory = true;
      if (rm == 4) {
        const uint8_t sib = byte();
        const int index = ((sib >> 3) & 7) | ((rex_ & 2) << 2), base = sib & 7;
        if (index != 4) out_.used |= 1U << index;
        if (mod == 0 && base == 5) {
          at_ += 4;
        } else {
          out_.used |= 1U << (base | ((rex_ & 1) << 3));
        }
      } else if (mod == 0 && rm == 5) {
        at_ += 4;  // relative to the instruction pointer
      } else {
        out_.used |= 1U << (rm | ((rex_ & 1) << 3));
      }
      if (mod == 1) at_ += 1;
      if (mod == 2) at_ += 4;
    }
    at_ += immediate;
    return true;
  }

  std::string_view code_;
  size_t at_ = 0, begin_ = 0;
  bool narrow_ = false;
  uint8_t rex_ = 0;
  Instruction out_;
};

/// Whether a loop begins at `begin` that holds the instruction at `at` and changes nothing that its
/// loads depend on.
bool waits_from(Decoder& decoder, size_t begin, size_t at) {
  uint32_t loaded = 0, used = 0;
  bool held = false, memory = false;
  for (size_t here = begin; here < begin + kSpinLoopReach;) {
    held = held || here == at;
    if (!held && here > at) return false;
    const Instruction one = decoder.next(here);
    if (one.length == 0) return false;
    loaded |= one.loaded;
    used |= one.used;
    memory = memory || one.memory;
    here += one.length;
    if (one.jump && static_cast<ptrdiff_t>(here) + one.offset == static_cast<ptrdiff_t>(begin)) {
      return held && memory && (loaded & used) == 0;
    }
    if (one.always || (one.jump && one.offset < 0)) return false;
  }
  return false;
}

/// A jump that ends in F3 before a NOP is none.
bool has_hint(std::string_view code) {
  for (size_t at = 0; (at = code.find("\xF3\x90", at)) != std::string_view::npos; at++) {
    const uint8_t before = at > 0 ? static_cast<uint8_t>(code[at - 1]) : 0;
    if (before != 0xEB && (before & 0xF0) != 0x70) return true;
  }
  return false;
}

bool waits(std::string_view code, size_t at) {
  Decoder decoder(code);
  for (size_t begin = at > kSpinLoopReach ? at - kSpinLoopReach : 0; begin <= at; begin++) {
    if (waits_from(decoder, begin, at)) return true;
  }
  return false;
}

#elif defined(__aarch64__)

bool has_hint(std::string_view code) {
  using std::string_view_literals::operator""sv;
  return code.find("\x3F\x20\x03\xD5"sv) != std::string_view::npos ||
         code.find("\xDF\x3F\x03\xD5"sv) != std::string_view::npos;
}

bool waits(std::string_view, size_t) { return false; }

#endif

}  // namespace

bool is_spin_loop(std::string_view code, size_t at) {
  if (at > code.size()) return false;
  const size_t begin = at > kAround ? at - kAround : 0;
  return has_hint(code.substr(begin, at + kAround - begin)) || waits(code, at);
}

}  // namespace flatout::symbols
