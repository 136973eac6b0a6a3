/* A rank of a job on fake_mpi: calls MPI as a program that was built against it. Exit code 0 where
 * every call returned what fake_mpi returns for the arguments that stand here. */
int MPI_Init(int* argc, char*** argv);
int MPI_Barrier(int comm);
int MPI_Allreduce(const void* from, void* to, int count, int type, int op, int comm);
int MPI_Sendrecv(const void* out, int out_count, int out_type, int to, int out_tag, void* in,
                 int in_count, int in_type, int from, int in_tag, int comm, void* status);
int MPI_Probe(int from, int tag, int comm, void* status);
int MPI_Wait(int* request, void* status);

int main(void) {
  double here = 0, there = 0;
  int request = 5;
  if (MPI_Init(0, 0) != 0) return 1;
  if (MPI_Barrier(0x44000000) != 0) return 2;
  for (int i = 0; i < 3; i++) {
    if (MPI_Allreduce((void*)-1, &there, 7, 0x4c00080b, 0x58000003, 0x44000000) != 0) return 3;
  }
  if (MPI_Sendrecv(&here, 1, 2, 3, -4, &there, 5, 6, 7, -8, 9, 0) != 0) return 4;
  if (MPI_Probe(-2, -1, 1, 0) != 99) return 5;
  if (MPI_Wait(&request, (void*)1) != 0) return 6;
  return 0;
}
