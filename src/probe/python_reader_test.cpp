#include "probe/python_reader.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include "probe/testing/fake_python.h"

namespace flatout::probe {
namespace {

struct Version {
  int minor;
  bool free_threaded;
};

/// Every version's memory is read by the same tests.
class PythonReaderOf : public testing::TestWithParam<Version> {
 protected:
  PythonReaderOf() : python(fake_offsets(GetParam().minor, GetParam().free_threaded)) {}

  void open() {
    auto opened = python.open();
    ASSERT_TRUE(opened.ok()) << opened.error().message;
    reader = std::move(*opened);
    EXPECT_EQ(reader->minor(), GetParam().minor);
    EXPECT_EQ(reader->free_threaded(), GetParam().free_threaded);
  }
  std::string text(const PythonThread& thread) const {
    std::string out;
    for (const PythonFrame& f : thread.frames) {
      const PythonCode& code = reader->code(f.code);
      out += code.function + " " + code.file + ":" + std::to_string(f.line) + "\n";
    }
    return out;
  }

  FakePython python;
  std::unique_ptr<PythonReader> reader;
  PythonReading reading;
  const std::vector<int32_t> tids{41, 42};
};

TEST_P(PythonReaderOf, ReadsFunctionsFilesAndLinesInnermostFirst) {
  const uint64_t thread = python.add_thread(41);
  python.call(thread, python.add_code("<module>", "train.py", 1), 7);
  python.call(thread, python.add_code("step", "model.py", 100), 3);
  ASSERT_NO_FATAL_FAILURE(open());
  for (int i = 0; i < 3; i++) {
    ASSERT_TRUE(reader->read(reading, tids).ok());
    ASSERT_EQ(reading.threads.size(), 1u);
    EXPECT_FALSE(reading.threads[0].torn);
    EXPECT_EQ(reading.threads[0].tid, 41);
    EXPECT_EQ(text(reading.threads[0]), "step model.py:103\n<module> train.py:8\n");
  }
}

TEST_P(PythonReaderOf, SecondReadingOfTheSameStackIsOneCall) {
  const uint64_t thread = python.add_thread(41);
  for (int i = 0; i < 20; i++) python.call(thread, python.add_code("f", "a.py", i + 1), 2);
  ASSERT_NO_FATAL_FAILURE(open());
  ASSERT_TRUE(reader->read(reading, tids).ok());
  ASSERT_TRUE(reader->read(reading, tids).ok());
  const uint64_t before = reader->system_calls();
  ASSERT_TRUE(reader->read(reading, tids).ok());
  EXPECT_EQ(reader->system_calls() - before, 1u);
  EXPECT_EQ(reading.threads[0].frames.size(), 20u);
}

TEST_P(PythonReaderOf, TellsWhoHoldsTheInterpretersLockAndTheCollector) {
  const uint64_t one = python.add_thread(41);
  const uint64_t two = python.add_thread(42);
  const uint64_t code = python.add_code("f", "a.py", 1);
  python.call(one, code, 0);
  python.call(two, code, 0);
  python.hold_gil(one);
  python.collect(true);
  ASSERT_NO_FATAL_FAILURE(open());
  ASSERT_TRUE(reader->read(reading, tids).ok());
  ASSERT_EQ(reading.threads.size(), 2u);
  EXPECT_EQ(reading.threads[0].tid, 42);
  EXPECT_FALSE(reading.threads[0].holds_gil);
  EXPECT_TRUE(reading.threads[1].holds_gil);
  EXPECT_TRUE(reading.gil_locked);
  EXPECT_TRUE(reading.gc_running);
  EXPECT_EQ(reading.gils, std::vector<uint64_t>{python.gil});

  python.hold_gil(0);
  python.collect(false);
  ASSERT_TRUE(reader->read(reading, tids).ok());
  EXPECT_FALSE(reading.threads[1].holds_gil);
  EXPECT_FALSE(reading.gc_running);
}

TEST_P(PythonReaderOf, TellsWhoIsAttachedWithoutTheLock) {
  const uint64_t one = python.add_thread(41);
  const uint64_t two = python.add_thread(42);
  const uint64_t code = python.add_code("f", "a.py", 1);
  python.call(one, code, 0);
  python.call(two, code, 0);
  python.attach(one, true);
  python.attach(two, false);
  ASSERT_NO_FATAL_FAILURE(open());
  ASSERT_TRUE(reader->read(reading, tids).ok());
  ASSERT_EQ(reading.threads.size(), 2u);
  EXPECT_FALSE(reading.threads[0].attached);
  EXPECT_EQ(reading.threads[1].attached, GetParam().free_threaded);

  python.hold_gil(two);
  ASSERT_TRUE(reader->read(reading, tids).ok());
  EXPECT_TRUE(reading.threads[0].attached);
}

TEST_P(PythonReaderOf, SeesAnotherFunctionWhereACodeObjectWasReplaced) {
  const uint64_t thread = python.add_thread(41);
  const uint64_t code = python.add_code("before", "a.py", 1);
  python.call(thread, code, 0);
  ASSERT_NO_FATAL_FAILURE(open());
  ASSERT_TRUE(reader->read(reading, tids).ok());
  python.memory->poke(code + python.o.code_name, python.add_string("after"));
  for (int i = 0; i < 20; i++) ASSERT_TRUE(reader->read(reading, tids).ok());
  EXPECT_EQ(text(reading.threads[0]), "after a.py:1\n");
}

TEST_P(PythonReaderOf, DropsAStackWhoseCodeIsNoCodeObject) {
  const uint64_t thread = python.add_thread(41);
  const uint64_t code = python.add_code("f", "a.py", 1);
  python.call(thread, code, 0);
  python.memory->poke<uint64_t>(code + python.o.object_type, 0x1234);
  ASSERT_NO_FATAL_FAILURE(open());
  ASSERT_TRUE(reader->read(reading, tids).ok());
  EXPECT_TRUE(reading.threads[0].torn);
  EXPECT_TRUE(reading.threads[0].frames.empty());
}

TEST_P(PythonReaderOf, EndsOnARingOfFramesOrThreads) {
  const uint64_t thread = python.add_thread(41);
  const uint64_t code = python.add_code("f", "a.py", 1);
  const uint64_t outer = python.call(thread, code, 0);
  const uint64_t inner = python.call(thread, code, 1);
  ASSERT_NO_FATAL_FAILURE(open());
  python.memory->poke(outer + python.o.frame_previous, inner);
  ASSERT_TRUE(reader->read(reading, tids).ok());
  EXPECT_TRUE(reading.threads[0].cut);
  python.memory->poke(thread + python.o.thread_next, thread);
  ASSERT_TRUE(reader->read(reading, tids).ok());
  EXPECT_TRUE(reading.cut);
}

TEST_P(PythonReaderOf, DropsAStackThatPointsIntoNothing) {
  const uint64_t thread = python.add_thread(41);
  const uint64_t code = python.add_code("f", "a.py", 1);
  python.call(thread, code, 0);
  const uint64_t frame = python.call(thread, code, 0);
  ASSERT_NO_FATAL_FAILURE(open());
  ASSERT_TRUE(reader->read(reading, tids).ok());
  python.memory->poke<uint64_t>(frame + python.o.frame_previous, 0xdeadbeef000);
  ASSERT_TRUE(reader->read(reading, tids).ok());
  EXPECT_TRUE(reading.threads[0].torn);
}

TEST_P(PythonReaderOf, SaysThatTheProcessIsGoneOrForbidden) {
  python.add_thread(41);
  ASSERT_NO_FATAL_FAILURE(open());
  python.memory->denied = true;
  EXPECT_EQ(reader->read(reading, tids).error().code, Code::kDenied);
  EXPECT_EQ(python.open().error().code, Code::kDenied);
  python.memory->denied = false;
  python.memory->gone = true;
  EXPECT_EQ(reader->read(reading, tids).error().code, Code::kGone);
}

TEST_P(PythonReaderOf, SaysThatAReadingIsTornWhereThreadsDoNotPointBack) {
  const uint64_t thread = python.add_thread(41);
  ASSERT_NO_FATAL_FAILURE(open());
  python.memory->poke<uint64_t>(thread + python.o.thread_interp, 0x1000);
  EXPECT_EQ(reader->read(reading, tids).error().code, Code::kTorn);
}

TEST_P(PythonReaderOf, IsNotThereYetWhileTheInterpreterStarts) {
  python.memory->poke<uint64_t>(FakePython::kRuntime + python.o.interpreters_head, 0);
  if (GetParam().minor <= 12) {
    EXPECT_EQ(python.open().error().code, Code::kNotFound);
  } else {
    ASSERT_NO_FATAL_FAILURE(open());
    EXPECT_EQ(reader->read(reading, tids).error().code, Code::kTorn);
  }
}

// A notebook's kernel has its own loops and dozens of frames above the cell.
TEST_P(PythonReaderOf, SeesTheLoopsOfANotebooksCell) {
  const uint64_t thread = python.add_thread(41);
  const uint32_t kernel = 30;
  for (uint32_t i = 0; i < kernel; i++) {
    const char* file = i % 2 == 0 ? "/v/lib/python3.11/site-packages/ipykernel/kernelbase.py"
                                  : "/usr/lib/python3.11/asyncio/base_events.py";
    python.call(thread, python.add_code("run", file, 1), 1);
  }
  const uint64_t cell =
      python.call(thread, python.add_code("<module>", "/tmp/ipykernel_9/1.py", 1), 1);
  const uint64_t train =
      python.call(thread, python.add_code("train", "/tmp/ipykernel_9/2.py", 5), 1);
  python.memory->poke(python.slot(cell, 0), python.add_iterator("range_iterator", 1, 3));
  python.memory->poke(python.slot(train, 0), python.add_iterator("range_iterator", 17, 100));
  ASSERT_NO_FATAL_FAILURE(open());
  reader->read_loops_of(41);
  for (int i = 0; i < 2; i++) ASSERT_TRUE(reader->read(reading, tids).ok());
  const std::vector<PythonLoop>& loops = reading.threads[0].loops;
  ASSERT_EQ(loops.size(), 2u);
  EXPECT_EQ(loops[0].depth, kernel);
  EXPECT_EQ(loops[1].depth, kernel + 1);
  EXPECT_EQ(loops[1].begun, 17);
}

TEST_P(PythonReaderOf, SeesHowFarTheLoopsOfTheOutermostFramesHaveCome) {
  const uint64_t thread = python.add_thread(41), other = python.add_thread(42);
  const uint64_t outer = python.call(thread, python.add_code("<module>", "train.py", 1), 7);
  const uint64_t inner = python.call(thread, python.add_code("epoch", "train.py", 100), 3);
  const uint64_t elsewhere = python.call(other, python.add_code("feed", "feed.py", 1), 1);
  const uint64_t epochs = python.add_iterator("list_iterator", 2, 5);
  const uint64_t steps = python.add_iterator("range_iterator", 17, 100);
  const uint64_t layers = python.add_iterator("enumerate", 3, 0);
  python.memory->poke(python.slot(outer, 1), epochs);
  python.memory->poke(python.slot(inner, 0), steps | (GetParam().minor >= 14 ? 1 : 0));
  python.memory->poke(python.slot(inner, 1), layers);
  python.memory->poke(python.slot(inner, 2), steps);  // left over: counts once
  python.memory->poke<uint64_t>(python.slot(inner, 3), 0xdeadbeef000);
  python.memory->poke(python.slot(elsewhere, 0), python.add_iterator("range_iterator", 1, 2));
  ASSERT_NO_FATAL_FAILURE(open());
  for (int i = 0; i < 2; i++) ASSERT_TRUE(reader->read(reading, tids).ok());
  EXPECT_TRUE(reading.threads[1].loops.empty()) << "nobody asked";
  reader->read_loops_of(41);
  for (int i = 0; i < 2; i++) ASSERT_TRUE(reader->read(reading, tids).ok());
  EXPECT_TRUE(reading.threads[0].loops.empty()) << "another thread's";
  const std::vector<PythonLoop>& loops = reading.threads[1].loops;
  ASSERT_EQ(loops.size(), 3u);
  const auto expect = [&](const PythonLoop& loop, uint32_t depth, uint32_t slot, int64_t begun,
                          int64_t length, const char* function) {
    EXPECT_EQ(loop.depth, depth);
    EXPECT_EQ(loop.slot, slot);
    EXPECT_EQ(loop.begun, begun);
    EXPECT_EQ(loop.length, length);
    EXPECT_EQ(reader->code(loop.code).function, function);
  };
  expect(loops[0], 0, 1, 2, 5, "<module>");
  expect(loops[1], 1, 0, 17, 100, "epoch");
  expect(loops[2], 1, 1, 3, -1, "epoch");
  python.set_iterator(steps, "range_iterator", 18, 100);
  ASSERT_TRUE(reader->read(reading, tids).ok());
  expect(reading.threads[1].loops.at(1), 1, 0, 18, 100, "epoch");
}

TEST_P(PythonReaderOf, SeesLoopsOverListsThatHaveNoIterator) {
  const uint64_t thread = python.add_thread(41);
  const uint64_t frame = python.call(thread, python.add_code("<module>", "train.py", 1), 7);
  const uint64_t list = python.add_iterator("list", 5, 0);  // a list of 5
  const auto tagged = [](uint64_t number) { return number << 2 | 3; };
  python.memory->poke(python.slot(frame, 0), list | 1);
  python.memory->poke(python.slot(frame, 1), tagged(2));
  python.memory->poke(python.slot(frame, 2), list);
  python.memory->poke(python.slot(frame, 3), tagged(6));  // more than there are
  ASSERT_NO_FATAL_FAILURE(open());
  reader->read_loops_of(41);
  for (int i = 0; i < 2; i++) ASSERT_TRUE(reader->read(reading, tids).ok());
  const std::vector<PythonLoop>& loops = reading.threads[0].loops;
  if (GetParam().minor < 15) {
    EXPECT_TRUE(loops.empty());
    return;
  }
  ASSERT_EQ(loops.size(), 1u);
  EXPECT_EQ(loops[0].slot, 1u);
  EXPECT_EQ(loops[0].begun, 2);
  EXPECT_EQ(loops[0].length, 5);
}

TEST_P(PythonReaderOf, LooksAtNoLoopsOfModulesThatAreImported) {
  const uint64_t thread = python.add_thread(41);
  const uint64_t outer = python.call(thread, python.add_code("<module>", "train.py", 1), 0);
  python.call(thread, python.add_code("_find_and_load", "<frozen importlib._bootstrap>", 1), 0);
  const uint64_t inner = python.call(thread, python.add_code("<module>", "library.py", 1), 0);
  python.memory->poke(python.slot(outer, 0), python.add_iterator("list_iterator", 2, 5));
  python.memory->poke(python.slot(inner, 0), python.add_iterator("list_iterator", 17, 100));
  ASSERT_NO_FATAL_FAILURE(open());
  reader->read_loops_of(41);
  for (int i = 0; i < 2; i++) ASSERT_TRUE(reader->read(reading, tids).ok());
  ASSERT_EQ(reading.threads[0].loops.size(), 1u);
  EXPECT_EQ(reading.threads[0].loops[0].length, 5);
}

TEST_P(PythonReaderOf, TakesNothingForALoopThatMakesNoSense) {
  const uint64_t thread = python.add_thread(41);
  const uint64_t code = python.add_code("f", "a.py", 1);
  const uint64_t frame = python.call(thread, code, 0);
  const uint64_t steps = python.add_iterator("range_iterator", 17, 100);
  python.memory->poke(python.slot(frame, 0), python.add_iterator("generator", 1, 2));
  python.memory->poke(python.slot(frame, 1), steps);
  ASSERT_NO_FATAL_FAILURE(open());
  reader->read_loops_of(41);
  for (int i = 0; i < 2; i++) ASSERT_TRUE(reader->read(reading, tids).ok());
  EXPECT_EQ(reading.threads[0].loops.size(), 1u);
  python.set_iterator(steps, "range_iterator", 17, 3);
  ASSERT_TRUE(reader->read(reading, tids).ok());
  EXPECT_TRUE(reading.threads[0].loops.empty());
  python.set_iterator(steps, "range_iterator", 17, 100);
  python.memory->poke<uint32_t>(code + python.o.code_stacksize, 0x7fffffff);
  for (int i = 0; i < 20; i++) ASSERT_TRUE(reader->read(reading, tids).ok());
  EXPECT_FALSE(reading.threads[0].torn);
}

INSTANTIATE_TEST_SUITE_P(Versions, PythonReaderOf,
                         testing::Values(Version{8, false}, Version{9, false}, Version{10, false},
                                         Version{11, false}, Version{12, false}, Version{13, false},
                                         Version{13, true}, Version{14, false}, Version{14, true},
                                         Version{15, false}, Version{15, true}),
                         [](const auto& version) {
                           return "CPython3_" + std::to_string(version.param.minor) +
                                  (version.param.free_threaded ? "t" : "");
                         });

// A job that makes functions without end (templates, generated models) must not fill our memory.
TEST(PythonReader, TakesFunctionsWithoutEndForOneAfterSomeTenThousand) {
  FakePython python(fake_offsets(10), 24 << 20);
  const uint64_t thread = python.add_thread(41);
  const uint64_t outer = python.add_code("train", "train.py", 1);
  constexpr int kDeep = 500;
  std::vector<uint64_t> frames;
  frames.reserve(kDeep);
  python.call(thread, outer, 0);
  for (int i = 0; i < kDeep; i++) frames.push_back(python.call(thread, outer, 0));
  auto reader = python.open();
  ASSERT_TRUE(reader.ok()) << reader.error().message;
  PythonReading reading;
  uint32_t most = 0;
  for (int round = 0; round < 70; round++) {
    for (size_t i = 0; i < frames.size(); i++) {
      const std::string name = "f" + std::to_string(round) + "_" + std::to_string(i);
      python.memory->poke(frames[i] + python.o.frame_code, python.add_code(name, "made.py", 1, 1));
    }
    ASSERT_TRUE((*reader)->read(reading).ok());
    ASSERT_EQ(reading.threads.size(), 1u);
    ASSERT_EQ(reading.threads[0].frames.size(), 501u);
    for (const PythonFrame& frame : reading.threads[0].frames) most = std::max(most, frame.code);
  }
  EXPECT_LT(most, 34'000u);
  EXPECT_EQ((*reader)->code(reading.threads[0].frames[0].code).function,
            "(one of very many functions)");
  EXPECT_EQ((*reader)->code(reading.threads[0].frames[500].code).function, "train");
}

TEST(PythonReader, SkipsFramesOfTheInterpreterItself) {
  for (const int minor : {12, 13, 14, 15}) {
    FakePython python(fake_offsets(minor));
    const uint64_t thread = python.add_thread(41);
    python.call(thread, python.add_code("outer", "a.py", 1), 0);
    python.call(thread, 0x7, 0, 3);
    if (minor >= 14) python.call(thread, 0x7, 0, 4);
    python.call(thread, python.add_code("inner", "a.py", 20), 0);
    auto reader = python.open();
    ASSERT_TRUE(reader.ok());
    PythonReading reading;
    ASSERT_TRUE((*reader)->read(reading).ok());
    ASSERT_EQ(reading.threads[0].frames.size(), 2u) << minor;
  }
}

TEST(PythonReader, DropsAStackCaughtWhileAGeneratorIsEntered) {
  FakePython python(fake_offsets(12));
  const uint64_t thread = python.add_thread(41);
  python.call(thread, python.add_code("outer", "a.py", 1), 0);
  const uint64_t frame = python.call(thread, python.add_code("items", "a.py", 20), 0, 1);
  auto reader = python.open();
  ASSERT_TRUE(reader.ok());
  PythonReading reading;
  ASSERT_TRUE((*reader)->read(reading).ok());
  EXPECT_FALSE(reading.threads[0].torn);
  python.memory->poke<uint64_t>(frame + python.o.frame_previous, 0);
  ASSERT_TRUE((*reader)->read(reading).ok());
  EXPECT_TRUE(reading.threads[0].torn);
}

TEST(PythonReader, FollowsAThreadsOwnCopyOfTheBytecode) {
  FakePython python(fake_offsets(14, true));
  const uint64_t thread = python.add_thread(41);
  const uint64_t code = python.add_code("f", "a.py", 1);
  const uint64_t frame = python.call(thread, code, 0);
  const uint64_t copies = python.allocate(64), copy = python.allocate(128);
  python.memory->poke(code + python.o.code_bytecode_copies, copies);
  python.memory->poke(copies + 8 + 8, copy);
  python.memory->poke<int32_t>(frame + python.o.frame_bytecode_copy, 1);
  python.memory->poke(frame + python.o.frame_instruction, copy + 40);
  auto reader = python.open();
  ASSERT_TRUE(reader.ok());
  PythonReading reading;
  ASSERT_TRUE((*reader)->read(reading).ok());
  ASSERT_EQ(reading.threads[0].frames.size(), 1u);
  EXPECT_EQ(reading.threads[0].frames[0].line, 6u);
}

TEST(PythonReader, FindsTheVersionByTryingWhereNoNameTellsIt) {
  FakePython python(fake_offsets(10));
  python.call(python.add_thread(41), python.add_code("f", "a.py", 1), 0);
  PythonPlace place;
  place.runtime = FakePython::kRuntime;
  place.code_type = FakePython::kCodeType;
  auto reader = PythonReader::open(std::make_unique<FakeMemoryReader>(python.memory), place);
  ASSERT_TRUE(reader.ok());
  PythonReading reading;
  ASSERT_TRUE((*reader)->read(reading).ok());
  EXPECT_EQ(reading.threads.size(), 1u);
}

TEST(PythonReader, RefusesVersionsItDoesNotKnow) {
  FakePython old(fake_offsets(8));
  old.o.minor = 7;
  EXPECT_EQ(old.open().error().code, Code::kUnsupported);
  PythonOffsets offsets = fake_offsets(14);
  offsets.minor = 20;
  EXPECT_EQ(FakePython(offsets).open().error().code, Code::kUnsupported);
}

TEST(PythonReader, RefusesDebugOffsetsThatMakeNoSense) {
  PythonOffsets offsets = fake_offsets(13);
  offsets.thread_frame = 0x7fffffff;
  EXPECT_EQ(FakePython(offsets).open().error().code, Code::kBadInput);
}

TEST(PythonFinder, ReadsTheVersionFromFileNames) {
  EXPECT_EQ(python_minor_from_path("/usr/bin/python3.11"), 11);
  EXPECT_EQ(python_minor_from_path("/x/lib/libpython3.8.so.1.0"), 8);
  EXPECT_EQ(python_minor_from_path("/x/bin/python3"), 0);
  EXPECT_EQ(python_minor_from_path("/python3.11/bin/sh"), 0);
  EXPECT_EQ(python_minor_from_path("python3.99999999"), 999);
}

TEST(RemoteMemory, ReadsThisProcessAndStopsAtWhatIsNotThere) {
  ProcessMemory memory(getpid());
  const uint64_t one = 0x1122334455667788;
  uint64_t out[2] = {};
  const RemoteRange ranges[] = {{reinterpret_cast<uint64_t>(&one), 8}, {8, 8}};
  auto got = memory.read(ranges, reinterpret_cast<char*>(out));
  ASSERT_TRUE(got.ok());
  EXPECT_EQ(*got, 8u);
  EXPECT_EQ(out[0], one);
  EXPECT_EQ(ProcessMemory(0x7ffffff0).read(ranges, reinterpret_cast<char*>(out)).error().code,
            Code::kGone);
}

TEST(RemoteMemory, SnapshotGoesOnBehindARangeThatIsGone) {
  auto fake = std::make_shared<FakeMemory>();
  for (uint64_t i = 1; i <= 20; i++) fake->regions[i * 0x1000] = std::string(64, 'a');
  FakeMemoryReader memory(fake);
  RemoteSnapshot snapshot(memory);
  ASSERT_TRUE(snapshot.begin().ok());
  char c[16];
  for (uint64_t i = 1; i <= 20; i++) ASSERT_TRUE(snapshot.copy(i * 0x1000, c, 16));
  fake->regions.erase(0x5000);
  fake->regions.erase(0x9000);
  ASSERT_TRUE(snapshot.begin().ok());
  const uint64_t calls = snapshot.calls();
  for (uint64_t i = 1; i <= 20; i++) {
    EXPECT_EQ(snapshot.copy(i * 0x1000, c, 16), i != 5 && i != 9);
  }
  EXPECT_EQ(snapshot.calls() - calls, 2u);  // each of the two was tried again
}

}  // namespace
}  // namespace flatout::probe
