/* The agent's connection to the recorder. Only system calls that are safe after fork; see agent.h.
 */
#include "agent/connection.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

/* Out of the way of the job's own descriptors, whose numbers should not depend on us. */
#define LOWEST_FD 200
#define LARGEST_RING (256u << 20)

static int is_ours(const struct connection* c) {
  struct stat st;
  return c->fd >= 0 && fstat(c->fd, &st) == 0 && st.st_dev == c->device && st.st_ino == c->inode;
}

/* Field 22 of /proc/self/stat; 0 if it cannot be read. The name in field 2 may hold anything. */
static uint64_t start_time(void) {
  char text[1024];
  const int fd = open("/proc/self/stat", O_RDONLY | O_CLOEXEC);
  if (fd < 0) return 0;
  const ssize_t n = read(fd, text, sizeof text - 1);
  close(fd);
  if (n <= 0) return 0;
  text[n] = 0;
  const char* at = strrchr(text, ')');
  for (int field = 2; at != NULL && field < 22; ++field) {
    at = strchr(at, ' ');
    if (at != NULL) ++at;
  }
  uint64_t ticks = 0;
  for (; at != NULL && *at >= '0' && *at <= '9'; ++at) ticks = ticks * 10 + (uint64_t)(*at - '0');
  return ticks;
}

/* The first of these variables that holds a number; -1 if none does. */
static int32_t number_from(const char* const* names) {
  for (; *names != NULL; ++names) {
    const char* text = getenv(*names);
    if (text == NULL || *text < '0' || *text > '9') continue;
    int32_t value = 0;
    while (*text >= '0' && *text <= '9' && value < 10000000) value = value * 10 + (*text++ - '0');
    if (*text == 0) return value;
  }
  return -1;
}

static void fill_hello(struct flatout_hello* hello, uint32_t kind) {
  static const char* const rank[] = {"RANK",      "OMPI_COMM_WORLD_RANK", "PMI_RANK",
                                     "PMIX_RANK", "SLURM_PROCID",         NULL};
  static const char* const local_rank[] = {"LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK",
                                           "MPI_LOCALRANKID", "SLURM_LOCALID", NULL};
  static const char* const world[] = {"WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE",
                                      "SLURM_NTASKS", NULL};
  memset(hello, 0, sizeof *hello);
  hello->magic = FLATOUT_WIRE_MAGIC;
  hello->version = FLATOUT_WIRE_VERSION;
  hello->kind = kind;
  hello->pid = (int32_t)getpid();
  hello->tid = (int32_t)syscall(SYS_gettid);
  hello->rank = number_from(rank);
  hello->local_rank = number_from(local_rank);
  hello->world_size = number_from(world);
  hello->start_time_ticks = start_time();
}

int connection_open(struct connection* c, const char* name, uint32_t kind) {
  memset(c, 0, sizeof *c);
  c->fd = -1;
  struct sockaddr_un address;
  memset(&address, 0, sizeof address);
  address.sun_family = AF_UNIX;
  const size_t length = strlen(name);
  if (length == 0 || length > sizeof address.sun_path - 1) return 0;
  memcpy(address.sun_path + 1, name, length); /* abstract: a zero byte first */

  int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd < 0) return 0;
  const int high = fcntl(fd, F_DUPFD_CLOEXEC, LOWEST_FD);
  if (high >= 0) {
    close(fd);
    fd = high;
  }
  struct stat st;
  const socklen_t size = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + length);
  struct flatout_hello hello;
  fill_hello(&hello, kind);
  if (fstat(fd, &st) != 0 || connect(fd, (const struct sockaddr*)&address, size) != 0 ||
      send(fd, &hello, sizeof hello, MSG_DONTWAIT | MSG_NOSIGNAL) != (ssize_t)sizeof hello) {
    close(fd);
    return 0;
  }
  c->fd = fd;
  c->device = st.st_dev;
  c->inode = st.st_ino;
  return 1;
}

/* Maps the ring. The seal matters: a file that shrinks under us would kill the job (SIGBUS). */
static int map_ring(struct connection* c, int memfd, uint64_t bytes) {
  struct stat st;
  const int seals = fcntl(memfd, F_GET_SEALS);
  if (seals < 0 || (seals & F_SEAL_SHRINK) == 0) return 0;
  if (bytes > LARGEST_RING || fstat(memfd, &st) != 0 || (uint64_t)st.st_size < bytes) return 0;
  void* memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, memfd, 0);
  if (memory == MAP_FAILED) return 0;
  struct flatout_ring* ring = flatout_ring_open(memory, bytes);
  if (ring == NULL) {
    munmap(memory, bytes);
    return 0;
  }
  c->memory = memory;
  c->memory_bytes = bytes;
  c->ring = ring;
  return 1;
}

enum connection_state connection_poll(struct connection* c, int wait_ms) {
  if (!is_ours(c)) return CONNECTION_NONE;
  struct pollfd poller = {.fd = c->fd, .events = POLLIN};
  const int ready = poll(&poller, 1, wait_ms);
  if (ready == 0 || (ready < 0 && errno == EINTR)) return CONNECTION_WAITING;

  struct flatout_config config;
  memset(&config, 0, sizeof config);
  struct iovec part = {.iov_base = &config, .iov_len = sizeof config};
  union {
    struct cmsghdr align;
    char bytes[CMSG_SPACE(sizeof(int))];
  } control;
  struct msghdr message = {.msg_iov = &part,
                           .msg_iovlen = 1,
                           .msg_control = control.bytes,
                           .msg_controllen = sizeof control.bytes};
  const ssize_t n = recvmsg(c->fd, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  if (n < 0 && (errno == EAGAIN || errno == EINTR)) return CONNECTION_WAITING;
  int memfd = -1;
  for (struct cmsghdr* m = n < 0 ? NULL : CMSG_FIRSTHDR(&message); m != NULL;
       m = CMSG_NXTHDR(&message, m)) {
    if (m->cmsg_level == SOL_SOCKET && m->cmsg_type == SCM_RIGHTS &&
        m->cmsg_len == CMSG_LEN(sizeof(int)))
      memcpy(&memfd, CMSG_DATA(m), sizeof memfd);
  }
  int ok = n == (ssize_t)sizeof config && config.magic == FLATOUT_WIRE_MAGIC &&
           config.version == FLATOUT_WIRE_VERSION && config.accepted != 0 && memfd >= 0;
  if (ok) ok = map_ring(c, memfd, config.ring_bytes);
  if (memfd >= 0) close(memfd);
  if (!ok) {
    connection_drop(c);
    return CONNECTION_NONE;
  }
  c->categories = config.categories;
  return CONNECTION_READY;
}

int connection_lost(const struct connection* c) {
  char byte;
  const ssize_t n = recv(c->fd, &byte, 1, MSG_DONTWAIT | MSG_PEEK);
  return n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR) || !is_ours(c);
}

void connection_drop(struct connection* c) {
  if (is_ours(c)) close(c->fd);
  c->fd = -1;
  if (c->memory != NULL) munmap(c->memory, c->memory_bytes);
  c->memory = NULL;
  c->ring = NULL;
}
