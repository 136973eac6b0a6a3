#include "symbols/process_maps.h"

#include <gtest/gtest.h>

namespace flatout::symbols {
namespace {

TEST(ProcessMaps, ReadsFilesAnonymousMemoryAndNamesWithBlanks) {
  const auto maps = parse_maps(
      "555a00000000-555a00001000 r--p 00000000 fe:00 18834    /opt/my env/bin/python3.11\n"
      "555a00001000-555a00002000 r-xp 00001000 fe:00 18834    /opt/my env/bin/python3.11\n"
      "7f0000000000-7f0000010000 rw-p 00000000 00:00 0 \n"
      "7ffc00000000-7ffc00010000 rw-p 00000000 00:00 0        [stack]\n");
  ASSERT_EQ(maps.size(), 4u);
  EXPECT_EQ(maps[1].path, "/opt/my env/bin/python3.11");
  EXPECT_EQ(maps[1].offset, 0x1000u);
  EXPECT_EQ(maps[1].inode, 18834u);
  EXPECT_EQ(maps[1].device, maps[0].device);
  EXPECT_TRUE(maps[1].executable);
  EXPECT_TRUE(maps[0].is_file());
  EXPECT_FALSE(maps[2].is_file());
  EXPECT_FALSE(maps[3].is_file());
  EXPECT_EQ(maps[3].path, "[stack]");
}

TEST(ProcessMaps, FindsTheMappingOfAnAddress) {
  const auto maps = parse_maps("1000-2000 r--p 0 0:0 0 \n3000-4000 r--p 0 0:0 0 \n");
  ASSERT_EQ(maps.size(), 2u);
  EXPECT_EQ(find_mapping(maps, 0x1fff), &maps[0]);
  EXPECT_EQ(find_mapping(maps, 0x2000), nullptr);
  EXPECT_EQ(find_mapping(maps, 0x3000), &maps[1]);
  EXPECT_EQ(find_mapping(maps, 0), nullptr);
}

TEST(ProcessMaps, LeavesOutLinesThatMakeNoSense) {
  EXPECT_TRUE(parse_maps("\n\nx\n12-\n2000-1000 r--p 0 0:0 0\n-5 r--p\n").empty());
  EXPECT_EQ(parse_maps("1000-2000 r--p 0 0:0 0 /a\n1800-2800 r--p 0 0:0 0 /b\n").size(), 1u);
}

}  // namespace
}  // namespace flatout::symbols
