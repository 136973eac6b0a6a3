/* What the device does, told to the recorder while the job runs. In windows of at most two seconds,
 * a quarter of the time, CUPTI records operations and calls; device_window.h sums them up here, in
 * a thread of the agent's own, and only the sums are sent. All the time, calls that wait for the
 * device and calls that allocate its memory are watched by CUPTI's callbacks: the former become
 * slices of their threads, of the latter only failures are told. */
#ifndef FLATOUT_AGENT_CUPTI_LIVE_H_
#define FLATOUT_AGENT_CUPTI_LIVE_H_

/* Where a recorder listens. Called once, within cuInit, under `flatout run --cupti`. */
void cupti_live_start(void);

#endif /* FLATOUT_AGENT_CUPTI_LIVE_H_ */
