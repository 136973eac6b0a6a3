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

std::string disk_of(const fs::Root& root, const Mount& mount) {
  auto link = root.read_link("sys/dev/block/" + mount.device);
  // A file system over several devices has a number of its own; its source is one of them.
  if (!link.ok() && mount.source.starts_with("/dev/")) {
    link = root.read_link("sys/class/block/" + mount.source.substr(5));
  }
  if (!link.ok()) return "";
  // A partition's link ends in ".../vda/vda1", a whole disk's in ".../vda".
  const std::vector<std::string_view> parts = split(*link, '/');
  const std::string last(parts.back());
  if (parts.size() < 2) return last;
  const std::string whole(parts[parts.size() - 2]);
  return root.exists("sys/block/" + whole) ? whole : last;
}

const Mount* MountsById::find(const fs::Root& root, int32_t pid, int64_t mount_id, TimePoint now) {
  const auto known = mounts_.find(mount_id);
  if (known != mounts_.end()) return &known->second;
  if (now < next_read_) return nullptr;
  next_read_ = now + std::chrono::seconds(30);
  const auto text = root.read("proc/" + std::to_string(pid) + "/mountinfo", 1 << 20);
  if (!text.ok()) return nullptr;
  for (Mount& mount : parse_mountinfo(*text)) {
    const int64_t id = mount.id;
    mounts_.insert_or_assign(id, std::move(mount));
  }
  const auto found = mounts_.find(mount_id);
  return found == mounts_.end() ? nullptr : &found->second;
}

std::string MountsById::type_of(const fs::Root& root, int32_t pid, int64_t mount_id,
                                TimePoint now) {
  const Mount* mount = find(root, pid, mount_id, now);
  return mount == nullptr ? "" : mount->type;
}

}  // namespace flatout::probe
