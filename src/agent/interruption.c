#include "agent/interruption.h"

#include <dlfcn.h>
#include <stddef.h>

FLATOUT_HOT_DATA int64_t interruption_offset = 0;

#if defined(__x86_64__)

/* struct rseq_cs of linux/rseq.h, and the field of struct rseq that points at one. */
#define POINTER_AT 8
#define LEAST_SIZE 16u

/* Two instructions that nothing jumps to, and the handler that the kernel wants to see marked with
 * the signature that glibc registers. */
__asm__(
    ".pushsection .text.flatout_never,\"ax\",@progbits\n"
    ".balign 16\n"
    "flatout_never_begin: ud2\n"
    "flatout_never_end: .long 0x53053053\n"
    "flatout_never_abort: ud2\n"
    ".popsection\n"
    ".pushsection .data.rel.ro.flatout_never,\"aw\",@progbits\n"
    ".balign 32\n"
    ".globl interruption_never_inside\n"
    ".hidden interruption_never_inside\n"
    "interruption_never_inside:\n"
    ".long 0, 0\n"
    ".quad flatout_never_begin, flatout_never_end - flatout_never_begin, flatout_never_abort\n"
    ".popsection\n");

void interruption_find(void) {
  const ptrdiff_t* offset = (const ptrdiff_t*)dlsym(RTLD_DEFAULT, "__rseq_offset");
  const unsigned* size = (const unsigned*)dlsym(RTLD_DEFAULT, "__rseq_size");
  /* Before 2.40 the size is that of the structure, later of its used part: both hold the pointer.
   */
  if (offset != NULL && size != NULL && *size >= LEAST_SIZE)
    interruption_offset = *offset + POINTER_AT;
}

#else

void interruption_find(void) {}

#endif
