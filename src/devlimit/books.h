// What the hooks share: which device a call is for, charging it, and what this process holds.
#pragma once

#include <pthread.h>

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

/// Holds the lock on a device's primary context for its life: whether a call makes or ends it must
/// still be so when it is charged. Driver calls happen under it; Locked may be taken within.
class PrimaryLocked {
 public:
  explicit PrimaryLocked(CUdevice device);
  ~PrimaryLocked();
  PrimaryLocked(const PrimaryLocked&) = delete;
  PrimaryLocked& operator=(const PrimaryLocked&) = delete;

 private:
  pthread_mutex_t& lock_;
};

/// A stream-ordered pool. What it reserves belongs to the process whether it is in use or not, so
/// charged is the larger of what is live and what the driver says is reserved.
struct Pool {
  uint64_t handle = 0;  // 0: the row is free
  int device = -1;      // kMostDevices: in the host's memory, and not charged
  uint64_t live = 0, charged = 0;
  uint64_t growing = 0;  // of what is charged: for requests under way
  uint64_t blocks = 0, requests = 0;
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

/// Which context memory goes with, and on which device. The context is one from cuCtxCreate, or
/// null for the device's primary one, in which green contexts allocate, too.
struct Home {
  Opaque context = nullptr;
  int row = -1;
  bool operator==(const Home&) const = default;
};

/// Memory that cuMemFreeAsync has been told to free: it is there until the stream gets to that.
struct PendingFree {
  Opaque event = nullptr;  // behind the free
  Home memory, stream;
  uint64_t bytes = 0;
  Pool* pool = nullptr;         // of a destroyed one, which is charged until its last block is gone
  PendingFree* next = nullptr;  // later
};

struct Books {
  Table table;
  Pool pools[kMostPools];
  GraphMemory graphs[kMostDevices];
  uint64_t devices_with_graphs = 0;      // a bit for each row
  uint64_t overhead[kMostDevices] = {};  // charged for contexts, modules and the like
  uint64_t unsure[kMostDevices] = {};    // of that: may turn out to be none at the next look
  Physical* unused = nullptr;
  PendingFree *pending_frees = nullptr, *unused_frees = nullptr;
};
/// Under Locked.
Books& books();
Physical* new_physical();
void drop(Physical* physical);

/// The ledger's row for what the driver calls device `ordinal`; -1: not limited, or no such device.
int row_of(CUdevice ordinal);
/// Of the current context; -1: there is none, and the driver will say so.
int row_of_current();
Opaque current_context();
/// Under Locked: Home's context of what is allocated in that one.
Opaque home_of(Opaque context);
/// Makes the context of a stream current for its life; the special streams are of the current one.
class InContextOf {
 public:
  explicit InContextOf(Opaque stream);
  ~InContextOf();
  InContextOf(const InContextOf&) = delete;
  InContextOf& operator=(const InContextOf&) = delete;

 private:
  bool pushed_ = false;
};
int row_of_stream(Opaque stream);
/// The other way round; -1: this process has not met it.
CUdevice ordinal_of(int row);
/// Of the card with that UUID; -1: no process under the limit has used it.
int row_of_uuid(const CUuuid& uuid);
CUuuid uuid_of(int row);

/// False: it would pass the limit, though whatever lies idle was given back. Row -1 takes anything.
bool charge(int row, uint64_t bytes);
/// The same for what the driver has handed out before: no measurement may come in between.
bool charge_taken(int row, uint64_t bytes);
void give_back(int row, uint64_t bytes);
Ledger* ledger();

/// Idle memory of this process's pools and graphs back to the driver and to the ledger, and what
/// was freed behind work that is done by now.
void relieve(int row);

/// What this process holds there by the driver's own figure, compared with what is charged; the
/// difference is charged as overhead, or given back where overhead went or was guessed too high.
/// False: it does not fit.
bool settle_overhead(int row);
/// Whether settle_overhead() can measure at all.
bool measurable(int row);

}  // namespace flatout::devlimit
