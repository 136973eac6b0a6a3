// What the probes share: delivering readings, saying what is missing, units.
#pragma once

#include <unistd.h>

#include <optional>
#include <string>
#include <string_view>

#include "base/page_size.h"
#include "base/result.h"
#include "model/sink.h"

namespace flatout::probe {

/// Delivers readings of one entity at one time.
class Deliver {
 public:
  Deliver(model::Sink& sink, model::EntityId entity, TimePoint at)
      : sink_(sink), entity_(entity), at_(at) {}
  void operator()(model::SignalId signal, double value) const {
    sink_.reading(signal, entity_, at_, value);
  }
  /// Nothing where nothing was measured.
  template <class T>
  void operator()(model::SignalId signal, const std::optional<T>& value, double unit = 1) const {
    if (value) sink_.reading(signal, entity_, at_, static_cast<double>(*value) * unit);
  }

 private:
  model::Sink& sink_;
  model::EntityId entity_;
  TimePoint at_;
};

inline model::EntityId host_entity(model::Sink& sink) {
  return sink.entity(model::EntityKind::kHost, 0, "", model::kNoEntity);
}
inline model::EntityId process_entity(model::Sink& sink, int32_t pid) {
  return sink.entity(model::EntityKind::kProcess, pid, "", model::kNoEntity);
}

/// Nanoseconds of one clock tick (USER_HZ).
inline double tick_ns() {
  static const double ns = 1e9 / static_cast<double>(sysconf(_SC_CLK_TCK));
  return ns;
}

inline std::string proc_path(int32_t pid, std::string_view leaf) {
  std::string out = "proc/" + std::to_string(pid);
  out += '/';
  out += leaf;
  return out;
}

/// True if the process or thread has ended, which is no reason to report something missing.
inline bool is_gone(const Error& error) {
  return error.code == Code::kGone || error.code == Code::kNotFound;
}

/// Says what is missing once, at the cost of a test after that.
class MissingOnce {
 public:
  void operator()(model::Sink& sink, std::string_view signal, std::string_view reason,
                  std::string_view hint) {
    if (said_) return;
    said_ = true;
    sink.missing({std::string(signal), std::string(reason), std::string(hint)});
  }

 private:
  bool said_ = false;
};

}  // namespace flatout::probe
