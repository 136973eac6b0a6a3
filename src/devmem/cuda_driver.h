// A card, by the CUDA driver's own functions, in the device's primary context: the one that the
// CUDA runtime, and so PyTorch and TensorFlow, work in. Each call makes it the calling thread's for
// as long as the call lasts.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "devmem/cuda_api.h"
#include "devmem/driver.h"

namespace flatout::devmem {

class CudaDriver : public Driver {
 public:
  /// Device `ordinal`, as this process numbers them (CUDA_VISIBLE_DEVICES). Errors: those of
  /// CudaApi::load(); kNotFound: no such device; kUnsupported: it cannot map memory by the page;
  /// kFull: there is no room for a context. Tests may give functions in place of libcuda's, which
  /// must outlive it.
  static Result<std::unique_ptr<CudaDriver>> open(int ordinal, const CudaApi* api = nullptr);
  /// What was not given back stays taken until the process ends.
  ~CudaDriver() override;
  CudaDriver(const CudaDriver&) = delete;
  CudaDriver& operator=(const CudaDriver&) = delete;

  Bytes total_bytes() const override { return total_; }
  Bytes free_bytes() override;
  Result<Address> allocate(Bytes size) override;
  void free(Address address) override;
  Result<Address> allocate_async(Bytes size, Stream stream) override;
  void free_async(Address address, Stream stream) override;
  Result<Address> reserve(Bytes size) override;
  void unreserve(Address address) override;
  Result<Handle> create(Bytes size) override;
  void release(Handle handle) override;
  void map(Address address, Handle handle) override;
  void set_access(Address address, Bytes size) override;
  void unmap(Address address) override;
  void synchronize(Stream stream) override;
  Event record(Stream stream) override;
  bool is_done(Event event) override;
  void wait(Event event) override;
  void forget(Event event) override;
  bool is_capturing(Stream stream) override;
  Status health() const override { return health_; }

 private:
  CudaDriver(const CudaApi& api, cuda::CUdevice device, cuda::Opaque context, Bytes total);

  /// Notes what should not have failed.
  void must(const char* call, cuda::CUresult result);
  /// Of a call on a stream: waits for the device where the stream is no more.
  void must_or_wait(const char* call, cuda::CUresult result);
  /// Of a call that asks for memory.
  Error refused(const char* call, cuda::CUresult result);
  template <class Call>
  cuda::CUresult in_context(Call call);

  const CudaApi& api_;
  cuda::CUdevice device_;
  cuda::Opaque context_;
  Bytes total_;
  cuda::CUmemAllocationProp on_device_ = {};
  std::vector<cuda::CUmemAccessDesc> access_;  // this device, and those that can reach its memory
  Status health_;
  std::unordered_map<Address, Bytes> reservations_;
  std::unordered_map<Handle, Bytes> handles_;
  std::unordered_map<Address, Bytes> mappings_;
  std::vector<Event> spare_events_;
};

}  // namespace flatout::devmem
