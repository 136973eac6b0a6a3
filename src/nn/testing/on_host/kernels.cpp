// nn/cuda_batch_norm.cu as plain C++, with testing/on_host/nn/cuda_device.h.
#include "nn/cuda_batch_norm.cu"
