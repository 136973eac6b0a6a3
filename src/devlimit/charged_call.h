// Driver calls that take memory and give it back, with what they take charged.
#pragma once

#include "devlimit/books.h"
#include "devlimit/record.h"

namespace flatout::devlimit {

inline uint64_t key(CUdeviceptr address) { return address; }
inline uint64_t key(Opaque handle) { return reinterpret_cast<uint64_t>(handle); }

// `call` takes `bytes` of the device: charged before, given back if it fails. `made` is the address
// or handle that the call stores.
template <class Made, class Call>
CUresult take(int row, uint64_t bytes, Kind kind, Made* made, Call call) {
  if (!charge(row, bytes)) return CUDA_ERROR_OUT_OF_MEMORY;
  const CUresult result = call();
  if (result != CUDA_SUCCESS || row < 0) {
    give_back(row, bytes);
    if (result == CUDA_ERROR_OUT_OF_MEMORY) {
      const Locked lock;
      record_refused(row, bytes);
    }
    return result;
  }
  Opaque const context = current_context();
  const Locked lock;
  books().table.put({key(*made), kind, row, bytes, home_of(context)});
  return result;
}

// Takes what `key` names out of the table, as what is to be given back. Of memory that is open more
// often it is one time, and no bytes.
inline Entry forget(Kind kind, uint64_t key) {
  const Locked lock;
  Entry* const entry = books().table.find(kind, key);
  if (entry == nullptr || entry->again == 0) return books().table.take(kind, key);
  --entry->again;
  Entry once = *entry;
  once.bytes = once.again = 0;
  return once;
}

// It was not given back after all.
inline void remember(const Entry& entry) {
  const Locked lock;
  if (Entry* const there = books().table.find(entry.kind, entry.key)) {
    ++there->again;  // another thread opened it meanwhile, and charged it
    give_back(entry.device, entry.bytes);
  } else {
    books().table.put(entry);
  }
}

// `call` gives back what `key` names. It is forgotten before, since the driver may hand out the
// same address to another thread at once, and remembered again if the call fails.
template <class Call>
CUresult release(Kind kind, uint64_t key, Call call) {
  const Entry entry = forget(kind, key);
  const CUresult result = call();
  if (entry.kind == Kind::kNone) return result;
  if (result == CUDA_SUCCESS) {
    give_back(entry.device, entry.bytes);
  } else {
    remember(entry);
  }
  return result;
}

}  // namespace flatout::devlimit
