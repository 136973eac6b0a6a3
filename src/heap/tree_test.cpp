#include "heap/tree.h"

#include <gtest/gtest.h>

#include <random>

namespace flatout::heap {
namespace {

Record job() {
  Record r;
  r.places = {{1, {"main", "/job/train.py", 40}},
              {2, {"load", "/job/data.py", 7}},
              {3, {"step", "/job/train.py", 12}}};
  const auto stack = [&](std::vector<uint32_t> places, uint64_t peak, uint64_t live) {
    RecordStack s;
    s.python = std::move(places);
    s.peak_bytes = peak;
    s.live_bytes = live;
    r.stacks.push_back(s);
  };
  stack({2, 1}, 700, 100);
  stack({3, 1}, 200, 200);
  stack({2, 3, 1}, 99, 0);
  stack({1}, 1, 0);
  stack({2, 1}, 0, 5000);
  stack({2, 2, 1}, 0, 50);  // nothing at the peak: no part of the picture
  return r;
}

TEST(HeapTree, AddsUpFromMainInwards) {
  const auto tree = heap_tree(job(), nullptr);
  ASSERT_EQ(tree.size(), 5u);
  EXPECT_EQ(tree[0].peak_bytes, 1000u);
  EXPECT_EQ(tree[0].live_bytes, 5350u);
  ASSERT_EQ(tree[0].children.size(), 1u);
  const TreeNode& main = tree[tree[0].children[0]];
  EXPECT_EQ(main.name, "main (train.py:40)");
  EXPECT_EQ(main.file, "/job/train.py");
  EXPECT_EQ(main.peak_bytes, 1000u);
  ASSERT_EQ(main.children.size(), 2u);  // largest first
  EXPECT_EQ(tree[main.children[0]].name, "load (data.py:7)");
  EXPECT_EQ(tree[main.children[0]].peak_bytes, 700u);
  const TreeNode& step = tree[main.children[1]];
  EXPECT_EQ(step.peak_bytes, 299u);
  EXPECT_EQ(tree[step.children.at(0)].name, "load (data.py:7)");
}

TEST(HeapTree, LeavesOutWhatIsSmall) {
  const auto tree = heap_tree(job(), nullptr, 0.2);
  ASSERT_EQ(tree.size(), 4u);
  for (const TreeNode& node : tree) EXPECT_GE(node.peak_bytes, 200u);
}

TEST(HeapTree, ChildrenNeverExceedTheirParent) {
  std::mt19937 random(3);
  Record r;
  for (uint32_t i = 0; i < 20; ++i) r.places[i] = {"f" + std::to_string(i), "x.py", i + 1};
  for (int i = 0; i < 300; ++i) {
    RecordStack s;
    for (uint32_t depth = random() % 12; depth > 0; --depth) s.python.push_back(random() % 20);
    s.peak_bytes = random() % 1000;
    r.stacks.push_back(s);
  }
  const auto tree = heap_tree(r, nullptr, 0.001);
  size_t reached = 1;
  for (const TreeNode& node : tree) {
    uint64_t sum = 0, last = UINT64_MAX;
    for (const uint32_t c : node.children) {
      sum += tree[c].peak_bytes;
      EXPECT_LE(tree[c].peak_bytes, last);
      last = tree[c].peak_bytes;
      ++reached;
    }
    EXPECT_LE(sum, node.peak_bytes);
  }
  EXPECT_EQ(reached, tree.size());
}

TEST(HeapTree, NothingIsOneEmptyNode) {
  const auto tree = heap_tree({}, nullptr);
  ASSERT_EQ(tree.size(), 1u);
  EXPECT_EQ(tree[0].peak_bytes, 0u);
}

}  // namespace
}  // namespace flatout::heap
