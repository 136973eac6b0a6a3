/* An MPI library of MPICH's kind, as far as mpi_job needs it: handles are integers. Each function
 * checks that it was given what mpi_job gave, takes a millisecond and returns 0; `Probe` fails. */
#include <time.h>

static int wait_a_little(int right) {
  const struct timespec millisecond = {0, 1000000};
  nanosleep(&millisecond, 0);
  return right ? 0 : 99;
}

#define EXPORT(name, takes, right)                              \
  __attribute__((visibility("default"))) int PMPI_##name takes; \
  int PMPI_##name takes { return wait_a_little(right); }        \
  __attribute__((weak, visibility("default"), alias("PMPI_" #name))) int MPI_##name takes;

EXPORT(Init, (int* argc, char*** argv), argc == 0 && argv == 0)
EXPORT(Barrier, (int comm), comm == 0x44000000)
EXPORT(Allreduce, (const void* from, void* to, int count, int type, int op, int comm),
       from == (void*)-1 && to != 0 && count == 7 && type == 0x4c00080b && op == 0x58000003 &&
           comm == 0x44000000)
EXPORT(Sendrecv,
       (const void* out, int out_count, int out_type, int to, int out_tag, void* in, int in_count,
        int in_type, int from, int in_tag, int comm, void* status),
       out != 0 && out_count == 1 && out_type == 2 && to == 3 && out_tag == -4 && in != 0 &&
           in_count == 5 && in_type == 6 && from == 7 && in_tag == -8 && comm == 9 && status == 0)
EXPORT(Probe, (int from, int tag, int comm, void* status),
       from == -2 && tag == -1 && comm == 1 && status == 0 && 0)
EXPORT(Wait, (int* request, void* status), *request == 5 && status == (void*)1)

__attribute__((visibility("default"))) int PMPI_Comm_rank(int comm, int* rank);
int PMPI_Comm_rank(int comm, int* rank) {
  *rank = comm == 0x44000000 ? 3 : -1;
  return 0;
}
__attribute__((visibility("default"))) int PMPI_Comm_size(int comm, int* size);
int PMPI_Comm_size(int comm, int* size) {
  *size = comm == 0x44000000 ? 8 : 0;
  return 0;
}
