// A fork in a program whose library has a handler that allocates, registered before any allocation:
// no C++ run time here, which allocates when it is loaded.
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>

extern "C" int start_thread();

int main() {
  if (start_thread() != 0) return 1;
  alarm(20);
  const pid_t pid = fork();
  if (pid == 0) {
    free(malloc(300 << 10));
    _exit(0);
  }
  int status = 1;
  waitpid(pid, &status, 0);
  return status;
}
