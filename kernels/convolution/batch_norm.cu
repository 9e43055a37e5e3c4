/* y = act((x - mean) / sqrt(variance + epsilon) * gamma + beta + residual), one pass over memory, and what comes before
 * it in training: the statistics of each channel, which a reduction has taken (kernels/reductions/reduce.h). */
#include "kernels/convolution/batch_norm.cuh"

FORMULA(batch_norm_apply, 1, STATISTICS, 1, 0, SETTLE_SCALE, { y[0] = value((x[0] - w[MEAN]) * w[SCALE] + w[BETA]); })

FORMULA(batch_norm_apply_residual, 2, STATISTICS, 1, 0, SETTLE_SCALE,
        { y[0] = value((x[0] - w[MEAN]) * w[SCALE] + w[BETA] + x[1]); })

/* A thread per channel. */
template <typename R>
__device__ inline void batch_norm_settle(const batch_norm_settle_args &a) {
  const int64_t c = (int64_t)blockIdx.x * TFU_THREADS + threadIdx.x;
  if (c >= a.channels) return;
  const R *const states = (const R *)a.states;
  const R mean = states ? states[c] : 0, variance = states ? states[a.channels + c] / (R)a.count : 0;
  const R fresh = states ? (R)a.update : 0, old = 1 - fresh;
  ((R *)a.batch_mean)[c] = mean;
  ((R *)a.batch_variance)[c] = variance;
  ((R *)a.new_mean)[c] = ((const R *)a.mean)[c] * old + mean * fresh;
  ((R *)a.new_variance)[c] = ((const R *)a.variance)[c] * old + variance * fresh;
}
TFU_KERNEL_AS_(batch_norm_settle_f32, batch_norm_settle_args, batch_norm_settle<float>)
TFU_KERNEL_AS_(batch_norm_settle_f64, batch_norm_settle_args, batch_norm_settle<double>)

#define X(name) TFU_KERNEL_FOR_ACTIVATION(batch_norm_apply, tfu_channels_args, name)
BATCH_NORM_ACTIVATIONS(X)
#undef X
TFU_KERNEL_FOR_ACTIVATION(batch_norm_apply_residual, tfu_channels_args, linear)
TFU_KERNEL_FOR_ACTIVATION(batch_norm_apply, tfu_channels_args, any)
TFU_KERNEL_FOR_ACTIVATION(batch_norm_apply_residual, tfu_channels_args, relu)
TFU_KERNEL_FOR_ACTIVATION(batch_norm_apply_residual, tfu_channels_args, any)
