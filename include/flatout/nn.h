/* flatout/nn.h: batch norm fused with residual add and ReLU, for any language: libflatout_nn.so.
 *
 *   z = gamma * (x - mean) / sqrt(variance + epsilon) + beta (+ residual),
 *   y = relu ? max(z, 0) : z
 *
 * Buffers are dense. x, residual, y, dy, dx, d_residual: [N, C, H, W] or [N, H, W, C] of `type`;
 * gamma, beta, d_gamma, d_beta and running statistics: [C] of `parameters`; mean, inverse_std and
 * sums: [C] of double. Functions return 0, or -1 with the reason in flatout_nn_error().
 * They may be called by any thread; `threads` counts those that work on one call. */
#ifndef FLATOUT_NN_H_
#define FLATOUT_NN_H_

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#ifndef FLATOUT_NN_API
#define FLATOUT_NN_API
#endif

enum flatout_nn_layout { FLATOUT_NN_NCHW = 0, FLATOUT_NN_NHWC = 1 };
enum flatout_nn_type {
  FLATOUT_NN_F32 = 0,
  FLATOUT_NN_BF16 = 1,
  FLATOUT_NN_F16 = 2,
  FLATOUT_NN_F64 = 3,
};

struct flatout_nn_shape {
  int64_t n, c, h, w;
  int32_t layout;     /* flatout_nn_layout */
  int32_t type;       /* flatout_nn_type of the data */
  int32_t parameters; /* flatout_nn_type of gamma, beta and running statistics */
  int32_t threads;    /* at least 1 */
};

struct flatout_nn_forward {
  const void* x;
  const void* residual; /* NULL: nothing is added */
  const void* gamma;    /* NULL: 1 */
  const void* beta;     /* NULL: 0 */
  double epsilon;
  int32_t relu;
  void* y;       /* may be x or residual */
  uint8_t* mask; /* [flatout_nn_mask_bytes], NULL: not kept */
  /* Of the batch. Training writes them, apply reads them, inference leaves them alone. */
  double* mean;
  double* inverse_std; /* 1 / sqrt(biased variance + epsilon) */
  /* Training updates them (NULL: it does not), inference reads them:
   * running = (1 - momentum) * running + momentum * batch. */
  void* running_mean;
  void* running_variance;
  double momentum;
  int32_t unbiased; /* 1: the running variance is of count - 1 (PyTorch, TensorFlow fused) */
};

struct flatout_nn_backward {
  const void* x;
  const void* dy;
  const void* gamma;   /* NULL: 1 */
  const uint8_t* mask; /* of forward; NULL: there was no ReLU */
  const double* mean;
  const double* inverse_std;
  int32_t batch_statistics; /* 0: mean and inverse_std were constants (inference) */
  void* dx;                 /* NULL: not wanted, as the others */
  void* d_residual;
  void* d_gamma;
  void* d_beta;
};

/* What went wrong last on this thread; "" if nothing did. Valid until its next call. */
FLATOUT_NN_API const char* flatout_nn_error(void);
/* "avx512", "avx2" or "portable": what this processor gets. */
FLATOUT_NN_API const char* flatout_nn_isa(void);
/* Bytes of a mask; 0 where the shape is bad. */
FLATOUT_NN_API uint64_t flatout_nn_mask_bytes(const struct flatout_nn_shape* shape);

FLATOUT_NN_API int flatout_nn_batch_norm_training(const struct flatout_nn_shape* shape,
                                                  const struct flatout_nn_forward* forward);
FLATOUT_NN_API int flatout_nn_batch_norm_inference(const struct flatout_nn_shape* shape,
                                                   const struct flatout_nn_forward* forward);
FLATOUT_NN_API int flatout_nn_batch_norm_backward(const struct flatout_nn_shape* shape,
                                                  const struct flatout_nn_backward* backward);

/* In stages, for statistics over replicas: each computes its moments (count, mean, sum of squared
 * deviations), all are combined, each finishes and applies; on the way back the sums add up. */
FLATOUT_NN_API int flatout_nn_batch_norm_moments(const struct flatout_nn_shape* shape,
                                                 const void* x, double* mean, double* m2);
/* mean, m2 of `count` values per channel become those of both together. Of no values (a count of
 * 0) mean and m2 are not read. */
FLATOUT_NN_API int flatout_nn_combine(int64_t channels, double from_count, const double* from_mean,
                                      const double* from_m2, double* count, double* mean,
                                      double* m2);
/* forward->mean, inverse_std and running statistics from the combined moments. */
FLATOUT_NN_API int flatout_nn_batch_norm_finish(const struct flatout_nn_shape* shape, double count,
                                                const double* mean, const double* m2,
                                                const struct flatout_nn_forward* forward);
FLATOUT_NN_API int flatout_nn_batch_norm_apply(const struct flatout_nn_shape* shape,
                                               const struct flatout_nn_forward* forward);
/* The sums, and d_residual where it is wanted. */
FLATOUT_NN_API int flatout_nn_batch_norm_backward_sums(const struct flatout_nn_shape* shape,
                                                       const struct flatout_nn_backward* backward,
                                                       double* dz, double* dz_xhat);
/* dx, d_gamma and d_beta of the sums, which are over `count` values per channel. */
FLATOUT_NN_API int flatout_nn_batch_norm_backward_apply(const struct flatout_nn_shape* shape,
                                                        const struct flatout_nn_backward* backward,
                                                        const double* dz, const double* dz_xhat,
                                                        double count);

/* The same on a CUDA device: libflatout_nn_cuda.so, for f32, bf16 and f16 with such parameters. All
 * buffers are memory of the device, shape->threads is not looked at. Calls return when their work
 * is queued, and may be captured into a graph. Training's blocks may wait for each other, so that
 * its kernels begin when all of them can run at once: not before other kernels leave room. */
struct flatout_nn_cuda_queue {
  int32_t device;                /* its number; -1: the thread's current one */
  int32_t spare_multiprocessors; /* left to kernels that run beside these */
  void* stream;                  /* cudaStream_t of the device */
  void* workspace; /* of the device, aligned to 16 bytes, not used by another call meanwhile */
  uint64_t workspace_bytes; /* at least flatout_nn_cuda_workspace_bytes(); inference needs none */
};

/* As flatout_nn_error(), of the functions below. */
FLATOUT_NN_API const char* flatout_nn_cuda_error(void);
/* Bytes of workspace that are enough for any call on this device; 0 if it cannot run them: there is
 * none of this number, its driver is older than they need, or they were not built for its kind. */
FLATOUT_NN_API uint64_t flatout_nn_cuda_workspace_bytes(int32_t device);
FLATOUT_NN_API int flatout_nn_cuda_batch_norm_training(const struct flatout_nn_shape* shape,
                                                       const struct flatout_nn_forward* forward,
                                                       const struct flatout_nn_cuda_queue* queue);
FLATOUT_NN_API int flatout_nn_cuda_batch_norm_inference(const struct flatout_nn_shape* shape,
                                                        const struct flatout_nn_forward* forward,
                                                        const struct flatout_nn_cuda_queue* queue);
FLATOUT_NN_API int flatout_nn_cuda_batch_norm_backward(const struct flatout_nn_shape* shape,
                                                       const struct flatout_nn_backward* backward,
                                                       const struct flatout_nn_cuda_queue* queue);

#ifdef __cplusplus
}
#endif

#endif /* FLATOUT_NN_H_ */
