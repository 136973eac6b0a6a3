#include "timeline/import_nsight.h"

#include <gtest/gtest.h>
#include <sqlite3.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <random>
#include <sstream>

#include "timeline/import_trace.h"
#include "timeline/trace_analysis.h"

namespace flatout::timeline {
namespace {

namespace fs = std::filesystem;
using model::EventKind;
using model::Trace;

// Process 77, threads 77 and 78: hardware, machine, process, thread.
constexpr const char* kRecording = R"sql(
CREATE TABLE StringIds (id INTEGER NOT NULL PRIMARY KEY, value TEXT NOT NULL);
INSERT INTO StringIds VALUES (1, 'void gemm<float>(float*)'), (2, 'gemm'), (3, 'cudaLaunchKernel_v7000'),
  (4, 'cudaMemcpyAsync_v3020'), (5, 'cudaStreamSynchronize_v3020'), (6, 'trainer'), (7, 'step 2'),
  (8, 'pthread_cond_wait'), (9, 'cublasSgemm');
CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start INTEGER, end INTEGER, deviceId INTEGER, contextId INTEGER,
  streamId INTEGER, correlationId INTEGER, globalPid INTEGER, demangledName INTEGER, shortName INTEGER);
INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (2000, 5000, 0, 1, 7, 11, 77 << 24, 1, 2),
  (9000, 9500, 0, 1, 7, 13, 77 << 24, NULL, 2);
CREATE TABLE CUPTI_ACTIVITY_KIND_MEMCPY (start INTEGER, end INTEGER, deviceId INTEGER, contextId INTEGER,
  streamId INTEGER, correlationId INTEGER, globalPid INTEGER, bytes INTEGER, copyKind INTEGER, srcKind INTEGER,
  dstKind INTEGER);
INSERT INTO CUPTI_ACTIVITY_KIND_MEMCPY VALUES (6000, 7000, 0, 1, 20, 12, 77 << 24, 4096, 1, 0, 2);
CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME (start INTEGER, end INTEGER, eventClass INTEGER, globalTid INTEGER,
  correlationId INTEGER, nameId INTEGER, returnValue INTEGER);
INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME VALUES (1000, 1500, 0, (77 << 24) + 77, 11, 3, 0),
  (5500, 5700, 0, (77 << 24) + 77, 12, 4, 0), (8000, 8200, 0, (77 << 24) + 78, 13, 3, 0),
  (8300, 9600, 0, (77 << 24) + 78, 14, 5, 0);
CREATE TABLE NVTX_EVENTS (start INTEGER, end INTEGER, eventType INTEGER, text TEXT, globalTid INTEGER, textId INTEGER);
INSERT INTO NVTX_EVENTS VALUES (500, 7500, 59, 'step 1', (77 << 24) + 77, NULL),
  (7500, 9700, 59, NULL, (77 << 24) + 77, 7), (600, NULL, 34, 'mark', (77 << 24) + 77, NULL),
  (700, 8000, 60, 'upload', (77 << 24) + 77, NULL);
CREATE TABLE OSRT_API (start INTEGER, end INTEGER, globalTid INTEGER, nameId INTEGER);
INSERT INTO OSRT_API VALUES (100, 400, (77 << 24) + 77, 8);
CREATE TABLE CUBLAS_EVENTS (start INTEGER, end INTEGER, globalTid INTEGER, nameId INTEGER);
INSERT INTO CUBLAS_EVENTS VALUES (900, 1600, (77 << 24) + 77, 9);
CREATE TABLE ThreadNames (nameId INTEGER, priority INTEGER, globalTid INTEGER);
INSERT INTO ThreadNames VALUES (6, 0, (77 << 24) + 78);
CREATE TABLE PROCESSES (globalPid INTEGER, pid INTEGER, name TEXT);
INSERT INTO PROCESSES VALUES (77 << 24, 77, 'python');
CREATE TABLE TARGET_INFO_GPU (id INTEGER, name TEXT);
INSERT INTO TARGET_INFO_GPU VALUES (3, 'NVIDIA H100');
CREATE TABLE TARGET_INFO_CUDA_DEVICE (gpuId INTEGER, cudaId INTEGER);
INSERT INTO TARGET_INFO_CUDA_DEVICE VALUES (3, 0);
CREATE TABLE TARGET_INFO_SESSION_START_TIME (utcEpochNs INTEGER);
INSERT INTO TARGET_INFO_SESSION_START_TIME VALUES (1711964646000000000);
)sql";

class Folder {
 public:
  Folder() {
    std::string name = "/tmp/flatout-nsight-XXXXXX";
    EXPECT_NE(::mkdtemp(name.data()), nullptr);
    path_ = name;
  }
  ~Folder() { fs::remove_all(path_); }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  std::string file(const std::string& name) const { return (path_ / name).string(); }

 private:
  fs::path path_;
};

void make(const std::string& path, const std::string& sql) {
  sqlite3* db = nullptr;
  ASSERT_EQ(sqlite3_open(path.c_str(), &db), SQLITE_OK);
  char* message = nullptr;
  EXPECT_EQ(sqlite3_exec(db, sql.c_str(), nullptr, nullptr, &message), SQLITE_OK) << message;
  sqlite3_free(message);
  sqlite3_close(db);
}

std::string bytes_of(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  std::stringstream out;
  out << in.rdbuf();
  return out.str();
}

void expect_recording(const Trace& t) {
  EXPECT_EQ(t.format, "nsight");
  EXPECT_FALSE(t.damage.any()) << t.damage.text;
  EXPECT_EQ(t.base_time_ns, 1711964646000000000);
  EXPECT_EQ(t.device_names.at(0), "NVIDIA H100");
  ASSERT_EQ(t.size(), 12u);
  EXPECT_EQ(t.name_of(0), "void gemm<float>(float*)");
  EXPECT_EQ(t.name_of(1), "gemm");
  EXPECT_EQ(t.kind[0], EventKind::kKernel);
  EXPECT_EQ(t.start[0], 2000);
  EXPECT_EQ(t.duration[0], 3000);
  EXPECT_EQ(t.track_of(0).stream, 7);
  EXPECT_EQ(t.name_of(2), "Memcpy HtoD (Pageable -> Device)");
  ASSERT_EQ(t.copies.size(), 1u);
  EXPECT_EQ(t.copies[0].bytes, 4096u);
  EXPECT_EQ(t.name_of(3), "cudaLaunchKernel");
  EXPECT_EQ(t.name_of(6), "cudaStreamSynchronize");
  EXPECT_EQ(t.track_of(5).thread, "trainer");
  EXPECT_EQ(t.track_of(5).process, "python");
  EXPECT_EQ(t.track_of(5).tid, "78");

  const TraceIndex index(t);
  EXPECT_EQ(index.launch_of(0), 3u);
  EXPECT_EQ(index.launch_of(2), 4u);
  const model::TraceSummary s = summarize(index);
  ASSERT_EQ(s.steps.size(), 2u);
  EXPECT_EQ(s.steps[0].name, "step 1");
  EXPECT_EQ(s.steps[1].name, "step 2");
  ASSERT_EQ(s.devices.size(), 1u);
  EXPECT_EQ(s.devices[0].times.busy, 4500);
  EXPECT_EQ(s.unrecorded_launches, 0u);
}

TEST(ImportNsight, ReadsWhatNsightSystemsExports) {
  const Folder folder;
  make(folder.file("report.sqlite"), kRecording);
  auto file = import_trace(folder.file("report.sqlite"));
  ASSERT_TRUE(file.ok()) << file.error().message;
  expect_recording(*file);
  EXPECT_EQ(file->bytes_read, fs::file_size(folder.file("report.sqlite")));
  auto memory = import_trace_bytes(bytes_of(folder.file("report.sqlite")));
  ASSERT_TRUE(memory.ok()) << memory.error().message;
  expect_recording(*memory);
  // Nothing is left beside the file, and its name may hold what a URI gives a meaning.
  EXPECT_EQ(std::distance(fs::directory_iterator(fs::path(folder.file("")).parent_path()), {}), 1);
  fs::rename(folder.file("report.sqlite"), folder.file("50%?a=b#c"));
  EXPECT_TRUE(import_trace(folder.file("50%?a=b#c")).ok());
}

TEST(ImportNsight, ColumnsThatAVersionLacksAreLeftOut) {
  const Folder folder;
  make(folder.file("r"), R"sql(
CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start INTEGER, end INTEGER, streamId INTEGER);
INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (1, 2, 7), (5, 4, 7), (-9223372036854775807, 9223372036854775807, 7);
)sql");
  const auto t = import_trace(folder.file("r"));
  ASSERT_TRUE(t.ok()) << t.error().message;
  ASSERT_EQ(t->size(), 2u);  // one begins before any clock
  EXPECT_EQ(t->damage.bad_numbers, 1u);
  EXPECT_EQ(t->duration[1], 0);
}

TEST(ImportNsight, ProcessesHaveCorrelationIdsOfTheirOwn) {
  const Folder folder;
  make(folder.file("r"), R"sql(
CREATE TABLE StringIds (id INTEGER, value TEXT);
CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start INTEGER, end INTEGER, deviceId INTEGER, streamId INTEGER,
  correlationId INTEGER, globalPid INTEGER);
INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (10, 20, 0, 7, 5, 1 << 24), (30, 40, 1, 7, 5, 2 << 24);
CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME (start INTEGER, end INTEGER, globalTid INTEGER, correlationId INTEGER,
  nameId INTEGER);
INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME VALUES (1, 2, (1 << 24) + 1, 5, 1), (3, 4, (2 << 24) + 2, 5, 1);
)sql");
  const auto t = import_trace(folder.file("r"));
  ASSERT_TRUE(t.ok());
  const TraceIndex index(*t);
  EXPECT_EQ(index.launch_of(0), 2u);
  EXPECT_EQ(index.launch_of(1), 3u);
}

TEST(ImportNsight, OtherDatabasesAndViewsThatNeverEndAreRefused) {
  const Folder folder;
  make(folder.file("other"), "CREATE TABLE t (a)");
  auto t = import_trace(folder.file("other"));
  ASSERT_FALSE(t.ok());
  EXPECT_NE(t.error().hint.find("nsys export"), std::string::npos);
  make(folder.file("view"),
       "CREATE VIEW CUPTI_ACTIVITY_KIND_KERNEL AS WITH RECURSIVE n(start) AS (SELECT 1 UNION ALL "
       "SELECT start + 1 "
       "FROM n) SELECT start FROM n");
  EXPECT_FALSE(import_trace(folder.file("view")).ok());
}

TEST(ImportNsight, AnyDamageIsSaidOrHarmless) {
  const Folder folder;
  make(folder.file("r"), kRecording);
  const std::string good = bytes_of(folder.file("r"));
  std::mt19937 random(3);
  size_t said = 0;
  for (int i = 0; i < 300; ++i) {
    std::string bad = good;
    if (i % 3 == 0) {
      bad.resize(16 + random() % (bad.size() - 16));
    } else {
      for (int k = 0; k < 8; ++k)
        bad[16 + random() % (bad.size() - 16)] = static_cast<char>(random());
    }
    const auto t = import_trace_bytes(bad);
    if (!t.ok()) {
      EXPECT_EQ(t.error().message.find('\n'), std::string::npos);
      ++said;
      continue;
    }
    said += t->damage.any() ? 1 : 0;
    summarize(TraceIndex(*t));
  }
  EXPECT_GT(said, 50u);
}

}  // namespace
}  // namespace flatout::timeline
