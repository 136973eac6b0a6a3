#include "symbols/allocator_code.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "symbols/elf.h"

namespace flatout::symbols {
namespace {

// Libraries that are nothing but an allocator.
constexpr std::array<std::string_view, 5> kAllocators = {"tcmalloc", "jemalloc", "mimalloc",
                                                         "snmalloc", "flatout_malloc"};
// All in one object file of the GNU C library, with its static functions between them.
constexpr std::array<std::string_view, 6> kFunctions = {"malloc",  "free",        "calloc",
                                                        "realloc", "malloc_trim", "malloc_info"};

}  // namespace

AllocatorCode AllocatorCode::of(const std::vector<Mapping>& maps) {
  AllocatorCode out;
  for (const Mapping& m : maps) {
    if (!m.executable || !m.is_file()) continue;
    const std::string_view name = m.file_name();
    if (std::any_of(kAllocators.begin(), kAllocators.end(), [&](std::string_view allocator) {
          return name.find(allocator) != std::string_view::npos;
        })) {
      out.ranges_.emplace_back(m.begin, m.end);
      continue;
    }
    if (!m.is_c_library()) continue;
    const auto elf = ElfFile::open(m.path);
    if (!elf.ok()) continue;
    const auto bias = elf->bias(m.begin, m.offset);
    uint64_t begin = UINT64_MAX, end = 0;
    for (const std::string_view function : kFunctions) {
      if (const auto symbol = elf->find(function)) {
        begin = std::min(begin, symbol->value);
        end = std::max(end, symbol->value + symbol->size);
      }
    }
    if (!bias || begin >= end) continue;
    out.ranges_.emplace_back(*bias + elf->end_before(begin).value_or(begin), *bias + end);
  }
  return out;
}

bool AllocatorCode::holds(uint64_t address) const {
  return std::any_of(ranges_.begin(), ranges_.end(), [&](const auto& range) {
    return address >= range.first && address < range.second;
  });
}

bool AllocatorCode::is_called_from(std::string_view stack) const {
  for (size_t i = 0; i + sizeof(uint64_t) <= stack.size(); i += sizeof(uint64_t)) {
    uint64_t word = 0;
    std::memcpy(&word, stack.data() + i, sizeof word);
    if (holds(word)) return true;
  }
  return false;
}

}  // namespace flatout::symbols
