// An agent that says anything, with the right hello and without, through its ring and around it.
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string>

#include "recorder/agents.h"

namespace {

using namespace flatout;            // NOLINT: a program of its own
using namespace flatout::recorder;  // NOLINT

int connect_to(const std::string& name) {
  const int fd = ::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path + 1, name.data(), name.size());
  const auto size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  if (::connect(fd, reinterpret_cast<sockaddr*>(&address), size) != 0) std::abort();
  return fd;
}

struct Shared {
  void* memory = nullptr;
  size_t bytes = 0;
};

Shared receive_ring(int fd) {
  flatout_config config{};
  iovec part{&config, sizeof config};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  if (::recvmsg(fd, &message, 0) != sizeof config || config.accepted == 0) return {};
  int memory = -1;
  std::memcpy(&memory, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof memory);
  Shared out;
  out.bytes = config.ring_bytes;
  out.memory = ::mmap(nullptr, out.bytes, PROT_READ | PROT_WRITE, MAP_SHARED, memory, 0);
  ::close(memory);
  if (out.memory == MAP_FAILED) std::abort();
  return out;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 2) return 0;
  EventLoop loop = EventLoop::open().value();
  Recording recording;
  const auto server = AgentServer::open(loop, recording, [](int32_t) { return false; }).value();
  const auto turn = [&] {
    for (int i = 0; i < 3; ++i) loop.wait(MonotonicClock::now());
    server->drain(MonotonicClock::now());
    (void)recording.pump(MonotonicClock::now());
  };
  const int fd = connect_to(server->name());
  const uint8_t how = data[0];
  ++data, --size;
  if (how % 8 == 0) (void)!::send(fd, data, size, MSG_NOSIGNAL);  // instead of a hello
  flatout_hello hello{};
  hello.magic = FLATOUT_WIRE_MAGIC;
  hello.version = FLATOUT_WIRE_VERSION;
  (void)!::send(fd, &hello, sizeof hello, MSG_NOSIGNAL);
  turn();
  const Shared shared = receive_ring(fd);
  flatout_ring* ring =
      shared.memory != nullptr ? flatout_ring_open(shared.memory, shared.bytes) : nullptr;
  // Packets: type, size, payload, again and again.
  for (size_t at = 0; ring != nullptr && at + 2 <= size;) {
    const size_t length = std::min<size_t>(data[at + 1], size - at - 2);
    flatout_packet header{};
    header.type = data[at] % 48;
    flatout_ring_write(ring, &header, data + at + 2, length, nullptr, 0);
    at += 2 + length;
  }
  turn();
  if (how % 8 == 1 && ring != nullptr) {  // and the ring itself, while the reader is in it
    std::memcpy(shared.memory, data, std::min(size, shared.bytes));
    turn();
  }
  ::close(fd);
  turn();
  if (shared.memory != nullptr) ::munmap(shared.memory, shared.bytes);
  if (server->agents() != 0) std::abort();
  return 0;
}
