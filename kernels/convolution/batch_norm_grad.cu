/* The gradient of batch normalisation. With d = x - mean, rstd = 1 / sqrt(variance + epsilon), scale = rstd * gamma and
 * g = dy * act'(d * scale + beta + residual):
 *
 *   dresidual = g, dbeta = sum of g, dgamma = rstd * sum of g * d;
 *   frozen: dx = scale * g, dmean = -scale * dbeta, dvariance = -rstd^2 / 2 * gamma * dgamma;
 *   else: dx = scale * (g - dbeta / count - d * rstd * dgamma / count).
 *
 * dy may come as two tensors that are added here. So frozen there is one pass over memory, else two: the sums first.
 * Where an activation follows a residual, another pass, or that of the sums, makes g and writes it, since it is
 * dresidual; what follows reads it in the place of dy, without an activation. */
#include "kernels/convolution/batch_norm.cuh"

FORMULA(batch_norm_sums, TAKES_MORE, 2, STATISTICS, 0, 2, SETTLE_SCALE, {
  const REAL d = x[1] - w[MEAN], g = x[0] * slope(d * w[SCALE] + w[BETA]);
  s[0] = g * d;
  s[1] = g;
})

/* For relu, whose slope is 1 where y > 0, and 0 elsewhere: x[2] is that, from y's signs. */
FORMULA(batch_norm_sums_signs, TAKES_MORE | READS_SIGNS, 2, 1, 1, 2, , {
  const REAL d = x[1] - w[MEAN], g = x[0] * x[2];
  y[0] = g;
  s[0] = g * d;
  s[1] = g;
})

/* The same from y itself. */
FORMULA(batch_norm_sums_kept, TAKES_MORE, 3, 1, 1, 2, , {
  const REAL d = x[1] - w[MEAN], g = x[0] * slope(x[2]);
  y[0] = g;
  s[0] = g * d;
  s[1] = g;
})

/* For the others. */
FORMULA(batch_norm_sums_residual, TAKES_MORE, 3, STATISTICS, 1, 2, SETTLE_SCALE, {
  const REAL d = x[1] - w[MEAN], g = x[0] * slope(d * w[SCALE] + w[BETA] + x[2]);
  y[0] = g;
  s[0] = g * d;
  s[1] = g;
})

FORMULA(frozen_batch_norm_grad, TAKES_MORE, 2, STATISTICS, 1, 2, SETTLE_SCALE, {
  const REAL d = x[1] - w[MEAN], g = x[0] * slope(d * w[SCALE] + w[BETA]);
  y[0] = g * w[SCALE];
  s[0] = g * d;
  s[1] = g;
})

/* Weights are the mean, beta and the three slopes. */
enum { SECOND_MEAN, SECOND_BETA, SLOPES, SECOND = SLOPES + 3 };
FORMULA(batch_norm_second, TAKES_MORE, 2, SECOND, 1, 0, , {
  const REAL d = x[1] - w[SECOND_MEAN], g = x[0] * slope(d * w[SLOPES] + w[SECOND_BETA]);
  y[0] = w[SLOPES] * g + (w[SLOPES + 1] * d + w[SLOPES + 2]);
})

/* Folds the partial sums, in a fixed order, and settles what is made of them. In double, so that what is multiplied
 * with every value is rounded once. Neighbouring threads read neighbouring columns, be they of one channel or of
 * several. */
template <typename R>
__device__ inline void batch_norm_grad_settle(const batch_norm_grad_settle_args &a) {
  const int across = a.inner == 1 ? BATCH_NORM_ACROSS : 1, lane = threadIdx.x / across, lanes = TFU_THREADS / across;
  const int64_t c = (int64_t)blockIdx.x * across + threadIdx.x % across;
  const int64_t cols = a.channels * a.inner, copies = a.width / cols;
  const int64_t entries = c < a.channels ? a.blocks * copies * a.inner : 0;
  const R *const from = (const R *)a.partial + c * a.inner;
  /* An entry is a position of a copy of a block, and so is the way to the lane's next one: no division in the loop. */
  const int64_t rows = lanes / a.inner, positions = lanes - rows * a.inner, blocks = rows / copies;
  const int64_t row = lane / a.inner;
  int64_t position = lane - row * a.inner, block = row / copies, copy = row - block * copies;
  double to_gamma = 0, to_beta = 0;
  _Pragma("unroll 8") for (int64_t e = lane; e < entries; e += lanes) {
    const R *const at = from + block * 2 * a.width + copy * cols + position;
    to_gamma += at[0];
    to_beta += at[a.width];
    position += positions, copy += rows - blocks * copies, block += blocks;
    if (position >= a.inner) position -= a.inner, copy++;
    if (copy >= copies) copy -= copies, block++;
  }
  to_gamma = sum_lanes(across, to_gamma);
  to_beta = sum_lanes(across, to_beta);
  if (lane || c >= a.channels) return;
  const double gamma = a.gamma ? ((const R *)a.gamma)[c] : 1;
  const double rstd = 1 / sqrt((double)((const R *)a.variance)[c] + (R)a.epsilon), scale = rstd * gamma;
  const double dgamma = rstd * to_gamma, dbeta = to_beta;
  if (a.dgamma) ((R *)a.dgamma)[c] = (R)dgamma;
  if (a.dbeta) ((R *)a.dbeta)[c] = (R)dbeta;
  if (a.dmean) ((R *)a.dmean)[c] = (R)(0 - scale * dbeta); /* of nothing 0, not -0 */
  if (a.dvariance) ((R *)a.dvariance)[c] = (R)(0 - 0.5 * rstd * scale * dgamma);
  if (!a.slopes) return;
  R *const slopes = (R *)a.slopes + c;
  slopes[0] = (R)scale;
  slopes[a.channels] = (R)(-scale * rstd * dgamma / (double)a.count);
  slopes[2 * a.channels] = (R)(-scale * dbeta / (double)a.count);
}
TFU_KERNEL_AS_(batch_norm_grad_settle_f32, batch_norm_grad_settle_args, batch_norm_grad_settle<float>)
TFU_KERNEL_AS_(batch_norm_grad_settle_f64, batch_norm_grad_settle_args, batch_norm_grad_settle<double>)

#define X(name)                                                            \
  TFU_KERNEL_FOR_ACTIVATION(batch_norm_sums, batch_norm_args, name)        \
  TFU_KERNEL_FOR_ACTIVATION(frozen_batch_norm_grad, batch_norm_args, name) \
  TFU_KERNEL_FOR_ACTIVATION(batch_norm_second, batch_norm_args, name)
BATCH_NORM_ACTIVATIONS(X)
X(any)
#undef X
TFU_KERNEL_FOR_ACTIVATION(batch_norm_sums_signs, batch_norm_args, relu)
TFU_KERNEL_FOR_ACTIVATION(batch_norm_sums_kept, batch_norm_args, relu)
TFU_KERNEL_FOR_ACTIVATION(batch_norm_sums_residual, batch_norm_args, any)
