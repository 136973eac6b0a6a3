// What is wrong with the arguments of batch norm, in words; the same for every device.
#pragma once

#include "nn/batch_norm.h"

namespace flatout::nn {

/// "batch norm of x [2, 3, 4, 4] NCHW f32: ...".
Error bad_argument(const Shape& shape, const std::string& what);

Status check_shape(const Shape& shape);
Status check_needed(const Shape& shape, const void* argument, const char* name);
Status check_epsilon(const Shape& shape, double epsilon);
/// More than one value per channel, for statistics of a batch.
Status check_count(const Shape& shape, double count);
/// That running statistics do not become NaN by the momentum, if there are any.
Status check_running(const Shape& shape, const Running& running);
Status check_forward(const Shape& shape, const Forward& forward);
Status check_statistics(const Shape& shape, const double* mean, const double* inverse_std);
Status check_backward(const Shape& shape, const Backward& backward);

}  // namespace flatout::nn
