/* A trace that the agent writes by itself, for a job that runs under no recorder: Chrome JSON, one
 * event a line, to the file that $FLATOUT_CUDA_TRACE names. Each thread fills a buffer of its own
 * and writes it when it is full, so that no event waits for another thread or, but for one in some
 * hundreds, for the disk. A job that is killed leaves all but the last lines. */
#ifndef FLATOUT_AGENT_EVENT_FILE_H_
#define FLATOUT_AGENT_EVENT_FILE_H_

#include <stdint.h>

/* 1 if there is such a file, opened by this call or before. The first process that asks has it
 * under that name, others add their process id. */
int event_file_open(void);

/* One complete slice; `args` is the inside of an object, "" for none. Times are CLOCK_MONOTONIC's,
 * in ns. */
void event_file_slice(const char* category, const char* name, int64_t pid, int64_t tid,
                      uint64_t begin_ns, uint64_t end_ns, const char* args);
/* A fact about the recording, read by `flatout trace` as what is missing. */
void event_file_missing(const char* text);

/* Writes what all threads still hold and ends the list of events. What comes later is lost. */
void event_file_close(void);

#endif /* FLATOUT_AGENT_EVENT_FILE_H_ */
