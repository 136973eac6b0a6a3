// train_main(): the loop, marked through flatout/marker.h.
#include <fmt/format.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <fstream>
#include <thread>

#include "base/clock.h"
#include "base/log.h"
#include "flatout/marker.h"
#include "train/inject.h"
#include "train/loader.h"
#include "train/network.h"
#include "train/train.h"

namespace flatout::train {
namespace {

constexpr int kValidationBatches = 8;
volatile sig_atomic_t g_stop = 0;

int available_cores() {
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  if (sched_getaffinity(0, sizeof allowed, &allowed) != 0) return 1;
  return std::max(CPU_COUNT(&allowed), 1);
}

/// Ctrl-C ends the loop at the next step, so that temporary files go.
void stop_at_signals() {
  struct sigaction action {};
  action.sa_handler = [](int number) {
    g_stop = number;
    signal(number, SIG_DFL);  // the second one ends us at once
  };
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
}

std::vector<Batch> validation_set(const TrainOptions& options) {
  std::vector<Batch> out;
  for (int b = 0; b < kValidationBatches; ++b) {
    Batch batch;
    for (int i = 0; i < options.batch; ++i) {
      const Image image =
          draw_image(options.seed + 1000, static_cast<uint64_t>(b * options.batch + i));
      batch.labels.push_back(image.label);
      for (size_t c = 0; c < 3; ++c) {
        for (size_t p = 0; p < size_t{kSide} * kSide; ++p) {
          batch.x.push_back(static_cast<float>(image.rgb[p * 3 + c]) / 127.5f - 1.0f);
        }
      }
    }
    out.push_back(std::move(batch));
  }
  return out;
}

double validate(Network& network, const std::vector<Batch>& batches, Pool& pool) {
  const uint64_t begin = flatout_now();
  int right = 0;
  int all = 0;
  for (const Batch& batch : batches) {
    right += network.forward(batch, pool).right;
    all += batch.count();
  }
  flatout_slice(FLATOUT_VALIDATION, nullptr, begin);
  return static_cast<double>(right) / std::max(all, 1);
}

Status save_weights(const Network& network, const std::string& path) {
  const uint64_t begin = flatout_now();
  std::ofstream file(path, std::ios::binary);
  const std::vector<float>& w = network.weights();
  file.write(reinterpret_cast<const char*>(w.data()),
             static_cast<std::streamsize>(w.size() * sizeof(float)));
  file.flush();
  flatout_slice_values(FLATOUT_CHECKPOINT, nullptr, begin,
                       static_cast<int64_t>(w.size() * sizeof(float)), 0);
  if (!file) return Error{Code::kIo, "cannot write " + path, "is the disk full?"};
  return {};
}

/// Equal runs print equal digests.
uint32_t digest(const std::vector<float>& weights) {
  uint32_t hash = 2166136261u;  // FNV-1a
  const auto* bytes = reinterpret_cast<const unsigned char*>(weights.data());
  for (size_t i = 0; i < weights.size() * sizeof(float); ++i) hash = (hash ^ bytes[i]) * 16777619u;
  return hash;
}

// The training loop. Its phases are marked, so that each step's time is told apart.
__attribute__((noinline)) Status train_loop(const TrainOptions& options, Network& network,
                                            Loader& loader, Injection& injection, Pool& pool) {
  const std::vector<Batch> validation = validation_set(options);
  const int64_t per_epoch = std::max<int64_t>(options.samples / options.batch, 1);
  const TimePoint start = MonotonicClock::now();
  double loss = 0;
  double accuracy = 0;
  int64_t right = 0;
  int64_t step = 0;
  for (; step < options.steps && g_stop == 0; ++step) {
    uint64_t begin = flatout_now();
    FLATOUT_TRY(const Batch batch, loader.next());
    flatout_slice(FLATOUT_INPUT_WAIT, nullptr, begin);

    begin = flatout_now();
    const Score score = network.forward(batch, pool);
    injection.in_forward(pool);
    flatout_slice(FLATOUT_FORWARD, nullptr, begin);

    begin = flatout_now();
    network.backward(batch, pool);
    flatout_slice(FLATOUT_BACKWARD, nullptr, begin);

    begin = flatout_now();
    network.update(0.02f, 0.9f);
    flatout_slice(FLATOUT_OPTIMIZER, nullptr, begin);

    injection.after_step(step, batch, score.loss);
    flatout_counter("loss", score.loss);
    flatout_step(step);
    loss += score.loss;
    right += score.right;
    if ((step + 1) % per_epoch == 0 || step + 1 == options.steps) {
      const int64_t steps = step % per_epoch + 1;
      accuracy = validate(network, validation, pool);
      if (!options.checkpoint.empty()) {
        FLATOUT_TRY_STATUS(save_weights(network, options.checkpoint));
      }
      if (!options.quiet) {
        fmt::print("epoch {:3}  loss {:.4f}  accuracy {:5.1f} %  validation {:5.1f} %\n",
                   step / per_epoch + 1, loss / static_cast<double>(steps),
                   100.0 * static_cast<double>(right) / static_cast<double>(steps * options.batch),
                   100 * accuracy);
        std::fflush(stdout);
      }
      loss = 0;
      right = 0;
    }
  }
  const double seconds = to_s(MonotonicClock::now() - start);
  fmt::print("{} steps in {:.1f} s, {:.1f} steps/s, validation {:.1f} %, weights {:08x}\n", step,
             seconds, static_cast<double>(step) / std::max(seconds, 1e-9), 100 * accuracy,
             digest(network.weights()));
  return {};
}

Status run(const TrainOptions& options, Cause cause) {
  // The mask of cpu.affinity and malloc's settings hold for threads made later.
  const int cores = available_cores();
  std::unique_ptr<TemporaryFolder> folder;
  FLATOUT_TRY(const std::unique_ptr<Injection> injection, Injection::make(cause, options, folder));
  FLATOUT_TRY(const std::unique_ptr<Source> source, make_source(cause, options, cores, folder));
  const Plan plan = make_plan(cause, options, cores);
  Pool pool(plan.threads, plan.spin);
  Network network(options.model == "large" ? 16 : 8, options.seed);
  LoaderOptions loading;
  loading.threads = plan.loaders;
  loading.batch = options.batch;
  loading.samples = static_cast<size_t>(options.samples);
  loading.batches = options.steps;
  loading.seed = options.seed;
  loading.collate = plan.collate;
  loading.before_batch = [&](int64_t batch) { injection->before_batch(batch); };
  Loader loader(*source, loading);
  flatout_info("loader.num_workers", std::to_string(plan.loaders).c_str());
  flatout_info("loader.batch_size", std::to_string(options.batch).c_str());
  flatout_info("loader.kind", "threads");
  return train_loop(options, network, loader, *injection, pool);
}

}  // namespace

void install_terminate_handler() {
  std::set_terminate([] {
    if (const std::exception_ptr current = std::current_exception()) {
      try {
        std::rethrow_exception(current);
      } catch (const TrainError& e) {
        flatout_info("exception.type", "TrainError");
        flatout_info("exception.message", e.message.c_str());
        flatout_info("exception.file", e.file);
        flatout_info("exception.line", std::to_string(e.line).c_str());
        flatout_info("exception.function", e.function);
        fmt::print(stderr, "uncaught TrainError: {} ({}:{} in {})\n", e.message, e.file, e.line,
                   e.function);
      } catch (const std::exception& e) {
        flatout_info("exception.type", "std::exception");
        flatout_info("exception.message", e.what());
        fmt::print(stderr, "uncaught exception: {}\n", e.what());
      } catch (...) {
        flatout_info("exception.type", "unknown");
      }
    }
    std::abort();
  });
}

int train_main(const TrainOptions& options) {
  if (options.inject == "list") {
    fmt::print("{}", cause_list());
    return 0;
  }
  if (options.neighbours > 0) return run_neighbours(options.neighbours, options.seconds);
  const Result<Cause> cause = parse_cause(options.inject);
  if (!cause.ok()) {
    log_error(cause.error().message, cause.error().hint);
    return 2;
  }
  if (options.steps < 1 || options.samples < 1 || options.samples > 1 << 20 || options.batch < 1 ||
      options.batch > 4096 || options.threads < 0 || options.threads > 1024 ||
      options.loaders < 0 || options.loaders > 256 ||
      (options.model != "small" && options.model != "large")) {
    log_error("steps, samples, batch, threads, loaders or model out of range",
              "--model is small or large; see flatout train --help");
    return 2;
  }
  stop_at_signals();
  install_terminate_handler();
  const Status status = run(options, *cause);
  if (!status.ok()) {
    log_error(status.error().message, status.error().hint);
    return status.error().code == Code::kBadInput ? 2 : 1;
  }
  return g_stop == 0 ? 0 : 128 + g_stop;
}

}  // namespace flatout::train
