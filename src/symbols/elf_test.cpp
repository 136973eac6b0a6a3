#include "symbols/elf.h"

#include <elf.h>
#include <gtest/gtest.h>

#include <cstring>
#include <fstream>
#include <iterator>

#include "symbols/process_maps.h"

// Found by name and by address in this very program.
extern "C" {
__attribute__((noinline, used)) int flatout_elf_test_function(int x) { return x * 7 + 1; }
int flatout_elf_test_data = 42;
}

namespace flatout::symbols {
namespace {

std::string slurp(const char* path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

TEST(Elf, FindsSymbolsOfThisProgramWhereTheyAre) {
  const auto file = ElfFile::open("/proc/self/exe");
  ASSERT_TRUE(file.ok()) << file.error().message;
  const auto function = file->find("flatout_elf_test_function");
  const auto data = file->find("flatout_elf_test_data");
  ASSERT_TRUE(function && data);
  EXPECT_EQ(data->size, sizeof(int));

  const auto maps = parse_maps(slurp("/proc/self/maps"));
  const auto address = reinterpret_cast<uint64_t>(&flatout_elf_test_function);
  const Mapping* mapping = find_mapping(maps, address);
  ASSERT_NE(mapping, nullptr);
  const auto bias = file->bias(mapping->begin, mapping->offset);
  ASSERT_TRUE(bias);
  EXPECT_EQ(function->value + *bias, address);
  EXPECT_EQ(data->value + *bias, reinterpret_cast<uint64_t>(&flatout_elf_test_data));

  const auto covering = file->covering(address + 1 - *bias);
  ASSERT_TRUE(covering);
  EXPECT_EQ(covering->name, "flatout_elf_test_function");
}

TEST(Elf, FindsAFunctionByItsTableOfFunctions) {
  const auto file = ElfFile::open("/proc/self/exe");
  ASSERT_TRUE(file.ok());
  const auto function = file->find("flatout_elf_test_function");
  ASSERT_TRUE(function);
  const auto starts = file->functions();
  const auto found = file->function_at(starts, function->value + 1);
  ASSERT_TRUE(found);
  EXPECT_EQ(found->name, "flatout_elf_test_function");
  EXPECT_EQ(found->value, function->value);
  EXPECT_FALSE(file->function_at(starts, 1));
  EXPECT_FALSE(file->function_at({}, function->value));
}

TEST(Elf, ReadsBytesAtAVirtualAddress) {
  const auto file = ElfFile::open("/proc/self/exe");
  ASSERT_TRUE(file.ok());
  const auto data = file->find("flatout_elf_test_data");
  ASSERT_TRUE(data);
  EXPECT_EQ(file->bytes_at(data->value, 4), std::string("\x2a\0\0\0", 4));
  EXPECT_EQ(file->bytes_at(~uint64_t{0} - 8, 4), "");
}

TEST(Elf, KnowsSectionsAndUnknownNames) {
  const auto file = ElfFile::open("/proc/self/exe");
  ASSERT_TRUE(file.ok());
  ASSERT_NE(file->section(".text"), nullptr);
  EXPECT_EQ(file->section(".no_such_section"), nullptr);
  EXPECT_FALSE(file->find("no_such_symbol"));
  EXPECT_FALSE(file->covering(1));
}

TEST(Elf, RefusesWhatIsNoElfFile) {
  EXPECT_EQ(ElfFile::open("/nonexistent").error().code, Code::kNotFound);
  EXPECT_EQ(ElfFile::open("/").error().code, Code::kBadInput);
  EXPECT_EQ(ElfFile::open("/dev/zero").error().code, Code::kBadInput);
  EXPECT_EQ(ElfFile::parse("").error().code, Code::kBadInput);
  EXPECT_EQ(ElfFile::parse("\177ELF").error().code, Code::kBadInput);
  std::string big_endian(sizeof(Elf64_Ehdr), '\0');
  big_endian.replace(0, 6, "\177ELF\2\2");
  EXPECT_EQ(ElfFile::parse(big_endian).error().code, Code::kBadInput);
}

TEST(Elf, StandsAFileThatIsCutOffAnywhere) {
  const std::string whole = slurp("/proc/self/exe");
  for (size_t part = 1; part < 40; part++) {
    const auto file = ElfFile::parse(whole.substr(0, whole.size() * part / 40));
    if (!file.ok()) continue;
    (void)file->find("flatout_elf_test_function");
    (void)file->covering(0x5000);
    (void)file->function_at(file->functions(), 0x5000);
  }
}

TEST(Elf, StandsHeadersThatPointOutside) {
  std::string bytes(sizeof(Elf64_Ehdr) + 2 * sizeof(Elf64_Shdr), '\xff');
  Elf64_Ehdr header{};
  std::copy_n("\177ELF\2\1", 6, header.e_ident);
  header.e_phoff = ~uint64_t{0} - 8;
  header.e_phnum = 0xffff;
  header.e_phentsize = sizeof(Elf64_Phdr);
  header.e_shoff = sizeof header;
  header.e_shnum = 2;
  header.e_shentsize = sizeof(Elf64_Shdr);
  std::memcpy(bytes.data(), &header, sizeof header);
  Elf64_Shdr table{};
  table.sh_type = SHT_DYNSYM;
  table.sh_link = 1;
  table.sh_offset = 0;
  table.sh_size = ~uint64_t{0};
  std::memcpy(bytes.data() + sizeof header, &table, sizeof table);
  const auto file = ElfFile::parse(bytes);
  ASSERT_TRUE(file.ok());
  EXPECT_FALSE(file->find("x"));
  EXPECT_FALSE(file->covering(64));
  EXPECT_TRUE(file->functions().size() < 64);
}

}  // namespace
}  // namespace flatout::symbols
