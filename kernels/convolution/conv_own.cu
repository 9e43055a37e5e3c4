/* The first rung, a thread per result (conv_own.h): convolution, and the two passes of its gradient,
 * of which that of the filter is split over positions where there are few results (split-K). */
#include "kernels/convolution/conv_own.cuh"

/* Sum of a[i * a_step] * b[i * b_step]. */
template <typename T>
__device__ inline acc<T> dot(const T *a, int64_t a_step, const T *b, int64_t b_step, int64_t n) {
  acc<T> sum = 0;
  for (int64_t i = 0; i < n;) {
    acc<T> part = 0;
    for (const int64_t end = min(i + CHAIN, n); i < end; i++, a += a_step, b += b_step) part += (acc<T>)*a * (acc<T>)*b;
    sum += part;
  }
  return sum;
}

/* Neighbouring threads have neighbouring outputs: they read the same x, and the kernel side by side. */
template <typename T>
__device__ inline void conv_direct(const conv_args &a) {
  const conv_shape &s = a.s;
  const int64_t channels = s.groups * s.c, outputs = s.groups * s.k, n = s.batch * volume(s.out) * outputs;
  for (int64_t to = (int64_t)blockIdx.x * TFU_THREADS + threadIdx.x; to < n; to += (int64_t)gridDim.x * TFU_THREADS) {
    const int64_t k = to % outputs;
    const coordinates o(to / outputs, s.out);
    const T *x = (const T *)a.x + k / s.k * s.c, *kernel = (const T *)a.kernel + k;
    acc<T> sum = 0;
    int64_t tap[CONV_AXES];
    for (tap[0] = 0; tap[0] < s.window[0]; tap[0]++)
      for (tap[1] = 0; tap[1] < s.window[1]; tap[1]++)
        for (tap[2] = 0; tap[2] < s.window[2]; tap[2]++, kernel += s.c * outputs) {
          const int64_t pixel = pixel_of_x(s, o, tap);
          if (pixel >= 0) sum += dot(x + pixel * channels, 1, kernel, outputs, s.c);
        }
    const acc<T> one[1] = {sum};
    finish<T>(a, to, k, one);
  }
}
TFU_KERNEL(conv_direct, conv_args)

template <typename T>
__device__ inline void conv_data_direct(const conv_args &a) {
  const conv_shape &s = a.s;
  const int64_t channels = s.groups * s.c, outputs = s.groups * s.k, n = s.batch * volume(s.in) * channels;
  for (int64_t to = (int64_t)blockIdx.x * TFU_THREADS + threadIdx.x; to < n; to += (int64_t)gridDim.x * TFU_THREADS) {
    const int64_t c = to % channels, group = c / s.c;
    const coordinates i(to / channels, s.in);
    const T *y = (const T *)a.y + group * s.k, *kernel = (const T *)a.kernel + (c % s.c) * outputs + group * s.k;
    acc<T> sum = 0;
    int64_t tap[CONV_AXES];
    for (tap[0] = 0; tap[0] < s.window[0]; tap[0]++)
      for (tap[1] = 0; tap[1] < s.window[1]; tap[1]++)
        for (tap[2] = 0; tap[2] < s.window[2]; tap[2]++, kernel += s.c * outputs) {
          const int64_t pixel = pixel_of_y(s, i, tap);
          if (pixel >= 0) sum += dot(y + pixel * outputs, 1, kernel, 1, s.k);
        }
    ((T *)a.x)[to] = (T)sum;
  }
}
TFU_KERNEL(conv_data_direct, conv_args)

/* A block has one channel of one tap by OUTPUTS neighbours, and one slice of the positions along y; SHARE threads of
 * each take the slice's positions in turn, and their sums are added by halves. */
template <typename T>
__device__ inline void conv_filter_direct(const conv_args &a) {
  enum { OUTPUTS = CONV_FILTER_OUTPUTS, SHARE = CONV_FILTER_SHARE };
  static_assert(OUTPUTS * SHARE == TFU_THREADS, "a block's threads");
  __shared__ acc<T> sums[TFU_THREADS];
  const conv_shape &s = a.s;
  const int64_t channels = s.groups * s.c, outputs = s.groups * s.k, positions = s.batch * volume(s.out);
  const int64_t across = (outputs + OUTPUTS - 1) / OUTPUTS, row = blockIdx.x / across, t = row / s.c;
  const int64_t k = blockIdx.x % across * OUTPUTS + threadIdx.x % OUTPUTS, share = threadIdx.x / OUTPUTS;
  const int64_t tap[CONV_AXES] = {t / (s.window[1] * s.window[2]), t / s.window[2] % s.window[1], t % s.window[2]};
  const int64_t begin = blockIdx.y * a.slice, end = min(begin + a.slice, positions);
  acc<T> sum = 0;
  if (k < outputs) {
    const T *x = (const T *)a.x + k / s.k * s.c + row % s.c, *y = (const T *)a.y + k;
    for (int64_t p = begin + share; p < end;) {
      acc<T> part = 0;
      for (int i = 0; i < CHAIN && p < end; i++, p += SHARE) {
        const int64_t pixel = pixel_of_x(s, coordinates(p, s.out), tap);
        if (pixel >= 0) part += (acc<T>)x[pixel * channels] * (acc<T>)y[p * outputs];
      }
      sum += part;
    }
  }
  sums[threadIdx.x] = sum;
  __syncthreads();
  for (int half = SHARE / 2; half > 0; half /= 2) {
    if (share < half) sums[threadIdx.x] += sums[threadIdx.x + half * OUTPUTS];
    __syncthreads();
  }
  const int64_t to = (blockIdx.y * volume(s.window) * s.c + row) * outputs + k;
  if (share == 0 && k < outputs) ((acc<T> *)a.partial)[to] = sums[threadIdx.x];
}
TFU_KERNEL(conv_filter_direct, conv_args)
