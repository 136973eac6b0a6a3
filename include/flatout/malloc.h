/* flatout/malloc.h: what a program can ask of libflatout_malloc.so beyond the C library's malloc.
 *
 *   #include <flatout/malloc.h>
 *   struct flatout_malloc_stats s;
 *   if (flatout_malloc_get_stats != NULL && flatout_malloc_get_stats(&s, sizeof s) == 0) ...
 *
 * All functions are weak: without the library (LD_PRELOAD, or linked) their addresses are NULL.
 * They are thread-safe, never throw, and may be called at any time but in a signal handler. */
#ifndef FLATOUT_MALLOC_H_
#define FLATOUT_MALLOC_H_

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#ifndef FLATOUT_MALLOC_API
#define FLATOUT_MALLOC_API __attribute__((weak))
#endif

/* All in bytes but where it says otherwise. New fields are added at the end. */
struct flatout_malloc_stats {
  uint64_t in_use_bytes; /* in spans and large blocks handed out, and what threads cache of them */
  uint64_t cached_bytes; /* free, with memory behind it: kept for what comes next */
  uint64_t reserved_bytes; /* address space in use; says nothing about memory */
  uint64_t released_bytes; /* given back to the kernel since the start, in sum */
  uint64_t window_ns;      /* free memory is kept up to the peak demand of this time */
  uint64_t sample_bytes;   /* mean distance of the heap profile's samples; 0: off */
  uint64_t invalid_frees;  /* frees, counted, of what was no block: ignored */
  uint64_t thread_caches;  /* counted */
};

/* Fills at most `size` bytes of `out`. 0, or EINVAL. */
FLATOUT_MALLOC_API int flatout_malloc_get_stats(struct flatout_malloc_stats* out, size_t size);

/* Gives all free memory back to the kernel, at once. Returns the bytes given back. */
FLATOUT_MALLOC_API size_t flatout_malloc_purge(void);

/* A training step ended here. Free memory is then kept for at least twice a step's length. */
FLATOUT_MALLOC_API void flatout_malloc_mark_step(void);

/* Samples an allocation every so many bytes in the mean (512 KiB is cheap); 0 stops sampling.
 * Threads that have allocated before notice at their next sample; call it early. */
FLATOUT_MALLOC_API void flatout_malloc_set_sampling(uint64_t bytes);

/* Writes the live sampled allocations with their stacks, in the text form that pprof reads.
 * 0, or an errno (ENOENT, EACCES, ENOSPC ...). */
FLATOUT_MALLOC_API int flatout_malloc_heap_dump(const char* path);

#ifdef __cplusplus
}
#endif
#endif /* FLATOUT_MALLOC_H_ */
