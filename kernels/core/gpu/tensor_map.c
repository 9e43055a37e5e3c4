#include "kernels/core/gpu/tensor_map.h"

#include "kernels/core/gpu/driver.h"

_Static_assert(sizeof(tfu_tensor_map) == sizeof(CUtensorMap), "they are one thing");

tfu_code tfu_map_matrix(tfu_tensor_map *map, const void *matrix, int64_t rows, int64_t columns, int box,
                        tfu_error *err) {
  enum { COLUMNS = 64, SIZE = 2 };
  const cuuint64_t sizes[] = {(cuuint64_t)columns, (cuuint64_t)rows}, strides[] = {(cuuint64_t)columns * SIZE};
  const cuuint32_t of_box[] = {COLUMNS, (cuuint32_t)box}, steps[] = {1, 1};
  const tfu_driver *d;
  TFU_TRY(tfu_driver_get(&d, err));
  const CUresult r =
      d->cuTensorMapEncodeTiled((CUtensorMap *)map, CU_TENSOR_MAP_DATA_TYPE_UINT16, 2, (void *)matrix, sizes, strides,
                                of_box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                                CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  return tfu_driver_code(d, r, "describing a matrix for copies of tiles", err);
}
