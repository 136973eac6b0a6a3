/* libflatout_mpi.so: stands in front of the MPI library by LD_PRELOAD and tells what a rank waits
 * in it, as MPI's profiling interface means it: each MPI_x here calls PMPI_x of the library that
 * the process has. No header of MPI is needed: arguments are handed on as the words they come in,
 * which serves Open MPI's pointers and MPICH's integers alike (x86-64, aarch64). */
#include <dlfcn.h>
#include <flatout/marker.h>
#include <limits.h>
#include <link.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

typedef uintptr_t word;

/* Shorter calls are no waits; messages that are only queued would drown the others. */
static const uint64_t kLeastNs = 2000;

static const int kErrorOther = 16; /* MPI_ERR_OTHER of Open MPI: no success in any library */

static __thread int inside __attribute__((tls_model("initial-exec")));

enum { kMostLibraries = 4 }; /* MPI's own, those for Fortran and C++ */
struct libraries {
  int count;
  char path[kMostLibraries][PATH_MAX];
};

static int keep_library(struct dl_phdr_info* object, size_t size, void* data) {
  (void)size;
  struct libraries* all = data;
  const char* slash = strrchr(object->dlpi_name, '/');
  const char* base = slash != NULL ? slash + 1 : object->dlpi_name;
  if (strncmp(base, "libmpi", 6) != 0 || strlen(object->dlpi_name) >= PATH_MAX) return 0;
  strcpy(all->path[all->count++], object->dlpi_name);
  return all->count == kMostLibraries;
}

/* Python's modules bring their MPI library in a scope of its own. It is asked only once the list of
 * objects is let go of: who opens one meanwhile would wait for it, and we for them. */
static void* find(const char* name) {
  void* found = dlsym(RTLD_NEXT, name);
  if (found != NULL) return found;
  struct libraries all = {0};
  dl_iterate_phdr(keep_library, &all);
  for (int i = 0; i < all.count && found == NULL; i++) {
    void* library = dlopen(all.path[i], RTLD_NOLOAD | RTLD_LAZY);
    if (library == NULL) continue;
    found = dlsym(library, name);
    dlclose(library);
  }
  return found;
}

static void* found_before(_Atomic(void*)* kept, const char* name) {
  void* known = atomic_load_explicit(kept, memory_order_relaxed);
  if (known == NULL) {
    known = find(name);
    atomic_store_explicit(kept, known, memory_order_relaxed);
  }
  return known;
}

static uint64_t enter(void) {
  if (inside++ != 0) return 0;
  return flatout_now();
}

static void leave(const char* name, uint64_t begin) {
  inside--;
  if (begin != 0 && flatout_now() - begin >= kLeastNs) {
    flatout_slice(FLATOUT_COMMUNICATION, name, begin);
  }
}

/* The communicator of all ranks: a symbol in Open MPI, a number in MPICH and what comes from it. */
static word world(void) {
  void* symbol = find("ompi_mpi_comm_world");
  return symbol != NULL ? (word)symbol : 0x44000000;
}

static void tell_rank(void) {
  int (*rank_of)(word, int*);
  int (*size_of)(word, int*);
  void* symbols[] = {find("PMPI_Comm_rank"), find("PMPI_Comm_size")};
  if (symbols[0] == NULL || symbols[1] == NULL) return;
  memcpy(&rank_of, &symbols[0], sizeof rank_of);
  memcpy(&size_of, &symbols[1], sizeof size_of);
  int rank = -1, size = 0;
  if (rank_of(world(), &rank) != 0 || size_of(world(), &size) != 0 || size < 2) return;
  char text[16];
  snprintf(text, sizeof text, "%d", rank);
  flatout_info("dist.rank", text);
  snprintf(text, sizeof text, "%d", size);
  flatout_info("dist.world_size", text);
  flatout_info("dist.backend", "mpi");
}

#define TAKES_1 word a
#define TAKES_2 TAKES_1, word b
#define TAKES_3 TAKES_2, word c
#define TAKES_4 TAKES_3, word d
#define TAKES_5 TAKES_4, word e
#define TAKES_6 TAKES_5, word f
#define TAKES_7 TAKES_6, word g
#define TAKES_8 TAKES_7, word h
#define TAKES_9 TAKES_8, word i
#define TAKES_12 TAKES_9, word j, word k, word l
#define GIVES_1 a
#define GIVES_2 GIVES_1, b
#define GIVES_3 GIVES_2, c
#define GIVES_4 GIVES_3, d
#define GIVES_5 GIVES_4, e
#define GIVES_6 GIVES_5, f
#define GIVES_7 GIVES_6, g
#define GIVES_8 GIVES_7, h
#define GIVES_9 GIVES_8, i
#define GIVES_12 GIVES_9, j, k, l

/* NOLINTBEGIN(bugprone-macro-parentheses): lists of parameters */
#define CALL(name, count)                              \
  static int call_##name(TAKES_##count) {              \
    static _Atomic(void*) kept;                        \
    void* symbol = found_before(&kept, "PMPI_" #name); \
    int (*next)(TAKES_##count);                        \
    if (symbol == NULL) return kErrorOther;            \
    memcpy(&next, &symbol, sizeof next);               \
    return next(GIVES_##count);                        \
  }
#define TIMED(name, count)                                              \
  CALL(name, count)                                                     \
  __attribute__((visibility("default"))) int MPI_##name(TAKES_##count); \
  int MPI_##name(TAKES_##count) {                                       \
    const uint64_t begin = enter();                                     \
    const int result = call_##name(GIVES_##count);                      \
    leave("MPI_" #name, begin);                                         \
    return result;                                                      \
  }
#define BEGINS(name, count)                                             \
  CALL(name, count)                                                     \
  __attribute__((visibility("default"))) int MPI_##name(TAKES_##count); \
  int MPI_##name(TAKES_##count) {                                       \
    const int result = call_##name(GIVES_##count);                      \
    if (result == 0) tell_rank();                                       \
    return result;                                                      \
  }
/* NOLINTEND(bugprone-macro-parentheses) */

/* Only what every MPI library has: programs ask whether a function is there, and what MPI 4 has
 * added (names that end in _c) would seem to be. */
BEGINS(Init, 2)
BEGINS(Init_thread, 4)

TIMED(Barrier, 1)
TIMED(Bcast, 5)
TIMED(Gather, 8)
TIMED(Gatherv, 9)
TIMED(Scatter, 8)
TIMED(Scatterv, 9)
TIMED(Allgather, 7)
TIMED(Allgatherv, 8)
TIMED(Alltoall, 7)
TIMED(Alltoallv, 9)
TIMED(Alltoallw, 9)
TIMED(Reduce, 7)
TIMED(Allreduce, 6)
TIMED(Reduce_scatter, 6)
TIMED(Reduce_scatter_block, 6)
TIMED(Scan, 6)
TIMED(Exscan, 6)
TIMED(Neighbor_allgather, 7)
TIMED(Neighbor_alltoall, 7)

TIMED(Send, 6)
TIMED(Ssend, 6)
TIMED(Recv, 7)
TIMED(Sendrecv, 12)
TIMED(Sendrecv_replace, 9)
TIMED(Probe, 4)
TIMED(Mprobe, 5)
TIMED(Mrecv, 5)

TIMED(Wait, 2)
TIMED(Waitall, 3)
TIMED(Waitany, 4)
TIMED(Waitsome, 5)
