/* y = act((x - mean) / sqrt(variance + epsilon) * gamma + beta + residual), one pass over memory, and what comes before
 * it in training: the statistics of each channel, whose parts a reduction has taken by Welford
 * (kernels/reductions/reduce.h). */
#include "kernels/convolution/batch_norm.cuh"

FORMULA(batch_norm_apply, 0, 1, STATISTICS, 1, 0, SETTLE_SCALE,
        { y[0] = value((x[0] - w[MEAN]) * w[SCALE] + w[BETA]); })

/* In training relu's gradient wants the signs (ops/convolution/batch_norm.c). */
FORMULA(batch_norm_apply_residual, WRITES_SIGNS, 2, STATISTICS, 1, 0, SETTLE_SCALE,
        { y[0] = value((x[0] - w[MEAN]) * w[SCALE] + w[BETA] + x[1]); })

template <typename R>
__device__ inline R shift_of(const batch_norm_settle_args &a, int64_t c) {
  if (!a.shift) return 0;
  const R v = ((const R *)a.shift)[c];
  if (a.shift_as == BATCH_NORM_SHIFT_F16) return (R)(float)(f16)(float)v;
  return a.shift_as == BATCH_NORM_SHIFT_BF16 ? (R)(float)(bf16)(float)v : v;
}

/* The mean of all parts, and then squared differences from it, in double. Means are taken as differences from that of
 * the first part, so that one far from 0 costs no digits. */
template <typename R>
__device__ inline void batch_norm_settle(const batch_norm_settle_args &a) {
  const int lane = threadIdx.x / BATCH_NORM_ACROSS, lanes = TFU_THREADS / BATCH_NORM_ACROSS;
  const int64_t c = (int64_t)blockIdx.x * BATCH_NORM_ACROSS + threadIdx.x % BATCH_NORM_ACROSS;
  const int64_t parts = c < a.channels && a.states ? a.parts : 0, words = a.channels * a.parts;
  const R *const states = (const R *)a.states + c / a.inner * a.parts * a.inner + c % a.inner;
  const double by = 1 / (double)(a.count ? a.count : 1);
  const auto of = [&](int word, int64_t part) { return (double)states[word * words + part * a.inner]; };
  const double first = parts ? of(BATCH_NORM_STATE_MEAN, 0) : 0;
  const auto mean_of = [&](int64_t part) {
    return (of(BATCH_NORM_STATE_MEAN, part) - first) + of(BATCH_NORM_STATE_REST, part);
  };
  double sum = 0, squares = 0;
  _Pragma("unroll 8") for (int64_t p = lane; p < parts; p += lanes) sum += of(BATCH_NORM_STATE_COUNT, p) * mean_of(p);
  const double off = sum_lanes(BATCH_NORM_ACROSS, sum) * by;
  _Pragma("unroll 8") for (int64_t p = lane; p < parts; p += lanes) {
    const double d = mean_of(p) - off;
    squares += of(BATCH_NORM_STATE_SQUARES, p) + of(BATCH_NORM_STATE_COUNT, p) * (d * d);
  }
  squares = sum_lanes(BATCH_NORM_ACROSS, squares);
  if (lane || c >= a.channels) return;
  const R mean = (R)(first + off), variance = (R)(squares * by), fresh = a.states ? (R)a.update : 0, old = 1 - fresh;
  ((R *)a.batch_mean)[c] = mean;
  ((R *)a.batch_variance)[c] = variance;
  ((R *)a.new_mean)[c] = ((const R *)a.mean)[c] * old + (mean + shift_of<R>(a, c)) * fresh;
  ((R *)a.new_variance)[c] = ((const R *)a.variance)[c] * old + variance * fresh;
}
TFU_KERNEL_AS_(batch_norm_settle_f32, batch_norm_settle_args, batch_norm_settle<float>)
TFU_KERNEL_AS_(batch_norm_settle_f64, batch_norm_settle_args, batch_norm_settle<double>)

#define X(name) TFU_KERNEL_FOR_ACTIVATION(batch_norm_apply, batch_norm_args, name)
BATCH_NORM_ACTIVATIONS(X)
#undef X
TFU_KERNEL_FOR_ACTIVATION(batch_norm_apply_residual, batch_norm_args, linear)
TFU_KERNEL_FOR_ACTIVATION(batch_norm_apply, batch_norm_args, any)
TFU_KERNEL_FOR_ACTIVATION(batch_norm_apply_residual, batch_norm_args, bent)
TFU_KERNEL_FOR_ACTIVATION(batch_norm_apply_residual, batch_norm_args, any)
