// What a policy asks of a driver that it shares with others: counted, and held to a limit whatever
// the policy makes of it.
#pragma once

#include <algorithm>
#include <unordered_map>

#include "devmem/driver.h"

namespace flatout::devmem {

class Meter : public Driver {
 public:
  Meter(Driver& driver, Bytes limit) : driver_(driver), limit_(limit) {}

  /// Memory taken and not given back; the most there was.
  Bytes reserved() const { return reserved_; }
  Bytes peak_reserved() const { return peak_; }
  void reset_peak() { peak_ = reserved_; }
  Bytes limit() const { return limit_; }
  uint64_t calls() const { return calls_; }

  Bytes total_bytes() const override { return driver_.total_bytes(); }
  Bytes free_bytes() override { return driver_.free_bytes(); }
  Result<Address> allocate(Bytes size) override {
    return take(allocations_, size, [&] { return counted().allocate(size); });
  }
  void free(Address address) override {
    give(allocations_, address);
    counted().free(address);
  }
  Result<Address> allocate_async(Bytes size, Stream stream) override {
    return take(allocations_, size, [&] { return counted().allocate_async(size, stream); });
  }
  void free_async(Address address, Stream stream) override {
    give(allocations_, address);
    counted().free_async(address, stream);
  }
  Result<Address> reserve(Bytes size) override { return counted().reserve(size); }
  void unreserve(Address address) override { counted().unreserve(address); }
  Result<Handle> create(Bytes size) override {
    return take(handles_, size, [&] { return counted().create(size); });
  }
  void release(Handle handle) override {
    give(handles_, handle);
    counted().release(handle);
  }
  void map(Address address, Handle handle) override { counted().map(address, handle); }
  void set_access(Address address, Bytes size) override { counted().set_access(address, size); }
  void unmap(Address address) override { counted().unmap(address); }
  void synchronize(Stream stream) override { counted().synchronize(stream); }
  Event record(Stream stream) override { return counted().record(stream); }
  bool is_done(Event event) override { return counted().is_done(event); }
  void wait(Event event) override { counted().wait(event); }
  void forget(Event event) override { driver_.forget(event); }
  bool is_capturing(Stream stream) override { return driver_.is_capturing(stream); }
  Status health() const override { return driver_.health(); }

 private:
  using Sizes = std::unordered_map<uint64_t, Bytes>;  // by address or handle

  Driver& counted() {
    ++calls_;
    return driver_;
  }
  template <class Call>
  Result<uint64_t> take(Sizes& sizes, Bytes size, Call call) {
    if (size > limit_ - reserved_) return Error{Code::kFull, "the pool's limit is met", ""};
    auto got = call();
    if (!got.ok()) return got;
    sizes[*got] = size;
    reserved_ += size;
    peak_ = std::max(peak_, reserved_);
    return got;
  }
  void give(Sizes& sizes, uint64_t what) {
    const auto it = sizes.find(what);
    FLATOUT_CHECK(it != sizes.end());
    reserved_ -= it->second;
    sizes.erase(it);
  }

  Driver& driver_;
  Bytes limit_, reserved_ = 0, peak_ = 0;
  uint64_t calls_ = 0;
  Sizes allocations_, handles_;
};

}  // namespace flatout::devmem
