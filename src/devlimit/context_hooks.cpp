// Contexts, modules, libraries and limits of a context: the driver says of none of them what it
// takes. It is guessed and charged before, then measured by NVML where that knows this process, and
// undone where it does not fit. Where it cannot be measured the guess stands.
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>

#include "devlimit/async_free.h"
#include "devlimit/charged_call.h"
#include "devlimit/export.h"
#include "devlimit/image_bytes.h"
#include "devlimit/real.h"

namespace flatout::devlimit {

extern "C" {
CUresult cuDevicePrimaryCtxGetState(CUdevice device, unsigned* flags, int* active);
CUresult cuCtxDestroy_v2(Opaque context);
CUresult cuModuleUnload(Opaque module);
CUresult cuLibraryUnload(Opaque library);
CUresult cuDevicePrimaryCtxRelease(CUdevice device);
CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device);
CUresult cuGreenCtxDestroy(Opaque context);
CUresult cuCtxGetLimit(size_t* value, int limit);
CUresult cuCtxGetDevice(CUdevice* device);
CUresult cuCtxPushCurrent_v2(Opaque context);
CUresult cuCtxPopCurrent_v2(Opaque* context);
}

namespace {

// Between what a card of 2016 and one of 2023 take, by NVML; the first one that was measured counts
// from then on.
constexpr uint64_t kContextBytes = uint64_t{300} << 20;

void add_overhead(int row, uint64_t bytes) {
  const Locked lock;
  books().overhead[row] += bytes;
}

void drop_overhead(int row, uint64_t bytes) {
  uint64_t back = 0;
  {
    const Locked lock;
    uint64_t& overhead = books().overhead[row];
    back = bytes < overhead ? bytes : overhead;
    overhead -= back;
  }
  give_back(row, back);
}

// False: what was made does not fit by what is measured, and `undo` took it back.
template <class Undo>
bool fits(int row, Undo undo) {
  if (settle_overhead(row)) return true;
  undo();
  settle_overhead(row);
  return false;
}

// `call` makes something that takes about `guess` bytes; `handle()` names it afterwards, and `undo`
// takes it back.
template <class Call, class Handle, class Undo>
CUresult make(int row, uint64_t guess, Call call, Handle handle, Undo undo) {
  if (row < 0) return call();
  if (!charge(row, guess)) return CUDA_ERROR_OUT_OF_MEMORY;
  add_overhead(row, guess);
  const CUresult result = call();
  if (result != CUDA_SUCCESS) {
    drop_overhead(row, guess);
    return result;
  }
  const bool measured = measurable(row);
  if (measured && !fits(row, undo)) return CUDA_ERROR_OUT_OF_MEMORY;
  const Locked lock;
  books().table.put({handle(), Kind::kGuessed, row, measured ? 0 : guess});
  return result;
}

// `call` ends what `make` made.
template <class Call>
CUresult unmake(uint64_t handle, Call call) {
  const CUresult result = call();
  if (result != CUDA_SUCCESS) return result;
  Entry entry;
  {
    const Locked lock;
    entry = books().table.take(Kind::kGuessed, handle);
  }
  if (entry.kind == Kind::kNone) return result;
  drop_overhead(entry.device, entry.bytes);
  settle_overhead(entry.device);
  return result;
}

uint64_t context_guess(int row) {
  const uint64_t known = row >= 0 ? ledger()->context_bytes(row).load() : 0;
  return known > 0 ? known : kContextBytes;
}

template <class Call, class Handle, class Undo>
CUresult make_context(CUdevice device, Call call, Handle handle, Undo undo) {
  const int row = row_of(device);
  const uint64_t before = row >= 0 ? ledger()->own(row) : 0;
  const CUresult result = make(row, context_guess(row), call, handle, undo);
  if (result == CUDA_SUCCESS && row >= 0 && before == 0 && measurable(row))
    ledger()->context_bytes(row).store(ledger()->own(row));
  return result;
}

// The primary context of a device goes by the device's number, which is no address.
uint64_t primary_key(CUdevice device) { return UINT64_MAX - static_cast<uint64_t>(device); }

bool primary_active(CUdevice device) {
  unsigned flags = 0;
  int active = 0;
  FLATOUT_REAL(cuDevicePrimaryCtxGetState, cuDevicePrimaryCtxGetState, device, &flags, &active);
  return active != 0;
}

// What lies in a context goes with it: plain memory and arrays, but not pools, nor what cuMemCreate
// gave. The context's handle may be given again as soon as the driver has it back, so what it held
// is forgotten before.
template <class Call>
CUresult end_context(const Home& context, uint64_t entry_key, Call call) {
  uint64_t held = 0;
  PendingFree* frees = nullptr;
  if (context.row >= 0) {
    const Locked lock;
    held = books().table.forget_memory_of(context.context, context.row);
    frees = take_frees_of(context);
  }
  return unmake(entry_key, [&] {
    const CUresult result = call();
    // A failure means that there was no such context, or that the driver is lost.
    give_back(context.row, held);
    end_taken_frees(frees);
    return result;
  });
}

int row_of_context(Opaque context) {
  const Locked lock;
  const Entry* const entry = books().table.find(Kind::kGuessed, key(context));
  return entry != nullptr ? entry->device : -1;
}

Home primary_of(CUdevice device) {
  const Locked lock;
  const Entry* const entry = books().table.find(Kind::kGuessed, primary_key(device));
  return {nullptr, entry != nullptr ? entry->device : -1};
}

template <class Call>
CUresult leave_primary(CUdevice device, Call call) {
  const PrimaryLocked lock(device);
  const CUresult result = call();
  if (result != CUDA_SUCCESS || primary_active(device)) return result;
  end_context(primary_of(device), primary_key(device), [] { return CUDA_SUCCESS; });
  return result;
}

// A reset ends it whatever its count is.
template <class Call>
CUresult leave_primary_for_good(CUdevice device, Call call) {
  const PrimaryLocked lock(device);
  return end_context(primary_of(device), primary_key(device), call);
}

CUresult destroy_green(Opaque context) {
  return FLATOUT_REAL(cuGreenCtxDestroy, cuGreenCtxDestroy, context);
}

// A green context holds its device's primary one, too, until it is destroyed.
template <class Call>
CUresult make_green(Opaque* context, CUdevice device, Call call) {
  const int row = row_of(device);
  const auto undo = [&] { destroy_green(*context); };
  const PrimaryLocked primary(device);
  CUresult result = CUDA_SUCCESS;
  if (!primary_active(device)) {
    const auto handle = [&] { return primary_key(device); };
    result = make_context(device, call, handle, undo);
  } else {
    result = call();
    if (result == CUDA_SUCCESS && !fits(row, undo)) return CUDA_ERROR_OUT_OF_MEMORY;
  }
  if (result != CUDA_SUCCESS || row < 0) return result;
  const Locked lock;
  books().table.put({key(*context), Kind::kGreen, row});
  return result;
}

template <class Call>
CUresult end_green(Opaque context, Call call) {
  const Entry green = forget(Kind::kGreen, key(context));
  if (green.kind == Kind::kNone) return call();
  return leave_primary(ordinal_of(green.device), [&] {
    const CUresult result = call();
    if (result == CUDA_SUCCESS) {
      settle_overhead(green.device);
    } else {
      remember(green);
    }
    return result;
  });
}

// The heap of the current context is so much larger or smaller: it goes with the context.
void change_heap(int row, uint64_t before, uint64_t now) {
  if (now < before) drop_overhead(row, before - now);
  Opaque const context = current_context();
  const Locked lock;
  Opaque const home = home_of(context);
  Entry* const entry = books().table.find(
      Kind::kGuessed, home != nullptr ? key(home) : primary_key(ordinal_of(row)));
  if (entry == nullptr) return;
  const uint64_t bytes = entry->bytes + now;
  entry->bytes = bytes > before ? bytes - before : 0;
}

// Of modules and libraries.
uint64_t file_bytes(const char* name) {
  struct stat s;
  return name != nullptr && ::stat(name, &s) == 0 ? loaded_bytes(static_cast<uint64_t>(s.st_size))
                                                  : 0;
}

}  // namespace

extern "C" {

#define FLATOUT_CONTEXT(symbol, parameters, ...)                                 \
  FLATOUT_EXPORT CUresult symbol parameters {                                    \
    const Outermost outermost;                                                   \
    const auto call = [&] { return FLATOUT_REAL(symbol, symbol, __VA_ARGS__); }; \
    if (!outermost) return call();                                               \
    return make_context(                                                         \
        device, call, [&] { return key(*context); },                             \
        [&] { FLATOUT_REAL(cuCtxDestroy_v2, cuCtxDestroy_v2, *context); });      \
  }

FLATOUT_CONTEXT(cuCtxCreate, (Opaque * context, unsigned flags, CUdevice device), context, flags,
                device)
FLATOUT_CONTEXT(cuCtxCreate_v2, (Opaque * context, unsigned flags, CUdevice device), context, flags,
                device)
FLATOUT_CONTEXT(cuCtxCreate_v3,
                (Opaque * context, void* affinity, int count, unsigned flags, CUdevice device),
                context, affinity, count, flags, device)
FLATOUT_CONTEXT(cuCtxCreate_v4, (Opaque * context, void* params, unsigned flags, CUdevice device),
                context, params, flags, device)

#define FLATOUT_UNMAKE(symbol)                                              \
  FLATOUT_EXPORT CUresult symbol(Opaque handle) {                           \
    const Outermost outermost;                                              \
    const auto call = [&] { return FLATOUT_REAL(symbol, symbol, handle); }; \
    return outermost ? unmake(key(handle), call) : call();                  \
  }

#define FLATOUT_DESTROY(symbol)                                                 \
  FLATOUT_EXPORT CUresult symbol(Opaque context) {                              \
    const Outermost outermost;                                                  \
    const auto call = [&] { return FLATOUT_REAL(symbol, symbol, context); };    \
    if (!outermost) return call();                                              \
    return end_context({context, row_of_context(context)}, key(context), call); \
  }

FLATOUT_DESTROY(cuCtxDestroy)
FLATOUT_DESTROY(cuCtxDestroy_v2)
FLATOUT_UNMAKE(cuModuleUnload)
FLATOUT_UNMAKE(cuLibraryUnload)

FLATOUT_EXPORT CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device) {
  const Outermost outermost;
  const auto call = [&] {
    return FLATOUT_REAL(cuDevicePrimaryCtxRelease_v2, cuDevicePrimaryCtxRelease_v2, device);
  };
  return outermost ? leave_primary(device, call) : call();
}

FLATOUT_EXPORT CUresult cuDevicePrimaryCtxRelease(CUdevice device) {
  const Outermost outermost;
  const auto call = [&] {
    return FLATOUT_REAL(cuDevicePrimaryCtxRelease, cuDevicePrimaryCtxRelease, device);
  };
  return outermost ? leave_primary(device, call) : call();
}

FLATOUT_EXPORT CUresult cuDevicePrimaryCtxRetain(Opaque* context, CUdevice device) {
  const Outermost outermost;
  const auto call = [&] {
    return FLATOUT_REAL(cuDevicePrimaryCtxRetain, cuDevicePrimaryCtxRetain, context, device);
  };
  if (!outermost) return call();
  const PrimaryLocked lock(device);
  if (primary_active(device)) return call();
  return make_context(
      device, call, [&] { return primary_key(device); },
      [&] {
        if (FLATOUT_REAL(cuDevicePrimaryCtxRelease_v2, cuDevicePrimaryCtxRelease_v2, device) ==
            CUDA_ERROR_NOT_FOUND)
          FLATOUT_REAL(cuDevicePrimaryCtxRelease, cuDevicePrimaryCtxRelease, device);
      });
}

FLATOUT_EXPORT CUresult cuGreenCtxCreate(Opaque* context, Opaque resources, CUdevice device,
                                         unsigned flags) {
  const Outermost outermost;
  const auto call = [&] {
    return FLATOUT_REAL(cuGreenCtxCreate, cuGreenCtxCreate, context, resources, device, flags);
  };
  return outermost ? make_green(context, device, call) : call();
}

FLATOUT_EXPORT CUresult cuGreenCtxDestroy(Opaque context) {
  const Outermost outermost;
  const auto call = [&] { return destroy_green(context); };
  return outermost ? end_green(context, call) : call();
}

FLATOUT_EXPORT CUresult cuDevicePrimaryCtxReset_v2(CUdevice device) {
  const Outermost outermost;
  const auto call = [&] {
    return FLATOUT_REAL(cuDevicePrimaryCtxReset_v2, cuDevicePrimaryCtxReset_v2, device);
  };
  return outermost ? leave_primary_for_good(device, call) : call();
}

FLATOUT_EXPORT CUresult cuDevicePrimaryCtxReset(CUdevice device) {
  const Outermost outermost;
  const auto call = [&] {
    return FLATOUT_REAL(cuDevicePrimaryCtxReset, cuDevicePrimaryCtxReset, device);
  };
  return outermost ? leave_primary_for_good(device, call) : call();
}

#define FLATOUT_LOAD(symbol, unload, parameters, guess, ...)                     \
  FLATOUT_EXPORT CUresult symbol parameters {                                    \
    const Outermost outermost;                                                   \
    const auto call = [&] { return FLATOUT_REAL(symbol, symbol, __VA_ARGS__); }; \
    if (!outermost) return call();                                               \
    return make(                                                                 \
        row_of_current(), guess, call, [&] { return key(*made); },               \
        [&] { FLATOUT_REAL(unload, unload, *made); });                           \
  }

FLATOUT_LOAD(cuModuleLoad, cuModuleUnload, (Opaque * made, const char* name), file_bytes(name),
             made, name)
FLATOUT_LOAD(cuModuleLoadData, cuModuleUnload, (Opaque * made, const void* image),
             image_bytes(image), made, image)
FLATOUT_LOAD(cuModuleLoadDataEx, cuModuleUnload,
             (Opaque * made, const void* image, unsigned count, int* options, void** values),
             image_bytes(image), made, image, count, options, values)
FLATOUT_LOAD(cuModuleLoadFatBinary, cuModuleUnload, (Opaque * made, const void* image),
             image_bytes(image), made, image)
FLATOUT_LOAD(cuLibraryLoadData, cuLibraryUnload,
             (Opaque * made, const void* image, int* jit, void** jit_values, unsigned jit_count,
              int* options, void** values, unsigned count),
             image_bytes(image), made, image, jit, jit_values, jit_count, options, values, count)
FLATOUT_LOAD(cuLibraryLoadFromFile, cuLibraryUnload,
             (Opaque * made, const char* name, int* jit, void** jit_values, unsigned jit_count,
              int* options, void** values, unsigned count),
             file_bytes(name), made, name, jit, jit_values, jit_count, options, values, count)

// The heap of device-side malloc is as large as one asks; what stacks and the other limits take
// depends on the card, and is measured.
FLATOUT_EXPORT CUresult cuCtxSetLimit(int limit, size_t value) {
  const Outermost outermost;
  const auto call = [&](size_t v) { return FLATOUT_REAL(cuCtxSetLimit, cuCtxSetLimit, limit, v); };
  const int row = outermost ? row_of_current() : -1;
  if (row < 0) return call(value);
  size_t before = 0;
  FLATOUT_REAL(cuCtxGetLimit, cuCtxGetLimit, &before, limit);
  const uint64_t more = limit == CU_LIMIT_MALLOC_HEAP_SIZE && value > before ? value - before : 0;
  if (!charge(row, more)) return CUDA_ERROR_OUT_OF_MEMORY;
  add_overhead(row, more);
  const CUresult result = call(value);
  if (result != CUDA_SUCCESS) {
    drop_overhead(row, more);
    return result;
  }
  if (!measurable(row)) {
    if (limit == CU_LIMIT_MALLOC_HEAP_SIZE) change_heap(row, before, value);
    return result;
  }
  if (settle_overhead(row)) return result;
  call(before);
  settle_overhead(row);
  return CUDA_ERROR_OUT_OF_MEMORY;
}

}  // extern "C"
}  // namespace flatout::devlimit
