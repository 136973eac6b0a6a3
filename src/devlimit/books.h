// What the hooks share: which device a call is for, charging it, and what this process holds.
#pragma once

#include <cstdint>

#include "devlimit/cuda_abi.h"
#include "devlimit/ledger.h"
#include "devlimit/table.h"

namespace flatout::devlimit {

/// Within a call of the driver that calls itself through its exported names, only the outermost
/// counts.
class Outermost {
 public:
  Outermost();
  ~Outermost();
  Outermost(const Outermost&) = delete;
  Outermost& operator=(const Outermost&) = delete;
  explicit operator bool() const { return outermost_; }

 private:
  bool outermost_;
};

/// Holds the lock on books() for its life. No driver call that could come back here happens under
/// it but those that read an attribute.
class Locked {
 public:
  Locked();
  ~Locked();
  Locked(const Locked&) = delete;
  Locked& operator=(const Locked&) = delete;
};

/// A stream-ordered pool. What it reserves belongs to the process whether it is in use or not, so
/// charged is the larger of what is live and what the driver says is reserved.
struct Pool {
  uint64_t handle = 0;  // 0: the row is free
  int device = -1;
  uint64_t live = 0, pending = 0, charged = 0;  // pending: requests under way
  uint64_t blocks = 0;
  bool destroyed = false;
};
inline constexpr int kMostPools = 1024;

/// Memory that cuMemCreate gave: it lives until the last handle and the last mapping are gone.
struct Physical {
  uint64_t bytes = 0;
  uint32_t handles = 0, maps = 0;
  int device = -1;
  bool grows = false;        // imported: how large it is shows only when it is mapped
  Physical* next = nullptr;  // of unused ones
};

/// What executable graphs have reserved on a device for their allocation nodes.
struct GraphMemory {
  uint64_t charged = 0, pending = 0;
  uint64_t round = 1;  // of trims: what was launched before the last one has lost its memory
};

struct Books {
  Table table;
  Pool pools[kMostPools];
  GraphMemory graphs[kMostDevices];
  uint64_t devices_with_graphs = 0;      // a bit for each row
  uint64_t overhead[kMostDevices] = {};  // charged for contexts, modules and the like
  Physical* unused = nullptr;
};
/// Under Locked.
Books& books();
Physical* new_physical();
void drop(Physical* physical);

/// The ledger's row for what the driver calls device `ordinal`; -1: not limited, or no such device.
int row_of(CUdevice ordinal);
/// Of the current context; -1: there is none, and the driver will say so.
int row_of_current();
/// The context itself, which what is allocated in it goes with.
Opaque current_context();
/// Of a stream; the special ones are the current context's.
int row_of_stream(Opaque stream);
/// The other way round; -1: this process has not met it.
CUdevice ordinal_of(int row);
/// Of the card with that UUID; -1: no process under the limit has used it.
int row_of_uuid(const CUuuid& uuid);
CUuuid uuid_of(int row);

/// False: it would pass the limit, though whatever lies idle was given back. Row -1 takes anything.
bool charge(int row, uint64_t bytes);
void give_back(int row, uint64_t bytes);
Ledger* ledger();

/// Idle memory of pools and graphs back to the driver and to the ledger.
void relieve(int row);

/// What this process holds there by the driver's own figure, compared with what is charged; the
/// difference is charged as overhead. False: it does not fit. `may_shrink`: overhead went, or was
/// guessed too high.
bool settle_overhead(int row, bool may_shrink);
/// Whether settle_overhead() can measure at all.
bool measurable(int row);

}  // namespace flatout::devlimit
