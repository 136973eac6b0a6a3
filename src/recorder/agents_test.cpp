#include "recorder/agents.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstddef>
#include <cstring>

#include "base/bytes.h"

namespace flatout::recorder {
namespace {

// An agent as the job would have it, to say right and wrong things.
class FakeAgent {
 public:
  explicit FakeAgent(const std::string& name) {
    fd_ = ::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::memcpy(address.sun_path + 1, name.data(), name.size());
    connected_ =
        ::connect(fd_, reinterpret_cast<sockaddr*>(&address),
                  static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size())) == 0;
  }
  ~FakeAgent() {
    if (memory_ != nullptr) ::munmap(memory_, config_.ring_bytes);
    leave();
  }
  bool connected() const { return connected_; }
  void say(const void* data, size_t size) { ASSERT_EQ(::send(fd_, data, size, 0), ssize_t(size)); }
  void hello(uint32_t version = FLATOUT_WIRE_VERSION) {
    flatout_hello hello{};
    hello.magic = FLATOUT_WIRE_MAGIC;
    hello.version = version;
    hello.kind = FLATOUT_AGENT_PYTHON;
    hello.pid = ::getpid();
    say(&hello, sizeof hello);
  }
  // Takes the answer; true if it was accepted and the ring mapped.
  bool receive() {
    iovec data{&config_, sizeof config_};
    alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
    msghdr message{};
    message.msg_iov = &data;
    message.msg_iovlen = 1;
    message.msg_control = control;
    message.msg_controllen = sizeof control;
    if (::recvmsg(fd_, &message, MSG_DONTWAIT) != sizeof config_ || config_.accepted == 0) {
      return false;
    }
    const cmsghdr* sent = CMSG_FIRSTHDR(&message);
    if (sent == nullptr) return false;
    int memory = -1;
    std::memcpy(&memory, CMSG_DATA(sent), sizeof memory);
    shrinks_ = ::ftruncate(memory, 4096) == 0;
    memory_ = ::mmap(nullptr, config_.ring_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, memory, 0);
    ::close(memory);
    ring_ = flatout_ring_open(memory_, config_.ring_bytes);
    return ring_ != nullptr;
  }
  bool shrinks() const { return shrinks_; }
  bool write(uint16_t type, const std::string& payload, uint32_t pid = 1) {
    flatout_packet header{};
    header.type = type;
    header.pid = pid;
    header.tid = static_cast<uint32_t>(::getpid());
    header.time_ns = static_cast<uint64_t>(to_ns(MonotonicClock::now()));
    return flatout_ring_write(ring_, &header, payload.data(), payload.size(), nullptr, 0);
  }
  bool slice(uint32_t kind) {
    std::string payload;
    const auto now = static_cast<uint64_t>(to_ns(MonotonicClock::now()));
    put(payload, flatout_slice{now - 1000, now, kind, 0, 0, 0});
    return write(FLATOUT_PACKET_SLICE, payload);
  }
  void spoil() { std::memset(memory_, 0xA5, config_.ring_bytes); }
  void leave() {
    if (fd_ >= 0) ::close(fd_);
    fd_ = -1;
  }

 private:
  int fd_ = -1;
  bool connected_ = false, shrinks_ = false;
  flatout_config config_{};
  void* memory_ = nullptr;
  flatout_ring* ring_ = nullptr;
};

class Agents : public ::testing::Test {
 protected:
  void SetUp() override {
    auto server = AgentServer::open(loop_, recording_, [](int32_t) { return false; });
    ASSERT_TRUE(server.ok());
    server_ = std::move(*server);
  }
  // Lets the server do all that has come in.
  void turn() {
    for (int i = 0; i < 4; ++i) loop_.wait(MonotonicClock::now());
    server_->drain(MonotonicClock::now());
    ASSERT_TRUE(recording_.pump(MonotonicClock::now()).ok());
  }

  EventLoop loop_ = EventLoop::open().value();
  Recording recording_;
  std::unique_ptr<AgentServer> server_;
};

TEST_F(Agents, SlicesReachTheRunUnderTheTruePid) {
  FakeAgent agent(server_->name());
  ASSERT_TRUE(agent.connected());
  agent.hello();
  turn();
  ASSERT_TRUE(agent.receive());
  ASSERT_TRUE(agent.slice(FLATOUT_SLICE_FORWARD));
  ASSERT_TRUE(agent.slice(FLATOUT_SLICE_OPTIMIZER));
  turn();
  EXPECT_EQ(server_->steps(), 1u);
  const model::Run& run = recording_.run();
  ASSERT_EQ(run.slices.size(), 2u);
  EXPECT_EQ(run.processes[run.threads[run.slices[0].thread].process].pid, ::getpid())
      << "it said 1, the kernel knows better";
}

TEST_F(Agents, TheUsualStepIsThatOfOneProcess) {
  FakeAgent first(server_->name()), second(server_->name());
  for (FakeAgent* agent : {&first, &second}) {
    agent->hello();
    turn();
    ASSERT_TRUE(agent->receive());
  }
  for (int step = 0; step < 5; ++step) {
    EXPECT_EQ(server_->usual_step(), Nanos(0)) << step;
    if (step > 0) ::usleep(20'000);
    for (FakeAgent* agent : {&first, &second}) ASSERT_TRUE(agent->slice(FLATOUT_SLICE_OPTIMIZER));
    turn();
  }
  EXPECT_EQ(server_->steps(), 10u);
  EXPECT_GE(server_->usual_step(), std::chrono::milliseconds(20));
  EXPECT_EQ(server_->usual_step(), (server_->last_step() - server_->first_step()) / 4);
}

TEST_F(Agents, TheJobCannotShrinkTheRing) {
  FakeAgent agent(server_->name());
  agent.hello();
  turn();
  ASSERT_TRUE(agent.receive());
  EXPECT_FALSE(agent.shrinks());
}

TEST_F(Agents, WhatStandsInTheRingAtTheEndIsKept) {
  FakeAgent agent(server_->name());
  agent.hello();
  turn();
  ASSERT_TRUE(agent.receive());
  ASSERT_TRUE(agent.slice(FLATOUT_SLICE_STEP));
  agent.leave();
  turn();
  EXPECT_EQ(recording_.run().slices.size(), 1u);
  EXPECT_EQ(server_->agents(), 0u);
}

TEST_F(Agents, AnUnknownVersionIsRefused) {
  FakeAgent agent(server_->name());
  agent.hello(FLATOUT_WIRE_VERSION + 1);
  turn();
  EXPECT_FALSE(agent.receive());
  EXPECT_EQ(server_->agents(), 0u);
  EXPECT_EQ(server_->seen(), 0u);
}

TEST_F(Agents, GarbageInsteadOfHelloIsRefused) {
  FakeAgent agent(server_->name());
  const std::string noise(3000, 'x');
  agent.say(noise.data(), noise.size());
  turn();
  EXPECT_EQ(server_->agents(), 0u);
}

TEST_F(Agents, DropsAreCounted) {
  FakeAgent agent(server_->name());
  agent.hello();
  turn();
  ASSERT_TRUE(agent.receive());
  int lost = 0;
  for (int i = 0; i < 40'000; ++i) lost += agent.slice(FLATOUT_SLICE_FORWARD) ? 0 : 1;
  ASSERT_GT(lost, 0);
  turn();
  const model::Series* dropped = recording_.run().find(model::SignalId::kAgentDropped);
  ASSERT_NE(dropped, nullptr);
  EXPECT_EQ(dropped->last(), lost);
}

TEST_F(Agents, AnAgentCannotSpeakForTheRecorder) {
  FakeAgent agent(server_->name());
  agent.hello();
  turn();
  ASSERT_TRUE(agent.receive());
  ASSERT_TRUE(agent.write(FLATOUT_PACKET_RUN_INFO, std::string("host.name\0evil", 14)));
  ASSERT_TRUE(agent.write(FLATOUT_PACKET_PROCESS, std::string(200, '\1')));
  ASSERT_TRUE(agent.write(9999, std::string(200, '\1')));
  turn();
  EXPECT_EQ(recording_.run().fact("host.name"), "");
  EXPECT_TRUE(recording_.run().processes.empty());
}

TEST_F(Agents, ASpoiledRingIsLeftAlone) {
  FakeAgent agent(server_->name());
  FakeAgent other(server_->name());
  agent.hello();
  other.hello();
  turn();
  ASSERT_TRUE(agent.receive());
  ASSERT_TRUE(other.receive());
  agent.spoil();
  ASSERT_TRUE(other.slice(FLATOUT_SLICE_FORWARD));
  turn();
  turn();
  EXPECT_EQ(recording_.run().slices.size(), 1u);
}

TEST_F(Agents, WithoutADescriptorItRestsUntilThereIsOneAgain) {
  FakeAgent agent(server_->name());
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  const int next = ::dup(STDERR_FILENO);
  ASSERT_GE(next, 0);
  ::close(next);
  rlimit none = before;
  none.rlim_cur = static_cast<rlim_t>(next);
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &none), 0);
  loop_.wait(MonotonicClock::now());
  // Who waits there wakes the loop no more: it would spin for as long as that lasts.
  const TimePoint begin = MonotonicClock::now();
  loop_.wait(begin + std::chrono::milliseconds(20));
  const Nanos rested = MonotonicClock::now() - begin;
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);
  EXPECT_GE(rested, std::chrono::milliseconds(20));
  turn();
  agent.hello();
  turn();
  turn();
  EXPECT_TRUE(agent.receive());
}

TEST_F(Agents, FactsLoseTheirSecrets) {
  FakeAgent agent(server_->name());
  agent.hello();
  turn();
  ASSERT_TRUE(agent.receive());
  const std::string fact =
      std::string("exception.message") + '\0' + "cannot open https://me:pw@host/data";
  ASSERT_TRUE(agent.write(FLATOUT_PACKET_INFO, fact));
  ASSERT_TRUE(agent.slice(FLATOUT_SLICE_OPTIMIZER));
  turn();
  std::string all;
  for (const auto& [key, value] : recording_.run().info) all += fmt::format("{}={}\n", key, value);
  EXPECT_EQ(all.find("pw@"), std::string::npos);
  EXPECT_NE(all.find("[redacted]@host"), std::string::npos) << all;
}

}  // namespace
}  // namespace flatout::recorder
