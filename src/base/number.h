// Numbers that come from users and files, where C++ leaves the outcome of a cast undefined.
#pragma once

#include <cmath>
#include <limits>

namespace flatout {

/// `value` without its fraction as a T; the nearest T where it lies outside of them, 0 of a NaN.
template <class T>
T saturate(double value) {
  // 2^digits, the first number beyond T's largest, is exact in a double; the largest itself may not
  // be.
  const double beyond = std::ldexp(1.0, std::numeric_limits<T>::digits);
  if (std::isnan(value)) return 0;
  if (value >= beyond) return std::numeric_limits<T>::max();
  if (value <= static_cast<double>(std::numeric_limits<T>::min())) {
    return std::numeric_limits<T>::min();
  }
  return static_cast<T>(value);
}

}  // namespace flatout
