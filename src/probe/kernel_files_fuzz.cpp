// Parsers of the machine's and the control groups' files: the first byte chooses the parser.
#include "base/text.h"
#include "probe/kernel_files.h"

#include "probe/cgroup_files.h"
#include "probe/mount_table.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace flatout::probe;
  if (size == 0) return 0;
  const std::string_view text(reinterpret_cast<const char*>(data) + 1, size - 1);
  switch (data[0] % 14) {
    case 0:
      parse_kernel_stat(text);
      break;
    case 1:
      parse_load_average(text);
      break;
    case 2:
      parse_disk_stats(text);
      break;
    case 3:
      parse_pressure(text);
      parse_net_counter(text, "TcpExt", "DelayedACKs");
      break;
    case 4:
      parse_buddy_free(text, 4096, 2 << 20);
      break;
    case 5:
      find_pair(text, "oom_kill");
      break;
    case 6:
      parse_cgroup_lines(text);
      break;
    case 7:
      parse_cgroup_mounts(text);
      break;
    case 8: {
      const auto mounts = parse_mountinfo(text);
      mount_of(mounts, "/dev/shm");
      break;
    }
    case 9:
      parse_limit(text);
      break;
    case 10:
      parse_cpu_max(text);
      break;
    case 11:
      parse_io_max(text);
      break;
    case 12:
      parse_io_stat(text);
      break;
    case 13:
      parse_blkio_cap(text);
      parse_blkio_bytes(text);
      flatout::unescape_octal(text);
      break;
  }
  return 0;
}
