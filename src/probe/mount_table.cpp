#include "probe/mount_table.h"

#include <algorithm>
#include <utility>

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

FsPlace place_of_fs(std::string_view type) {
  constexpr std::pair<std::string_view, FsPlace> kTypes[] = {
      {"ext2", FsPlace::kDisk},
      {"ext3", FsPlace::kDisk},
      {"ext4", FsPlace::kDisk},
      {"xfs", FsPlace::kDisk},
      {"btrfs", FsPlace::kDisk},
      {"bcachefs", FsPlace::kDisk},
      {"zfs", FsPlace::kDisk},
      {"f2fs", FsPlace::kDisk},
      {"vfat", FsPlace::kDisk},
      {"exfat", FsPlace::kDisk},
      {"ntfs", FsPlace::kDisk},
      {"ntfs3", FsPlace::kDisk},
      {"hfsplus", FsPlace::kDisk},
      {"iso9660", FsPlace::kDisk},
      {"udf", FsPlace::kDisk},
      {"squashfs", FsPlace::kDisk},
      {"erofs", FsPlace::kDisk},
      {"jfs", FsPlace::kDisk},
      {"reiserfs", FsPlace::kDisk},
      {"tmpfs", FsPlace::kMemory},
      {"ramfs", FsPlace::kMemory},
      {"rootfs", FsPlace::kMemory},
      {"overlay", FsPlace::kLayers},
      {"aufs", FsPlace::kLayers},
      {"9p", FsPlace::kHost},
      {"virtiofs", FsPlace::kHost},
      {"vboxsf", FsPlace::kHost},
      {"vmhgfs", FsPlace::kHost},
      {"fuse.vmhgfs-fuse", FsPlace::kHost},
      {"prl_fs", FsPlace::kHost},
      {"nfs", FsPlace::kNetwork},
      {"nfs4", FsPlace::kNetwork},
      {"cifs", FsPlace::kNetwork},
      {"smb3", FsPlace::kNetwork},
      {"ceph", FsPlace::kNetwork},
      {"lustre", FsPlace::kNetwork},
      {"gpfs", FsPlace::kNetwork},
      {"beegfs", FsPlace::kNetwork},
      {"wekafs", FsPlace::kNetwork},
      {"afs", FsPlace::kNetwork},
      {"pvfs2", FsPlace::kNetwork},
      {"ocfs2", FsPlace::kNetwork},
      {"gfs2", FsPlace::kNetwork},
      {"fuse.sshfs", FsPlace::kNetwork},
      {"fuse.s3fs", FsPlace::kNetwork},
      {"fuse.mountpoint-s3", FsPlace::kNetwork},
      {"fuse.goofys", FsPlace::kNetwork},
      {"fuse.gcsfuse", FsPlace::kNetwork},
      {"fuse.blobfuse2", FsPlace::kNetwork},
      {"fuse.rclone", FsPlace::kNetwork},
      {"fuse.glusterfs", FsPlace::kNetwork},
      {"fuse.ceph-fuse", FsPlace::kNetwork},
  };
  for (const auto& [name, place] : kTypes) {
    if (name == type) return place;
  }
  const bool fuse = type == "fuse" || type == "fuseblk" || type.starts_with("fuse.");
  return fuse ? FsPlace::kProgram : FsPlace::kUnknown;
}

FsPlace place_of(const Mount& mount) {
  const FsPlace place = place_of_fs(mount.type);
  // The kernel gives the major number 0 to what is on no block device.
  const bool on_device = !mount.device.empty() && !mount.device.starts_with("0:");
  return place == FsPlace::kUnknown && on_device ? FsPlace::kDisk : place;
}

bool is_local_fs(std::string_view type) {
  const FsPlace place = place_of_fs(type);
  return place == FsPlace::kDisk || place == FsPlace::kMemory || place == FsPlace::kLayers;
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
  std::string last(parts.back());
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
