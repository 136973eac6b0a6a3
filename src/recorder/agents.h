// The recorder's side of the protocol with agents in the job: an abstract socket to say hello on,
// a sealed ring of shared memory for each, and the copying of packets out of the rings.
// What agents send is hostile: it is copied first, bounded, and only their own types pass.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/result.h"
#include "recorder/event_loop.h"
#include "recorder/recording.h"
#include "wire/messages.h"
#include "wire/ring.h"

namespace flatout::recorder {

class AgentServer {
 public:
  /// `may_speak(pid)`: whether a process of another user belongs to the job.
  static Result<std::unique_ptr<AgentServer>> open(EventLoop& loop, Recording& recording,
                                                   std::function<bool(int32_t)> may_speak);
  ~AgentServer();
  AgentServer(const AgentServer&) = delete;
  AgentServer& operator=(const AgentServer&) = delete;

  /// Name of the abstract socket, without the leading NUL: FLATOUT_SOCKET.
  const std::string& name() const { return name_; }

  /// Copies what stands in the rings, at most one ring's size of each, and lets go of rings whose
  /// agent has left. Returns how full the fullest ring was (0..1).
  double drain(TimePoint now);

  size_t agents() const { return agents_.size(); }
  /// Agents that ever said hello.
  uint64_t seen() const { return seen_; }
  /// Steps that agents have marked, roughly: how many are there to be judged.
  uint64_t steps() const { return steps_; }
  TimePoint first_step() const { return first_step_; }
  TimePoint last_step() const { return last_step_; }
  /// Time that a step took on average; 0 before some process has made five.
  Nanos usual_step() const;

 private:
  struct Agent {
    int fd = -1;
    int32_t pid = 0;      // as seen from here
    int32_t own_pid = 0;  // as the agent knows it, in its pid namespace
    void* memory = nullptr;
    size_t bytes = 0;
    flatout_ring_reader ring{};  // ring.ring: null before the hello, and when it makes no sense
    uint64_t dropped = 0;
    bool left = false;   // the connection is closed; the ring may still hold packets
    size_t defined = 0;  // bytes of names and facts, which are never thinned
    uint64_t steps = 0;
  };

  AgentServer(EventLoop& loop, Recording& recording, std::function<bool(int32_t)> may_speak)
      : loop_(loop), recording_(recording), may_speak_(std::move(may_speak)) {}
  Status listen();
  void accept_all();
  void on_message(int fd);
  bool welcome(Agent& agent, const flatout_hello& hello);
  void refuse(int fd);
  double drain_one(Agent& agent, TimePoint now);
  void take(Agent& agent, flatout_packet& header, size_t size, TimePoint now);
  void release(Agent& agent);

  EventLoop& loop_;
  Recording& recording_;
  std::function<bool(int32_t)> may_speak_;
  std::string name_;
  int listener_ = -1;
  bool deaf_ = false;                               // not listening until the next drain()
  std::unordered_map<int, Agent> agents_;           // by connection
  std::vector<uint64_t> buffer_;                    // one packet, aligned
  uint64_t seen_ = 0, steps_ = 0, most_steps_ = 0;  // most of one agent
  TimePoint first_step_{}, last_step_{};
};

}  // namespace flatout::recorder
