#include "symbols/elf.h"

#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <tuple>

#include "base/bytes.h"
#include "base/fs.h"

namespace flatout::symbols {
namespace {

constexpr size_t kMaxHeaders = 4096;         // program or section headers that are looked at
constexpr size_t kMaxNames = 1 << 20;        // bytes of section names
constexpr uint64_t kMaxSymbols = 20 << 20;   // symbols that are looked at, in all tables
constexpr uint64_t kMaxFunctions = 4 << 20;  // symbols of which functions() keeps starts
constexpr int kMaxTables = 8;
constexpr size_t kMaxName = 4096;
constexpr size_t kBlock = 4096;  // symbols read at a time

class FileSource : public ByteSource {
 public:
  FileSource(int fd, uint64_t size) : fd_(fd), size_(size) {}
  ~FileSource() override { close(fd_); }
  FileSource(const FileSource&) = delete;
  FileSource& operator=(const FileSource&) = delete;
  uint64_t size() const override { return size_; }
  std::string read(uint64_t offset, size_t size) const override {
    if (offset >= size_) return {};
    std::string out(std::min<uint64_t>(size, size_ - offset), '\0');
    size_t done = 0;
    while (done < out.size()) {
      const ssize_t n =
          pread(fd_, out.data() + done, out.size() - done, static_cast<off_t>(offset + done));
      if (n < 0 && errno == EINTR) continue;
      if (n <= 0) break;
      done += static_cast<size_t>(n);
    }
    out.resize(done);
    return out;
  }

 private:
  int fd_;
  uint64_t size_;
};

class StringSource : public ByteSource {
 public:
  explicit StringSource(std::string bytes) : bytes_(std::move(bytes)) {}
  uint64_t size() const override { return bytes_.size(); }
  std::string read(uint64_t offset, size_t size) const override {
    if (offset >= bytes_.size()) return {};
    return bytes_.substr(offset, size);
  }

 private:
  std::string bytes_;
};

std::string c_string(std::string_view table, uint64_t at) {
  if (at >= table.size()) return {};
  const std::string_view rest = table.substr(at, kMaxName);
  return std::string(rest.substr(0, rest.find('\0')));
}

}  // namespace

Result<ElfFile> ElfFile::open(const std::string& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
  if (fd < 0) return fs::error_from_errno(errno, "cannot read " + path);
  struct stat info {};
  if (fstat(fd, &info) != 0 || !S_ISREG(info.st_mode)) {
    close(fd);
    return Error{Code::kBadInput, path + " is not a file"};
  }
  return load(std::make_shared<FileSource>(fd, static_cast<uint64_t>(info.st_size)));
}

Result<ElfFile> ElfFile::parse(std::string bytes) {
  return load(std::make_shared<StringSource>(std::move(bytes)));
}

Result<ElfFile> ElfFile::load(std::shared_ptr<ByteSource> source) {
  ElfFile file(std::move(source));
  FLATOUT_TRY_STATUS(file.read_headers());
  return file;
}

Status ElfFile::read_headers() {
  const std::string head = source_->read(0, sizeof(Elf64_Ehdr));
  ByteReader reader(head);
  const auto header = reader.get<Elf64_Ehdr>();
  if (!reader.ok() || std::memcmp(header.e_ident, ELFMAG, SELFMAG) != 0 ||
      header.e_ident[EI_CLASS] != ELFCLASS64 || header.e_ident[EI_DATA] != ELFDATA2LSB) {
    return Error{Code::kBadInput, "not a 64-bit little-endian ELF file"};
  }
  if (header.e_phentsize == sizeof(Elf64_Phdr)) {
    const size_t count = std::min<size_t>(header.e_phnum, kMaxHeaders);
    const std::string data = source_->read(header.e_phoff, count * sizeof(Elf64_Phdr));
    ByteReader headers(data);
    while (headers.left() >= sizeof(Elf64_Phdr)) {
      const auto h = headers.get<Elf64_Phdr>();
      if (h.p_type != PT_LOAD) continue;
      segments_.push_back({h.p_offset, h.p_vaddr, h.p_filesz, h.p_memsz, (h.p_flags & PF_X) != 0});
    }
  }
  if (header.e_shentsize != sizeof(Elf64_Shdr)) return {};
  const size_t count = std::min<size_t>(header.e_shnum, kMaxHeaders);
  const std::string data = source_->read(header.e_shoff, count * sizeof(Elf64_Shdr));
  ByteReader headers(data);
  std::vector<uint32_t> names;
  while (headers.left() >= sizeof(Elf64_Shdr)) {
    const auto h = headers.get<Elf64_Shdr>();
    names.push_back(h.sh_name);
    sections_.push_back({"", h.sh_type, h.sh_link, h.sh_flags, h.sh_addr, h.sh_offset, h.sh_size});
  }
  if (header.e_shstrndx < sections_.size()) {
    const Section& strings = sections_[header.e_shstrndx];
    const std::string table =
        source_->read(strings.offset, std::min<uint64_t>(strings.size, kMaxNames));
    for (size_t i = 0; i < sections_.size(); i++) sections_[i].name = c_string(table, names[i]);
  }
  return {};
}

const ElfFile::Section* ElfFile::section(std::string_view name) const {
  for (const Section& s : sections_) {
    if (s.name == name) return &s;
  }
  return nullptr;
}

/// Calls visit(symbol, strings section) for each defined symbol until it returns false.
template <class F>
void ElfFile::each_symbol(F&& visit) const {
  uint64_t left = kMaxSymbols;
  int tables = kMaxTables;
  for (const uint32_t type : {uint32_t{SHT_DYNSYM}, uint32_t{SHT_SYMTAB}}) {
    for (const Section& table : sections_) {
      if (table.type != type || table.link >= sections_.size() || tables-- <= 0) continue;
      const uint64_t count = std::min<uint64_t>(table.size / sizeof(Elf64_Sym), left);
      left -= count;
      for (uint64_t i = 0; i < count; i += kBlock) {
        const std::string block =
            source_->read(table.offset + i * sizeof(Elf64_Sym),
                          std::min<uint64_t>(kBlock, count - i) * sizeof(Elf64_Sym));
        ByteReader symbols(block);
        if (block.size() < sizeof(Elf64_Sym)) break;
        while (symbols.left() >= sizeof(Elf64_Sym)) {
          const auto s = symbols.get<Elf64_Sym>();
          if (s.st_shndx == SHN_UNDEF || s.st_value == 0) continue;
          if (!visit(s, sections_[table.link])) return;
        }
      }
    }
  }
}

std::optional<ElfFile::Symbol> ElfFile::find(std::string_view name) const {
  std::optional<Symbol> found;
  const Section* loaded = nullptr;
  std::string strings;
  each_symbol([&](const Elf64_Sym& s, const Section& names) {
    if (loaded != &names) {
      loaded = &names;
      strings = source_->read(names.offset, std::min<uint64_t>(names.size, 64u << 20));
    }
    if (s.st_name >= strings.size() || strings.size() - s.st_name <= name.size()) return true;
    if (std::memcmp(strings.data() + s.st_name, name.data(), name.size()) != 0 ||
        strings[s.st_name + name.size()] != '\0') {
      return true;
    }
    found = Symbol{std::string(name), s.st_value, s.st_size};
    return false;
  });
  return found;
}

std::optional<ElfFile::Symbol> ElfFile::covering(uint64_t vaddr) const {
  Elf64_Sym best{};
  const Section* best_names = nullptr;
  each_symbol([&](const Elf64_Sym& s, const Section& names) {
    const unsigned type = ELF64_ST_TYPE(s.st_info);
    if (type != STT_FUNC && type != STT_GNU_IFUNC && type != STT_NOTYPE) return true;
    if (s.st_value > vaddr || (type == STT_NOTYPE && s.st_size == 0)) return true;
    // Assembly often has no size: such a symbol reaches to the next one.
    if (s.st_size != 0 && vaddr - s.st_value >= s.st_size) return true;
    if (best_names == nullptr || s.st_value > best.st_value ||
        (s.st_value == best.st_value && s.st_size > best.st_size)) {
      best = s;
      best_names = &names;
    }
    return true;
  });
  if (best_names == nullptr || (best.st_size == 0 && vaddr - best.st_value > 4096)) return {};
  const std::string name = source_->read(best_names->offset + best.st_name, kMaxName);
  if (best.st_name >= best_names->size) return {};
  return Symbol{c_string(name, 0), best.st_value, best.st_size};
}

const ElfFile::Section* ElfFile::function_symbols() const {
  for (const uint32_t type : {uint32_t{SHT_SYMTAB}, uint32_t{SHT_DYNSYM}}) {
    for (const Section& s : sections_) {
      if (s.type == type && s.link < sections_.size()) return &s;
    }
  }
  return nullptr;
}

std::vector<ElfFile::FunctionStart> ElfFile::functions() const {
  std::vector<FunctionStart> starts;
  const Section* table = function_symbols();
  if (table == nullptr) return starts;
  const uint64_t count = std::min<uint64_t>(table->size / sizeof(Elf64_Sym), kMaxFunctions);
  for (uint64_t i = 0; i < count;) {
    const std::string block =
        source_->read(table->offset + i * sizeof(Elf64_Sym),
                      std::min<uint64_t>(kBlock, count - i) * sizeof(Elf64_Sym));
    if (block.size() < sizeof(Elf64_Sym)) break;
    ByteReader symbols(block);
    for (; symbols.left() >= sizeof(Elf64_Sym); i++) {
      const auto s = symbols.get<Elf64_Sym>();
      const unsigned type = ELF64_ST_TYPE(s.st_info);
      if ((type != STT_FUNC && type != STT_GNU_IFUNC) || s.st_shndx == SHN_UNDEF) continue;
      if (s.st_value == 0 || s.st_value > UINT32_MAX) continue;
      starts.push_back({static_cast<uint32_t>(s.st_value), static_cast<uint32_t>(i)});
    }
  }
  std::sort(starts.begin(), starts.end(), [](const FunctionStart& a, const FunctionStart& b) {
    return std::tie(a.vaddr, a.symbol) < std::tie(b.vaddr, b.symbol);
  });
  return starts;
}

std::optional<ElfFile::Symbol> ElfFile::function_at(const std::vector<FunctionStart>& starts,
                                                    uint64_t vaddr) const {
  constexpr int kAliases = 8;       // of a function, and functions within another
  constexpr uint64_t kNear = 4096;  // assembly often has no size
  const Section* table = function_symbols();
  if (table == nullptr) return std::nullopt;
  auto at = std::upper_bound(starts.begin(), starts.end(), vaddr,
                             [](uint64_t a, const FunctionStart& b) { return a < b.vaddr; });
  for (int looked = 0; at != starts.begin() && looked < kAliases; ++looked) {
    --at;
    const std::string bytes =
        source_->read(table->offset + uint64_t{at->symbol} * sizeof(Elf64_Sym), sizeof(Elf64_Sym));
    ByteReader symbol(bytes);
    const auto s = symbol.get<Elf64_Sym>();
    if (!symbol.ok() || s.st_value != at->vaddr) return std::nullopt;  // the file was replaced
    if (vaddr - s.st_value >= (s.st_size != 0 ? s.st_size : kNear)) continue;
    const Section& names = sections_[table->link];
    if (s.st_name >= names.size) continue;
    return Symbol{c_string(source_->read(names.offset + s.st_name, kMaxName), 0), s.st_value,
                  s.st_size};
  }
  return std::nullopt;
}

std::optional<uint64_t> ElfFile::end_before(uint64_t vaddr) const {
  std::optional<uint64_t> end;
  each_symbol([&](const Elf64_Sym& s, const Section&) {
    const unsigned type = ELF64_ST_TYPE(s.st_info);
    if ((type == STT_FUNC || type == STT_GNU_IFUNC) && s.st_value < vaddr) {
      end = std::max(end.value_or(0), std::min(s.st_value + s.st_size, vaddr));
    }
    return true;
  });
  return end;
}

std::string ElfFile::bytes_at(uint64_t vaddr, size_t size) const {
  for (const Segment& s : segments_) {
    if (vaddr < s.vaddr || vaddr - s.vaddr >= s.file_size) continue;
    const uint64_t within = vaddr - s.vaddr;
    return source_->read(s.offset + within, std::min<uint64_t>(size, s.file_size - within));
  }
  return {};
}

std::optional<uint64_t> ElfFile::bias(uint64_t start, uint64_t offset) const {
  constexpr uint64_t kPage = 4096;  // alignment in the file never exceeds that of the mapping
  for (const Segment& s : segments_) {
    const uint64_t first = s.offset & ~(kPage - 1);
    if (offset < first || offset >= s.offset + std::max<uint64_t>(s.file_size, 1)) continue;
    return start - offset - (s.vaddr - s.offset);
  }
  return std::nullopt;
}

}  // namespace flatout::symbols
