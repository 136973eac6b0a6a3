// Where the functions are that the interposer stands in front of.
#pragma once

#include <cstdint>

namespace flatout::devlimit {

/// The library's own function of that name, nullptr where it has none. Not cached: `Real` does.
void* real_symbol(const char* symbol);

/// What cuGetProcAddress is to answer in place of the driver's function `name` for that version and
/// those flags; nullptr: the driver's own.
void* hook_for(const char* name, int version, uint64_t flags);

/// One such function, looked up at its first call.
template <class Function>
class Real {
 public:
  explicit constexpr Real(const char* symbol) : symbol_(symbol) {}
  /// nullptr where the library has no such function.
  Function* get() {
    void* found = __atomic_load_n(&address_, __ATOMIC_ACQUIRE);
    if (found == nullptr) {
      found = real_symbol(symbol_);
      __atomic_store_n(&address_, found, __ATOMIC_RELEASE);
    }
    return reinterpret_cast<Function*>(found);
  }

 private:
  const char* symbol_;
  void* address_ = nullptr;
};

}  // namespace flatout::devlimit

/// The real function `symbol` with the signature of `like`, called; 500 (CUDA_ERROR_NOT_FOUND)
/// where the driver has no such function.
#define FLATOUT_REAL(like, symbol, ...)                                                \
  ([&]() -> int {                                                                      \
    static constinit ::flatout::devlimit::Real<decltype(like)> real_##symbol(#symbol); \
    auto* const flatout_real = real_##symbol.get();                                    \
    return flatout_real != nullptr ? flatout_real(__VA_ARGS__) : 500;                  \
  }())
