// The CUDA trace: records against NVIDIA's own headers where these are installed, the recorder
// against a library that behaves as CUPTI, NVTX against a table as NVTX makes it. Each job is a
// process of its own.
#include <dlfcn.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstddef>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "agent/cupti_records.h"

#if __has_include(<cupti.h>)
#include <cupti.h>
#define HAS_CUPTI 1
#endif
#if __has_include(<nvtx3/nvToolsExt.h>)
#include <nvtx3/nvToolsExt.h>
#define HAS_NVTX 1
#endif

namespace {

namespace fs = std::filesystem;
using nlohmann::json;

class Folder {
 public:
  Folder() {
    std::string name = "/tmp/flatout-cuda-XXXXXX";
    EXPECT_NE(::mkdtemp(name.data()), nullptr);
    path_ = name;
  }
  ~Folder() { fs::remove_all(path_); }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  fs::path file(const std::string& name) const { return path_ / name; }

 private:
  fs::path path_;
};

// Runs `job` in a child with $FLATOUT_CUDA_TRACE set; the events of the trace that it leaves.
std::vector<json> events_of(const fs::path& trace, const std::function<void()>& job) {
  const pid_t child = ::fork();
  if (child == 0) {
    ::setenv("FLATOUT_CUDA_TRACE", trace.c_str(), 1);
    job();
    std::exit(0);  // with what was asked to run at the exit
  }
  int status = 0;
  EXPECT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  std::ifstream in(trace);
  const json document = json::parse(in, nullptr, false);
  EXPECT_FALSE(document.is_discarded());
  return document.is_discarded() ? std::vector<json>()
                                 : document["traceEvents"].get<std::vector<json>>();
}

std::vector<json> of_category(const std::vector<json>& events, const std::string& category) {
  std::vector<json> out;
  for (const json& e : events)
    if (e.value("cat", "") == category) out.push_back(e);
  return out;
}

std::string missing(const std::vector<json>& events) {
  std::string out;
  for (const json& e : events)
    if (e["name"] == "flatout_missing") out += e["args"]["name"].get<std::string>() + "; ";
  return out;
}

template <class F>
F* symbol(const char* library, const char* name) {
  void* const handle = ::dlopen(library, RTLD_NOW);
  return handle != nullptr ? reinterpret_cast<F*>(::dlsym(handle, name)) : nullptr;
}

void record_with_fake(const char* mode, uint32_t work) {
  ::setenv("FAKE_CUPTI", mode, 1);
  auto* const do_work = symbol<int(uint32_t)>(FLATOUT_FAKE_CUPTI, "fake_cupti_work");
  auto* const inject = symbol<int()>(FLATOUT_AGENT_LIBRARY, "InitializeInjection");
  if (do_work == nullptr || inject == nullptr || inject() != 1 || inject() != 1) std::_Exit(9);
  do_work(work);
}

TEST(CudaTrace, HoldsWhatCuptiRecorded) {
  const Folder folder;
  const auto events = events_of(folder.file("t.json"), [] { record_with_fake("", 1000); });
  const auto kernels = of_category(events, "kernel");
  ASSERT_EQ(kernels.size(), 1000u);
  EXPECT_EQ(kernels[0]["name"], "plain \"name\"");
  EXPECT_EQ(kernels[1]["name"], "_Z4gemmIfEvPT_");
  EXPECT_EQ(kernels[0]["pid"], 1);
  EXPECT_EQ(kernels[0]["tid"], 7);
  EXPECT_EQ(kernels[0]["dur"], 10.0);
  EXPECT_EQ(kernels[0]["args"], json::parse(R"({"device": 1, "stream": 7, "correlation": 1})"));
  const auto calls = of_category(events, "cuda_runtime");
  ASSERT_EQ(calls.size(), 1000u);
  EXPECT_EQ(calls[0]["name"], "cudaLaunchKernel");
  EXPECT_EQ(calls[0]["tid"], 4711);
  EXPECT_NEAR(kernels[0]["ts"].get<double>() - calls[0]["ts"].get<double>(), 6.0, 1e-6);
  const auto copies = of_category(events, "gpu_memcpy");
  ASSERT_EQ(copies.size(), 100u);
  EXPECT_EQ(copies[0]["name"], "Memcpy HtoD (Pinned -> Device)");
  EXPECT_EQ(copies[0]["args"]["bytes"], 4096);
  EXPECT_EQ(of_category(events, "gpu_memset").size(), 100u);
  EXPECT_EQ(of_category(events, "cuda_sync").size(), 100u);
  // What this device cannot record is said, and nothing else.
  EXPECT_EQ(missing(events), "CUPTI does not record activity kind 22 (error 7); ");
}

TEST(CudaTrace, ManyBuffersLoseNothing) {
  const Folder folder;
  const auto events =
      events_of(folder.file("t.json"), [] { record_with_fake("", 40'000); });  // 4 MB each
  EXPECT_EQ(of_category(events, "kernel").size(), 40'000u);
  EXPECT_EQ(of_category(events, "cuda_runtime").size(), 40'000u);
}

TEST(CudaTrace, AnotherToolThatHasCuptiIsNamed) {
  const Folder folder;
  const auto events = events_of(folder.file("t.json"), [] { record_with_fake("taken", 10); });
  EXPECT_TRUE(of_category(events, "kernel").empty());
  EXPECT_NE(missing(events).find("CUPTI for Other has CUPTI"), std::string::npos)
      << missing(events);
  EXPECT_NE(missing(events).find("error 39"), std::string::npos);
}

TEST(CudaTrace, DroppedRecordsAreCounted) {
  const Folder folder;
  const auto events = events_of(folder.file("t.json"), [] { record_with_fake("dropped", 10); });
  EXPECT_NE(missing(events).find("CUPTI dropped 7 records"), std::string::npos) << missing(events);
}

TEST(CudaTrace, AnOldCuptiIsRefused) {
  const Folder folder;
  const auto events = events_of(folder.file("t.json"), [] { record_with_fake("old", 10); });
  EXPECT_TRUE(of_category(events, "kernel").empty());
  EXPECT_NE(missing(events).find("older than CUDA 12"), std::string::npos);
}

TEST(CudaTrace, ASecondProcessHasAFileOfItsOwn) {
  const Folder folder;
  const fs::path trace = folder.file("t.json");
  const auto first = events_of(trace, [&] {
    const pid_t other = ::fork();
    if (other == 0) {
      // Waits until the first has its file.
      while (!fs::exists(trace)) ::usleep(1000);
      record_with_fake("", 5);
      std::exit(0);
    }
    record_with_fake("", 3);
    ::waitpid(other, nullptr, 0);
  });
  EXPECT_EQ(of_category(first, "kernel").size(), 3u);
  size_t files = 0;
  for (const auto& entry : fs::directory_iterator(trace.parent_path()))
    files += entry.is_regular_file() ? 1 : 0;
  EXPECT_EQ(files, 2u);
}

// ---- records ----

TEST(CuptiRecords, AnyBytesAreReadOrRefused) {
  std::mt19937 random(5);
  cupti_event event;
  for (int i = 0; i < 20'000; ++i) {
    std::vector<unsigned char> bytes(random() % 160);
    for (unsigned char& b : bytes) b = static_cast<unsigned char>(random());
    if (bytes.size() >= 4) {
      const uint32_t kind = random() % 60;
      std::memcpy(bytes.data(), &kind, sizeof kind);
    }
    if (cupti_read_record(bytes.data(), bytes.size(), &event) == 1) {
      EXPECT_GE(event.end, event.start);
    }
  }
  EXPECT_EQ(cupti_read_record("", 0, &event), 0);
}

TEST(CuptiRecords, LieWhereNvidiasHeadersHaveThem) {
#ifndef HAS_CUPTI
  GTEST_SKIP() << "CUPTI's headers are not installed";
#else
  CUpti_ActivityKernel9 kernel{};
  kernel.kind = CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL;
  kernel.start = 11;
  kernel.end = 22;
  kernel.deviceId = 3;
  kernel.streamId = 4;
  kernel.correlationId = 5;
  kernel.name = "k";
  cupti_event e;
  ASSERT_EQ(cupti_read_record(&kernel, sizeof kernel, &e), 1);
  EXPECT_EQ(e.start, 11u);
  EXPECT_EQ(e.end, 22u);
  EXPECT_EQ(e.device, 3u);
  EXPECT_EQ(e.stream, 4u);
  EXPECT_EQ(e.correlation, 5u);
  EXPECT_STREQ(e.name, "k");
#if CUPTI_API_VERSION >= 130000
  static_assert(offsetof(CUpti_ActivityKernel10, name) == offsetof(CUpti_ActivityKernel9, name));
  static_assert(offsetof(CUpti_ActivityKernel10, correlationId) ==
                offsetof(CUpti_ActivityKernel9, correlationId));
#endif
  static_assert(offsetof(CUpti_ActivityKernel9, name) == offsetof(cupti_kernel, name));

  CUpti_ActivityMemcpy5 copy{};
  copy.kind = CUPTI_ACTIVITY_KIND_MEMCPY;
  copy.copyKind = CUPTI_ACTIVITY_MEMCPY_KIND_DTOH;
  copy.srcKind = CUPTI_ACTIVITY_MEMORY_KIND_DEVICE;
  copy.dstKind = CUPTI_ACTIVITY_MEMORY_KIND_PAGEABLE;
  copy.bytes = 77;
  copy.start = 1;
  copy.end = 2;
  copy.deviceId = 6;
  copy.streamId = 7;
  copy.correlationId = 8;
  ASSERT_EQ(cupti_read_record(&copy, sizeof copy, &e), 1);
  EXPECT_STREQ(cupti_copy_name(e.copy_kind), "DtoH");
  EXPECT_STREQ(cupti_memory_name(e.source_kind), "Device");
  EXPECT_STREQ(cupti_memory_name(e.target_kind), "Pageable");
  EXPECT_EQ(e.bytes, 77u);
  EXPECT_EQ(e.stream, 7u);
  EXPECT_EQ(e.correlation, 8u);
  static_assert(offsetof(CUpti_ActivityMemcpy5, correlationId) ==
                offsetof(cupti_memcpy, correlation));
  static_assert(offsetof(CUpti_ActivityMemcpyPtoP4, correlationId) ==
                offsetof(cupti_memcpy2, correlation));
  static_assert(offsetof(CUpti_ActivityMemset4, correlationId) ==
                offsetof(cupti_memset, correlation));
  static_assert(offsetof(CUpti_ActivityMemset4, memoryKind) == offsetof(cupti_memset, memory_kind));
  static_assert(offsetof(CUpti_ActivityMemset4, bytes) == offsetof(cupti_memset, bytes));
  static_assert(offsetof(CUpti_ActivityAPI, cbid) == offsetof(cupti_call, function));
  static_assert(offsetof(CUpti_ActivityAPI, threadId) == offsetof(cupti_call, thread));
  static_assert(offsetof(CUpti_ActivityAPI, correlationId) == offsetof(cupti_call, correlation));
  static_assert(offsetof(CUpti_ActivitySynchronization, correlationId) ==
                offsetof(cupti_synchronization, correlation));
  static_assert(offsetof(CUpti_ActivitySynchronization, streamId) ==
                offsetof(cupti_synchronization, stream));
  static_assert(offsetof(CUpti_ActivityGraphTrace, graphId) == offsetof(cupti_graph, graph));
  static_assert(offsetof(CUpti_ActivityGraphTrace, streamId) == offsetof(cupti_graph, stream));
#endif
}

// ---- NVTX ----

using Function = void (*)();
struct CallbacksTable {
  size_t size;
  int (*get_module)(int, Function***, unsigned*);
};
Function core[16], core2[16];
Function* core_table[16];
Function* core2_table[16];

int get_module(int module, Function*** table, unsigned* size) {
  *table = module == 1 ? core_table : module == 5 ? core2_table : nullptr;
  *size = 16;
  return *table != nullptr;
}
const void* get_table(uint32_t id) {
  static const CallbacksTable table{sizeof(CallbacksTable), get_module};
  return id == 1 ? &table : nullptr;
}
template <class F>
F* core_function(size_t at) {
  return reinterpret_cast<F*>(core[at]);
}

bool initialize_nvtx() {
  for (size_t i = 0; i < 16; ++i) {
    core_table[i] = &core[i];
    core2_table[i] = &core2[i];
  }
  auto* const init =
      symbol<int(const void* (*)(uint32_t))>(FLATOUT_AGENT_LIBRARY, "InitializeInjectionNvtx2");
  return init != nullptr && init(get_table) == 1;
}

TEST(NvtxTrace, HoldsRangesOfAllThreads) {
  const Folder folder;
  const auto events = events_of(folder.file("t.json"), [] {
    if (!initialize_nvtx()) std::_Exit(9);
    auto* const push = core_function<int(const char*)>(9);
    auto* const pop = core_function<int()>(11);
    auto* const start = core_function<uint64_t(const char*)>(5);
    auto* const end = core_function<void(uint64_t)>(7);
    const uint64_t upload = start("upload");
    for (int i = 0; i < 1000; ++i) {
      if (push("step") != 0 || push("forward \"x\"\n") != 1 || pop() != 1 || pop() != 0)
        std::_Exit(8);
    }
    std::thread([&] {
      push("of another thread");
      pop();
      end(upload);
    }).join();
    if (pop() != -1) std::_Exit(7);
    end(12345);    // no such range
    push("open");  // never ends
  });
  const auto ranges = of_category(events, "nvtx");
  std::map<std::string, int> names;
  std::map<std::string, std::map<int64_t, int>> threads;
  for (const json& e : ranges) {
    ++names[e["name"]];
    ++threads[e["name"]][e["tid"].get<int64_t>()];
  }
  EXPECT_EQ(names["step"], 1000);
  EXPECT_EQ(names["forward \"x\"\n"], 1000);
  EXPECT_EQ(names["upload"], 1);
  EXPECT_EQ(names["of another thread"], 1);
  EXPECT_EQ(names.count("open"), 0u);
  EXPECT_NE(threads["step"].begin()->first, threads["of another thread"].begin()->first);
  // A range lies within the one round it.
  EXPECT_GE(ranges[0]["ts"].get<double>(), ranges[1]["ts"].get<double>());
}

TEST(NvtxTrace, DomainsAndRegisteredStringsToo) {
  const Folder folder;
  const auto events = events_of(folder.file("t.json"), [] {
    if (!initialize_nvtx()) std::_Exit(9);
    struct Attributes {
      uint16_t version = 3, size = sizeof(Attributes);
      uint32_t category = 0;
      int32_t color_type = 0;
      uint32_t color = 0;
      int32_t payload_type = 0, reserved = 0;
      uint64_t payload = 0;
      int32_t message_type = 3;
      const void* message = nullptr;
    } attributes;
    void* const domain = reinterpret_cast<void* (*)(const char*)>(core2[12])("DALI");
    attributes.message =
        reinterpret_cast<void* (*)(void*, const char*)>(core2[10])(domain, "registered");
    auto* const push = reinterpret_cast<int (*)(void*, const Attributes*)>(core2[4]);
    auto* const pop = reinterpret_cast<int (*)(void*)>(core2[5]);
    push(domain, &attributes);
    pop(domain);
  });
  ASSERT_EQ(of_category(events, "nvtx").size(), 1u);
  EXPECT_EQ(of_category(events, "nvtx")[0]["name"], "registered");
}

TEST(NvtxTrace, NvidiasHeadersFindIt) {
#ifndef HAS_NVTX
  GTEST_SKIP() << "the headers of NVTX are not installed";
#else
  const Folder folder;
  const auto events = events_of(folder.file("t.json"), [] {
    ::setenv("NVTX_INJECTION64_PATH", FLATOUT_AGENT_LIBRARY, 1);
    nvtxRangePushA("by the header");
    nvtxRangePop();
    const nvtxDomainHandle_t domain = nvtxDomainCreateA("d");
    nvtxEventAttributes_t attributes{};
    attributes.version = NVTX_VERSION;
    attributes.size = NVTX_EVENT_ATTRIB_STRUCT_SIZE;
    attributes.messageType = NVTX_MESSAGE_TYPE_ASCII;
    attributes.message.ascii = "in a domain";
    nvtxDomainRangePushEx(domain, &attributes);
    nvtxDomainRangePop(domain);
  });
  const auto ranges = of_category(events, "nvtx");
  ASSERT_EQ(ranges.size(), 2u);
  EXPECT_EQ(ranges[0]["name"], "by the header");
  EXPECT_EQ(ranges[1]["name"], "in a domain");
#endif
}

TEST(NvtxTrace, WithoutAFileNothingIsTaken) {
  ::unsetenv("FLATOUT_CUDA_TRACE");
  const pid_t child = ::fork();
  if (child == 0) std::_Exit(initialize_nvtx() ? 1 : 0);
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

}  // namespace
