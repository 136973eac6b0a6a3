#include "feed/tar_index.h"

#include <fmt/format.h>

#include <array>
#include <cstring>

#include "base/bytes.h"
#include "base/text.h"

namespace flatout::feed {
namespace {

constexpr std::string_view kMagic = "FLTTARX1";

// Rows follow, then the names one after the other, then the verdict in words.
struct Header {
  char magic[8];
  uint64_t archive_bytes;
  uint64_t members;
  uint64_t names_bytes;
  // Of the archive's headers of its first and its last member: an archive that was written anew has
  // other times in them.
  uint32_t first_crc32;
  uint32_t last_crc32;
  uint32_t outcome;
  uint32_t crc32;  // of all behind this
};
struct Row {
  uint64_t offset;
  uint64_t bytes;
  uint64_t name_end;  // in the names; it begins where the one before ends
};
static_assert(sizeof(Header) == 48 && sizeof(Row) == 24);

// Of the block before a member's first byte; 0 where there is none.
Result<uint32_t> header_crc32(const DataFile& file, uint64_t member_offset) {
  std::array<uint8_t, 512> block{};
  if (member_offset < block.size()) return 0;
  FLATOUT_TRY(const size_t got, file.read(member_offset - block.size(), block));
  return crc32({reinterpret_cast<const char*>(block.data()), got});
}

}  // namespace

std::string tar_index_path(const std::string& tar) { return tar + ".index"; }

Result<TarIndexed> write_tar_index(const std::string& tar) {
  FLATOUT_TRY(const DataFile file, DataFile::open(tar));
  std::string rows, names;
  uint64_t first = 0, last = 0;
  TarIndexed out;
  FLATOUT_TRY(out.verdict, walk_tar(file, [&](const TarMember& member) {
                names += member.name;
                put(rows, Row{member.offset, member.bytes, names.size()});
                if (out.members++ == 0) first = member.offset;
                last = member.offset;
              }));
  Header header{};
  std::memcpy(header.magic, kMagic.data(), sizeof header.magic);
  header.archive_bytes = file.bytes();
  header.members = out.members;
  header.names_bytes = names.size();
  FLATOUT_TRY(header.first_crc32, header_crc32(file, first));
  FLATOUT_TRY(header.last_crc32, header_crc32(file, last));
  header.outcome = static_cast<uint32_t>(out.verdict.outcome);
  rows += names;
  rows += out.verdict.detail;
  header.crc32 = crc32(rows);
  FLATOUT_TRY(const auto writer, FileWriter::create(tar_index_path(tar)));
  FLATOUT_TRY_STATUS(writer->append(std::string(sizeof header, '\0')));
  FLATOUT_TRY_STATUS(writer->append(rows));
  FLATOUT_TRY_STATUS(writer->finish({reinterpret_cast<const char*>(&header), sizeof header}));
  return out;
}

Result<Verdict> walk_tar_index(const std::string& tar, const DataFile& file,
                               const std::function<void(const TarMember&)>& each) {
  const std::string path = tar_index_path(tar);
  FLATOUT_TRY(const auto map, MappedFile::open(path));
  const auto bad = [&](std::string_view what) {
    return Error{Code::kBadInput, fmt::format("{} {}", escape_terminal(path), what),
                 "make it again: flatout feed index"};
  };
  const std::string_view bytes = map->bytes();
  Header header{};
  if (bytes.size() < sizeof header || !bytes.starts_with(kMagic))
    return bad("is no index of a tar");
  std::memcpy(&header, bytes.data(), sizeof header);
  const std::string_view body = bytes.substr(sizeof header);
  if (header.members > body.size() / sizeof(Row) ||
      header.names_bytes > body.size() - header.members * sizeof(Row) ||
      header.outcome >= kOutcomes || crc32(body) != header.crc32)
    return bad("is damaged");
  const auto row = [&](uint64_t i) {
    Row out{};
    std::memcpy(&out, body.data() + i * sizeof out, sizeof out);
    return out;
  };
  const std::string_view names = body.substr(header.members * sizeof(Row), header.names_bytes);
  uint64_t begin = 0;
  for (uint64_t i = 0; i < header.members; ++i) {
    const Row member = row(i);
    if (member.name_end < begin || member.name_end > names.size()) return bad("is damaged");
    begin = member.name_end;
  }
  const bool any = header.members > 0;
  FLATOUT_TRY(const uint32_t first, header_crc32(file, any ? row(0).offset : 0));
  FLATOUT_TRY(const uint32_t last, header_crc32(file, any ? row(header.members - 1).offset : 0));
  if (header.archive_bytes != file.bytes() || first != header.first_crc32 ||
      last != header.last_crc32)
    return bad("is of another archive than the one beside it");
  begin = 0;
  for (uint64_t i = 0; i < header.members; ++i) {
    const Row member = row(i);
    each({std::string(names.substr(begin, member.name_end - begin)), member.offset, member.bytes});
    begin = member.name_end;
  }
  return Verdict{static_cast<Outcome>(header.outcome),
                 std::string(body.substr(header.members * sizeof(Row) + names.size()))};
}

}  // namespace flatout::feed
