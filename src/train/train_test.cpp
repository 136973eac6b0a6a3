#include "train/train.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <set>

#include "train/images.h"
#include "train/inject.h"
#include "train/loader.h"
#include "train/network.h"

namespace flatout::train {
namespace {

TEST(Images, AreTheSameForTheSameSeed) {
  EXPECT_EQ(draw_image(1, 5).rgb, draw_image(1, 5).rgb);
  EXPECT_NE(draw_image(1, 5).rgb, draw_image(2, 5).rgb);
  std::set<int> labels;
  for (uint64_t i = 0; i < 50; ++i) labels.insert(draw_image(1, i).label);
  EXPECT_EQ(labels.size(), static_cast<size_t>(kClasses));
}

TEST(Images, SurviveEncodingAndDecoding) {
  const Image image = draw_image(3, 4, 64);
  const Result<Image> back = decode_image(encode_image(image));
  ASSERT_TRUE(back.ok());
  EXPECT_EQ(back->rgb, image.rgb);
  EXPECT_EQ(back->label, image.label);
}

TEST(Images, DamagedBytesAreAnErrorNotACrash) {
  const std::string good = encode_image(draw_image(3, 4));
  for (size_t cut = 0; cut < good.size(); cut += 7) {
    EXPECT_FALSE(decode_image(std::string_view(good).substr(0, cut)).ok());
  }
  std::string huge = good;
  huge[7] = '\x7f';
  EXPECT_FALSE(decode_image(huge).ok());
}

TEST(Images, ScalingDownTakesTheMean) {
  Image image;
  image.side = 64;
  image.rgb.assign(size_t{64} * 64 * 3, 10);
  image.rgb[0] = 50;
  EXPECT_EQ(scale_down(image, 32).rgb[0], 20);
  EXPECT_EQ(scale_down(image, 32).rgb[1], 10);
}

Batch small_batch(int count) {
  Batch batch;
  for (int i = 0; i < count; ++i) {
    const Image image = draw_image(9, static_cast<uint64_t>(i));
    batch.labels.push_back(image.label);
    for (size_t c = 0; c < 3; ++c) {
      for (size_t p = 0; p < size_t{kSide} * kSide; ++p) {
        batch.x.push_back(static_cast<float>(image.rgb[p * 3 + c]) / 127.5f - 1.0f);
      }
    }
  }
  return batch;
}

TEST(Network, GradientsAgreeWithFiniteDifferences) {
  // A small step against the gradient lowers the loss by rate * |gradient|^2, to first order; the
  // gradient is what update() subtracted.
  const Batch batch = small_batch(4);
  Pool pool(1);
  Network network(2, 1);
  const double before = network.forward(batch, pool).loss;
  const std::vector<float> old = network.weights();
  network.backward(batch, pool);
  const float rate = 1e-5f;
  network.update(rate, 0);
  double square = 0;
  for (size_t i = 0; i < old.size(); ++i) {
    const double g = (old[i] - network.weights()[i]) / rate;
    square += g * g;
  }
  const double after = network.forward(batch, pool).loss;
  EXPECT_NEAR((before - after) / (rate * square), 1, 0.05);
}

TEST(Network, ResultsDoNotDependOnTheNumberOfThreads) {
  const Batch batch = small_batch(8);
  std::vector<std::vector<float>> weights;
  for (const int threads : {1, 2, 5}) {
    Pool pool(threads, threads == 5);
    Network network(4, 1);
    for (int i = 0; i < 3; ++i) {
      network.forward(batch, pool);
      network.backward(batch, pool);
      network.update(0.05f, 0.9f);
    }
    weights.push_back(network.weights());
  }
  EXPECT_EQ(weights[0], weights[1]);
  EXPECT_EQ(weights[0], weights[2]);
}

TEST(Network, LearnsABatchByHeart) {
  const Batch batch = small_batch(8);
  Pool pool(1);
  Network network(4, 1);
  const double first = network.forward(batch, pool).loss;
  double last = first;
  for (int i = 0; i < 40; ++i) {
    last = network.forward(batch, pool).loss;
    network.backward(batch, pool);
    network.update(0.02f, 0.9f);
  }
  EXPECT_LT(last, first * 0.5);
}

TEST(Loader, BatchesDoNotDependOnTheNumberOfThreads) {
  const auto source = memory_source(1, 64, kSide, 64);
  std::vector<std::vector<float>> first;
  for (const int threads : {1, 3}) {
    for (const Collate collate : {Collate::kOnce, Collate::kConcatenation}) {
      LoaderOptions options;
      options.threads = threads;
      options.batch = 8;
      options.samples = 64;
      options.batches = 10;
      options.collate = collate;
      Loader loader(*source, options);
      std::vector<std::vector<float>> seen;
      for (int i = 0; i < 10; ++i) seen.push_back(loader.next().value().x);
      if (first.empty()) first = seen;
      EXPECT_EQ(seen, first);
    }
  }
}

TEST(Loader, AnEpochHasEverySampleOnce) {
  const auto source = memory_source(1, 64, kSide, 1);
  LoaderOptions options;
  options.batch = 16;
  options.samples = 64;
  options.batches = 0;
  Loader loader(*source, options);
  std::set<size_t> seen;
  for (int64_t b = 0; b < 4; ++b) {
    for (const size_t id : loader.samples_of(b)) seen.insert(id);
  }
  EXPECT_EQ(seen.size(), 64u);
  EXPECT_NE(loader.samples_of(0), loader.samples_of(4));
}

TEST(Loader, CanBeDroppedWhileItsThreadsWait) {
  const auto source = memory_source(1, 64, kSide, 1);
  LoaderOptions options;
  options.batches = 100;
  Loader loader(*source, options);
  EXPECT_TRUE(loader.next().ok());
}

TEST(Sources, AllGiveTheSameSamplesWhateverHoldsThem) {
  const auto memory = memory_source(1, 16, kSide, 16);
  using Maker = Result<std::unique_ptr<Source>> (*)(uint64_t, size_t, const std::string&);
  for (const Maker make :
       {Maker(small_files_source), Maker(archive_source), Maker(command_source)}) {
    auto folder = TemporaryFolder::make("");
    ASSERT_TRUE(folder.ok());
    auto source = make(1, 16, (*folder)->path());
    ASSERT_TRUE(source.ok());
    EXPECT_EQ((*source)->read(7)->rgb, memory->read(7)->rgb);
    EXPECT_EQ((*source)->read(7)->label, memory->read(7)->label);
  }
}

TEST(Sources, LeaveNoFilesBehind) {
  std::string path;
  {
    auto folder = TemporaryFolder::make("");
    ASSERT_TRUE(folder.ok());
    path = (*folder)->path();
    ASSERT_TRUE(small_files_source(1, 2, path).ok());
  }
  EXPECT_FALSE(std::filesystem::exists(path));
}

TEST(Train, KnowsItsCauses) {
  EXPECT_GE(causes().size(), 13u);
  EXPECT_TRUE(parse_causes({"input.decode_cpu"}).value().has(Cause::kDecodeCpu));
  EXPECT_TRUE(parse_causes({"none"}).value().none());
  EXPECT_EQ(parse_causes({"nonsense"}).error().code, Code::kBadInput);
  EXPECT_NE(cause_list().find("stall.hang"), std::string::npos);
}

TEST(Train, TakesSeveralCausesThatDoNotExcludeEachOther) {
  const auto both = parse_causes({"input.collate", "stall.logging", "input.small_files"});
  ASSERT_TRUE(both.ok());
  for (const Cause c : {Cause::kCollate, Cause::kLogging, Cause::kSmallFiles}) {
    EXPECT_TRUE(both->has(c));
  }
  EXPECT_FALSE(both->has(Cause::kLeak));
  EXPECT_EQ(make_plan(*both, {}, 2).collate, Collate::kConcatenation);
  const auto excluded = parse_causes({"input.small_files", "input.decode_cpu"});
  ASSERT_FALSE(excluded.ok());
  EXPECT_EQ(excluded.error().code, Code::kBadInput);
  EXPECT_TRUE(parse_causes({"input.small_files", "input.small_files"}).ok());
}

TEST(Train, RefusesBadOptions) {
  TrainOptions options;
  options.inject = {"nonsense"};
  EXPECT_EQ(train_main(options), 2);
  options = {};
  options.batch = 0;
  EXPECT_EQ(train_main(options), 2);
}

TEST(Train, ANeighbourMustComeFromOutside) {
  if (neighbours_are_running()) GTEST_SKIP() << "neighbours run on this machine";
  TrainOptions options;
  options.inject = {"cpu.noisy_neighbour"};
  EXPECT_EQ(train_main(options), 1);
}

/// Runs train_main in a child and gives its wait status.
int status_of(const TrainOptions& options) {
  std::fflush(nullptr);
  const pid_t pid = fork();
  if (pid == 0) {
    const int ignored = freopen("/dev/null", "w", stdout) && freopen("/dev/null", "w", stderr);
    (void)ignored;
    _exit(train_main(options));
  }
  int status = 0;
  waitpid(pid, &status, 0);
  return status;
}

class EveryCause : public ::testing::TestWithParam<std::string> {};

TEST_P(EveryCause, TrainsAFewStepsOrEndsAsItShould) {
  TrainOptions options;
  options.inject = {GetParam()};
  options.steps = 2;
  options.batch = 2;
  options.samples = 16;
  const int status = status_of(options);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
}
INSTANTIATE_TEST_SUITE_P(Train, EveryCause,
                         ::testing::Values("none", "input.small_files", "input.random_seek",
                                           "input.collate", "input.worker_skew",
                                           "cpu.oversubscribed", "cpu.affinity",
                                           "cpu.process_churn", "mem.page_faults", "mem.leak",
                                           "mem.allocator", "stall.checkpoint", "stall.logging",
                                           "stall.idle_wait"));

TEST(Train, CrashesAsInjected) {
  TrainOptions options;
  options.steps = 60;
  options.batch = 1;
  options.samples = 16;
  options.inject = {"crash.signal"};
  int status = status_of(options);
  EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV) << status;
  options.inject = {"crash.exception"};
  status = status_of(options);
  EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT) << status;
}

}  // namespace
}  // namespace flatout::train
