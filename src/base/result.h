// Result<T>: a value or an Error, and the macros that pass errors up.
// What can fail returns Result; exceptions stay outside (docs/architecture.md). The message names
// the thing, the hint names the way out.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <optional>
#include <string>
#include <utility>
#include <variant>

namespace flatout {

enum class Code {
  kNotFound,     // no such file, process, symbol
  kDenied,       // permission
  kBadInput,     // malformed data or arguments
  kUnsupported,  // this kernel, version or platform cannot
  kGone,         // the process exited, the peer closed
  kTorn,         // a racing read gave inconsistent data; trying again may help
  kFull,         // no space
  kTimeout,
  kIo,  // any other system error
};

struct Error {
  Code code = Code::kIo;
  std::string message;
  std::string hint;  // may be empty
};

/// A value or an Error. Check ok() before value().
template <class T>
class [[nodiscard]] Result {
 public:
  Result(T value) : state_(std::in_place_index<0>, std::move(value)) {}      // NOLINT: by design
  Result(Error error) : state_(std::in_place_index<1>, std::move(error)) {}  // NOLINT: by design

  bool ok() const { return state_.index() == 0; }
  explicit operator bool() const { return ok(); }
  T& value() & { return std::get<0>(state_); }
  const T& value() const& { return std::get<0>(state_); }
  T&& value() && { return std::get<0>(std::move(state_)); }
  T& operator*() { return value(); }
  const T& operator*() const { return value(); }
  T* operator->() { return &value(); }
  const T* operator->() const { return &value(); }
  const Error& error() const& { return std::get<1>(state_); }
  Error&& error() && { return std::get<1>(std::move(state_)); }
  T value_or(T fallback) const { return ok() ? value() : std::move(fallback); }

 private:
  std::variant<T, Error> state_;
};

/// Success or an Error.
class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(Error error) : error_(std::move(error)) {}  // NOLINT: by design
  bool ok() const { return !error_; }
  explicit operator bool() const { return ok(); }
  const Error& error() const { return *error_; }

 private:
  std::optional<Error> error_;
};

}  // namespace flatout

#define FLATOUT_CONCAT_(a, b) a##b
#define FLATOUT_CONCAT(a, b) FLATOUT_CONCAT_(a, b)

/// FLATOUT_TRY(auto x, f()): x is the value, or the enclosing function returns the error.
// NOLINTBEGIN(bugprone-macro-parentheses): names and declarations
#define FLATOUT_TRY_(tmp, decl, expr)                             \
  auto tmp = (expr);                                              \
  if (!tmp.ok()) return ::flatout::Error(std::move(tmp).error()); \
  decl = std::move(tmp).value()
// NOLINTEND(bugprone-macro-parentheses)
#define FLATOUT_TRY(decl, expr) FLATOUT_TRY_(FLATOUT_CONCAT(try_, __LINE__), decl, expr)

/// FLATOUT_TRY_STATUS(f()): returns the error of a Status, else goes on.
#define FLATOUT_TRY_STATUS(expr)                                                           \
  do {                                                                                     \
    if (auto flatout_status = (expr); !flatout_status.ok()) return flatout_status.error(); \
  } while (0)

/// For our own mistakes only, never for input.
#define FLATOUT_CHECK(x)                                                         \
  do {                                                                           \
    if (!(x)) {                                                                  \
      std::fprintf(stderr, "flatout: bug: %s:%d: %s\n", __FILE__, __LINE__, #x); \
      std::abort();                                                              \
    }                                                                            \
  } while (0)
