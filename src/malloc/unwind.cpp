// An unwinder by frame pointers. The one of libgcc takes locks and may allocate, which malloc must
// not; code without frame pointers ends the walk early, or skips its caller.
#include <pthread.h>

#include "malloc/profile.h"

extern "C" {
// Where the main thread's stack ends; glibc's dynamic linker has it.
extern void* __libc_stack_end __attribute__((weak));
}

namespace flatout::malloc {
namespace {

constexpr uintptr_t kLargestStack = uintptr_t{64} << 20;

}  // namespace

uintptr_t find_stack_end() {
  const auto here = reinterpret_cast<uintptr_t>(__builtin_frame_address(0));
  // glibc keeps a thread's descriptor at the end of its stack.
  const auto self = reinterpret_cast<uintptr_t>(pthread_self());
  if (here < self && self - here < kLargestStack) return self;
  if (&__libc_stack_end != nullptr) {
    const auto end = reinterpret_cast<uintptr_t>(__libc_stack_end);
    if (here < end && end - here < kLargestStack) return end;
  }
  return 0;
}

__attribute__((noinline)) unsigned unwind(uintptr_t* pc, unsigned most, uintptr_t stack_end) {
  auto* frame = static_cast<const uintptr_t*>(__builtin_frame_address(0));
  auto at = reinterpret_cast<uintptr_t>(frame);
  if (at >= stack_end || stack_end - at > kLargestStack) {  // a coroutine's stack, say
    pc[0] = reinterpret_cast<uintptr_t>(__builtin_return_address(0));
    return 1;
  }
  unsigned n = 0;
  while (n < most) {
    const uintptr_t caller = frame[0], address = frame[1];
    if (address < 4096) break;
    pc[n++] = address;
    // Outwards only, aligned, and whole within the stack.
    if (caller <= at || caller % sizeof(void*) != 0 || caller > stack_end - 2 * sizeof(void*))
      break;
    at = caller;
    frame = reinterpret_cast<const uintptr_t*>(caller);
  }
  return n;
}

}  // namespace flatout::malloc
