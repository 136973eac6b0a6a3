#include "feed/loader.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <filesystem>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <thread>
#include <vector>

#include "feed/testing/pictures.h"

namespace flatout::feed {
namespace {

using testing::make_jpeg;
using testing::TemporaryFolder;

constexpr int kSize = 32;

void write_set(const TemporaryFolder& folder, int count) {
  for (int i = 0; i < count; ++i) {
    testing::JpegKind kind;
    kind.width = 60 + 7 * (i % 5);
    kind.height = 50 + 5 * (i % 3);
    folder.write("class" + std::to_string(i % 3) + "/" + std::to_string(100 + i) + ".jpg",
                 make_jpeg(kind, static_cast<unsigned>(i)));
  }
}

LoaderOptions small(int threads = 2) {
  LoaderOptions options;
  options.batch = 4;
  options.threads = threads;
  options.seed = 11;
  options.augment.width = options.augment.height = kSize;
  return options;
}

std::unique_ptr<Loader> open(const TemporaryFolder& folder, const LoaderOptions& options) {
  auto source = open_source(folder.path());
  EXPECT_TRUE(source.ok());
  auto loader = Loader::open(std::move(*source), options);
  EXPECT_TRUE(loader.ok());
  return std::move(*loader);
}

struct Taken {
  std::vector<int64_t> indices, labels;
  std::vector<float> pixels;
  bool operator==(const Taken&) const = default;
};

void take(const Batch& batch, Taken& into) {
  for (int i = 0; i < batch.count; ++i) {
    into.indices.push_back(batch.indices[static_cast<size_t>(i)]);
    into.labels.push_back(batch.labels[static_cast<size_t>(i)]);
  }
  const auto* data = static_cast<const float*>(batch.data);
  into.pixels.insert(into.pixels.end(), data,
                     data + static_cast<size_t>(batch.count) * 3 * kSize * kSize);
}

Taken rest_of_epoch(Loader& loader) {
  Taken taken;
  for (;;) {
    auto batch = loader.next();
    EXPECT_TRUE(batch.ok()) << batch.error().message;
    if (!batch.ok() || !*batch) return taken;
    take(**batch, taken);
  }
}

TEST(Loader, GivesTheSameBitsForAnyNumberOfThreads) {
  const TemporaryFolder folder;
  write_set(folder, 23);
  const auto one = open(folder, small(1)), five = open(folder, small(5));
  for (int epoch = 0; epoch < 3; ++epoch) {
    const Taken a = rest_of_epoch(*one), b = rest_of_epoch(*five);
    EXPECT_EQ(a, b);
    EXPECT_EQ(std::set<int64_t>(a.indices.begin(), a.indices.end()).size(), 23U);
  }
}

TEST(Loader, ResumesInTheMiddleOfAnEpochToTheBit) {
  const TemporaryFolder folder;
  write_set(folder, 23);
  const auto whole = open(folder, small());
  rest_of_epoch(*whole);
  Taken first;
  for (int i = 0; i < 2; ++i) take(**whole->next(), first);
  const Place place = whole->place();
  const Taken expected = rest_of_epoch(*whole);
  const auto other = open(folder, small(3));
  ASSERT_TRUE(other->seek(place).ok());
  EXPECT_EQ(rest_of_epoch(*other), expected);
  EXPECT_EQ(expected.indices.size(), 23U - 8U);
  // And the epoch after it is the one that an uninterrupted run has.
  EXPECT_EQ(rest_of_epoch(*other), rest_of_epoch(*whole));
}

TEST(Loader, IsAtTheNextEpochWhereNoBatchOfThisOneIsLeft) {
  const TemporaryFolder folder;
  write_set(folder, 22);
  for (const bool drop_last : {false, true}) {
    LoaderOptions options = small();
    options.drop_last = drop_last;
    const auto whole = open(folder, options), other = open(folder, options);
    Taken first;
    for (uint64_t i = 0; i < whole->batches_per_epoch(); ++i) take(**whole->next(), first);
    const Place place = whole->place();
    EXPECT_EQ(place.epoch, 1U);
    EXPECT_EQ(place.position, 0U);
    ASSERT_FALSE(*whole->next());
    const Taken expected = rest_of_epoch(*whole);
    for (const uint64_t position : {20U, 22U}) {  // as states were saved that did not know
      if (position == 20 && !drop_last) continue;
      ASSERT_TRUE(other->seek({0, position}).ok());
      EXPECT_EQ(rest_of_epoch(*other), expected);
    }
  }
}

TEST(Loader, SharesAnEpochBetweenAnyNumberOfRanks) {
  const TemporaryFolder folder;
  write_set(folder, 24);
  std::map<int64_t, std::vector<float>> single;
  const auto collect = [](const Taken& taken, std::map<int64_t, std::vector<float>>& into) {
    const size_t each = taken.pixels.size() / taken.indices.size();
    for (size_t i = 0; i < taken.indices.size(); ++i)
      into[taken.indices[i]].assign(
          taken.pixels.begin() + static_cast<std::ptrdiff_t>(i * each),
          taken.pixels.begin() + static_cast<std::ptrdiff_t>((i + 1) * each));
  };
  collect(rest_of_epoch(*open(folder, small())), single);
  std::map<int64_t, std::vector<float>> shared;
  for (uint32_t rank = 0; rank < 3; ++rank) {
    LoaderOptions options = small();
    options.rank = rank;
    options.ranks = 3;
    collect(rest_of_epoch(*open(folder, options)), shared);
  }
  EXPECT_EQ(single, shared);
}

TEST(Loader, GoesOnWithAnotherNumberOfRanks) {
  const TemporaryFolder folder;
  write_set(folder, 24);
  std::multiset<int64_t> seen;
  Place place;
  for (uint32_t rank = 0; rank < 2; ++rank) {
    LoaderOptions options = small();
    options.rank = rank;
    options.ranks = 2;
    const auto loader = open(folder, options);
    Taken taken;
    take(**loader->next(), taken);
    seen.insert(taken.indices.begin(), taken.indices.end());
    place = loader->place();
  }
  EXPECT_EQ(place.position, 8U);
  const auto alone = open(folder, small());
  ASSERT_TRUE(alone->seek(place).ok());
  const Taken rest = rest_of_epoch(*alone);
  seen.insert(rest.indices.begin(), rest.indices.end());
  EXPECT_EQ(seen.size(), 24U);
  EXPECT_EQ(std::set<int64_t>(seen.begin(), seen.end()).size(), 24U);
}

TEST(Loader, PutsTheSameSampleInABadOnesPlaceInEveryRun) {
  const TemporaryFolder folder;
  write_set(folder, 12);
  folder.write("class1/0bad.jpg", {});
  folder.write("class2/0bad.jpg", {'n', 'o'});
  const auto one = open(folder, small(1)), four = open(folder, small(4));
  const Taken a = rest_of_epoch(*one);
  EXPECT_EQ(a, rest_of_epoch(*four));
  EXPECT_EQ(a.indices.size(), 14U);  // as long as without bad ones
  const Report report = one->report();
  EXPECT_GE(report.outcomes[static_cast<size_t>(Outcome::kEmpty)], 1U);
  EXPECT_GE(report.outcomes[static_cast<size_t>(Outcome::kNotAnImage)], 1U);
  EXPECT_GE(report.replaced, 2U);
}

TEST(Loader, CountsTheFilesThatItTriedInABadOnesPlaceOnceEach) {
  const TemporaryFolder folder;
  for (const char* name : {"a/1.jpg", "a/2.jpg", "b/1.jpg", "b/2.jpg"}) folder.write(name, {'n'});
  LoaderOptions options = small();
  options.batch = 4;
  const auto batch = open(folder, options)->next();
  ASSERT_FALSE(batch.ok());
  // In 64 draws of four each of them comes.
  EXPECT_NE(
      batch.error().message.find(" (not_an_image: no known format): 3 of 3 others were tried"),
      std::string::npos)
      << batch.error().message;
}

TEST(Loader, NamesTheBadFileWhereItIsStrictAndGoesOnBehindIt) {
  const TemporaryFolder folder;
  write_set(folder, 8);
  folder.write("class0/0bad.jpg", {});
  LoaderOptions options = small();
  options.policy = Policy::kStrict;
  const auto loader = open(folder, options);
  int failures = 0, batches = 0;
  for (int i = 0; i < 3; ++i) {
    auto batch = loader->next();
    if (batch.ok()) {
      ASSERT_TRUE(*batch);
      ++batches;
      continue;
    }
    ++failures;
    EXPECT_NE(batch.error().message.find("class0/0bad.jpg: empty"), std::string::npos)
        << batch.error().message;
  }
  EXPECT_EQ(failures, 1);
  EXPECT_EQ(batches, 2);
}

TEST(Loader, UsesWhatIsThereOfACutPictureWhereItIsLenient) {
  const TemporaryFolder folder;
  auto data = make_jpeg({});
  data.resize(data.size() * 9 / 10);
  folder.write("0/cut.jpg", data);
  LoaderOptions options = small();
  options.policy = Policy::kLenient;
  const auto loader = open(folder, options);
  auto batch = loader->next();
  ASSERT_TRUE(batch.ok()) << batch.error().message;
  EXPECT_EQ((*batch)->count, 1);
  const Report report = loader->report();
  EXPECT_EQ(report.replaced, 0U);
  EXPECT_GE(report.outcomes[static_cast<size_t>(Outcome::kTruncated)], 1U);
}

TEST(Loader, FailsWhereNothingCanBeRead) {
  const TemporaryFolder folder;
  folder.write("0/a.jpg", {});
  folder.write("0/b.jpg", {1, 2, 3});
  const auto loader = open(folder, small());
  EXPECT_FALSE(loader->next().ok());
}

TEST(Loader, LeavesHeldBatchesAlone) {
  const TemporaryFolder folder;
  write_set(folder, 40);
  std::vector<std::shared_ptr<Batch>> held;
  Taken at_once, later;
  {
    const auto loader = open(folder, small());
    for (int i = 0; i < 10; ++i) {
      held.push_back(*loader->next());
      take(*held.back(), at_once);
    }
  }
  for (const auto& batch : held) take(*batch, later);
  EXPECT_EQ(at_once, later);
}

TEST(Loader, TakesAsMuchMemoryAsTheProgramKeepsAndOneOrPrefetchBatches) {
  const TemporaryFolder folder;
  write_set(folder, 170);
  LoaderOptions options = small();
  options.batch = 32;
  const auto plain = open(folder, options);
  const Taken expected[] = {rest_of_epoch(*plain), rest_of_epoch(*plain), rest_of_epoch(*plain)};
  struct Case {
    int prefetch;
    size_t keep;  // batches by the program, while it asks for the next one
    size_t most;  // that are in memory
  };
  for (const auto& [prefetch, keep, most] :
       {Case{1, 0, 1}, Case{1, 1, 2}, Case{2, 0, 2}, Case{2, 1, 2}, Case{2, 3, 4}, Case{4, 1, 4}}) {
    for (const int threads : {1, 2, 4}) {
      options.prefetch = prefetch;
      options.threads = threads;
      const auto loader = open(folder, options);
      std::set<void*> memory;
      std::deque<std::shared_ptr<Batch>> kept;
      for (const Taken& epoch : expected) {
        Taken taken;
        for (;;) {
          while (kept.size() > keep) kept.pop_front();
          kept.push_back(*loader->next());
          if (!kept.back()) break;
          memory.insert(kept.back()->data);
          take(*kept.back(), taken);
        }
        kept.pop_back();
        EXPECT_EQ(taken, epoch);
      }
      EXPECT_LE(memory.size(), most + (threads == 4 ? 1 : 0))
          << prefetch << ' ' << keep << ' ' << threads;
    }
  }
}

TEST(Loader, LeavesBatchesToAForkedProcess) {
  const TemporaryFolder folder;
  write_set(folder, 40);
  const auto loader = open(folder, small());
  for (int i = 0; i < 20; ++i) {  // at one time or another a thread holds the lock
    auto batch = *loader->next();
    const pid_t child = fork();
    if (child == 0) {
      alarm(10);
      batch.reset();
      _exit(0);
    }
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0) << "the child waited for a lock";
  }
}

TEST(Loader, TakesNoLockInAForkedProcess) {
  const TemporaryFolder folder;
  write_set(folder, 23);
  const auto loader = open(folder, small());
  for (int i = 0; i < 20; ++i) {
    ASSERT_TRUE((*loader).next().ok());
    ASSERT_NE(loader->place().epoch + loader->place().position, 0U);
    const pid_t child = fork();
    if (child == 0) {
      alarm(10);
      alignas(64) static char memory[64];
      const bool right = loader->place().position == 0 && loader->place().epoch == 0 &&
                         loader->report().samples == 0 && !loader->lend(memory).ok() &&
                         !loader->seek({}).ok() && !loader->next().ok();
      _exit(right ? 0 : 1);
    }
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0) << "the child waited for a lock, or used what is not its own";
  }
}

TEST(Loader, TakesAFileThatIsGoneForABadSample) {
  const TemporaryFolder folder;
  write_set(folder, 12);
  std::filesystem::create_symlink("nowhere.jpg", folder.path() + "/class0/a_dangling.jpg");
  std::filesystem::create_symlink("a_loop.jpg", folder.path() + "/class1/a_loop.jpg");
  ASSERT_EQ(mkfifo((folder.path() + "/class2/a_pipe.jpg").c_str(), 0600), 0);
  auto source = open_source(folder.path());
  ASSERT_TRUE(source.ok());
  // A loader reads from the moment that it is there: gone before that, and after the listing.
  std::filesystem::remove(folder.path() + "/class1/101.jpg");
  const auto opened = Loader::open(std::move(*source), small());
  ASSERT_TRUE(opened.ok());
  const auto& loader = *opened;
  EXPECT_EQ(loader->source().count(), 15U);
  EXPECT_EQ(rest_of_epoch(*loader).indices.size(), 15U);
  const Report report = loader->report();
  std::set<std::string> bad;
  for (const BadSample& each : report.bad) {
    EXPECT_EQ(each.verdict.outcome, Outcome::kUnreadable) << each.file;
    bad.insert(std::filesystem::path(each.file).filename());
  }
  EXPECT_EQ(bad, (std::set<std::string>{"a_dangling.jpg", "a_loop.jpg", "a_pipe.jpg", "101.jpg"}));
  EXPECT_EQ(report.outcomes[static_cast<size_t>(Outcome::kUnreadable)], 4U);
}

TEST(Loader, CountsEachSampleOfTheBatchesSoFarOnceAndEachBadFileOnce) {
  const TemporaryFolder folder;
  write_set(folder, 3);
  for (int i = 0; i < 9; ++i) folder.write("class0/bad" + std::to_string(i) + ".jpg", {});
  const auto loader = open(folder, small());
  for (uint64_t epoch = 1; epoch <= 3; ++epoch) {
    rest_of_epoch(*loader);
    const Report report = loader->report();
    EXPECT_EQ(report.samples, 12 * epoch);
    EXPECT_EQ(report.outcomes[static_cast<size_t>(Outcome::kOk)], 3 * epoch);
    EXPECT_EQ(report.outcomes[static_cast<size_t>(Outcome::kEmpty)], 9 * epoch);
    EXPECT_EQ(report.replaced, 9 * epoch);
    EXPECT_EQ(report.bad.size(), 9U);
  }
}

TEST(Loader, MakesBatchesInLentMemoryAndThenLeavesThatAlone) {
  const TemporaryFolder folder;
  write_set(folder, 23);
  struct Free {
    void operator()(void* p) const { std::free(p); }
  };
  std::vector<std::unique_ptr<void, Free>> memory;  // longer than the loader
  const auto plain = open(folder, small()), loader = open(folder, small());
  const Taken expected = rest_of_epoch(*plain);
  const size_t bytes = loader->batch_bytes();
  ASSERT_EQ(bytes, sizeof(float) * 4 * 3 * kSize * kSize);
  std::set<void*> lent;
  const auto lend = [&] {
    memory.emplace_back(std::aligned_alloc(64, bytes));
    lent.insert(memory.back().get());
    ASSERT_TRUE(loader->lend(memory.back().get()).ok());
  };
  for (int i = 0; i < 4; ++i) lend();
  ASSERT_TRUE(loader->seek({}).ok());  // what was under way is made again
  std::map<void*, std::vector<char>> given;
  const auto bytes_of = [&](void* data) {
    return std::vector<char>(static_cast<char*>(data), static_cast<char*>(data) + bytes);
  };
  for (int epoch = 0; epoch < 2; ++epoch) {
    Taken taken;
    for (;;) {
      auto batch = loader->next();
      ASSERT_TRUE(batch.ok());
      if (!*batch) break;
      void* const data = (*batch)->data;
      EXPECT_EQ(lent.erase(data), 1u) << "not lent, or given twice";
      take(**batch, taken);
      batch->reset();
      given[data] = bytes_of(data);
      lend();
    }
    EXPECT_EQ(taken, epoch == 0 ? expected : rest_of_epoch(*plain));
  }
  for (const auto& [data, as_given] : given) EXPECT_EQ(bytes_of(data), as_given);
  EXPECT_FALSE(loader->lend(static_cast<char*>(memory[0].get()) + 8).ok());
}

TEST(Loader, MakesItsOwnMemoryWhereNoneIsLent) {
  const TemporaryFolder folder;
  write_set(folder, 23);
  const auto plain = open(folder, small()), loader = open(folder, small());
  std::unique_ptr<void, decltype(&std::free)> one(std::aligned_alloc(64, loader->batch_bytes()),
                                                  &std::free);
  ASSERT_TRUE(loader->lend(one.get()).ok());
  EXPECT_EQ(rest_of_epoch(*loader), rest_of_epoch(*plain));
  EXPECT_EQ(rest_of_epoch(*loader), rest_of_epoch(*plain));
}

TEST(Loader, RefusesOptionsThatCannotBe) {
  const TemporaryFolder folder;
  write_set(folder, 3);
  LoaderOptions options = small();
  options.drop_last = true;
  auto source = open_source(folder.path());
  EXPECT_FALSE(Loader::open(std::move(*source), options).ok());
  options = small();
  options.ranks = 2;
  options.rank = 2;
  EXPECT_FALSE(options.check().ok());
}

// Pictures in memory, slow to read.
class SlowSource : public Source {
 public:
  uint64_t count() const override { return 40; }
  std::string name(uint64_t index) const override { return std::to_string(index); }
  Result<Verdict> read(uint64_t index, Sample& out) const override {
    std::this_thread::sleep_for(std::chrono::milliseconds(3));
    out.bytes = make_jpeg({}, static_cast<unsigned>(index));
    out.picture = out.bytes;
    return Verdict{};
  }
  bool extent(uint64_t index, Extent&) const override {
    const std::lock_guard lock(mutex);
    announced.insert(index);
    return false;
  }
  const std::vector<std::string>& classes() const override { return none; }
  const std::vector<BadSample>& damage() const override { return whole; }

  mutable std::mutex mutex;
  mutable std::multiset<uint64_t> announced;
  std::vector<std::string> none;
  std::vector<BadSample> whole;
};

TEST(Loader, AnnouncesSamplesWhereReadingIsSlow) {
  auto source = std::make_unique<SlowSource>();
  const SlowSource& slow = *source;
  auto loader = Loader::open(std::move(source), small());
  ASSERT_TRUE(loader.ok());
  std::set<int64_t> seen;
  for (int epoch = 0; epoch < 2; ++epoch) {
    const Taken taken = rest_of_epoch(**loader);
    seen.insert(taken.indices.begin(), taken.indices.end());
  }
  EXPECT_EQ(seen.size(), 40U);
  const std::lock_guard lock(slow.mutex);
  EXPECT_GT(slow.announced.size(), 0U);
}

TEST(Loader, ReadsAheadInTheOrderOfStorageWhereTheShuffleHasABuffer) {
  auto source = std::make_unique<SlowSource>();
  const SlowSource& slow = *source;
  LoaderOptions options = small();
  options.window = {16, 8};
  auto loader = Loader::open(std::move(source), options);
  ASSERT_TRUE(loader.ok());
  std::multiset<int64_t> seen;
  for (int epoch = 0; epoch < 2; ++epoch) {
    const Taken taken = rest_of_epoch(**loader);
    seen.insert(taken.indices.begin(), taken.indices.end());
  }
  for (int64_t i = 0; i < 40; ++i) EXPECT_EQ(seen.count(i), 2U);
  const std::lock_guard lock(slow.mutex);
  EXPECT_GT(slow.announced.size(), 0U);
}

TEST(Loader, HasMoreThreadsWhileReadsKeepThemWaiting) {
  LoaderOptions options = small(0);
  auto loader = Loader::open(std::make_unique<SlowSource>(), options);
  ASSERT_TRUE(loader.ok());
  const int at_first = (*loader)->report().threads;
  for (int epoch = 0; epoch < 3; ++epoch) rest_of_epoch(**loader);
  EXPECT_GT((*loader)->report().threads, at_first);
}

TEST(Loader, TellsThatThereIsNoMemoryForABatch) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "lacks an allocator that says no";
#endif
  const TemporaryFolder folder;
  write_set(folder, 12);
  LoaderOptions options = small();
  options.batch = 65536;
  options.augment.width = options.augment.height = 16384;  // 211 TB: beyond all addresses
  const auto loader = open(folder, options);
  for (int epoch = 0; epoch < 2; ++epoch) {
    const auto batch = loader->next();
    ASSERT_FALSE(batch.ok());
    EXPECT_EQ(batch.error().code, Code::kFull);
    const auto end = loader->next();
    ASSERT_TRUE(end.ok());
    EXPECT_EQ(*end, nullptr);
  }
}

TEST(Loader, CallsAStageOnceForEachSampleAndFailsWithIt) {
  const TemporaryFolder folder;
  write_set(folder, 12);
  std::mutex mutex;
  std::multiset<int64_t> called;
  const SampleStage stage = [&](StageSample& sample) -> Status {
    const std::lock_guard lock(mutex);
    called.insert(sample.index);
    sample.label = 100 + sample.index;
    if (sample.epoch == 1) return Error{Code::kBadInput, "enough", ""};
    return {};
  };
  auto source = open_source(folder.path());
  auto loader = Loader::open(std::move(*source), small(), stage);
  ASSERT_TRUE(loader.ok());
  const Taken taken = rest_of_epoch(**loader);
  for (size_t i = 0; i < taken.indices.size(); ++i) {
    EXPECT_EQ(taken.labels[i], 100 + taken.indices[i]);
    const std::lock_guard lock(mutex);
    EXPECT_GE(called.count(taken.indices[i]), 1U);
  }
  const auto failed = (*loader)->next();
  ASSERT_FALSE(failed.ok());
  EXPECT_NE(failed.error().message.find("enough"), std::string::npos);
}

TEST(Source, HasTheLabelsAndTheOrderOfImageFolder) {
  const TemporaryFolder folder;
  for (const char* name : {"b/2.jpg", "b/1.PNG", "a/z/9.jpeg", "a/x.webp", "a/notes.txt", "top.jpg",
                           "c-1/1.jpg", "c/1.jpg"})
    folder.write(name, {1});
  auto source = open_source(folder.path());
  ASSERT_TRUE(source.ok());
  EXPECT_EQ((*source)->classes(), (std::vector<std::string>{"a", "b", "c", "c-1"}));
  std::vector<std::pair<std::string, int64_t>> found;
  for (uint64_t i = 0; i < (*source)->count(); ++i) {
    Sample sample;
    ASSERT_TRUE((*source)->read(i, sample).ok());
    found.emplace_back((*source)->name(i).substr(folder.path().size() + 1), sample.label);
  }
  EXPECT_EQ(found, (std::vector<std::pair<std::string, int64_t>>{{"a/x.webp", 0},
                                                                 {"a/z/9.jpeg", 0},
                                                                 {"b/1.PNG", 1},
                                                                 {"b/2.jpg", 1},
                                                                 {"c/1.jpg", 2},
                                                                 {"c-1/1.jpg", 3}}));
}

}  // namespace
}  // namespace flatout::feed
