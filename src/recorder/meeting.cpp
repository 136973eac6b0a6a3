#include "recorder/meeting.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <netdb.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cctype>
#include <cerrno>
#include <filesystem>
#include <mutex>
#include <set>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/fs.h"
#include "base/secret.h"
#include "base/text.h"
#include "recorder/rank_place.h"

namespace flatout::recorder {
namespace {

namespace stdfs = std::filesystem;

constexpr std::string_view kGreeting = "flatout-meet 1 ";
constexpr std::array<std::string_view, 4> kFiles = {"rank.json", "events.bin", "series.bin",
                                                    "run.json"};
constexpr uint64_t kMostBytes = uint64_t{1} << 30;  // of a file; recordings are bounded well below
constexpr uint64_t kMostRankFile = 64 << 10;
constexpr size_t kLongestLine = 1024;
constexpr size_t kMostGuests = 64;  // at once; the next wait in the queue of the socket
constexpr int kBacklog = 1024;
constexpr int kConnectMs = 3000;
constexpr int kSilenceMs = 10'000;                        // without a byte in either direction
constexpr Nanos kLongestVisit = std::chrono::minutes(2);  // of a guest

// A socket that gives up on silence, and in any case at some time.
class Line {
 public:
  explicit Line(int fd) : fd_(fd), deadline_(MonotonicClock::now() + kLongestVisit) {}
  ~Line() { ::close(fd_); }
  Line(const Line&) = delete;
  Line& operator=(const Line&) = delete;

  bool send(std::string_view text) {
    while (!text.empty()) {
      if (!ready(POLLOUT)) return false;
      const ssize_t put = ::send(fd_, text.data(), text.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
      if (put < 0 && (errno == EAGAIN || errno == EINTR)) continue;
      if (put <= 0) return false;
      text.remove_prefix(static_cast<size_t>(put));
    }
    return true;
  }
  /// Without its end; nullopt where none comes, or too long a one.
  std::optional<std::string> line() {
    for (;;) {
      const size_t end = held_.find('\n');
      if (end != std::string::npos) {
        std::string out = held_.substr(0, end);
        held_.erase(0, end + 1);
        return out;
      }
      if (held_.size() > kLongestLine || !more()) return std::nullopt;
    }
  }
  bool to_file(int file, uint64_t bytes) {
    while (bytes > 0) {
      if (held_.empty() && !more()) return false;
      const size_t part = static_cast<size_t>(std::min<uint64_t>(bytes, held_.size()));
      const ssize_t put = ::write(file, held_.data(), part);
      if (put <= 0) return false;
      held_.erase(0, static_cast<size_t>(put));
      bytes -= static_cast<uint64_t>(put);
    }
    return true;
  }

 private:
  bool ready(short events) const {
    const auto left =
        std::chrono::duration_cast<std::chrono::milliseconds>(deadline_ - MonotonicClock::now());
    if (left.count() <= 0) return false;
    pollfd poll{fd_, events, 0};
    return ::poll(&poll, 1, static_cast<int>(std::min<int64_t>(left.count(), kSilenceMs))) == 1;
  }
  bool more() {
    std::array<char, 64 << 10> buffer;
    if (!ready(POLLIN)) return false;
    const ssize_t got = ::recv(fd_, buffer.data(), buffer.size(), 0);
    if (got <= 0) return false;
    held_.append(buffer.data(), static_cast<size_t>(got));
    return true;
  }

  int fd_;
  TimePoint deadline_;
  std::string held_;
};

struct FreeAddresses {
  void operator()(addrinfo* list) const { ::freeaddrinfo(list); }
};
using Addresses = std::unique_ptr<addrinfo, FreeAddresses>;

Result<Addresses> resolve(const MeetingPlace& place, int flags) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = flags;
  addrinfo* found = nullptr;
  const int failed =
      ::getaddrinfo(place.host.c_str(), std::to_string(place.port).c_str(), &hints, &found);
  if (failed != 0) {
    return Error{Code::kNotFound,
                 fmt::format("cannot find the host {}: {}", escape_terminal(place.host),
                             ::gai_strerror(failed)),
                 "--meet HOST:PORT, as the other ranks reach rank 0's machine"};
  }
  return Addresses(found);
}

std::string place_text(const MeetingPlace& place) {
  return fmt::format("{} port {}", escape_terminal(place.host), place.port);
}

// A folder's own name, which may be made in another folder.
bool is_good_name(std::string_view name) {
  return !name.empty() && name.size() <= 255 && name[0] != '.' &&
         std::all_of(name.begin(), name.end(), [](unsigned char c) {
           return std::isalnum(c) != 0 || c == '-' || c == '_' || c == '.';
         });
}

// Files of one folder as they come in; removed again unless it is whole.
class Incoming {
 public:
  explicit Incoming(const std::string& parent) : path_(parent + "/.arriving-XXXXXX") {
    if (::mkdtemp(path_.data()) == nullptr) path_.clear();
  }
  ~Incoming() { remove(); }
  Incoming(const Incoming&) = delete;
  Incoming& operator=(const Incoming&) = delete;

  bool ok() const { return !path_.empty(); }
  const std::string& path() const { return path_; }
  void remove() {
    std::error_code ignored;
    if (!path_.empty()) stdfs::remove_all(path_, ignored);
    path_.clear();
  }
  bool take(Line& from, const std::string& header, uint64_t most, std::string& name) {
    std::string_view text = header;
    name = next_word(text);
    const auto bytes = parse_number<uint64_t>(next_word(text));
    const bool known = std::find(kFiles.begin(), kFiles.end(), name) != kFiles.end();
    if (!known || !bytes || *bytes > most) return false;
    const int fd = ::open((path_ + "/" + name).c_str(),
                          O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd < 0) return false;
    const bool taken = from.to_file(fd, *bytes);
    return ::close(fd) == 0 && taken;
  }
  // Under a name that is free: `name`, else `name`-2 and so on.
  bool settle(const std::string& parent, const std::string& name) {
    for (int i = 1; i < 100; ++i) {
      const std::string to =
          fmt::format("{}/{}{}", parent, name, i == 1 ? "" : fmt::format("-{}", i));
      std::error_code error;
      if (stdfs::exists(stdfs::symlink_status(to, error))) continue;
      if (::rename(path_.c_str(), to.c_str()) != 0) return false;
      path_.clear();
      return true;
    }
    return false;
  }

 private:
  std::string path_;
};

bool have_already(const std::string& parent, const std::string& rank_json) {
  const auto names = fs::Root(parent).list("");
  if (!names.ok()) return false;
  return std::any_of(names->begin(), names->end(), [&](const std::string& name) {
    const auto text = fs::Root(parent + "/" + name).read("rank.json", kMostRankFile);
    return !name.starts_with('.') && text.ok() && *text == rank_json;
  });
}

}  // namespace

std::optional<MeetingPlace> parse_meeting_place(std::string_view text) {
  const size_t colon = text.rfind(':');
  if (colon == std::string_view::npos || colon == 0) return std::nullopt;
  const auto port = parse_number<uint16_t>(text.substr(colon + 1));
  std::string_view host = text.substr(0, colon);
  if (host.starts_with('[') && host.ends_with(']')) {
    host = host.substr(1, host.size() - 2);
  } else if (host.find(':') != std::string_view::npos) {
    return std::nullopt;  // an address of IPv6 without its brackets: which part is the port?
  }
  if (!port || host.empty()) return std::nullopt;
  return MeetingPlace{std::string(host), *port};
}

class Meeting::Impl {
 public:
  Impl(int fd, std::string token, std::string parent)
      : fd_(fd), token_(std::move(token)), parent_(std::move(parent)) {
    thread_ = std::thread([this] { work(); });
  }
  ~Impl() {
    stop_ = true;
    ::shutdown(fd_, SHUT_RDWR);  // ends accept()
    thread_.join();
    ::close(fd_);
    {
      const std::lock_guard lock(mutex_);
      for (const int guest : open_) ::shutdown(guest, SHUT_RDWR);
    }
    for (std::thread& guest : guests_) guest.join();
  }

  uint16_t port() const {
    sockaddr_storage own{};
    socklen_t size = sizeof own;
    ::getsockname(fd_, reinterpret_cast<sockaddr*>(&own), &size);
    std::array<char, 16> service{};
    ::getnameinfo(reinterpret_cast<sockaddr*>(&own), size, nullptr, 0, service.data(),
                  service.size(), NI_NUMERICSERV);
    return parse_number<uint16_t>(service.data()).value_or(0);
  }

 private:
  void work() {
    while (!stop_) {
      const int guest = ::accept4(fd_, nullptr, nullptr, SOCK_CLOEXEC);
      if (guest < 0) {
        if (errno == EINTR || errno == ECONNABORTED) continue;
        if (stop_) return;
        ::usleep(100'000);  // no descriptors, say
        continue;
      }
      // Those that came first are gone first, as a rule.
      if (guests_.size() == kMostGuests) {
        guests_.front().join();
        guests_.erase(guests_.begin());
      }
      guests_.emplace_back([this, guest] { serve(guest); });
    }
  }

  void serve(int fd) {
    Line line(fd);
    {
      const std::lock_guard lock(mutex_);
      open_.insert(fd);
    }
    receive(line);
    const std::lock_guard lock(mutex_);
    open_.erase(fd);
  }

  void receive(Line& line) {
    const auto greeting = line.line();
    if (!greeting || !greeting->starts_with(kGreeting)) return;
    std::string_view rest = std::string_view(*greeting).substr(kGreeting.size());
    const std::string_view token = next_word(rest);
    const std::string name(next_word(rest));
    if (!same_secret(token, token_) || !is_good_name(name)) return;
    Incoming folder(parent_);
    std::string file;
    auto header = line.line();
    if (!folder.ok() || !header || !folder.take(line, *header, kMostRankFile, file)) return;
    const std::string rank_json =
        fs::Root(folder.path()).read("rank.json", kMostRankFile).value_or("");
    if (file != "rank.json" || !read_rank_file(folder.path()).place.is_rank()) return;
    if (have_already(parent_, rank_json)) {
      folder.remove();  // who has the answer finds nothing half done
      line.send("have\n");
      return;
    }
    if (!line.send("go\n")) return;
    for (header = line.line(); header && *header != "end"; header = line.line()) {
      if (!folder.take(line, *header, kMostBytes, file)) return;
    }
    if (!header) return;
    bool settled = false;
    {
      const std::lock_guard lock(mutex_);
      settled = folder.settle(parent_, name);
    }
    if (settled) line.send("ok\n");
  }

  int fd_;
  std::string token_, parent_;
  std::atomic<bool> stop_ = false;
  std::mutex mutex_;  // of the names in `parent_`, and of
  std::set<int> open_;
  std::vector<std::thread> guests_;
  std::thread thread_;
};

Meeting::Meeting(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Meeting::~Meeting() = default;
uint16_t Meeting::port() const { return impl_->port(); }

Result<std::unique_ptr<Meeting>> Meeting::open(const MeetingPlace& place, std::string token,
                                               std::string parent) {
  FLATOUT_TRY(const Addresses found, resolve(place, AI_PASSIVE));
  int failed = 0;
  for (const addrinfo* a = found.get(); a != nullptr; a = a->ai_next) {
    const int fd = ::socket(a->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0) continue;
    const int on = 1;
    ::setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (::bind(fd, a->ai_addr, a->ai_addrlen) == 0 && ::listen(fd, kBacklog) == 0) {
      auto impl = std::make_unique<Impl>(fd, std::move(token), std::move(parent));
      return std::unique_ptr<Meeting>(new Meeting(std::move(impl)));
    }
    failed = errno;
    ::close(fd);
  }
  Error error = fs::error_from_errno(failed, "cannot listen on " + place_text(place));
  if (failed == EADDRINUSE) error.code = Code::kFull;
  error.hint = "--meet HOST:PORT is an address of rank 0's machine with a port that is free there";
  return error;
}

namespace {

Result<int> connect_to(const MeetingPlace& place) {
  FLATOUT_TRY(const Addresses found, resolve(place, 0));
  int failed = ETIMEDOUT;
  for (const addrinfo* a = found.get(); a != nullptr; a = a->ai_next) {
    const int fd = ::socket(a->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0) continue;
    if (::connect(fd, a->ai_addr, a->ai_addrlen) == 0) return fd;
    failed = errno;
    if (failed == EINPROGRESS) {
      pollfd poll{fd, POLLOUT, 0};
      socklen_t size = sizeof failed;
      failed = ETIMEDOUT;
      if (::poll(&poll, 1, kConnectMs) == 1) {
        ::getsockopt(fd, SOL_SOCKET, SO_ERROR, &failed, &size);
        if (failed == 0) return fd;
      }
    }
    ::close(fd);
  }
  return fs::error_from_errno(failed, "cannot reach rank 0 at " + place_text(place));
}

// The header and the bytes; a file that is not there is left out.
bool send_file(Line& line, const std::string& folder, std::string_view name) {
  const std::string path = fmt::format("{}/{}", folder, name);
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
  if (fd < 0) return true;
  struct stat info {};
  std::string buffer(64 << 10, '\0');
  bool fine = ::fstat(fd, &info) == 0 && S_ISREG(info.st_mode);
  auto left = fine ? static_cast<uint64_t>(info.st_size) : 0;
  fine = fine && line.send(fmt::format("{} {}\n", name, left));
  while (fine && left > 0) {
    const ssize_t got = ::read(fd, buffer.data(), std::min<uint64_t>(left, buffer.size()));
    fine = got > 0 && line.send(std::string_view(buffer).substr(0, static_cast<size_t>(got)));
    left -= static_cast<uint64_t>(std::max<ssize_t>(got, 0));
  }
  ::close(fd);
  return fine;
}

}  // namespace

Result<bool> bring_to_meeting(const std::string& folder, const MeetingPlace& place,
                              const std::string& token) {
  FLATOUT_TRY(const int fd, connect_to(place));
  Line line(fd);
  const Error gone{Code::kGone, "rank 0 at " + place_text(place) + " did not take the recording",
                   "FLATOUT_MEET_TOKEN must be the same for all ranks"};
  const std::string name = stdfs::path(folder).filename().string();
  if (!line.send(fmt::format("{}{} {}\n", kGreeting, token, name)) ||
      !send_file(line, folder, kFiles[0])) {
    return gone;
  }
  const auto answer = line.line();
  if (answer && *answer == "have") return false;
  if (!answer || *answer != "go") return gone;
  for (size_t i = 1; i < kFiles.size(); ++i) {
    if (!send_file(line, folder, kFiles[i])) return gone;
  }
  if (!line.send("end\n") || line.line() != std::optional<std::string>("ok")) return gone;
  return true;
}

}  // namespace flatout::recorder
