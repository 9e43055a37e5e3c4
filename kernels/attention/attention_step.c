#include "kernels/attention/attention_step.h"

#include <limits.h>

#include "kernels/core/arithmetic.h"
#include "kernels/core/gpu/cuda.h"

TFU_MODULE(attention_step);

static const int head_dims[] = {64, 96, 128, 256};
static const char *const variants[] = {"64", "96", "128", "256", "64_e4m3", "96_e4m3", "128_e4m3", "256_e4m3"};

enum { PARTS_BYTES = 64 << 10 }; /* of a block's parts at most, unless its cluster cannot be larger */

static int variant_of(int head_dim) {
  for (int i = 0; i < TFU_COUNT(head_dims); i++)
    if (head_dims[i] == head_dim) return i;
  return -1;
}

/* Of the batch nothing decides but a number of sequences that no GPU has memory for. */
static int is_served(const attention_step_args *a, tfu_dtype dtype, const tfu_device *device) {
  const uintptr_t all = (uintptr_t)a->value | (uintptr_t)a->keys | (uintptr_t)a->values | (uintptr_t)a->output;
  return device->capability >= 90 && (dtype == TFU_F16 || dtype == TFU_BF16) && variant_of(a->head_dim) >= 0 &&
         a->group >= 1 && a->group <= DECODE_GROUP && all % 16 == 0 &&
         (int64_t)a->batch * a->key_heads <= INT_MAX / DECODE_SPLITS;
}

/* Bytes of the parts that a block has at most. */
static int64_t parts_of(const attention_step_args *a, int64_t runs, int splits) {
  return divide_up(runs, splits) * a->group * DECODE_PITCH(a->head_dim) * (int64_t)sizeof(float);
}

/* Blocks share a sequence where there are fewer than multiprocessors, down to a run for each warp; and where the parts
 * would take too much memory. */
static int splits_of(const attention_step_args *a, int64_t runs, int multiprocessors) {
  const int64_t blocks = (int64_t)a->batch * a->key_heads;
  int splits = 1;
  while (splits < DECODE_SPLITS && (parts_of(a, runs, splits) > PARTS_BYTES ||
                                    (splits * DECODE_WARPS < runs && blocks * splits <= multiprocessors)))
    splits *= 2;
  return splits;
}

tfu_code tfu_attention_step_run(tfu_call *call, attention_step_args a, tfu_dtype dtype, int is_float8, int ahead,
                                int *served) {
  static tfu_kernel kernel = {.module = &module, .name = "attention_step", .variants = variants};
  tfu_device device;
  TFU_TRY(tfu_device_now(&device, call->err));
  *served = is_served(&a, dtype, &device);
  if (!*served || !a.batch) return TFU_OK;
  const int64_t keys = a.left >= 0 ? least(a.keys_most, (int64_t)a.left + 1) : a.keys_most,
                runs = least(divide_up(keys, DECODE_STEP(a.head_dim)), DECODE_RUNS);
  a.splits = splits_of(&a, runs, device.multiprocessors);
  const tfu_grid grid = {.x = (unsigned)(a.batch * a.key_heads * a.splits),
                         .threads = 32 * DECODE_WARPS,
                         .shared = (unsigned)(DECODE_BYTES(a.head_dim) + parts_of(&a, runs, a.splits)),
                         .cluster = a.splits > 1 ? (unsigned)a.splits : 0,
                         .overlap = ahead};
  call->kernel = "attention step";
  const int variant = variant_of(a.head_dim) + (is_float8 ? TFU_COUNT(head_dims) : 0);
  return tfu_launch(call, &kernel, variant, dtype, grid, &a);
}
