#include "screen/panels.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <initializer_list>
#include <utility>
#include <vector>

#include "base/text.h"
#include "model/step.h"
#include "screen/gpu_panel.h"
#include "screen/panel_parts.h"

namespace flatout::screen {
namespace {

constexpr int kLabel = kPanelLabel;

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
    want(Panel::kGpus, gpu_panel_lines(s_, room));
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
        draw_gpu_panel(canvas_, s_, session_.history(), y, lines);
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
  int strip_columns() const { return std::max(1, width() - kLabel); }
  int strip_lines() const {
    return (static_cast<int>(s_.cores.size()) + strip_columns() - 1) / strip_columns();
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
    const int columns = strip_columns();
    for (size_t i = 0; i < count; ++i) {
      const int at = y + 1 + static_cast<int>(i) / columns;
      if (at > y + rows) break;
      const Core& core = s_.cores[i];
      draw_level(canvas_, kLabel + static_cast<int>(i) % columns, at, core.busy(),
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
    if (m.group_limit || m.group_used) draw_group(line);
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

  // Page cache goes where memory is wanted: only what is held besides it makes a group full.
  void draw_group(Line& line) {
    const Memory& m = s_.memory;
    const uint64_t used = m.group_used.value_or(0);
    const uint64_t held = used - std::min(used, m.group_cache.value_or(0));
    const bool full =
        m.group_limit && static_cast<double>(held) >= 0.9 * static_cast<double>(*m.group_limit);
    line.add(fmt::format("control group{} {}/{}",
                         m.group_pid == 0 ? "" : fmt::format(" of {}", m.group_pid),
                         bytes(m.group_used), m.group_limit ? bytes(*m.group_limit) : "no limit"),
             full ? Style::kWarning : Style::kPlain);
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
  if (minutes >= 60'000) return fmt::format("{}d{:02}h", minutes / 1440, minutes / 60 % 24);
  if (minutes >= 60) return fmt::format("{}h{:02}m", minutes / 60, minutes % 60);
  return fmt::format("{}:{:02}.{:02}", minutes, hundredths / 100 % 60, hundredths % 100);
}

int draw_panels(Session& session, Frame& frame, int y, int room) {
  if (session.snapshot() == nullptr) return y;
  return Panels(session, frame).draw(y, room);
}

}  // namespace flatout::screen
