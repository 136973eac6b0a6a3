// The suite of drivers on CudaDriver: over the stand-in libcuda that the build makes, or, with the
// environment of a machine that has one, on a card.
#include "devmem/cuda_driver.h"

#include <dlfcn.h>

#include "devmem/device_pool.h"
#include "devmem/testing/driver_suite.h"

namespace flatout::devmem {
namespace {

void* libcuda() {
  static void* const library = ::dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  return library;
}
template <class Function>
Function* find(const char* name) {
  return reinterpret_cast<Function*>(libcuda() != nullptr ? ::dlsym(libcuda(), name) : nullptr);
}
auto* const fake_accessible = find<int(uint64_t, size_t, int)>("fakeAccessible");
auto* const fake_launch = find<void(void*)>("fakeLaunch");
const bool is_fake = fake_accessible != nullptr;

/// Makes device 0's context the calling thread's.
void enter() {
  static cuda::Opaque context = nullptr;
  const CudaApi& api = **CudaApi::load();
  if (context == nullptr) api.retain_context(&context, 0);
  find<int(void*)>("cuCtxSetCurrent")(context);
}

Stream new_stream(Driver&) {
  enter();
  void* stream = nullptr;
  constexpr unsigned kNonBlocking = 1;
  EXPECT_EQ((find<int(void**, unsigned)>("cuStreamCreate")(&stream, kNonBlocking)), 0);
  static auto& all = *new std::vector<void*>;  // so that none is lost: nothing destroys them
  all.push_back(stream);
  return reinterpret_cast<Stream>(stream);
}

bool use(Driver&, Address address, Bytes size) {
  if (is_fake) return fake_accessible(address, size, 0) != 0;
  enter();
  unsigned char last = 0;
  return find<int(uint64_t, unsigned char, size_t)>("cuMemsetD8_v2")(address, 0x5a, size) == 0 &&
         find<int(void*, uint64_t, size_t)>("cuMemcpyDtoH_v2")(&last, address + size - 1, 1) == 0 &&
         last == 0x5a;
}

class Devices : public testing::Environment {
 public:
  void SetUp() override {
    if (const auto api = CudaApi::load(); !api.ok()) GTEST_SKIP() << api.error().message;
  }
};
const auto* const environment = testing::AddGlobalTestEnvironment(new Devices);

DriverUnderTest cuda_driver() {
  DriverUnderTest out{"cuda",
                      []() -> std::unique_ptr<Driver> {
                        enter();  // the context is there before and after
                        auto opened = CudaDriver::open(0);
                        if (!opened.ok()) ADD_FAILURE() << opened.error().message;
                        return opened.ok() ? std::move(*opened) : nullptr;
                      },
                      new_stream, use};
  if (fake_launch != nullptr)
    out.launch = [](Driver&, Stream stream) { fake_launch(reinterpret_cast<void*>(stream)); };
  out.exact = is_fake;
  return out;
}
INSTANTIATE_TEST_SUITE_P(Devmem, EveryDriver, testing::Values(cuda_driver()), driver_name);

TEST(CudaDriver, ADeviceThatIsNotThereIsNamed) {
  const auto opened = CudaDriver::open(99);
  ASSERT_FALSE(opened.ok());
  EXPECT_EQ(opened.error().code, Code::kNotFound);
  EXPECT_NE(opened.error().message.find("no CUDA device 99"), std::string::npos);
}

TEST(CudaDriver, LeavesTheThreadsOwnContextCurrent) {
  enter();
  void *before = nullptr, *after = nullptr;
  const auto current = find<int(void**)>("cuCtxGetCurrent");
  current(&before);
  const auto driver = CudaDriver::open(0).value();
  driver->free(*driver->allocate(kPageBytes));
  current(&after);
  EXPECT_EQ(before, after);
}

TEST(CudaDriver, AMistakeOfTheDriversIsKeptAndNamed) {
  const auto driver = CudaDriver::open(0).value();
  EXPECT_TRUE(driver->health().ok());
  driver->free(0x1234500);  // nothing lies there
  ASSERT_FALSE(driver->health().ok());
  EXPECT_NE(driver->health().error().message.find("cuMemFree"), std::string::npos);
}

// libcuda, but for a stream that the program has destroyed.
struct DeadStream {
  static inline cuda::Opaque stream = nullptr;  // null: none
  static inline cuda::CUresult says = 400, device_says = 0;
  static inline int waits = 0;  // for the device
  static const CudaApi* api() {
    static const CudaApi real = **CudaApi::load();
    static CudaApi changed = real;
    stream = nullptr, says = 400, device_says = 0, waits = 0;
    changed.stream_synchronize = [](cuda::Opaque on) {
      return on != nullptr && on == stream ? says : real.stream_synchronize(on);
    };
    changed.event_record = [](cuda::Opaque event, cuda::Opaque on) {
      return on != nullptr && on == stream ? says : real.event_record(event, on);
    };
    changed.context_synchronize = [] { return ++waits, device_says; };
    return &changed;
  }
};

TEST(CudaDriver, AStreamThatIsDestroyedIsDoneWhenTheDeviceIs) {
  const auto driver = CudaDriver::open(0, DeadStream::api()).value();
  const Stream dead = new_stream(*driver);
  DeadStream::stream = reinterpret_cast<cuda::Opaque>(dead);
  int waits = 0;
  for (const cuda::CUresult says : {201, 400, 709}) {
    DeadStream::says = says;
    driver->synchronize(dead);
    EXPECT_EQ(DeadStream::waits, ++waits);
    const Event event = driver->record(dead);
    EXPECT_EQ(DeadStream::waits, ++waits) << "its work may go on";
    EXPECT_TRUE(driver->is_done(event));
    driver->wait(event);
    driver->forget(event);
    EXPECT_TRUE(driver->health().ok()) << driver->health().error().message;
  }
  DeadStream::device_says = 700;  // a kernel's illegal access
  driver->synchronize(dead);
  ASSERT_FALSE(driver->health().ok());
  EXPECT_NE(driver->health().error().message.find("cuCtxSynchronize"), std::string::npos);
}

TEST(CudaDriver, AnErrorOfAStreamThatIsThereIsNoDestroyedStream) {
  const auto driver = CudaDriver::open(0, DeadStream::api()).value();
  const Stream failing = new_stream(*driver);
  DeadStream::stream = reinterpret_cast<cuda::Opaque>(failing);
  DeadStream::says = 719;  // a kernel's failure
  driver->synchronize(failing);
  EXPECT_FALSE(driver->health().ok());
  EXPECT_EQ(DeadStream::waits, 0);
}

TEST(CudaDriver, APoolGoesOnWhenAStreamOfItsProgramIsDestroyed) {
  for (const char* policy : {"arena", "torch_expandable"}) {
    const auto card = std::make_shared<Card>(CudaDriver::open(0, DeadStream::api()).value());
    const Stream dead = new_stream(card->driver()), other = new_stream(card->driver());
    const auto pool = DevicePool::open(card, {.policy = policy, .limit = 32 * kPageBytes}).value();
    const Address own = pool->allocate(10 * kPageBytes, dead, nullptr).value();
    const Address shared = pool->allocate(20 * kPageBytes, other, nullptr).value();
    ASSERT_TRUE(pool->use_on(shared, dead).ok());
    DeadStream::stream = reinterpret_cast<cuda::Opaque>(dead);
    for (const Address block : {own, shared})
      ASSERT_TRUE(pool->free(block, std::nullopt, std::nullopt, nullptr).ok());
    const auto got = pool->allocate(30 * kPageBytes, other, nullptr);
    EXPECT_TRUE(got.ok()) << policy << ": " << got.error().message;
    EXPECT_GT(DeadStream::waits, 0);
  }
}

TEST(CudaDriver, OtherCardsReachItsMemory) {
  if (!is_fake) GTEST_SKIP() << "the stand-in has two cards";
  const auto driver = CudaDriver::open(0).value();
  const Address range = *driver->reserve(kPageBytes);
  const Handle handle = *driver->create(kPageBytes);
  driver->map(range, handle);
  driver->set_access(range, kPageBytes);
  EXPECT_TRUE(fake_accessible(range, kPageBytes, 1));
  driver->unmap(range);
  driver->release(handle);
  driver->unreserve(range);
}

}  // namespace
}  // namespace flatout::devmem
