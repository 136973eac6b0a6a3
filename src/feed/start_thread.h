// Threads of the pipeline, each with a name and without the program's signals.
#pragma once

#include <pthread.h>

#include <csignal>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

namespace flatout::feed {

/// Adds a thread to `threads` that runs `work`. False where the system allows no more of them.
template <class Work>
bool start_thread(std::vector<std::thread>& threads, const char* name, Work work) {
  // Signals are for the program's own threads.
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  bool started = true;
  try {
    threads.emplace_back(std::move(work));
    pthread_setname_np(threads.back().native_handle(), name);
  } catch (const std::system_error&) {
    started = false;
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return started;
}

}  // namespace flatout::feed
