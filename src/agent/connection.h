/* The agent's connection to the recorder: Hello, Config, ring. */
#ifndef FLATOUT_AGENT_CONNECTION_H_
#define FLATOUT_AGENT_CONNECTION_H_

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "wire/ring.h"

struct connection {
  int fd; /* -1: none */
  dev_t device;
  ino_t inode; /* with device: still our socket? A job may have closed all its descriptors. */
  struct flatout_ring* ring;
  void* memory;
  size_t memory_bytes;
  uint32_t categories;
};

enum connection_state { CONNECTION_NONE, CONNECTION_WAITING, CONNECTION_READY };

/* Connects to the abstract socket `name` and says Hello. Never blocks. False: nobody listens. */
int connection_open(struct connection* c, const char* name, uint32_t kind);
/* Waits up to `wait_ms` for Config and the ring. CONNECTION_NONE: refused, closed or no ring. */
enum connection_state connection_poll(struct connection* c, int wait_ms);
/* Has the recorder closed its end? */
int connection_lost(const struct connection* c);
/* Closes the socket, if it is still ours, and unmaps the ring. */
void connection_drop(struct connection* c);

#endif /* FLATOUT_AGENT_CONNECTION_H_ */
