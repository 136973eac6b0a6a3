#include "screen/top.h"

#include <fmt/format.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <condition_variable>
#include <mutex>
#include <thread>

#include "base/text.h"
#include "screen/actions.h"
#include "screen/render.h"
#include "screen/session.h"
#include "screen/terminal.h"

namespace flatout::screen {
namespace {

// Rates need two looks: the second comes soon.
constexpr Nanos kFirstDelay = std::chrono::milliseconds(200);
constexpr int kPlainPanels = 60;  // rows that panels may take where there is no screen's end

// The thread that takes snapshots, so that keys never wait for a big machine's /proc.
class Feed {
 public:
  Feed(const SamplerOptions& options, Nanos delay)
      : options_(options), delay_(delay), event_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
    thread_ = std::thread([this] { work(); });
  }
  ~Feed() {
    {
      const std::lock_guard lock(mutex_);
      stop_ = true;
    }
    changed_.notify_all();
    thread_.join();
    ::close(event_);
  }
  Feed(const Feed&) = delete;
  Feed& operator=(const Feed&) = delete;

  /// Readable when there is a new snapshot.
  int fd() const { return event_; }
  std::shared_ptr<const Snapshot> take() {
    uint64_t count = 0;
    (void)!::read(event_, &count, sizeof count);
    const std::lock_guard lock(mutex_);
    return std::move(latest_);
  }
  /// What the next snapshot shall have; if that is worth it, it is taken at once.
  void want(const Wanted& wanted) {
    const std::lock_guard lock(mutex_);
    const bool soon = wanted_.differs(wanted);
    wanted_ = wanted;
    if (soon) changed_.notify_all();
  }

 private:
  void work() {
    Sampler sampler(options_);
    bool first = true;
    for (;;) {
      Wanted wanted;
      {
        const std::lock_guard lock(mutex_);
        wanted = wanted_;
      }
      auto snapshot = sampler.look(wanted);
      std::unique_lock lock(mutex_);
      latest_ = std::move(snapshot);
      const uint64_t one = 1;
      (void)!::write(event_, &one, sizeof one);
      changed_.wait_for(lock, first ? kFirstDelay : delay_,
                        [&] { return stop_ || wanted.differs(wanted_); });
      first = false;
      if (stop_) return;
    }
  }

  SamplerOptions options_;
  Nanos delay_;
  int event_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool stop_ = false;
  Wanted wanted_;
  std::shared_ptr<const Snapshot> latest_;
  std::thread thread_;
};

Command on_click(Session& session, const Frame& frame, const Event& event) {
  for (const Zone& zone : frame.zones) {
    if (zone.y != event.y || event.x < zone.x || event.x >= zone.end) continue;
    switch (zone.kind) {
      case Zone::Kind::kRow:
        session.click_row(static_cast<size_t>(zone.value));
        break;
      case Zone::Kind::kHeading:
        session.click_heading(static_cast<Column>(zone.value));
        break;
      case Zone::Kind::kPanel:
        session.fold(static_cast<Panel>(zone.value));
        break;
      case Zone::Kind::kFunctionKey:
        return session.key(key::f(zone.value));
    }
    return {};
  }
  return {};
}

Command on_event(Session& session, const Terminal& terminal, const Frame& frame,
                 const Event& event) {
  switch (event.kind) {
    case Event::Kind::kKey:
      return session.key(event.key);
    case Event::Kind::kClick:
      return on_click(session, frame, event);
    case Event::Kind::kWheel:
      session.scroll(event.rows);
      return {};
    case Event::Kind::kResize:
      session.resize(terminal.width(), terminal.height());
      return {};
  }
  return {};
}

// False: the user wants to leave.
bool carry_out(const TopOptions& options, Session& session, const Command& command) {
  switch (command.kind) {
    case Command::Kind::kNone:
      return true;
    case Command::Kind::kQuit:
      return false;
    case Command::Kind::kSave: {
      const Result<std::string> saved = options.save(session.history());
      session.say(saved.ok() ? "saved: " + *saved : saved.error().message);
      return true;
    }
    default:
      session.say(act(options.sampler.root, command));
      return true;
  }
}

}  // namespace

Status run_top(const TopOptions& options) {
  auto opened = Terminal::open();
  if (!opened.ok()) return opened.error();
  Terminal& terminal = **opened;
  Feed feed(options.sampler, nanos(options.delay_s * 1e9));
  Session session(options.sampler.root, options.pid, options.delay_s);
  session.resize(terminal.width(), terminal.height());
  bool changed = true;
  while (!Terminal::told_to_end()) {
    if (auto snapshot = feed.take()) {
      session.add(std::move(snapshot));
      changed = true;
    }
    Frame frame = render(session, terminal.unicode());
    if (changed) terminal.draw(frame);
    changed = false;
    terminal.wait(feed.fd(), std::chrono::seconds(10));
    while (const auto event = terminal.next()) {
      // What was pressed before may have moved things.
      if (event->kind == Event::Kind::kClick) frame = render(session, terminal.unicode());
      if (!carry_out(options, session, on_event(session, terminal, frame, *event))) return {};
      changed = true;
    }
    feed.want(session.wanted());
  }
  return {};
}

std::shared_ptr<const Snapshot> look_twice(const TopOptions& options) {
  Sampler sampler(options.sampler);
  sampler.look({});
  std::this_thread::sleep_for(nanos(options.delay_s * 1e9));
  return sampler.look({});
}

std::string plain_screen(const TopOptions& options, int width, bool unicode) {
  Session session(options.sampler.root, options.pid, options.delay_s);
  session.add(look_twice(options));
  session.resize(width, static_cast<int>(session.rows().size()) + kPlainPanels);
  const std::string text = render(session, unicode).canvas.text();
  // The keys at the bottom are for the screen only, the row with the cursor has no style here.
  std::string_view shown = trim(text);
  shown = shown.substr(0, shown.rfind('\n'));
  while (!shown.empty() && (shown.back() == '\n' || shown.back() == ' ')) shown.remove_suffix(1);
  return std::string(shown) + "\n";
}

}  // namespace flatout::screen
