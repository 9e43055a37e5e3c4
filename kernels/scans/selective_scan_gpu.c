#include "kernels/scans/selective_scan.h"

#include "kernels/core/gpu/cuda.h"
#include "kernels/core/gpu/walk.h"

TFU_MODULE(selective_scan);
TFU_MODULE_AS(grad_module, selective_scan_grad);
static tfu_kernel forward = {.module = &module, .name = "selective_scan"};
static tfu_kernel states = {.module = &module, .name = "selective_scan_states"};
static tfu_kernel backward = {.module = &grad_module, .name = "selective_scan_back"};
static tfu_kernel factors = {.module = &grad_module, .name = "selective_scan_factors"};
static tfu_kernel weights = {.module = &grad_module, .name = "selective_scan_weights"};

/* Blocks of a multiprocessor below which sequences are cut into pieces, which costs another look at what they read; and
 * the least segments of a piece. */
enum { ENOUGH = 2, SHORTEST = 16, MOST_PIECES = 256 };

static int64_t blocks_of(const selective_args *a) { return a->batch * a->groups * a->strips; }

/* Bytes of so many values that are computed with. */
static size_t bytes(tfu_dtype dtype, int64_t values) { return (size_t)values * tfu_dtype_size(tfu_real(dtype)); }

/* Whether rows of all that is read step by step are whole packs, and begin with one. */
static int has_packs(const selective_args *a, tfu_dtype dtype) {
  const uintptr_t all = (uintptr_t)a->x | (uintptr_t)a->delta | (uintptr_t)a->b | (uintptr_t)a->c | (uintptr_t)a->dy;
  const size_t size = tfu_dtype_size(dtype), strip = (size_t)(a->channels / a->groups) * size;
  return (all | strip | (size_t)a->states * size) % 16 == 0;
}

static tfu_code cut(tfu_call *call, selective_args *to, tfu_dtype dtype) {
  selective_args a = tfu_selective_of(call, TFU_SELECT_STRIP, TFU_SELECT_STEPS_OF(bytes(dtype, 1)));
  a.packs = has_packs(&a, dtype);
  tfu_device device;
  TFU_TRY(tfu_device_now(&device, call->err));
  const int64_t blocks = blocks_of(&a), wanted = (int64_t)ENOUGH * device.multiprocessors;
  TFU_REQUIRE(call->err, blocks <= INT32_MAX && a.segments <= INT32_MAX, "%lld channels are too many for one launch",
              (long long)(a.batch * a.channels));
  if (blocks > 0 && 2 * blocks <= wanted && a.segments >= 2 * SHORTEST) {
    const int64_t pieces = least(least(divide_up(wanted, blocks), a.segments / SHORTEST), MOST_PIECES);
    a.piece = divide_up(a.segments, pieces);
    a.pieces = (int)divide_up(a.segments, a.piece);
    TFU_TRY(tfu_scratch(call, bytes(dtype, tfu_selective_weights(&a)), &a.totals));
  }
  *to = a;
  return TFU_OK;
}

/* Over all pieces at once; where there are several, first for what they take states to, by `find`. */
static tfu_code scan(tfu_call *call, tfu_kernel *kernel, tfu_kernel *find, selective_args *a, size_t shared) {
  const tfu_dtype dtype = call->in[TFU_SELECT_X].dtype; /* dy's of the gradient, which is the same */
  const tfu_grid grid = {
      .x = (unsigned)blocks_of(a), .y = (unsigned)a->pieces, .threads = TFU_SELECT_STRIP, .shared = (unsigned)shared};
  if (grid.x == 0) return TFU_OK;
  if (a->pieces > 1) {
    a->find = 1;
    TFU_TRY(tfu_launch(call, find, 0, dtype, grid, a));
    a->find = 0;
  }
  return tfu_launch(call, kernel, 0, dtype, grid, a);
}

tfu_code tfu_selective_scan_gpu(tfu_call *call) {
  selective_args a;
  TFU_TRY(cut(call, &a, call->in[TFU_SELECT_X].dtype));
  return scan(call, &forward, &states, &a, 0);
}

static tfu_code fold(tfu_call *call, tfu_kernel *kernel, selective_args *a, tfu_dtype dtype, int64_t count) {
  const int64_t blocks = divide_up(count, TFU_THREADS);
  TFU_REQUIRE(call->err, blocks <= INT32_MAX, "%lld sums are too many for one launch", (long long)count);
  return count ? tfu_launch(call, kernel, 0, dtype, (tfu_grid){.x = (unsigned)blocks, .threads = TFU_THREADS}, a)
               : TFU_OK;
}

/* Bytes of shared memory of the gradient: x, delta and dy of a strip, b and c, as they are stored, of two segments; b
 * and c to compute with; what each four threads give to these; and the states before the segment, where they are sent
 * for. */
static size_t shared_bytes(const tfu_device *device, tfu_dtype dtype) {
  const size_t real = bytes(dtype, 1), steps = (size_t)TFU_SELECT_STEPS_OF(real), factors = 2 * TFU_SELECT_SLOTS;
  const size_t kept = device->capability >= 80 ? TFU_SELECT_SLOTS * TFU_SELECT_STRIP * real : 0;
  return 2 * steps * (3 * TFU_SELECT_STRIP + factors) * tfu_dtype_size(dtype) + steps * factors * real +
         steps * factors * (TFU_SELECT_STRIP / 4) * real + kept;
}

tfu_code tfu_selective_scan_grad_gpu(tfu_call *call) {
  const tfu_dtype dtype = call->in[TFU_SELGRAD_DY].dtype;
  selective_args a;
  tfu_device device;
  TFU_TRY(tfu_device_now(&device, call->err));
  TFU_TRY(cut(call, &a, dtype));
  TFU_TRY(tfu_scratch(call, bytes(dtype, tfu_selective_kept(&a, TFU_SELECT_STRIP)), &a.kept));
  TFU_TRY(tfu_scratch(call, bytes(dtype, tfu_selective_factors(&a)), &a.factors));
  TFU_TRY(tfu_scratch(call, bytes(dtype, tfu_selective_weights(&a)), &a.weights));
  TFU_TRY(scan(call, &states, &states, &a, 0));
  TFU_TRY(scan(call, &backward, &backward, &a, shared_bytes(&device, dtype)));
  TFU_TRY(fold(call, &factors, &a, dtype, a.batch * a.length * a.groups * a.states));
  return fold(call, &weights, &a, dtype, a.channels * TFU_SELECT_ROWS);
}
