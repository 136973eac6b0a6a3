// How often the loop comes round in which a thread of a native program works.
//
// Its stacks say from which places of which function it calls most of what it does; the kernel
// counts how often it comes back to them (address_counter.h). Each time costs the thread some 1 to
// 30 us: after 400 rounds in a second they are taken to go on as often until it ends.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/result.h"
#include "probe/address_counter.h"

namespace flatout::probe {

/// A function on a native stack, and where in it.
struct PlaceInCode {
  std::string function;
  uint64_t address = 0;  // where it goes on when its callee returns; of the innermost, where it is
  std::vector<std::string> inlined;  // functions of which the compiler put the code there
};
using NativePath = std::vector<PlaceInCode>;  // outermost first

/// By whose name a call is known to train: one's that was inlined there may be that of all the
/// loop.
enum class Trains : uint8_t { kUnknown, kByInlined, kByCallee };

/// A place that a function calls another from.
struct CallSite {
  uint64_t address = 0;
  std::string caller, callee;
  double share = 0;  // of the stacks
  Trains trains = Trains::kUnknown;
};

/// The calls of the innermost function that three quarters of the stacks are in, all called from
/// one place, and that is no forward or backward pass by its name, the most frequent ones first; of
/// the one around it where `outer` is 1, and so on. Empty: there is no such function.
std::vector<CallSite> call_sites(std::span<const NativePath> paths, int outer);

/// A call and how often the thread came back from it in so many seconds.
struct MeasuredSite {
  CallSite site;
  double rate = 0;  // a second
};
/// The one that comes round once a step: of the calls that go round equally often, those that train
/// by their names, else those that take most of the time. nullptr: none.
const MeasuredSite* once_a_step(std::span<const MeasuredSite> sites);

class NativeLoop {
 public:
  explicit NativeLoop(int32_t tid, AddressCounter::By by = AddressCounter::best())
      : tid_(tid), by_(by) {}

  /// Whether it can use more stacks of the thread.
  bool wants_stacks() const { return state_ == State::kGathers; }
  void saw(NativePath path);
  /// The thread is still where it was seen last.
  void saw_again();
  /// A stack of another thread of the process: what is counted by uprobes is none of its code.
  void saw_elsewhere(const NativePath& path);
  /// Whether the loop is found.
  bool counts() const { return state_ == State::kCounts; }
  /// Rounds since the loop was found; nullopt as long as none is.
  std::optional<uint64_t> rounds(TimePoint now);
  /// Of the loop: another one is another loop.
  uint32_t number() const { return number_; }
  std::string name() const;
  /// Why addresses can't be counted; ok() where they can.
  const Status& trouble() const { return trouble_; }

 private:
  enum class State : uint8_t { kGathers, kMeasures, kCounts, kGaveUp };
  struct Trial {
    CallSite site;
    std::unique_ptr<AddressCounter> counter;
    TimePoint last_run{};  // when it had not yet stopped by itself
  };
  bool too_fast();
  void measure(TimePoint now);
  void give_up(const Error& why);
  void judge(TimePoint now);
  bool count(TimePoint now);
  bool begin_window(TimePoint now);
  void gather_anew();

  int32_t tid_;
  AddressCounter::By by_;
  State state_ = State::kGathers;
  std::set<std::string, std::less<>> elsewhere_;  // functions
  std::map<uint64_t, int> too_fast_;              // how often that was so, by address
  std::set<uint64_t> refused_;                    // addresses that take no counter
  std::vector<NativePath> paths_;
  int outer_ = 0, tries_ = 0;
  std::vector<Trial> trials_;
  double left_out_ = 0;  // share of the places that are not tried
  TimePoint began_{};
  CallSite site_;
  std::unique_ptr<AddressCounter> counter_;
  uint32_t number_ = 0;
  double rounds_ = 0;   // counted, and guessed while it was paused
  double rate_ = 0;     // a second, in the last window
  uint64_t last_ = 0;   // times counted by counter_
  TimePoint looked_{};  // at it
  TimePoint window_{};  // began then, at
  uint64_t begun_ = 0;  // so many times
  Nanos silent_{};      // nothing came for so long
  bool paused_ = false;
  Status trouble_;
};

}  // namespace flatout::probe
