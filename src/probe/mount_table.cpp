#include "probe/mount_table.h"

#include <algorithm>
#include <array>

#include "base/text.h"

namespace flatout::probe {
namespace {
constexpr size_t kMaxMounts = 8192;
}

std::vector<Mount> parse_mountinfo(std::string_view text) {
  std::vector<Mount> out;
  std::string_view line;
  while (next_line(text, line) && out.size() < kMaxMounts) {
    // "35 31 0:32 /root /point options... - type source super,options"
    const size_t dash = line.find(" - ");
    if (dash == std::string_view::npos) continue;
    std::string_view left = line.substr(0, dash), right = line.substr(dash + 3);
    Mount mount;
    const auto id = parse_number<int64_t>(next_word(left));
    next_word(left);  // parent
    mount.device = next_word(left);
    mount.root = unescape_octal(next_word(left));
    mount.point = unescape_octal(next_word(left));
    mount.options = next_word(left);
    mount.type = next_word(right);
    mount.source = unescape_octal(next_word(right));
    mount.super_options = trim(right);
    if (!id || !mount.point.starts_with('/') || mount.type.empty()) continue;
    mount.id = *id;
    out.push_back(std::move(mount));
  }
  return out;
}

const Mount* mount_of(const std::vector<Mount>& mounts, std::string_view path) {
  const Mount* best = nullptr;
  for (const Mount& mount : mounts) {
    const std::string_view point = mount.point;
    const bool inside =
        point == "/" ||
        (path.starts_with(point) && (path.size() == point.size() || path[point.size()] == '/'));
    // Later mounts hide earlier ones at the same point.
    if (inside && (best == nullptr || point.size() >= best->point.size())) best = &mount;
  }
  return best;
}

bool is_local_fs(std::string_view type) {
  constexpr std::array kLocal = {"ext2",  "ext3",     "ext4",  "xfs",     "btrfs",
                                 "tmpfs", "overlay",  "zfs",   "f2fs",    "vfat",
                                 "exfat", "squashfs", "erofs", "ramfs",   "rootfs",
                                 "aufs",  "bcachefs", "jfs",   "reiserfs"};
  return std::find(kLocal.begin(), kLocal.end(), type) != kLocal.end();
}

std::string MountTypes::type_of(const fs::Root& root, int32_t pid, int64_t mount_id,
                                TimePoint now) {
  const auto known = types_.find(mount_id);
  if (known != types_.end()) return known->second;
  if (now < next_read_) return "";
  next_read_ = now + std::chrono::seconds(30);
  const auto text = root.read("proc/" + std::to_string(pid) + "/mountinfo", 1 << 20);
  if (!text.ok()) return "";
  for (const Mount& mount : parse_mountinfo(*text)) types_[mount.id] = mount.type;
  const auto found = types_.find(mount_id);
  return found == types_.end() ? "" : found->second;
}

}  // namespace flatout::probe
