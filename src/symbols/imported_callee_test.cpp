#include "symbols/imported_callee.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <iterator>

#include "symbols/process_maps.h"

namespace flatout::symbols {
namespace {

const void* returns_to = nullptr;

// Called by the C library from qsort(), which this file imports.
int compare(const void* a, const void* b) {
  return *static_cast<const int*>(a) - *static_cast<const int*>(b);
}

__attribute__((noinline)) int within(int value) {
  returns_to = __builtin_return_address(0);
  return value + 1;
}

std::string slurp(const char* path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

/// The address of `at` as the file of this program has it.
uint64_t vaddr_of(const ElfFile& file, const void* at) {
  const auto maps = parse_maps(slurp("/proc/self/maps"));
  const auto address = reinterpret_cast<uint64_t>(at);
  const Mapping* mapping = find_mapping(maps, address);
  const auto bias = mapping != nullptr ? file.bias(mapping->begin, mapping->offset) : std::nullopt;
  return bias ? address - *bias : 0;
}

__attribute__((noinline)) int sorts(int* numbers) {
  qsort(numbers, 3, sizeof(int), compare);
  return numbers[0];
}

TEST(ImportedCallee, IsWhatACallIntoAnotherLibraryNames) {
#if defined(__x86_64__)
  const auto file = ElfFile::open("/proc/self/exe");
  ASSERT_TRUE(file.ok());
  int numbers[] = {3, 1, 2};
  ASSERT_EQ(sorts(numbers), 1);
  // One of the places in the function is right behind the call.
  const uint64_t begin = vaddr_of(*file, reinterpret_cast<const void*>(&sorts));
  ASSERT_NE(begin, 0u);
  int found = 0;
  for (uint64_t at = begin; at < begin + 64; ++at) {
    found += imported_callee(*file, at).value_or("") == "qsort";
  }
  EXPECT_EQ(found, 1);
#else
  GTEST_SKIP() << "reads x86-64's calls only";
#endif
}

TEST(ImportedCallee, IsNoneWhereTheCallStaysInTheFile) {
  const auto file = ElfFile::open("/proc/self/exe");
  ASSERT_TRUE(file.ok());
  EXPECT_EQ(within(1), 2);
  EXPECT_FALSE(imported_callee(*file, vaddr_of(*file, returns_to)));
  EXPECT_FALSE(imported_callee(*file, 0));
  EXPECT_FALSE(imported_callee(*file, ~uint64_t{0}));
}

}  // namespace
}  // namespace flatout::symbols
