#include "devmem/recording.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <nlohmann/json.hpp>

#include "base/clock.h"
#include "base/fs.h"
#include "base/output.h"
#include "base/text.h"

namespace flatout::devmem {
namespace {

constexpr size_t kBuffer = size_t{64} << 10;

std::string json_text(std::string_view text) {
  return nlohmann::json(to_utf8(text))
      .dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

}  // namespace

Result<std::unique_ptr<LineFile>> LineFile::create(const std::string& path) {
  const std::string own = fmt::format("{}.{}", path, ::getpid());
  std::string name = path;
  for (int next = 1;; ++next) {
    const int fd = ::open(name.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_APPEND | O_CLOEXEC, 0600);
    if (fd >= 0) return std::unique_ptr<LineFile>(new LineFile(fd, std::move(name)));
    if (errno != EEXIST || next > 1000)
      return fs::error_from_errno(errno, "cannot write " + escape_terminal(name));
    name = next == 1 ? own : fmt::format("{}.{}", own, next);
  }
}

LineFile::~LineFile() {
  flush();
  ::close(fd_);
}

void LineFile::add(std::string_view line) {
  if (buffer_.size() + line.size() > kBuffer) flush();
  buffer_ += line;
}

void LineFile::flush() {
  // A full disk is no reason to stop the job.
  [[maybe_unused]] const Status written = fs::write_all(fd_, buffer_, path_);
  buffer_.clear();
}

Status Recording::write_to(const std::string& path) {
  FLATOUT_TRY(file_, LineFile::create(path));
  file_->add(head());
  file_->flush();
  return {};
}

void Recording::flush() {
  if (file_ != nullptr) file_->flush();
}

uint32_t Recording::site(std::string_view text) {
  if (text.empty()) return 0;
  const auto [it, is_new] = numbers_.try_emplace(std::string(text), sites_.size());
  if (is_new) sites_.emplace_back(text);
  return it->second;
}

void Recording::add(Kind kind, const RecordedBlock& block) {
  const Entry entry{block, MonotonicClock::now().time_since_epoch().count(), kind};
  if (file_ != nullptr) file_->add(line(entry));
  if (kept_ == 0) return;
  if (ring_.size() < kept_) {
    ring_.push_back(entry);
    return;
  }
  ring_[oldest_] = entry;
  oldest_ = (oldest_ + 1) % kept_;
}

void Recording::allocated(const RecordedBlock& block) { add(Kind::kAllocated, block); }
void Recording::freed(const RecordedBlock& block) { add(Kind::kFreed, block); }
void Recording::refused(Bytes size, Stream stream, uint32_t site) {
  add(Kind::kRefused, {0, size, stream, site});
  flush();  // it may well be the last thing that happens
}

std::string Recording::head() const {
  return fmt::format("{{\"op\":\"meta\",\"name\":{}}}\n", json_text(name_));
}

std::string Recording::line(const Entry& entry, bool before) const {
  const RecordedBlock& block = entry.block;
  if (entry.kind == Kind::kFreed)
    return fmt::format("{{\"op\":\"f\",\"id\":{},\"t\":{}}}\n", block.id, entry.at_ns);
  std::string out = entry.kind == Kind::kRefused
                        ? fmt::format("{{\"op\":\"oom\",\"size\":{}", block.size)
                        : fmt::format("{{\"op\":\"a\",\"id\":{},\"size\":{}", block.id, block.size);
  if (block.stream != 0) out += fmt::format(",\"stream\":{}", block.stream);
  if (block.site != 0) out += ",\"site\":" + json_text(sites_[block.site]);
  out += before ? ",\"pre\":1}\n" : fmt::format(",\"t\":{}}}\n", entry.at_ns);
  return out;
}

std::string Recording::lines(std::vector<RecordedBlock> live) const {
  // Ids count up, so what was born before the ring has one below the first birth in it.
  std::vector<const Entry*> entries;
  for (size_t i = 0; i < ring_.size(); ++i) entries.push_back(&ring_[(oldest_ + i) % ring_.size()]);
  uint64_t first = UINT64_MAX;
  for (const Entry* entry : entries)
    if (entry->kind == Kind::kAllocated) first = std::min(first, entry->block.id);
  for (const Entry* entry : entries)
    if (entry->kind == Kind::kFreed) live.push_back(entry->block);
  std::erase_if(live, [&](const RecordedBlock& block) { return block.id >= first; });
  std::sort(live.begin(), live.end(), [](auto& a, auto& b) { return a.id < b.id; });
  std::string out = head();
  for (const RecordedBlock& block : live) out += line({block, 0, Kind::kAllocated}, true);
  for (const Entry* entry : entries) out += line(*entry);
  return out;
}

}  // namespace flatout::devmem
