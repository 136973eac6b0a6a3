// ELF files: symbols, sections and segments (System V gABI; 64-bit little-endian only).
//
// The file is read piece by piece with bounds on each, never mapped: another process's binary may
// be hostile, or be cut off while we read it.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace flatout::symbols {

/// Where the bytes of an ELF file come from.
class ByteSource {
 public:
  virtual ~ByteSource() = default;
  virtual uint64_t size() const = 0;
  /// Up to `size` bytes at `offset`; shorter at the end of the file.
  virtual std::string read(uint64_t offset, size_t size) const = 0;
};

class ElfFile {
 public:
  struct Segment {
    uint64_t offset = 0, vaddr = 0, file_size = 0, mem_size = 0;
    bool executable = false;
  };
  struct Section {
    std::string name;
    uint32_t type = 0, link = 0;
    uint64_t flags = 0, vaddr = 0, offset = 0, size = 0;
  };
  struct Symbol {
    std::string name;
    uint64_t value = 0, size = 0;
  };

  /// Errors: kNotFound, kDenied, kBadInput (not a 64-bit little-endian ELF file).
  static Result<ElfFile> open(const std::string& path);
  static Result<ElfFile> parse(std::string bytes);

  const std::vector<Segment>& segments() const { return segments_; }  // PT_LOAD
  const std::vector<Section>& sections() const { return sections_; }
  const Section* section(std::string_view name) const;
  /// The defined symbol of that name, from .dynsym, else .symtab.
  std::optional<Symbol> find(std::string_view name) const;
  /// The function (or data object) that covers `vaddr`. Streams through the tables: slow, cache it.
  std::optional<Symbol> covering(uint64_t vaddr) const;
  /// Where functions begin, by address, of .symtab or else .dynsym: a megabyte for 130,000 of them.
  /// Addresses from 4 GiB are left out. Then function_at() is fast.
  struct FunctionStart {
    uint32_t vaddr, symbol;  // symbol: its number in the table
  };
  std::vector<FunctionStart> functions() const;
  /// The function that covers `vaddr`; nullopt where none does. `starts`: functions() of this file.
  std::optional<Symbol> function_at(const std::vector<FunctionStart>& starts, uint64_t vaddr) const;
  /// Where the last function ends that begins before `vaddr`. Slow, too.
  std::optional<uint64_t> end_before(uint64_t vaddr) const;
  /// Bytes at a virtual address, as the file holds them.
  std::string bytes_at(uint64_t vaddr, size_t size) const;
  /// What to add to a symbol's value where the mapping [start, ...) of file offset `offset` lies.
  std::optional<uint64_t> bias(uint64_t start, uint64_t offset) const;

 private:
  explicit ElfFile(std::shared_ptr<ByteSource> source) : source_(std::move(source)) {}
  static Result<ElfFile> load(std::shared_ptr<ByteSource> source);
  Status read_headers();
  template <class F>
  void each_symbol(F&& visit) const;
  const Section* function_symbols() const;

  std::shared_ptr<ByteSource> source_;
  std::vector<Segment> segments_;
  std::vector<Section> sections_;
};

}  // namespace flatout::symbols
