// Counts what a policy asks of a driver that it shares with others.
#pragma once

#include "devmem/driver.h"

namespace flatout::devmem {

class Meter : public Driver {
 public:
  explicit Meter(Driver& driver) : driver_(driver) {}

  /// Calls that take memory, move it or give it back: none of them is needed in a steady state.
  uint64_t memory_calls() const { return memory_calls_; }
  /// All, those that wait included.
  uint64_t calls() const { return memory_calls_ + waits_; }

  Bytes total_bytes() const override { return driver_.total_bytes(); }
  Bytes free_bytes() override { return driver_.free_bytes(); }
  Result<Address> allocate(Bytes size) override { return memory().allocate(size); }
  void free(Address address) override { memory().free(address); }
  Result<Address> allocate_async(Bytes size, Stream stream) override {
    return memory().allocate_async(size, stream);
  }
  void free_async(Address address, Stream stream) override { memory().free_async(address, stream); }
  Result<Address> reserve(Bytes size) override { return memory().reserve(size); }
  void unreserve(Address address) override { memory().unreserve(address); }
  Result<Handle> create(Bytes size) override { return memory().create(size); }
  void release(Handle handle) override { memory().release(handle); }
  void map(Address address, Handle handle) override { memory().map(address, handle); }
  void set_access(Address address, Bytes size) override { memory().set_access(address, size); }
  void unmap(Address address) override { memory().unmap(address); }
  void synchronize(Stream stream) override { waiting().synchronize(stream); }
  Event record(Stream stream) override { return waiting().record(stream); }
  bool is_done(Event event) override { return waiting().is_done(event); }
  void wait(Event event) override { waiting().wait(event); }
  void forget(Event event) override { driver_.forget(event); }
  bool is_capturing(Stream stream) override { return driver_.is_capturing(stream); }
  Status health() const override { return driver_.health(); }

 private:
  Driver& memory() {
    ++memory_calls_;
    return driver_;
  }
  Driver& waiting() {
    ++waits_;
    return driver_;
  }
  Driver& driver_;
  uint64_t memory_calls_ = 0, waits_ = 0;
};

}  // namespace flatout::devmem
