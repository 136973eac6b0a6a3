// Messages between ranks over TCP: a connection between each two. Rank 0 listens where MASTER_ADDR
// and MASTER_PORT say; the others come to it and learn from it where all are.
#include <arpa/inet.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <thread>

#include "base/fs.h"
#include "base/text.h"
#include "train/ranks.h"

namespace flatout::train {
namespace {

using namespace std::chrono_literals;

constexpr uint64_t kMagic = 0x464c41544f555432;  // "FLATOUT2"

struct Hello {
  uint64_t magic = kMagic;
  int32_t rank = 0, size = 0, pid = 0;
  uint16_t port = 0;  // where it listens for ranks above it
  uint16_t zero = 0;
  char host[64] = {};
};
struct Address {
  sockaddr_storage at{};
  socklen_t length = 0;
  int32_t pid = 0;
  char host[64] = {};
};
// Before each message; a rank that gives up says so, and whom it blames.
struct Frame {
  enum Kind : uint32_t { kData = 1, kGivenUp = 2 };
  uint32_t kind = kData;
  int32_t blamed = 0;
  uint64_t bytes = 0;
};

class Socket {
 public:
  explicit Socket(int fd = -1) : fd_(fd) {}
  Socket(Socket&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Socket& operator=(Socket&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~Socket() {
    if (fd_ >= 0) close(fd_);
  }
  int fd() const { return fd_; }

 private:
  int fd_;
};

bool wait_for(int fd, short events, TimePoint deadline) {
  for (;;) {
    const auto left =
        std::chrono::ceil<std::chrono::milliseconds>(deadline - MonotonicClock::now());
    pollfd one{fd, events, 0};
    const int n = poll(&one, 1, static_cast<int>(std::clamp<int64_t>(left.count(), 0, 1 << 30)));
    if (n > 0) return true;
    if (n == 0 || errno != EINTR) return false;
  }
}

bool receive_all(int fd, void* data, size_t bytes, TimePoint deadline) {
  auto* at = static_cast<char*>(data);
  while (bytes > 0) {
    if (!wait_for(fd, POLLIN, deadline)) return false;
    const ssize_t n = recv(fd, at, bytes, MSG_DONTWAIT);
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) continue;
    if (n <= 0) return false;
    at += n;
    bytes -= static_cast<size_t>(n);
  }
  return true;
}

bool send_all(int fd, const void* data, size_t bytes, TimePoint deadline) {
  const auto* at = static_cast<const char*>(data);
  while (bytes > 0) {
    if (!wait_for(fd, POLLOUT, deadline)) return false;
    const ssize_t n = send(fd, at, bytes, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) continue;
    if (n <= 0) return false;
    at += n;
    bytes -= static_cast<size_t>(n);
  }
  return true;
}

void set_port(sockaddr_storage& address, uint16_t port) {
  if (address.ss_family == AF_INET6) {
    reinterpret_cast<sockaddr_in6&>(address).sin6_port = htons(port);
  } else {
    reinterpret_cast<sockaddr_in&>(address).sin_port = htons(port);
  }
}

uint16_t port_of(const sockaddr_storage& address) {
  return ntohs(address.ss_family == AF_INET6
                   ? reinterpret_cast<const sockaddr_in6&>(address).sin6_port
                   : reinterpret_cast<const sockaddr_in&>(address).sin_port);
}

Result<Address> resolve(const std::string& host, int port) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const int err = getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found);
  if (err != 0) {
    return Error{Code::kNotFound,
                 fmt::format("cannot find the host of rank 0, {}: {}", escape_terminal(host),
                             gai_strerror(err)),
                 "MASTER_ADDR names it"};
  }
  Address out;
  out.length = found->ai_addrlen;
  std::memcpy(&out.at, found->ai_addr, found->ai_addrlen);
  freeaddrinfo(found);
  return out;
}

Result<Socket> listen_at(const Address& where) {
  Socket out(socket(where.at.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const int one = 1;
  setsockopt(out.fd(), SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
  if (out.fd() < 0 ||
      bind(out.fd(), reinterpret_cast<const sockaddr*>(&where.at), where.length) != 0 ||
      listen(out.fd(), 1024) != 0) {
    Error error =
        fs::error_from_errno(errno, fmt::format("cannot listen on port {}", port_of(where.at)));
    error.hint = "is MASTER_ADDR the host of rank 0, and MASTER_PORT free?";
    return error;
  }
  return out;
}

/// A connection, tried again until the deadline: the other may not listen yet.
Result<Socket> connect_to(const Address& where, int rank, TimePoint deadline) {
  for (;;) {
    Socket out(socket(where.at.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    int err = out.fd() < 0 ? errno : 0;
    if (err == 0 &&
        connect(out.fd(), reinterpret_cast<const sockaddr*>(&where.at), where.length) != 0) {
      err = errno;
      if (err == EINPROGRESS && wait_for(out.fd(), POLLOUT, deadline)) {
        socklen_t size = sizeof err;
        getsockopt(out.fd(), SOL_SOCKET, SO_ERROR, &err, &size);
      }
    }
    if (err == 0) return out;
    if (MonotonicClock::now() >= deadline) {
      Error error = fs::error_from_errno(
          err, fmt::format("rank {} cannot be reached on port {}", rank, port_of(where.at)));
      error.code = Code::kTimeout;
      error.hint = "is it running? MASTER_ADDR and MASTER_PORT say where rank 0 listens";
      return error;
    }
    std::this_thread::sleep_for(20ms);
  }
}

class Sockets : public Transport {
 public:
  explicit Sockets(const RankPlace& place)
      : rank_(place.rank), size_(place.size), peers_(static_cast<size_t>(place.size)) {
    hello_.rank = rank_;
    hello_.size = size_;
    hello_.pid = getpid();
    gethostname(hello_.host, sizeof hello_.host - 1);
  }

  const char* name() const override { return "sockets"; }
  int rank() const override { return rank_; }
  int size() const override { return size_; }
  Status lead(const RankPlace& place, TimePoint deadline);
  Status follow(const RankPlace& place, TimePoint deadline);
  Status exchange(std::span<const Message> sends, std::span<const Message> receives,
                  Nanos patience) override;
  Status lost() override;

 private:
  struct Peer {
    Socket socket;
    std::string name;
    // Of the exchange under way; frame and data are counted as one stretch of bytes.
    Message send{}, receive{};
    Frame send_frame, receive_frame;
    size_t sent = 0, received = 0;
    bool sending() const { return send.data != nullptr && sent < sizeof(Frame) + send.bytes; }
    bool receiving() const {
      return receive.data != nullptr && received < sizeof(Frame) + receive.bytes;
    }
  };
  Peer& peer(int rank) { return peers_[static_cast<size_t>(rank)]; }
  void meet(int rank, Socket socket, int pid, const char* host);
  Status accept_ranks(const Socket& listener, int wanted, std::vector<Address>* where,
                      TimePoint deadline);
  std::string names(const std::vector<int>& ranks);
  bool push(Peer& peer, bool& lost);
  bool pull(Peer& peer, bool& lost);
  Error give_up(Code code, const std::vector<int>& blamed, std::string_view what);

  int rank_, size_;
  Hello hello_;
  std::vector<Peer> peers_;
};

void Sockets::meet(int rank, Socket socket, int pid, const char* host) {
  const int one = 1;
  setsockopt(socket.fd(), IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
  Peer& p = peer(rank);
  p.socket = std::move(socket);
  p.name = fmt::format("rank {} ({}, process {})", rank,
                       escape_terminal(std::string(host, strnlen(host, 64))), pid);
}

std::string Sockets::names(const std::vector<int>& ranks) {
  std::vector<std::string> out;
  for (const int r : ranks)
    out.push_back(peer(r).name.empty() ? fmt::format("rank {}", r) : peer(r).name);
  return fmt::format("{}", fmt::join(out, ", "));
}

Status Sockets::accept_ranks(const Socket& listener, int wanted, std::vector<Address>* where,
                             TimePoint deadline) {
  while (wanted > 0) {
    if (!wait_for(listener.fd(), POLLIN, deadline)) {
      std::vector<int> missing;
      for (int r = rank_ + 1; r < size_; ++r) {
        if (peer(r).socket.fd() < 0) missing.push_back(r);
      }
      return Error{Code::kTimeout,
                   fmt::format("{} of {} did not come in time", names(missing), size_),
                   "were all ranks started, and do they reach MASTER_ADDR? --rank-timeout waits "
                   "longer"};
    }
    sockaddr_storage from{};
    socklen_t length = sizeof from;
    Socket socket(
        accept4(listener.fd(), reinterpret_cast<sockaddr*>(&from), &length, SOCK_CLOEXEC));
    // Where this process or the machine has none left, the one who waits stays: asking again spins.
    if (socket.fd() < 0 &&
        (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM)) {
      return fs::error_from_errno(errno, "cannot take the connection of another rank");
    }
    Hello hello;
    const TimePoint soon = std::min(deadline, MonotonicClock::now() + 5s);
    if (socket.fd() < 0 || !receive_all(socket.fd(), &hello, sizeof hello, soon) ||
        hello.magic != kMagic) {
      continue;  // a stranger
    }
    if (hello.size != size_ || hello.rank <= rank_ || hello.rank >= size_ ||
        peer(hello.rank).socket.fd() >= 0) {
      return Error{Code::kBadInput,
                   fmt::format("rank {} of {} came to this rank {} of {}, which waits for another",
                               hello.rank, hello.size, rank_, size_),
                   "each rank is started once, and its number is less than that of all"};
    }
    if (where != nullptr) {
      set_port(from, hello.port);
      Address& address = where->at(static_cast<size_t>(hello.rank));
      address.at = from;
      address.length = length;
      address.pid = hello.pid;
      std::memcpy(address.host, hello.host, sizeof address.host);
    }
    meet(hello.rank, std::move(socket), hello.pid, hello.host);
    --wanted;
  }
  return {};
}

Status Sockets::lead(const RankPlace& place, TimePoint deadline) {
  FLATOUT_TRY(const Address here, resolve(place.address, place.port));
  FLATOUT_TRY(const Socket listener, listen_at(here));
  std::vector<Address> where(static_cast<size_t>(size_));
  where[0].pid = hello_.pid;
  std::memcpy(where[0].host, hello_.host, sizeof hello_.host);
  FLATOUT_TRY_STATUS(accept_ranks(listener, size_ - 1, &where, deadline));
  for (int r = 1; r < size_; ++r) {
    if (!send_all(peer(r).socket.fd(), where.data(), where.size() * sizeof where[0], deadline)) {
      return Error{Code::kGone, peer(r).name + " is gone", ""};
    }
  }
  return {};
}

Status Sockets::follow(const RankPlace& place, TimePoint deadline) {
  FLATOUT_TRY(const Address first, resolve(place.address, place.port));
  FLATOUT_TRY(Socket to_first, connect_to(first, 0, deadline));
  // Whoever reaches rank 0 reaches us where we come from.
  Address here;
  here.length = sizeof here.at;
  getsockname(to_first.fd(), reinterpret_cast<sockaddr*>(&here.at), &here.length);
  set_port(here.at, 0);
  FLATOUT_TRY(const Socket listener, listen_at(here));
  getsockname(listener.fd(), reinterpret_cast<sockaddr*>(&here.at), &here.length);
  hello_.port = port_of(here.at);
  std::vector<Address> where(static_cast<size_t>(size_));
  if (!send_all(to_first.fd(), &hello_, sizeof hello_, deadline) ||
      !receive_all(to_first.fd(), where.data(), where.size() * sizeof where[0], deadline)) {
    return Error{Code::kTimeout, "rank 0 did not answer",
                 "it says itself what it lacks; --rank-timeout waits longer"};
  }
  meet(0, std::move(to_first), where[0].pid, where[0].host);
  for (int r = 1; r < rank_; ++r) {
    const Address& address = where[static_cast<size_t>(r)];
    FLATOUT_TRY(Socket socket, connect_to(address, r, deadline));
    if (!send_all(socket.fd(), &hello_, sizeof hello_, deadline)) {
      return Error{Code::kGone, fmt::format("rank {} is gone", r), ""};
    }
    meet(r, std::move(socket), address.pid, address.host);
  }
  return accept_ranks(listener, size_ - 1 - rank_, nullptr, deadline);
}

// Both give whether anything moved.
bool Sockets::push(Peer& p, bool& lost) {
  bool moved = false;
  while (p.sending()) {
    const bool head = p.sent < sizeof(Frame);
    const auto* from = head ? reinterpret_cast<const char*>(&p.send_frame) + p.sent
                            : static_cast<const char*>(p.send.data) + (p.sent - sizeof(Frame));
    const size_t left = head ? sizeof(Frame) - p.sent : sizeof(Frame) + p.send.bytes - p.sent;
    const ssize_t n = send(p.socket.fd(), from, left, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && errno == EAGAIN) break;
    if (n <= 0) {
      lost = true;
      break;
    }
    p.sent += static_cast<size_t>(n);
    moved = true;
  }
  return moved;
}

bool Sockets::pull(Peer& p, bool& lost) {
  bool moved = false;
  while (p.receiving()) {
    const bool head = p.received < sizeof(Frame);
    auto* to = head ? reinterpret_cast<char*>(&p.receive_frame) + p.received
                    : static_cast<char*>(p.receive.data) + (p.received - sizeof(Frame));
    const size_t left =
        head ? sizeof(Frame) - p.received : sizeof(Frame) + p.receive.bytes - p.received;
    const ssize_t n = recv(p.socket.fd(), to, left, MSG_DONTWAIT);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && errno == EAGAIN) break;
    if (n <= 0) {
      lost = true;
      break;
    }
    p.received += static_cast<size_t>(n);
    moved = true;
    if (p.received == sizeof(Frame) &&
        (p.receive_frame.kind != Frame::kData || p.receive_frame.bytes != p.receive.bytes)) {
      lost = true;
      break;
    }
  }
  return moved;
}

// Tells the others whom to blame, where no message to them is half sent.
Error Sockets::give_up(Code code, const std::vector<int>& blamed, std::string_view what) {
  for (Peer& p : peers_) {
    if (p.socket.fd() < 0 || (p.sending() && p.sent > 0)) continue;
    const Frame frame{Frame::kGivenUp, blamed.front(), 0};
    (void)send(p.socket.fd(), &frame, sizeof frame, MSG_DONTWAIT | MSG_NOSIGNAL);
  }
  return Error{code, fmt::format("{} of {} {}", names(blamed), size_, what),
               code == Code::kTimeout ? "it hangs or is slow; --rank-timeout waits longer"
                                      : "see what that rank said last"};
}

Status Sockets::exchange(std::span<const Message> sends, std::span<const Message> receives,
                         Nanos patience) {
  for (Peer& p : peers_) {
    p.send = p.receive = {};
    p.sent = p.received = 0;
  }
  for (const Message& m : sends) {
    peer(m.rank).send = m;
    peer(m.rank).send_frame = {Frame::kData, rank_, m.bytes};
  }
  for (const Message& m : receives) peer(m.rank).receive = m;
  TimePoint deadline = MonotonicClock::now() + patience;
  std::vector<pollfd> polled;
  for (;;) {
    polled.clear();
    std::vector<int> waited;
    std::vector<int> lost_ranks;
    bool moved = false;
    for (int r = 0; r < size_; ++r) {
      Peer& p = peer(r);
      bool lost = false;
      moved |= push(p, lost);
      moved |= pull(p, lost);
      if (lost && p.received >= sizeof(Frame) && p.receive_frame.kind == Frame::kGivenUp &&
          p.receive_frame.blamed >= 0 && p.receive_frame.blamed < size_ &&
          p.receive_frame.blamed != rank_) {
        return give_up(Code::kGone, {p.receive_frame.blamed},
                       fmt::format("is late or gone, as {} says", p.name));
      }
      if (lost) {
        lost_ranks.push_back(r);
        continue;
      }
      const int events = (p.sending() ? POLLOUT : 0) | (p.receiving() ? POLLIN : 0);
      if (events == 0) continue;
      if (p.receiving()) waited.push_back(r);
      polled.push_back({p.socket.fd(), static_cast<short>(events), 0});
    }
    if (!lost_ranks.empty()) return give_up(Code::kGone, lost_ranks, "is gone");
    if (polled.empty()) return {};
    const TimePoint now = MonotonicClock::now();
    if (moved) deadline = now + patience;
    if (now >= deadline) {
      if (waited.empty()) {
        for (int r = 0; r < size_; ++r) {
          if (peer(r).sending()) waited.push_back(r);
        }
      }
      return give_up(Code::kTimeout, waited,
                     fmt::format("has sent nothing for {}", format_duration(patience)));
    }
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - now);
    (void)poll(polled.data(), polled.size(),
               static_cast<int>(std::min<int64_t>(left.count(), 1 << 30)));
  }
}

Status Sockets::lost() {
  std::vector<int> gone;
  for (int r = 0; r < size_; ++r) {
    if (r == rank_) continue;
    // The next exchange's message may be there already: it stays.
    Frame frame;
    const ssize_t n = recv(peer(r).socket.fd(), &frame, sizeof frame, MSG_DONTWAIT | MSG_PEEK);
    const bool told = n == sizeof frame && frame.kind == Frame::kGivenUp && frame.blamed >= 0 &&
                      frame.blamed < size_ && frame.blamed != rank_;
    if (told) {
      return give_up(Code::kGone, {frame.blamed},
                     fmt::format("is late or gone, as {} says", peer(r).name));
    }
    if (n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR)) gone.push_back(r);
  }
  if (gone.empty()) return {};
  return give_up(Code::kGone, gone, "is gone");
}

}  // namespace

Result<std::unique_ptr<Transport>> open_sockets(const RankPlace& place, Nanos patience) {
  auto sockets = std::make_unique<Sockets>(place);
  const TimePoint deadline = MonotonicClock::now() + patience;
  FLATOUT_TRY_STATUS(place.rank == 0 ? sockets->lead(place, deadline)
                                     : sockets->follow(place, deadline));
  return std::unique_ptr<Transport>(std::move(sockets));
}

}  // namespace flatout::train
