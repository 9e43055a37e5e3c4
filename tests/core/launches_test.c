/* launches_test.c - what rows, reductions, scans, transpositions, sorting and batch norms ask of a GPU, without one:
 * against a driver of our own that looks at launches and runs none. So shapes may be larger than any memory, and every
 * tunable may have any number of its range. Under --config=ubsan, a division by zero on the way fails, which an Arm CPU
 * would not notice. */
#include "kernels/core/arithmetic.h"
#include "kernels/core/gpu/rows.h"
#include "kernels/core/gpu/tunable.h"
#include "kernels/reductions/reduce.h"
#include "tests/stand_in_driver.h"

/* ---- the driver ---- */

static int launches, rings, thread, joined;
static const char *what = ""; /* is run, for messages */
static tfu_dtype running;     /* its dtype            */
static int64_t elements_of_x; /* which it has         */

static CUresult get_kernel(CUkernel *kernel, CUlibrary library, const char *name) {
  (void)library;
  *kernel = (CUkernel)(strstr(name, "_ring_")            ? &rings
                       : strstr(name, "_thread_")        ? &thread
                       : strstr(name, "reduce_columns_") ? &joined
                                                         : &launches);
  return CUDA_SUCCESS;
}

static CUresult clear(CUdeviceptr to, unsigned char value, size_t n, CUstream stream) {
  (void)value, (void)stream;
  CHECK_FOR(to && n > 0 && n < (size_t)1 << 48, "%s: %zu bytes", what, n);
  return CUDA_SUCCESS;
}

static CUresult most_clusters(int *clusters, CUfunction f, const CUlaunchConfig *c) {
  (void)f;
  CHECK_FOR(c->numAttrs == 1 && c->attrs->value.clusterDim.x > 1, "%s: no clusters", what);
  *clusters = gpus[gpu].multiprocessors / (int)c->attrs->value.clusterDim.x;
  return CUDA_SUCCESS;
}

/* Every pack has a thread, the groups of a row have slots, and one at least is left for what comes next. */
static void check_ring(const CUlaunchConfig *c, const tfu_row_plan *r) {
  const unsigned group = (unsigned)r->tensors * TFU_RING_PACKS * 16 * c->blockDimX;
  rings++;
  CHECK_FOR((int64_t)r->packs * 16 == r->cols * (int64_t)tfu_dtype_size(running) && r->aligned &&
                r->pass == TFU_WHOLE && c->gridDimX == (unsigned)r->cluster && r->cluster <= 8 &&
                r->share * r->cluster >= r->packs && r->share * (r->cluster - 1) < r->packs &&
                c->blockDimX == (unsigned)r->lanes && r->lanes > 32 && r->lanes <= TFU_RING_THREADS &&
                r->tiles * TFU_RING_PACKS * r->lanes >= r->share && r->slots > r->tiles &&
                c->sharedMemBytes == (unsigned)r->slots * group && c->gridDimY <= r->rows,
            "%s: a ring of %d slots for %d groups of %d threads", what, r->slots, r->tiles, r->lanes);
}

/* A row for each thread, tiles of whole packs, and a pack more than that in each slot. */
static void check_thread(const CUlaunchConfig *c, const tfu_row_plan *r) {
  const int64_t bytes = r->cols * (int64_t)tfu_dtype_size(running);
  thread++;
  CHECK_FOR(running != TFU_F64 && r->aligned && bytes % 16 && bytes * r->tensors <= 256 && r->lanes == 1 &&
                r->pass == TFU_WHOLE && c->blockDimX == TFU_THREAD_ROWS_THREADS && c->gridDimX == 1 &&
                (int64_t)r->share * 16 == bytes * TFU_THREAD_ROWS_THREADS &&
                c->sharedMemBytes == (unsigned)(TFU_THREAD_ROWS_SLOTS * r->tensors * (r->share + 1) * 16) &&
                (r->rows == 0 || (int64_t)(c->gridDimY - 1) * TFU_THREAD_ROWS_THREADS < r->rows),
            "%s: thread rows of %lld bytes", what, (long long)bytes);
}

/* Columns: packs begin on 16 bytes in every row, the parts are all of count, and where columns are joined, a block has
 * all columns of an outer, the same ones several times, and nothing is left out. */
static void check_columns(const CUlaunchConfig *c, const reduce_args *a) {
  const int64_t size = (int64_t)tfu_dtype_size(running), packs = a->inner * size / 16;
  CHECK_FOR(a->inner * size % 16 == 0 && (uintptr_t)a->x % 16 == 0 && c->gridDimY == (unsigned)a->parts &&
                a->share * a->parts >= a->count && a->share * (a->parts - 1) < a->count &&
                a->outer * a->inner < (int64_t)1 << 31,
            "%s: %d parts of %lld", what, a->parts, (long long)a->share);
  if (!a->period) return;
  joined++;
  CHECK_FOR(a->inner % a->period == 0 && a->period * size % 16 && a->lane_bits == 0 && c->gridDimX == a->outer &&
                packs <= TFU_REDUCE_THREADS && packs > TFU_REDUCE_THREADS / 2 && a->tail % a->period == 0 &&
                a->tail < a->inner && (a->outer == 1 || (a->count * a->inner + a->tail) * size % 16 == 0) &&
                a->share * (a->inner / a->period) <= 1 << 30 &&
                (a->count * a->inner + a->tail) / a->period * a->outer * a->period == elements_of_x,
            "%s: %lld joined columns, of %d", what, (long long)a->inner, a->period);
}

/* What CUDA demands of every launch. Of shared memory a kernel has up to 4 KiB of its own. */
static CUresult launch(const CUlaunchConfig *c, CUfunction f, void **args, void **extra) {
  (void)extra;
  launches++;
  if (f == (CUfunction)&rings) check_ring(c, args[0]);
  if (f == (CUfunction)&thread) check_thread(c, args[0]);
  if (f == (CUfunction)&joined) check_columns(c, args[0]);
  CHECK_FOR(
      c->gridDimX >= 1 && c->gridDimX <= INT32_MAX && c->gridDimY >= 1 && c->gridDimY <= 65535 && c->gridDimZ == 1,
      "%s: %u by %u blocks", what, c->gridDimX, c->gridDimY);
  CHECK_FOR(c->blockDimX >= 32 && c->blockDimX <= 1024 && c->blockDimX % 32 == 0, "%s: %u threads", what, c->blockDimX);
  CHECK_FOR(c->sharedMemBytes <= (unsigned)gpus[gpu].block_shared - 4096, "%s: %u bytes", what, c->sharedMemBytes);
  CHECK_FOR(!c->numAttrs || c->gridDimX % c->attrs->value.clusterDim.x == 0, "%s: %u blocks in clusters", what,
            c->gridDimX);
  CHECK(args[0]);
  return CUDA_SUCCESS;
}

tfu_code tfu_driver_get(const tfu_driver **driver, tfu_error *err) {
  static const tfu_driver stand_in = {STAND_INS, .cuLibraryGetKernel = get_kernel, .cuMemsetD8Async = clear,
                                      .cuLaunchKernelEx = launch, .cuOccupancyMaxActiveClusters = most_clusters};
  (void)err;
  *driver = &stand_in;
  return TFU_OK;
}

/* ---- calls ---- */

enum {
  FLOATS = (1 << TFU_FLOATS) - 1,
  NUMBERS = (1 << TFU_BOOL) - 1,
  INTEGERS = NUMBERS - FLOATS,
  ALL = 2 * NUMBERS + 1,
  COMPLEX = 1 << TFU_C64 | 1 << TFU_C128,
  ONE = 0x3f800000 /* the bits of 1.0f */
};

/* Of each input, the shape: x, all axes of x but the last (r), two numbers for each of those (t), its first axis (f),
 * its last one (c), all of it in one axis (p), [5, 0] (k), [100, 0] (h), a single number (s), [2] (2) or none (0). For
 * batch norms, whose channels are x's last axis, all before it comes first (l), or last, in two samples (m); of l's
 * signs, how many are wanted (a), and themselves (b). */
static const struct line {
  const tfu_op *op;
  const char *in;
  int dtypes; /* by bit */
  int64_t attr[4];
} lines[] = {
    {&tfu_softmax, "x0", FLOATS, {ONE}},
    {&tfu_softmax, "xx", FLOATS, {ONE}},
    {&tfu_softmax_grad, "xx", FLOATS, {ONE}},
    {&tfu_sparse_cross_entropy, "xr", FLOATS, {0}},
    {&tfu_sparse_cross_entropy_grad, "xrtr", FLOATS, {0}},
    {&tfu_norm, "x0cc0", FLOATS, {0}},
    {&tfu_norm, "x0c00", FLOATS, {1}},
    {&tfu_norm, "xxccs", FLOATS, {0}},
    {&tfu_norm, "xx000", FLOATS, {1}},
    {&tfu_reduce, "x", NUMBERS, {0, 65536}},
    {&tfu_reduce, "x", NUMBERS, {2, 256}},
    {&tfu_reduce, "x", NUMBERS, {4, 1}},
    {&tfu_reduce, "x", FLOATS, {7, 1}},
    {&tfu_reduce_grad, "rx00", FLOATS, {5, 256}},
    {&tfu_arg_reduce, "x", NUMBERS, {0, -1}},
    {&tfu_arg_reduce, "x", NUMBERS, {1, 0}},
    {&tfu_segment_sum, "xf0h", NUMBERS, {1}},
    {&tfu_scan, "x", NUMBERS, {0, -1}},
    {&tfu_scan, "x", NUMBERS, {1, 0, 1, 1}},
    {&tfu_scan, "x", FLOATS, {3, 0, 0, 1}},
    {&tfu_scan, "x", FLOATS, {3, -1, 1}},
    {&tfu_scan_recurrence, "xx", 1 << TFU_F32 | 1 << TFU_F64, {-1}},
    {&tfu_scan_recurrence, "xx", 1 << TFU_F32 | 1 << TFU_F64, {0, 1, 1}},
    {&tfu_scan_linear, "xx0", FLOATS | COMPLEX, {-1}},
    {&tfu_scan_linear, "xx0", FLOATS | COMPLEX, {0, 1}},
    {&tfu_scan_linear_grad, "xxx0", FLOATS | COMPLEX, {-1, 1}},
    {&tfu_scan_linear_grad, "xxx0", FLOATS | COMPLEX, {0}},
    {&tfu_sort, "x", NUMBERS, {1}},
    {&tfu_argsort, "x", NUMBERS, {0}},
    {&tfu_unsort, "xxx", NUMBERS, {0}},
    {&tfu_top_k, "xk", NUMBERS, {0}},
    {&tfu_unique, "p", NUMBERS, {0}},
    {&tfu_bincount, "xh", INTEGERS, {0}},
    {&tfu_weighted_bincount, "xxh", NUMBERS, {0}},
    {&tfu_weighted_bincount_grad, "xx", NUMBERS, {0}},
    {&tfu_histogram, "x2h", NUMBERS, {0}},
    {&tfu_batch_norm, "lccccl0", FLOATS, {TFU_ACT_relu}},
    {&tfu_batch_norm, "lccccla", FLOATS, {TFU_ACT_relu}},
    {&tfu_batch_norm, "m00cc00", FLOATS, {TFU_ACT_elu}},
    {&tfu_batch_norm_statistics, "lcc", FLOATS, {0}},
    {&tfu_batch_norm_statistics, "mcc", FLOATS, {0}},
    {&tfu_batch_norm_grad, "llccccll0", FLOATS, {TFU_ACT_relu}},
    {&tfu_batch_norm_grad, "llcccc0lb", FLOATS, {TFU_ACT_relu}},
    {&tfu_batch_norm_grad, "llcccc00b", FLOATS, {TFU_ACT_relu}},
    {&tfu_batch_norm_grad, "llccccl00", FLOATS, {TFU_ACT_silu}},
    {&tfu_batch_norm_grad, "mm00cc0m0", FLOATS, {TFU_ACT_elu}},
    {&tfu_frozen_batch_norm, "lccccl", FLOATS, {TFU_ACT_silu}},
    {&tfu_frozen_batch_norm_grad, "mmccccm0", FLOATS, {TFU_ACT_relu}},
    {&tfu_frozen_batch_norm_grad, "ll00cc0l", FLOATS, {0}},
};

#define BILLIONS ((int64_t)1 << 32)
static const tfu_shape shapes[] = {
    SHAPE(1),           SHAPE(7, 3),        SHAPE(3, 5, 129),     SHAPE(2, 1030),       SHAPE(0, 8),
    SHAPE(5, 0),        SHAPE(3, 0, 9),     SHAPE(8191, 5),       SHAPE(16384, 8192),   SHAPE(1, 1 << 27),
    SHAPE(1 << 27, 1),  SHAPE(1 << 20, 8),  SHAPE(2, 1, 1 << 20), SHAPE(BILLIONS + 64), SHAPE(65536, 65537),
    SHAPE(2, BILLIONS), SHAPE(BILLIONS, 3), SHAPE(40, 40000),     SHAPE(2048, 65536),   SHAPE(33, 24584),
    SHAPE(512, 262144), SHAPE(17, 524288),  SHAPE(1 << 21, 21),   SHAPE(7, 8008, 21),   SHAPE(40001, 70)};

static tfu_shape shape_of(const tfu_shape *x, char letter) {
  switch (letter) {
    case 'x': return *x;
    case 'r': return tfu_leading(x);
    case 't': {
      const tfu_shape rows = tfu_leading(x);
      return tfu_append(&rows, 2);
    }
    case 'c': return (tfu_shape)SHAPE(tfu_cols(x));
    case 's': return (tfu_shape)SCALAR;
    case 'l': return (tfu_shape)SHAPE(tfu_rows(x), tfu_cols(x), 1);
    case 'm': return (tfu_shape)SHAPE(2, tfu_cols(x), tfu_rows(x));
    case 'f': return (tfu_shape)SHAPE(x->dim[0]);
    case 'p': return (tfu_shape)SHAPE(tfu_count(x));
    case 'k': return (tfu_shape)SHAPE(5, 0);
    case 'h': return (tfu_shape)SHAPE(100, 0);
    case 'a': return (tfu_shape)SHAPE(divide_up(tfu_count(x) * (int64_t)tfu_dtype_size(running), 128), 0);
    case 'b': return (tfu_shape)SHAPE(divide_up(tfu_count(x) * (int64_t)tfu_dtype_size(running), 128), 1);
    default: return (tfu_shape)SHAPE(letter - '0');
  }
}

static tfu_dtype dtype_of(const char *argument, tfu_dtype dtype) {
  const char *type = strrchr(argument, ' ') + 1;
  if (!strcmp(type, "S")) return tfu_real(dtype);
  if (!strcmp(type, "M")) return TFU_BOOL;
  return !strcmp(type, "T") ? dtype : !strcmp(type, "int32") ? TFU_I32 : !strcmp(type, "bool") ? TFU_BOOL : TFU_I64;
}

/* Memory that nobody may touch. */
static void *somewhere(tfu_call *call, size_t bytes) {
  (void)call;
  CHECK_FOR(bytes < (size_t)1 << 48, "%s: %zu bytes of scratch", what, bytes);
  return (char *)NULL + 0x7f0000000000;
}

/* Runs a call. What no launch can do is said to be so, and nothing else is refused. */
static void run_call(const tfu_op *op, const char *in, const int64_t *attr, tfu_dtype dtype, const tfu_shape *x,
                     int odd) {
  tfu_error err = {""};
  tfu_call call = {.op = op, .err = &err, .allocate = somewhere};
  tfu_shape out[TFU_MAX_ARGS];
  int64_t elements;
  char text[256];
  snprintf(text, sizeof text, "%s %s %s", op->name, tfu_dtype_name(dtype), tfu_show(x).text);
  what = text;
  running = dtype;
  elements_of_x = tfu_count(x);
  for (int i = 0; i < 4 && op->attr[i]; i++) {
    tfu_attr a;
    CHECK(tfu_attr_parse(op->attr[i], &a));
    if (a.kind == TFU_ATTR_BOOL) call.attr[i].b = attr[i] != 0;
    else if (a.kind != TFU_ATTR_DTYPE) call.attr[i].i = attr[i];
  }
  char *memory = (char *)NULL + 0x100000000000 + (odd ? tfu_dtype_size(dtype) : 0);
  for (int i = 0; op->in[i]; i++)
    call.in[i] = (tfu_tensor){.data = memory, .dtype = dtype_of(op->in[i], dtype), .shape = shape_of(x, in[i])};
  if (tfu_infer(&call, out, &elements) != TFU_OK || elements == 0) return; /* where nothing comes out, nothing runs */
  for (int i = 0; op->out[i]; i++)
    call.out[i] = (tfu_tensor){.data = memory, .dtype = dtype_of(op->out[i], dtype), .shape = out[i]};
  const tfu_code code = tfu_execute(&call, "test", 1);
  CHECK_FOR(code == TFU_OK || (code == TFU_INVALID && elements > INT32_MAX) ||
                (code == TFU_INVALID && tfu_count(x) > INT32_MAX),
            "%s: %s", what, err.text);
}

static void run_all(void) {
  /* Transpositions name their axes by the rank. */
  static const int64_t reversed[] = {0, 0x0, 0x01, 0x012}, swapped[] = {0, 0x0, 0x01, 0x201};
  for (const tfu_shape *x = shapes; x < shapes + TFU_COUNT(shapes); x++)
    for (tfu_dtype dtype = 0; dtype < TFU_DTYPES; dtype++)
      for (int odd = 0; odd < 2; odd++) {
        for (const struct line *l = lines; l < lines + TFU_COUNT(lines); l++)
          if (l->dtypes >> dtype & 1) run_call(l->op, l->in, l->attr, dtype, x, odd);
        if (dtype >= TFU_MOVED) continue;
        run_call(&tfu_transpose, "x", &reversed[x->rank], dtype, x, odd);
        run_call(&tfu_transpose, "x", &swapped[x->rank], dtype, x, odd);
      }
}

/* Sets every tunable of these families to the least or the most that it may be. */
static int set_tunables(int most) {
  static const char *const stems =
      " softmax cross_entropy norm reduce segment_sum scan transpose sort top_k bincount channels batch_norm ";
  int found = 0;
  for (int i = 0; *tfu_tunable_text(i); i++) {
    char stem[64], name[64], own[72];
    int value, least, largest;
    if (sscanf(tfu_tunable_text(i),
               "{\"stem\": \"%63[^\"]\", \"name\": \"%63[^\"]\", \"value\": %d, \"least\": %d, \"most\": %d", stem,
               name, &value, &least, &largest) != 5)
      continue;
    snprintf(own, sizeof own, " %s ", stem);
    if (!strstr(stems, own)) continue;
    CHECK_TEXT(tfu_tunable_set(stem, name, most ? largest : least), "");
    found++;
  }
  return found;
}

int main(void) {
  for (int tunable = -1; tunable < 2; tunable++) {
    if (tunable >= 0) CHECK(set_tunables(tunable) >= 10);
    for (gpu = 0; gpu < TFU_COUNT(gpus); gpu++) run_all();
  }
  CHECK(launches > 10000 && rings > 100 && thread > 100 && joined > 100);
  return verdict();
}
