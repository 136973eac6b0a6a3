// A job without Python marks its steps. Its reader pauses after each batch, so the steps wait.
//
//   g++ -O2 -std=c++17 -Iinclude examples/marked_steps.cpp -pthread -ldl -o marked_steps
//   flatout run -- ./marked_steps            (Flatout says: stall.idle_wait)
//   flatout run -- ./marked_steps --fixed    (no pause)
#include <flatout/marker.h>

#include <chrono>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <mutex>
#include <thread>
#include <vector>

using Batch = std::vector<float>;

class Queue {
 public:
  void put(Batch batch) {
    std::unique_lock lock(mutex_);
    room_.wait(lock, [&] { return batches_.size() < 4; });
    batches_.push_back(std::move(batch));
    ready_.notify_one();
  }
  Batch get() {
    std::unique_lock lock(mutex_);
    ready_.wait(lock, [&] { return !batches_.empty(); });
    Batch batch = std::move(batches_.front());
    batches_.pop_front();
    room_.notify_one();
    return batch;
  }

 private:
  std::mutex mutex_;
  std::condition_variable ready_, room_;
  std::deque<Batch> batches_;
};

void read_batches(Queue& queue, int count, bool pause) {
  for (int i = 0; i < count; ++i) {
    const uint64_t begin = flatout_now();
    Batch batch(1 << 16, static_cast<float>(i));
    if (pause) std::this_thread::sleep_for(std::chrono::milliseconds(20));
    flatout_slice_values(FLATOUT_FETCH, nullptr, begin, 1, i);
    queue.put(std::move(batch));
  }
}

int main(int argc, char** argv) {
  const bool fixed = argc > 1 && std::strcmp(argv[1], "--fixed") == 0;
  constexpr int kSteps = 500;
  Queue queue;
  std::thread reader(read_batches, std::ref(queue), kSteps, !fixed);
  double weight = 0;
  for (int step = 0; step < kSteps; ++step) {
    uint64_t begin = flatout_now();
    const Batch batch = queue.get();
    flatout_slice(FLATOUT_INPUT_WAIT, nullptr, begin);
    begin = flatout_now();
    for (int pass = 0; pass < 15; ++pass) {
      for (const float x : batch) weight += 1e-9 * (x - weight);
    }
    flatout_slice(FLATOUT_FORWARD, nullptr, begin);
    flatout_step(step);
  }
  reader.join();
  return weight == 1 ? 1 : 0;
}
