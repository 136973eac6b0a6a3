#include "devmem/host_driver.h"

#include <sys/mman.h>
#include <unistd.h>

namespace flatout::devmem {
namespace {

Bytes machine_bytes() {
  return static_cast<Bytes>(sysconf(_SC_PHYS_PAGES)) * static_cast<Bytes>(sysconf(_SC_PAGESIZE));
}

void* pointer(Address address) { return reinterpret_cast<void*>(address); }
int descriptor(Handle handle) { return static_cast<int>(handle - 1); }

}  // namespace

HostDriver::HostDriver(Bytes capacity) : capacity_(capacity > 0 ? capacity : machine_bytes()) {}

HostDriver::~HostDriver() {
  for (const auto& [address, size] : allocations_) munmap(pointer(address), size);
  for (const auto& [address, range] : reservations_) munmap(pointer(range.begin), range.size);
  for (const auto& [handle, size] : handles_) close(descriptor(handle));
}

Status HostDriver::take(Bytes size) {
  if (size > capacity_ - used_) return Error{Code::kFull, "the device is full", ""};
  used_ += size;
  return {};
}

Result<Address> HostDriver::allocate(Bytes size) {
  FLATOUT_TRY_STATUS(take(size));
  void* memory = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) {
    used_ -= size;
    return Error{Code::kFull, "the machine has no memory left", ""};
  }
  allocations_.emplace(reinterpret_cast<Address>(memory), size);
  return reinterpret_cast<Address>(memory);
}

void HostDriver::free(Address address) {
  const auto it = allocations_.find(address);
  FLATOUT_CHECK(it != allocations_.end());
  munmap(pointer(address), it->second);
  used_ -= it->second;
  allocations_.erase(it);
}

Result<Address> HostDriver::reserve(Bytes size) {
  const Bytes whole = size + kPageBytes;
  void* memory =
      mmap(nullptr, whole, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) return Error{Code::kFull, "the process has no addresses left", ""};
  const Address begin = reinterpret_cast<Address>(memory);
  const Address address = round_up(begin, kPageBytes);
  reservations_.emplace(address, Range{begin, whole});
  return address;
}

void HostDriver::unreserve(Address address) {
  const auto it = reservations_.find(address);
  FLATOUT_CHECK(it != reservations_.end());
  munmap(pointer(it->second.begin), it->second.size);
  reservations_.erase(it);
}

Result<Handle> HostDriver::create(Bytes size) {
  FLATOUT_TRY_STATUS(take(size));
  const int fd = memfd_create("flatout-device", MFD_CLOEXEC);
  if (fd < 0 || ftruncate(fd, static_cast<off_t>(size)) != 0) {
    if (fd >= 0) close(fd);
    used_ -= size;
    return Error{Code::kFull, "the machine has no memory left", ""};
  }
  const Handle handle = static_cast<Handle>(fd) + 1;
  handles_.emplace(handle, size);
  return handle;
}

void HostDriver::release(Handle handle) {
  const auto it = handles_.find(handle);
  FLATOUT_CHECK(it != handles_.end());
  close(descriptor(handle));
  used_ -= it->second;
  handles_.erase(it);
}

void HostDriver::map(Address address, Handle handle) {
  const auto it = handles_.find(handle);
  FLATOUT_CHECK(it != handles_.end());
  FLATOUT_CHECK(mmap(pointer(address), it->second, PROT_NONE, MAP_SHARED | MAP_FIXED,
                     descriptor(handle), 0) != MAP_FAILED);
  mappings_.emplace(address, it->second);
}

void HostDriver::set_access(Address address, Bytes size) {
  FLATOUT_CHECK(mprotect(pointer(address), size, PROT_READ | PROT_WRITE) == 0);
}

void HostDriver::unmap(Address address) {
  const auto it = mappings_.find(address);
  FLATOUT_CHECK(it != mappings_.end());
  FLATOUT_CHECK(mmap(pointer(address), it->second, PROT_NONE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0) != MAP_FAILED);
  mappings_.erase(it);
}

}  // namespace flatout::devmem
