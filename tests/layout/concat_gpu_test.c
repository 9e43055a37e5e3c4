/* concat_gpu_test.c - what concat and its way back ask of a GPU, without one: against a driver of our own that does on
 * the CPU what the kernel says, unit by unit, and demands that each is whole where it lies. Shapes that are larger than
 * any memory are only counted. */
#include <stdlib.h>

#include "kernels/layout/concat.h"
#include "ops/core/bind.h"
#include "tests/stand_in_driver.h"

/* ---- the driver ---- */

static int launches, packs, counted; /* counted: nothing is moved */
static int64_t bytes;                /* that all launches moved   */

static CUresult get_kernel(CUkernel *kernel, CUlibrary library, const char *name) {
  (void)library;
  *kernel = (CUkernel)(strstr(name, "_packs_") ? &packs : &launches);
  return CUDA_SUCCESS;
}

static void move(const concat_args *a, uint32_t i) {
  const uint32_t row = i / a->span.by, place = i % a->span.by;
  int owner = 0;
  for (int part = 1; part < a->parts; part++) owner += place >= a->first[part];
  char *whole = (char *)a->whole + (row * a->pitch + place) * a->bytes;
  char *part = (char *)a->part[owner] + (row * a->width[owner] + (place - a->first[owner])) * a->bytes;
  CHECK(((uintptr_t)whole | (uintptr_t)part) % (unsigned)a->bytes == 0);
  memcpy(a->split ? part : whole, a->split ? whole : part, (size_t)a->bytes);
}

static CUresult launch(const CUlaunchConfig *c, CUfunction f, void **args, void **extra) {
  (void)extra;
  const concat_args *a = args[0];
  const int in_packs = f == (CUfunction)&packs;
  const int64_t each = CONCAT_THREADS * (in_packs ? CONCAT_ROUNDS / 2 : CONCAT_ROUNDS);
  launches++;
  CHECK(c->blockDimX == CONCAT_THREADS && c->gridDimY == 1 && in_packs == (a->bytes == 16));
  CHECK(a->units > 0 && a->units <= 1 << 30 && a->units % a->span.by == 0);
  CHECK(c->gridDimX * each >= a->units && (c->gridDimX - 1) * each < a->units);
  CHECK(a->parts > 0 && a->parts <= CONCAT_PARTS && a->first[0] == 0);
  for (int k = 1; k < a->parts; k++) CHECK(a->first[k] > a->first[k - 1] && a->first[k] < a->span.by);
  bytes += (int64_t)a->units * a->bytes;
  for (uint32_t i = 0; !counted && i < a->units; i++) move(a, i);
  return CUDA_SUCCESS;
}

tfu_code tfu_driver_get(const tfu_driver **driver, tfu_error *err) {
  static const tfu_driver stand_in = {STAND_INS, .cuLibraryGetKernel = get_kernel, .cuLaunchKernelEx = launch};
  (void)err;
  *driver = &stand_in;
  return TFU_OK;
}

/* ---- calls ---- */

/* A call over rows of parts that are so wide, in elements; memory for all of it, or NULL for none, `odd` elements from
 * where a pack begins. */
static void run_call(const tfu_op *op, tfu_dtype dtype, int64_t rows, const int64_t *widths, int n, char *const *parts,
                     char *whole) {
  tfu_error err = {""};
  tfu_lists lists;
  int64_t elements;
  const int split = op == &tfu_concat_split;
  tfu_call call = {.op = op, .err = &err, .attr = {{.i = 1}, {.i = n}}};
  CHECK(tfu_lists_open(&call, &lists) == TFU_OK);
  int64_t all = 0;
  for (int i = 0; i < n; i++) {
    all += widths[i];
    if (split) lists.in[1].at[i] = (tfu_tensor){NULL, TFU_BOOL, SHAPE(widths[i], 0)};
    else lists.in[0].at[i] = (tfu_tensor){parts[i], dtype, SHAPE(rows, widths[i])};
  }
  if (split) *lists.in[0].at = (tfu_tensor){whole, dtype, SHAPE(rows, all)};
  CHECK_FOR(tfu_infer(&call, NULL, &elements) == TFU_OK && elements == rows * all, "%s", err.text);
  for (int i = 0; split && i < n; i++) lists.out[0].at[i] = (tfu_tensor){parts[i], dtype, lists.shapes[i]};
  if (!split) *lists.out[0].at = (tfu_tensor){whole, dtype, lists.shapes[0]};
  launches = 0, bytes = 0;
  CHECK_FOR(tfu_execute(&call, "test", 1) == TFU_OK, "%s", err.text);
  CHECK(bytes == rows * all * (int64_t)tfu_dtype_size(dtype));
  tfu_lists_close(&call);
}

enum { PARTS = 40 };

/* There and back, with memory that has what is expected of each element. odd: tensors begin one element later. */
static void there_and_back(tfu_dtype dtype, int64_t rows, const int64_t *width, int n, int odd) {
  static unsigned seed = 1;
  const int64_t size = (int64_t)tfu_dtype_size(dtype);
  int64_t all = 0;
  char *memory[PARTS] = {NULL}, *parts[PARTS] = {NULL};
  for (int k = 0; k < n; k++) {
    all += width[k];
    memory[k] = aligned_alloc(16, (size_t)((rows * width[k] + odd) * size + 31) / 16 * 16);
    parts[k] = memory[k] + odd * size;
    for (int64_t b = 0; b < rows * width[k] * size; b++) parts[k][b] = (char)((seed = seed * 1664525 + 1) >> 24);
  }
  char *const whole = aligned_alloc(16, (size_t)(rows * all * size + 31) / 16 * 16);
  run_call(&tfu_concat, dtype, rows, width, n, parts, whole);
  int64_t at = 0;
  for (int64_t row = 0; row < rows; row++)
    for (int k = 0; k < n; at += width[k++] * size)
      CHECK(!memcmp(whole + at, parts[k] + row * width[k] * size, (size_t)(width[k] * size)));
  CHECK(launches == (n == PARTS ? 2 : 1)); /* of 40 parts 8 are empty, and 32 are two tables */
  char *back[PARTS] = {NULL}, *again[PARTS] = {NULL};
  for (int k = 0; k < n; k++) {
    back[k] = aligned_alloc(16, (size_t)((rows * width[k] + odd) * size + 31) / 16 * 16);
    again[k] = back[k] + odd * size;
  }
  run_call(&tfu_concat_split, dtype, rows, width, n, again, whole);
  for (int k = 0; k < n; k++) {
    CHECK(!memcmp(again[k], parts[k], (size_t)(rows * width[k] * size)));
    free(back[k]), free(memory[k]);
  }
  free(whole);
}

static void test_there_and_back(void) {
  static const tfu_dtype dtypes[] = {TFU_BOOL, TFU_BF16, TFU_F32, TFU_F64};
  static const int64_t rows[] = {1, 5, 300};
  static const struct {
    int parts;
    int64_t widths[PARTS];
  } lists[] = {{2, {32, 32}},      /* whole vectors */
               {3, {1, 2, 3}},     /* less than a vector */
               {4, {0, 8, 0, 16}}, /* empty parts before others */
               {1, {7}},           /* one part */
               {2, {5000, 3}},     /* a long part and a short one */
               {3, {64, 0, 0}},    /* empty parts at the end */
               {PARTS, {0, 1, 2, 3, 4, 0, 1, 2, 3, 4, 0, 1, 2, 3, 4, 0, 1, 2, 3, 4,
                        0, 1, 2, 3, 4, 0, 1, 2, 3, 4, 0, 1, 2, 3, 4, 0, 1, 2, 3, 4}}}; /* more than a table holds */
  for (int l = 0; l < TFU_COUNT(lists); l++)
    for (int r = 0; r < TFU_COUNT(rows); r++)
      for (int d = 0; d < TFU_COUNT(dtypes); d++)
        for (int odd = 0; odd < 2; odd++) there_and_back(dtypes[d], rows[r], lists[l].widths, lists[l].parts, odd);
}

/* More than a launch takes: of rows, of one row, of one part. */
static void test_billions(void) {
  static const int64_t billions = (int64_t)1 << 32;
  static const struct {
    int64_t rows, widths[3];
  } shapes[] = {
      {1, {billions, billions + 64, 16}}, {billions, {32, 32, 1}}, {3, {billions, 7, 5}}, {65536, {65537, 65536, 0}}};
  char *const somewhere = (char *)NULL + 0x100000000000, *const parts[] = {somewhere, somewhere + 2, somewhere};
  counted = 1;
  for (int i = 0; i < TFU_COUNT(shapes); i++)
    for (int wide = 0; wide < 2; wide++)
      for (int split = 0; split < 2; split++)
        run_call(split ? &tfu_concat_split : &tfu_concat, wide ? TFU_F32 : TFU_BF16, shapes[i].rows, shapes[i].widths,
                 3, parts, somewhere);
}

int main(void) {
  test_there_and_back();
  test_billions();
  return verdict();
}
