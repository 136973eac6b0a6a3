#include "agent/event_file.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define BUFFER (64u << 10)
#define LONGEST_LINE 4096u
#define LONGEST_NAME 2048u

enum { UNKNOWN, OPENING, OPEN, CLOSED };

struct buffer {
  struct buffer* next;
  int owned;     /* by a thread; else free to be taken */
  uint32_t used; /* written by its thread, read by whoever closes the file */
  char text[BUFFER];
};

static int state = UNKNOWN;
static int file = -1;
static struct buffer* buffers; /* of all threads; never given back, taken again */
static pthread_key_t key;
static __thread struct buffer* mine;

static void write_all(const char* text, size_t size) {
  while (size > 0) {
    const ssize_t done = write(file, text, size);
    if (done < 0 && errno == EINTR) continue;
    if (done <= 0) return; /* a full disk costs the trace, not the job */
    text += done;
    size -= (size_t)done;
  }
}

static void flush(struct buffer* b) {
  const uint32_t used = __atomic_exchange_n(&b->used, 0, __ATOMIC_ACQ_REL);
  if (used > 0) write_all(b->text, used);
}

static void thread_ends(void* held) {
  struct buffer* const b = held;
  if (__atomic_load_n(&state, __ATOMIC_ACQUIRE) == OPEN) flush(b);
  mine = NULL;
  __atomic_store_n(&b->owned, 0, __ATOMIC_RELEASE);
}

static struct buffer* take_buffer(void) {
  for (struct buffer* b = __atomic_load_n(&buffers, __ATOMIC_ACQUIRE); b != NULL; b = b->next) {
    int is_free = 0;
    if (__atomic_compare_exchange_n(&b->owned, &is_free, 1, 0, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED))
      return b;
  }
  struct buffer* const b = calloc(1, sizeof *b);
  if (b == NULL) return NULL;
  b->owned = 1;
  b->next = __atomic_load_n(&buffers, __ATOMIC_RELAXED);
  while (
      !__atomic_compare_exchange_n(&buffers, &b->next, b, 0, __ATOMIC_RELEASE, __ATOMIC_RELAXED)) {
  }
  return b;
}

/* A child has neither the device nor the other threads: it writes nothing. */
static void after_fork_in_child(void) {
  if (__atomic_exchange_n(&state, CLOSED, __ATOMIC_ACQ_REL) == OPEN) close(file);
}

int event_file_open(void) {
  int unknown = UNKNOWN;
  if (!__atomic_compare_exchange_n(&state, &unknown, OPENING, 0, __ATOMIC_ACQ_REL,
                                   __ATOMIC_ACQUIRE))
    return unknown == OPEN;
  const char* const path = getenv("FLATOUT_CUDA_TRACE");
  if (path == NULL || *path == 0 || pthread_key_create(&key, thread_ends) != 0) {
    __atomic_store_n(&state, CLOSED, __ATOMIC_RELEASE);
    return 0;
  }
  const int flags = O_WRONLY | O_CREAT | O_EXCL | O_APPEND | O_CLOEXEC;
  file = open(path, flags, 0600);
  if (file < 0 && errno == EEXIST) {
    char other[4096];
    snprintf(other, sizeof other, "%s.%d", path, (int)getpid());
    file = open(other, flags, 0600);
  }
  if (file < 0) {
    __atomic_store_n(&state, CLOSED, __ATOMIC_RELEASE);
    return 0;
  }
  static const char head[] = "{\"displayTimeUnit\": \"ms\",\n\"traceEvents\": [\n";
  write_all(head, sizeof head - 1);
  pthread_atfork(NULL, NULL, after_fork_in_child);
  atexit(event_file_close); /* after what asked later to run at the exit */
  __atomic_store_n(&state, OPEN, __ATOMIC_RELEASE);
  return 1;
}

/* As the content of a JSON string. */
static void escape(char* to, size_t size, const char* text) {
  size_t at = 0;
  for (; *text != 0 && at + 7 < size; ++text) {
    const unsigned char c = (unsigned char)*text;
    if (c == '"' || c == '\\') {
      to[at++] = '\\';
      to[at++] = (char)c;
    } else if (c < 0x20) {
      at += (size_t)snprintf(to + at, size - at, "\\u%04x", c);
    } else {
      to[at++] = (char)c;
    }
  }
  to[at] = 0;
}

static void add_line(const char* line, size_t size) {
  if (mine == NULL) {
    mine = take_buffer();
    if (mine == NULL) return;
    pthread_setspecific(key, mine);
  }
  if (mine->used + size > BUFFER) flush(mine);
  const uint32_t used = mine->used;
  memcpy(mine->text + used, line, size);
  __atomic_store_n(&mine->used, used + (uint32_t)size, __ATOMIC_RELEASE);
}

void event_file_slice(const char* category, const char* name, int64_t pid, int64_t tid,
                      uint64_t begin_ns, uint64_t end_ns, const char* args) {
  if (__atomic_load_n(&state, __ATOMIC_ACQUIRE) != OPEN) return;
  char text[LONGEST_NAME], line[LONGEST_LINE];
  escape(text, sizeof text, name != NULL ? name : "(no name)");
  const uint64_t length = end_ns > begin_ns ? end_ns - begin_ns : 0;
  const int size =
      snprintf(line, sizeof line,
               "{\"ph\": \"X\", \"cat\": \"%s\", \"name\": \"%s\", \"pid\": %lld, \"tid\": %lld, "
               "\"ts\": %llu.%03u, \"dur\": %llu.%03u, \"args\": {%s}},\n",
               category, text, (long long)pid, (long long)tid,
               (unsigned long long)(begin_ns / 1000), (unsigned)(begin_ns % 1000),
               (unsigned long long)(length / 1000), (unsigned)(length % 1000), args);
  if (size > 0 && (size_t)size < sizeof line) add_line(line, (size_t)size);
}

void event_file_missing(const char* text) {
  if (__atomic_load_n(&state, __ATOMIC_ACQUIRE) != OPEN) return;
  char clean[LONGEST_NAME], line[LONGEST_LINE];
  escape(clean, sizeof clean, text);
  const int size =
      snprintf(line, sizeof line,
               "{\"ph\": \"M\", \"name\": \"flatout_missing\", \"pid\": 0, \"tid\": 0, "
               "\"args\": {\"name\": \"%s\"}},\n",
               clean);
  if (size > 0 && (size_t)size < sizeof line) add_line(line, (size_t)size);
}

void event_file_close(void) {
  int open_now = OPEN;
  if (!__atomic_compare_exchange_n(&state, &open_now, CLOSED, 0, __ATOMIC_ACQ_REL,
                                   __ATOMIC_RELAXED))
    return;
  for (struct buffer* b = __atomic_load_n(&buffers, __ATOMIC_ACQUIRE); b != NULL; b = b->next)
    flush(b);
  static const char tail[] =
      "{\"ph\": \"M\", \"name\": \"flatout_end\", \"pid\": 0, \"tid\": 0, \"args\": {}}\n]}\n";
  write_all(tail, sizeof tail - 1);
  close(file);
}
