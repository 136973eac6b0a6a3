#include "timeline/import_tensorflow.h"

#include <algorithm>
#include <charconv>
#include <map>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/protobuf.h"
#include "timeline/device_names.h"

namespace flatout::timeline {

using model::EventKind;

namespace {

// XSpace
constexpr uint32_t kPlanes = 1;
// XPlane
constexpr uint32_t kPlaneName = 2, kLines = 3, kEventNames = 4, kStatNames = 5;
// XLine
constexpr uint32_t kLineId = 1, kLineName = 2, kLineTimestampNs = 3, kEvents = 4,
                   kLineDisplayName = 11;
// XEvent
constexpr uint32_t kEventMetadata = 1, kOffsetPs = 2, kDurationPs = 3, kStats = 4;

bool printable(std::string_view text) {
  return std::all_of(text.begin(), text.end(),
                     [](char c) { return static_cast<unsigned char>(c) >= ' ' && c != '\x7f'; });
}

// map<int64, message with name = 2>: id and name of one entry.
std::pair<int64_t, std::string_view> name_entry(std::string_view entry, uint32_t name_field) {
  int64_t id = 0;
  std::string_view name;
  ProtoReader r(entry);
  while (r.next()) {
    if (r.number() == 1) id = r.signed_value();
    if (r.number() != 2) continue;
    ProtoReader inner(r.bytes());
    while (inner.next()) {
      if (inner.number() == name_field && !inner.bytes().empty()) name = inner.bytes();
    }
  }
  return {id, name};
}

class XPlaneImporter {
 public:
  explicit XPlaneImporter(TraceBuilder& builder) : builder_(builder) {}

  bool plane(std::string_view bytes) {
    std::string_view name;
    std::unordered_map<int64_t, std::string_view> events, stats;
    std::vector<std::string_view> lines;
    ProtoReader r(bytes);
    while (r.next()) {
      switch (r.number()) {
        case kPlaneName:
          name = r.bytes();
          break;
        case kLines:
          lines.push_back(r.bytes());
          break;
        case kEventNames:
          events.insert(name_entry(r.bytes(), 2));
          break;
        case kStatNames:
          stats.insert(name_entry(r.bytes(), 2));
          break;
        default:
          break;
      }
    }
    int64_t correlation = -1, memcpy_details = -1;
    for (const auto& [id, stat] : stats) {
      if (stat == "correlation_id") correlation = id;
      if (stat == "memcpy_details") memcpy_details = id;
    }
    bool ok = r.ok();
    for (const std::string_view line : lines)
      ok = this->line(line, name, events, correlation, memcpy_details) && ok;
    return ok;
  }

 private:
  bool line(std::string_view bytes, std::string_view plane,
            const std::unordered_map<int64_t, std::string_view>& names, int64_t correlation_stat,
            int64_t memcpy_stat) {
    int64_t id = 0, timestamp_ns = 0;
    std::string_view name;
    std::vector<std::string_view> events;
    ProtoReader r(bytes);
    while (r.next()) {
      switch (r.number()) {
        case kLineId:
          id = r.signed_value();
          break;
        case kLineName:
          name = r.bytes();
          break;
        case kLineDisplayName:
          if (name.empty()) name = r.bytes();
          break;
        case kLineTimestampNs:
          timestamp_ns = r.signed_value();
          break;
        case kEvents:
          events.push_back(r.bytes());
          break;
        default:
          break;
      }
    }
    const int64_t device = device_of_plane(plane);
    const auto stream = stream_of_line(plane, name);
    if (device >= 0 && !stream) return r.ok();
    bool ok = r.ok();
    const std::string tid = std::string(name) + "#" + std::to_string(id);
    for (const std::string_view event : events)
      ok = this->event(event, plane, tid, device, stream, timestamp_ns, names, correlation_stat,
                       memcpy_stat) &&
           ok;
    return ok;
  }

  bool event(std::string_view bytes, std::string_view plane, const std::string& tid, int64_t device,
             const std::optional<int64_t>& stream, int64_t line_ns,
             const std::unordered_map<int64_t, std::string_view>& names, int64_t correlation_stat,
             int64_t memcpy_stat) {
    int64_t metadata = 0, offset_ps = 0, duration_ps = 0;
    ImportedSlice slice;
    ProtoReader r(bytes);
    while (r.next()) {
      switch (r.number()) {
        case kEventMetadata:
          metadata = r.signed_value();
          break;
        case kOffsetPs:
          offset_ps = r.signed_value();
          break;
        case kDurationPs:
          duration_ps = r.signed_value();
          break;
        case kStats: {
          int64_t stat = 0, value = 0;
          std::string_view text;
          ProtoReader s(r.bytes());
          while (s.next()) {
            if (s.number() == 1) stat = s.signed_value();
            if (s.number() == 3 || s.number() == 4) value = s.signed_value();
            if (s.number() == 5) text = s.bytes();
          }
          if (stat == correlation_stat && value > 0)
            slice.correlation = static_cast<uint64_t>(value);
          // "kind:... size:4096 dest:..."
          if (stat == memcpy_stat && text.find("size:") != std::string_view::npos) {
            const std::string_view digits = text.substr(text.find("size:") + 5);
            uint64_t size = 0;
            std::from_chars(digits.data(), digits.data() + digits.size(), size);
            slice.bytes = size;
          }
          break;
        }
        default:
          break;
      }
    }
    const auto name = names.find(metadata);
    slice.name = name != names.end() ? name->second : std::string_view("(no name)");
    // To the nearest nanosecond, both ends alike.
    const __int128 begin_ps = static_cast<__int128>(line_ns) * 1000 + offset_ps;
    const __int128 begin_ns = (begin_ps + 500) / 1000;
    const __int128 end_ns = (begin_ps + std::max<int64_t>(0, duration_ps) + 500) / 1000;
    slice.time_ns = static_cast<int64_t>(begin_ns);
    slice.duration_ns = static_cast<int64_t>(end_ns - begin_ns);
    slice.pid = plane;
    slice.tid = tid;
    if (device >= 0) {
      slice.device = device;
      slice.stream = *stream;
      slice.kind = kind_of_device_name(slice.name);
      slice.category = slice.kind == EventKind::kMemcpy   ? "gpu_memcpy"
                       : slice.kind == EventKind::kMemset ? "gpu_memset"
                                                          : "kernel";
    } else if (slice.correlation != 0 && is_runtime_call(slice.name)) {
      slice.kind = EventKind::kRuntime;
      slice.category = "cuda_runtime";
    } else {
      // Operators are "name:Type"; the rest is what the framework does around them.
      slice.kind = slice.name.find(':') != std::string_view::npos &&
                           slice.name.find("::") == std::string_view::npos &&
                           slice.name.find(": ") == std::string_view::npos
                       ? EventKind::kOp
                       : EventKind::kOther;
      slice.category = slice.kind == EventKind::kOp ? "cpu_op" : "host";
    }
    builder_.add(slice);
    return r.ok();
  }

  TraceBuilder& builder_;
};

}  // namespace

bool looks_like_xspace(std::string_view head) {
  ProtoReader space(head);
  if (head.empty() || static_cast<unsigned char>(head[0]) != 0x0A) return false;
  // The first plane is often longer than what is at hand: read what there is of it.
  size_t at = 1;
  while (at < head.size() && static_cast<unsigned char>(head[at]) >= 0x80) ++at;
  if (at + 1 >= head.size()) return false;
  ProtoReader plane(head.substr(at + 1));
  for (int i = 0; i < 3 && plane.next(); ++i) {
    if (plane.number() == 1 && plane.wire() == Wire::kVarint) continue;
    if (plane.number() == kPlaneName && plane.is_bytes() && !plane.bytes().empty())
      return printable(plane.bytes());
    return false;
  }
  return false;
}

bool looks_like_run_metadata(std::string_view head) {
  // step_stats { dev_stats { device: "/job:..." } }, or "/host:" and the like.
  if (head.size() < 8 || head[0] != '\x0A') return false;
  size_t at = 0;
  for (int level = 0; level < 2; ++level) {
    if (at >= head.size() || head[at] != '\x0A') return false;
    ++at;
    while (at < head.size() && static_cast<unsigned char>(head[at]) >= 0x80) ++at;
    ++at;
  }
  return at + 2 < head.size() && head[at] == '\x0A' && head[at + 2] == '/';
}

bool import_xspace(std::string_view bytes, TraceBuilder& builder) {
  ProtoReader r(bytes);
  bool ok = true;
  while (r.next()) {
    if (r.number() == kPlanes) ok = XPlaneImporter(builder).plane(r.bytes()) && ok;
  }
  return ok && r.ok();
}

bool import_run_metadata(std::string_view bytes, TraceBuilder& builder) {
  bool ok = true;
  const auto each = [&](std::string_view message, uint32_t field, auto&& visit) {
    ProtoReader r(message);
    while (r.next())
      if (r.number() == field && r.is_bytes()) visit(r.bytes());
    ok = ok && r.ok();
  };
  each(bytes, 1, [&](std::string_view step_stats) {
    each(step_stats, 1, [&](std::string_view device_stats) {
      std::string_view device;
      ProtoReader d(device_stats);
      while (d.next())
        if (d.number() == 1) device = d.bytes();
      each(device_stats, 2, [&](std::string_view node) {
        int64_t start_us = 0, start_ns = 0, end_us = 0, end_ns = 0;
        uint64_t thread = 0;
        std::string_view name, label;
        ProtoReader r(node);
        while (r.next()) {
          switch (r.number()) {
            case 1:
              name = r.bytes();
              break;
            case 2:
              start_us = r.signed_value();
              break;
            case 5:
              end_us = r.signed_value();
              break;
            case 8:
              label = r.bytes();
              break;
            case 10:
              thread = r.value();
              break;
            case 13:
              start_ns = r.signed_value();
              break;
            case 16:
              end_ns = r.signed_value();
              break;
            default:
              break;
          }
        }
        ok = ok && r.ok();
        constexpr int64_t kMost = 4'000'000'000'000'000;
        ImportedSlice slice;
        slice.time_ns = start_ns != 0 ? start_ns : std::clamp(start_us, -kMost, kMost) * 1000;
        slice.duration_ns = end_ns != 0 ? end_ns : std::clamp(end_us, int64_t{0}, kMost) * 1000;
        slice.pid = device;
        const std::string tid = std::to_string(thread);
        slice.tid = tid;
        // "MatMul = MatMul(x, y)": the operator, as TensorFlow's own timeline names it.
        slice.name = name;
        const size_t is = label.find(" = "), open = label.find('(');
        if (is != std::string_view::npos && open != std::string_view::npos && is + 3 < open)
          slice.name = label.substr(is + 3, open - is - 3);
        const int64_t number = device_of_plane(device);
        if (number >= 0 && device.find("stream:") != std::string_view::npos) {
          // "stream:all" repeats what the numbered streams show.
          if (device.find("stream:all") == std::string_view::npos) return;
          slice.device = number;
          slice.stream = 0;
          slice.kind = kind_of_device_name(slice.name);
          slice.category = slice.kind == EventKind::kMemcpy ? "gpu_memcpy" : "kernel";
        } else {
          slice.kind = EventKind::kOp;
          slice.category = "Op";
        }
        builder.add(slice);
      });
    });
  });
  return ok;
}

}  // namespace flatout::timeline
