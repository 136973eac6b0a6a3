// flatout cache: what of a data set is in the page cache; read it in; let only it go.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <map>
#include <nlohmann/json.hpp>

#include "base/log.h"
#include "base/size_text.h"
#include "base/text.h"
#include "cache/data_set.h"
#include "cache/warm.h"
#include "cli/commands.h"
#include "cli/options.h"
#include "cli/outputs.h"
#include "feed/order.h"
#include "feed/source.h"
#include "report/terminal.h"

namespace flatout::cli {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::string_view kHelp =
    R"(flatout cache shows and steers which part of a data set the page cache holds. It never writes to a file.

  flatout cache status /data/imagenet     how much is cached, by folder, with a map
  flatout cache warm /data/imagenet       read it in, as far as that evicts nothing else
  flatout cache drop /data/imagenet       let go of it, and of nothing else: for honest measurements

Each has --help.
)";

const Usage kStatus{
    "cache status",
    "PATH... [options]",
    "Says how much of files and folders is in the page cache, and how much would fit.",
    "  flatout cache status /data/imagenet\n"
    "  flatout cache status --json train.tar",
    {},
    true,
    false,
    false,
    1,
    100'000};

const Usage kWarm{"cache warm",
                  "PATH... [options]",
                  "Reads files into the page cache in the order given (folders by name) with the "
                  "lowest I/O priority, and stops before something else would be evicted.",
                  "  flatout cache warm /data/imagenet\n"
                  "  flatout cache warm --mb-per-s 200 /data/imagenet\n"
                  "  flatout cache warm --order feed:7 /data/imagenet   # as flatout.feed's Loader "
                  "with seed=7\n"
                  "  flatout cache warm --list epoch1.txt    # in the order of the first epoch",
                  {"list", "order", "mb_per_s", "quiet"},
                  true,
                  false,
                  false,
                  0,
                  100'000};

const Usage kDrop{
    "cache drop",
    "PATH... [options]",
    "Lets go of the cached pages of these files. Dirty and mapped pages stay, and are "
    "told. With --all the whole machine's page cache, which slows down everything on "
    "it for a while and needs root.",
    "  flatout cache drop /data/imagenet\n"
    "  flatout cache drop --sync run/          # write dirty pages first\n"
    "  sudo flatout cache drop --all",
    {"sync", "all"},
    true,
    false,
    false,
    0,
    100'000};

constexpr size_t kMapRows = 4;
constexpr size_t kRows = 12;  // of folders or files

double share(uint64_t part, uint64_t whole) {
  return whole == 0 ? 1 : static_cast<double>(part) / static_cast<double>(whole);
}

int fail(const Error& error) {
  log_error(escape_terminal(error.message), error.hint);
  return 1;
}

int print(const std::string& text) {
  const Status put = write_text("", text);
  return put.ok() ? 0 : fail(put.error());
}

std::string dump(const Json& value) {
  return value.dump(1, ' ', false, Json::error_handler_t::replace) + "\n";
}

Json skipped_value(const std::vector<cache::Skipped>& skipped) {
  Json out = Json::array();
  for (const cache::Skipped& s : skipped) {
    out.push_back({{"path", to_utf8(s.path)}, {"reason", to_utf8(s.reason)}});
  }
  return out;
}

std::string count_files(size_t count) {
  return count == 1 ? "1 file" : fmt::format("{} files", count);
}

struct Looked {
  std::vector<cache::Skipped> skipped;
  bool nothing = false;  // could be looked at: "0 B cached" would be wrong
  int code = 0;          // 1 as well where something that was named is left out
};

// Says what is left out: of the list, then of the files.
Looked tell_skipped(const cache::Listed& listed, const std::vector<cache::Skipped>& of_files) {
  Looked out{listed.skipped};
  out.skipped.insert(out.skipped.end(), of_files.begin(), of_files.end());
  if (out.skipped.empty()) return out;
  out.nothing = of_files.size() >= listed.files.size();
  out.code = out.nothing || listed.lacks_named ? 1 : 0;
  const size_t count = out.skipped.size();
  const std::string text =
      fmt::format("{} could not be looked at{}{}",
                  count == 1 ? "1 file or folder" : fmt::format("{} files or folders", count),
                  count == 1 ? ": " : "; the first: ", escape_terminal(out.skipped[0].reason));
  if (!out.nothing) {
    log_warning(text);
  } else if (listed.files.empty()) {
    log_error(text);
  } else {
    log_error(text, "only a file's owner, who may write it, and root are told about it");
  }
  return out;
}

// Each cell is an equal part of the data, the darker the more of it is cached.
std::string map_text(const std::vector<double>& map, size_t width, bool unicode) {
  static constexpr std::string_view kCells[] = {"·", "░", "▒", "▓", "█"};
  static constexpr std::string_view kPlain[] = {".", "-", "=", "+", "#"};
  std::string out;
  for (size_t i = 0; i < map.size(); ++i) {
    if (i % width == 0) out += i == 0 ? "  " : "\n  ";
    const size_t level = map[i] <= 0 ? 0 : map[i] >= 1 ? 4 : 1 + static_cast<size_t>(map[i] * 3);
    out += unicode ? kCells[level] : kPlain[level];
  }
  return out + "\n";
}

struct Folder {
  std::string path;
  uint64_t files = 0, bytes = 0, cached = 0;
};

// The files themselves where they are few, in their order.
std::vector<Folder> by_file(const std::vector<cache::CachedFile>& files) {
  std::vector<Folder> out;
  out.reserve(files.size());
  for (const cache::CachedFile& f : files) out.push_back({f.path, 1, f.bytes, f.cached_bytes});
  return out;
}

// By the folder that each file lies in, biggest first.
std::vector<Folder> by_folder(const std::vector<cache::CachedFile>& files) {
  std::map<std::string, Folder> folders;
  for (const cache::CachedFile& file : files) {
    Folder& folder = folders[std::filesystem::path(file.path).parent_path().string()];
    ++folder.files;
    folder.bytes += file.bytes;
    folder.cached += file.cached_bytes;
  }
  std::vector<Folder> out;
  for (auto& [path, folder] : folders) {
    folder.path = path.empty() ? "." : path;
    out.push_back(folder);
  }
  std::stable_sort(out.begin(), out.end(),
                   [](const Folder& a, const Folder& b) { return a.bytes > b.bytes; });
  return out;
}

std::string status_text(const cache::DataSet& set, const std::optional<uint64_t>& room) {
  if (set.files.empty()) return "no files are there\n";
  const report::TextOptions options = report::options_for(STDOUT_FILENO);
  std::string out = fmt::format(
      "{} of {} cached ({}), {}\n", size_text(set.cached_bytes), size_text(set.bytes),
      format_percent(share(set.cached_bytes, set.bytes)), count_files(set.files.size()));
  if (set.dirty_bytes > 0)
    out += fmt::format("{} of it still to be written\n", size_text(set.dirty_bytes));
  const uint64_t rest = set.bytes - std::min(set.bytes, set.cached_bytes);
  if (room && rest > 0) {
    out += fmt::format("the rest, {}, {} without evicting anything ({} are free for it)\n",
                       size_text(rest), *room >= rest ? "fits" : "does not fit", size_text(*room));
  }
  if (!set.map.empty()) out += map_text(set.map, set.map.size() / kMapRows + 1, options.unicode);
  const bool few = set.files.size() <= kRows;
  const std::vector<Folder> rows = few ? by_file(set.files) : by_folder(set.files);
  for (size_t i = 0; i < rows.size() && i < kRows; ++i) {
    const Folder& f = rows[i];
    const std::string count = few ? "" : fmt::format("{:>7} files  ", f.files);
    out += fmt::format(
        "  {:>6}  {:>10}  {}{}\n", format_percent(share(f.cached, f.bytes)), size_text(f.bytes),
        count,
        report::fit_end(report::clean(f.path, options),
                        std::max<size_t>(options.width, 60) - 22 - count.size(), options.unicode));
  }
  if (rows.size() > kRows) out += fmt::format("  and {} more folders\n", rows.size() - kRows);
  return out;
}

std::string status_json(const cache::DataSet& set, const std::vector<cache::Skipped>& skipped,
                        const std::optional<uint64_t>& room) {
  Json out;
  out["bytes"] = set.bytes;
  out["cached_bytes"] = set.cached_bytes;
  out["dirty_bytes"] = set.dirty_bytes;
  out["room_bytes"] = room ? Json(*room) : Json(nullptr);
  out["files"] = Json::array();
  for (const cache::CachedFile& f : set.files) {
    out["files"].push_back({{"path", to_utf8(f.path)},
                            {"bytes", f.bytes},
                            {"cached_bytes", f.cached_bytes},
                            {"dirty_bytes", f.dirty_bytes ? Json(*f.dirty_bytes) : Json(nullptr)}});
  }
  out["map"] = set.map;
  out["skipped"] = skipped_value(skipped);
  return dump(out);
}

int status(const std::vector<std::string>& arguments) {
  int code = 0;
  const auto settings = parse(kStatus, arguments, code);
  if (!settings) return code;
  const cache::Listed listed = cache::list_files(settings->positional);
  const size_t width = std::max<size_t>(report::options_for(STDOUT_FILENO).width, 40) - 4;
  const cache::DataSet set = cache::look_at(listed.files, width * kMapRows);
  const Looked looked = tell_skipped(listed, set.skipped);
  if (looked.nothing && !settings->json) return looked.code;
  const auto room = cache::room(fs::Root());
  return std::max(looked.code, print(settings->json ? status_json(set, looked.skipped, room)
                                                    : status_text(set, room)));
}

// One name in each line; "-": from standard input.
Result<std::vector<std::string>> read_list(const std::string& path) {
  std::ifstream file;
  if (path == "-") tell_standard_input("names of files");
  if (path != "-") file.open(path);
  std::istream& lines = path == "-" ? std::cin : file;
  if (!lines) {
    return Error{Code::kNotFound, "cannot read the list " + path, "one name in each line"};
  }
  std::vector<std::string> out;
  for (std::string line; std::getline(lines, line);) {
    if (line.ends_with('\r')) line.pop_back();  // a list from Windows
    if (!line.empty()) out.push_back(line);
  }
  return out;
}

// The pictures of each folder as feed's Loader with that seed reads them in its first epoch.
Result<std::vector<std::string>> in_feed_order(const std::vector<std::string>& paths,
                                               uint64_t seed) {
  std::vector<std::string> out;
  for (const std::string& path : paths) {
    FLATOUT_TRY(const auto source, feed::open_source(path));
    const feed::Order order(source->count(), seed, true);
    for (uint64_t i = 0; i < order.count(); ++i) {
      std::string name = source->name(order.index(0, i));
      // What the Loader takes for a bad sample: a link that leads nowhere, a pipe.
      std::error_code ignored;
      if (std::filesystem::exists(std::filesystem::symlink_status(name, ignored)) &&
          !std::filesystem::is_regular_file(name, ignored))
        continue;
      out.push_back(std::move(name));
    }
  }
  return out;
}

int warm(const std::vector<std::string>& arguments) {
  int code = 0;
  const auto settings = parse(kWarm, arguments, code);
  if (!settings) return code;
  if (settings->list.empty() == settings->positional.empty()) {
    return bad_usage(settings->list.empty() ? "no PATH is named" : "--list takes no PATH",
                     "flatout cache warm PATH..., or --list FILE");
  }
  std::vector<std::string> paths = settings->positional;
  if (!settings->list.empty()) {
    auto listed = read_list(settings->list);
    if (!listed.ok()) return fail(listed.error());
    paths = std::move(listed).value();
  }
  if (settings->order != "name") {
    constexpr std::string_view kFeed = "feed:";
    const std::string_view order = settings->order;
    const auto seed = order.starts_with(kFeed) ? parse_number<uint64_t>(order.substr(kFeed.size()))
                                               : std::nullopt;
    if (!seed || !settings->list.empty()) {
      return bad_usage(seed ? "--list has an order already" : "--order is name, or feed:SEED",
                       "flatout cache warm --order feed:7 PATH...");
    }
    auto ordered = in_feed_order(paths, *seed);
    if (!ordered.ok()) return fail(ordered.error());
    paths = std::move(ordered).value();
  }
  const cache::Listed listed = cache::list_files(paths);
  const bool show = !settings->quiet && ::isatty(STDERR_FILENO) == 1;
  cache::WarmOptions options;
  options.bytes_per_s = settings->mb_per_s * 1e6;
  options.room = [] { return cache::room(fs::Root()); };
  options.progress = [&, last = uint64_t{101}](uint64_t done, uint64_t total) mutable {
    const uint64_t percent = total == 0 ? 100 : done * 100 / total;
    if (!show || percent == last) return;
    last = percent;
    fmt::print(stderr, "\rflatout: {:>3} % of {}", percent, size_text(total));
    if (percent == 100) fmt::print(stderr, "\n");
  };
  const cache::Warmed done = cache::warm(listed.files, options);
  const Looked looked = tell_skipped(listed, done.skipped);
  if (settings->json) {
    const int printed = print(dump({{"bytes", done.total_bytes},
                                    {"cached_before_bytes", done.cached_before},
                                    {"read_bytes", done.read_bytes},
                                    {"stopped", done.stopped},
                                    {"skipped", skipped_value(looked.skipped)}}));
    return std::max(looked.code, printed);
  }
  if (looked.nothing) return looked.code;
  std::string text =
      fmt::format("{} read in; {} of {} were cached before\n", size_text(done.read_bytes),
                  size_text(done.cached_before), size_text(done.total_bytes));
  if (done.stopped) text += "stopped there: more would evict something else from memory\n";
  return std::max(looked.code, print(text));
}

int drop_machine(bool json) {
  const fs::Root root;
  const auto before = cache::machine_cache(root);
  log_warning(
      fmt::format("dropping the whole machine's page cache{}: every program on it reads from "
                  "storage again",
                  before ? ", " + size_text(*before) : ""));
  const Status done = cache::drop_all(root);
  if (!done.ok()) return fail(done.error());
  const auto after = cache::machine_cache(root);
  if (json) {
    return print(dump({{"all", true},
                       {"before_bytes", before ? Json(*before) : Json(nullptr)},
                       {"after_bytes", after ? Json(*after) : Json(nullptr)}}));
  }
  if (!before || !after) return 0;
  return print(fmt::format("{} let go, {} stayed\n", size_text(*before - std::min(*before, *after)),
                           size_text(*after)));
}

// Without cachestat the kernel does not tell dirty pages from those in use.
std::string_view why_stayed(const cache::CachedFile& file) {
  if (file.in_memory) return "on a file system in memory: its pages are the file";
  if (!file.dirty_bytes) return "still to be written (--sync), mapped or being read";
  return *file.dirty_bytes > 0 ? "still to be written (--sync)" : "in use: mapped or being read";
}

int drop(const std::vector<std::string>& arguments) {
  int code = 0;
  const auto settings = parse(kDrop, arguments, code);
  if (!settings) return code;
  if (settings->all != settings->positional.empty()) {
    return bad_usage(settings->all ? "--all takes no PATH" : "no PATH is named",
                     "flatout cache drop PATH..., or --all for the whole machine");
  }
  if (settings->all) return drop_machine(settings->json);
  const cache::Listed listed = cache::list_files(settings->positional);
  const cache::Dropped done = cache::drop(listed.files, settings->sync);
  const Looked looked = tell_skipped(listed, done.skipped);
  if (settings->json) {
    Json stayed = Json::array();
    for (const cache::CachedFile& f : done.stayed) {
      stayed.push_back({{"path", to_utf8(f.path)},
                        {"cached_bytes", f.cached_bytes},
                        {"dirty_bytes", f.dirty_bytes ? Json(*f.dirty_bytes) : Json(nullptr)},
                        {"in_memory", f.in_memory}});
    }
    Json uncounted = Json::array();
    for (const std::string& path : done.uncounted) uncounted.push_back(to_utf8(path));
    const int printed = print(dump({{"before_bytes", done.before_bytes},
                                    {"after_bytes", done.after_bytes},
                                    {"stayed", stayed},
                                    {"uncounted", uncounted},
                                    {"skipped", skipped_value(looked.skipped)}}));
    return std::max(looked.code, printed);
  }
  if (looked.nothing) return looked.code;
  std::string text =
      fmt::format("{} let go, {} stayed\n",
                  size_text(done.before_bytes - std::min(done.before_bytes, done.after_bytes)),
                  size_text(done.after_bytes));
  for (size_t i = 0; i < done.stayed.size() && i < kRows; ++i) {
    const cache::CachedFile& f = done.stayed[i];
    text += fmt::format("  {:>10}  {}  {}\n", size_text(f.cached_bytes), why_stayed(f),
                        escape_terminal(f.path));
  }
  if (done.stayed.size() > kRows) {
    text += fmt::format("  and {} more files\n", done.stayed.size() - kRows);
  }
  if (!done.uncounted.empty()) {
    text += fmt::format(
        "not counted: {} asked to go, of which only the owner and root may know what is cached\n",
        count_files(done.uncounted.size()));
  }
  return std::max(looked.code, print(text));
}

}  // namespace

int cache(const std::vector<std::string>& arguments) {
  if (arguments.empty()) {
    std::fputs(folded(kHelp).c_str(), stderr);
    return 2;
  }
  const std::vector<std::string> rest(arguments.begin() + 1, arguments.end());
  const std::string& what = arguments[0];
  if (what == "status") return status(rest);
  if (what == "warm") return warm(rest);
  if (what == "drop") return drop(rest);
  if (what == "--help" || what == "-h" || what == "help") return print(folded(kHelp));
  const std::string_view meant = nearest(what, {"status", "warm", "drop"});
  return bad_usage(fmt::format("there is no command 'cache {}'", escape_terminal(what)),
                   meant.empty() ? "flatout cache --help"
                                 : fmt::format("did you mean flatout cache {}?", meant));
}

}  // namespace flatout::cli
