/* Bincount and WeightedBincount on the CPU, and what Histogram shares with them.
 *
 * A row is cut into parts, as many as its shape says and not the threads, so that sums repeat. Each part has bins of
 * its own, which are added up in order. A part is walked in tiles, for which first the bins are found; those that are
 * no bin get one more, after the last. Where bins are few there are several copies of them, taken in turn: one bin
 * that comes again and again would have to wait for itself. */
#include "kernels/core/arithmetic.h"
#include "kernels/sorting/bins_cpu.h"

enum { COPIES = 4, FEW_BINS = 2048, MOST_PARTS = 16, LEAST_PART = 1 << 16 };

static void find_ids(bin_run *r, int64_t at, int n, int32_t *bins) {
  const int32_t size = (int32_t)r->size;
  int negative = 0;
  if (r->of->dtype == TFU_I32) {
    const int32_t *ids = (const int32_t *)r->of->data + at;
    TFU_VECTORISED(i, n) {
      negative |= ids[i] < 0;
      bins[i] = (uint32_t)ids[i] < (uint32_t)size ? ids[i] : size;
    }
  } else {
    const int64_t *ids = (const int64_t *)r->of->data + at;
    for (int i = 0; i < n; i++) {
      negative |= ids[i] < 0;
      bins[i] = (uint64_t)ids[i] < (uint64_t)size ? (int32_t)ids[i] : size;
    }
  }
  if (negative) __atomic_store_n(&r->bad, 1, __ATOMIC_RELAXED);
}

static void add_tile(const bin_run *r, void *room, const int32_t *bins, int64_t at, int n) {
  const tfu_dtype dtype = r->weights ? r->weights->dtype : TFU_I64;
  double *sums = room;
  int64_t *counts = room;
  float buffer[TFU_TILE];
  if (!r->weights) {
    int i = 0;
    if (r->copies == COPIES)
      for (; i + COPIES <= n; i += COPIES)
        for (int k = 0; k < COPIES; k++) counts[bins[i + k] * COPIES + k]++;
    for (; i < n; i++) counts[(int64_t)bins[i] * r->copies]++;
  } else if (dtype == TFU_F64) {
    for (int i = 0; i < n; i++) sums[bins[i]] += ((const double *)r->weights->data)[at + i];
  } else if (dtype < TFU_FLOATS) {
    const float *w = tfu_load_f32(r->weights->data, dtype, at, n, buffer);
    for (int i = 0; i < n; i++) sums[bins[i]] += w[i];
  } else {
    for (int i = 0; i < n; i++)
      counts[bins[i]] = (int64_t)((uint64_t)counts[bins[i]] + (uint64_t)tfu_integer(r->weights, at + i));
  }
}

static void bin_part(void *arg, int64_t task) {
  bin_run *r = arg;
  const int64_t row = task / r->parts, part = task % r->parts, length = divide_up(r->cols, r->parts);
  const int64_t end = row * r->cols + ((part + 1) * length < r->cols ? (part + 1) * length : r->cols);
  int64_t *room = (int64_t *)r->room + task * r->stride;
  int32_t bins[TFU_TILE];
  memset(room, 0, (size_t)r->stride * sizeof *room);
  for (TFU_EACH_TILE(at, n, row * r->cols + part * length, end)) {
    r->find(r, at, (int)n, bins);
    add_tile(r, room, bins, at, (int)n);
  }
}

/* The bins of all parts and copies, added up in order. */
static void join_row(void *arg, int64_t row) {
  const bin_run *r = arg;
  for (TFU_EACH_TILE(from, n, 0, r->size)) {
    const int64_t at = row * r->size + from;
    uint64_t counts[TFU_TILE] = {0};
    double sums[TFU_TILE] = {0};
    float narrow[TFU_TILE];
    const int sum = r->weights && r->weights->dtype < TFU_FLOATS;
    for (int64_t p = 0; p < r->parts; p++) {
      const int64_t begin = (row * r->parts + p) * r->stride + from * r->copies;
      for (int i = 0; sum && i < n; i++) sums[i] += ((const double *)r->room)[begin + i];
      for (int i = 0; !sum && i < n * r->copies; i++) counts[i / r->copies] += ((const uint64_t *)r->room)[begin + i];
    }
    for (int i = 0; i < n; i++) {
      narrow[i] = (float)sums[i];
      if (r->binary) counts[i] = counts[i] != 0;
    }
    if (r->out->dtype == TFU_F64) memcpy((double *)r->out->data + at, sums, (size_t)n * sizeof *sums);
    else if (sum) tfu_store_f32(r->out->data, r->out->dtype, at, n, narrow);
    else if (r->out->dtype == TFU_I64) memcpy((int64_t *)r->out->data + at, counts, (size_t)n * sizeof *counts);
    else
      for (int i = 0; i < n; i++) ((int32_t *)r->out->data)[at + i] = (int32_t)counts[i];
  }
}

tfu_code tfu_bins_cpu(tfu_call *call, bin_run *r) {
  r->out = &call->out[0];
  r->size = tfu_cols(&r->out->shape);
  TFU_REQUIRE(call->err, r->size < INT32_MAX, "bins must be less than 2^31 - 1, got %lld", (long long)r->size);
  const int64_t least = 4 * r->size > LEAST_PART ? 4 * r->size : LEAST_PART, parts = r->cols / least;
  r->parts = parts < 1 || r->rows > MOST_PARTS ? 1 : parts < MOST_PARTS ? parts : MOST_PARTS;
  r->copies = r->weights || r->size > FEW_BINS ? 1 : COPIES;
  r->stride = (r->size + 1) * r->copies;
  TFU_TRY(tfu_scratch(call, (size_t)(r->rows * r->parts * r->stride) * sizeof(int64_t), &r->room));
  tfu_parallel(r->rows * r->parts, bin_part, r);
  TFU_REQUIRE(call->err, !r->bad, "ids must not be less than 0");
  tfu_parallel(r->rows, join_row, r);
  return TFU_OK;
}

static bin_run rows_of(const tfu_tensor *ids) {
  return (bin_run){.of = ids, .find = find_ids, .rows = tfu_rows(&ids->shape), .cols = tfu_cols(&ids->shape)};
}

tfu_code tfu_bincount_cpu(tfu_call *call) {
  bin_run r = rows_of(&call->in[0]);
  r.binary = call->attr[0].b;
  return tfu_bins_cpu(call, &r);
}

tfu_code tfu_weighted_bincount_cpu(tfu_call *call) {
  bin_run r = rows_of(&call->in[1]);
  r.weights = &call->in[0];
  return tfu_bins_cpu(call, &r);
}

/* ---- the gradient of weights ---- */

typedef struct take_run {
  const tfu_tensor *sums, *ids;
  void *weights;
  int64_t cols, size;
} take_run;

/* For values of so many bytes. */
#define TAKE(bits)                                                                   \
  static void take_##bits(void *arg, int64_t begin, int64_t end) {                   \
    const take_run *r = arg;                                                         \
    const uint##bits##_t *sums = r->sums->data;                                      \
    uint##bits##_t *weights = r->weights;                                            \
    for (int64_t at = begin, row = at / r->cols, next; at < end; at = next, row++) { \
      next = (row + 1) * r->cols < end ? (row + 1) * r->cols : end;                  \
      for (int64_t i = at; i < next; i++) {                                          \
        const int64_t id = tfu_integer(r->ids, i);                                   \
        weights[i] = id >= 0 && id < r->size ? sums[row * r->size + id] : 0;         \
      }                                                                              \
    }                                                                                \
  }
TAKE(16)
TAKE(32)
TAKE(64)

tfu_code tfu_weighted_bincount_grad_cpu(tfu_call *call) {
  const tfu_tensor *sums = &call->in[0], *ids = &call->in[1];
  const size_t size = tfu_dtype_size(sums->dtype);
  take_run r = {.sums = sums,
                .ids = ids,
                .weights = call->out[0].data,
                .cols = tfu_cols(&ids->shape),
                .size = tfu_cols(&sums->shape)};
  const int64_t n = tfu_count(&ids->shape);
  tfu_parallel_ranges(n, tfu_task_size(n, TFU_TILE), size == 2 ? take_16 : size == 4 ? take_32 : take_64, &r);
  return TFU_OK;
}
