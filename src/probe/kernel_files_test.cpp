#include "probe/kernel_files.h"

#include <gtest/gtest.h>

#include "probe/mount_table.h"
#include "probe/probes.h"
#include "probe/testing/fake_tree.h"
#include "probe/testing/record_sink.h"

namespace flatout::probe {
namespace {

using model::SignalId;

Scope machine() { return {.root = fs::Root(FLATOUT_TEST_DATA "/roots/machine")}; }

TEST(HostProbe, AddsUpTheCoresTime) {
  RecordSink sink;
  make_host_probe(machine())->read(time_point_ns(1'000'000'000), sink);
  const double tick = 1e9 / static_cast<double>(sysconf(_SC_CLK_TCK));
  EXPECT_EQ(sink.last(SignalId::kHostCpuBusy), (1000 + 20 + 300 + 7 + 8) * tick);
  EXPECT_EQ(sink.last(SignalId::kHostCpuIdle), 5000 * tick);
  EXPECT_EQ(sink.last(SignalId::kHostCpuIowait), 60 * tick);
  EXPECT_EQ(sink.last(SignalId::kHostCpuSteal), 90 * tick);
  EXPECT_EQ(sink.last(SignalId::kHostCores), 2);
  EXPECT_EQ(sink.last(SignalId::kHostRunnable), 3);
  EXPECT_EQ(sink.last(SignalId::kHostForks), 4321);
  EXPECT_EQ(sink.last(SignalId::kHostContextSwitches), 777);
  EXPECT_EQ(sink.last(SignalId::kHostPids), 456);
  EXPECT_EQ(sink.last(SignalId::kHostPidMax), 32768);
  EXPECT_EQ(sink.last(SignalId::kNetDelayedAcks), 118);
  EXPECT_EQ(sink.last(SignalId::kCpuBusy, 1), (500 + 10 + 150 + 4 + 4) * tick);
  EXPECT_FALSE(sink.last(SignalId::kCpuFrequency, 0));
  EXPECT_TRUE(sink.missing_signals.contains("cpu.frequency_hz"));
}

TEST(NetCounters, AreFoundByTheirNames) {
  const char* text = "TcpExt: A B\nTcpExt: 1 2\nIpExt: A C\nIpExt: 3\n";
  EXPECT_EQ(parse_net_counter(text, "TcpExt", "B"), 2);
  EXPECT_EQ(parse_net_counter(text, "IpExt", "A"), 3);
  for (const char* name : {"C", "D", ""}) EXPECT_FALSE(parse_net_counter(text, "IpExt", name));
  EXPECT_FALSE(parse_net_counter("TcpExt: A\nIpExt: 1\n", "TcpExt", "A")) << "no line of values";
}

TEST(MemoryProbe, ReadsMemoryReclaimAndFreeBlocks) {
  RecordSink sink;
  make_memory_probe(machine())->read(time_point_ns(10'000'000'000), sink);
  EXPECT_EQ(sink.last(SignalId::kMemTotal), 1000 * 1024);
  EXPECT_EQ(sink.last(SignalId::kMemAvailable), 400 * 1024);
  EXPECT_EQ(sink.last(SignalId::kMemCached), 300 * 1024);
  EXPECT_EQ(sink.last(SignalId::kMemHugeFree), 7);
  EXPECT_EQ(sink.last(SignalId::kSwapFree), 150 * 1024);
  EXPECT_EQ(sink.last(SignalId::kVmAllocStall), 1 + 2 + 4) << "the zones add up";
  EXPECT_EQ(sink.last(SignalId::kVmDirectScan), 50) << "without pgscan_direct_throttle";
  EXPECT_EQ(sink.last(SignalId::kVmRefaultFile), 12);
  EXPECT_EQ(sink.last(SignalId::kVmCompactStall), 8);
  EXPECT_EQ(sink.last(SignalId::kVmDropCaches), 2);
  // Blocks of order 9 (2 MiB) count once, of order 10 twice: 34 + 20 and 3 + 4.
  if (sysconf(_SC_PAGESIZE) == 4096) {
    EXPECT_EQ(sink.last(SignalId::kBuddyFree2M), 34 + 20 + 3 + 4);
  }
}

TEST(PressureProbe, SaysWhatIsMissingInsteadOfZero) {
  RecordSink sink;
  make_pressure_probe(machine())->read(time_point_ns(1), sink);
  EXPECT_FALSE(sink.last(SignalId::kPsiCpuSome));
  ASSERT_TRUE(sink.missing_signals.contains("psi"));
  EXPECT_EQ(sink.missing_signals["psi"].hint, "boot with psi=1");
}

TEST(PressureProbe, TurnsMicrosecondsIntoNanoseconds) {
  FakeTree tree;
  tree.write("proc/pressure/cpu", "some avg10=1.00 avg60=0.00 avg300=0.00 total=1500\n");
  tree.write("proc/pressure/io",
             "some avg10=0.00 avg60=0.00 avg300=0.00 total=20\nfull avg10=0 total=10\n");
  RecordSink sink;
  make_pressure_probe({.root = tree.root()})->read(time_point_ns(1), sink);
  EXPECT_EQ(sink.last(SignalId::kPsiCpuSome), 1500e3);
  EXPECT_EQ(sink.last(SignalId::kPsiIoFull), 10e3);
  EXPECT_FALSE(sink.last(SignalId::kPsiMemorySome));
}

TEST(DiskProbe, TakesWholeDisksThatAreUsed) {
  RecordSink sink;
  make_disk_probe(machine())->read(time_point_ns(1), sink);
  std::set<std::string> names;
  for (const model::Entity& entity : sink.run.entities) names.insert(entity.name);
  EXPECT_EQ(names, (std::set<std::string>{"vda", "nvme0n1"}));
  const int64_t vda = (254 << 8) | 0;
  EXPECT_EQ(sink.last(SignalId::kDiskReads, vda), 39532);
  EXPECT_EQ(sink.last(SignalId::kDiskReadBytes, vda), 5437290.0 * 512);
  EXPECT_EQ(sink.last(SignalId::kDiskReadTime, vda), 28480e6);
  EXPECT_EQ(sink.last(SignalId::kDiskQueue, vda), 2);
  EXPECT_EQ(sink.last(SignalId::kDiskBusy, vda), 18292e6);
  EXPECT_EQ(sink.last(SignalId::kDiskFlushTime, vda), 70e6);
  const int64_t nvme = (259 << 8) | 0;
  EXPECT_EQ(sink.last(SignalId::kDiskReads, nvme), 10);
  EXPECT_FALSE(sink.last(SignalId::kDiskFlushTime, nvme)) << "an old kernel's line has none";
}

TEST(EveryMachineProbe, SurvivesAnEmptyAndAGarbageRoot) {
  using namespace std::string_literals;
  FakeTree empty, garbage;
  for (const char* file : {"stat", "loadavg", "meminfo", "vmstat", "buddyinfo", "diskstats",
                           "pressure/cpu", "uptime", "net/netstat", "sys/kernel/pid_max"}) {
    garbage.write(std::string("proc/") + file,
                  "\xff\0 (( -1 99999999999999999999:\n\ncpu x\ncpu\n8 0\n"s);
  }
  for (const FakeTree* tree : {&empty, &garbage}) {
    RecordSink sink;
    const Scope scope{.root = tree->root()};
    for (auto make : {make_host_probe, make_memory_probe, make_pressure_probe, make_disk_probe,
                      make_neighbour_probe}) {
      make(scope)->read(time_point_ns(1), sink);
    }
    EXPECT_FALSE(sink.last(SignalId::kMemTotal));
    EXPECT_FALSE(sink.last(SignalId::kDiskReads));
  }
}

TEST(MountTable, FindsTheMountOfAPath) {
  const auto mounts = parse_mountinfo(
      "1 0 8:1 / / rw - ext4 /dev/sda1 rw\n"
      "2 1 0:5 / /data rw shared:3 master:4 - nfs4 server:/x rw,soft\n"
      "3 1 0:6 / /data\\040set rw - tmpfs tmpfs rw,size=64k\n"
      "4 1 0:7 / /data rw - xfs /dev/sdb rw\n"
      "garbage\n");
  ASSERT_EQ(mounts.size(), 4u);
  EXPECT_EQ(mount_of(mounts, "/home/x")->type, "ext4");
  EXPECT_EQ(mount_of(mounts, "/data/x")->type, "xfs") << "the later mount hides the earlier";
  EXPECT_EQ(mount_of(mounts, "/data set/x")->type, "tmpfs");
  EXPECT_EQ(mount_of(mounts, "/database")->type, "ext4");
  EXPECT_EQ(mount_of({}, "/"), nullptr);
}

TEST(MountTable, SaysWhereAFileSystemHasItsData) {
  for (const auto& [type, place] :
       {std::pair{"ext4", FsPlace::kDisk}, std::pair{"ntfs3", FsPlace::kDisk},
        std::pair{"tmpfs", FsPlace::kMemory}, std::pair{"overlay", FsPlace::kLayers},
        std::pair{"virtiofs", FsPlace::kHost}, std::pair{"9p", FsPlace::kHost},
        std::pair{"nfs4", FsPlace::kNetwork}, std::pair{"fuse.sshfs", FsPlace::kNetwork},
        std::pair{"fuseblk", FsPlace::kProgram}, std::pair{"fuse.mergerfs", FsPlace::kProgram},
        std::pair{"newfs", FsPlace::kUnknown}}) {
    EXPECT_EQ(place_of_fs(type), place) << type;
    const bool local =
        place == FsPlace::kDisk || place == FsPlace::kMemory || place == FsPlace::kLayers;
    EXPECT_EQ(is_local_fs(type), local) << type;
  }
  const auto mounts = parse_mountinfo(
      "1 0 8:1 / /disk rw - newfs /dev/sda1 rw\n2 0 0:5 / /other rw - newfs server:/x rw\n"
      "3 0 8:2 / /windows rw - fuseblk /dev/sda2 rw\n");
  ASSERT_EQ(mounts.size(), 3u);
  EXPECT_EQ(place_of(mounts[0]), FsPlace::kDisk);
  EXPECT_EQ(place_of(mounts[1]), FsPlace::kUnknown);
  EXPECT_EQ(place_of(mounts[2]), FsPlace::kProgram);
}

}  // namespace
}  // namespace flatout::probe
