#include "malloc/pressure.h"

#include <sys/types.h>

#include <cstdint>
#include <cstring>

#include "malloc/os.h"

namespace flatout::malloc {
namespace {

// Reads a small file into `text`, with a NUL at its end; false if it cannot be read.
bool read_file(const char* path, char* text, size_t size) {
  const int fd = os_open(path);
  ssize_t n = -1;
  if (fd >= 0) {
    n = os_read(fd, text, size - 1);
    os_close(fd);
  }
  if (n < 0) return false;
  text[n] = 0;
  return true;
}

bool number(const char* text, uint64_t& out) {
  if (*text < '0' || *text > '9') return false;  // "max"
  out = 0;
  for (; *text >= '0' && *text <= '9'; ++text) out = out * 10 + static_cast<uint64_t>(*text - '0');
  return true;
}

// The number after `key` at the beginning of a file of our group (cgroup v2).
bool cgroup_number(const char* group, const char* name, const char* key, uint64_t& out) {
  char path[512], text[64];
  const size_t length = std::strlen(group);
  if (length + std::strlen(name) + 32 > sizeof path) return false;
  std::strcpy(path, "/sys/fs/cgroup");
  std::strcat(path, group);
  std::strcat(path, "/");
  std::strcat(path, name);
  const size_t skip = std::strlen(key);
  return read_file(path, text, sizeof text) && std::strncmp(text, key, skip) == 0 &&
         number(text + skip, out);
}

bool near_limit() {
  char text[512];
  if (!read_file("/proc/self/cgroup", text, sizeof text)) return false;
  const char* at = std::strstr(text, "0::");
  if (at == nullptr) return false;
  char group[400];
  size_t n = 0;
  for (at += 3; *at != 0 && *at != '\n' && n + 1 < sizeof group; ++at) group[n++] = *at;
  group[n] = 0;
  uint64_t most = 0, now = 0;
  // Not memory.current: that counts the page cache, which fills up to the limit in any case.
  return cgroup_number(group, "memory.max", "", most) &&
         cgroup_number(group, "memory.stat", "anon ", now) && now > most - most / 20;
}

// "some avg10=1.23 ...": some task waited for memory in so many percent of the last 10 s.
bool stalled() {
  char text[256];
  if (!read_file("/proc/pressure/memory", text, sizeof text)) return false;
  const char* at = std::strstr(text, "avg10=");
  uint64_t percent = 0;
  return at != nullptr && number(at + 6, percent) && percent >= 10;
}

}  // namespace

bool under_pressure() { return near_limit() || stalled(); }

}  // namespace flatout::malloc
