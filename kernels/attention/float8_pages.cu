#include "kernels/attention/float8_pages.h"

#include "kernels/core/device/pack.cuh"
#include "kernels/core/float8.h"

template <typename T>
__device__ inline void narrow_rows(const narrow_rows_args &a) {
  for (int64_t i = (int64_t)blockIdx.x * FLOAT8_PAGES_THREADS + threadIdx.x; i < a.elements;
       i += (int64_t)gridDim.x * FLOAT8_PAGES_THREADS) {
    const int64_t row = divide((uint32_t)i, a.span), number = a.number[row];
    if (number < 0 || number >= a.rows) continue;
    a.to[number * a.span.by + (i - row * a.span.by)] = (uint8_t)float8_code((float)((const T *)a.from)[i], 0);
  }
}

/* A block takes page blockIdx.x, of keys or of values. */
template <typename T>
__device__ inline void widen_pages(const widen_pages_args &a) {
  const int page = (int)blockIdx.x, which = (int)blockIdx.y, b = page / a.width, p = page % a.width;
  const int64_t number = a.table[page], elements = a.elements[which];
  const bool wanted = (int64_t)p * a.size < a.lengths[b], there = wanted && number >= 0 && number < a.there;
  if (which == 0 && threadIdx.x == 0) a.numbers[page] = there ? page : -1;
  if (!there) return;
  const uint8_t *from = a.pages[which] + number * elements;
  T *to = (T *)a.wide[which] + page * elements;
  if (elements % 4 == 0 && ((uintptr_t)a.pages[which] & 3) == 0) {
    for (int64_t i = threadIdx.x; i < elements / 4; i += FLOAT8_PAGES_THREADS) {
      const unsigned codes = ((const unsigned *)from)[i];
      UNROLLED(k, 4) to[4 * i + k] = (T)float8_value(codes >> 8 * k & 255, 0);
    }
  } else {
    for (int64_t i = threadIdx.x; i < elements; i += FLOAT8_PAGES_THREADS) to[i] = (T)float8_value(from[i], 0);
  }
}

#define FLOAT8_PAGES_(function, args, tag, T) \
  TFU_STAMP((FLOAT8_PAGES_THREADS), function##_##tag, __grid_constant__ args, function<T>)
TFU_TYPES(FLOAT8_PAGES_, narrow_rows, narrow_rows_args)
TFU_TYPES(FLOAT8_PAGES_, widen_pages, widen_pages_args)
