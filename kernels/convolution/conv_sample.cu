/* Some results as sums in double, and the same results as an engine has them (conv_sample.h). */
#include "kernels/convolution/conv_sample.h"

#include "kernels/convolution/conv_own.cuh"

/* Term i of result `at`, 0 where the window sees nothing. */
__device__ inline double term(const conv_sample_args &m, int64_t at, int64_t i) {
  const conv_shape &s = m.a.s;
  const float *x = (const float *)m.a.x, *kernel = (const float *)m.a.kernel, *y = (const float *)m.a.y;
  const int64_t channels = s.groups * s.c, outputs = s.groups * s.k;
  if (m.pass == CONV_DATA) {
    const int64_t c = at % channels, k = c / s.c * s.k + i % s.k, t = i / s.k;
    const int64_t pixel = pixel_of_y(s, coordinates(at / channels, s.in), coordinates(t, s.window).at);
    return pixel < 0 ? 0 : (double)y[pixel * outputs + k] * kernel[(t * s.c + c % s.c) * outputs + k];
  }
  const int64_t k = at % outputs, position = m.pass == CONV_FORWARD ? at / outputs : i;
  const int64_t line = m.pass == CONV_FORWARD ? i : at / outputs; /* of the kernel: a tap and a channel */
  const int64_t pixel = pixel_of_x(s, coordinates(position, s.out), coordinates(line / s.c, s.window).at);
  if (pixel < 0) return 0;
  const double seen = x[pixel * channels + k / s.k * s.c + line % s.c];
  return seen * (m.pass == CONV_FORWARD ? kernel[line * outputs + k] : y[position * outputs + k]);
}

/* blockIdx.x has a result, blockIdx.y a part of its terms; threads take these in turn, and their sums are added by
 * halves. */
__device__ inline void conv_sample(const conv_sample_args &m) {
  __shared__ double sums[TFU_THREADS], sizes[TFU_THREADS];
  const int64_t at = conv_sample_index(&m, blockIdx.x), outputs = m.a.s.groups * m.a.s.k;
  const int64_t first = blockIdx.y * TFU_THREADS + threadIdx.x;
  double sum = 0, size = 0;
  const auto add = [&](double t) { sum += t, size += fabs(t); };
  for (int64_t i = first; i < m.terms; i += gridDim.y * TFU_THREADS) add(term(m, at, i));
  if (first == 0 && m.a.bias) add(((const float *)m.a.bias)[at % outputs]);
  if (first == 0 && m.a.residual) add(((const float *)m.a.residual)[at]);
  sums[threadIdx.x] = sum, sizes[threadIdx.x] = size;
  __syncthreads();
  for (int half = TFU_THREADS / 2; half > 0; half /= 2) {
    if (threadIdx.x < half) {
      sums[threadIdx.x] += sums[threadIdx.x + half];
      sizes[threadIdx.x] += sizes[threadIdx.x + half];
    }
    __syncthreads();
  }
  double *const to = m.sums + (blockIdx.x * gridDim.y + blockIdx.y) * 2;
  if (threadIdx.x == 0) to[0] = sums[0], to[1] = sizes[0];
}
TFU_KERNEL_AS_(conv_sample_f32, conv_sample_args, conv_sample)

__device__ inline void conv_sampled(const conv_sample_args &m) {
  const int i = threadIdx.x;
  if (i < m.samples) m.got[i] = m.result[conv_sample_where(&m, conv_sample_index(&m, i))];
}
TFU_KERNEL_AS_(conv_sampled_f32, conv_sample_args, conv_sampled)
