/* Depthwise convolution with any window, multiplier and number of channels: a thread for each element of y or dx, and
 * for the filter's gradient threads that share the positions of each tap. kernels/convolution/depthwise_strips.cu and
 * depthwise_filter.cu serve the usual windows. */
#include "kernels/convolution/depthwise_conv.h"

#include "kernels/core/device/any_activation.cuh"

/* An element of [batch, height, width, channels] by its number. */
struct element {
  int64_t batch, channel;
  int row, column;
  __device__ element(int64_t e, int height, int width, int64_t channels) {
    const int64_t position = e / channels, line = position / width;
    channel = e - position * channels;
    column = (int)(position - line * width);
    batch = line / height;
    row = (int)(line - batch * height);
  }
};

__device__ inline int64_t first_element() { return (int64_t)blockIdx.x * TFU_THREADS + threadIdx.x; }

template <typename T>
__device__ inline void depthwise_any(const depthwise_args &a) {
  const int64_t outputs = a.channels * a.multiplier;
  for (int64_t e = first_element(); e < a.elements; e += (int64_t)gridDim.x * TFU_THREADS) {
    const element at(e, a.h.out, a.w.out, outputs);
    const int row = at.row * a.h.stride - a.h.before, column = at.column * a.w.stride - a.w.before;
    const T *x = (const T *)a.from + at.batch * a.h.in * a.w.in * a.channels + at.channel / a.multiplier;
    const T *kernel = (const T *)a.kernel + at.channel;
    acc<T> sum = a.bias ? (acc<T>)((const T *)a.bias)[at.channel] : (acc<T>)0;
    for (int r = 0; r < a.h.size; r++) {
      const int i = row + r * a.h.dilation;
      if (i < 0 || i >= a.h.in) continue;
      for (int c = 0; c < a.w.size; c++) {
        const int j = column + c * a.w.dilation;
        if (j < 0 || j >= a.w.in) continue;
        sum +=
            (acc<T>)x[((int64_t)i * a.w.in + j) * a.channels] * (acc<T>)kernel[((int64_t)r * a.w.size + c) * outputs];
      }
    }
    if (a.pre) ((T *)a.pre)[e] = (T)sum;
    ((T *)a.to)[e] = (T)(a.activation == TFU_ACT_linear ? sum : activate<T>(a.activation, sum));
  }
}

/* The position of dy that meets position i of dx in tap k, or -1. */
__device__ inline int met(int i, int k, const depthwise_axis &axis) {
  const int from = i + axis.before - k * axis.dilation;
  if (from < 0 || from % axis.stride) return -1;
  return from / axis.stride < axis.out ? from / axis.stride : -1;
}

template <typename T>
__device__ inline void depthwise_any_back(const depthwise_args &a) {
  const int64_t outputs = a.channels * a.multiplier;
  for (int64_t e = first_element(); e < a.elements; e += (int64_t)gridDim.x * TFU_THREADS) {
    const element at(e, a.h.in, a.w.in, a.channels);
    const T *dy = (const T *)a.from + at.batch * a.h.out * a.w.out * outputs + at.channel * a.multiplier;
    const T *kernel = (const T *)a.kernel + at.channel * a.multiplier;
    acc<T> sum = 0;
    for (int r = 0; r < a.h.size; r++) {
      const int i = met(at.row, r, a.h);
      if (i < 0) continue;
      for (int c = 0; c < a.w.size; c++) {
        const int j = met(at.column, c, a.w);
        if (j < 0) continue;
        const T *slopes = dy + ((int64_t)i * a.w.out + j) * outputs;
        const T *weights = kernel + ((int64_t)r * a.w.size + c) * outputs;
        for (int64_t m = 0; m < a.multiplier; m++) sum += (acc<T>)slopes[m] * (acc<T>)weights[m];
      }
    }
    ((T *)a.to)[e] = (T)sum;
  }
}

/* A block has LANES neighbouring channels of the result in one tap, or for the bias, and a share of the positions,
 * which its rows of threads take in turn. */
template <typename T>
__device__ inline void depthwise_any_filter(const depthwise_filter_args &a) {
  enum { LANES = 32, ROWS = TFU_THREADS / LANES };
  __shared__ acc<T> sums[ROWS][LANES];
  const int64_t outputs = a.channels * a.multiplier, groups = (outputs + LANES - 1) / LANES;
  const int64_t tap = blockIdx.x / groups, taps = (int64_t)a.h.size * a.w.size;
  const int lane = threadIdx.x % LANES, own = threadIdx.x / LANES;
  const int64_t output = (blockIdx.x - tap * groups) * LANES + lane, channel = output / a.multiplier;
  const int r = (int)(tap / a.w.size) * a.h.dilation - a.h.before,
            c = (int)(tap % a.w.size) * a.w.dilation - a.w.before;
  acc<T> sum = 0;
  if (output < outputs) {
    for (int64_t position = (int64_t)blockIdx.y * ROWS + own; position < a.positions;
         position += (int64_t)gridDim.y * ROWS) {
      const acc<T> slope = (acc<T>)((const T *)a.dy)[position * outputs + output];
      const int64_t line = position / a.w.out, batch = line / a.h.out;
      const int i = (int)(line - batch * a.h.out) * a.h.stride + r,
                j = (int)(position - line * a.w.out) * a.w.stride + c;
      if (tap == taps) sum += slope;
      else if (i >= 0 && i < a.h.in && j >= 0 && j < a.w.in)
        sum += slope * (acc<T>)((const T *)a.x)[((batch * a.h.in + i) * a.w.in + j) * a.channels + channel];
    }
  }
  sums[own][lane] = sum;
  __syncthreads();
  if (own != 0 || output >= outputs) return;
  sum = 0;
  UNROLLED(row, ROWS) sum += sums[row][lane];
  if (tap < taps) ((acc<T> *)a.dkernel)[(blockIdx.y * taps + tap) * outputs + output] = sum;
  else ((acc<T> *)a.dbias)[blockIdx.y * outputs + output] = sum;
}

TFU_KERNEL(depthwise_any, depthwise_args)
TFU_KERNEL(depthwise_any_back, depthwise_args)
TFU_KERNEL(depthwise_any_filter, depthwise_filter_args)
