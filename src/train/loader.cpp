#include "train/loader.h"

#include <fmt/format.h>
#include <pthread.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <span>

#include "flatout/marker.h"

namespace flatout::train {
namespace {

constexpr size_t kViews = 64;  // of each sample, for Collate::kConcatenation

/// What `batch = concatenate(batch, sample)` in a loop does: every sample copies all before it.
__attribute__((noinline)) void collate_by_concatenation(
    const std::vector<std::vector<float>>& samples, std::vector<float>& all,
    std::vector<float>& spare) {
  all.clear();
  for (const std::vector<float>& sample : samples) {
    spare.resize(all.size() + sample.size());
    if (!all.empty()) std::memcpy(spare.data(), all.data(), all.size() * sizeof(float));
    std::memcpy(spare.data() + all.size(), sample.data(), sample.size() * sizeof(float));
    std::swap(all, spare);
  }
}

}  // namespace

void write_view(const Image& image, const View& view, Random& random, float* x) {
  int dx = (image.side - view.side) / 2;
  int dy = dx;
  float light = 1.0f / 127.5f;
  if (view.augment) {
    dx += static_cast<int>(random.below(5)) - 2;
    dy += static_cast<int>(random.below(5)) - 2;
    light = random.range(0.85f, 1.15f) / 127.5f;
  }
  for (int c = 0; c < view.channels; ++c) {
    for (int y = 0; y < view.side; ++y) {
      const int from_y = std::clamp(y + dy, 0, image.side - 1);
      for (int u = 0; u < view.side; ++u) {
        const int from_x = std::clamp(u + dx, 0, image.side - 1);
        const uint8_t* rgb =
            image.rgb.data() + static_cast<size_t>(from_y * image.side + from_x) * 3;
        const int value = view.channels == 1 ? (rgb[0] + rgb[1] + rgb[2]) / 3 : rgb[c];
        *x++ = static_cast<float>(value) * light - 1.0f;
      }
    }
  }
}

Loader::Loader(const Source& source, LoaderOptions options)
    : source_(source), options_(std::move(options)), taken_(options_.first) {
  options_.threads = std::max(options_.threads, 1);
  queues_ = std::vector<Queue>(static_cast<size_t>(options_.threads));
  for (size_t i = 0; i < queues_.size(); ++i) {
    threads_.emplace_back([this, i] { serve(i); });
    pthread_setname_np(threads_.back().native_handle(), fmt::format("loader-{}", i).c_str());
  }
}

Loader::~Loader() {
  stop_ = true;
  for (Queue& q : queues_) {
    const std::lock_guard lock(q.mutex);
    q.not_full.notify_all();
  }
  for (std::thread& t : threads_) t.join();
}

std::vector<size_t> Loader::samples_of(int64_t batch) const {
  const size_t per_epoch =
      std::max<size_t>(options_.samples / static_cast<size_t>(options_.batch), 1);
  const uint64_t epoch = static_cast<uint64_t>(batch) / per_epoch;
  std::vector<size_t> order(options_.samples);
  std::iota(order.begin(), order.end(), size_t{0});
  Random random(options_.seed, epoch, 1);
  for (size_t i = order.size(); options_.shuffle && i > 1; --i) {
    std::swap(order[i - 1], order[random.below(static_cast<uint32_t>(i))]);
  }
  const size_t first =
      static_cast<uint64_t>(batch) % per_epoch * static_cast<size_t>(options_.batch);
  std::vector<size_t> out;
  for (size_t i = 0; i < static_cast<size_t>(options_.batch); ++i) {
    out.push_back(order[(first + i) % order.size()]);
  }
  return out;
}

Result<Batch> Loader::make(int64_t index) const {
  Batch batch;
  batch.index = index;
  const std::vector<size_t> all_ids = samples_of(index);
  const size_t share = all_ids.size() / static_cast<size_t>(options_.parts);
  const std::span<const size_t> ids(all_ids.data() + share * static_cast<size_t>(options_.part),
                                    share);
  const size_t pixels = static_cast<size_t>(options_.view.channels) *
                        static_cast<size_t>(options_.view.side * options_.view.side);
  const bool concatenate = options_.collate == Collate::kConcatenation;
  std::vector<std::vector<float>> samples;
  batch.x.resize(ids.size() * pixels);
  for (size_t i = 0; i < ids.size(); ++i) {
    FLATOUT_TRY(const Image image, source_.read(ids[i]));
    Random random(options_.seed, static_cast<uint64_t>(index), ids[i] + 2);
    float* x = batch.x.data() + i * pixels;
    write_view(image, options_.view, random, x);
    batch.labels.push_back(image.label);
    if (concatenate) {  // the same view many times is enough to be copied
      samples.emplace_back(kViews * pixels);
      for (size_t v = 0; v < kViews; ++v) {
        std::copy(x, x + pixels, samples.back().begin() + static_cast<ptrdiff_t>(v * pixels));
      }
    }
  }
  if (concatenate) {
    thread_local std::vector<float> all;
    thread_local std::vector<float> spare;
    const uint64_t begin = flatout_now();
    collate_by_concatenation(samples, all, spare);
    flatout_slice_values(FLATOUT_COLLATE, nullptr, begin,
                         static_cast<int64_t>(all.size() * sizeof(float)), 0);
    for (size_t i = 0; i < ids.size(); ++i) {  // training takes the first view
      const auto from = all.begin() + static_cast<std::ptrdiff_t>(i * kViews * pixels);
      std::copy(from, from + static_cast<std::ptrdiff_t>(pixels),
                batch.x.begin() + static_cast<std::ptrdiff_t>(i * pixels));
    }
  }
  return batch;
}

void Loader::serve(size_t thread) {
  Queue& queue = queues_[thread];
  // The first batch from options_.first on that is this thread's.
  const int64_t threads = options_.threads;
  const int64_t own = static_cast<int64_t>(thread);
  const int64_t begin_at = options_.first + (own - options_.first % threads + threads) % threads;
  for (int64_t b = begin_at; b < options_.batches && !stop_; b += threads) {
    const uint64_t begin = flatout_now();
    if (options_.before_batch) options_.before_batch(b);
    Result<Batch> batch = make(b);
    flatout_slice_values(FLATOUT_FETCH, nullptr, begin, options_.batch / options_.parts, b);
    std::unique_lock lock(queue.mutex);
    queue.not_full.wait(lock, [&] { return queue.batches.size() < options_.depth || stop_; });
    if (stop_) return;
    queue.batches.push_back(std::move(batch));
    queue.not_empty.notify_one();
  }
}

__attribute__((noinline)) Result<Batch> Loader::next() {
  Queue& queue = queues_[static_cast<size_t>(taken_++ % options_.threads)];
  std::unique_lock lock(queue.mutex);
  queue.not_empty.wait(lock, [&] { return !queue.batches.empty(); });
  Result<Batch> batch = std::move(queue.batches.front());
  queue.batches.pop_front();
  queue.not_full.notify_one();
  return batch;
}

}  // namespace flatout::train
