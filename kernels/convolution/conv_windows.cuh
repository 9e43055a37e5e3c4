/* conv_windows.cuh - implicit GEMM's left factor, a matrix that is never written: line m is what the window at position
 * m sees, [window, channels of a group], and a chunk of 16 bytes some channels that one tap sees, or zeros where that
 * is outside of x. For windows of one or two axes, positions that are counted in 32 bits, and channels in whole chunks.
 */
#pragma once

#include "kernels/convolution/conv_own.h"
#include "kernels/core/device/shared.cuh"
#include "kernels/core/divisor.h"

/* What one thread brings of a block's tiles to shared memory: a chunk of each of COUNT lines, which are AT_ONCE apart,
 * of one tile after the other. A line has LINE bytes of a tile. */
template <typename T, int COUNT, int AT_ONCE, int LINE>
struct window_lines {
  enum { DEPTH = LINE / (int)sizeof(T), N = packed<T>::N };
  const conv_shape &s;
  const tfu_divisor &high, &wide; /* of y's last two axes */
  const T *x;                     /* of the group */
  const T *from[COUNT];           /* the chunks of the next tile … */
  unsigned inside;                /* … and which of them are inside of x, bit by bit */
  int first, positions;           /* of the first line; all that there are */
  int down, across, c;            /* tap and channel of the chunks */
  bool moved;                     /* to another tap */

  __device__ window_lines(const conv_shape &s, const tfu_divisor &high, const tfu_divisor &wide)
      : s(s), high(high), wide(wide) {}

  /* Lines from position `line` on, and of each the chunks from number `chunk` on. */
  __device__ void begin(const T *of_group, int line, int all, int chunk) {
    x = of_group, first = line, positions = all, down = across = 0, c = chunk * N, moved = true;
  }

  /* Where windows are single positions of x, one for each of y, there is nothing to be divided. */
  __device__ bool sees_itself() const {
    return s.window[1] * s.window[2] == 1 && s.stride[1] * s.stride[2] == 1 && s.before[1] == 0 && s.before[2] == 0 &&
           s.in[1] == s.out[1] && s.in[2] == s.out[2];
  }

  __device__ void look() {
    if (sees_itself()) {
      inside = 0, moved = false;
      UNROLLED(i, COUNT) {
        const bool in = first + i * AT_ONCE < positions && down == 0;
        inside |= (unsigned)in << i;
        from[i] = x + (in ? (uint64_t)(first + i * AT_ONCE) * (unsigned)(s.groups * s.c) : 0) + c;
      }
      return;
    }
    const int i_tap = down * (int)s.dilation[1] - (int)s.before[1],
              j_tap = across * (int)s.dilation[2] - (int)s.before[2];
    const unsigned rows = (unsigned)s.in[1], columns = (unsigned)s.in[2], pixel = (unsigned)(s.groups * s.c);
    const int most = down < (int)s.window[1] ? positions : 0;
    inside = 0, moved = false;
    UNROLLED(i, COUNT) {
      const unsigned m = first + i * AT_ONCE, row = divide(m, wide), image = divide(row, high);
      const unsigned top = (row - image * high.by) * (unsigned)s.stride[1] + i_tap;
      const unsigned left = (m - row * wide.by) * (unsigned)s.stride[2] + j_tap;
      const bool in = (int)m < most && top < rows && left < columns;
      inside |= (unsigned)in << i;
      from[i] = x + (in ? (uint64_t)((image * rows + top) * columns + left) * pixel : 0) + c;
    }
  }

  /* The chunks of the next tile: the first to `to`, the others below it. */
  __device__ void fetch(unsigned to) {
    for (; c >= (int)s.c; moved = true) {
      c -= (int)s.c;
      if (++across == (int)s.window[2]) across = 0, down++;
    }
    if (moved) look();
    UNROLLED(i, COUNT) {
      copy_pack(to + i * AT_ONCE * LINE, from[i], inside >> i & 1 ? 16 : 0);
      from[i] += DEPTH;
    }
    c += DEPTH;
  }
};
