#include "recorder/agents.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>

#include "base/bytes.h"
#include "base/fs.h"
#include "recorder/redact.h"
#include "timeline/run_decoder.h"

namespace flatout::recorder {
namespace {

constexpr size_t kMaxAgents = 2000;
constexpr size_t kMaxDefined = 16 << 20;  // names and facts of one agent
constexpr size_t kHeaderSlack = 4096;  // the ring's own header, beyond the power of two of its data

// The first agents are the ones that train; a job of hundreds of workers must not cost hundreds of
// megabytes.
size_t ring_bytes(size_t agents) {
  const size_t data = agents < 4 ? 1 << 20 : agents < 32 ? 256 << 10 : 64 << 10;
  return data + kHeaderSlack;
}

}  // namespace

Result<std::unique_ptr<AgentServer>> AgentServer::open(EventLoop& loop, Recording& recording,
                                                       std::function<bool(int32_t)> may_speak) {
  std::unique_ptr<AgentServer> server(new AgentServer(loop, recording, std::move(may_speak)));
  server->buffer_.resize(FLATOUT_RING_MAX_PACKET / sizeof(uint64_t));
  uint64_t random = 0;
  if (::getrandom(&random, sizeof random, GRND_NONBLOCK) != sizeof random) {
    random = static_cast<uint64_t>(unix_now_ns());
  }
  server->name_ = fmt::format("flatout-{}-{:016x}", ::getpid(), random);
  server->listener_ = ::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (server->listener_ < 0) return fs::error_from_errno(errno, "cannot make a socket for agents");
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path + 1, server->name_.data(), server->name_.size());
  const auto length =
      static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + server->name_.size());
  if (::bind(server->listener_, reinterpret_cast<const sockaddr*>(&address), length) != 0 ||
      ::listen(server->listener_, 1024) != 0) {
    return fs::error_from_errno(errno, "cannot listen for agents");
  }
  FLATOUT_TRY_STATUS(server->listen());
  return server;
}

Status AgentServer::listen() {
  return loop_.add(listener_, EPOLLIN, [this](uint32_t) { accept_all(); });
}

AgentServer::~AgentServer() {
  if (listener_ >= 0) {
    loop_.remove(listener_);
    ::close(listener_);
  }
  for (auto& [fd, agent] : agents_) release(agent);
}

void AgentServer::accept_all() {
  for (;;) {
    const int fd = ::accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (fd < 0) {
      // Without a free descriptor whoever waits would wake us without end: the next round hears it.
      deaf_ = errno != EAGAIN;
      if (deaf_) loop_.remove(listener_);
      return;
    }
    ucred peer{};
    socklen_t size = sizeof peer;
    const bool known = ::getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0;
    const bool ours = known && (peer.uid == ::geteuid() || may_speak_(peer.pid));
    if (!ours || agents_.size() >= kMaxAgents) {
      refuse(fd);
      ::close(fd);
      continue;
    }
    Agent agent;
    agent.fd = fd;
    agent.pid = peer.pid;
    if (!loop_.add(fd, EPOLLIN | EPOLLRDHUP, [this, fd](uint32_t) { on_message(fd); }).ok()) {
      ::close(fd);
      continue;
    }
    agents_.emplace(fd, agent);
  }
}

void AgentServer::refuse(int fd) {
  flatout_config config{};
  config.magic = FLATOUT_WIRE_MAGIC;
  config.version = FLATOUT_WIRE_VERSION;
  ::send(fd, &config, sizeof config, MSG_DONTWAIT | MSG_NOSIGNAL);
}

void AgentServer::on_message(int fd) {
  Agent& agent = agents_.at(fd);
  flatout_hello hello{};
  const ssize_t got = ::recv(fd, &hello, sizeof hello, MSG_DONTWAIT);
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
  const bool valid = got == sizeof hello && hello.magic == FLATOUT_WIRE_MAGIC;
  if (got > 0 && agent.ring.ring == nullptr && valid && welcome(agent, hello)) return;
  if (got > 0 && agent.ring.ring == nullptr) refuse(fd);
  // Closed, or a message that has no place here: no more of it is read, what the ring holds is.
  loop_.remove(fd);
  agent.left = true;
}

bool AgentServer::welcome(Agent& agent, const flatout_hello& hello) {
  if (hello.version != FLATOUT_WIRE_VERSION) return false;
  const int memory = ::memfd_create("flatout-ring", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (memory < 0) return false;
  agent.bytes = ring_bytes(agents_.size() - 1);
  // Sealed, so that the job cannot shrink it under our feet (SIGBUS).
  if (::ftruncate(memory, static_cast<off_t>(agent.bytes)) == 0 &&
      ::fcntl(memory, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) == 0) {
    void* mapped = ::mmap(nullptr, agent.bytes, PROT_READ | PROT_WRITE, MAP_SHARED, memory, 0);
    if (mapped != MAP_FAILED) agent.memory = mapped;
  }
  if (agent.memory == nullptr || !flatout_ring_init(agent.memory, agent.bytes)) {
    ::close(memory);
    return false;
  }
  if (!flatout_ring_reader_open(&agent.ring, agent.memory, agent.bytes)) agent.ring.ring = nullptr;
  agent.own_pid = hello.pid;

  flatout_config config{};
  config.magic = FLATOUT_WIRE_MAGIC;
  config.version = FLATOUT_WIRE_VERSION;
  config.accepted = 1;
  config.categories = FLATOUT_CATEGORY_ALL;
  config.ring_bytes = agent.bytes;
  iovec data{&config, sizeof config};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  cmsghdr* part = CMSG_FIRSTHDR(&message);
  part->cmsg_level = SOL_SOCKET;
  part->cmsg_type = SCM_RIGHTS;
  part->cmsg_len = CMSG_LEN(sizeof(int));
  std::memcpy(CMSG_DATA(part), &memory, sizeof memory);
  const ssize_t sent = ::sendmsg(agent.fd, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
  ::close(memory);
  if (agent.ring.ring == nullptr || sent < 0) return false;
  ++seen_;
  return true;
}

double AgentServer::drain(TimePoint now) {
  if (deaf_) deaf_ = !listen().ok();
  double fullest = 0;
  for (auto it = agents_.begin(); it != agents_.end();) {
    Agent& agent = it->second;
    if (agent.ring.ring != nullptr) fullest = std::max(fullest, drain_one(agent, now));
    if (agent.left) {
      release(agent);
      it = agents_.erase(it);
    } else {
      ++it;
    }
  }
  return fullest;
}

double AgentServer::drain_one(Agent& agent, TimePoint now) {
  size_t done = 0;
  // A writer as fast as we are must not keep us here: the rest waits for the next round.
  while (done < agent.bytes) {
    const long size = flatout_ring_read(&agent.ring, buffer_.data(), FLATOUT_RING_MAX_PACKET);
    // The connection closes with the process: what it had begun to write stays half written.
    if (size == 0 && agent.left && flatout_ring_skip(&agent.ring)) continue;
    if (size == 0) break;
    if (size < static_cast<long>(sizeof(flatout_packet)) || size > FLATOUT_RING_MAX_PACKET) {
      agent.ring.ring = nullptr;  // it makes no sense any more: stop reading
      break;
    }
    done += static_cast<size_t>(size);
    flatout_packet header;
    std::memcpy(&header, buffer_.data(), sizeof header);
    take(agent, header, static_cast<size_t>(size), now);
  }
  const uint64_t dropped = agent.ring.ring != nullptr ? flatout_ring_dropped(agent.ring.ring) : 0;
  if (dropped > agent.dropped) {
    flatout_packet header{};
    header.size = sizeof(flatout_packet) + sizeof(flatout_counter);
    header.type = FLATOUT_PACKET_DROPPED;
    header.pid = static_cast<uint32_t>(agent.pid);
    header.time_ns = static_cast<uint64_t>(to_ns(now));
    std::string packet;
    put(packet, header);
    put(packet, flatout_counter{0, 0, static_cast<double>(dropped - agent.dropped)});
    recording_.define_event(packet);
    agent.dropped = dropped;
  }
  return static_cast<double>(done) / static_cast<double>(agent.bytes);
}

Nanos AgentServer::usual_step() const {
  constexpr int64_t kFew = 5;
  const auto steps = static_cast<int64_t>(most_steps_);
  return steps < kFew ? Nanos(0) : (last_step_ - first_step_) / (steps - 1);
}

void AgentServer::take(Agent& agent, flatout_packet& header, size_t size, TimePoint now) {
  // Drops are counted here, from the ring itself.
  if (!timeline::is_agent_packet(header.type) || header.type == FLATOUT_PACKET_DROPPED) return;
  header.size = static_cast<uint32_t>(size);
  // An agent speaks for its own process only; in a pid namespace it does not know our number.
  if (header.tid == static_cast<uint32_t>(agent.own_pid)) {
    header.tid = static_cast<uint32_t>(agent.pid);
  }
  header.pid = static_cast<uint32_t>(agent.pid);
  std::memcpy(buffer_.data(), &header, sizeof header);
  std::string_view bytes(reinterpret_cast<const char*>(buffer_.data()), size);
  if (header.type != FLATOUT_PACKET_SLICE && header.type != FLATOUT_PACKET_COUNTER) {
    agent.defined += size;
    if (agent.defined > kMaxDefined) return;
  }
  switch (header.type) {
    case FLATOUT_PACKET_SLICE: {
      ByteReader reader(bytes.substr(sizeof header));
      const auto slice = reader.get<flatout_slice>();
      if (slice.kind == FLATOUT_SLICE_STEP || slice.kind == FLATOUT_SLICE_OPTIMIZER) {
        if (steps_++ == 0) first_step_ = now;
        last_step_ = now;
        most_steps_ = std::max(most_steps_, ++agent.steps);
      }
      recording_.event(bytes, now);
      break;
    }
    case FLATOUT_PACKET_COUNTER:
      recording_.event(bytes, now);
      break;
    case FLATOUT_PACKET_INFO: {
      // Facts of the job may quote its arguments (a traceback, for one).
      std::string clean(bytes.substr(0, sizeof header));
      std::string_view text = bytes.substr(sizeof header);
      const size_t nul = std::min(text.find('\0'), text.size());
      clean.append(text.substr(0, nul));
      clean += '\0';
      text.remove_prefix(std::min(nul + 1, text.size()));
      clean.append(redact_text(text.substr(0, text.find('\0'))));
      clean.resize((clean.size() + 8) / 8 * 8, '\0');
      header.size = static_cast<uint32_t>(clean.size());
      std::memcpy(clean.data(), &header, sizeof header);
      recording_.define_event(clean);
      break;
    }
    default:
      recording_.define_event(bytes);
  }
}

void AgentServer::release(Agent& agent) {
  loop_.remove(agent.fd);
  if (agent.fd >= 0) ::close(agent.fd);
  if (agent.memory != nullptr) ::munmap(agent.memory, agent.bytes);
  agent = Agent{};
}

}  // namespace flatout::recorder
