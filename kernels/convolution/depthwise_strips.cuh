/* depthwise_strips.cuh - what the strips of depthwise convolutions share: which strip a thread has, its packs of
 * channels, and a line of the positions that it reads. */
#pragma once

#include "kernels/convolution/depthwise_conv.h"
#include "kernels/core/device/pack.cuh"

#define SIDE TFU_STRIP_SIDE

/* V neighbouring channels as they are stored, and as numbers. */
template <typename T, int V>
struct channels_of;
template <typename T>
struct channels_of<T, 2> {
  typedef unsigned bits;
  static __device__ void widen(bits b, float (&v)[2]) {
    const float2 f = pair_of<T>::widen(b);
    v[0] = f.x, v[1] = f.y;
  }
  static __device__ bits narrow(const float (&v)[2]) { return pair_of<T>::narrow(v[0], v[1]); }
  static __device__ bits none() { return 0; }
};
template <typename T>
struct channels_of<T, 4> {
  typedef uint2 bits;
  static __device__ void widen(bits b, float (&v)[4]) {
    const float2 f = pair_of<T>::widen(b.x), g = pair_of<T>::widen(b.y);
    v[0] = f.x, v[1] = f.y, v[2] = g.x, v[3] = g.y;
  }
  static __device__ bits narrow(const float (&v)[4]) {
    return make_uint2(pair_of<T>::narrow(v[0], v[1]), pair_of<T>::narrow(v[2], v[3]));
  }
  static __device__ bits none() { return make_uint2(0, 0); }
};
template <>
struct channels_of<float, 2> {
  typedef float2 bits;
  static __device__ void widen(bits b, float (&v)[2]) { v[0] = b.x, v[1] = b.y; }
  static __device__ bits narrow(const float (&v)[2]) { return make_float2(v[0], v[1]); }
  static __device__ bits none() { return make_float2(0, 0); }
};

/* A thread's position: its first channel, and the strip's number along each axis. */
struct strip_position {
  int channel, batch, row, column;
  __device__ strip_position(const depthwise_strips &s, int strip, int channel) : channel(channel) {
    const int in_swath = strip / s.swath, above = in_swath / s.wide;
    column = in_swath - above * s.wide;
    batch = above / s.swaths;
    row = (above - batch * s.swaths) * s.swath + (strip - in_swath * s.swath);
  }
};

/* An address that the compiler takes as it is: left to itself, it adds the tensor's beginning anew for every pack. */
__device__ inline const char *settled(const void *address) {
  asm("" : "+l"(address));
  return (const char *)address;
}

/* Pack number i of those that are `step` bytes apart: an address is one instruction while step has 32 bits. Of what is
 * only read: of a settled address the compiler does not know that it is in global memory. */
template <typename P>
__device__ inline P load_pack(const char *first, unsigned step, int i) {
  return __ldg((const P *)(first + (uint64_t)step * (unsigned)i));
}

/* COLUMNS neighbouring positions of a line, of which those outside of the tensor are 0. */
template <typename T, int V, int COLUMNS>
struct strip_line {
  typedef channels_of<T, V> pack;
  typename pack::bits at[COLUMNS];

  /* All on their way at once, or position j alone. A position has `step` bytes; inside has a bit for each that there
   * is. */
  __device__ void load(const char *first, unsigned step, unsigned inside) {
    UNROLLED(j, COLUMNS) load(j, first, step, inside);
  }
  __device__ void load(int j, const char *first, unsigned step, unsigned inside) {
    at[j] = pack::none();
    if (inside >> j & 1) at[j] = load_pack<typename pack::bits>(first, step, j);
  }
};

/* The bits of those of COLUMNS positions from `first` on that are within [0, size). */
template <int COLUMNS>
__device__ inline unsigned inside(int first, int size) {
  unsigned bits = 0;
  UNROLLED(j, COLUMNS) bits |= (unsigned)((unsigned)(first + j) < (unsigned)size) << j;
  return bits;
}
