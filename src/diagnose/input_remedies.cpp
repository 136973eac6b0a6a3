// What to do about batches that take too long to make.
#include <algorithm>
#include <string_view>

#include "base/contains.h"
#include "diagnose/input_causes.h"

namespace flatout::diagnose {

using model::Finding;

namespace {

constexpr int64_t kManyBatches = 4;  // of one sample for a step: too little at a time

/// Whether a finding's line is in a function of the user's that PyTorch's loader calls (a
/// collate_fn that augments).
bool called_by_loader(const RunView& view, const Finding& f) {
  const model::Run& run = view.run();
  for (model::StackId stack = 1; stack < run.stacks.size(); ++stack) {
    const model::FrameId user = view.stacks().user_frame(stack);
    if (user == 0 || !same_line(f.where, view.stacks().where(user))) continue;
    bool below = false;  // the user's line was passed: what follows has called it
    for (model::StackId at = stack; at != 0; at = run.stacks[at].parent) {
      const model::FrameId frame = run.stacks[at].frame;
      if (below && contains(run.string(run.frames[frame].file), "/torch/utils/data/")) return true;
      below = below || frame == user;
    }
  }
  return false;
}

bool takes_out_of_tensors(const RunView& view, const Finding& f) {
  return view.loader().kind == LoaderKind::kSerial &&
         view.run().fact("loader.dataset_class") == "TensorDataset" && !called_by_loader(view, f);
}

void by_batch(Finding& f) {
  remedy(f, "by_batch",
         "Index the tensors once for a batch: DataLoader(data, batch_size=None, "
         "sampler=BatchSampler(RandomSampler(data), n, False)), or data[rows] in the loop.");
}

void for_decoding(Finding& f, const RunView& view, const BatchTimes& times) {
  if (takes_out_of_tensors(view, f)) {
    by_batch(f);
    f.title = "Samples are taken out of tensors one by one";
    return;
  }
  remedy(f, "feed", "Decode faster: at the size that is needed, or with a native decoder.");
  if (few_workers(view, times) && has_idle_cores(view)) {
    remedy(f, "num_workers", "Give the loader more workers: cores idle.");
  }
  remedy(f, "preprocess",
         "Do it once, beforehand: store pictures decoded and resized, texts and tables parsed.");
}

void for_few_workers(Finding& f, const RunView& view, const BatchTimes& times, bool in_turns) {
  if (takes_out_of_tensors(view, f)) by_batch(f);
  if (in_turns) {
    remedy(f, "prefetch",
           "Begin the next batch while the step computes: a queue of two that is not waited for, "
           "or the next request before the step (prefetch).");
    return;
  }
  const LoaderKind kind = view.loader().kind;
  remedy(f, "num_workers",
         kind == LoaderKind::kThreads
             ? "Make batches in more threads: the cores and the data source can serve more."
         : kind != LoaderKind::kSerial
             ? "Raise num_workers, the cores and the data source can serve more."
         : times.mostly_in_loop()
             ? "Move what this line does into the dataset and give the DataLoader workers of its "
               "own (num_workers above 0)."
             : "Give the DataLoader workers of its own (num_workers above 0).");
  remedy(f, "prefetch_factor", "Raise prefetch_factor where batches take uneven time.");
}

void for_passing(Finding& f, const RunView& view, const BatchTimes& times) {
  const LoaderView& loader = view.loader();
  if (loader.measured && loader.batch_samples <= 1 &&
      loader.batches > kManyBatches * view.steps().count) {
    remedy(f, "batch_in_workers",
           "Let the workers put the samples of a step together (batch_size, or in the data set): "
           "each hand-over costs the same, however little it passes on.");
  }
  if (taken_over(view) / batches_per_step(view) > times.total) {
    remedy(f, "in_the_loop",
           "Make larger batches, or make them in the loop itself (num_workers=0): that takes less "
           "than to take one over from a worker.");
  }
  remedy(f, "collate", "Collate into a buffer that is used again; pass tensors, not objects.");
  remedy(f, "preprocess",
         "What the collate function works out itself (tokenizing, parsing) belongs into the "
         "samples: once, beforehand, or in workers.");
}

/// Those that are the same in every run.
struct Same {
  std::string_view finding, remedy, text;
};
constexpr Same kSame[] = {
    {"input.feed_dict", "dataset", "Build the input with the Dataset API and native operations."},
    {"input.small_files", "shards",
     "Pack the files into shards (tar or records) that are read in one piece."},
    {"input.small_files", "index",
     "List and look up files once, before the training, and keep what was found."},
    {"input.random_seek", "shards",
     "Read shards in sequence and shuffle in a buffer; index archives once."},
    {"input.disk", "cache_warm", "Read the data into the page cache first, or onto a faster disk."},
    {"input.disk", "shards", "Read larger pieces ahead."},
    {"input.disk_throttled", "io_limit", "Raise the limit, or store the data in a smaller format."},
    {"input.cold_cache", "memory", "Give the job memory for its data, or make the data smaller."},
    {"input.lock", "own_state",
     "Give each thread or worker what the lock protects (decoder, file handle, random generator) "
     "for itself."},
    {"input.lock", "shorter_lock",
     "Hold the lock only while what is shared is used, not while decoding."},
    {"stall.idle_wait", "event", "Wait for an event instead of sleeping."},
    {"cpu.process_churn", "pool", "Call in process, or keep a pool of processes."},
    {"cpu.gc", "gc_freeze", "Call gc.freeze() after start-up or raise the thresholds."},
};

}  // namespace

void add_input_remedies(Finding& f, const RunView& view, const BatchTimes& times, bool in_turns) {
  if (f.id == "input.decode_cpu") for_decoding(f, view, times);
  if (f.id == "input.too_few_workers") for_few_workers(f, view, times, in_turns);
  if (f.id == "input.collate") for_passing(f, view, times);
  if (f.id == "input.gil") {
    unlock(view, f, "Load in processes, or decode in code that releases the GIL.");
  }
  for (const Same& one : kSame) {
    if (f.id == one.finding) remedy(f, std::string(one.remedy), std::string(one.text));
  }
}

}  // namespace flatout::diagnose
