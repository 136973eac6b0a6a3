// measure FILE COMMAND...: runs COMMAND and writes its CPU seconds, wall seconds, peak KiB and
// status to FILE. A process keeps as its peak what its parent had resident when it was started, so
// a Python harness cannot measure small programs itself.
#include <stdio.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec + t.tv_nsec * 1e-9;
}

int main(int count, char** words) {
  if (count < 3) return 2;
  double began = now();
  pid_t child = fork();
  if (child == 0) {
    execvp(words[2], words + 2);
    _exit(127);
  }
  int status = 0;
  struct rusage used;
  if (child < 0 || wait4(child, &status, 0, &used) < 0) return 2;
  double cpu = used.ru_utime.tv_sec + used.ru_stime.tv_sec +
               (used.ru_utime.tv_usec + used.ru_stime.tv_usec) * 1e-6;
  FILE* out = fopen(words[1], "w");
  if (!out) return 2;
  fprintf(out, "%.6f %.6f %ld %d\n", cpu, now() - began, used.ru_maxrss, status);
  return fclose(out) == 0 ? 0 : 2;
}
