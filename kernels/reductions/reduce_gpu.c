#include "kernels/reductions/reduce.h"

#include "kernels/core/arithmetic.h"
#include "kernels/core/gpu/cuda.h"
#include "kernels/core/gpu/tunable.h"

TFU_MODULE(reduce);
TFU_MODULE_AS(rows_module, reduce_rows);
TFU_MODULE_AS(columns_module, reduce_columns);
/* What kinds.cuh calls them, in the order of tfu_reduce_variant. */
const char *const tfu_reduce_variants[] = {"sums", "squares", "tops", "ties", "products", "exps", "spreads", "indices"};
static tfu_kernel rows = {.module = &rows_module, .name = "reduce_rows", .variants = tfu_reduce_variants};
static tfu_kernel columns = {.module = &columns_module, .name = "reduce_columns", .variants = tfu_reduce_variants};
static tfu_kernel twos = {.module = &module, .name = "reduce_twos"};
static tfu_kernel any = {.module = &module, .name = "reduce_any"};

/* Packs that a thread has of a row before more threads share it, for sums and maxima and for states that take longer to
 * join, where there are rows enough; blocks for each multiprocessor before rows or columns are cut into parts; packs or
 * pairs of columns that lie beside each other in a block. By measurement on an H200, but for the last. With 8, 16, 32
 * and 64 packs 16,384 rows of 8192 in bfloat16 take 64.1, 64.3, 65.1 and 66.2 us for sums, 81.2, 71.7, 68.8 and 67.9
 * for variances, 83.1, 72.9, 69.5 and 68.4 for logsumexp, 71.0, 68.0, 67.2 and 66.7 for argmax. */
TFU_TUNABLE(row_packs, 8, 1, 64);
TFU_TUNABLE(row_packs_of_states, 32, 1, 64);
TFU_TUNABLE(row_blocks, 4, 1, 64);
TFU_TUNABLE(column_blocks, 8, 1, 64);
TFU_TUNABLE(column_bits, 4, 3, 8);
TFU_TUNABLE(pair_bits, 6, 3, 8);
/* Blocks for each multiprocessor where narrow columns are joined. As many as are there at a time, and all alike: more
 * would leave more states to join. */
TFU_TUNABLE(joined_blocks, 4, 1, 64);

enum {
  LANE_BITS = 8,
  STATE_BITS = 4,
  LEAST_SHARE = 16 * 1024,  /* elements of a row's part */
  LEAST_JOINED = 64 * 1024, /* bytes of columns that are joined */
  JOINED_ROWS = 4           /* a part of them is a multiple of so many rows of a block's width */
};
_Static_assert(1 << LANE_BITS == TFU_REDUCE_THREADS, "a column may have all threads of a block");
_Static_assert((int)TFU_AS_F32 == (int)TFU_F32 && (int)TFU_AS_F16 == (int)TFU_F16 &&
                   (int)TFU_AS_BF16 == (int)TFU_BF16 && (int)TFU_AS_F64 == (int)TFU_F64 &&
                   (int)TFU_AS_I32 == (int)TFU_I32 && (int)TFU_AS_I64 == (int)TFU_I64,
               "device code counts types as tfu_dtype does");

/* The bits of the next power of two, at most `most`. */
static int bits_above(int64_t n, int most) {
  int bits = 0;
  while (bits < most && (int64_t)1 << bits < n) bits++;
  return bits;
}

int tfu_reduce_variant(int kind, int ties) {
  switch (kind) {
    case TFU_REDUCE_L2: return 1;
    case TFU_REDUCE_MAX:
    case TFU_REDUCE_MIN: return ties ? 3 : 2;
    case TFU_REDUCE_PROD: return 4;
    case TFU_REDUCE_LSE: return 5;
    case TFU_REDUCE_VARIANCE:
    case TFU_REDUCE_STD: return 6;
    case TFU_REDUCE_ARG: return 7;
    default: return 0;
  }
}

/* What is computed in. */
static tfu_dtype arithmetic(tfu_dtype dtype) { return dtype < TFU_FLOATS ? tfu_real(dtype) : TFU_I64; }

/* Numbers that have to be kept of a state. */
static int words_of(int group, tfu_dtype real, int ties) {
  switch (group) {
    case TFU_TOPS: return ties ? 2 : 1;
    case TFU_PRODUCTS: return real == TFU_I64 ? 1 : 3;
    case TFU_EXPONENTIALS: return 2;
    case TFU_SPREADS: return 4;
    case TFU_INDICES: return real == TFU_F32 ? 3 : 2;
    default: return 1;
  }
}

/* Cuts count into parts, so that there are some `wanted` blocks where there would be `blocks`. A part has at least
 * `least` elements, and is a multiple of that. */
static void cut(reduce_args *a, int64_t blocks, int64_t wanted, int64_t least) {
  enum { MOST = 32768, LONGEST = 1 << 30 }; /* parts; elements of one, or rows */
  const int64_t longest = a->period ? LONGEST / (a->inner / a->period) : LONGEST;
  int64_t parts = wanted / (blocks ? blocks : 1);
  if (parts > MOST) parts = MOST;
  if (parts < divide_up(a->count, longest)) parts = divide_up(a->count, longest);
  a->share = parts > 1 ? divide_up(divide_up(a->count, parts), least) * least : a->count;
  if (a->share < 1) a->share = 1;
  a->parts = a->count ? (int)divide_up(a->count, a->share) : 1;
}

/* How many rows of narrow columns that are no whole packs are taken for one, so that it has a pack for nearly each
 * thread of a block; 0 where that cannot be, or is not worth it. Not of products: a column has few threads there, and
 * of many factors near 1 their long chains in float lose more digits than reduce_any does in double. */
static int64_t joined_rows(const reduce_args *a, int64_t size) {
  const int64_t bytes = a->inner * size, all = a->count * bytes;
  int64_t rows = 1; /* the fewest that are whole packs */
  while (bytes * rows % 16) rows *= 2;
  const int64_t packs = bytes * rows / 16, fit = packs ? TFU_REDUCE_THREADS / packs * rows : 0;
  if (rows == 1 || !fit || a->kind == TFU_REDUCE_PROD || all < LEAST_JOINED ||
      a->outer * a->inner * fit >= (int64_t)1 << 31)
    return 0;
  return (uintptr_t)a->x % 16 == 0 && (a->outer == 1 || all % 16 == 0) ? fit : 0;
}

/* One launch: values or states, [outer][count][inner], to states or results, [outer][parts][inner]. */
static tfu_code launch(tfu_call *call, tfu_dtype dtype, reduce_args *a, int64_t multiprocessors, int last) {
  const tfu_dtype real = arithmetic(dtype);
  const int64_t size = (int64_t)tfu_dtype_size(dtype), lines = a->outer * a->inner;
  tfu_kernel *kernel = &any;
  tfu_grid grid = {.threads = TFU_REDUCE_THREADS};
  int64_t items = lines; /* that a block has 256 >> lane_bits of */
  void *states = a->states;
  const int values = !a->joins && real == TFU_F32; /* that are computed in float */
  const int64_t joined = values && a->inner > 1 ? joined_rows(a, size) : 0, inner = a->inner;
  if (values && a->inner == 1) {
    kernel = &rows;
    /* Some lanes even for a short row, so that they read its sectors of memory together. */
    const int few = bits_above(divide_up(a->count * size, 16), 3);
    const int plain = a->group == TFU_SUMS || a->group == TFU_TOPS;
    const int most = bits_above(divide_up(a->count * size, 16 * row_packs()), LANE_BITS);
    const int64_t wanted = multiprocessors * row_blocks();
    a->lane_bits = plain ? most : bits_above(divide_up(a->count * size, 16 * row_packs_of_states()), LANE_BITS);
    while (a->lane_bits < most && lines >> (LANE_BITS - a->lane_bits) < wanted) a->lane_bits++;
    if (a->lane_bits < few) a->lane_bits = few;
    cut(a, lines >> (LANE_BITS - a->lane_bits), wanted, LEAST_SHARE);
  } else if (joined) {
    kernel = &columns;
    items = a->outer << LANE_BITS;
    a->lane_bits = 0;
    a->period = (int)inner;
    a->tail = (int)(a->count % joined * inner);
    a->count /= joined;
    a->inner *= joined;
    cut(a, a->outer, multiprocessors * joined_blocks(), JOINED_ROWS);
  } else {
    int64_t each = 1; /* columns of a thread */
    if (values && a->inner * size % 16 == 0 && (uintptr_t)a->x % 16 == 0 && lines < (int64_t)1 << 31)
      kernel = &columns, each = 16 / size;
    else if (values && a->inner % 2 == 0 && (uintptr_t)a->x % (2 * size) == 0) kernel = &twos, each = 2;
    items = lines / each;
    a->beside = a->inner == 1;
    /* Few states lie in a column, and each is waited for: many threads for a column, a sector or two of memory each. */
    const int most_across = a->joins ? STATE_BITS : kernel == &columns ? column_bits() : pair_bits();
    const int across = bits_above(a->inner / each, most_across);
    const int most = a->beside ? LANE_BITS : LANE_BITS - across;
    a->lane_bits = bits_above(divide_up(a->count, a->joins ? 2 : 8), most);
    cut(a, items >> (LANE_BITS - a->lane_bits), multiprocessors * column_blocks(), (int64_t)32 << a->lane_bits);
  }
  grid.x = (unsigned)divide_up(items, TFU_REDUCE_THREADS >> a->lane_bits);
  grid.y = (unsigned)a->parts;
  const int whole = a->parts == 1;
  void *y = a->y;
  if (!(whole && last && y)) {
    TFU_TRY(tfu_scratch(call, (size_t)(lines * a->parts * a->words) * tfu_dtype_size(real), &states));
    a->y = NULL;
  }
  a->states = states;
  a->float_states = kernel == &any && real == TFU_F32;
  if (kernel == &rows || kernel == &columns)
    TFU_TRY(tfu_launch(call, kernel, tfu_reduce_variant(a->kind, a->ties), dtype, grid, a));
  else TFU_TRY(tfu_launch(call, kernel, 0, a->float_states ? TFU_F64 : real, grid, a));
  a->y = y;
  a->x = states;
  a->joins = 1;
  a->inner = inner;
  a->period = a->tail = 0;
  return TFU_OK;
}

/* To results in y, or to states of at most `few` parts. */
static tfu_code reduce(tfu_call *call, const tfu_tensor *x, const tfu_groups *groups, int kind, int negated,
                       const tfu_tensor *y, int64_t few, tfu_reduce_parts *left) {
  tfu_device device;
  TFU_TRY(tfu_device_now(&device, call->err));
  tfu_groups g = *groups;
  int64_t all = 1;
  if (g.n == 0) g.reduced[g.n++] = g.kept[1] = 1;
  for (int i = 0; i < g.n; i++) all *= g.reduced[i];
  reduce_args a = {.x = x->data,
                   .y = y ? y->data : NULL,
                   .outer = 1,
                   .inner = 1,
                   .all = all || x->dtype < TFU_FLOATS ? all : 1,
                   .kind = kind,
                   .group = tfu_float_group(kind),
                   .negated = negated,
                   .ties = !y,
                   .from = x->dtype,
                   .to = y ? (int)y->dtype : 0};
  a.words = y ? words_of(a.group, arithmetic(x->dtype), 0) : TFU_STATE_WORDS;
  if (all == 0) { /* what the results of no values are */
    for (int i = 0; i <= g.n; i++) a.outer *= g.kept[i];
    return launch(call, x->dtype, &a, device.multiprocessors, 1);
  }
  for (int i = 0; i < g.n; i++) a.outer *= g.kept[i] * g.reduced[i];
  a.inner = g.kept[g.n];
  for (int i = g.n - 1; i >= 0; i--) { /* the last axes first: what is left to do is smaller then */
    a.count = g.reduced[i];
    a.outer /= a.count;
    while (!a.joins || a.count > (i == 0 ? few : 1)) {
      TFU_TRY(launch(call, x->dtype, &a, device.multiprocessors, i == 0));
      a.count = a.parts;
    }
    *left = (tfu_reduce_parts){a.states, a.outer, a.count, a.inner};
    a.outer /= g.kept[i];
    a.inner *= g.kept[i];
  }
  return TFU_OK;
}

tfu_code tfu_reduce_launch(tfu_call *call, const tfu_tensor *x, const tfu_groups *groups, int kind, int negated,
                           const tfu_tensor *y, const void **states) {
  tfu_reduce_parts left = {0};
  TFU_TRY(reduce(call, x, groups, kind, negated, y, 1, &left));
  if (states) *states = left.states;
  return TFU_OK;
}

tfu_code tfu_reduce_to_parts(tfu_call *call, const tfu_tensor *x, const tfu_groups *groups, int kind, int64_t few,
                             tfu_reduce_parts *parts) {
  return reduce(call, x, groups, kind, 0, NULL, few, parts);
}

tfu_code tfu_reduce_gpu(tfu_call *call) {
  const tfu_tensor *x = &call->in[0];
  unsigned reduced;
  TFU_TRY(tfu_reduced_axes(&x->shape, call->attr[1].i, &reduced, call->err));
  const tfu_groups groups = tfu_groups_of(&x->shape, reduced);
  const int kind = tfu_reduce_kind(call, &groups);
  TFU_TRY(tfu_reduce_check(call));
  return tfu_reduce_launch(call, x, &groups, kind, kind == TFU_REDUCE_MIN, &call->out[0], NULL);
}
