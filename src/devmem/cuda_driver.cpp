#include "devmem/cuda_driver.h"

#include <fmt/format.h>

namespace flatout::devmem {

using cuda::CUDA_SUCCESS;
using cuda::CUresult;
using cuda::Opaque;

namespace {

Opaque opaque(uint64_t number) { return reinterpret_cast<Opaque>(number); }

// What the driver says of a stream that the program has destroyed, by its version.
bool is_gone(CUresult result) {
  constexpr CUresult kInvalidContext = 201, kInvalidHandle = 400, kContextIsDestroyed = 709;
  return result == kInvalidHandle || result == kContextIsDestroyed || result == kInvalidContext;
}

}  // namespace

Result<std::unique_ptr<CudaDriver>> CudaDriver::open(int ordinal, const CudaApi* api) {
  if (api == nullptr) {
    FLATOUT_TRY(api, CudaApi::load());
  }
  int count = 0;
  api->device_count(&count);
  if (ordinal < 0 || ordinal >= count)
    return Error{Code::kNotFound,
                 fmt::format("there is no CUDA device {}: this process sees {}", ordinal, count),
                 "CUDA_VISIBLE_DEVICES chooses them"};
  cuda::CUdevice device = 0;
  Opaque context = nullptr;
  size_t total = 0;
  CUresult result = api->device(&device, ordinal);
  if (result == CUDA_SUCCESS) result = api->total(&total, device);
  if (result == CUDA_SUCCESS) result = api->retain_context(&context, device);
  if (result != CUDA_SUCCESS)
    return Error{result == cuda::CUDA_ERROR_OUT_OF_MEMORY ? Code::kFull : Code::kIo,
                 fmt::format("no context on CUDA device {}: {}", ordinal, api->name_of(result)),
                 "flatout check says who holds its memory"};
  std::unique_ptr<CudaDriver> driver(new CudaDriver(*api, device, context, total));

  int maps = 0;
  size_t granularity = 0;
  api->attribute(&maps, cuda::CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, device);
  result = driver->in_context([&] {
    return api->granularity(&granularity, &driver->on_device_,
                            cuda::CU_MEM_ALLOC_GRANULARITY_MINIMUM);
  });
  if (maps == 0 || result != CUDA_SUCCESS || granularity == 0 || kPageBytes % granularity != 0)
    return Error{Code::kUnsupported,
                 fmt::format("CUDA device {} cannot map memory in pages of 2 MiB", ordinal),
                 "it takes a card of compute capability 6.0 or later, not virtualised"};
  for (int other = 0; other < count; ++other) {
    cuda::CUdevice peer = 0;
    int can = 0;
    if (other != ordinal && api->device(&peer, other) == CUDA_SUCCESS &&
        api->can_access(&can, peer, device) == CUDA_SUCCESS && can != 0)
      driver->access_.push_back(
          {{cuda::CU_MEM_LOCATION_TYPE_DEVICE, peer}, cuda::CU_MEM_ACCESS_FLAGS_PROT_READWRITE});
  }
  return driver;
}

CudaDriver::CudaDriver(const CudaApi& api, cuda::CUdevice device, Opaque context, Bytes total)
    : api_(api), device_(device), context_(context), total_(total) {
  on_device_.type = cuda::CU_MEM_ALLOCATION_TYPE_PINNED;
  on_device_.location = {cuda::CU_MEM_LOCATION_TYPE_DEVICE, device};
  access_.push_back({on_device_.location, cuda::CU_MEM_ACCESS_FLAGS_PROT_READWRITE});
}

CudaDriver::~CudaDriver() {
  for (const Event event : spare_events_)
    in_context([&] { return api_.event_destroy(opaque(event)); });
  api_.release_context(device_);
}

template <class Call>
CUresult CudaDriver::in_context(Call call) {
  CUresult result = api_.push_context(context_);
  if (result != CUDA_SUCCESS) return result;
  result = call();
  Opaque popped = nullptr;
  api_.pop_context(&popped);
  return result;
}

void CudaDriver::must(const char* call, CUresult result) {
  // At the process's end the driver may be gone before the last block is.
  if (result == CUDA_SUCCESS || result == cuda::CUDA_ERROR_DEINITIALIZED || !health_.ok()) return;
  health_ = Error{Code::kIo, fmt::format("{} gives {}", call, api_.name_of(result)),
                  "the fault lies before this call: CUDA_LAUNCH_BLOCKING=1 shows where"};
}

void CudaDriver::must_or_wait(const char* call, CUresult result) {
  // cuStreamDestroy() returns at once, and what was queued on the stream goes on.
  if (is_gone(result) && api_.context_synchronize != nullptr) {
    must("cuCtxSynchronize", in_context([&] { return api_.context_synchronize(); }));
  } else {
    must(call, result);
  }
}

Error CudaDriver::refused(const char* call, CUresult result) {
  if (result != cuda::CUDA_ERROR_OUT_OF_MEMORY) must(call, result);
  return Error{Code::kFull, fmt::format("{} gives {}", call, api_.name_of(result)), ""};
}

Bytes CudaDriver::free_bytes() {
  size_t free = 0, total = 0;
  must("cuMemGetInfo", in_context([&] { return api_.memory_info(&free, &total); }));
  return free;
}

Result<Address> CudaDriver::allocate(Bytes size) {
  Address address = 0;
  const CUresult result = in_context([&] { return api_.allocate(&address, size); });
  if (result != CUDA_SUCCESS) return refused("cuMemAlloc", result);
  return address;
}

void CudaDriver::free(Address address) {
  must("cuMemFree", in_context([&] { return api_.free(address); }));
}

Result<Address> CudaDriver::allocate_async(Bytes size, Stream stream) {
  Address address = 0;
  const CUresult result =
      in_context([&] { return api_.allocate_async(&address, size, opaque(stream)); });
  if (result != CUDA_SUCCESS) return refused("cuMemAllocAsync", result);
  return address;
}

void CudaDriver::free_async(Address address, Stream stream) {
  must("cuMemFreeAsync", in_context([&] { return api_.free_async(address, opaque(stream)); }));
}

Result<Address> CudaDriver::reserve(Bytes size) {
  Address address = 0;
  const CUresult result =
      in_context([&] { return api_.reserve(&address, size, kPageBytes, 0, 0); });
  if (result != CUDA_SUCCESS) return refused("cuMemAddressReserve", result);
  reservations_[address] = size;
  return address;
}

void CudaDriver::unreserve(Address address) {
  const auto it = reservations_.find(address);
  FLATOUT_CHECK(it != reservations_.end());
  must("cuMemAddressFree", in_context([&] { return api_.unreserve(address, it->second); }));
  reservations_.erase(it);
}

Result<Handle> CudaDriver::create(Bytes size) {
  Handle handle = 0;
  const CUresult result = in_context([&] { return api_.create(&handle, size, &on_device_, 0); });
  if (result != CUDA_SUCCESS) return refused("cuMemCreate", result);
  handles_[handle] = size;
  return handle;
}

void CudaDriver::release(Handle handle) {
  FLATOUT_CHECK(handles_.erase(handle) == 1);
  must("cuMemRelease", in_context([&] { return api_.release(handle); }));
}

void CudaDriver::map(Address address, Handle handle) {
  const Bytes size = handles_.at(handle);
  must("cuMemMap", in_context([&] { return api_.map(address, size, 0, handle, 0); }));
  mappings_[address] = size;
}

void CudaDriver::set_access(Address address, Bytes size) {
  must("cuMemSetAccess",
       in_context([&] { return api_.set_access(address, size, access_.data(), access_.size()); }));
}

void CudaDriver::unmap(Address address) {
  const auto it = mappings_.find(address);
  FLATOUT_CHECK(it != mappings_.end());
  must("cuMemUnmap", in_context([&] { return api_.unmap(address, it->second); }));
  mappings_.erase(it);
}

void CudaDriver::synchronize(Stream stream) {
  must_or_wait("cuStreamSynchronize",
               in_context([&] { return api_.stream_synchronize(opaque(stream)); }));
}

Event CudaDriver::record(Stream stream) {
  Opaque event = nullptr;
  if (spare_events_.empty()) {
    must("cuEventCreate",
         in_context([&] { return api_.event_create(&event, cuda::CU_EVENT_DISABLE_TIMING); }));
  } else {
    event = opaque(spare_events_.back());
    spare_events_.pop_back();
  }
  // One that is not recorded is done, and so is a spare one.
  must_or_wait("cuEventRecord",
               in_context([&] { return api_.event_record(event, opaque(stream)); }));
  return reinterpret_cast<Event>(event);
}

bool CudaDriver::is_done(Event event) {
  const CUresult result = in_context([&] { return api_.event_query(opaque(event)); });
  if (result != cuda::CUDA_ERROR_NOT_READY) must("cuEventQuery", result);
  return result == CUDA_SUCCESS;
}

void CudaDriver::wait(Event event) {
  must("cuEventSynchronize", in_context([&] { return api_.event_synchronize(opaque(event)); }));
}

void CudaDriver::forget(Event event) { spare_events_.push_back(event); }

bool CudaDriver::is_capturing(Stream stream) {
  constexpr Stream kLastSpecial = 2;  // none, legacy, per thread: only the last could be
  int status = 0;
  return stream > kLastSpecial && api_.is_capturing(opaque(stream), &status) == CUDA_SUCCESS &&
         status != 0;
}

}  // namespace flatout::devmem
