// An unwinder for this thread: by .eh_frame where the code has it, which is nearly everywhere, else
// by the frame pointer. The one of libgcc takes locks and may allocate, which malloc must not.
#include "malloc/unwind.h"

#include <pthread.h>

#include "malloc/eh_frame.h"

extern "C" {
// Where the main thread's stack ends; glibc's dynamic linker has it.
extern void* __libc_stack_end __attribute__((weak));
}

namespace flatout::malloc {
namespace {

constexpr uintptr_t kLargestStack = uintptr_t{64} << 20;

struct Registers {
  uintptr_t pc, sp, fp, link;  // link: the link register, known in the innermost frame alone
};

uintptr_t word_at(uintptr_t at) { return *reinterpret_cast<const uintptr_t*>(at); }

// Without the bits that sign a return address (ARM's pointer authentication).
uintptr_t plain(uintptr_t address) {
#if defined(__aarch64__)
  register uintptr_t link asm("x30") = address;
  asm("hint 7" : "+r"(link));  // xpaclri
  return link;
#else
  return address;
#endif
}

// To the caller's frame: outwards only, and only by words within [sp, stack_end).
bool step(Registers& r, uintptr_t stack_end) {
  const auto holds = [&](uintptr_t at) {
    return at >= r.sp && at % sizeof(uintptr_t) == 0 && at <= stack_end - sizeof(uintptr_t);
  };
  FrameRule rule{};
  // A return address may lie behind its function's last instruction.
  if (find_frame_rule(r.pc - 1, rule)) {
    const uintptr_t cfa =
        (rule.cfa_from_fp ? r.fp : r.sp) + static_cast<uintptr_t>(int64_t{rule.cfa_offset});
    const uintptr_t ra = cfa + static_cast<uintptr_t>(int64_t{rule.ra_at});
    const uintptr_t fp = cfa + static_cast<uintptr_t>(int64_t{rule.fp_at});
    if (cfa < r.sp || cfa > stack_end) return false;
    if ((rule.ra_at == 0 ? r.link == 0 : !holds(ra)) || (rule.fp_at != 0 && !holds(fp))) {
      return false;
    }
    const uintptr_t address = rule.ra_at == 0 ? r.link : word_at(ra);
    r = {plain(address), cfa, rule.fp_at == 0 ? r.fp : word_at(fp), 0};
    return true;
  }
  if (!holds(r.fp) || !holds(r.fp + sizeof(uintptr_t))) return false;
  r = {plain(word_at(r.fp + sizeof(uintptr_t))), r.fp + 2 * sizeof(uintptr_t), word_at(r.fp), 0};
  return true;
}

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
  Registers r{};
#if defined(__x86_64__)
  asm volatile("lea 0(%%rip), %0\n\tmov %%rsp, %1\n\tmov %%rbp, %2"
               : "=r"(r.pc), "=r"(r.sp), "=r"(r.fp));
#elif defined(__aarch64__)
  asm volatile("adr %0, .\n\tmov %1, sp\n\tmov %2, x29" : "=r"(r.pc), "=r"(r.sp), "=r"(r.fp));
#endif
  if (r.sp == 0 || r.sp >= stack_end || stack_end - r.sp > kLargestStack) {
    pc[0] = reinterpret_cast<uintptr_t>(__builtin_return_address(0));  // a coroutine's stack, say
    return 1;
  }
  unsigned n = 0;
  while (n < most && step(r, stack_end) && r.pc >= 4096) pc[n++] = r.pc;
  return n;
}

}  // namespace flatout::malloc
