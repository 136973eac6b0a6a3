// Chrome JSON as the output of `flatout trace convert` and `slice`.
#include <fmt/format.h>

#include <algorithm>
#include <cctype>

#include "base/text.h"
#include "timeline/chrome_scanner.h"
#include "timeline/json_scan.h"
#include "timeline/json_text.h"
#include "timeline/trace_convert.h"

namespace flatout::timeline {

using namespace model;  // NOLINT: the nouns of the whole room

namespace {

// Length of the escape that `text` begins with, backslash and all; 0: JSON knows none like it.
size_t escape_length(std::string_view text) {
  if (text.size() < 2) return 0;
  if (text[1] != 'u')
    return std::string_view("\"\\/bfnrt").find(text[1]) != std::string_view::npos ? 2 : 0;
  constexpr size_t kUnicode = 6;  // \u12ab
  const bool hex =
      text.size() >= kUnicode && std::all_of(text.begin() + 2, text.begin() + kUnicode,
                                             [](unsigned char h) { return std::isxdigit(h) != 0; });
  return hex ? kUnicode : 0;
}

// Whether the text may be copied as it is: nothing to mend is in it.
bool is_clean(std::string_view text) {
  bool in_string = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const auto c = static_cast<unsigned char>(text[i]);
    if (in_string) {
      if (c < 0x20 || c >= 0x80) return false;
      if (c == '\\') {
        const size_t length = escape_length(text.substr(i));
        if (length == 0) return false;
        i += length - 1;
      } else if (c == '"') {
        in_string = false;
      }
    } else if (c == '"') {
      in_string = true;
    } else if (c == 'N' || c == 'I' || c == '\'' || c >= 0x80) {
      return false;
    }
  }
  return true;
}

// Microseconds with their nanoseconds, exactly.
void append_us(std::string& out, int64_t ns) {
  if (ns < 0) out += '-';
  const uint64_t size = ns < 0 ? ~static_cast<uint64_t>(ns) + 1 : static_cast<uint64_t>(ns);
  fmt::format_to(std::back_inserter(out), "{}.{:03}", size / 1000, size % 1000);
}

bool overlaps(const TimeWindow& window, int64_t begin, int64_t end) {
  return begin < window.end_ns &&
         (end > window.begin_ns || (end == begin && begin >= window.begin_ns));
}

class Copier : public ChromeSink {
 public:
  Copier(ByteSink& to, const TimeWindow& window)
      : to_(to), window_(window), windowed_(window != TimeWindow()) {}

  void event(const ChromeEvent& e) override {
    if (windowed_ && e.phase != 'M' &&
        (!e.has_time ||
         !overlaps(window_, e.time_ns, e.time_ns + std::max<int64_t>(0, e.duration_ns))))
      return;
    if (!in_list_) {
      if (in_object_) {
        to_.write(",\n");
      } else {
        to_.write("{\n");
        in_object_ = true;
      }
      to_.write("\"traceEvents\": [\n");
      in_list_ = true;
    } else {
      to_.write(",\n");
    }
    write(e.text);
    ++done_.events;
    if (e.phase == 'M') ++done_.names;
  }

  void member(std::string_view key, std::string_view value) override {
    if (in_list_ && !closed_) {
      to_.write("\n]");
      closed_ = true;
    }
    to_.write(in_object_ ? ",\n" : "{\n");
    in_object_ = true;
    write("\"" + std::string(key) + "\"");
    to_.write(": ");
    write(value);
  }

  Converted finish(const ScanReport& report) {
    if (!in_object_) to_.write("{\n");
    if (!in_list_) to_.write(in_object_ ? ",\n\"traceEvents\": [\n" : "\"traceEvents\": [\n");
    if (!closed_) to_.write("\n]");
    to_.write("\n}\n");
    done_.cut_off = report.has_list && !report.complete;
    return done_;
  }

 private:
  void write(std::string_view text) {
    if (is_clean(text)) {
      to_.write(text);
      return;
    }
    bool changed = false;
    to_.write(mend_json(text, changed));
    if (changed) ++done_.repaired;
  }

  ByteSink& to_;
  TimeWindow window_;
  bool windowed_;
  Converted done_;
  bool in_object_ = false, in_list_ = false, closed_ = false;
};

}  // namespace

std::string mend_json(std::string_view text, bool& changed) {
  const std::string valid = to_utf8(text);
  changed = valid != text;
  std::string out;
  out.reserve(valid.size() + 16);
  bool in_string = false;
  for (size_t i = 0; i < valid.size(); ++i) {
    const char c = valid[i];
    if (in_string) {
      if (c == '\\') {
        const size_t length = escape_length(std::string_view(valid).substr(i));
        if (length > 0) {
          out.append(valid, i, length);
          i += length - 1;
        } else {
          out += "\\\\";
          changed = true;
        }
      } else if (static_cast<unsigned char>(c) < 0x20) {
        out += fmt::format("\\u{:04x}", static_cast<unsigned>(static_cast<unsigned char>(c)));
        changed = true;
      } else {
        in_string = c != '"';
        out += c;
      }
      continue;
    }
    if (c == '"') {
      in_string = true;
      out += c;
    } else if (std::isalpha(static_cast<unsigned char>(c)) != 0) {
      // A bare word: true, false, null, or what is no JSON (NaN, Infinity, nan, inf). The e of 1e5
      // follows a digit.
      size_t end = i;
      while (end < valid.size() && std::isalnum(static_cast<unsigned char>(valid[end])) != 0) ++end;
      const std::string_view word = std::string_view(valid).substr(i, end - i);
      const bool number = i > 0 && (std::isdigit(static_cast<unsigned char>(valid[i - 1])) != 0 ||
                                    valid[i - 1] == '.');
      if (word == "true" || word == "false" || word == "null" || number) {
        out += word;
      } else {
        if (!out.empty() && (out.back() == '-' || out.back() == '+')) out.pop_back();
        out += "null";
        changed = true;
      }
      i = end - 1;
    } else {
      out += c;
    }
  }
  return out;
}

Result<Converted> copy_chrome(ByteSource& from, ByteSink& to, const TimeWindow& window) {
  Copier copier(to, window);
  FLATOUT_TRY(const ScanReport report, scan_chrome(from, copier));
  if (!report.has_list) {
    return Error{Code::kBadInput, "the file is JSON without a list of trace events",
                 "a trace has \"traceEvents\""};
  }
  const Converted done = copier.finish(report);
  FLATOUT_TRY_STATUS(to.finish());
  return done;
}

Result<Converted> write_chrome(const Trace& trace, ByteSink& to, const TimeWindow& window) {
  Converted done;
  done.cut_off = trace.damage.cut_off;
  std::string out = "{\n\"displayTimeUnit\": \"ms\",\n";
  if (trace.base_time_ns != 0)
    fmt::format_to(std::back_inserter(out), "\"baseTimeNanoseconds\": {},\n", trace.base_time_ns);
  if (trace.rank >= 0)
    fmt::format_to(std::back_inserter(out),
                   "\"distributedInfo\": {{\"rank\": {}, \"world_size\": {}}},\n", trace.rank,
                   trace.world_size);
  out += "\"traceEvents\": [\n";
  bool first = true;
  const auto next = [&] {
    if (!first) out += ",\n";
    first = false;
    if (out.size() > (1 << 16)) {
      to.write(out);
      out.clear();
    }
  };
  std::vector<std::string> strings(trace.strings.size());
  for (StringId id = 0; id < strings.size(); ++id) strings[id] = json_string(trace.strings[id]);
  std::vector<std::string> categories;
  for (const std::string& category : trace.categories) categories.push_back(json_string(category));
  // Devices and their streams by number, as PyTorch has it; threads by their number in the trace
  // where theirs is none.
  std::vector<std::string> tracks;
  for (size_t i = 0; i < trace.tracks.size(); ++i) {
    const TraceTrack& track = trace.tracks[i];
    const auto word = [&](const std::string& text) {
      return parse_number<int64_t>(text) ? std::string(trim(text)) : json_string(text);
    };
    std::string at =
        track.is_stream ? fmt::format("\"pid\": {}, \"tid\": {}", track.device, track.stream)
                        : fmt::format("\"pid\": {}, \"tid\": {}", word(track.pid), word(track.tid));
    for (const auto& [kind, name] :
         {std::pair("process_name", &track.process), std::pair("thread_name", &track.thread)}) {
      if (name->empty()) continue;
      next();
      fmt::format_to(std::back_inserter(out),
                     "{{\"ph\": \"M\", \"name\": \"{}\", {}, \"args\": {{\"name\": {}}}}}", kind,
                     at, json_string(*name));
    }
    tracks.push_back(std::move(at));
  }
  size_t copy = 0;
  for (size_t i = 0; i < trace.size(); ++i) {
    const auto e = static_cast<EventId>(i);
    while (copy < trace.copies.size() && trace.copies[copy].event < e) ++copy;
    if (!overlaps(window, trace.start[i], trace.end(e))) continue;
    next();
    out += "{\"ph\": \"X\", \"cat\": ";
    out += categories[trace.category[i]];
    out += ", \"name\": ";
    out += strings[trace.name[i]];
    out += ", ";
    out += tracks[trace.track[i]];
    out += ", \"ts\": ";
    append_us(out, trace.start[i]);
    out += ", \"dur\": ";
    append_us(out, trace.duration[i]);
    const TraceTrack& track = trace.tracks[trace.track[i]];
    if (track.is_stream || trace.correlation[i] != 0) {
      out += ", \"args\": {";
      if (track.is_stream)
        fmt::format_to(std::back_inserter(out), "\"device\": {}, \"stream\": {}{}", track.device,
                       track.stream, trace.correlation[i] != 0 ? ", " : "");
      if (trace.correlation[i] != 0)
        fmt::format_to(std::back_inserter(out), "\"correlation\": {}", trace.correlation[i]);
      if (track.is_stream && copy < trace.copies.size() && trace.copies[copy].event == e)
        fmt::format_to(std::back_inserter(out), ", \"bytes\": {}", trace.copies[copy].bytes);
      out += "}";
    }
    out += "}";
    ++done.events;
  }
  out += "\n]\n}\n";
  to.write(out);
  FLATOUT_TRY_STATUS(to.finish());
  return done;
}

}  // namespace flatout::timeline
