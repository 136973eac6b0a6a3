// The ring between agents and the recorder: order, wrap-round, drops, dead and lying writers.
#include "wire/ring.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <functional>
#include <string>
#include <thread>
#include <vector>

namespace {

struct Payload {
  uint32_t writer;
  uint32_t number;
};

/// A ring in memory that child processes share.
class Ring {
 public:
  explicit Ring(size_t bytes = 65536)
      : bytes_(bytes),
        memory_(mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0)) {
    EXPECT_TRUE(flatout_ring_init(memory_, bytes));
    ring = flatout_ring_open(memory_, bytes);
    EXPECT_TRUE(flatout_ring_reader_open(&reader, memory_, bytes));
  }
  ~Ring() { munmap(memory_, bytes_); }
  Ring(const Ring&) = delete;
  Ring& operator=(const Ring&) = delete;

  bool write(uint32_t writer, uint32_t number, std::string_view tail = {}) {
    flatout_packet header{};
    header.type = FLATOUT_PACKET_INFO;
    header.pid = writer;
    const Payload payload{writer, number};
    return flatout_ring_write(ring, &header, &payload, sizeof payload, tail.data(), tail.size());
  }
  long read() { return flatout_ring_read(&reader, buffer.data(), buffer.size()); }
  Payload payload() const {
    Payload p{};
    std::memcpy(&p, buffer.data() + sizeof(flatout_packet), sizeof p);
    return p;
  }
  /// 64-bit words of the shared header and data, to play a dead or lying writer.
  uint64_t* words() { return static_cast<uint64_t*>(memory_); }

  static constexpr size_t kHead = 8, kTail = 16, kData = 24;  // word indexes of the header
  flatout_ring* ring = nullptr;
  flatout_ring_reader reader{};
  std::vector<char> buffer = std::vector<char>(FLATOUT_RING_MAX_PACKET);

 private:
  size_t bytes_;
  void* memory_;
};

TEST(Ring, GivesBackWhatWasWritten) {
  Ring ring;
  flatout_packet header{};
  header.type = FLATOUT_PACKET_SLICE;
  header.flags = 5;
  header.pid = 11;
  header.tid = 12;
  header.time_ns = 13;
  ASSERT_TRUE(flatout_ring_write(ring.ring, &header, "abc", 3, "defgh", 5));
  ASSERT_EQ(ring.read(), 32);
  flatout_packet got{};
  std::memcpy(&got, ring.buffer.data(), sizeof got);
  EXPECT_EQ(got.size, 32u);
  EXPECT_EQ(got.type, FLATOUT_PACKET_SLICE);
  EXPECT_EQ(got.flags, 5);
  EXPECT_EQ(got.pid, 11u);
  EXPECT_EQ(got.tid, 12u);
  EXPECT_EQ(got.time_ns, 13u);
  EXPECT_EQ(std::string(ring.buffer.data() + sizeof got, 8), "abcdefgh");
  EXPECT_EQ(ring.read(), 0);
}

TEST(Ring, KeepsOrderOverManyLaps) {
  Ring ring(8192);
  uint32_t expected = 0;
  for (uint32_t i = 0; i < 20000; ++i) {
    ASSERT_TRUE(ring.write(1, i, std::string(i % 97, 'x')));
    if (i % 3 == 0) continue;
    while (ring.read() > 0) ASSERT_EQ(ring.payload().number, expected++);
  }
  while (ring.read() > 0) ASSERT_EQ(ring.payload().number, expected++);
  EXPECT_EQ(expected, 20000u);
  EXPECT_EQ(flatout_ring_dropped(ring.ring), 0u);
}

TEST(Ring, GivesBackPacketsThatWereWrittenAtOnceOneByOneOverManyLaps) {
  Ring ring(8192);
  flatout_packet header{};
  header.type = FLATOUT_PACKET_SLICE;
  header.tid = 12;
  uint64_t expected = 0, next = 0;
  for (uint32_t round = 0; round < 5000; ++round) {
    std::vector<uint64_t> payloads(round % 9);
    for (uint64_t& payload : payloads) payload = next++;
    ASSERT_TRUE(flatout_ring_write_many(ring.ring, &header, payloads.data(), sizeof(uint64_t),
                                        static_cast<uint32_t>(payloads.size())));
    while (ring.read() > 0) {
      flatout_packet got{};
      std::memcpy(&got, ring.buffer.data(), sizeof got);
      ASSERT_EQ(got.size, 32u);
      ASSERT_EQ(got.type, FLATOUT_PACKET_SLICE);
      ASSERT_EQ(got.tid, 12u);
      uint64_t payload = 0;
      std::memcpy(&payload, ring.buffer.data() + sizeof got, sizeof payload);
      ASSERT_EQ(payload, expected++);
    }
    ASSERT_EQ(expected, next);
  }
  const std::vector<uint64_t> too_many(200);
  EXPECT_FALSE(flatout_ring_write_many(ring.ring, &header, too_many.data(), sizeof(uint64_t), 200));
  EXPECT_EQ(flatout_ring_dropped(ring.ring), 200u);
}

TEST(Ring, CountsWhatItDropsAndGoesOnOnceThereIsRoom) {
  Ring ring(8192);
  uint64_t written = 0;
  while (ring.write(1, static_cast<uint32_t>(written))) ++written;
  EXPECT_FALSE(ring.write(1, 0));
  EXPECT_EQ(flatout_ring_dropped(ring.ring), 2u);
  EXPECT_EQ(written, 4096u / 32);
  EXPECT_GT(ring.read(), 0);
  EXPECT_TRUE(ring.write(1, 77));
}

TEST(Ring, RefusesAPacketThatIsTooLarge) {
  Ring ring(8192);
  EXPECT_FALSE(ring.write(1, 0, std::string(3000, 'x')));
  EXPECT_FALSE(ring.write(1, 0, std::string(FLATOUT_RING_MAX_PACKET, 'x')));
  EXPECT_EQ(ring.read(), 0);
  EXPECT_EQ(flatout_ring_dropped(ring.ring), 2u);
}

TEST(Ring, RefusesMemoryThatIsNoRing) {
  std::vector<uint64_t> memory(4096);
  EXPECT_EQ(flatout_ring_open(memory.data(), memory.size() * 8), nullptr);
  EXPECT_FALSE(flatout_ring_init(memory.data(), 1000));
  ASSERT_TRUE(flatout_ring_init(memory.data(), memory.size() * 8));
  EXPECT_EQ(flatout_ring_open(memory.data(), 8192), nullptr);  // says more than there is
  flatout_ring_reader reader{};
  EXPECT_FALSE(flatout_ring_reader_open(&reader, memory.data(), 8192));
}

TEST(Ring, DoesNotReadAPacketBeforeItIsWhole) {
  Ring ring;
  ring.words()[Ring::kHead] = 48;  // reserved, nothing written
  EXPECT_EQ(ring.read(), 0);
  ring.words()[Ring::kData] = 48 | 1;  // being filled
  EXPECT_EQ(ring.read(), 0);
}

TEST(Ring, StepsOverWhatADeadWriterLeft) {
  Ring ring;
  ring.words()[Ring::kHead] = 48;  // died right after the reservation
  ASSERT_TRUE(ring.write(2, 5));
  ring.words()[Ring::kHead] += 64;  // died while filling
  ring.words()[Ring::kData + (48 + 32) / 8] = 64 | 1 | uint64_t{FLATOUT_PACKET_INFO} << 32;
  ASSERT_TRUE(ring.write(2, 6));
  EXPECT_EQ(ring.read(), 0);
  EXPECT_TRUE(flatout_ring_skip(&ring.reader));
  ASSERT_GT(ring.read(), 0);
  EXPECT_EQ(ring.payload().number, 5u);
  EXPECT_EQ(ring.read(), 0);
  EXPECT_TRUE(flatout_ring_skip(&ring.reader));
  ASSERT_GT(ring.read(), 0);
  EXPECT_EQ(ring.payload().number, 6u);
  EXPECT_EQ(ring.read(), 0);
  EXPECT_FALSE(flatout_ring_skip(&ring.reader));
}

TEST(Ring, StepsOverADeadWriterAtTheEnd) {
  Ring ring;
  ring.words()[Ring::kHead] = 480;
  EXPECT_TRUE(flatout_ring_skip(&ring.reader));
  EXPECT_FALSE(flatout_ring_skip(&ring.reader));
  EXPECT_TRUE(ring.write(1, 9));
  ASSERT_GT(ring.read(), 0);
  EXPECT_EQ(ring.payload().number, 9u);
}

TEST(Ring, GivesUpOnALyingWriter) {
  for (const uint64_t size : {uint64_t{4}, uint64_t{8}, uint64_t{1} << 20, uint64_t{0xFFFFFFF8}}) {
    Ring ring;
    ASSERT_TRUE(ring.write(1, 1));
    ring.words()[Ring::kData] = size | uint64_t{FLATOUT_PACKET_INFO} << 32;
    EXPECT_EQ(ring.read(), -1) << size;
  }
  Ring ring;
  ring.words()[Ring::kHead] = uint64_t{1} << 40;
  EXPECT_EQ(ring.read(), -1);
  EXPECT_FALSE(flatout_ring_skip(&ring.reader));
}

TEST(Ring, ReaderKeepsItsBoundsWhenTheHeaderChanges) {
  Ring ring;
  ring.words()[1] = uint64_t{1} << 40;  // data_size
  ring.words()[Ring::kTail] = uint64_t{1} << 39;
  ring.words()[Ring::kHead] = 65536;
  EXPECT_EQ(ring.read(), -1);
}

/// Reads until `done` says that all writers have ended and nothing is left; checks order by writer.
uint64_t drain(Ring& ring, size_t writers, const std::function<bool()>& done) {
  std::vector<uint32_t> next(writers, 0);
  uint64_t read = 0;
  for (;;) {
    const bool ended = done();
    long size = 0;
    while ((size = ring.read()) > 0) {
      const Payload p = ring.payload();
      EXPECT_LT(p.writer, writers);
      EXPECT_GE(p.number, next[p.writer]);
      next[p.writer] = p.number + 1;
      ++read;
    }
    EXPECT_EQ(size, 0);
    if (ended) return read;
    std::this_thread::yield();
  }
}

TEST(Ring, EveryPacketOfManyThreadsIsReadOrCounted) {
  constexpr uint32_t kWriters = 4, kPackets = 20000;
  Ring ring(16384);
  std::atomic<uint32_t> running{kWriters};
  std::vector<std::thread> threads;
  for (uint32_t w = 0; w < kWriters; ++w) {
    threads.emplace_back([&, w] {
      for (uint32_t i = 0; i < kPackets; ++i)
        ring.write(w, i, std::string_view("abcdefghijklm", i % 13));
      running.fetch_sub(1);
    });
  }
  const uint64_t read = drain(ring, kWriters, [&] { return running.load() == 0; });
  for (auto& t : threads) t.join();
  EXPECT_EQ(read + flatout_ring_dropped(ring.ring), uint64_t{kWriters} * kPackets);
  EXPECT_GT(read, 0u);
}

TEST(Ring, EveryPacketOfManyProcessesIsReadOrCounted) {
  constexpr uint32_t kWriters = 3, kPackets = 10000;
  Ring ring(16384);
  std::vector<pid_t> children;
  for (uint32_t w = 0; w < kWriters; ++w) {
    const pid_t pid = fork();
    ASSERT_GE(pid, 0);
    if (pid == 0) {
      for (uint32_t i = 0; i < kPackets; ++i) ring.write(w, i);
      _exit(0);
    }
    children.push_back(pid);
  }
  size_t ended = 0;
  const uint64_t read = drain(ring, kWriters, [&] {
    while (ended < children.size() && waitpid(children[ended], nullptr, WNOHANG) > 0) ++ended;
    return ended == children.size();
  });
  EXPECT_EQ(read + flatout_ring_dropped(ring.ring), uint64_t{kWriters} * kPackets);
}

TEST(Ring, SurvivesAWriterKilledAtAnyMoment) {
  for (int round = 0; round < 20; ++round) {
    Ring ring(16384);
    const pid_t pid = fork();
    ASSERT_GE(pid, 0);
    if (pid == 0) {
      for (uint32_t i = 0;; ++i) ring.write(0, i, "a packet of some length");
    }
    uint64_t read = 0;
    while (read < 500) {
      long size = ring.read();
      ASSERT_GE(size, 0);
      read += size > 0 ? 1 : 0;
    }
    kill(pid, SIGKILL);
    ASSERT_EQ(waitpid(pid, nullptr, 0), pid);
    do {
      long size = 0;
      while ((size = ring.read()) > 0) {
      }
      ASSERT_EQ(size, 0);
    } while (flatout_ring_skip(&ring.reader));
    EXPECT_TRUE(ring.write(0, 1));
    EXPECT_GT(ring.read(), 0);
  }
}

}  // namespace
