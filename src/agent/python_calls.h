/* What the Python agent has in C: the hooks of python_hooks.h, what stands in a loader's fetcher,
 * and the state that they share.
 *
 * Nothing of CPython is linked or included: its stable ABI is declared by hand (python_api.h) and
 * found by dlsym, so that one library serves all Pythons from 3.8 on, and plain programs, too. */
#ifndef FLATOUT_AGENT_PYTHON_CALLS_H_
#define FLATOUT_AGENT_PYTHON_CALLS_H_

#include <stddef.h>
#include <stdint.h>

#include "agent/agent.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Where the training loop is; Python reads and writes it as a ctypes.Structure
 * (python/flatout/agent/ core.py has the same fields). Without locks: a race between training
 * threads may lose a hint, never a slice. Threads are pthread_self(), which is Python's
 * threading.get_ident(). */
struct flatout_agent_loop {
  uint64_t waiting;       /* between the end of a step and the next forward or backward */
  uint64_t loader_thread; /* is inside a loader's __next__ */
  uint64_t step_thread;   /* is inside an optimizer's step */
  uint64_t train_thread;  /* did the last step */
  uint64_t last_backward; /* when it ended */
  uint64_t backwards;
  uint64_t steps;
  uint64_t forwards;
  uint64_t iterator;            /* the loader's iterator that was asked last: its address */
  uint64_t eval_call;           /* the model was called in eval mode, with gradients */
  uint64_t trains_in_eval_mode; /* and a backward came after such a call */
  uint64_t epochs;
  uint64_t is_worker; /* of a loader */
  int64_t batch;      /* that this worker was asked for last */
  uint64_t collates;
  uint64_t rare_step;  /* after_step is called from this step on; it says the next one */
  uint64_t look_due;   /* or after this time */
  uint64_t graph_step; /* before_backward is called in this step, or after that time */
  uint64_t graph_due;
  uint64_t sample_cost; /* ns that the clocks round one sample take, measured once */
  uint64_t batch_step;  /* after_batch is called with the batch that comes from this step on */
};
FLATOUT_EXPORT extern struct flatout_agent_loop flatout_agent_loop;

/* A dict of builtin functions and types, as a new reference; NULL (with no exception) where this is
 * no CPython. `object_size`: object.__basicsize__. The interpreter's lock is held. */
FLATOUT_EXPORT void* flatout_agent_python(uint64_t object_size);

/* In a forked child. */
void python_calls_after_fork(void);

#ifdef __cplusplus
}
#endif
#endif /* FLATOUT_AGENT_PYTHON_CALLS_H_ */
