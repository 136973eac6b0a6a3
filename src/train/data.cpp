#include "train/data.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "base/text.h"
#include "feed/loader.h"
#include "flatout/marker.h"
#include "train/data_files.h"

namespace flatout::train {
namespace {

constexpr int kValidationBatches = 8;

/// Batches of room feed, grey where the model wants one channel.
class FolderBatches : public Batches {
 public:
  FolderBatches(std::unique_ptr<feed::Loader> loader, const View& view, int classes, int64_t first)
      : loader_(std::move(loader)), view_(view), classes_(classes), index_(first) {}

  Result<Batch> next() override {
    const uint64_t begin = flatout_now();
    std::shared_ptr<feed::Batch> made;
    while (made == nullptr) {
      FLATOUT_TRY(made, loader_->next());  // null between two epochs
    }
    flatout_slice_values(FLATOUT_FETCH, nullptr, begin, made->count, index_);
    Batch out;
    out.index = index_++;
    out.epoch = made->after.epoch;
    out.position = made->after.position;
    for (const int64_t label : made->labels) {
      if (label < 0 || label >= classes_) {
        return Error{Code::kBadInput,
                     "a picture's label is " + std::to_string(label) + "; there are " +
                         std::to_string(classes_) + " classes, counted from 0",
                     "--classes, larger than every label"};
      }
      out.labels.push_back(static_cast<int>(label));
    }
    const auto* from = static_cast<const float*>(made->data);
    const size_t plane = static_cast<size_t>(view_.side) * static_cast<size_t>(view_.side);
    const auto count = static_cast<size_t>(made->count);
    if (view_.channels == 3) {
      out.x.assign(from, from + count * 3 * plane);
      return out;
    }
    out.x.resize(count * plane);
    for (size_t i = 0; i < count; ++i, from += 3 * plane) {
      for (size_t p = 0; p < plane; ++p) {
        out.x[i * plane + p] = (from[p] + from[plane + p] + from[2 * plane + p]) / 3;
      }
    }
    return out;
  }

  std::string bad_files() const override {
    const feed::Report report = loader_->report();
    if (report.bad.empty()) return {};
    const feed::BadSample& first = report.bad[0];
    std::string out = fmt::format("{} ({})", escape_terminal(first.file),
                                  feed::outcome_name(first.verdict.outcome));
    const size_t more = report.bad.size() - 1;
    out += more > 0 ? fmt::format(" and {} more are bad", more) : " is bad";
    return out + fmt::format(
                     ": other samples took such places {} times; flatout feed verify "
                     "names all bad files",
                     report.replaced);
  }

 private:
  std::unique_ptr<feed::Loader> loader_;
  View view_;
  int classes_;
  int64_t index_;
};

/// Batches of a source as they are, in order.
Result<std::vector<Batch>> validation_of(const Source& source, size_t samples, int batch,
                                         View view) {
  view.augment = false;
  const size_t pixels = static_cast<size_t>(view.channels) * static_cast<size_t>(view.side) *
                        static_cast<size_t>(view.side);
  std::vector<Batch> out;
  Random unused(0);
  for (size_t i = 0; i < samples; ++i) {
    if (i % static_cast<size_t>(batch) == 0) out.emplace_back();
    FLATOUT_TRY(const Image image, source.read(i));
    Batch& last = out.back();
    last.labels.push_back(image.label);
    last.x.resize(last.x.size() + pixels);
    write_view(image, view, unused, last.x.data() + last.x.size() - pixels);
  }
  return out;
}

/// Generated pictures that training does not see.
class Drawn : public Source {
 public:
  explicit Drawn(uint64_t seed) : seed_(seed) {}
  Result<Image> read(size_t index) const override { return draw_image(seed_, index); }

 private:
  uint64_t seed_;
};

/// Whether these are no classes but what a data set is often divided into.
bool are_splits(const std::vector<std::string>& classes) {
  static constexpr std::string_view kSplits[] = {"test", "train", "training",
                                                 "val",  "valid", "validation"};
  return classes.size() > 1 && std::all_of(classes.begin(), classes.end(), [](const auto& name) {
           return std::find(std::begin(kSplits), std::end(kSplits), name) != std::end(kSplits);
         });
}

Result<DataSet> open_folder(const TrainOptions& options, const View& view) {
  DataSet out;
  auto files = read_data_files(options.data);
  if (files.ok()) {
    out.classes = std::max(files->train.classes(), files->test.classes());
    out.samples = static_cast<int64_t>(files->train.labels.size());
    if (!files->test.labels.empty()) {
      const size_t count = std::min(files->test.labels.size(),
                                    static_cast<size_t>(kValidationBatches * options.batch));
      const auto test = pictures_source(std::move(files->test));
      FLATOUT_TRY(out.validation, validation_of(*test, count, options.batch, view));
    }
    out.source = pictures_source(std::move(files->train));
  } else {
    if (files.error().code != Code::kNotFound) return files.error();
    FLATOUT_TRY(out.folder, feed::open_source(options.data));
    out.classes = static_cast<int>(out.folder->classes().size());
    out.samples = static_cast<int64_t>(out.folder->count());
  }
  if (out.folder != nullptr && are_splits(out.folder->classes())) {
    const std::vector<std::string>& parts = out.folder->classes();
    const auto train = std::find_if(parts.begin(), parts.end(),
                                    [](const auto& name) { return name.starts_with("train"); });
    const std::string& part = train != parts.end() ? *train : parts[0];
    return Error{Code::kBadInput,
                 fmt::format("the folders in {} are the parts of a data set, not classes",
                             escape_terminal(options.data)),
                 "--data " + escape_terminal(options.data + "/" + part)};
  }
  out.classes = std::max(out.classes, options.classes);
  if (out.classes < 2) {
    return Error{Code::kBadInput,
                 escape_terminal(options.data) + " has fewer than two classes to tell apart",
                 "a folder of pictures has a folder for each class; of an archive --classes says "
                 "how many there are"};
  }
  return out;
}

}  // namespace

Result<DataSet> open_data(const TrainOptions& options, const Causes& causes, int cores,
                          const View& view, std::unique_ptr<TemporaryFolder>& temporary) {
  // With a cause to inject, --data is where its temporary files go.
  if (!options.data.empty() && causes.none() && is_layered(options.model)) {
    return open_folder(options, view);
  }
  DataSet out;
  FLATOUT_TRY(out.source, make_source(causes, options, cores, temporary));
  out.samples = options.samples;
  FLATOUT_TRY(out.validation, validation_of(Drawn(options.seed + 1000),
                                            static_cast<size_t>(kValidationBatches * options.batch),
                                            options.batch, view));
  return out;
}

Result<std::unique_ptr<Batches>> start_batches(DataSet& data, const TrainOptions& options,
                                               const BatchOptions& batches, const Plan& plan,
                                               Injection& injection) {
  if (data.folder != nullptr) {
    // Said here in words of this command's: the loader's own errors name arguments in Python.
    if (data.samples < options.batch) {
      return Error{Code::kBadInput,
                   fmt::format("{} has {} pictures, less than a batch of {}",
                               escape_terminal(options.data), data.samples, options.batch),
                   "a smaller --batch"};
    }
    if (const auto empty = data.folder->empty_classes(); !empty.empty()) {
      return Error{Code::kBadInput,
                   fmt::format("there is no picture in {}, which would be a class",
                               escape_terminal(options.data + "/" + empty[0])),
                   "remove what is no class"};
    }
    feed::LoaderOptions loading;
    loading.batch = options.batch / batches.parts;
    loading.threads = plan.loaders;
    loading.seed = options.seed;
    loading.shuffle = !options.plain;
    loading.drop_last = true;
    loading.rank = static_cast<uint32_t>(batches.part);
    loading.ranks = static_cast<uint32_t>(batches.parts);
    loading.augment.kind =
        options.plain ? feed::Augment::Kind::kStretch : feed::Augment::Kind::kRandomCrop;
    loading.augment.width = loading.augment.height = batches.view.side;
    std::fill(std::begin(loading.mean), std::end(loading.mean), 0.5F);
    std::fill(std::begin(loading.std), std::end(loading.std), 0.5F);
    FLATOUT_TRY(auto loader, feed::Loader::open(std::move(data.folder), loading));
    if (batches.first_step > 0) {
      FLATOUT_TRY_STATUS(loader->seek({batches.epoch, batches.position}));
    }
    return std::unique_ptr<Batches>(std::make_unique<FolderBatches>(
        std::move(loader), batches.view, data.classes, batches.first_step));
  }
  LoaderOptions loading;
  loading.threads = plan.loaders;
  loading.batch = options.batch;
  loading.part = batches.part;
  loading.parts = batches.parts;
  loading.view = batches.view;
  loading.shuffle = !options.plain;
  loading.samples = static_cast<size_t>(data.samples);
  loading.first = batches.first_step;
  loading.batches = options.steps;
  loading.seed = options.seed;
  loading.collate = plan.collate;
  loading.before_batch = [&injection](int64_t batch) { injection.before_batch(batch); };
  return std::unique_ptr<Batches>(std::make_unique<Loader>(*data.source, std::move(loading)));
}

}  // namespace flatout::train
