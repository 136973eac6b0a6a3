// The C functions of flatout/nn.h.
#include <new>
#include <string>
#include <utility>

#include "nn/batch_norm.h"
#include "nn/c_structs.h"
#include "nn/check.h"
#include "nn/kernels.h"

namespace {

using namespace flatout;
using nn::read, nn::running_of, nn::statistics_of;

thread_local std::string last_error;

int report(const Status& status) {
  last_error.clear();
  if (status.ok()) return 0;
  last_error = status.error().message;
  return -1;
}

// 0 if function(shape, threads) does it; `argument` is the struct that the function reads. What a
// call allocates by itself is by channel: a wrong shape may ask for more than there is.
template <class Function>
int call(const flatout_nn_shape* shape, std::pair<const char*, const void*> argument,
         const Function& function) {
  const Status given = nn::check_given({{"shape", shape}, argument});
  if (!given.ok()) return report(given);
  const auto read_shape = read(*shape);
  if (!read_shape.ok()) return report(read_shape.error());
  try {
    return report(function(*read_shape, nn::Threads{shape->threads}));
  } catch (const std::bad_alloc&) {
    return report(nn::bad_argument(*read_shape, "no memory for its statistics"));
  }
}

}  // namespace

extern "C" {

const char* flatout_nn_error(void) { return last_error.c_str(); }

const char* flatout_nn_isa(void) { return nn::isa_name(nn::used_isa()).data(); }

uint64_t flatout_nn_mask_bytes(const struct flatout_nn_shape* shape) {
  if (shape == nullptr) return 0;
  const auto known = read(*shape);
  return known.ok() && nn::check_shape(*known).ok() ? nn::mask_bytes(*known) : 0;
}

int flatout_nn_batch_norm_training(const struct flatout_nn_shape* shape,
                                   const struct flatout_nn_forward* forward) {
  return call(shape, {"forward", forward}, [&](const nn::Shape& s, const nn::Threads& t) {
    return nn::batch_norm_training(s, read(*forward), statistics_of(*forward), running_of(*forward),
                                   t);
  });
}

int flatout_nn_batch_norm_inference(const struct flatout_nn_shape* shape,
                                    const struct flatout_nn_forward* forward) {
  return call(shape, {"forward", forward}, [&](const nn::Shape& s, const nn::Threads& t) {
    return nn::batch_norm_inference(s, read(*forward), forward->running_mean,
                                    forward->running_variance, t);
  });
}

int flatout_nn_batch_norm_backward(const struct flatout_nn_shape* shape,
                                   const struct flatout_nn_backward* backward) {
  return call(shape, {"backward", backward}, [&](const nn::Shape& s, const nn::Threads& t) {
    return nn::batch_norm_backward(s, read(*backward), t);
  });
}

int flatout_nn_batch_norm_moments(const struct flatout_nn_shape* shape, const void* x, double* mean,
                                  double* m2) {
  return call(shape, {"x", x}, [&](const nn::Shape& s, const nn::Threads& t) {
    nn::Moments moments{0, mean, m2};
    return nn::batch_norm_moments(s, x, t, &moments);
  });
}

int flatout_nn_combine(int64_t channels, double from_count, const double* from_mean,
                       const double* from_m2, double* count, double* mean, double* m2) {
  const Status given = nn::check_given({{"from_mean", from_mean},
                                        {"from_m2", from_m2},
                                        {"count", count},
                                        {"mean", mean},
                                        {"m2", m2}});
  if (!given.ok()) return report(given);
  for (const auto& [name, value] : {std::pair{"from_count", from_count}, {"count", *count}}) {
    if (value >= 0) continue;  // which no NaN is
    return report(Error{
        Code::kBadInput,
        std::string(name) + " is " + std::to_string(value) + "; it must be a number of values",
        ""});
  }
  nn::Moments into{*count, mean, m2};
  nn::combine(channels, {from_count, const_cast<double*>(from_mean), const_cast<double*>(from_m2)},
              &into);
  *count = into.count;
  return report({});
}

int flatout_nn_batch_norm_finish(const struct flatout_nn_shape* shape, double count,
                                 const double* mean, const double* m2,
                                 const struct flatout_nn_forward* forward) {
  return call(shape, {"forward", forward}, [&](const nn::Shape& s, const nn::Threads&) {
    return nn::batch_norm_finish(s, {count, const_cast<double*>(mean), const_cast<double*>(m2)},
                                 forward->epsilon, statistics_of(*forward), running_of(*forward));
  });
}

int flatout_nn_batch_norm_apply(const struct flatout_nn_shape* shape,
                                const struct flatout_nn_forward* forward) {
  return call(shape, {"forward", forward}, [&](const nn::Shape& s, const nn::Threads& t) {
    return nn::batch_norm_apply(s, read(*forward), statistics_of(*forward), t);
  });
}

int flatout_nn_batch_norm_backward_sums(const struct flatout_nn_shape* shape,
                                        const struct flatout_nn_backward* backward, double* dz,
                                        double* dz_xhat) {
  return call(shape, {"backward", backward}, [&](const nn::Shape& s, const nn::Threads& t) {
    return nn::batch_norm_backward_sums(s, read(*backward), t, {dz, dz_xhat});
  });
}

int flatout_nn_batch_norm_backward_apply(const struct flatout_nn_shape* shape,
                                         const struct flatout_nn_backward* backward,
                                         const double* dz, const double* dz_xhat, double count) {
  return call(shape, {"backward", backward}, [&](const nn::Shape& s, const nn::Threads& t) {
    return nn::batch_norm_backward_apply(
        s, read(*backward), {const_cast<double*>(dz), const_cast<double*>(dz_xhat)}, count, t);
  });
}

}  // extern "C"
