// The C functions of flatout/feed.h.
#define FLATOUT_FEED_API __attribute__((visibility("default")))
#include "flatout/feed.h"

#include <fmt/format.h>

#include <atomic>

#include "feed/dlpack.h"
#include "feed/options_json.h"

namespace {

using namespace flatout;

thread_local std::string last_error;
thread_local std::string last_report;
thread_local std::string last_name;

// A batch as C sees it, and what keeps it alive: the caller and each tensor of it hold a count.
struct Shared : flatout_feed_batch {
  std::shared_ptr<feed::Batch> batch;
  std::atomic<int> users{1};
};

void note(const Error& error) {
  last_error = error.hint.empty() ? error.message : error.message + "; " + error.hint;
}

void drop(Shared* shared) {
  if (shared->users.fetch_sub(1, std::memory_order_acq_rel) == 1) delete shared;
}

Status call(flatout_feed_stage stage, void* context, feed::StageSample& sample) {
  flatout_feed_sample seen{sample.rgbx,  sample.height, sample.width,  sample.label,
                           sample.index, sample.epoch,  sample.random, {}};
  const int code = stage(context, &seen);
  sample.label = seen.label;
  if (code == 0) return {};
  seen.error[sizeof seen.error - 1] = 0;
  return Error{Code::kBadInput,
               seen.error[0] != 0 ? std::string(seen.error) : fmt::format("it returned {}", code),
               ""};
}

struct Tensor {
  DLManagedTensor managed{};
  Shared* shared = nullptr;
};

}  // namespace

struct flatout_feed {
  std::unique_ptr<feed::Loader> loader;
};

extern "C" {

const char* flatout_feed_error(void) { return last_error.c_str(); }

flatout_feed* flatout_feed_open(const char* path, const char* options_json) {
  return flatout_feed_open_with_stage(path, options_json, nullptr, nullptr);
}

flatout_feed* flatout_feed_open_with_stage(const char* path, const char* options_json,
                                           flatout_feed_stage stage, void* context) {
  last_error.clear();
  const auto options = feed::parse_options(options_json == nullptr ? "" : options_json);
  if (!options.ok()) return note(options.error()), nullptr;
  auto source = feed::open_source(path);
  if (!source.ok()) return note(source.error()), nullptr;
  feed::SampleStage own;
  if (stage != nullptr)
    own = [stage, context](feed::StageSample& sample) { return call(stage, context, sample); };
  auto loader = feed::Loader::open(std::move(*source), *options, std::move(own));
  if (!loader.ok()) return note(loader.error()), nullptr;
  return new flatout_feed{std::move(*loader)};
}

void flatout_feed_close(flatout_feed* feed) {
  if (feed == nullptr) return;
  // In a forked process there are no threads to wait for, and its locks may be held for ever: it is
  // left as it is.
  if (!feed->loader->is_of_this_process()) return;
  delete feed;
}

int flatout_feed_wait(flatout_feed* feed, int milliseconds) {
  return feed->loader->wait(std::chrono::milliseconds(milliseconds)) ? 1 : 0;
}

int flatout_feed_next(flatout_feed* feed, struct flatout_feed_batch** out) {
  last_error.clear();
  auto next = feed->loader->next();
  if (!next.ok()) {
    note(next.error());
    return FLATOUT_FEED_ERROR;
  }
  if (!*next) return FLATOUT_FEED_END;
  const feed::LoaderOptions& options = feed->loader->options();
  auto* shared = new Shared;
  shared->batch = std::move(*next);
  feed::Batch& batch = *shared->batch;
  shared->data = batch.data;
  shared->labels = batch.labels.data();
  shared->indices = batch.indices.data();
  shared->views = batch.views.data()->data();
  const int64_t height = options.augment.height, width = options.augment.width;
  const bool planes = options.layout == feed::Layout::kNchw;
  shared->shape[0] = batch.count;
  shared->shape[1] = planes ? 3 : height;
  shared->shape[2] = planes ? height : width;
  shared->shape[3] = planes ? width : 3;
  shared->count = batch.count;
  shared->type = static_cast<int32_t>(options.type);
  shared->epoch = batch.epoch;
  shared->weight = batch.mix.weight;
  shared->partners = batch.partners.data();
  *out = shared;
  return FLATOUT_FEED_BATCH;
}

void flatout_feed_release(struct flatout_feed_batch* batch) { drop(static_cast<Shared*>(batch)); }

int flatout_feed_lend(flatout_feed* feed, void* memory) {
  last_error.clear();
  const Status status = feed->loader->lend(memory);
  if (status.ok()) return 0;
  note(status.error());
  return FLATOUT_FEED_ERROR;
}
size_t flatout_feed_batch_bytes(const flatout_feed* feed) { return feed->loader->batch_bytes(); }

uint64_t flatout_feed_samples(const flatout_feed* feed) { return feed->loader->source().count(); }
const char* flatout_feed_name(const flatout_feed* feed, uint64_t index) {
  const feed::Source& source = feed->loader->source();
  last_name = index < source.count() ? source.name(index) : std::string();
  return last_name.c_str();
}
uint64_t flatout_feed_batches(const flatout_feed* feed) {
  return feed->loader->batches_per_epoch();
}

struct flatout_feed_place flatout_feed_get_place(const flatout_feed* feed) {
  const feed::Place place = feed->loader->place();
  return {place.epoch, place.position};
}

int flatout_feed_set_place(flatout_feed* feed, struct flatout_feed_place place) {
  last_error.clear();
  const Status status = feed->loader->seek({place.epoch, place.position});
  if (status.ok()) return 0;
  note(status.error());
  return FLATOUT_FEED_ERROR;
}

const char* flatout_feed_report(const flatout_feed* feed) {
  last_report = feed::report_json(*feed->loader);
  return last_report.c_str();
}

void* flatout_feed_dlpack(struct flatout_feed_batch* batch) {
  auto* shared = static_cast<Shared*>(batch);
  shared->users.fetch_add(1, std::memory_order_relaxed);
  auto* tensor = new Tensor;
  tensor->shared = shared;
  constexpr DLDataType kTypes[] = {
      {kDLUInt, 8, 1}, {kDLFloat, 32, 1}, {kDLFloat, 16, 1}, {kDLBfloat, 16, 1}};
  tensor->managed.dl_tensor = {shared->data,  {kDLCPU, 0}, 4, kTypes[shared->type],
                               shared->shape, nullptr,     0};
  tensor->managed.manager_ctx = tensor;
  tensor->managed.deleter = [](DLManagedTensor* self) {
    auto* mine = static_cast<Tensor*>(self->manager_ctx);
    drop(mine->shared);
    delete mine;
  };
  return &tensor->managed;
}

int flatout_feed_picture(const void* data, size_t bytes, const int32_t box[4], int scaled,
                         int out_height, int out_width, void* out) {
  last_error.clear();
  thread_local feed::Renderer renderer;
  feed::Verdict verdict = renderer.open({static_cast<const uint8_t*>(data), bytes});
  if (verdict.ok()) {
    const feed::Size size = renderer.size();
    feed::View view;
    view.box = box == nullptr ? feed::Rect{0, 0, size.width, size.height}
                              : feed::Rect{box[0], box[1], box[2], box[3]};
    view.whole_width = out_width;
    view.whole_height = out_height;
    const feed::Rect& part = view.box;
    if (part.x < 0 || part.y < 0 || part.width < 1 || part.height < 1 ||
        part.width > size.width - part.x || part.height > size.height - part.y || out_width < 1 ||
        out_height < 1 || out_width > 16384 || out_height > 16384) {
      last_error =
          "the part is not within the picture, or the result is not 1 to 16384 pixels wide and "
          "high";
      return FLATOUT_FEED_ERROR;
    }
    const feed::Target target{out, feed::Type::kU8, feed::Layout::kNhwc, out_width, out_height, {}};
    verdict = renderer.render(view, scaled != 0 ? feed::Mode::kScaled : feed::Mode::kExact, target);
  }
  if (verdict.ok()) return 0;
  last_error = std::string(outcome_name(verdict.outcome)) + ": " + verdict.detail;
  return FLATOUT_FEED_ERROR;
}

}  // extern "C"
