#include "screen/gpu_panel.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <vector>

#include "screen/panel_parts.h"
#include "screen/panels.h"

namespace flatout::screen {
namespace {

constexpr size_t kMostGpus = 16;
constexpr int kCurveRows = 4;
constexpr int kCurveLabel = 5;  // columns of "util " beside a curve

// Each level of detail has what those before it have.
enum class Detail : uint8_t { kFigures, kInstances, kHolders, kCurves };

// The line with the holders stands below the parts of a divided GPU, which name their own.
bool has_holders(const Gpu& gpu) { return gpu.now.instances.empty() && !gpu.now.processes.empty(); }

int lines_of(const Gpu& gpu, Detail detail) {
  if (!gpu.now.error.empty()) return 1;
  int lines = 1;
  if (detail >= Detail::kInstances) lines += static_cast<int>(gpu.now.instances.size());
  if (detail >= Detail::kHolders && has_holders(gpu)) ++lines;
  if (detail >= Detail::kCurves) lines += kCurveRows;
  return lines;
}

int lines_of(const Snapshot& s, Detail detail) {
  int lines = 0;
  for (size_t i = 0; i < s.gpus.size() && i < kMostGpus; ++i) lines += lines_of(s.gpus[i], detail);
  return lines;
}

Detail most_detail(const Snapshot& s, int lines) {
  for (const Detail detail : {Detail::kCurves, Detail::kHolders, Detail::kInstances}) {
    if (lines_of(s, detail) <= lines) return detail;
  }
  return Detail::kFigures;
}

std::string throttle(uint64_t bits) {
  // nvml.h, nvmlClocksEventReasons.
  struct Reason {
    uint64_t bits;
    const char* text;
  };
  static constexpr Reason kReasons[] = {
      {0x4, "power"}, {0x20 | 0x40, "heat"}, {0x80, "power brake"}, {0x8, "hardware"}};
  std::string out;
  for (const Reason& reason : kReasons) {
    if ((bits & reason.bits) != 0) out += (out.empty() ? "" : ",") + std::string(reason.text);
  }
  return out;
}

std::string memory_of(const std::optional<uint64_t>& used, const std::optional<uint64_t>& total) {
  return fmt::format("{:>5}/{}", bytes(used), bytes(total));
}

std::optional<double> share(const std::optional<uint64_t>& used,
                            const std::optional<uint64_t>& total) {
  if (!used || !total || *total == 0) return std::nullopt;
  return static_cast<double>(*used) / static_cast<double>(*total);
}

class GpuPanel {
 public:
  GpuPanel(Canvas& canvas, const Snapshot& s, const History& history)
      : canvas_(canvas), s_(s), history_(history) {}

  void draw(int y, int lines) {
    const Detail detail = most_detail(s_, lines);
    const int end = y + lines;
    size_t shown = 0;
    for (; shown < s_.gpus.size(); ++shown) {
      const Gpu& gpu = s_.gpus[shown];
      const int height = lines_of(gpu, detail);
      if (y + height > end) break;
      draw_gpu(y, gpu, detail);
      y += height;
    }
    if (shown < s_.gpus.size()) {
      canvas_.put_right(canvas_.width(), end - 1, fmt::format(" +{} more", s_.gpus.size() - shown));
    }
  }

 private:
  int width() const { return canvas_.width(); }

  void draw_gpu(int y, const Gpu& gpu, Detail detail) {
    // Where there is no room below, the curves stand at the right.
    const int beside = detail < Detail::kCurves && width() >= 120 ? std::min(60, width() / 4) : 0;
    const uint32_t index = gpu.now.index;
    const auto util = [index](const Snapshot& s) -> std::optional<double> {
      const Gpu* one = find(s, index);
      return one == nullptr ? std::nullopt : one->now.util_ratio;
    };
    const auto memory = [index](const Snapshot& s) -> std::optional<double> {
      const Gpu* one = find(s, index);
      return one == nullptr ? std::nullopt
                            : share(one->now.mem_used_bytes, one->now.mem_total_bytes);
    };
    draw_figures(y, gpu, width() - beside, detail);
    if (!gpu.now.error.empty()) return;
    if (beside > 0) {
      const int half = beside / 2;
      draw_curve(y, 1, width() - 2 * half, half - 1, "util", Style::kCurve, util);
      draw_curve(y, 1, width() - half, half, "mem", Style::kUsed, memory);
    }
    ++y;
    if (detail >= Detail::kInstances) {
      for (const probe::MigInstance& part : gpu.now.instances) {
        draw_instance(y++, gpu, part, beside);
      }
    }
    if (detail >= Detail::kHolders && has_holders(gpu)) {
      Line line(canvas_, kPanelLabel + 4, y++, width() - beside);
      line.add("held by", Style::kDim);
      add_holders(line, gpu, nullptr);
    }
    if (detail >= Detail::kCurves) {
      const int half = (width() - kPanelLabel) / 2;
      draw_curve(y, kCurveRows, kPanelLabel, half - 1, "util", Style::kCurve, util);
      draw_curve(y, kCurveRows, kPanelLabel + half, half, "mem", Style::kUsed, memory);
    }
  }

  void draw_figures(int y, const Gpu& gpu, int end, Detail detail) {
    const probe::GpuReading& now = gpu.now;
    Line line(canvas_, kPanelLabel, y, end);
    line.add(fmt::format("{:>2}", now.index), Style::kDim);
    if (!now.error.empty()) {
      line.rest(now.error, Style::kWarning);
      return;
    }
    line.add(fmt::format("{:>6}", percent(now.util_ratio)), Style::kBold);
    line.add(memory_of(now.mem_used_bytes, now.mem_total_bytes));
    const auto whole = [](const std::optional<double>& value, double unit) {
      return value ? fmt::format("{:.0f}", *value * unit) : "-";
    };
    if (now.clock_sm_hz) line.add(whole(now.clock_sm_hz, 1e-6) + "MHz");
    if (now.power_w) {
      line.add(fmt::format("{}/{}W", whole(now.power_w, 1), whole(now.power_limit_w, 1)));
    }
    if (now.temperature_c) line.add(whole(now.temperature_c, 1) + "C");
    const std::string slowed = throttle(now.throttle_reasons.value_or(0));
    if (!slowed.empty()) line.add("slowed by " + slowed, Style::kWarning);
    if (now.ecc_errors.value_or(0) > 0) {
      line.add(fmt::format("ECC errors {}", *now.ecc_errors), Style::kWarning);
    }
    if (!now.instances.empty()) line.add(fmt::format("MIG {}", now.instances.size()));
    if (detail < Detail::kHolders && has_holders(gpu)) add_holders(line, gpu, nullptr, 1);
    if (now.pcie_rx_bytes_per_s || now.pcie_tx_bytes_per_s) {
      line.add(fmt::format("PCIe in {}/s out {}/s",
                           short_bytes(now.pcie_rx_bytes_per_s.value_or(0)),
                           short_bytes(now.pcie_tx_bytes_per_s.value_or(0))));
    }
    line.rest(gpu.name, Style::kDim);
  }

  void draw_instance(int y, const Gpu& gpu, const probe::MigInstance& part, int beside) {
    Line line(canvas_, kPanelLabel + 4, y, width() - beside);
    line.add(fmt::format("{:>2}.{}", part.gpu_instance, part.compute_instance), Style::kDim);
    line.add(fmt::format("{:<8}", part.profile));
    line.add(memory_of(part.mem_used_bytes, part.mem_total_bytes));
    add_holders(line, gpu, &part);
    if (beside == 0) return;
    const int half = beside / 2;
    const auto memory = [index = gpu.now.index, part](const Snapshot& s) -> std::optional<double> {
      const Gpu* one = find(s, index);
      if (one == nullptr) return std::nullopt;
      for (const probe::MigInstance& other : one->now.instances) {
        if (other.gpu_instance == part.gpu_instance &&
            other.compute_instance == part.compute_instance) {
          return share(other.mem_used_bytes, other.mem_total_bytes);
        }
      }
      return std::nullopt;
    };
    draw_curve(y, 1, width() - half, half, "mem", Style::kUsed, memory);
  }

  // "4100 python3 8.38G" for each that holds memory of the GPU, or of one part of it, those with
  // most of it first; "+2" for those that do not fit.
  void add_holders(Line& line, const Gpu& gpu, const probe::MigInstance* part,
                   size_t most = SIZE_MAX) {
    std::vector<const probe::GpuProcess*> holders;
    for (const probe::GpuProcess& process : gpu.now.processes) {
      if (part == nullptr || part->has(process)) holders.push_back(&process);
    }
    std::stable_sort(holders.begin(), holders.end(), [](const auto* a, const auto* b) {
      return a->memory_bytes.value_or(0) > b->memory_bytes.value_or(0);
    });
    size_t shown = 0;
    for (; shown < holders.size() && shown < most; ++shown) {
      const probe::GpuProcess& process = *holders[shown];
      if (!line.add(fmt::format("{} {} {}", process.pid, name_of(process.pid),
                                bytes(process.memory_bytes)))) {
        break;
      }
    }
    if (shown < holders.size()) line.add(fmt::format("+{}", holders.size() - shown), Style::kDim);
  }

  // A driver tells processes of other containers, too, which are not to be seen from here.
  std::string name_of(int32_t pid) const {
    const auto task = std::lower_bound(s_.task_list.begin(), s_.task_list.end(), pid,
                                       [](const Task& t, int32_t p) { return t.pid < p; });
    return task == s_.task_list.end() || task->pid != pid ? "?" : task->comm.data();
  }

  static const Gpu* find(const Snapshot& s, uint32_t index) {
    for (const Gpu& gpu : s.gpus) {
      if (gpu.now.index == index) return &gpu;
    }
    return nullptr;
  }

  // A ratio over the snapshots until the shown one, the newest at the right.
  template <class Value>
  void draw_curve(int y, int rows, int x, int columns, std::string_view label, Style style,
                  Value value) {
    canvas_.put(x, y, label, Style::kDim);
    const auto& all = history_.all();
    int column = x + columns - 1;
    for (auto it = all.rbegin(); it != all.rend() && column >= x + kCurveLabel; ++it) {
      if ((*it)->at > s_.at) continue;
      if (const std::optional<double> ratio = value(**it)) {
        const double height = *ratio * rows;
        for (int row = 0; row < rows; ++row) {
          const double part = height - row;
          if (part > 0 || row == 0) {
            draw_level(canvas_, column, y + rows - 1 - row, std::min(part, 1.0), style);
          }
        }
      }
      --column;
    }
  }

  Canvas& canvas_;
  const Snapshot& s_;
  const History& history_;
};

}  // namespace

int gpu_panel_lines(const Snapshot& snapshot, int room) {
  return lines_of(snapshot, most_detail(snapshot, room / 2));
}

void draw_gpu_panel(Canvas& canvas, const Snapshot& snapshot, const History& history, int y,
                    int lines) {
  GpuPanel(canvas, snapshot, history).draw(y, lines);
}

}  // namespace flatout::screen
