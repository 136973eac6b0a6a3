#include "nn/kernels.h"

#include <atomic>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace flatout::nn {
namespace {

bool has_f16c() {
#if defined(__x86_64__)  // clang 14's __builtin_cpu_supports does not know it
  unsigned a = 0, b = 0, c = 0, d = 0;
  return __get_cpuid(1, &a, &b, &c, &d) != 0 && (c & bit_F16C) != 0;
#else
  return false;
#endif
}

Isa best_isa() {
  if (has_isa(Isa::kAvx512)) return Isa::kAvx512;
  return has_isa(Isa::kAvx2) ? Isa::kAvx2 : Isa::kPortable;
}

std::atomic<Isa>& isa_in_use() {
  static std::atomic<Isa> isa = best_isa();
  return isa;
}

}  // namespace

std::string_view isa_name(Isa isa) {
  constexpr std::string_view kNames[] = {"portable", "avx2", "avx512"};
  return kNames[static_cast<int>(isa)];
}

bool has_isa(Isa isa) {
#if defined(__x86_64__)
  if (isa == Isa::kAvx512) {
    return has_isa(Isa::kAvx2) && __builtin_cpu_supports("avx512f") &&
           __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
           __builtin_cpu_supports("avx512dq");
  }
  if (isa == Isa::kAvx2) {
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && has_f16c();
  }
#endif
  return isa == Isa::kPortable;
}

Isa used_isa() { return isa_in_use().load(std::memory_order_relaxed); }

void set_isa(Isa isa) {
  FLATOUT_CHECK(has_isa(isa));
  isa_in_use().store(isa, std::memory_order_relaxed);
}

const Kernels<float>& float_kernels(Type type, bool rows) {
  switch (used_isa()) {
    case Isa::kAvx512:
      return avx512_kernels(type, rows);
    case Isa::kAvx2:
      return avx2_kernels(type, rows);
    case Isa::kPortable:
      break;
  }
  return portable_kernels(type, rows);
}

}  // namespace flatout::nn
