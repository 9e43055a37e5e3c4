/* The second rung (conv_own.h): the kernel in constant memory.
 *
 * Constant memory gives one number to all lanes of a warp at once, if all ask for the same. So neighbouring threads
 * have neighbouring positions, not outputs, and a block has one pack of outputs: what it reads of the kernel is the
 * same for all. A thread makes all of the pack, so that one number of x is used N times. */
#include "kernels/convolution/conv_own.cuh"

/* A copy of the kernel, [window, channels of a group, outputs] in packs; the launch fills it. */
extern "C" __constant__ int4 conv_constant_kernel[CONV_CONSTANT_BYTES / sizeof(int4)] = {};

template <typename T>
__device__ inline void conv_constant(const conv_args &a) {
  enum { N = packed<T>::N };
  const conv_shape &s = a.s;
  const int64_t position = (int64_t)blockIdx.x * TFU_THREADS + threadIdx.x;
  if (position >= s.batch * volume(s.out)) return;
  const int64_t channels = s.groups * s.c, outputs = s.groups * s.k, k = blockIdx.y * N;
  const coordinates o(position, s.out);
  const T *const x = (const T *)a.x + k / s.k * s.c;
  const int packs = (int)outputs / N, c = (int)s.c;
  int pack = blockIdx.y;
  acc<T> sum[N] = {};
  int64_t tap[CONV_AXES];
  for (tap[0] = 0; tap[0] < s.window[0]; tap[0]++)
    for (tap[1] = 0; tap[1] < s.window[1]; tap[1]++)
      for (tap[2] = 0; tap[2] < s.window[2]; tap[2]++, pack += c * packs) {
        const int64_t pixel = pixel_of_x(s, o, tap);
        if (pixel < 0) continue;
        for (int i = 0; i < c;) {
          acc<T> part[N] = {};
          for (const int end = min(i + CHAIN, c); i < end; i++) {
            const acc<T> seen = (acc<T>)x[pixel * channels + i];
            acc<T> w[N];
            widen_pack<T>(conv_constant_kernel[pack + i * packs], w);
            UNROLLED(n, N) part[n] += seen * w[n];
          }
          UNROLLED(n, N) sum[n] += part[n];
        }
      }
  finish<T>(a, position * outputs + k, k, sum);
}
TFU_KERNEL(conv_constant, conv_args)
