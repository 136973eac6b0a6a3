// System V ABI, AMD64 supplement, "Procedure Linkage Table" and "Relocation".
#include "symbols/imported_callee.h"

#include <elf.h>

#include <algorithm>

#include "base/bytes.h"

namespace flatout::symbols {
namespace {

#if defined(__x86_64__)

constexpr size_t kMaxRelocations = 1 << 16;
constexpr size_t kMaxName = 256;

int32_t displacement(std::string_view code) { return ByteReader(code).get<int32_t>(); }

/// The slot that an indirect jump or call at `vaddr` goes through: FF /2 or /4, relative to itself.
std::optional<uint64_t> slot_of(std::string_view code, uint64_t vaddr, char how) {
  if (code.size() < 6 || code[0] != '\xff' || code[1] != how) return std::nullopt;
  return vaddr + 6 + static_cast<uint64_t>(int64_t{displacement(code.substr(2))});
}

/// The slot of a stub: an indirect jump, where need be behind endbr64 and with a bnd prefix.
std::optional<uint64_t> slot_of_stub(const ElfFile& file, uint64_t vaddr) {
  const std::string bytes = file.bytes_at(vaddr, 16);
  std::string_view code = bytes;
  const auto skip = [&](std::string_view what) {
    if (!code.starts_with(what)) return;
    code.remove_prefix(what.size());
    vaddr += what.size();
  };
  skip("\xf3\x0f\x1e\xfa");
  skip("\xf2");
  return slot_of(code, vaddr, '\x25');
}

std::optional<std::string> import_in(const ElfFile& file, const ElfFile::Section& relocations,
                                     uint64_t slot) {
  const auto& sections = file.sections();
  if (relocations.link >= sections.size()) return std::nullopt;
  const ElfFile::Section& symbols = sections[relocations.link];
  if (symbols.type != SHT_DYNSYM || symbols.link >= sections.size()) return std::nullopt;
  const size_t count = std::min<uint64_t>(relocations.size / sizeof(Elf64_Rela), kMaxRelocations);
  const std::string table = file.bytes_at(relocations.vaddr, count * sizeof(Elf64_Rela));
  ByteReader entries(table);
  while (entries.left() >= sizeof(Elf64_Rela)) {
    const auto entry = entries.get<Elf64_Rela>();
    const auto type = ELF64_R_TYPE(entry.r_info);
    if (entry.r_offset != slot || (type != R_X86_64_JUMP_SLOT && type != R_X86_64_GLOB_DAT))
      continue;
    const uint64_t at = ELF64_R_SYM(entry.r_info) * sizeof(Elf64_Sym);
    if (at >= symbols.size) return std::nullopt;
    const std::string bytes = file.bytes_at(symbols.vaddr + at, sizeof(Elf64_Sym));
    ByteReader symbol(bytes);
    const auto s = symbol.get<Elf64_Sym>();
    if (!symbol.ok() || s.st_name >= sections[symbols.link].size) return std::nullopt;
    std::string name = file.bytes_at(sections[symbols.link].vaddr + s.st_name, kMaxName);
    name.resize(std::min(name.find('\0'), name.size()));
    if (name.empty()) return std::nullopt;
    return name;
  }
  return std::nullopt;
}

/// Bytes of an indirect call with this ModR/M byte and the one behind it, from FF on.
size_t length_of_indirect(uint8_t mod_rm, uint8_t sib) {
  const int mod = mod_rm >> 6, rm = mod_rm & 7;
  if (mod == 3) return 2;
  const size_t base = rm == 4 ? 3 : 2;
  if (mod == 1) return base + 1;
  const bool far = mod == 2 || (rm == 4 ? (sib & 7) == 5 : rm == 5);
  return far ? base + 4 : base;
}

#endif

}  // namespace

std::optional<std::string> imported_callee([[maybe_unused]] const ElfFile& file,
                                           [[maybe_unused]] uint64_t return_vaddr) {
#if defined(__x86_64__)
  constexpr uint64_t kNear = 5, kThroughSlot = 6;  // lengths of the two calls
  if (return_vaddr < kThroughSlot) return std::nullopt;
  const uint64_t begin = return_vaddr - kThroughSlot;
  const std::string code = file.bytes_at(begin, kThroughSlot);
  if (code.size() != kThroughSlot) return std::nullopt;
  std::optional<uint64_t> slot = slot_of(code, begin, '\x15');
  if (!slot && code[kThroughSlot - kNear] == '\xe8') {
    const int64_t distance = displacement(std::string_view(code).substr(2));
    slot = slot_of_stub(file, return_vaddr + static_cast<uint64_t>(distance));
  }
  if (!slot) return std::nullopt;
  for (const ElfFile::Section& section : file.sections()) {
    if (section.type != SHT_RELA) continue;
    if (auto name = import_in(file, section, *slot)) return name;
  }
#endif
  return std::nullopt;
}

bool is_behind_call([[maybe_unused]] const ElfFile& file, [[maybe_unused]] uint64_t return_vaddr) {
#if defined(__x86_64__)
  constexpr size_t kNear = 5, kLongest = 7;
  if (return_vaddr < kLongest) return false;
  const std::string code = file.bytes_at(return_vaddr - kLongest, kLongest);
  if (code.size() != kLongest) return false;
  const auto byte = [&](size_t back) { return static_cast<uint8_t>(code[kLongest - back]); };
  if (byte(kNear) == 0xe8) return true;
  for (size_t length = 2; length <= kLongest; ++length) {
    if (byte(length) != 0xff || (byte(length - 1) >> 3 & 7) != 2) continue;
    if (length_of_indirect(byte(length - 1), length > 2 ? byte(length - 2) : 0) == length)
      return true;
  }
  return false;
#else
  return true;
#endif
}

}  // namespace flatout::symbols
