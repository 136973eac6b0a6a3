// Physical memory and its mappings (cuMemCreate and what follows). Memory is given back when the
// last handle and the last mapping are gone: to release the handle and keep the mapping is how
// this interface is meant to be used.
#include <string.h>
#include <sys/mman.h>

#include "devlimit/books.h"
#include "devlimit/export.h"
#include "devlimit/real.h"
#include "devlimit/record.h"

namespace flatout::devlimit {

extern "C" {
CUresult cuMemGetAllocationPropertiesFromHandle(CUmemAllocationProp* properties,
                                                CUmemGenericAllocationHandle handle);
}

namespace {

// Under Locked. What there was to give back where that was the last hold on the memory.
struct Freed {
  int device = -1;
  uint64_t bytes = 0;
};
// Addresses of the card do not reach up to the highest bit.
uint64_t id_of(const Physical* physical) {
  return reinterpret_cast<uint64_t>(physical) | uint64_t{1} << 63;
}
Freed drop_if_unheld(Physical* physical) {
  if (physical->handles > 0 || physical->maps > 0) return {};
  const Freed out = {physical->device, physical->bytes};
  if (physical->bytes > 0) record_freed(physical->device, id_of(physical));
  drop(physical);
  return out;
}

// Under Locked.
bool add(CUmemGenericAllocationHandle handle, int row, uint64_t bytes, bool grows) {
  Physical* const physical = new_physical();
  if (physical == nullptr) return false;
  physical->bytes = bytes;
  physical->handles = 1;
  physical->device = row;
  physical->grows = grows;
  record_taken(row, id_of(physical), bytes);
  return books().table.put({handle, Kind::kPhysical, row, 0, physical});
}

Physical* physical_of(CUmemGenericAllocationHandle handle) {
  const Entry* const entry = books().table.find(Kind::kPhysical, handle);
  return entry != nullptr ? static_cast<Physical*>(entry->object) : nullptr;
}

// Mappings that one call ends: few as a rule, but there may be thousands.
class Taken {
 public:
  Taken() = default;
  ~Taken() {
    if (all_ != first_) ::munmap(all_, capacity_ * sizeof(Entry));
  }
  Taken(const Taken&) = delete;
  Taken& operator=(const Taken&) = delete;

  /// False: no memory. What is not taken stays charged.
  bool add(const Entry& entry) {
    if (count_ == capacity_) {
      void* const more = ::mmap(nullptr, capacity_ * 8 * sizeof(Entry), PROT_READ | PROT_WRITE,
                                MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
      if (more == MAP_FAILED) return false;
      memcpy(more, static_cast<const void*>(all_), capacity_ * sizeof(Entry));
      if (all_ != first_) ::munmap(all_, capacity_ * sizeof(Entry));
      all_ = static_cast<Entry*>(more);
      capacity_ *= 8;
    }
    all_[count_++] = entry;
    return true;
  }
  size_t count() const { return count_; }
  const Entry& operator[](size_t i) const { return all_[i]; }

 private:
  Entry first_[32];
  Entry* all_ = first_;
  size_t count_ = 0, capacity_ = 32;
};

template <class Call>
CUresult map_arrays(const CUarrayMapInfo* list, unsigned count, Call call) {
  const CUresult result = call();
  if (result != CUDA_SUCCESS || list == nullptr) return result;
  // An array is unmapped by its tiles, not by what lies behind them: memory that was mapped into
  // one stays charged until the process ends.
  const Locked lock;
  for (unsigned i = 0; i < count; ++i)
    if (list[i].memOperationType == CU_MEM_OPERATION_TYPE_MAP)
      if (Physical* const physical = physical_of(list[i].memHandle)) ++physical->maps;
  return result;
}

}  // namespace

extern "C" {

FLATOUT_EXPORT CUresult cuMemCreate(CUmemGenericAllocationHandle* handle, size_t bytes,
                                    const CUmemAllocationProp* properties,
                                    unsigned long long flags) {
  const Outermost outermost;
  const auto call = [&] {
    return FLATOUT_REAL(cuMemCreate, cuMemCreate, handle, bytes, properties, flags);
  };
  const bool on_device =
      properties != nullptr && properties->location.type == CU_MEM_LOCATION_TYPE_DEVICE;
  const int row = outermost && on_device ? row_of(properties->location.id) : -1;
  if (row < 0) return call();
  if (!charge(row, bytes)) return CUDA_ERROR_OUT_OF_MEMORY;
  const CUresult result = call();
  if (result != CUDA_SUCCESS) {
    give_back(row, bytes);
    if (result == CUDA_ERROR_OUT_OF_MEMORY) {
      const Locked lock;
      record_refused(row, bytes);
    }
    return result;
  }
  const Locked lock;
  add(*handle, row, bytes, false);
  return result;
}

FLATOUT_EXPORT CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle* handle,
                                                       void* os_handle, int type) {
  const Outermost outermost;
  const CUresult result = FLATOUT_REAL(cuMemImportFromShareableHandle,
                                       cuMemImportFromShareableHandle, handle, os_handle, type);
  if (!outermost || result != CUDA_SUCCESS) return result;
  CUmemAllocationProp properties = {};
  const bool known =
      FLATOUT_REAL(cuMemGetAllocationPropertiesFromHandle, cuMemGetAllocationPropertiesFromHandle,
                   &properties, *handle) == CUDA_SUCCESS;
  if (known && properties.location.type != CU_MEM_LOCATION_TYPE_DEVICE) return result;
  const int row = known ? row_of(properties.location.id) : row_of_current();
  const Locked lock;
  if (Physical* const again = physical_of(*handle)) {
    ++again->handles;
  } else if (row >= 0) {
    add(*handle, row, 0, true);
  }
  return result;
}

FLATOUT_EXPORT CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle* handle,
                                                    void* address) {
  const Outermost outermost;
  const CUresult result =
      FLATOUT_REAL(cuMemRetainAllocationHandle, cuMemRetainAllocationHandle, handle, address);
  if (!outermost || result != CUDA_SUCCESS) return result;
  const Locked lock;
  if (Physical* const physical = physical_of(*handle)) {
    ++physical->handles;
    return result;
  }
  // Its handle was released before; the address may lie anywhere in the mapping.
  const Entry* const mapping = books().table.mapping_around(reinterpret_cast<uint64_t>(address));
  if (mapping == nullptr) return result;
  auto* const physical = static_cast<Physical*>(mapping->object);
  ++physical->handles;
  books().table.put({*handle, Kind::kPhysical, physical->device, 0, physical});
  return result;
}

FLATOUT_EXPORT CUresult cuMemRelease(CUmemGenericAllocationHandle handle) {
  const Outermost outermost;
  const auto call = [&] { return FLATOUT_REAL(cuMemRelease, cuMemRelease, handle); };
  if (!outermost) return call();
  Physical* physical = nullptr;
  bool last = false;
  {
    // The handle's number may be given to another thread as soon as the driver has it back.
    const Locked lock;
    physical = physical_of(handle);
    if (physical != nullptr) last = physical->handles == 1;
    if (last) books().table.take(Kind::kPhysical, handle);
  }
  const CUresult result = call();
  if (physical == nullptr) return result;
  Freed freed;
  {
    const Locked lock;
    if (result == CUDA_SUCCESS) {
      --physical->handles;
      // Of two threads that released one handle at a time neither was the last when it began.
      const bool gone = physical->handles == 0 && !last && physical_of(handle) == physical;
      if (gone) books().table.take(Kind::kPhysical, handle);
      freed = drop_if_unheld(physical);
    } else if (last) {
      books().table.put({handle, Kind::kPhysical, physical->device, 0, physical});
    }
  }
  give_back(freed.device, freed.bytes);
  return result;
}

FLATOUT_EXPORT CUresult cuMemMap(CUdeviceptr address, size_t bytes, size_t offset,
                                 CUmemGenericAllocationHandle handle, unsigned long long flags) {
  const Outermost outermost;
  const auto call = [&] {
    return FLATOUT_REAL(cuMemMap, cuMemMap, address, bytes, offset, handle, flags);
  };
  if (!outermost) return call();
  Physical* physical = nullptr;
  uint64_t more = 0;
  {
    const Locked lock;
    physical = physical_of(handle);
    if (physical != nullptr) {
      ++physical->maps;  // so that it cannot go meanwhile
      if (physical->grows && offset + bytes > physical->bytes)
        more = offset + bytes - physical->bytes;
    }
  }
  if (physical == nullptr) return call();
  const bool fits = charge(physical->device, more);
  const CUresult result = fits ? call() : CUDA_ERROR_OUT_OF_MEMORY;
  Freed freed;
  {
    const Locked lock;
    if (result == CUDA_SUCCESS) {
      if (more > 0) {
        if (physical->bytes > 0) record_freed(physical->device, id_of(physical));
        record_taken(physical->device, id_of(physical), physical->bytes + more);
      }
      physical->bytes += more;
      books().table.put({address, Kind::kMapping, physical->device, bytes, physical});
    } else {
      --physical->maps;
      freed = drop_if_unheld(physical);
    }
  }
  if (fits && result != CUDA_SUCCESS) give_back(physical->device, more);
  give_back(freed.device, freed.bytes);
  return result;
}

FLATOUT_EXPORT CUresult cuMemUnmap(CUdeviceptr address, size_t bytes) {
  const Outermost outermost;
  const auto call = [&] { return FLATOUT_REAL(cuMemUnmap, cuMemUnmap, address, bytes); };
  if (!outermost) return call();
  // Taken out before: as soon as it is unmapped, another thread may map there anew.
  Taken taken;
  {
    const Locked lock;
    for (uint64_t at = address; at < address + bytes;) {
      const Entry* const mapping = books().table.mapping_within(at, address + bytes);
      if (mapping == nullptr || !taken.add(*mapping)) break;
      const uint64_t there = mapping->key;
      at = there == at ? at + mapping->bytes : at;
      books().table.take(Kind::kMapping, there);
    }
  }
  const CUresult result = call();
  for (size_t i = 0; i < taken.count(); ++i) {
    Freed freed;
    {
      const Locked lock;
      auto* const physical = static_cast<Physical*>(taken[i].object);
      if (result == CUDA_SUCCESS) {
        --physical->maps;
        freed = drop_if_unheld(physical);
      } else {
        books().table.put(taken[i]);
      }
    }
    give_back(freed.device, freed.bytes);
  }
  return result;
}

FLATOUT_EXPORT CUresult cuMemMapArrayAsync(CUarrayMapInfo* list, unsigned count, Opaque stream) {
  const Outermost outermost;
  return map_arrays(outermost ? list : nullptr, count, [&] {
    return FLATOUT_REAL(cuMemMapArrayAsync, cuMemMapArrayAsync, list, count, stream);
  });
}

FLATOUT_EXPORT CUresult cuMemMapArrayAsync_ptsz(CUarrayMapInfo* list, unsigned count,
                                                Opaque stream) {
  const Outermost outermost;
  return map_arrays(outermost ? list : nullptr, count, [&] {
    return FLATOUT_REAL(cuMemMapArrayAsync_ptsz, cuMemMapArrayAsync_ptsz, list, count, stream);
  });
}

}  // extern "C"
}  // namespace flatout::devlimit
