// ELF files of other processes are hostile: any bytes must give an answer or an error.
#include <cstdint>
#include <string>

#include "symbols/elf.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  auto file =
      flatout::symbols::ElfFile::parse(std::string(reinterpret_cast<const char*>(data), size));
  if (!file.ok()) return 0;
  (void)file->find("_PyRuntime");
  (void)file->find("");
  const auto functions = file->functions();
  for (size_t i = 0; i < functions.size() && i < 8; i++) {
    (void)file->function_at(functions, functions[i].vaddr);
  }
  for (const auto& segment : file->segments()) {
    (void)file->covering(segment.vaddr);
    (void)file->bytes_at(segment.vaddr, 64);
    (void)file->bias(segment.vaddr, segment.offset);
  }
  (void)file->section(".PyRuntime");
  return 0;
}
