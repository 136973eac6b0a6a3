#include <cstring>

#include "devmem/cuda_driver.h"
#include "devmem/host_driver.h"
#include "devmem/sim_driver.h"
#include "devmem/testing/driver_suite.h"

namespace flatout::devmem {
namespace {

constexpr Bytes kGiB = Bytes{1} << 30;

SimDriver& simulated(Driver& driver) { return static_cast<SimDriver&>(driver); }

Stream next_number(Driver&) {
  static Stream last = 2;
  return ++last;
}

bool keeps_what_is_written(Driver&, Address address, Bytes size) {
  auto* const bytes = reinterpret_cast<unsigned char*>(address);
  std::memset(bytes, 0x5a, size);
  return bytes[0] == 0x5a && bytes[size - 1] == 0x5a;
}

INSTANTIATE_TEST_SUITE_P(
    Devmem, EveryDriver,
    testing::Values(DriverUnderTest{"simulated", [] { return std::make_unique<SimDriver>(kGiB); },
                                    next_number,
                                    [](Driver& d, Address at, Bytes size) {
                                      return simulated(d).accessible(at, size);
                                    },
                                    [](Driver& d, Stream stream) { simulated(d).launch(stream); }},
                    DriverUnderTest{"host", [] { return std::make_unique<HostDriver>(kGiB); },
                                    next_number, keeps_what_is_written}),
    driver_name);

TEST(SimDriver, AFullDeviceServesAStreamWhatItHasFreedItself) {
  SimDriver driver(4 * kPageBytes);
  const Address first = *driver.allocate_async(4 * kPageBytes, 1);
  driver.launch(1);
  driver.free_async(first, 1);
  EXPECT_EQ(driver.used(), 4 * kPageBytes) << "the work may still use it";
  EXPECT_FALSE(driver.allocate_async(kPageBytes, 2).ok());
  EXPECT_TRUE(driver.allocate_async(kPageBytes, 1).ok());
}

TEST(CudaDriver, SaysThatThereIsNoDriver) {
  const auto api = CudaApi::load();
  if (api.ok()) GTEST_SKIP() << "there is a driver here";
  EXPECT_NE(CudaDriver::open(0).error().message.find("driver"), std::string::npos);
  EXPECT_FALSE(CudaDriver::open(0).error().hint.empty());
}

}  // namespace
}  // namespace flatout::devmem
