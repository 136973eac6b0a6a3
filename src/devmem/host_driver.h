// Host memory as a device: what a policy maps is real memory at real addresses, within a capacity.
// A handle is a memfd, so that the same memory can be mapped elsewhere, as that of a card can.
#pragma once

#include <map>

#include "devmem/driver.h"

namespace flatout::devmem {

class HostDriver : public Driver {
 public:
  /// capacity 0: the machine's memory.
  explicit HostDriver(Bytes capacity = 0);
  ~HostDriver() override;
  HostDriver(const HostDriver&) = delete;
  HostDriver& operator=(const HostDriver&) = delete;

  Bytes total_bytes() const override { return capacity_; }
  Bytes free_bytes() override { return capacity_ - used_; }
  Result<Address> allocate(Bytes size) override;
  void free(Address address) override;
  Result<Address> allocate_async(Bytes size, Stream) override { return allocate(size); }
  void free_async(Address address, Stream) override { free(address); }
  Result<Address> reserve(Bytes size) override;
  void unreserve(Address address) override;
  Result<Handle> create(Bytes size) override;
  void release(Handle handle) override;
  void map(Address address, Handle handle) override;
  void set_access(Address address, Bytes size) override;
  void unmap(Address address) override;
  // The host has done what it was asked.
  void synchronize(Stream) override {}
  Event record(Stream) override { return 1; }
  bool is_done(Event) override { return true; }
  void wait(Event) override {}
  void forget(Event) override {}

  Bytes used() const { return used_; }

 private:
  struct Range {
    Address begin = 0;  // as mmap gave it; addresses handed out are aligned to a page of ours
    Bytes size = 0;
  };
  Status take(Bytes size);

  Bytes capacity_, used_ = 0;
  std::map<Address, Bytes> allocations_;
  std::map<Address, Range> reservations_;
  std::map<Address, Bytes> mappings_;
  std::map<Handle, Bytes> handles_;
};

}  // namespace flatout::devmem
