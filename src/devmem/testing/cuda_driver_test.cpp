// The suite of drivers on CudaDriver: over the stand-in libcuda that the build makes, or, with the
// environment of a machine that has one, on a card.
#include "devmem/cuda_driver.h"

#include <dlfcn.h>

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
