#include "feed/verify.h"

#include <algorithm>
#include <atomic>
#include <nlohmann/json.hpp>
#include <thread>
#include <vector>

#include "base/text.h"
#include "feed/source.h"

namespace flatout::feed {
namespace {

class MeanColour : public RowSink {
 public:
  explicit MeanColour(Size size) : size_(size) {}
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

struct Slot {
  Verified verified;
  Status status;
};

}  // namespace

Verified verify_picture(PictureDecoder& decoder, std::span<const uint8_t> data) {
  Verified out;
  out.verdict = decoder.open(data);
  out.size = decoder.size();
  if (!out.verdict.ok()) return out;
  MeanColour mean(out.size);
  out.verdict = decoder.decode({0, 0, out.size.width, out.size.height}, 1, true, false, mean);
  if (out.verdict.ok()) out.mean_rgb = mean.mean();
  return out;
}

Status verify(const std::string& path, int threads,
              const std::function<void(const Verified&)>& each) {
  FLATOUT_TRY(const std::vector<std::string> files, list_files(path));
  const size_t workers = threads > 0 ? static_cast<size_t>(threads)
                                     : std::max(1U, std::thread::hardware_concurrency());
  constexpr size_t kBlock = 256;  // files whose results are held at a time
  const Limits limits;
  std::vector<std::unique_ptr<PictureDecoder>> decoders;
  for (size_t i = 0; i < workers; ++i) decoders.push_back(std::make_unique<PictureDecoder>(limits));
  for (size_t begin = 0; begin < files.size(); begin += kBlock) {
    const size_t end = std::min(files.size(), begin + kBlock);
    std::vector<Slot> slots(end - begin);
    std::atomic<size_t> next{begin};
    const auto work = [&](PictureDecoder& decoder) {
      std::vector<uint8_t> bytes;
      for (size_t i = next++; i < end; i = next++) {
        Slot& slot = slots[i - begin];
        const std::string full = files[i].empty() ? path : path + "/" + files[i];
        slot.status = read_file(full, limits.file_bytes, bytes);
        if (slot.status.ok()) slot.verified = verify_picture(decoder, bytes);
        slot.verified.file = files[i].empty() ? path : files[i];
      }
    };
    std::vector<std::thread> running;
    for (size_t i = 1; i < std::min(workers, slots.size()); ++i)
      running.emplace_back(work, std::ref(*decoders[i]));
    work(*decoders[0]);
    for (std::thread& thread : running) thread.join();
    for (const Slot& slot : slots) {
      FLATOUT_TRY_STATUS(slot.status);
      each(slot.verified);
    }
  }
  return {};
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
