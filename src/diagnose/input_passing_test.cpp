// Batches that were made in time and take long to pass on.
#include <gtest/gtest.h>
#include <sys/syscall.h>

#include <algorithm>
#include <string>

#include "base/contains.h"
#include "diagnose/diagnose.h"
#include "diagnose/testing/training_runs.h"

namespace flatout::diagnose {
namespace {

using model::Diagnosis;
using model::Finding;

const Line kLoop{"batches", "/home/u/train.py", 57};
const Line kNext{"__next__", "/x/site-packages/torch/utils/data/dataloader.py", 725};
const Line kGet{"get", "/usr/lib/python3.11/multiprocessing/queues.py", 122};
const Line kPoll{"poll", "/usr/lib/python3.11/multiprocessing/connection.py", 257};
const Line kConnect{"get_connection", "/usr/lib/python3.11/multiprocessing/resource_sharer.py", 86};
const Line kRow{"row", "/home/u/train.py", 22};

/// A worker opens a file for each sample, `makes` ms a batch, and the step of 2.5 ms takes over for
/// one more what it has made, or waits for it to come: so many batches.
Diagnosis passed(double makes, bool has_come, int batches = 1) {
  RunBuilder b;
  const Doing taking{ThreadState::kPoll, {kMain, kLoop, kNext, kGet, has_come ? kConnect : kPoll}};
  train(b, 200, 1, 2.5, taking);
  workers(b, 1, makes, {ThreadState::kKernel, {kRow}, SYS_openat}, 3.5 / batches - makes);
  b.machine(2, 0.8).process_cpu(100, 0.7).process_cpu(200, batches * makes / 3.5);
  return diagnose(b.build());
}

TEST(InputPassing, ABatchThatHasComeIsNotWaitedForByWhatMadeIt) {
  const Diagnosis d = passed(1.2, true);
  ASSERT_EQ(d.verdict, "input.collate") << d.headline;
  EXPECT_EQ(find(d, "input.small_files"), nullptr);
  EXPECT_NE(find(passed(1.2, false), "input.small_files"), nullptr);
}

TEST(InputPassing, WhatIsMadeSoonerThanTakenOverIsBetterMadeInTheLoop) {
  const auto says_so = [](const Diagnosis& d) {
    const Finding* f = find(d, "input.collate");
    return f != nullptr &&
           std::ranges::any_of(f->remedies, [](const auto& r) { return r.id == "in_the_loop"; });
  };
  EXPECT_TRUE(says_so(passed(0.4, true)));
  EXPECT_FALSE(says_so(passed(1.2, true)));
  EXPECT_FALSE(says_so(passed(0.4, true, 4))) << "0.25 ms each are taken over in";
}

}  // namespace
}  // namespace flatout::diagnose
