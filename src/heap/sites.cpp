#include "heap/sites.h"

#include <algorithm>
#include <tuple>

#include "base/contains.h"
#include "model/source_files.h"

namespace flatout::heap {
namespace {

std::string_view base_name(std::string_view path) { return path.substr(path.rfind('/') + 1); }

// How much the value grows with each step, over the second half of the moments from `first` on.
std::optional<double> per_step(const Record& record, const std::vector<uint64_t>& at_moment,
                               size_t first, const std::vector<uint64_t>& step_ends_ns) {
  std::vector<double> steps, bytes;
  for (size_t i = first + (at_moment.size() - first) / 2; i < at_moment.size(); ++i) {
    const auto done =
        std::upper_bound(step_ends_ns.begin(), step_ends_ns.end(), record.moments_ns[i]);
    steps.push_back(static_cast<double>(done - step_ends_ns.begin()));
    bytes.push_back(static_cast<double>(at_moment[i]));
  }
  if (steps.empty() || steps.front() == steps.back()) return std::nullopt;
  return slope(steps, bytes);
}

}  // namespace

bool is_library_file(std::string_view file) {
  if (model::is_agent(file)) return true;
  for (const std::string_view part : {"site-packages/", "dist-packages/", "/lib/python3",
                                      "/include/c++/", "sysdeps/", "/rustc/"}) {
    if (contains(file, part)) return true;
  }
  // Not all of /usr: /usr/src/app is where containers have the program.
  for (const std::string_view root : {"<frozen ", "/usr/include/", "/usr/lib",
                                      "/usr/local/include/", "/usr/local/lib", "/usr/bin/"}) {
    if (file.starts_with(root)) return true;
  }
  return false;
}

FrameReader::FrameReader(const Record& record, symbols::NativeSymbols* symbols)
    : record_(record), symbols_(symbols), maps_(symbols::parse_maps(record.maps)) {}

const FrameReader::Call& FrameReader::call_at(uint64_t pc) {
  const auto [known, fresh] = calls_.try_emplace(pc);
  Call& call = known->second;
  if (!fresh) return call;
  const symbols::Mapping* mapping = symbols::find_mapping(maps_, pc - 1);
  const std::string_view binary = mapping == nullptr ? "" : base_name(mapping->path);
  call.allocator = binary.starts_with("libflatout_malloc");
  call.interpreter = binary.starts_with("libpython3") || binary.starts_with("python3");
  if (symbols_ == nullptr || call.allocator) return call;
  for (symbols::NativeFrame& f : symbols_->call_at(pc)) {
    if (f.function.empty() && f.file.empty()) continue;
    call.frames.push_back({std::move(f.function), std::move(f.file), f.line, false});
  }
  return call;
}

std::vector<Frame> FrameReader::frames(const RecordStack& stack) {
  std::vector<Frame> out;
  for (const uint64_t pc : stack.native) {
    const Call& call = call_at(pc);
    if (call.interpreter && !stack.python.empty()) break;
    if (!call.allocator) out.insert(out.end(), call.frames.begin(), call.frames.end());
  }
  for (const uint32_t id : stack.python) {
    const auto place = record_.places.find(id);
    if (place == record_.places.end()) continue;
    const PythonPlace& p = place->second;
    out.push_back({p.function, p.file, p.line, true});
  }
  return out;
}

size_t blamed_frame(const std::vector<Frame>& frames) {
  const auto first = [&](auto wanted) {
    return static_cast<size_t>(std::find_if(frames.begin(), frames.end(), wanted) - frames.begin());
  };
  // A Python program's line says more than that of an extension module that it calls.
  const size_t any = first([](const Frame& f) { return f.python; });
  const size_t other = first([](const Frame& f) { return f.python && !model::is_agent(f.file); });
  const size_t python = other < frames.size() ? other : any;
  const size_t own = first([&](const Frame& f) {
    return f.line > 0 && !is_library_file(f.file) && (f.python || python == frames.size());
  });
  if (own < frames.size()) return own;
  return python < frames.size() ? python : 0;
}

bool has_steps(const std::vector<uint64_t>& step_ends_ns) { return step_ends_ns.size() >= 2; }

size_t first_moment(const Record& record, const std::vector<uint64_t>& step_ends_ns) {
  uint64_t begin = record.forked_ns;
  if (has_steps(step_ends_ns)) begin = std::max(begin, step_ends_ns.front());
  const std::vector<uint64_t>& moments = record.moments_ns;
  return static_cast<size_t>(std::lower_bound(moments.begin(), moments.end(), begin) -
                             moments.begin());
}

// Every so manyth, the last among them. Many moments are there for what begins late in the record;
// how much chance is in a trend was found out with so few of them.
std::vector<uint64_t> thinned(const std::vector<uint64_t>& at_moment) {
  constexpr size_t kMost = 64;
  const size_t n = at_moment.size(), every = std::max<size_t>(1, (n + kMost - 1) / kMost);
  std::vector<uint64_t> out;
  for (size_t i = (n + every - 1) % every; i < n; i += every) out.push_back(at_moment[i]);
  return out;
}

// Without the last few where all was let go of: an interpreter frees what its modules hold when the
// program ends, and a moment or two of the record may lie behind that.
void leave_out_the_end(std::vector<uint64_t>& at_moment) {
  const size_t n = at_moment.size();
  for (size_t i = n - std::min(n, n / 50 + 1); i < n; ++i) {
    if (i == 0 || at_moment[i] >= at_moment[i - 1] / 2) continue;
    at_moment.resize(i);
    return;
  }
}

bool is_importing(const std::vector<Frame>& frames, size_t blamed) {
  const auto end =
      frames.begin() + static_cast<std::ptrdiff_t>(std::min(blamed + 1, frames.size()));
  return std::any_of(frames.begin(), end, [](const Frame& f) {
    return f.python && f.file.starts_with("<frozen importlib.");
  });
}

std::vector<Site> find_sites(const Record& record, symbols::NativeSymbols* symbols,
                             const std::vector<uint64_t>& step_ends_ns) {
  FrameReader reader(record, symbols);
  std::map<std::tuple<std::string, uint32_t, std::string>, Site> sites;
  std::map<const Site*, uint64_t> largest;
  std::map<const Site*, std::vector<uint64_t>> imported;  // of at_moment, where there are no steps
  const size_t first = first_moment(record, step_ends_ns);
  const bool steps = has_steps(step_ends_ns);
  const std::vector<uint64_t> counted_ns(
      record.moments_ns.begin() + static_cast<std::ptrdiff_t>(first), record.moments_ns.end());
  for (const RecordStack& s : record.stacks) {
    std::vector<Frame> frames = reader.frames(s);
    const size_t at = blamed_frame(frames);
    const Frame blamed = at < frames.size() ? frames[at] : Frame{};
    Site& site = sites[{blamed.file, blamed.line, blamed.function}];
    site.function = blamed.function;
    site.file = blamed.file;
    site.line = blamed.line;
    site.live_bytes += s.live_bytes;
    site.live_count += s.live_count;
    site.total_bytes += s.total_bytes;
    site.total_count += s.total_count;
    site.peak_bytes += s.peak_bytes;
    site.samples += s.samples;
    // For now the sum of squares.
    site.sample_bytes += static_cast<double>(s.live_bytes) * static_cast<double>(s.sample_bytes);
    site.at_moment.resize(record.moments_ns.size());
    for (size_t i = 0; i < site.at_moment.size(); ++i) site.at_moment[i] += s.at_moment[i];
    if (!steps && is_importing(frames, at)) {
      std::vector<uint64_t>& part = imported[&site];
      part.resize(record.moments_ns.size());
      for (size_t i = 0; i < part.size(); ++i) part[i] += s.at_moment[i];
    }
    uint64_t& most = largest[&site];
    if (site.stack.empty() || s.peak_bytes > most) {
      most = s.peak_bytes;
      site.stack = std::move(frames);
    }
  }
  std::vector<Site> out;
  for (auto& [key, site] : sites) {
    if (site.live_bytes > 0) {
      site.sample_bytes /= static_cast<double>(site.live_bytes);
    } else if (site.samples > 0) {  // freed by the program's end
      site.sample_bytes = static_cast<double>(site.total_bytes) / static_cast<double>(site.samples);
    }
    std::vector<uint64_t> counted(site.at_moment.begin() + static_cast<std::ptrdiff_t>(first),
                                  site.at_moment.end());
    if (const auto part = imported.find(&site); part != imported.end()) {
      for (size_t i = 0; i < counted.size(); ++i) counted[i] -= part->second[first + i];
    }
    leave_out_the_end(counted);
    site.growth = steady_growth(thinned(counted), site.sample_bytes);
    if (!steps && !(site.growth && site.growth->certain)) {
      const auto over_time = growth_over_time(counted, counted_ns, site.sample_bytes);
      if (over_time) site.growth = over_time;
    }
    std::vector<uint64_t> kept = site.at_moment;
    leave_out_the_end(kept);
    site.bytes_per_step = per_step(record, kept, first, step_ends_ns);
    out.push_back(std::move(site));
  }
  std::stable_sort(out.begin(), out.end(),
                   [](const Site& a, const Site& b) { return a.peak_bytes > b.peak_bytes; });
  return out;
}

std::vector<const Site*> leaks_of(const std::vector<Site>& sites, bool certain) {
  std::vector<const Site*> out;
  for (const Site& site : sites) {
    if (site.growth && site.growth->certain == certain) out.push_back(&site);
  }
  std::stable_sort(out.begin(), out.end(), [](const Site* a, const Site* b) {
    return a->growth->bytes > b->growth->bytes;
  });
  return out;
}

}  // namespace flatout::heap
