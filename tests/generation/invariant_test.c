/* invariant_test.c - calls that are invariant (tfuse.h) ask a GPU for the same kernels, which deal a row out in the
 * same way, however many rows there are; without a GPU, against a driver of our own that looks at launches and runs
 * none. */
#include "kernels/attention/attention_own.h"
#include "kernels/core/gpu/rows.h"
#include "kernels/products/few_rows.h"
#include "kernels/products/matmul_own.h"
#include "tests/stand_in_driver.h"

/* ---- the driver ---- */

/* What was launched, and what of its arguments decides on how a row is summed; launches alike are told once. */
static char how[2048];

static CUresult launch(const CUlaunchConfig *c, CUfunction f, void **args, void **extra) {
  (void)extra;
  const char *name = (const char *)f, *stem = strstr(name, "few_rows_wgmma_") ? "few_rows_wgmma"
                                              : strstr(name, "few_rows_")     ? "few_rows"
                                                                              : name;
  const unsigned cluster = c->numAttrs ? c->attrs->value.clusterDim.x : 1;
  char text[256] = "";
  if (!strcmp(stem, "few_rows_wgmma")) {
    const few_rows_wgmma_args *w = args[0];
    CHECK(c->gridDimX % (unsigned)w->a.splits == 0);
    snprintf(text, sizeof text, "%d splits", w->a.splits); /* how many rows are taken at once changes no sum */
  } else if (stem != name) {
    const few_rows_args *a = args[0];
    CHECK(a->rows >= 1 && a->rows <= FEW_ROWS_MOST);
    snprintf(text, sizeof text, "%d splits", a->splits); /* how wide tiles are changes no sum */
  } else if (strstr(name, "matmul_")) {
    snprintf(text, sizeof text, "%d slices", ((const matmul_args *)args[0])->slices);
  } else if (strstr(name, "layer_") || strstr(name, "rms_") || strstr(name, "norm_")) {
    const tfu_row_plan *r = args[0];
    snprintf(text, sizeof text, "%d lanes, %d chunks of %d, %d parts, cluster %d of %u", r->lanes, r->chunks, r->share,
             r->parts, r->cluster, cluster);
  } else if (strstr(name, "decode_") || strstr(name, "join_parts")) {
    snprintf(text, sizeof text, "%d splits", ((const attention_work *)args[0])->splits);
  }
  char line[512];
  snprintf(line, sizeof line, "%s: %s\n", stem, text);
  const size_t n = strlen(how), m = strlen(line);
  CHECK(n + m < sizeof how);
  if (n < m || strcmp(how + n - m, line)) memcpy(how + n, line, m + 1);
  return CUDA_SUCCESS;
}

static CUresult most_clusters(int *clusters, CUfunction f, const CUlaunchConfig *c) {
  (void)f, (void)c;
  *clusters = 16;
  return CUDA_SUCCESS;
}

static CUresult clear(CUdeviceptr to, unsigned char value, size_t n, CUstream stream) {
  (void)to, (void)value, (void)n, (void)stream;
  return CUDA_SUCCESS;
}

static CUresult map(CUtensorMap *map, CUtensorMapDataType dtype, cuuint32_t rank, void *data, const cuuint64_t *sizes,
                    const cuuint64_t *pitch, const cuuint32_t *box, const cuuint32_t *steps,
                    CUtensorMapInterleave interleave, CUtensorMapSwizzle swizzle, CUtensorMapL2promotion promotion,
                    CUtensorMapFloatOOBfill fill) {
  (void)map, (void)dtype, (void)steps, (void)interleave, (void)swizzle, (void)promotion, (void)fill;
  CHECK(rank == 2 && sizes[0] > 0 && sizes[1] > 0 && (uintptr_t)data % 16 == 0 && pitch[0] % 16 == 0);
  CHECK(box[0] == 64 && box[1] >= 8 && box[1] <= 256);
  return CUDA_SUCCESS;
}

tfu_code tfu_driver_get(const tfu_driver **driver, tfu_error *err) {
  static const tfu_driver stand_in = {STAND_INS,
                                      .cuLibraryGetKernel = get_named_kernel,
                                      .cuLaunchKernelEx = launch,
                                      .cuMemsetD8Async = clear,
                                      .cuTensorMapEncodeTiled = map,
                                      .cuOccupancyMaxActiveClusters = most_clusters};
  (void)err;
  *driver = &stand_in;
  return TFU_OK;
}

/* ---- calls ---- */

/* As a graph that captures it has it: the scratch that the row asks for, and no more. */
static void *from_room(tfu_call *call, size_t bytes) {
  if (bytes > call->room) return NULL;
  call->room -= bytes;
  return (char *)NULL + 0x7f0000000000;
}

typedef struct given {
  const tfu_op *op;
  tfu_dtype dtype;
  tfu_shape in[TFU_MAX_ARGS];
  tfu_value attr[TFU_MAX_ATTRS];
} given;

static tfu_dtype dtype_of(const char *argument, tfu_dtype dtype) {
  const char *type = strrchr(argument, ' ') + 1;
  return !strcmp(type, "T") || !strcmp(type, "C")       ? dtype
         : !strcmp(type, "S") || !strcmp(type, "float") ? tfu_real(dtype)
                                                        : TFU_I64;
}

/* Runs the call, and leaves in `how` what it took. */
static void run_call(const given *g, int invariant) {
  tfu_error err = {""};
  tfu_shape out[TFU_MAX_ARGS];
  int64_t elements;
  tfu_call call = {.op = g->op, .err = &err, .allocate = from_room, .captured = 1, .invariant = invariant};
  memcpy(call.attr, g->attr, sizeof call.attr);
  char *memory = (char *)NULL + 0x100000000000;
  for (int i = 0; g->op->in[i]; i++)
    call.in[i] = (tfu_tensor){.data = memory, .dtype = dtype_of(g->op->in[i], g->dtype), .shape = g->in[i]};
  how[0] = 0;
  CHECK_FOR(tfu_infer(&call, out, &elements) == TFU_OK, "%s: %s", g->op->name, err.text);
  for (int i = 0; g->op->out[i]; i++)
    call.out[i] = (tfu_tensor){.data = memory, .dtype = dtype_of(g->op->out[i], g->dtype), .shape = out[i]};
  call.room = g->op->room + (g->op->more_room ? g->op->more_room(&call) : 0);
  CHECK_FOR(tfu_execute(&call, "test", 1) == TFU_OK, "%s: %s", g->op->name, err.text);
}

static const int64_t rows[] = {1, 2, 3, 16, 17, 33, 64, 65, 200, 512};
#define NONE SHAPE(0)

/* Runs make(rows) for all numbers of rows; whether all took the same. */
static int is_same(given (*make)(int64_t rows, int64_t size), int64_t size, tfu_dtype dtype, int invariant) {
  char first[sizeof how];
  int same = 1;
  for (int i = 0; i < TFU_COUNT(rows); i++) {
    given g = make(rows[i], size);
    g.dtype = dtype;
    run_call(&g, invariant);
    if (i == 0) strcpy(first, how);
    same &= !strcmp(first, how);
    if (invariant)
      CHECK_FOR(!strcmp(first, how), "%s %s of %lld, %lld rows:\n%sand one row:\n%s", g.op->name, tfu_dtype_name(dtype),
                (long long)size, (long long)rows[i], how, first);
  }
  return same;
}

static given norm(int64_t rows, int64_t size) {
  return (given){.op = &tfu_norm, .in = {SHAPE(rows, size), NONE, SHAPE(size), NONE, NONE}, .attr = {{.i = 1}}};
}

static given norm_of_sum(int64_t rows, int64_t size) {
  return (given){.op = &tfu_norm, .in = {SHAPE(rows, size), SHAPE(rows, size), SHAPE(size), SHAPE(size), NONE}};
}

static given gelu(int64_t rows, int64_t size) { /* the activation is the table's third, whatever it is */
  return (given){
      .op = &tfu_linear, .in = {SHAPE(rows, 256), SHAPE(256, size), SHAPE(size), NONE, NONE}, .attr = {{.i = 2}}};
}

static given added(int64_t rows, int64_t size) {
  return (given){.op = &tfu_linear,
                 .in = {SHAPE(rows, 4096), SHAPE(4096, size), NONE, SHAPE(rows, size), NONE},
                 .attr = {{.i = 0}}};
}

static given deep(int64_t rows, int64_t size) {
  return (given){.op = &tfu_linear, .in = {SHAPE(rows, 8192), SHAPE(8192, size), NONE, NONE, NONE}, .attr = {{.i = 0}}};
}

static given gated(int64_t rows, int64_t size) {
  return (given){.op = &tfu_projections,
                 .in = {SHAPE(rows, 512), SHAPE(512), SHAPE(512, size), SHAPE(512, size), NONE, NONE, NONE, NONE, NONE},
                 .attr = {{.i = 2}, {.b = 1}, {.f = 1e-6f}}};
}

static given head(int64_t rows, int64_t size) {
  return (given){.op = &tfu_batched_matmul,
                 .in = {SHAPE(rows, 2048), SHAPE(size, 2048), NONE, NONE, SHAPE(1)},
                 .attr = {{.f = 1}}};
}

/* Sequences, each with one query of `size` heads that share a key head, and with more pages the more sequences there
 * are.
 */
static given decode(int64_t batch, int64_t size) {
  return (given){.op = &tfu_paged_attention,
                 .in = {SHAPE(batch, 1, 2 * size, 128), SHAPE(600, 64, 2, 128), SHAPE(600, 64, 2, 128),
                        SHAPE(batch, 16 + batch), SHAPE(batch)},
                 .attr = {{.f = 1}, {.i = 1}, {.i = -1}, {.i = 0}}};
}

/* One sequence, and of its prompt 64 queries and more, as the engine reads it. */
static given prompt(int64_t rows, int64_t size) {
  return (given){.op = &tfu_paged_attention,
                 .in = {SHAPE(1, 63 + rows, 2 * size, 128), SHAPE(600, 64, 2, 128), SHAPE(600, 64, 2, 128),
                        SHAPE(1, 16 + rows), SHAPE(1)},
                 .attr = {{.f = 1}, {.i = 1}, {.i = -1}, {.i = 0}}};
}

/* Two of eight experts for each row, in all no more than a launch takes. */
static given mixture(int64_t rows, int64_t size) {
  return (given){.op = &tfu_experts,
                 .in = {SHAPE(rows, 512), SHAPE(rows, 2), SHAPE(rows, 2), SHAPE(8, 512, 2 * size), NONE,
                        SHAPE(8, size, 512), SHAPE(rows, 512)},
                 .attr = {{.i = 2}}};
}

int main(void) {
  static const tfu_dtype dtypes[] = {TFU_F32, TFU_BF16, TFU_F16};
  static const struct {
    given (*make)(int64_t rows, int64_t size);
    int64_t sizes[6];
  } all[] = {{norm, {64, 128, 2048, 2056, 20480, 100000}},
             {norm_of_sum, {64, 1000, 8192, 16384, 40960, 262144}},
             {gelu, {64, 1000, 1001, 8192}},
             {added, {64, 1000, 1001, 8192}},
             {deep, {64, 1001, 2048}},
             {gated, {64, 1000, 1001, 8192}},
             {head, {97, 1000, 128256}},
             {mixture, {64, 1000, 1001}},
             {decode, {1, 4, 16, 64, 71}},
             {prompt, {1, 4, 71}}};
  int differ = 0;
  for (int i = 0; i < TFU_COUNT(all); i++)
    for (int s = 0; s < TFU_COUNT(all[i].sizes) && all[i].sizes[s]; s++)
      for (int d = 0; d < TFU_COUNT(dtypes); d++) {
        is_same(all[i].make, all[i].sizes[s], dtypes[d], 1);
        if (all[i].make == decode || all[i].make == norm_of_sum)
          differ += !is_same(all[i].make, all[i].sizes[s], dtypes[d], 0);
      }
  CHECK_FOR(differ > 10, "%d", differ); /* or this test would see nothing */
  return verdict();
}
