// A policy for a live job: any thread may ask, a block that other streams use goes back only when
// they are done with it, several pools share a device within their limits, and what was asked for
// is recorded.
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "devmem/meter.h"
#include "devmem/policy.h"
#include "devmem/recording.h"

namespace flatout::devmem {

class DevicePool;

/// A device and the pools on it, which take turns.
class Card {
 public:
  explicit Card(std::unique_ptr<Driver> driver) : driver_(std::move(driver)) {}
  Driver& driver() { return *driver_; }

 private:
  friend class DevicePool;
  std::mutex mutex_;
  std::unique_ptr<Driver> driver_;
  std::vector<DevicePool*> pools_;
};

struct PoolOptions {
  std::string policy = "arena";  // or "torch", "torch_expandable"
  Bytes limit = 0;               // 0: what the device has
  std::string name = "device memory";
  std::string user = "this program";  // whose blocks they are, in messages
  size_t kept = 65'536;               // requests that snapshot() has, the live blocks aside
  std::string record_to;              // file for all requests; "": none
  bool sites = false;                 // say where in the job's code each request comes from
  bool debug = false;                 // sites, and mistakes of the caller are told apart and said
  bool abort = false;                 // and end the process
};

struct PoolStats {
  Bytes live = 0, peak_live = 0;          // as requested, and not freed
  Bytes reserved = 0, peak_reserved = 0;  // taken from the driver
  Bytes limit = 0, largest_free = 0;
  Bytes waiting = 0;  // freed, but another stream is not known to be done with it
  Bytes allocated_total = 0, freed_total = 0;
  uint64_t blocks = 0, allocations = 0, frees = 0, refused = 0, driver_calls = 0;
  Bytes device_free = 0, device_total = 0;
};

class DevicePool {
 public:
  /// Errors: kBadInput: no such policy, one that takes no care of streams, or limits that add up to
  /// more than the device has; those of Recording::write_to().
  static Result<std::unique_ptr<DevicePool>> open(std::shared_ptr<Card> card, PoolOptions options);
  /// Gives everything back. Live blocks are named in debug mode.
  ~DevicePool();
  DevicePool(const DevicePool&) = delete;
  DevicePool& operator=(const DevicePool&) = delete;

  /// Memory for work on `stream`, aligned to 256. Errors: kFull, in words that PyTorch's users
  /// know; kUnsupported while a graph is captured from the stream; kIo where the device fails.
  Result<Address> allocate(Bytes size, Stream stream, const void* caller);
  /// `size` and `stream` are checked where they are given. Work that is queued on the block's own
  /// stream may go on; that on another stream is waited for before the block is used again.
  /// Errors: kBadInput: no live block begins there.
  Status free(Address address, std::optional<Bytes> size, std::optional<Stream> stream,
              const void* caller);
  /// Work on `stream`, too, uses the block (torch.Tensor.record_stream). Errors: kBadInput.
  Status use_on(Address address, Stream stream);
  bool holds(Address address);

  /// Waits for the streams, and gives back what is wholly free.
  void trim();
  PoolStats stats();
  void reset_peaks();
  /// The trace so far, as Recording::lines(). Errors: those of writing.
  Status snapshot(const std::string& path);
  void flush();
  const PoolOptions& options() const { return options_; }

 private:
  struct Block : RecordedBlock {
    std::vector<Stream> used_on;  // besides its own
  };
  struct Waiting {  // a freed block
    Address address;
    Bytes size;
    size_t events;
  };
  struct Gone {
    Bytes size;
    uint32_t allocated, freed;  // sites
    uint64_t number;            // of the free, in gone_order_
  };
  using Lock = std::lock_guard<std::mutex>;

  DevicePool(std::shared_ptr<Card> card, PoolOptions options);
  // All under the card's mutex.
  Result<Address> find(Bytes size, Stream stream);
  void collect(bool wait);
  void give_back();
  Error full(Bytes size);  // and gives back what was brought for it
  Status unknown(Address address, uint32_t site);
  void check_free(Address address, const Block& block, std::optional<Bytes> size,
                  std::optional<Stream> stream, uint32_t site);
  void say(const std::string& text);
  std::string site_of(const void* caller) const;
  std::string at(uint32_t site) const;

  std::shared_ptr<Card> card_;
  PoolOptions options_;
  Meter meter_;
  std::unique_ptr<Policy> policy_;
  Recording recording_;
  std::unordered_map<Address, Block> blocks_;
  std::map<Stream, std::deque<std::pair<Event, std::shared_ptr<Waiting>>>> waiting_;
  std::unordered_map<Address, Gone> gone_;               // in debug mode, the latest
  std::deque<std::pair<Address, uint64_t>> gone_order_;  // those taken or freed since are stale
  PoolStats stats_;
  int said_ = 0;
};

}  // namespace flatout::devmem
