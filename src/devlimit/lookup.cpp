// How a program comes by a function of the driver, and how the interposer gets in between: the
// exported names (LD_PRELOAD comes first in the order of search), dlsym, and cuGetProcAddress.
#include <dlfcn.h>
#include <string.h>

#include <atomic>

#include "devlimit/cuda_abi.h"
#include "devlimit/real.h"

// The functions by name only; their types are where they are defined.
namespace hooks {
#define FLATOUT_HOOK(name, symbol, since, per_thread) extern "C" void symbol();
#define FLATOUT_NVML_HOOK(symbol) extern "C" void symbol();
#include "devlimit/hooks.def"
#undef FLATOUT_HOOK
#undef FLATOUT_NVML_HOOK
}  // namespace hooks

namespace flatout::devlimit {
namespace {

struct Hook {
  const char* name;
  const char* symbol;
  int since;
  bool per_thread;
  void (*function)();
};
#define FLATOUT_HOOK(name, symbol, since, per_thread) \
  {#name, #symbol, since, (per_thread) != 0, hooks::symbol},
#define FLATOUT_NVML_HOOK(symbol) {"", #symbol, 0, false, hooks::symbol},
constexpr Hook kHooks[] = {
#include "devlimit/hooks.def"
};
#undef FLATOUT_HOOK
#undef FLATOUT_NVML_HOOK

bool is_nvml(const char* symbol) { return symbol[0] == 'n'; }

using Dlsym = void* (*)(void*, const char*);

}  // namespace

// Read by the trampoline below.
extern "C" {
__attribute__((visibility("hidden"))) std::atomic<Dlsym> flatout_real_dlsym{nullptr};
}

namespace {

// The C library has it under the version of its own first release with it, and under that in which
// it moved from libdl to libc.
Dlsym real_dlsym() {
  Dlsym found = flatout_real_dlsym.load(std::memory_order_acquire);
  if (found != nullptr) return found;
  for (const char* version : {"GLIBC_2.34", "GLIBC_2.2.5"}) {
    found = reinterpret_cast<Dlsym>(::dlvsym(RTLD_NEXT, "dlsym", version));
    if (found != nullptr) break;
  }
  flatout_real_dlsym.store(found, std::memory_order_release);
  return found;
}

// A handle of the library that has `symbol`; null while the program has not loaded it.
void* library_of(const char* symbol) {
  static std::atomic<void*> cuda{nullptr}, nvml{nullptr};
  std::atomic<void*>& handle = is_nvml(symbol) ? nvml : cuda;
  void* found = handle.load(std::memory_order_acquire);
  if (found == nullptr) {
    found =
        ::dlopen(is_nvml(symbol) ? "libnvidia-ml.so.1" : "libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD);
    handle.store(found, std::memory_order_release);
  }
  return found;
}

const Hook* hook_of_symbol(const char* symbol) {
  if (strncmp(symbol, "cu", 2) != 0 && strncmp(symbol, "nvml", 4) != 0) return nullptr;
  for (const Hook& hook : kHooks)
    if (strcmp(hook.symbol, symbol) == 0) return &hook;
  return nullptr;
}

// The one that cuGetProcAddress means: the newest for that version, of the kind of stream asked
// for where the function comes in both kinds.
const Hook* hook_of_name(const char* name, int version, uint64_t flags) {
  const bool per_thread = (flags & CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM) != 0;
  const Hook* best = nullptr;
  for (const Hook& hook : kHooks) {
    if (hook.since > version || strcmp(hook.name, name) != 0) continue;
    if (hook.per_thread && !per_thread) continue;
    if (real_symbol(hook.symbol) == nullptr) continue;  // newer than the driver
    if (best == nullptr || best->since <= hook.since) best = &hook;
  }
  return best;
}

}  // namespace

void* real_symbol(const char* symbol) {
  void* const library = library_of(symbol);
  const Dlsym look_up = real_dlsym();
  return library != nullptr && look_up != nullptr ? look_up(library, symbol) : nullptr;
}

/// Ours in place of what the real dlsym would give; null: it is to answer itself. Called by the
/// trampoline below, which leaves the caller's return address where dlsym looks for it
/// (RTLD_NEXT depends on who asks).
extern "C" __attribute__((visibility("hidden"))) void* flatout_dlsym(void* handle,
                                                                     const char* name) {
  const Dlsym look_up = real_dlsym();
  const Hook* const hook = name != nullptr ? hook_of_symbol(name) : nullptr;
  if (hook == nullptr || look_up == nullptr) return nullptr;
  void* const ours = reinterpret_cast<void*>(hook->function);
  void* const real = real_symbol(name);
  if (real == nullptr) return nullptr;
  if (handle == RTLD_DEFAULT || handle == RTLD_NEXT) return ours;
  // Another library may have a function of that name; only the driver's is replaced.
  void* const found = look_up(handle, name);
  return found == real || found == ours ? ours : nullptr;
}

asm(R"(
  .text
  .globl dlsym
  .type dlsym, @function
dlsym:
  .cfi_startproc
  endbr64
  pushq %rdi
  .cfi_adjust_cfa_offset 8
  pushq %rsi
  .cfi_adjust_cfa_offset 8
  subq $8, %rsp
  .cfi_adjust_cfa_offset 8
  call flatout_dlsym
  addq $8, %rsp
  .cfi_adjust_cfa_offset -8
  popq %rsi
  .cfi_adjust_cfa_offset -8
  popq %rdi
  .cfi_adjust_cfa_offset -8
  testq %rax, %rax
  jne 1f
  movq flatout_real_dlsym(%rip), %rax
  testq %rax, %rax
  je 1f
  jmp *%rax
1:
  ret
  .cfi_endproc
  .size dlsym, .-dlsym
)");

void* hook_for(const char* name, int version, uint64_t flags) {
  const Hook* const hook = hook_of_name(name, version, flags);
  return hook != nullptr ? reinterpret_cast<void*>(hook->function) : nullptr;
}

}  // namespace flatout::devlimit
