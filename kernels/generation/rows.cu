/* take_rows and put_rows on the GPU: a row is moved in the largest units that all rows are made of. */
#include "kernels/generation/rows.h"

#include "kernels/core/device/pack.cuh"

template <typename U>
__device__ inline void move_rows(const move_rows_args &a) {
  U *few = (U *)a.pair[blockIdx.y].few, *many = (U *)a.pair[blockIdx.y].many;
  for (int64_t i = (int64_t)blockIdx.x * MOVE_ROWS_THREADS + threadIdx.x; i < a.units;
       i += (int64_t)gridDim.x * MOVE_ROWS_THREADS) {
    const int64_t row = divide((uint32_t)i, a.span), place = i - row * a.span.by, number = a.number[row];
    const bool there = number >= 0 && number < a.rows;
    U *there_at = many + (there ? number : 0) * a.span.by + place;
    if (!a.put) few[i] = there ? *there_at : U();
    else if (there) *there_at = few[i];
  }
}

extern "C" __global__ void __launch_bounds__(MOVE_ROWS_THREADS) move_rows_any(const move_rows_args a) {
  if (a.bytes == 16) move_rows<int4>(a);
  else if (a.bytes == 8) move_rows<uint2>(a);
  else if (a.bytes == 4) move_rows<uint32_t>(a);
  else move_rows<uint16_t>(a);
}
