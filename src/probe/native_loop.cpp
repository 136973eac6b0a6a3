#include "probe/native_loop.h"

#include <algorithm>
#include <cctype>
#include <initializer_list>
#include <map>
#include <string_view>
#include <utility>

namespace flatout::probe {

namespace {

constexpr size_t kStacks = 40;      // from which the calls are told
constexpr double kInIt = 0.75;      // of them are in the function with the loop
constexpr double kMuchOfIt = 0.02;  // of them are in a call that is looked at
constexpr double kMostOfIt = 0.5;   // of them are in the calls of one step
constexpr size_t kBreakpoints = 4;  // x86-64 has so many
constexpr size_t kUprobes = 8;      // calls that are tried at a time, where there is no such limit
constexpr double kAlike = 1.25;     // rates of one loop, one to the other
constexpr Nanos kWindow = std::chrono::seconds(1);
constexpr uint64_t kMostRounds = 400;         // in a window that are counted, and
constexpr double kFastest = 4000;             // of a loop that is counted at all
constexpr double kFarTooFast = 2 * kFastest;  // of one that was taken for slower
constexpr uint32_t kSafe = 2000;              // times in a window after which the kernel stops it
constexpr uint32_t kTrial = 200;              // times of one call at most, to measure its rate
constexpr uint64_t kEnough = 4;               // of the slowest call
constexpr double kShortTrial = 0.6, kLongTrial = 4;  // seconds
constexpr double kSilent = 20, kSilentAtLeast = 3;   // usual rounds, seconds: it is over
constexpr int kMostTries = 20;

/// What a function is called without what it belongs to and what it takes.
std::string_view bare_name(std::string_view function) {
  function = function.substr(0, function.find('('));
  const size_t scope = function.rfind("::");
  return scope == std::string_view::npos ? function : function.substr(scope + 2);
}

bool is_called(std::string_view function, std::initializer_list<std::string_view> words) {
  std::string name(bare_name(function));
  std::ranges::transform(name, name.begin(), [](unsigned char c) { return std::tolower(c); });
  return std::ranges::any_of(
      words, [&](std::string_view word) { return name.find(word) != std::string::npos; });
}

bool trains(std::string_view function) {
  return is_called(function,
                   {"train", "backward", "backprop", "update", "optimi", "step", "grad", "fit"});
}

/// What calls it is not always known of a thread that is blocked, and always of one that runs.
std::span<const PlaceInCode> from_main(const NativePath& path) {
  const auto main = std::ranges::find(path, "main", &PlaceInCode::function);
  return {main != path.end() ? main : path.begin(), path.end()};
}

/// Its loop is one over layers.
bool is_pass(std::string_view function) {
  return is_called(function, {"forward", "backward", "backprop"});
}

}  // namespace

std::vector<CallSite> call_sites(std::span<const NativePath> paths, int outer) {
  const double all = static_cast<double>(paths.size());
  using Paths = std::vector<std::span<const PlaceInCode>>;
  // Those of them that `key` says the same of at this depth, as most do; none if that is too few.
  const auto most_alike = [&](const Paths& of, size_t depth, auto key) {
    std::map<decltype(key(paths.front().front())), Paths> alike;
    for (const auto& path : of) {
      if (depth < path.size()) alike[key(path[depth])].push_back(path);
    }
    const auto most =
        std::ranges::max_element(alike, {}, [](const auto& entry) { return entry.second.size(); });
    const bool enough =
        most != alike.end() && static_cast<double>(most->second.size()) >= kInIt * all;
    return enough ? most->second : Paths();
  };
  std::vector<Paths> within;  // the function that most are in, outermost first
  Paths inside;
  for (const NativePath& path : paths) inside.push_back(from_main(path));
  for (size_t depth = 0; !inside.empty(); ++depth) {
    inside = most_alike(inside, depth, [](const PlaceInCode& at) { return at.function; });
    if (inside.empty()) break;
    within.push_back(inside);
    // Called from several places, a function is not gone through once a round.
    inside = most_alike(inside, depth, [](const PlaceInCode& at) { return at.address; });
  }
  while (!within.empty() && is_pass(within.back().front()[within.size() - 1].function))
    within.pop_back();
  const auto level = static_cast<std::ptrdiff_t>(within.size()) - 1 - outer;
  if (level < 0) return {};
  const auto depth = static_cast<size_t>(level);
  std::map<uint64_t, CallSite> sites;
  for (const auto& path : within[depth]) {
    if (depth + 1 >= path.size()) continue;  // it does not call, but computes by itself
    const PlaceInCode& at = path[depth];
    CallSite& site = sites[at.address];
    if (site.share == 0) {
      const std::string& callee = path[depth + 1].function;
      site = {at.address, at.function, callee, 0};
      site.trains = trains(callee)                            ? Trains::kByCallee
                    : std::ranges::any_of(at.inlined, trains) ? Trains::kByInlined
                                                              : Trains::kUnknown;
    }
    site.share += 1 / all;
  }
  std::vector<CallSite> out;
  for (auto& [address, site] : sites) {
    if (site.share >= kMuchOfIt) out.push_back(std::move(site));
  }
  std::ranges::stable_sort(out, std::ranges::greater{}, &CallSite::share);
  return out;
}

const MeasuredSite* once_a_step(std::span<const MeasuredSite> sites) {
  const MeasuredSite* best = nullptr;
  double best_share = 0;
  Trains best_trains = Trains::kUnknown;
  for (const MeasuredSite& one : sites) {
    if (one.rate <= 0 || one.rate > kFastest) continue;
    double share = 0;
    Trains trained = Trains::kUnknown;
    for (const MeasuredSite& other : sites) {
      if (other.rate > kAlike * one.rate || one.rate > kAlike * other.rate) continue;
      share += other.site.share;
      trained = std::max(trained, other.site.trains);
    }
    if (best != nullptr && std::pair(trained, share) <= std::pair(best_trains, best_share))
      continue;
    best = &one;
    best_share = share;
    best_trains = trained;
  }
  return best;
}

void NativeLoop::saw(NativePath path) {
  if (!wants_stacks() || path.empty()) return;
  paths_.push_back(std::move(path));
}

void NativeLoop::saw_again() {
  if (wants_stacks() && !paths_.empty()) paths_.push_back(paths_.back());
}

void NativeLoop::saw_elsewhere(const NativePath& path) {
  if (!wants_stacks() || by_ != AddressCounter::By::kUprobe) return;
  for (const PlaceInCode& at : path) elsewhere_.insert(at.function);
}

std::optional<uint64_t> NativeLoop::rounds(TimePoint now) {
  if (state_ == State::kGathers && paths_.size() >= kStacks) measure(now);
  if (state_ == State::kMeasures) judge(now);
  if (state_ != State::kCounts) return std::nullopt;
  if (!count(now)) {
    gather_anew();
    return std::nullopt;
  }
  return static_cast<uint64_t>(rounds_);
}

/// False: it is over.
bool NativeLoop::count(TimePoint now) {
  const Nanos passed = now - looked_;
  looked_ = now;
  const bool next = now - window_ >= kWindow;
  if (paused_) {
    rounds_ += rate_ * to_s(passed);
    return !next || begin_window(now);
  }
  const uint64_t count = counter_->count();
  const uint64_t in_window = count - begun_;
  if (in_window >= kSafe) return too_fast();  // it was stopped: something else comes by there
  rounds_ += static_cast<double>(count - last_);
  silent_ = count == last_ ? silent_ + passed : Nanos{};
  last_ = count;
  if (to_s(silent_) > std::max(kSilentAtLeast, kSilent / rate_)) return false;
  const bool enough = in_window >= kMostRounds;
  if (!enough && !next) return true;
  if (in_window > 0) rate_ = static_cast<double>(in_window) / to_s(now - window_);
  // While its rate was measured the thread did something else, or waited for a core.
  if (enough && rate_ > kFarTooFast) return too_fast();
  if (enough) {
    counter_->pause();
    paused_ = true;
  }
  return !next || begin_window(now);
}

/// Once that may be for a look that came late. Another place may come by once a step.
bool NativeLoop::too_fast() {
  ++too_fast_[site_.address];
  return false;
}

bool NativeLoop::begin_window(TimePoint now) {
  begun_ = last_ = counter_->count();
  window_ = now;
  paused_ = false;
  return counter_->resume().ok();
}

std::string NativeLoop::name() const { return site_.caller + " calls " + site_.callee; }

/// Looks how often the calls of one function come round.
void NativeLoop::measure(TimePoint now) {
  const std::vector<CallSite> sites = call_sites(paths_, outer_);
  trials_.clear();
  left_out_ = 0;
  const size_t most = by_ == AddressCounter::By::kUprobe ? kUprobes : kBreakpoints;
  Status refused;
  for (const CallSite& site : sites) {
    if (trials_.size() == most) break;
    const auto fast = too_fast_.find(site.address);
    if (elsewhere_.contains(site.caller) || refused_.contains(site.address) ||
        (fast != too_fast_.end() && fast->second > 1)) {
      left_out_ += site.share;
      continue;
    }
    auto counter = AddressCounter::open(tid_, site.address, kTrial, by_);
    if (!counter.ok()) {
      if (counter.error().code != Code::kUnsupported) return give_up(counter.error());
      refused = counter.error();
      // No breakpoint is left; of uprobes there is no end, but not every instruction takes one.
      if (by_ == AddressCounter::By::kBreakpoint) break;
      refused_.insert(site.address);
      left_out_ += site.share;
      continue;
    }
    trials_.push_back({site, std::move(*counter), now});
  }
  if (trials_.empty() && !refused.ok()) return give_up(refused.error());
  began_ = now;
  state_ = State::kMeasures;
}

void NativeLoop::give_up(const Error& why) {
  state_ = State::kGaveUp;
  trials_.clear();
  if (why.code != Code::kGone) trouble_ = why;
}

void NativeLoop::judge(TimePoint now) {
  const double seconds = to_s(now - began_);
  bool slow = false;
  std::vector<MeasuredSite> measured;
  for (Trial& trial : trials_) {
    const uint64_t count = trial.counter->count();
    // One that has stopped did so since the last look; at the first one, far too soon.
    if (count < kTrial)
      trial.last_run = now;
    else
      trial.counter->pause();
    const double lasted = to_s(trial.last_run - began_);
    slow = slow || count < kEnough;
    const double rate = lasted > 0 ? static_cast<double>(count) / lasted : 2 * kFastest;
    measured.push_back({trial.site, rate});
  }
  if (!trials_.empty() && (seconds < kShortTrial || (slow && seconds < kLongTrial))) return;
  const MeasuredSite* best = once_a_step(measured);
  // What is counted already costs little to be counted again; the others make room.
  std::erase_if(trials_, [&](const Trial& trial) {
    return best == nullptr || trial.site.address != best->site.address;
  });
  double together = left_out_;
  for (const MeasuredSite& one : measured) together += one.site.share;
  if (best == nullptr || best->rate * seconds < 2 || together < kMostOfIt) {
    // Its rounds are too short, or it has none: they are those of the function around it.
    if (call_sites(paths_, ++outer_).empty()) return gather_anew();
    return measure(now);
  }
  auto counter = AddressCounter::open(tid_, best->site.address, kSafe, by_);
  trials_.clear();
  if (!counter.ok()) return give_up(counter.error());
  counter_ = std::move(*counter);
  if (best->site.address != site_.address) {
    ++number_;
    rounds_ = 0;
  }
  site_ = best->site;
  rate_ = best->rate;
  looked_ = window_ = now;
  begun_ = last_ = 0;
  silent_ = {};
  paused_ = false;
  paths_.clear();
  tries_ = 0;
  state_ = State::kCounts;
}

void NativeLoop::gather_anew() {
  counter_.reset();
  trials_.clear();
  paths_.clear();
  outer_ = 0;
  state_ = ++tries_ < kMostTries ? State::kGathers : State::kGaveUp;
}

}  // namespace flatout::probe
