/* A stand-in for libnccl.so.2: ranks, processes or threads of one machine, meet in shared memory
 * and send each other bytes through slots of it. As NCCL does, it wants a context, memory of a
 * card, and every rank to come; the first messages between two wait in ncclGroupEnd for both; and a
 * rank that is late keeps a stream at work for ever. $NCCL_STAND_IN_FAILS: "init" or "send" fails
 * at once; "late": messages never arrive; "connect": no two ever connect; "async": what is on its
 * way fails; "send@1": that of rank 1 alone. */
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "train/testing/cuda_stand_in.h"

#define API __attribute__((visibility("default")))
enum { OK = 0, SYSTEM_ERROR = 2, INVALID_ARGUMENT = 4, INVALID_USAGE = 5, REMOTE_ERROR = 6 };
enum { MOST_RANKS = 8, MOST_MESSAGES = 2 * MOST_RANKS, SLOT_BYTES = 1 << 16 };

struct slot {
  atomic_uint bytes; /* 0: it is empty */
  char data[SLOT_BYTES];
};
struct meeting {
  atomic_int arrived;
  atomic_char connects[MOST_RANKS][MOST_RANKS]; /* [who][to whom] */
  struct slot slots[MOST_RANKS][MOST_RANKS];    /* [from][to] */
};
struct unique_id {
  char name[128];
};
struct communicator {
  struct meeting* meeting;
  int rank, size;
};
struct message {
  struct communicator* communicator;
  struct stream* stream;
  char* at;
  size_t left;
  int peer, is_send;
};
struct group {
  struct message messages[MOST_MESSAGES];
  int count;
};

static __thread struct group* group;

static int fails(const char* what, int rank) {
  const char* const text = getenv("NCCL_STAND_IN_FAILS");
  char one[32];
  snprintf(one, sizeof one, "%s@%d", what, rank);
  return text != NULL && (strcmp(text, what) == 0 || strcmp(text, one) == 0);
}

API const char* ncclGetErrorString(int result) {
  return result == SYSTEM_ERROR       ? "unhandled system error (of the stand-in)"
         : result == INVALID_ARGUMENT ? "invalid argument"
         : result == INVALID_USAGE    ? "invalid usage"
                                      : "remote process exited or there was a network error";
}

API int ncclGetUniqueId(struct unique_id* id) {
  const int fd = memfd_create("meeting", MFD_CLOEXEC); /* stays open: others come by its path */
  if (fd < 0 || ftruncate(fd, sizeof(struct meeting)) != 0) return SYSTEM_ERROR;
  memset(id, 0, sizeof *id);
  snprintf(id->name, sizeof id->name, "/proc/%d/fd/%d", (int)getpid(), fd);
  return OK;
}

API int ncclCommInitRank(struct communicator** made, int size, struct unique_id id, int rank) {
  struct card* context = NULL;
  cuCtxGetCurrent(&context);
  if (context == NULL || size > MOST_RANKS) return INVALID_USAGE;
  if (fails("init", rank)) return SYSTEM_ERROR;
  const int fd = open(id.name, O_RDWR | O_CLOEXEC);
  if (fd < 0) return SYSTEM_ERROR;
  struct meeting* const meeting =
      mmap(NULL, sizeof *meeting, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  close(fd);
  static struct communicator communicators[1024]; /* never destroyed */
  static atomic_int made_before;
  const int index = made_before++;
  if (meeting == MAP_FAILED || index >= 1024) return SYSTEM_ERROR;
  struct communicator* const communicator = &communicators[index];
  communicator->meeting = meeting;
  communicator->rank = rank;
  communicator->size = size;
  ++meeting->arrived;
  while (meeting->arrived < size) usleep(100);
  *made = communicator;
  return OK;
}
API int ncclCommGetAsyncError(struct communicator* communicator, int* state) {
  *state = fails("async", communicator->rank) ? REMOTE_ERROR : OK;
  return OK;
}

API int ncclGroupStart(void) {
  if (group != NULL) return INVALID_USAGE;
  group = calloc(1, sizeof *group);
  return group != NULL ? OK : SYSTEM_ERROR;
}

static int add(void* at, size_t bytes, int type, int peer, struct communicator* communicator,
               struct stream* stream, int is_send) {
  const int is_on_card = ((uintptr_t)at & ON_CARD) != 0;
  if (group == NULL || group->count == MOST_MESSAGES) return INVALID_USAGE;
  if (!is_on_card || type != 0 || peer < 0 || peer >= communicator->size || bytes == 0)
    return INVALID_ARGUMENT;
  group->messages[group->count++] = (struct message){.communicator = communicator,
                                                     .stream = stream,
                                                     .at = (char*)((uintptr_t)at & ~ON_CARD),
                                                     .left = bytes,
                                                     .peer = peer,
                                                     .is_send = is_send};
  return OK;
}
API int ncclSend(const void* at, size_t bytes, int type, int peer,
                 struct communicator* communicator, struct stream* stream) {
  if (fails("send", communicator->rank)) return SYSTEM_ERROR;
  return add((void*)(uintptr_t)at, bytes, type, peer, communicator, stream, 1);
}
API int ncclRecv(void* at, size_t bytes, int type, int peer, struct communicator* communicator,
                 struct stream* stream) {
  return add(at, bytes, type, peer, communicator, stream, 0);
}

/* Moves what there is room for, or what has come. */
static int move(struct message* m) {
  const int me = m->communicator->rank;
  struct meeting* const meeting = m->communicator->meeting;
  struct slot* const slot =
      m->is_send ? &meeting->slots[me][m->peer] : &meeting->slots[m->peer][me];
  const unsigned there = slot->bytes;
  if (m->left == 0 || (there == 0) != m->is_send) return 0;
  const unsigned bytes = !m->is_send            ? there
                         : m->left > SLOT_BYTES ? SLOT_BYTES
                                                : (unsigned)m->left;
  if (m->is_send) {
    memcpy(slot->data, m->at, bytes);
  } else {
    memcpy(m->at, slot->data, bytes);
  }
  m->at += bytes;
  m->left -= bytes;
  slot->bytes = m->is_send ? bytes : 0;
  return 1;
}

static void* carry(void* argument) {
  struct group* const mine = argument;
  const int me = mine->messages[0].communicator->rank;
  const int is_late = fails("late", me) || fails("async", me);
  struct stream* const stream = mine->messages[0].stream;
  size_t left = 1;
  while (left > 0) {
    int moved = 0;
    left = 0;
    for (int i = 0; i < mine->count; ++i) {
      if (!is_late) moved |= move(&mine->messages[i]);
      left += mine->messages[i].left;
    }
    if (!moved) usleep(50);
  }
  __atomic_fetch_sub(&stream->at_work, 1, __ATOMIC_RELEASE);
  free(mine);
  return NULL;
}

API int ncclGroupEnd(void) {
  struct group* const mine = group;
  group = NULL;
  if (mine == NULL) return INVALID_USAGE;
  pthread_t thread;
  for (int i = 0; i < mine->count; ++i) {
    struct communicator* const c = mine->messages[i].communicator;
    const int peer = mine->messages[i].peer;
    c->meeting->connects[c->rank][peer] = 1;
    while (!c->meeting->connects[peer][c->rank] || fails("connect", c->rank)) usleep(50);
  }
  if (mine->count > 0) {
    __atomic_fetch_add(&mine->messages[0].stream->at_work, 1, __ATOMIC_RELAXED);
    if (pthread_create(&thread, NULL, carry, mine) == 0) return pthread_detach(thread);
  }
  free(mine);
  return OK;
}
