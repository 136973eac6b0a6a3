#include "screen/panels.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <initializer_list>
#include <utility>
#include <vector>

#include "base/text.h"
#include "model/step.h"

namespace flatout::screen {
namespace {

constexpr int kLabel = 5;  // columns of a panel's name
constexpr std::string_view kLevels[] = {"▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"};
constexpr std::string_view kPlainLevels[] = {"_", ".", "-", "=", "+", "*", "#", "@"};

std::string percent(double ratio) { return fmt::format("{:.1f}%", ratio * 100); }
std::string percent(const std::optional<double>& ratio) { return ratio ? percent(*ratio) : "-"; }
std::string bytes(uint64_t value) { return short_bytes(static_cast<double>(value)); }

struct BarPart {
  double share;
  Style style;
  char plain;  // tells the parts apart where there are no colours
};

// "[|||||::    text]" between two columns.
void draw_bar(Canvas& canvas, int x, int y, int end, std::initializer_list<BarPart> parts,
              std::string_view text) {
  const int width = end - x - 2;
  if (width < 4) return;
  canvas.put(x, y, "[", Style::kBold);
  canvas.put(end - 1, y, "]", Style::kBold);
  double sum = 0;
  int from = 0;
  for (const BarPart& part : parts) {
    sum += std::clamp(part.share, 0.0, 1.0);
    const int to = std::min(width, static_cast<int>(std::lround(sum * width)));
    canvas.fill(x + 1 + from, y, to - from, static_cast<char32_t>(part.plain), part.style);
    from = std::max(from, to);
  }
  // The figure stands over the bar's end; where the bar is below it, in the bar's colour.
  const int at = end - 1 - static_cast<int>(text.size());
  for (size_t i = 0; i < text.size() && at > x; ++i) {
    const int column = at + static_cast<int>(i);
    const Style style = canvas.at(column, y).style;
    canvas.put(column, y, text.substr(i, 1), style == Style::kPlain ? Style::kDim : style,
               column + 1);
  }
}

void draw_level(Canvas& canvas, int x, int y, double share, Style style) {
  const auto level = static_cast<size_t>(std::clamp(std::lround(share * 7), 0L, 7L));
  canvas.put_either(x, y, kLevels[level], kPlainLevels[level], style);
}

// Pieces of text on one line, as many as fit.
class Line {
 public:
  Line(Canvas& canvas, int x, int y, int end) : canvas_(canvas), x_(x), y_(y), end_(end) {}
  /// False where it does not fit any more.
  bool add(std::string_view text, Style style = Style::kPlain) {
    const int gap = first_ ? 0 : 2;
    if (x_ + gap + static_cast<int>(text.size()) > end_) return false;
    x_ = canvas_.put(x_ + gap, y_, text, style, end_);
    first_ = false;
    return true;
  }
  /// What may be cut off: the last thing on the line.
  void rest(std::string_view text, Style style = Style::kPlain) {
    x_ = canvas_.put(x_ + (first_ ? 0 : 2), y_, text, style, end_);
    first_ = false;
  }
  int x() const { return x_; }

 private:
  Canvas& canvas_;
  int x_, y_, end_;
  bool first_ = true;
};

class Panels {
 public:
  Panels(Session& session, Frame& frame)
      : session_(session), s_(*session.snapshot()), frame_(frame), canvas_(frame.canvas) {}

  int draw(int y, int room) {
    struct Part {
      Panel panel;
      int lines;  // that it would like
    };
    std::vector<Part> parts;
    const auto want = [&](Panel panel, int lines) {
      if (lines > 0) parts.push_back({panel, session_.folded(panel) ? 1 : lines});
    };
    want(Panel::kCores, core_lines(room));
    want(Panel::kMemory, 2);
    want(Panel::kDisks, static_cast<int>(std::min<size_t>(busy_disks().size(), 8)));
    want(Panel::kGpus, gpu_lines(room));
    want(Panel::kJobs, static_cast<int>(std::min<size_t>(s_.jobs.size() * 2, 12)));
    // Too little room: the panel with the most lines gives one, until it fits; then the last goes.
    const auto total = [&] {
      int sum = 0;
      for (const Part& part : parts) sum += part.lines;
      return sum;
    };
    while (!parts.empty() && total() > room) {
      const auto most =
          std::max_element(parts.begin(), parts.end(),
                           [](const Part& a, const Part& b) { return a.lines < b.lines; });
      if (most->lines > 1) {
        --most->lines;
      } else {
        parts.pop_back();
      }
    }
    for (const Part& part : parts) {
      title(part.panel, y);
      if (session_.folded(part.panel)) {
        summary(part.panel, y);
      } else {
        panel(part.panel, y, part.lines);
      }
      y += part.lines;
    }
    return y;
  }

 private:
  int width() const { return canvas_.width(); }

  void title(Panel panel, int y) {
    static constexpr std::string_view kShort[] = {"CPU", "Mem", "Disk", "GPU", "Jobs"};
    canvas_.put(0, y, kShort[static_cast<size_t>(panel)], Style::kTitle);
    frame_.zones.push_back({Zone::Kind::kPanel, 0, y, kLabel, static_cast<int>(panel)});
  }

  void summary(Panel panel, int y) {
    Line line(canvas_, kLabel, y, width());
    switch (panel) {
      case Panel::kCores:
        core_totals(line);
        break;
      case Panel::kMemory:
        line.add(fmt::format("{} of {} used", bytes(s_.memory.used()), bytes(s_.memory.total)));
        line.add(fmt::format("{} available", bytes(s_.memory.available)));
        break;
      case Panel::kDisks: {
        double busy = 0;
        for (const Disk& disk : s_.disks) busy = std::max(busy, disk.busy);
        line.add(fmt::format("{} disks, the busiest {}", s_.disks.size(), percent(busy)));
        break;
      }
      case Panel::kGpus: {
        line.add(fmt::format("{} GPUs", s_.gpus.size()));
        for (const Gpu& gpu : s_.gpus) line.add(percent(gpu.now.util_ratio));
        break;
      }
      case Panel::kJobs:
        line.add(fmt::format("training jobs: {}", s_.jobs.size()));
        break;
      case Panel::kCount:
        break;
    }
  }

  void panel(Panel panel, int y, int lines) {
    switch (panel) {
      case Panel::kCores:
        draw_cores(y, lines);
        break;
      case Panel::kMemory:
        draw_memory(y, lines);
        break;
      case Panel::kDisks:
        draw_disks(y, lines);
        break;
      case Panel::kGpus:
        draw_gpus(y, lines);
        break;
      case Panel::kJobs:
        draw_jobs(y, lines);
        break;
      case Panel::kCount:
        break;
    }
  }

  // ---- cores ----

  // Bars side by side, where they fit into the lines; else a strip with a cell for each core.
  int bar_columns() const { return std::max(1, (width() - kLabel) / 24); }
  int bar_lines() const {
    const int cores = static_cast<int>(s_.cores.size());
    return (cores + bar_columns() - 1) / bar_columns();
  }
  int strip_lines() const {
    const int room = std::max(1, width() - kLabel);
    return (static_cast<int>(s_.cores.size()) + room - 1) / room;
  }
  int core_lines(int room) const {
    if (s_.cores.empty()) return 0;
    return 1 + (bar_lines() <= std::max(2, room / 3) ? bar_lines() : strip_lines());
  }

  void core_totals(Line& line) {
    const bool known = s_.interval_s > 0;
    if (known) line.add(percent(s_.all.busy()) + " busy", Style::kBold);
    if (s_.all.steal >= 0.0005) line.add("stolen " + percent(s_.all.steal), Style::kWarning);
    const bool crowded = s_.runnable > s_.cores.size();
    line.add(fmt::format("run queue {}", s_.runnable), crowded ? Style::kWarning : Style::kPlain);
    if (s_.blocked > 0) line.add(fmt::format("blocked {}", s_.blocked), Style::kWarning);
    waiting(line, s_.cpu_waiting);
    if (!known) return;
    line.add(fmt::format("user {} system {} wait {}", percent(s_.all.user), percent(s_.all.system),
                         percent(s_.all.iowait)));
  }

  void waiting(Line& line, const Waiting& w) {
    if (!w.some) return;
    line.add("pressure " + percent(w.some), *w.some >= 0.1 ? Style::kWarning : Style::kPlain);
    if (w.full && *w.full >= 0.0005) line.add("full " + percent(w.full));
  }

  void draw_cores(int y, int lines) {
    Line line(canvas_, kLabel, y, width());
    core_totals(line);
    const int rows = lines - 1;
    const size_t count = s_.cores.size();
    if (rows >= bar_lines()) {
      const int columns = bar_columns();
      const int cell = (width() - kLabel) / columns;
      for (size_t i = 0; i < count; ++i) {
        const Core& core = s_.cores[i];
        // Down the columns, as htop has them.
        const int column = static_cast<int>(i) / rows;
        const int at = y + 1 + static_cast<int>(i) % rows;
        if (column >= columns) break;
        const int x = kLabel + column * cell;
        canvas_.put_right(x + 4, at, std::to_string(core.cpu), Style::kDim);
        draw_bar(canvas_, x + 4, at, x + cell - 1,
                 {{core.user, Style::kUser, '|'},
                  {core.system, Style::kSystem, '+'},
                  {core.iowait + core.steal, Style::kWait, '.'}},
                 percent(core.busy()));
      }
      return;
    }
    const int room = width() - kLabel;
    for (size_t i = 0; i < count; ++i) {
      const int at = y + 1 + static_cast<int>(i) / room;
      if (at > y + rows) break;
      const Core& core = s_.cores[i];
      draw_level(canvas_, kLabel + static_cast<int>(i) % room, at, core.busy(),
                 core.system > core.user ? Style::kSystem : Style::kUser);
    }
  }

  // ---- memory ----

  void draw_memory(int y, int lines) {
    const Memory& m = s_.memory;
    const double total = std::max<double>(1, static_cast<double>(m.total));
    const int half = m.swap_total > 0 ? kLabel + (width() - kLabel) * 2 / 3 : width();
    draw_bar(canvas_, kLabel, y, half,
             {{static_cast<double>(m.used()) / total, Style::kUsed, '|'},
              {static_cast<double>(m.cache()) / total, Style::kCache, ':'}},
             fmt::format("{}/{}", bytes(m.used()), bytes(m.total)));
    if (m.swap_total > 0) {
      const uint64_t used = m.swap_total - std::min(m.swap_free, m.swap_total);
      canvas_.put(half + 1, y, "Swap", Style::kTitle);
      draw_bar(canvas_, half + 6, y, width(),
               {{static_cast<double>(used) / static_cast<double>(m.swap_total), Style::kWait, '|'}},
               fmt::format("{}/{}", bytes(used), bytes(m.swap_total)));
    }
    if (lines < 2) return;
    Line line(canvas_, kLabel, y + 1, width());
    if (m.group_limit) {
      const double share = static_cast<double>(m.group_used.value_or(0)) /
                           std::max<double>(1, static_cast<double>(*m.group_limit));
      line.add(fmt::format("control group {}/{}", m.group_used ? bytes(*m.group_used) : "-",
                           bytes(*m.group_limit)),
               share >= 0.9 ? Style::kWarning : Style::kPlain);
    }
    line.add("cache " + bytes(m.cache()));
    line.add("avail " + bytes(m.available));
    line.add("dirty " + bytes(m.dirty));
    if (m.writeback > 0) line.add("write-back " + bytes(m.writeback));
    waiting(line, s_.memory_waiting);
    if (m.huge_pages > 0) {
      line.add(fmt::format("huge {}/{} x {}", m.huge_pages - std::min(m.huge_free, m.huge_pages),
                           m.huge_pages, bytes(m.huge_page_bytes)));
    }
    line.add("THP " + bytes(m.transparent_huge));
    line.add("shared " + bytes(m.shmem));
  }

  // ---- disks ----

  // All that did something in the last interval, the busiest first; one at least.
  std::vector<const Disk*> busy_disks() const {
    std::vector<const Disk*> out;
    for (const Disk& disk : s_.disks) out.push_back(&disk);
    std::stable_sort(out.begin(), out.end(), [](const Disk* a, const Disk* b) {
      return std::pair(a->busy, a->requests_per_s) > std::pair(b->busy, b->requests_per_s);
    });
    while (out.size() > 1 && out.back()->requests_per_s == 0 && out.back()->in_flight == 0) {
      out.pop_back();
    }
    return out;
  }

  // Who reads and writes most on a disk; of those whose disk is not known for nullptr.
  std::string users_of(const Disk* disk) const {
    const Task* reader = nullptr;
    const Task* writer = nullptr;
    for (const Task& task : s_.task_list) {
      if (task.is_thread() || s_.disk_of(task) != disk) continue;
      if (task.read_bytes_per_s > (reader == nullptr ? 0 : reader->read_bytes_per_s))
        reader = &task;
      if (task.write_bytes_per_s > (writer == nullptr ? 0 : writer->write_bytes_per_s)) {
        writer = &task;
      }
    }
    std::string out;
    const auto add = [&](const char* what, const Task* task, float rate) {
      if (task == nullptr) return;
      out += fmt::format("{}{} {} {} {}/s", out.empty() ? "" : ", ", what, task->pid,
                         task->comm.data(), short_bytes(static_cast<double>(rate)));
    };
    add("read by", reader, reader == nullptr ? 0 : reader->read_bytes_per_s);
    add("written by", writer, writer == nullptr ? 0 : writer->write_bytes_per_s);
    return out;
  }

  void draw_disks(int y, int lines) {
    const std::vector<const Disk*> disks = busy_disks();
    for (int i = 0; i < lines; ++i) {
      const Disk& disk = *disks[static_cast<size_t>(i)];
      Line line(canvas_, kLabel, y + i, width());
      line.add(fmt::format("{:<8}", disk.name));
      line.add(fmt::format("{:>6}", percent(disk.busy)),
               disk.busy >= 0.9 ? Style::kWarning : Style::kPlain);
      line.add(fmt::format("R {:>5}/s", short_bytes(disk.read_bytes_per_s)));
      line.add(fmt::format("W {:>5}/s", short_bytes(disk.write_bytes_per_s)));
      line.add(disk.latency_s ? fmt::format("{:>7}", format_duration(nanos(*disk.latency_s * 1e9)))
                              : "      -");
      if (disk.in_flight > 0) line.add(fmt::format("queue {}", disk.in_flight));
      if (i == 0) waiting(line, s_.io_waiting);
      std::string users = users_of(&disk);
      const std::string others = i == 0 ? users_of(nullptr) : "";
      if (!others.empty()) users += (users.empty() ? "some disk " : "; some disk ") + others;
      if (!users.empty()) line.rest(users, Style::kDim);
    }
  }

  // ---- GPUs ----

  static std::string throttle(uint64_t bits) {
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

  // A line for each, and where there is room for all of them a curve below it.
  static constexpr int kCurveRows = 4;
  int gpu_lines(int room) const {
    const auto count = static_cast<int>(std::min<size_t>(s_.gpus.size(), 16));
    return count * (1 + kCurveRows) <= room / 2 ? count * (1 + kCurveRows) : count;
  }

  void draw_gpus(int y, int lines) {
    const auto count = static_cast<int>(s_.gpus.size());
    const int each = std::max(1, lines / count);
    const int shown = std::min(count, lines / each);
    for (int i = 0; i < shown; ++i) {
      const Gpu& gpu = s_.gpus[static_cast<size_t>(i)];
      // Where there is no room below, the curve stands at the right.
      const int beside = each == 1 && width() >= 120 ? std::min(40, width() / 5) : 0;
      draw_gpu(y + i * each, gpu, beside);
      if (each > 1) {
        draw_curve(y + i * each + 1, each - 1, kLabel, width() - kLabel, gpu.now.index);
      } else if (beside > 0) {
        draw_curve(y + i, 1, width() - beside, beside, gpu.now.index);
      }
    }
    if (count > shown) {
      canvas_.put_right(width(), y + lines - 1, fmt::format(" +{} more", count - shown));
    }
  }

  void draw_gpu(int y, const Gpu& gpu, int curve) {
    const probe::GpuReading& now = gpu.now;
    Line line(canvas_, kLabel, y, width() - curve);
    line.add(fmt::format("{:>2}", now.index), Style::kDim);
    if (!now.error.empty()) {
      line.rest(now.error, Style::kWarning);
      return;
    }
    line.add(fmt::format("{:>6}", percent(now.util_ratio)), Style::kBold);
    line.add(fmt::format("{:>5}/{}", now.mem_used_bytes ? bytes(*now.mem_used_bytes) : "-",
                         now.mem_total_bytes ? bytes(*now.mem_total_bytes) : "-"));
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
    if (now.pcie_rx_bytes_per_s || now.pcie_tx_bytes_per_s) {
      line.add(fmt::format("PCIe in {}/s out {}/s",
                           short_bytes(now.pcie_rx_bytes_per_s.value_or(0)),
                           short_bytes(now.pcie_tx_bytes_per_s.value_or(0))));
    }
    if (now.ecc_errors.value_or(0) > 0) {
      line.add(fmt::format("ECC errors {}", *now.ecc_errors), Style::kWarning);
    }
    line.rest(gpu.name, Style::kDim);
  }

  // Utilisation over the snapshots until the shown one, the newest at the right.
  void draw_curve(int y, int rows, int x, int columns, uint32_t index) {
    const auto& all = session_.history().all();
    int column = x + columns - 1;
    for (auto it = all.rbegin(); it != all.rend() && column > x; ++it) {
      if ((*it)->at > s_.at) continue;
      for (const Gpu& gpu : (*it)->gpus) {
        if (gpu.now.index != index || !gpu.now.util_ratio) continue;
        const double height = *gpu.now.util_ratio * rows;  // in rows
        for (int row = 0; row < rows; ++row) {
          const double part = height - row;
          if (part > 0 || row == 0) {
            draw_level(canvas_, column, y + rows - 1 - row, std::min(part, 1.0), Style::kCurve);
          }
        }
      }
      --column;
    }
  }

  // ---- jobs ----

  void draw_jobs(int y, int lines) {
    const int each = static_cast<int>(s_.jobs.size()) * 2 <= lines ? 2 : 1;
    const int shown = std::min(lines / each, static_cast<int>(s_.jobs.size()));
    for (int i = 0; i < shown; ++i) {
      const Job& job = s_.jobs[static_cast<size_t>(i)];
      Line line(canvas_, kLabel, y + i * each, width());
      line.add(std::to_string(job.pid));
      line.add(job.framework, Style::kBold);
      line.add(fmt::format("{:.1f} cores", job.cores));
      line.add(bytes(job.rss_bytes));
      if (job.gpu_bytes > 0) line.add("GPU " + bytes(job.gpu_bytes));
      line.add(fmt::format("{} processes {} threads", job.processes, job.threads));
      if (job.read_bytes_per_s) {
        line.add(fmt::format("R {}/s", short_bytes(*job.read_bytes_per_s)));
      }
      if (each == 1) progress(line, job);
      line.rest(job.name, Style::kDim);
      if (each == 2) {
        Line second(canvas_, kLabel + 2, y + i * each + 1, width());
        progress(second, job);
      }
    }
    const auto left = static_cast<int>(s_.jobs.size()) - shown;
    if (left > 0) canvas_.put_right(width(), y + lines - 1, fmt::format(" +{} more", left));
  }

  static void progress(Line& line, const Job& job) {
    if (job.folder.empty()) {
      line.add("steps are not known: flatout run, or flatout attach " + std::to_string(job.pid),
               Style::kDim);
      return;
    }
    line.add(job.steps_per_s ? format_number(*job.steps_per_s) + " steps/s" : "no steps yet",
             Style::kBold);
    if (!job.suspect.empty()) {
      line.add(job.suspect, job.suspect == "healthy" ? Style::kGood : Style::kWarning);
    }
    if (!job.where.empty()) line.add(job.where);
    std::vector<std::pair<double, model::Part>> parts;
    for (size_t i = 0; i < model::kPartCount; ++i) {
      if (job.breakdown[i] >= 0.005) {
        parts.emplace_back(job.breakdown[i], static_cast<model::Part>(i));
      }
    }
    std::sort(parts.rbegin(), parts.rend());
    for (const auto& [share, part] : parts) {
      std::string words(model::name(part));
      std::replace(words.begin(), words.end(), '_', ' ');
      line.add(words + " " + format_percent(share));
    }
  }

  Session& session_;
  const Snapshot& s_;
  Frame& frame_;
  Canvas& canvas_;
};

}  // namespace

std::string short_bytes(double bytes) {
  static constexpr char kUnits[] = {'B', 'K', 'M', 'G', 'T', 'P'};
  size_t unit = 0;
  while (bytes >= 999.5 && unit + 1 < std::size(kUnits)) {
    bytes /= 1024;
    ++unit;
  }
  // 1000 to 1023 of a unit are written as a part of the next: three digits are enough.
  if (unit == 0 || bytes >= 99.95) return fmt::format("{:.0f}{}", bytes, kUnits[unit]);
  return fmt::format("{:.{}f}{}", bytes, bytes >= 9.995 ? 1 : 2, kUnits[unit]);
}

std::string cpu_time(uint64_t ticks, double tick_ns) {
  const auto hundredths = static_cast<uint64_t>(static_cast<double>(ticks) * tick_ns * 1e-7);
  const uint64_t minutes = hundredths / 6000;
  if (minutes >= 60 * 1000) return fmt::format("{}d{:02}h", minutes / 1440, minutes / 60 % 24);
  if (minutes >= 60) return fmt::format("{}h{:02}m", minutes / 60, minutes % 60);
  return fmt::format("{}:{:02}.{:02}", minutes, hundredths / 100 % 60, hundredths % 100);
}

int draw_panels(Session& session, Frame& frame, int y, int room) {
  if (session.snapshot() == nullptr) return y;
  return Panels(session, frame).draw(y, room);
}

}  // namespace flatout::screen
