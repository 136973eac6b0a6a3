// The C agent against a recorder of ours, in real processes: every job is a forked child, since the
// agent's state belongs to a process.
#include "agent/agent.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <flatout/marker.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "agent/clock.h"
#include "agent/interruption.h"
#include "wire/ring.h"

namespace {

const std::string kAgent = std::string(FLATOUT_BUILD_DIR) + "/libflatout_agent.so";

/// Starts it and waits for the ring, however busy the machine is.
template <class A>
int start_and_wait(const A& agent, uint32_t kind) {
  agent.start(kind);
  while (agent.active() == 1) agent.start(kind);
  return agent.active();
}

/// The agent's functions, as a program that loads it sees them.
struct Agent {
  void* handle = dlopen(kAgent.c_str(), RTLD_NOW);
  template <class F>
  F* find(const char* name) const {
    return reinterpret_cast<F*>(dlsym(handle, name));
  }
  decltype(&flatout_agent_start) start = find<decltype(flatout_agent_start)>("flatout_agent_start");
  decltype(&flatout_agent_active) active =
      find<decltype(flatout_agent_active)>("flatout_agent_active");
  decltype(&flatout_agent_intern) intern =
      find<decltype(flatout_agent_intern)>("flatout_agent_intern");
  decltype(&flatout_agent_slice) slice = find<decltype(flatout_agent_slice)>("flatout_agent_slice");
  decltype(&flatout_agent_hook) hook = find<decltype(flatout_agent_hook)>("flatout_agent_hook");
  decltype(&flatout_agent_info) info = find<decltype(flatout_agent_info)>("flatout_agent_info");
};

struct Received {
  flatout_packet header;
  std::string payload;
  struct flatout_slice slice() const {  // marker.h has a function of that name
    struct flatout_slice s {};
    std::memcpy(&s, payload.data(), std::min(sizeof s, payload.size()));
    return s;
  }
};

struct Peer {
  int fd = -1;
  bool closed = false;
  flatout_hello hello{};
  void* memory = nullptr;
  flatout_ring_reader reader{};
};

class Recorder {
 public:
  size_t ring_bytes = 64 << 10;  // small: under a sanitizer, clearing it takes time
  uint32_t accepted = 1;
  bool sealed = true;
  bool answers = true;    // at once; else after the first packet could have been sent
  bool hangs_up = false;  // right after Config
  std::vector<std::unique_ptr<Peer>> peers;
  std::vector<Received> packets;

  Recorder() : name_("flatout-agent-test-" + std::to_string(getpid())) {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::memcpy(address.sun_path + 1, name_.data(), name_.size());
    listener_ = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    const auto size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name_.size());
    EXPECT_EQ(bind(listener_, reinterpret_cast<sockaddr*>(&address), size), 0);
    EXPECT_EQ(listen(listener_, 64), 0);
  }
  ~Recorder() {
    for (auto& peer : peers) {
      close(peer->fd);
      if (peer->memory != nullptr) munmap(peer->memory, ring_bytes);
    }
    close(listener_);
  }
  Recorder(const Recorder&) = delete;
  Recorder& operator=(const Recorder&) = delete;

  /// Runs `job` in a child and listens until it and all that it started have ended.
  int run(const std::function<void(const Agent&)>& job) {
    const pid_t pid = fork();
    if (pid == 0) {
      setenv("FLATOUT_SOCKET", name_.c_str(), 1);
      setenv("FLATOUT_AGENT", kAgent.c_str(), 1);
      close(listener_);
      const Agent agent;
      job(agent);
      _exit(testing::Test::HasFailure() ? 1 : 0);
    }
    int status = -1;
    bool ended = false;
    for (int idle = 0; idle < 3000 && !(ended && all_closed()); ++idle) {
      listen_once();
      if (!ended) ended = waitpid(pid, &status, WNOHANG) == pid;
    }
    drain();
    return status;
  }
  std::vector<Received> of(uint16_t type) const {
    std::vector<Received> found;
    for (const Received& p : packets) {
      if (p.header.type == type) found.push_back(p);
    }
    return found;
  }
  uint64_t dropped() const {
    uint64_t sum = 0;
    for (const auto& peer : peers) sum += flatout_ring_dropped(peer->reader.ring);
    return sum;
  }

 private:
  bool all_closed() const {
    for (const auto& peer : peers) {
      if (!peer->closed) return false;
    }
    return true;
  }
  void listen_once() {
    std::vector<pollfd> fds{{listener_, POLLIN, 0}};
    for (const auto& peer : peers) {
      if (!peer->closed) fds.push_back({peer->fd, POLLIN, 0});
    }
    poll(fds.data(), fds.size(), 10);
    if ((fds[0].revents & POLLIN) != 0) greet(accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC));
    drain();
    for (auto& peer : peers) {
      char byte = 0;
      if (!peer->closed) peer->closed = recv(peer->fd, &byte, 1, MSG_DONTWAIT) == 0;
      if (peer->memory == nullptr && !answers && !peer->closed) configure(*peer);
    }
  }
  void greet(int fd) {
    auto peer = std::make_unique<Peer>();
    peer->fd = fd;
    EXPECT_EQ(recv(fd, &peer->hello, sizeof peer->hello, 0), ssize_t{sizeof peer->hello});
    if (answers) configure(*peer);
    peers.push_back(std::move(peer));
  }
  void configure(Peer& peer) {
    const int memfd = memfd_create("ring", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    EXPECT_EQ(ftruncate(memfd, static_cast<off_t>(ring_bytes)), 0);
    peer.memory = mmap(nullptr, ring_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, memfd, 0);
    EXPECT_TRUE(flatout_ring_init(peer.memory, ring_bytes));
    EXPECT_TRUE(flatout_ring_reader_open(&peer.reader, peer.memory, ring_bytes));
    if (sealed) fcntl(memfd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW);
    const flatout_config config{FLATOUT_WIRE_MAGIC, FLATOUT_WIRE_VERSION, accepted,
                                FLATOUT_CATEGORY_ALL, ring_bytes};
    iovec part{const_cast<flatout_config*>(&config), sizeof config};
    alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    message.msg_control = control;
    message.msg_controllen = sizeof control;
    cmsghdr* rights = CMSG_FIRSTHDR(&message);
    rights->cmsg_level = SOL_SOCKET;
    rights->cmsg_type = SCM_RIGHTS;
    rights->cmsg_len = CMSG_LEN(sizeof(int));
    std::memcpy(CMSG_DATA(rights), &memfd, sizeof memfd);
    sendmsg(peer.fd, &message, MSG_NOSIGNAL);
    close(memfd);
    if (hangs_up) {
      shutdown(peer.fd, SHUT_RDWR);
      peer.closed = true;
    }
  }
  void drain() {
    std::vector<char> buffer(FLATOUT_RING_MAX_PACKET);
    for (auto& peer : peers) {
      if (peer->memory == nullptr) continue;
      long size = 0;
      while ((size = flatout_ring_read(&peer->reader, buffer.data(), buffer.size())) > 0) {
        Received r{};
        std::memcpy(&r.header, buffer.data(), sizeof r.header);
        r.payload.assign(buffer.data() + sizeof r.header,
                         static_cast<size_t>(size) - sizeof r.header);
        packets.push_back(r);
      }
      EXPECT_EQ(size, 0);
    }
  }

  std::string name_;
  int listener_ = -1;
};

TEST(Agent, SendsSlicesWithTheirNamesAndFacts) {
  Recorder recorder;
  const int status = recorder.run([](const Agent& agent) {
    ASSERT_EQ(start_and_wait(agent, FLATOUT_AGENT_PYTHON), 2);
    EXPECT_EQ(agent.start(FLATOUT_AGENT_PYTHON), 1);
    const uint32_t name = agent.intern("load");
    EXPECT_EQ(agent.intern("load"), name);
    EXPECT_EQ(agent.intern(""), 0u);
    agent.slice(FLATOUT_SLICE_FETCH, name, 1000, 3000, 8, 2);
    agent.slice(FLATOUT_SLICE_FETCH, name, 5000, 4000, 8, 3);
    agent.info("torch.version", "2.0");
  });
  EXPECT_EQ(status, 0);
  ASSERT_EQ(recorder.peers.size(), 1u);
  EXPECT_EQ(recorder.peers[0]->hello.kind, uint32_t{FLATOUT_AGENT_PYTHON});
  EXPECT_GT(recorder.peers[0]->hello.start_time_ticks, 0u);
  ASSERT_EQ(recorder.packets.size(), 4u);  // the string once, before its first use
  EXPECT_EQ(recorder.packets[0].header.type, FLATOUT_PACKET_STRING);
  EXPECT_EQ(recorder.packets[0].payload.substr(8, 4), "load");
  const struct flatout_slice slice = recorder.packets[1].slice();
  EXPECT_EQ(slice.kind, uint32_t{FLATOUT_SLICE_FETCH});
  EXPECT_EQ(slice.begin_ns, 1000u);
  EXPECT_EQ(slice.end_ns, 3000u);
  EXPECT_EQ(slice.value, 8);
  EXPECT_EQ(slice.value2, 2);
  EXPECT_LE(recorder.packets[2].slice().begin_ns, recorder.packets[2].slice().end_ns);
  EXPECT_EQ(recorder.packets[3].payload.substr(0, 17), std::string("torch.version\0002.0", 17));
  EXPECT_EQ(recorder.packets[1].header.pid, static_cast<uint32_t>(recorder.peers[0]->hello.pid));
  EXPECT_EQ(recorder.packets[1].header.tid, static_cast<uint32_t>(recorder.peers[0]->hello.pid));
}

TEST(Agent, LosesNothingOfManyThreadsAndForks) {
  constexpr int kChildren = 3, kThreads = 4, kSlices = 1500;
  Recorder recorder;
  recorder.ring_bytes = 1 << 20;  // for all of a process, should the recorder sleep meanwhile
  const auto work = [](const Agent& agent) {
    std::vector<std::thread> threads;
    threads.reserve(kThreads);
    for (int t = 0; t < kThreads; ++t) {
      threads.emplace_back([&agent, t] {
        const uint32_t name = agent.intern(("thread " + std::to_string(t)).c_str());
        for (int i = 1; i <= kSlices; ++i) agent.slice(FLATOUT_SLICE_PHASE, name, 1, 2, i, t);
      });
    }
    for (auto& t : threads) t.join();
  };
  const int status = recorder.run([&](const Agent& agent) {
    ASSERT_EQ(start_and_wait(agent, FLATOUT_AGENT_NATIVE), 2);
    std::vector<pid_t> children;
    for (int c = 0; c < kChildren; ++c) {
      const pid_t pid = fork();
      if (pid == 0) {
        agent.slice(FLATOUT_SLICE_GC, 0, 1, 2, 0, 0);  // alone not worth a connection: lost
        start_and_wait(agent, FLATOUT_AGENT_NATIVE);
        work(agent);
        _exit(0);
      }
      children.push_back(pid);
    }
    work(agent);
    for (const pid_t pid : children) waitpid(pid, nullptr, 0);
  });
  EXPECT_EQ(status, 0);
  EXPECT_EQ(recorder.peers.size(), size_t{kChildren + 1});
  EXPECT_EQ(recorder.dropped(), 0u);
  std::map<uint32_t, int64_t> sum, count;
  std::map<std::pair<uint32_t, uint32_t>, int64_t> last;  // order within a thread
  for (const Received& p : recorder.of(FLATOUT_PACKET_SLICE)) {
    ASSERT_EQ(p.slice().kind, uint32_t{FLATOUT_SLICE_PHASE});
    sum[p.header.pid] += p.slice().value;
    ++count[p.header.pid];
    int64_t& before = last[{p.header.pid, p.header.tid}];
    EXPECT_EQ(p.slice().value, before + 1);
    before = p.slice().value;
  }
  EXPECT_EQ(sum.size(), size_t{kChildren + 1});
  EXPECT_EQ(last.size(), size_t{kChildren + 1} * kThreads);
  for (const auto& [pid, total] : sum) {
    EXPECT_EQ(total, int64_t{kThreads} * kSlices * (kSlices + 1) / 2);
    EXPECT_EQ(count[pid], int64_t{kThreads} * kSlices);
  }
}

// A thread that trains may end and another begin with the same pthread_self().
TEST(Agent, HoldsTheSlicesOfOneTrainingThreadAfterTheOther) {
  constexpr int kThreads = 6, kSteps = 5;
  Recorder recorder;
  const int status = recorder.run([&](const Agent& agent) {
    ASSERT_EQ(start_and_wait(agent, FLATOUT_AGENT_PYTHON), 2);
    for (int t = 0; t < kThreads; ++t) {
      std::thread([&] {
        const auto me = static_cast<int64_t>(gettid());
        for (int i = 0; i < kSteps; ++i) {
          agent.hook(FLATOUT_SLICE_FORWARD, 0, 1, 2, me, 0);
          agent.hook(FLATOUT_SLICE_OPTIMIZER, 0, 3, 4, me, 0);
        }
        agent.hook(FLATOUT_SLICE_INPUT_WAIT, 0, 5, 6, me, 0);  // not followed by a step
      }).join();
    }
  });
  EXPECT_EQ(status, 0);
  int slices = 0;
  for (const Received& r : recorder.packets) {
    if (r.header.type != FLATOUT_PACKET_SLICE) continue;
    ++slices;
    EXPECT_EQ(r.slice().value, static_cast<int64_t>(r.header.tid));
  }
  EXPECT_EQ(slices, kThreads * (2 * kSteps + 1));
}

TEST(Clock, IsTheKernels) {
  clock_adjust();
  for (int i = 0; i < 4; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(25));
    clock_adjust();
  }
  // A slewed clock may run away by a few microseconds in that time, the wrong one by far more.
  constexpr uint64_t kSlack = 50'000;
  for (int i = 0; i < 200; ++i) {
    const uint64_t before = kernel_ns(), ours = now_ns(), after = kernel_ns();
    ASSERT_GE(ours + kSlack, before);
    ASSERT_LE(ours, after + kSlack);
    if (i % 50 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
}

TEST(Agent, SendsItsStringsAnewAfterAFork) {
  Recorder recorder;
  EXPECT_EQ(recorder.run([](const Agent& agent) {
    start_and_wait(agent, FLATOUT_AGENT_PYTHON);
    const uint32_t name = agent.intern("kept");
    agent.slice(FLATOUT_SLICE_PHASE, name, 1, 2, 0, 0);
    const pid_t pid = fork();
    if (pid == 0) {
      start_and_wait(agent, FLATOUT_AGENT_PYTHON);
      agent.slice(FLATOUT_SLICE_PHASE, name, 1, 2, 0, 0);
      _exit(0);
    }
    waitpid(pid, nullptr, 0);
  }),
            0);
  ASSERT_EQ(recorder.peers.size(), 2u);
  EXPECT_NE(recorder.peers[0]->hello.pid, recorder.peers[1]->hello.pid);
  EXPECT_EQ(recorder.of(FLATOUT_PACKET_STRING).size(), 2u);
  EXPECT_EQ(recorder.of(FLATOUT_PACKET_SLICE).size(), 2u);
}

TEST(Agent, IsQuietWhereNobodyListens) {
  const pid_t pid = fork();
  if (pid == 0) {
    setenv("FLATOUT_SOCKET", "flatout-nobody-is-here", 1);
    const Agent agent;
    const bool quiet = agent.start(FLATOUT_AGENT_PYTHON) == 0 && agent.active() == 0;
    agent.slice(FLATOUT_SLICE_PHASE, agent.intern("x"), 1, 2, 0, 0);
    agent.info("a", "b");
    _exit(quiet ? 0 : 1);
  }
  int status = -1;
  waitpid(pid, &status, 0);
  EXPECT_EQ(status, 0);
}

TEST(Agent, IsQuietWhenRefused) {
  Recorder recorder;
  recorder.accepted = 0;
  EXPECT_EQ(recorder.run([](const Agent& agent) {
    EXPECT_EQ(start_and_wait(agent, FLATOUT_AGENT_PYTHON), 0);
    agent.slice(FLATOUT_SLICE_PHASE, 0, 1, 2, 0, 0);
  }),
            0);
  EXPECT_TRUE(recorder.packets.empty());
}

TEST(Agent, RefusesARingThatCouldShrinkUnderIt) {
  Recorder recorder;
  recorder.sealed = false;
  EXPECT_EQ(recorder.run([](const Agent& agent) {
    EXPECT_EQ(start_and_wait(agent, FLATOUT_AGENT_PYTHON), 0);
  }),
            0);
}

TEST(Agent, WritesOnceALateAnswerHasCome) {
  Recorder recorder;
  recorder.answers = false;
  EXPECT_EQ(recorder.run([](const Agent& agent) {
    agent.start(FLATOUT_AGENT_PYTHON);
    for (int i = 0; i < 100000 && agent.active() != 0; ++i)
      agent.slice(FLATOUT_SLICE_PHASE, 0, 1, 2, i, 0);
  }),
            0);
  EXPECT_FALSE(recorder.of(FLATOUT_PACKET_SLICE).empty());
}

TEST(Agent, StopsWhenTheRecorderHangsUp) {
  Recorder recorder;
  recorder.hangs_up = true;
  EXPECT_EQ(recorder.run([](const Agent& agent) {
    agent.start(FLATOUT_AGENT_PYTHON);
    const uint64_t begin = flatout_now();
    while (agent.active() != 0 && flatout_now() - begin < 20000000000u)
      agent.hook(FLATOUT_SLICE_PHASE, 0, 1, flatout_now(), 0, 0);
    EXPECT_EQ(agent.active(), 0);
    agent.hook(FLATOUT_SLICE_PHASE, 0, 1, flatout_now(), 0, 0);
  }),
            0);
}

TEST(Agent, ReportsWhatItCosts) {
  Recorder recorder;
  EXPECT_EQ(recorder.run([](const Agent& agent) {
    start_and_wait(agent, FLATOUT_AGENT_PYTHON);
    for (int i = 0; i < 5; ++i) agent.hook(FLATOUT_SLICE_OPTIMIZER, 0, 1, flatout_now(), 0, 0);
    exit(0);  // sends the rest
  }),
            0);
  const auto costs = recorder.of(FLATOUT_PACKET_COST);
  ASSERT_EQ(costs.size(), 1u);
  flatout_cost cost{};
  std::memcpy(&cost, costs[0].payload.data(), sizeof cost);
  EXPECT_EQ(cost.hooks, 5u);
  EXPECT_EQ(cost.steps, 5u);
  EXPECT_GE(cost.sum_ns, cost.max_ns);
}

TEST(Interruption, IsSeenWhereTheProcessorWasTakenAndOnlyThere) {
  interruption_find();
  if (interruption_offset == 0) GTEST_SKIP() << "no rseq(2) here";
  int seen = 0, unseen = 0;
  for (int i = 0; i < 20; ++i) {
    interruption_watch();
    const timespec nap{0, 100000};
    nanosleep(&nap, nullptr);
    seen += interruption_seen();
    interruption_watch();
    unseen += interruption_seen() == 0 ? 1 : 0;
  }
  EXPECT_EQ(seen, 20);
  EXPECT_GT(unseen, 0);  // a busy machine may take it here, too, but not each time
}

TEST(Agent, LeavesTheJobsDescriptorsAlone) {
  Recorder recorder;
  EXPECT_EQ(recorder.run([](const Agent& agent) {
    const int before = open("/dev/null", O_RDONLY);
    agent.start(FLATOUT_AGENT_PYTHON);
    const int after = open("/dev/null", O_RDONLY);
    EXPECT_EQ(after, before + 1);                      // ours are out of the way
    for (int fd = before; fd < 1024; ++fd) close(fd);  // a job that becomes a daemon
    for (int fd = before; fd < 300; ++fd) EXPECT_EQ(open("/dev/null", O_RDONLY), fd);
    const pid_t pid = fork();  // must not close what has our old number now
    if (pid == 0) {
      bool all = true;
      for (int fd = before; fd < 300; ++fd) all = all && fcntl(fd, F_GETFD) >= 0;
      _exit(all ? 0 : 1);
    }
    int status = -1;
    waitpid(pid, &status, 0);
    EXPECT_EQ(status, 0);
  }),
            0);
}

TEST(Marker, WorksFromCpp) {
  Recorder recorder;
  EXPECT_EQ(recorder.run([](const Agent&) {
    flatout_phase("mix", flatout_now());
    flatout_step(0);
    flatout_step(1);
    flatout_counter("loss", 0.25);
  }),
            0);
  ASSERT_EQ(recorder.peers.size(), 1u);
  EXPECT_EQ(recorder.peers[0]->hello.kind, uint32_t{FLATOUT_AGENT_NATIVE});
  const auto slices = recorder.of(FLATOUT_PACKET_SLICE);
  ASSERT_EQ(slices.size(), 3u);
  EXPECT_EQ(slices[1].slice().end_ns, slices[2].slice().begin_ns);  // a step begins where one ended
  EXPECT_EQ(slices[2].slice().value, 1);
  EXPECT_EQ(recorder.of(FLATOUT_PACKET_COUNTER).size(), 1u);
}

TEST(Marker, WorksFromC) {
  Recorder recorder;
  EXPECT_EQ(recorder.run([](const Agent&) {
    execl(FLATOUT_MARKER_JOB, "marker_job", "5", nullptr);
    _exit(9);
  }),
            0);
  EXPECT_EQ(recorder.of(FLATOUT_PACKET_SLICE).size(), 20u);
  EXPECT_EQ(recorder.of(FLATOUT_PACKET_COUNTER).size(), 5u);
}

TEST(Marker, DoesNothingWithoutFlatout) {
  const pid_t pid = fork();
  if (pid == 0) {
    unsetenv("FLATOUT_AGENT");
    unsetenv("FLATOUT_SOCKET");
    execl(FLATOUT_MARKER_JOB, "marker_job", nullptr);
    _exit(9);
  }
  int status = -1;
  waitpid(pid, &status, 0);
  EXPECT_EQ(status, 0);
}

// ---- MPI ----

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)  // whose libraries come first

TEST(Mpi, WhatIsWaitedInTheLibraryIsTimedAndTheRankIsTold) {
  Recorder recorder;
  EXPECT_EQ(recorder.run([](const Agent&) {
    setenv("LD_PRELOAD", FLATOUT_BUILD_DIR "/libflatout_mpi.so", 1);
    execl(FLATOUT_MPI_JOB, "mpi_job", nullptr);
    _exit(9);
  }),
            0)
      << "each argument and result is handed on";
  std::map<uint32_t, std::string> names;
  for (const Received& p : recorder.of(FLATOUT_PACKET_STRING)) {
    flatout_string string{};
    std::memcpy(&string, p.payload.data(), sizeof string);
    names[string.id] = p.payload.substr(sizeof string, string.size);
  }
  std::map<std::string, int> calls;
  for (const Received& p : recorder.of(FLATOUT_PACKET_SLICE)) {
    EXPECT_EQ(p.slice().kind, FLATOUT_SLICE_COMMUNICATION);
    EXPECT_GE(p.slice().end_ns - p.slice().begin_ns, 1'000'000u);
    ++calls[names[p.slice().name]];
  }
  const std::map<std::string, int> expected = {{"MPI_Barrier", 1},
                                               {"MPI_Allreduce", 3},
                                               {"MPI_Sendrecv", 1},
                                               {"MPI_Probe", 1},
                                               {"MPI_Wait", 1}};
  EXPECT_EQ(calls, expected);
  std::map<std::string, std::string> facts;
  for (const Received& p : recorder.of(FLATOUT_PACKET_INFO)) {
    const size_t end = p.payload.find('\0');
    facts[p.payload.substr(0, end)] = p.payload.substr(end + 1).c_str();
  }
  EXPECT_EQ(facts["dist.rank"], "3");
  EXPECT_EQ(facts["dist.world_size"], "8");
}

TEST(Mpi, WithoutFlatoutCallsAreHandedOn) {
  const pid_t pid = fork();
  if (pid == 0) {
    unsetenv("FLATOUT_AGENT");
    unsetenv("FLATOUT_SOCKET");
    setenv("LD_PRELOAD", FLATOUT_BUILD_DIR "/libflatout_mpi.so", 1);
    execl(FLATOUT_MPI_JOB, "mpi_job", nullptr);
    _exit(9);
  }
  int status = -1;
  waitpid(pid, &status, 0);
  EXPECT_EQ(status, 0);
}

#endif

}  // namespace
