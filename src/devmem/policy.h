// A policy decides where in device memory a request goes and when to ask the driver for more. All
// of them stand behind this interface, pass one conformance suite (policy_test.cpp) and replay the
// same traces.
#pragma once

#include <memory>
#include <string_view>
#include <vector>

#include "devmem/driver.h"

namespace flatout::devmem {

struct PolicyStats {
  Bytes live = 0;       // as requested
  Bytes allocated = 0;  // as handed out, rounding included
  Bytes reserved = 0;   // taken from the driver
  uint64_t chunks = 0;  // live ones
  Bytes largest_free = 0;
};

class Policy {
 public:
  virtual ~Policy() = default;

  /// Memory of at least `size` bytes (more than 0), aligned to 256, for use on `stream`.
  /// Errors: kFull; the policy goes on as before.
  virtual Result<Address> allocate(Bytes size, Stream stream) = 0;
  /// Errors: kBadInput for what allocate() did not give, or was freed already.
  virtual Status free(Address address) = 0;
  /// Gives back to the driver what is wholly free.
  virtual void trim() = 0;
  virtual PolicyStats stats() const = 0;
  /// Aborts if the book-keeping contradicts itself: for tests.
  virtual void check() const = 0;
};

/// tf_growth, tf_all, torch, torch_expandable, arena; in the order of the table that users see.
const std::vector<std::string_view>& policy_names();
/// `name` as above; `limit`: how much of the device it may take. Errors: kNotFound.
Result<std::unique_ptr<Policy>> make_policy(std::string_view name, Driver& driver, Bytes limit);

}  // namespace flatout::devmem
