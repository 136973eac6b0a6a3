// train_main(): the loop, marked through flatout/marker.h.
#include <fmt/format.h>
#include <signal.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <nlohmann/json.hpp>
#include <optional>
#include <thread>

#include "base/clock.h"
#include "base/left_over.h"
#include "base/log.h"
#include "base/text.h"
#include "flatout/marker.h"
#include "train/checkpoint.h"
#include "train/data.h"
#include "train/inject.h"
#include "train/mirrored.h"
#include "train/network.h"
#include "train/options.h"
#include "train/train.h"

namespace flatout::train {
namespace {

volatile sig_atomic_t g_stop = 0;

int available_cores() {
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  if (sched_getaffinity(0, sizeof allowed, &allowed) != 0) return 1;
  return std::max(CPU_COUNT(&allowed), 1);
}

/// Ctrl-C ends the loop after the step, so that temporary files go. A limit on the size of files is
/// an error of the write, which says so.
void stop_at_signals() {
  signal(SIGXFSZ, SIG_IGN);
  struct sigaction action {};
  action.sa_handler = [](int number) {
    g_stop = number;
    signal(number, SIG_DFL);  // the second one ends us at once
  };
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
}

double cpu_seconds() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_usec) * 1e-6;
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

/// What the loop works with.
struct Job {
  const TrainOptions& options;
  const RankPlace& place;
  const Ranks* ranks;  // null: there is one
  const DataSet& data;
  Learner& learner;
  Batches& batches;
  Injection& injection;
  Progress progress;  // where it begins
};

Result<double> validate(const Job& job) {
  const uint64_t begin = flatout_now();
  int right = 0;
  int all = 0;
  for (const Batch& batch : job.data.validation) {
    FLATOUT_TRY(const Score score, job.learner.evaluate(batch));
    right += score.right;
    all += batch.count();
  }
  flatout_slice(FLATOUT_VALIDATION, nullptr, begin);
  return static_cast<double>(right) / std::max(all, 1);
}

Status save(const Job& job, const Progress& progress) {
  if (job.options.checkpoint.empty() || job.place.rank != 0) return {};
  const uint64_t begin = flatout_now();
  Status status = save_checkpoint(job.options.checkpoint, job.options, job.learner, progress);
  int64_t bytes = 0;
  for (const Tensor& tensor : job.learner.state()) {
    bytes += static_cast<int64_t>(tensor.values.size_bytes());
  }
  flatout_slice_values(FLATOUT_CHECKPOINT, nullptr, begin, bytes, 0);
  return status;
}

struct Outcome {
  std::vector<double> losses;
  int64_t steps = 0;                 // done in this run
  int signal = 0;                    // that ended it
  std::optional<double> validation;  // after the last epoch that ended in it
  double seconds = 0, cpu_seconds = 0;
};

/// Nothing is learnt from there on; the checkpoint stays that of the last epoch before.
Error not_finite(const Job& job, int64_t step) {
  const TrainOptions& options = job.options;
  const bool begun_with = !options.resume.empty() || !options.weights.empty();
  return {Code::kIo, fmt::format("the loss of step {} is no finite number", step),
          is_layered(options.model)
              ? fmt::format("a smaller --learning-rate than {}{}", options.learning_rate,
                            begun_with ? ", or other weights to begin with" : "")
              : ""};
}

// The training loop. Its phases are marked, so that each step's time is told apart.
__attribute__((noinline)) Result<Outcome> train_loop(const Job& job) {
  const TrainOptions& options = job.options;
  const bool shared = job.place.size > 1 || options.replicas > 1;
  const bool talks = !options.quiet && !options.json && job.place.rank == 0;
  const int64_t per_epoch = std::max<int64_t>(job.data.samples / options.batch, 1);
  const TimePoint start = MonotonicClock::now();
  const double cpu_start = cpu_seconds();
  Outcome out;
  Progress progress = job.progress;
  double loss = 0;
  int64_t right = 0;
  int64_t counted = 0;  // steps in loss and right
  // Among ranks a signal counts from the exchange on in which all hear of it: who ended by itself
  // would leave the others waiting.
  if (job.ranks == nullptr) out.signal = g_stop;
  for (int64_t step = progress.step; step < options.steps && out.signal == 0; ++step) {
    uint64_t begin = flatout_now();
    FLATOUT_TRY(const Batch batch, job.batches.next());
    flatout_slice(FLATOUT_INPUT_WAIT, nullptr, begin);

    begin = flatout_now();
    FLATOUT_TRY(Score score, job.learner.forward(batch));
    job.injection.in_forward(job.learner.pool());
    flatout_slice(FLATOUT_FORWARD, nullptr, begin);

    begin = flatout_now();
    FLATOUT_TRY_STATUS(job.learner.backward(batch));
    flatout_slice(FLATOUT_BACKWARD, nullptr, begin);

    out.signal = g_stop;
    if (shared) {
      begin = flatout_now();
      FLATOUT_TRY_STATUS(job.learner.exchange(&score, &out.signal));
      flatout_slice(FLATOUT_COMMUNICATION, nullptr, begin);
    }
    if (!std::isfinite(score.loss)) return not_finite(job, step);

    begin = flatout_now();
    job.learner.update(step);
    flatout_slice(FLATOUT_OPTIMIZER, nullptr, begin);

    job.injection.after_step(step, batch, score.loss);
    flatout_counter("loss", score.loss);
    flatout_step(step);
    out.losses.push_back(score.loss);
    ++out.steps;
    progress = {step + 1, batch.epoch, batch.position};
    loss += score.loss;
    right += score.right;
    ++counted;
    if ((step + 1) % per_epoch == 0 || step + 1 == options.steps) {
      if (!job.data.validation.empty()) {
        FLATOUT_TRY(out.validation, validate(job));
      }
      FLATOUT_TRY_STATUS(save(job, progress));
      if (talks) {
        const auto n = static_cast<double>(counted);
        fmt::print("epoch {:3}  loss {:.4f}  accuracy {:5.1f} %", step / per_epoch + 1, loss / n,
                   100.0 * static_cast<double>(right) / (n * options.batch));
        if (out.validation) fmt::print("  validation {:5.1f} %", 100 * *out.validation);
        fmt::print("\n");
        std::fflush(stdout);
      }
      loss = 0;
      right = counted = 0;
    }
  }
  if (counted > 0) FLATOUT_TRY_STATUS(save(job, progress));  // stopped within an epoch
  out.seconds = to_s(MonotonicClock::now() - start);
  out.cpu_seconds = cpu_seconds() - cpu_start;
  return out;
}

void print_text(const Job& job, const Outcome& outcome) {
  fmt::print("{} steps in {:.1f} s, {:.1f} steps/s, ", outcome.steps, outcome.seconds,
             static_cast<double>(outcome.steps) / std::max(outcome.seconds, 1e-9));
  if (outcome.validation) fmt::print("validation {:.1f} %, ", 100 * *outcome.validation);
  if (job.ranks != nullptr) {
    fmt::print("{} ranks over {}, ", job.ranks->size(), job.ranks->transport());
  }
  fmt::print("weights {:08x}\n", digest(job.learner));
}

void print_json(const Job& job, const Outcome& outcome) {
  const double samples = static_cast<double>(outcome.steps) * job.options.batch;
  nlohmann::ordered_json out;
  out["model"] = job.options.model;
  out["first_step"] = job.progress.step;
  out["steps"] = outcome.steps;
  out["batch"] = job.options.batch;
  out["replicas"] = job.options.replicas;
  out["ranks"] = job.place.size;
  out["transport"] = nullptr;
  if (job.ranks != nullptr) out["transport"] = job.ranks->transport();
  out["losses"] = outcome.losses;
  out["validation"] = nullptr;
  if (outcome.validation) out["validation"] = *outcome.validation;
  out["seconds"] = outcome.seconds;
  out["cpu_seconds"] = outcome.cpu_seconds;  // of this process
  out["samples_per_s"] = samples / std::max(outcome.seconds, 1e-9);
  out["device_bytes"] = job.learner.device_bytes();
  out["weights"] = fmt::format("{:08x}", digest(job.learner));
  fmt::print("{}\n", out.dump());
}

/// What all ranks must agree upon.
std::vector<JobPart> job_of(const TrainOptions& options, const DataSet& data,
                            const Progress& progress, Learner& learner) {
  const auto number = [](auto value) { return fmt::format("{}", value); };
  const auto flag = [](bool on) { return std::string(on ? "given" : "not given"); };
  return {{"--model", options.model},
          {"--batch", number(options.batch)},
          {"--steps", number(options.steps)},
          {"--seed", number(options.seed)},
          {"the number of samples", number(data.samples)},
          {"--replicas", number(options.replicas)},
          {"--plain", flag(options.plain)},
          {"--optimizer", options.optimizer},
          {"--learning-rate", number(options.learning_rate)},
          {"--momentum", number(options.momentum)},
          {"--weight-decay", number(options.weight_decay)},
          {"--sync-batch-norm", flag(options.sync_batch_norm)},
          {"--nccl", flag(options.nccl)},
          {"the step to go on from", number(progress.step)},
          {"the weights to begin with", fmt::format("{:08x}", digest(learner))}};
}

Result<std::unique_ptr<Learner>> make_learner(const TrainOptions& options, const RankPlace& place,
                                              const Plan& plan, int classes, Mirrored*& mirrored) {
  if (!is_layered(options.model)) {
    return std::unique_ptr<Learner>(std::make_unique<PlainLearner>(
        options.model == "large" ? 16 : 8, options.seed, plan.threads, plan.spin));
  }
  MirroredOptions layered;
  layered.model = options.model;
  layered.classes = classes;
  layered.batch = options.batch / place.size;
  layered.replicas = options.replicas;
  layered.threads = plan.threads;
  layered.spin = plan.spin;
  layered.device_bytes = options.device_bytes;
  layered.sync_batch_norm = options.sync_batch_norm;
  layered.seed = options.seed;
  layered.optimizer = {
      options.optimizer,   options.learning_rate, options.momentum, 0.9, 0.999, 1e-8,
      options.weight_decay};
  FLATOUT_TRY(auto made, Mirrored::make(layered));
  mirrored = made.get();
  return std::unique_ptr<Learner>(std::move(made));
}

/// `signal`: what ended the training early, or 0.
Status run(TrainOptions options, const Causes& causes, std::unique_ptr<Ranks>& ranks, int& signal) {
  FLATOUT_TRY(const RankPlace place,
              find_rank_place([](const char* name) -> const char* { return getenv(name); }));
  if (options.model.empty()) {
    options.model = place.size > 1 || options.replicas > 1 ? "lenet" : "small";
  }
  FLATOUT_TRY_STATUS(check_options(options, causes, place));
  if (place.rank == 0) {
    for (const std::string& ignored : ignored_options(options, causes, place)) log_warning(ignored);
  }
  // Of a run that was killed while it wrote its checkpoint.
  if (!options.checkpoint.empty() && place.rank == 0)
    fs::remove_left_over(options.checkpoint + ".tmp", fs::kDigits, std::chrono::seconds(10));
  if (options.learning_rate == 0)
    options.learning_rate = options.optimizer == "adam" ? 0.001 : 0.02;
  // The mask of cpu.affinity and malloc's settings hold for threads made later.
  const int cores = std::max(available_cores() / place.local, 1);
  View view;
  if (const ModelInfo* info = find_model(options.model)) {
    view = {info->channels, info->side, !options.plain};
  }
  std::unique_ptr<TemporaryFolder> folder;
  FLATOUT_TRY(const std::unique_ptr<Injection> injection, Injection::make(causes, options, folder));
  FLATOUT_TRY(DataSet data, open_data(options, causes, cores, view, folder));
  options.samples = static_cast<int>(data.samples);  // a checkpoint tells them
  if (options.classes > 0 && options.classes < data.classes && !options.data.empty() &&
      causes.none() && place.rank == 0) {
    log_warning(
        fmt::format("--classes {} has no effect: the data have {}", options.classes, data.classes));
  }
  if (!options.data.empty() && !causes.none() && folder == nullptr && place.rank == 0) {
    log_warning("--data has no effect: it is for the causes' files, and these causes have none");
  }
  const Plan plan = make_plan(causes, options, cores);

  Mirrored* mirrored = nullptr;  // the learner, where it is one
  FLATOUT_TRY(const std::unique_ptr<Learner> learner,
              make_learner(options, place, plan, data.classes, mirrored));
  Progress progress;
  if (!options.weights.empty()) FLATOUT_TRY_STATUS(load_weights(options.weights, *learner));
  if (!options.resume.empty()) {
    FLATOUT_TRY(progress, resume_checkpoint(options.resume, options, *learner));
    if (progress.step >= options.steps && place.rank == 0) {
      log_warning(fmt::format(
          "nothing is left to do: {} steps are done in {}, and --steps {} counts them, too",
          progress.step, escape_terminal(options.resume), options.steps));
    }
  }
  FLATOUT_TRY(ranks, Ranks::join(place, job_of(options, data, progress, *learner),
                                 nanos(options.rank_timeout * 1e9)));
  if (ranks != nullptr) {
    if (options.nccl) FLATOUT_TRY_STATUS(ranks->take_nccl(place.local_rank));
    mirrored->join(ranks.get());
    flatout_info("dist.rank", std::to_string(place.rank).c_str());
    flatout_info("dist.world_size", std::to_string(place.size).c_str());
  }

  BatchOptions from{view, place.rank, place.size, progress.step, progress.epoch, progress.position};
  FLATOUT_TRY(const std::unique_ptr<Batches> batches,
              start_batches(data, options, from, plan, *injection));
  flatout_info("loader.num_workers", std::to_string(plan.loaders).c_str());
  flatout_info("loader.batch_size", std::to_string(options.batch).c_str());
  flatout_info("loader.kind", "threads");
  const Job job{options, place, ranks.get(), data, *learner, *batches, *injection, progress};
  FLATOUT_TRY(const Outcome outcome, train_loop(job));
  if (outcome.signal != 0 && g_stop == 0 && place.rank == 0) {
    log_warning(
        fmt::format("a rank was told to stop (SIG{}): all have", sigabbrev_np(outcome.signal)));
  }
  signal = outcome.signal;
  if (place.rank == 0) {
    options.json ? print_json(job, outcome) : print_text(job, outcome);
  }
  if (const std::string bad = batches->bad_files(); !bad.empty()) log_warning(bad);
  return {};
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

bool is_layered(std::string_view model) { return find_model(model) != nullptr; }

int train_main(const TrainOptions& options) {
  if (std::find(options.inject.begin(), options.inject.end(), "list") != options.inject.end()) {
    fmt::print("{}", cause_list());
    return 0;
  }
  if (options.neighbours > 0)
    return run_neighbours(options.neighbours, options.seconds > 0 ? options.seconds : 60);
  const Result<Causes> causes = parse_causes(options.inject);
  if (!causes.ok()) {
    log_error(causes.error().message, causes.error().hint);
    return 2;
  }
  stop_at_signals();
  install_terminate_handler();
  std::unique_ptr<Ranks> ranks;  // outlives the learner, whose thread speaks to them
  int signal = 0;
  const Status status = run(options, *causes, ranks, signal);
  if (!status.ok()) {
    log_error(status.error().message, status.error().hint);
    const int code = status.error().code == Code::kBadInput ? 2 : 1;
    if (ranks == nullptr) return code;
    // An orderly end of MPI or of a driver would wait for ranks that wait for us.
    std::fflush(nullptr);
    std::_Exit(code);
  }
  return signal == 0 ? 0 : 128 + signal;
}

}  // namespace flatout::train
