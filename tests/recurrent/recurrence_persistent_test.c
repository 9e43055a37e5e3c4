/* recurrence_persistent_test.c - what the persistent kernels of recurrences ask of a GPU, without one: every unit of
 * every sequence has one block, all blocks run at one time, and shared memory is enough and used once. */
#include "kernels/recurrent/recurrence_persistent.h"
#include "tests/stand_in_driver.h"

/* ---- the driver ---- */

static int launches, fills;

static CUresult blocks_of(int *blocks, CUfunction f, int threads, size_t shared) {
  (void)f, (void)shared;
  CHECK(threads == TFU_THREADS);
  *blocks = 1;
  return CUDA_SUCCESS;
}

static CUresult clusters_of(int *clusters, CUfunction f, const CUlaunchConfig *c) {
  (void)f;
  CHECK(c->numAttrs == 1 && c->attrs[0].value.clusterDim.x == 2);
  *clusters = gpus[gpu].multiprocessors / 2;
  return CUDA_SUCCESS;
}

static CUresult fill(CUdeviceptr memory, unsigned value, size_t words, CUstream stream) {
  (void)stream;
  CHECK(memory && value == ~0u && words);
  fills++;
  return CUDA_SUCCESS;
}

/* What lies in shared memory, in its order: nothing overlaps, and all of it ends where the launch says. */
static void check_memory(const int *at, const int64_t *bytes, int n, unsigned all) {
  int64_t end = 0;
  for (int i = 0; i < n; i++) {
    CHECK(at[i] % 16 == 0 && at[i] >= end);
    end = at[i] + bytes[i];
  }
  CHECK(end <= all && all < end + 16 && (int)all <= gpus[gpu].block_shared - TFU_STATIC_SHARED);
}

static CUresult launch(const CUlaunchConfig *c, CUfunction f, void **args, void **extra) {
  (void)extra;
  const int back = strstr((const char *)f, "_back_") != NULL, is_float = strstr((const char *)f, "_f32") != NULL;
  const persistent_args *a = args[0];
  const persistent_back_args *b = args[0];
  const recurrence_sizes s = back ? b->size : a->size;
  const int slice = PERSISTENT_SLICE(is_float ? 4 : 2), tiles = back ? b->tiles : a->tiles, rows = PERSISTENT_ROWS;
  const int64_t size = is_float ? 4 : 2, columns = (back ? 2 : s.gates) * slice;
  launches++;
  int together = 0;
  for (unsigned i = 0; i < c->numAttrs; i++) together |= c->attrs[i].id == CU_LAUNCH_ATTRIBUTE_COOPERATIVE;
  CHECK(together && c->numAttrs == (back ? 2 : 1) && c->blockDimX == TFU_THREADS);
  CHECK((int)(c->gridDimX * c->gridDimY) <= gpus[gpu].multiprocessors && c->gridDimX % (back ? 2 : 1) == 0);
  CHECK(c->gridDimX * slice >= s.units && (c->gridDimX - (back ? 2 : 1)) * slice < s.units);
  CHECK(c->gridDimY * tiles * rows >= s.batch && (c->gridDimY - 1) * tiles * rows < s.batch);
  const persistent_memory *at = back ? &b->at : &a->at;
  const int64_t partial = PERSISTENT_WARPS * rows * (columns + PERSISTENT_PAD) * 4 * (back ? 1 : 2);
  const int64_t input = 2 * (back ? s.kept + 2 : s.gates) * rows * slice * size, state = 2 * tiles * rows * slice * 4;
  const int64_t scales = back ? s.gates * rows * slice * size : TFU_THREADS * PERSISTENT_BITS;
  const int64_t scale = (back ? b->scale : a->scale) ? tiles * scales : 0;
  const int64_t sums = back ? 2 * s.gates * rows * slice * 4 : 0;
  check_memory((const int[]){at->partial, at->input, at->mask, at->state, at->bias, at->scale, at->sums},
               (const int64_t[]){partial, input, 2 * rows * 4, state, back ? 0 : s.gates * slice * 4, scale, sums}, 7,
               c->sharedMemBytes);
  return CUDA_SUCCESS;
}

tfu_code tfu_driver_get(const tfu_driver **driver, tfu_error *err) {
  static const tfu_driver stand_in = {STAND_INS,
                                      .cuLibraryGetKernel = get_named_kernel,
                                      .cuMemsetD32Async = fill,
                                      .cuLaunchKernelEx = launch,
                                      .cuOccupancyMaxActiveBlocksPerMultiprocessor = blocks_of,
                                      .cuOccupancyMaxActiveClusters = clusters_of};
  (void)err;
  *driver = &stand_in;
  return TFU_OK;
}

/* ---- calls ---- */

static char memory[64];

static tfu_tensor tensor(tfu_dtype dtype, tfu_shape shape) { return (tfu_tensor){memory, dtype, shape}; }

/* Both directions; whether they were served, which is of both or none but on one multiprocessor. */
static int serves(int cell, tfu_dtype dtype, int64_t batch, int64_t steps, int64_t units, int scaled, int odd) {
  const int64_t width = units * tfu_cell_gates(cell), kept = units * tfu_cell_kept(cell);
  tfu_error err = {""};
  int served[2];
  tfu_call call = {.op = &tfu_recurrence, .err = &err, .attr[TFU_RECUR_CELL].i = cell};
  call.in[TFU_RECUR_GATES] = tensor(dtype, (tfu_shape)SHAPE(batch, steps, width));
  call.in[TFU_RECUR_KERNEL] = tensor(dtype, (tfu_shape)SHAPE(units, width));
  if (scaled) call.in[TFU_RECUR_SCALE] = tensor(dtype, (tfu_shape)SHAPE(batch, width));
  call.out[TFU_RECUR_Y] = tensor(dtype, (tfu_shape)SHAPE(batch, steps, units));
  if (odd) call.out[TFU_RECUR_Y].data = memory + 4;
  launches = fills = 0;
  CHECK_FOR(tfu_recurrence_persistent(&call, &served[0]) == TFU_OK, "%s", err.text);
  CHECK(launches == served[0] && fills == served[0]);
  tfu_call back = {.op = &tfu_recurrence_grad, .err = &err, .attr[TFU_RECUR_CELL].i = cell};
  back.in[TFU_RECGRAD_DY] = back.in[TFU_RECGRAD_Y] = call.out[TFU_RECUR_Y];
  back.in[TFU_RECGRAD_KERNEL] = call.in[TFU_RECUR_KERNEL];
  back.in[TFU_RECGRAD_SCALE] = call.in[TFU_RECUR_SCALE];
  back.in[TFU_RECGRAD_KEPT] = tensor(dtype, (tfu_shape)SHAPE(batch, steps, kept));
  back.out[TFU_RECGRAD_DGATES] = tensor(dtype, (tfu_shape)SHAPE(batch, steps, width));
  if (cell == TFU_CELL_GRU) back.out[TFU_RECGRAD_DPRODUCT] = back.out[TFU_RECGRAD_DGATES];
  back.out[TFU_RECGRAD_DH] = tensor(dtype, (tfu_shape)SHAPE(batch, units));
  launches = fills = 0;
  CHECK_FOR(tfu_recurrence_grad_persistent(&back, &served[1]) == TFU_OK, "%s", err.text);
  CHECK(launches == served[1] && fills == served[1]);
  CHECK(gpu || served[0] == served[1]);
  return served[0];
}

static void test_served(void) {
  static const int64_t batches[] = {1, 3, 8, 16, 17, 64, 70}, units[] = {8, 40, 96, 512, 1000, 1024};
  static const tfu_dtype dtypes[] = {TFU_F32, TFU_F16, TFU_BF16};
  for (int cell = TFU_CELL_LSTM; cell <= TFU_CELL_GRU; cell++)
    for (int d = 0; d < TFU_COUNT(dtypes); d++)
      for (int b = 0; b < TFU_COUNT(batches); b++)
        for (int u = 0; u < TFU_COUNT(units); u++)
          for (int scaled = 0; scaled < 2; scaled++)
            CHECK_FOR(serves(cell, dtypes[d], batches[b], 33, units[u], scaled, 0) ==
                          (dtypes[d] != TFU_F32 || batches[b] < 65 || units[u] < 1000),
                      "cell %d, dtype %d, %d x %d", cell, (int)dtypes[d], (int)batches[b], (int)units[u]);
}

/* Float64, units that are no packs, more than fit, few steps, no sequence, tensors that begin elsewhere, too many
 * sequences, a state that is reset before its product; and a GPU without the multiprocessors. */
static void test_left_to_the_loop(void) {
  CHECK(!serves(TFU_CELL_LSTM, TFU_F64, 8, 33, 64, 0, 0));
  CHECK(!serves(TFU_CELL_LSTM, TFU_F32, 8, 33, 44, 0, 0));
  CHECK(!serves(TFU_CELL_GRU, TFU_BF16, 8, 33, 1032, 0, 0));
  CHECK(!serves(TFU_CELL_GRU, TFU_BF16, 8, 3, 64, 0, 0));
  CHECK(!serves(TFU_CELL_GRU, TFU_BF16, 0, 33, 64, 0, 0));
  CHECK(!serves(TFU_CELL_LSTM, TFU_F32, 8, 33, 64, 0, 1));
  CHECK(!serves(TFU_CELL_LSTM, TFU_F32, 1 << 20, 33, 1024, 0, 0));
  CHECK(!serves(TFU_CELL_GRU_RESET_BEFORE, TFU_BF16, 8, 33, 64, 0, 0));
  gpu = 1;
  CHECK(!serves(TFU_CELL_LSTM, TFU_F32, 8, 33, 64, 0, 0));
  gpu = 0;
}

int main(void) {
  test_served();
  test_left_to_the_loop();
  return verdict();
}
