// A library that registers a fork handler before anybody has allocated, as OpenBLAS does, and
// allocates in it. For early_handler_test.cpp.
#include <pthread.h>
#include <stdlib.h>

namespace {

pthread_t g_thread;
volatile bool g_end = false;

void* wait_for_end(void*) {
  free(malloc(100));
  while (!g_end) sched_yield();
  return nullptr;
}

void before_fork() {
  free(malloc(100));
  free(malloc(200 << 10));
  g_end = true;
  pthread_join(g_thread, nullptr);  // whose cache is put away meanwhile
}

__attribute__((constructor)) void load() { pthread_atfork(before_fork, nullptr, nullptr); }

}  // namespace

extern "C" int start_thread() { return pthread_create(&g_thread, nullptr, wait_for_end, nullptr); }
