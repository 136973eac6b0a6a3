#include "feed/verify.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <vector>

#include "base/text.h"
#include "feed/in_order.h"
#include "feed/source.h"

namespace flatout::feed {
namespace {

class MeanColour : public RowSink {
 public:
  explicit MeanColour(Size size) : size_(size) {}
  void restart() override { sum_ = {}; }
  void rows(const uint8_t* first, size_t stride, int count) override {
    for (int y = 0; y < count; ++y) {
      const uint8_t* pixel = first + static_cast<size_t>(y) * stride;
      std::array<uint64_t, 3> sum{};
      for (int x = 0; x < size_.width; ++x, pixel += 4) {
        for (size_t c = 0; c < 3; ++c) sum[c] += pixel[c];
      }
      for (size_t c = 0; c < 3; ++c) sum_[c] += sum[c];
    }
  }
  std::array<double, 3> mean() const {
    const double pixels = static_cast<double>(size_.width) * size_.height;
    std::array<double, 3> out{};
    for (size_t c = 0; c < 3; ++c) out[c] = static_cast<double>(sum_[c]) / pixels;
    return out;
  }

 private:
  Size size_;
  std::array<uint64_t, 3> sum_{};
};

// All samples of an archive as one: its own damage, or else the first bad sample's, is its outcome.
Status verify_archive(const Source& source, PictureDecoder& decoder, Verified& out) {
  out.samples = source.count();
  if (!source.damage().empty()) out.verdict = source.damage()[0].verdict;
  Sample sample;
  uint64_t pictures = 0;
  for (uint64_t i = 0; i < source.count(); ++i) {
    auto read = source.read(i, sample);
    if (!read.ok()) read = unreadable(read.error());
    FLATOUT_TRY(Verdict verdict, std::move(read));
    if (verdict.ok()) {
      const Verified one = verify_picture(decoder, sample.picture);
      verdict = one.verdict;
      if (source.count() == 1) out.size = one.size;
      if (verdict.ok()) {
        ++pictures;
        for (size_t c = 0; c < 3; ++c) out.mean_rgb[c] += one.mean_rgb[c];
      }
    }
    if (!verdict.ok() && out.verdict.ok())
      out.verdict = {verdict.outcome, source.name(i) + ": " + verdict.detail};
  }
  for (double& mean : out.mean_rgb) mean /= static_cast<double>(std::max<uint64_t>(pictures, 1));
  return {};
}

struct Slot {
  Verified verified;
  Status status;
};

struct Worker {
  PictureDecoder decoder;
  std::vector<uint8_t> bytes;
  Sample sample;
};

// Each of `count` files, told in order.
Status verify_each(uint64_t count, int threads, const std::function<Slot(uint64_t, Worker&)>& look,
                   const std::function<Status(const Verified&)>& each) {
  const size_t workers = workers_for(threads);
  std::vector<Worker> own(workers);
  return in_order(
      count, workers, [&](uint64_t i, size_t worker) { return look(i, own[worker]); },
      [&](const Slot& slot) -> Status {
        FLATOUT_TRY_STATUS(slot.status);
        return each(slot.verified);
      });
}

Status verify_one(const Source& list, uint64_t index, Worker& worker, Verified& out) {
  auto read = list.read(index, worker.sample);
  if (!read.ok()) read = unreadable(read.error());
  FLATOUT_TRY(out.verdict, std::move(read));
  if (out.verdict.ok()) out = verify_picture(worker.decoder, worker.sample.picture);
  return {};
}

}  // namespace

Verified verify_picture(PictureDecoder& decoder, std::span<const uint8_t> data) {
  Verified out;
  out.verdict = decoder.open(data);
  out.size = decoder.size();
  if (!out.verdict.ok()) return out;
  MeanColour mean(out.size);
  Decoding how;
  how.whole = true;
  out.verdict = decoder.decode({0, 0, out.size.width, out.size.height}, how, mean);
  if (out.verdict.ok()) out.mean_rgb = mean.mean();
  return out;
}

Status verify(const std::string& path, int threads,
              const std::function<Status(const Verified&)>& each) {
  FLATOUT_TRY(const std::vector<std::string> files, list_files(path));
  const bool is_one = files.size() == 1 && files[0].empty();
  std::unique_ptr<Source> list;
  if (is_one) {
    FLATOUT_TRY(list, open_named_list(path));
  }
  if (list) {
    return verify_each(
        list->count(), threads,
        [&](uint64_t i, Worker& worker) {
          Slot slot;
          slot.status = verify_one(*list, i, worker, slot.verified);
          slot.verified.file = list->name(i);
          return slot;
        },
        each);
  }
  const Limits limits;
  const auto look = [&](const std::string& full, Worker& worker, Verified& out) -> Status {
    const auto archive = open_archive(full);
    if (!archive.ok() && archive.error().code == Code::kBadInput) {
      out.samples = 0;
      out.verdict = {Outcome::kCorrupt, archive.error().message};
      return {};
    }
    if (archive.ok() && *archive) return verify_archive(**archive, worker.decoder, out);
    const Status read =
        archive.ok() ? read_file(full, limits.file_bytes, worker.bytes) : Status(archive.error());
    if (read.ok()) {
      out = verify_picture(worker.decoder, worker.bytes);
    } else {
      FLATOUT_TRY(out.verdict, unreadable(read.error()));
    }
    return {};
  };
  return verify_each(
      files.size(), threads,
      [&](uint64_t i, Worker& worker) {
        Slot slot;
        slot.status = look(is_one ? path : path + "/" + files[i], worker, slot.verified);
        slot.verified.file = is_one ? path : files[i];
        return slot;
      },
      each);
}

std::string verified_json(const Verified& verified) {
  nlohmann::ordered_json out;
  out["file"] = to_utf8(verified.file);
  out["outcome"] = std::string(outcome_name(verified.verdict.outcome));
  const bool sized = verified.size.width > 0;
  out["width"] = sized ? nlohmann::ordered_json(verified.size.width) : nullptr;
  out["height"] = sized ? nlohmann::ordered_json(verified.size.height) : nullptr;
  out["mean_rgb"] = verified.verdict.ok() ? nlohmann::ordered_json(verified.mean_rgb) : nullptr;
  out["samples"] = verified.samples;
  out["detail"] = to_utf8(verified.verdict.detail);
  return out.dump();
}

}  // namespace flatout::feed
