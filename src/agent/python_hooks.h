/* What stands in the place of a function of the job's: a hook. It looks like that function, takes
 * the clock, calls it and writes straight into the ring, with none of Python's own instructions
 * round it: after heavy native code each of those costs a miss of the caches. */
#ifndef FLATOUT_AGENT_PYTHON_HOOKS_H_
#define FLATOUT_AGENT_PYTHON_HOOKS_H_

#include "agent/python_api.h"

/* Adds to a dict what makes hooks: timed, backward, step, scaled, forward,
 * wait_for_input and next, each of
 * (kind | name id << 32, original) or (kind, class, name), where the original is what the class has
 * by that name at the time of each call. 0 on an error, with its exception. */
int python_hooks_add(py_object* calls);

/* Python's functions called now and then; NULL: none. */
struct python_callbacks {
  py_object* after_step;      /* () at the end of a step that is due */
  py_object* before_backward; /* with the arguments of a backward that is due */
  py_object* grad_enabled;    /* () whether gradients are on */
  py_object* after_batch;     /* with a batch that a loader hands out, where one is due */
};
extern struct python_callbacks python_callbacks;
/* Finds what PyTorch says of gradients in C, where Python's own way to it is long. */
void python_hooks_find_torch(void);
void python_hooks_after_fork(void);

#endif /* FLATOUT_AGENT_PYTHON_HOOKS_H_ */
