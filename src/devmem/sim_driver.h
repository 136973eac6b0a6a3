// A device that exists in numbers only: a capacity, addresses that are handed out once and never
// again, calls counted and priced. It holds policies to the driver's rules: a breach is a bug of
// ours and aborts.
#pragma once

#include <map>
#include <set>
#include <unordered_map>
#include <vector>

#include "devmem/driver.h"

namespace flatout::devmem {

enum class Call {
  kAllocate,
  kFree,
  kReserve,
  kUnreserve,
  kCreate,
  kRelease,
  kMap,
  kSetAccess,
  kUnmap,
  kSynchronize,
  kAllocateAsync,
  kFreeAsync,
  kEvent,  // each call on one
  kCount
};
inline constexpr int kCallKinds = static_cast<int>(Call::kCount);

/// Nanoseconds a call takes. Mapping costs by the handle, whatever its size (PyTorch pull request
/// 96995), so set_access is priced for each handle in its range. The figures are a model, of the
/// order that GMLake (arXiv 2401.08156, table 1) reports; only ratios between policies mean
/// something.
struct CostTable {
  uint64_t ns[kCallKinds] = {
      /* allocate */ 150'000,     /* free */ 200'000,
      /* reserve */ 5'000,        /* unreserve */ 5'000,
      /* create */ 100'000,       /* release */ 50'000,
      /* map */ 10'000,           /* set_access */ 100'000,
      /* unmap */ 30'000,         /* synchronize */ 10'000,
      /* allocate_async */ 5'000, /* free_async */ 2'000,
      /* event */ 1'000};
};

class SimDriver : public Driver {
 public:
  static constexpr Bytes kUnlimited = Bytes{1} << 46;  // 64 TiB

  explicit SimDriver(Bytes capacity = kUnlimited, CostTable costs = {});

  Bytes total_bytes() const override { return capacity_; }
  Bytes free_bytes() override { return capacity_ - used_; }
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
  bool is_capturing(Stream stream) override { return capturing_.contains(stream); }

  /// Work is queued on the stream. It goes on until somebody waits for it, or finish().
  void launch(Stream stream) {
    FLATOUT_CHECK(!destroyed_.contains(stream));
    ++streams_[stream].queued;
  }
  void finish(Stream stream);
  /// The handle becomes invalid; work that is queued goes on.
  void destroy(Stream stream) { destroyed_.insert(stream); }
  void begin_capture(Stream stream) { capturing_.insert(stream); }
  void end_capture(Stream stream) { capturing_.erase(stream); }

  /// The call that asks for memory (allocate or create) after `n` more of them fails as on a full
  /// card, once.
  void fail_after(uint64_t n) { fault_in_ = n + 1; }
  /// Whether memory is accessible throughout [address, address + size).
  bool accessible(Address address, Bytes size) const;
  /// The physical memory behind an address that a handle is mapped at, and the first byte's place
  /// in it.
  std::pair<Handle, Bytes> behind(Address address) const;

  Bytes used() const { return used_; }
  Bytes peak() const { return peak_; }
  uint64_t calls(Call kind) const { return calls_[static_cast<int>(kind)]; }
  uint64_t calls() const;
  uint64_t cost_ns() const { return cost_ns_; }

  static constexpr Address kBase = Address{1} << 40;  // the first address handed out

 private:
  struct Mapping {
    Bytes size;
    Handle handle;
    bool access;
  };
  struct Physical {
    Bytes size;
    int mapped;  // how often
  };
  struct Work {
    uint64_t queued = 0, done = 0;
    std::vector<Address> frees;  // what goes when the work is done
  };
  struct Point {
    Stream stream;
    uint64_t after;
  };
  void count(Call kind, uint64_t times_priced = 1);
  Status take(Bytes size);
  void wait_if_destroyed(Stream stream);
  Address next_address(Bytes size);

  Bytes capacity_, used_ = 0, peak_ = 0;
  CostTable costs_;
  Address next_ = kBase;
  Handle last_handle_ = 0;
  uint64_t fault_in_ = 0;
  uint64_t calls_[kCallKinds] = {};
  uint64_t cost_ns_ = 0;
  std::map<Address, Bytes> allocations_, reservations_;
  std::map<Address, Mapping> mappings_;
  std::unordered_map<Handle, Physical> physical_;
  std::map<Address, Bytes> async_;
  std::map<Stream, Work> streams_;
  std::map<Event, Point> events_;
  Event last_event_ = 0;
  std::set<Stream> capturing_, destroyed_;
};

}  // namespace flatout::devmem
