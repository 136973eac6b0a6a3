#include "diagnose/blame.h"

#include <gtest/gtest.h>

#include "diagnose/testing/run_builder.h"

namespace flatout::diagnose {
namespace {

TEST(Blame, APlaceIsReadFromItsEnd) {
  const auto where = parse_place("/home/u/a b: in x.py:27 in main");
  ASSERT_TRUE(where);
  EXPECT_EQ(where->file, "/home/u/a b: in x.py");
  EXPECT_EQ(where->line, 27);
  EXPECT_EQ(where->function, "main");
  for (const char* bad : {"", " in ", "x.py in f", "x.py:y in f", ":3 in f", "x.py:3"}) {
    EXPECT_FALSE(parse_place(bad)) << bad;
  }
}

TEST(Blame, ASettingOfTheTrainingProcessComesBeforeAWorkers) {
  RunBuilder b;
  b.run().info["pid.200.torch.num_threads.set_at"] = "/w.py:4 in init";
  EXPECT_EQ(setting_line(b.run(), "torch.num_threads.set_at")->line, 4);
  b.run().info["torch.num_threads.set_at"] = "/t.py:9 in main";
  EXPECT_EQ(setting_line(b.run(), "torch.num_threads.set_at")->line, 9);
  EXPECT_FALSE(setting_line(b.run(), "affinity.set_at"));
}

TEST(Blame, AGrowerIsOfTheProcessThatHasIt) {
  RunBuilder b;
  b.worker(200);
  b.run().info["pid.200.growth.0"] = "seen at /d.py:25 in __getitem__: 340 items, 1.00 a step";
  EXPECT_FALSE(grower(b.run(), 0, 1e6));
  const auto found = grower(b.run(), 1, 1e6);
  ASSERT_TRUE(found && found->where);
  EXPECT_EQ(found->name, "seen");
  EXPECT_EQ(found->where->line, 25);
  EXPECT_EQ(found->how, "340 items, 1.00 a step");
  b.run().info["growth.0"] = "losses: 12 items, 0.10 a step";
  EXPECT_EQ(grower(b.run(), 0, 1e6)->name, "losses");
  EXPECT_FALSE(grower(b.run(), 0, 1e6)->where);
}

TEST(Blame, WhatIsNextToNothingOfTheGrowthIsNotToBlame) {
  RunBuilder b;
  b.run().info["growth.0"] = "times at /t.py:9 in step: 500 items, 1.00 a step, 24 bytes each";
  EXPECT_FALSE(grower(b.run(), 0, 1e6));
  EXPECT_TRUE(grower(b.run(), 0, 100));
  b.run().info["growth.0"] += ", with its graph";
  EXPECT_TRUE(grower(b.run(), 0, 1e6));
  b.run().info["growth.0"] = "kept at /t.py:9 in step: 500 items, 2.00 a step, 40000 bytes each";
  EXPECT_TRUE(grower(b.run(), 0, 1e6));
}

TEST(Blame, TheLineThatOpensFilesIsOfTheProcessWhoseTheyAre) {
  RunBuilder b;
  b.worker(200);
  b.run().entities.push_back({model::EntityKind::kProcess, 200, model::kNoEntity, ""});
  const auto entity = static_cast<model::EntityId>(b.run().entities.size() - 1);
  b.run().info["descriptors.opened_at"] = "/t.py:9 in main";
  EXPECT_FALSE(opening_line(b.run(), entity));
  b.run().info["pid.200.descriptors.opened_at"] = "/d.py:27 in __getitem__";
  EXPECT_EQ(opening_line(b.run(), entity)->line, 27);
}

}  // namespace
}  // namespace flatout::diagnose
