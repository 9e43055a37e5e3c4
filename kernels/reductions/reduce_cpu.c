/* Reductions on the CPU (reduce_cpu.h): tasks are parts of the axis that is reduced, or some short rows. */
#include "kernels/reductions/reduce_cpu.h"

#include "kernels/core/arithmetic.h"

/* Elements of a task, of lines and of columns; columns that are few. */
enum { TASK = 64 * 1024, WIDE_TASK = 4 * TASK, TASKS_PER_THREAD = 8, NARROW = 32 };

/* One axis. Lines of inner 1 are contiguous; of few columns, several rows are taken as one (`joined` of them). */
typedef struct stage {
  const tfu_tensor *x;     /* values, */
  const tfu_state *states; /* or states */
  int64_t outer, count, inner, all;
  int64_t joined, share, parts, strips, tasks, per_task;
  int kind, negated, ties, group;
  tfu_dtype dtype;
  tfu_state *to;       /* [outer][parts][inner], */
  const tfu_tensor *y; /* or results             */
} stage;

static void finish(const stage *s, int64_t at, int n, const tfu_state *states) {
  if (!s->y) {
    memcpy(s->to + at, states, (size_t)n * sizeof *states);
    return;
  }
  if (s->dtype >= TFU_FLOATS) {
    for (int i = 0; i < n; i++) tfu_store_result_int(s->kind, states[i], s->all, s->y, at + i);
    return;
  }
  for (int i = 0; i < n; i += TFU_TILE) {
    float narrow[TFU_TILE];
    double wide[TFU_TILE];
    const int m = n - i < TFU_TILE ? n - i : TFU_TILE;
    for (int k = 0; k < m; k++) narrow[k] = (float)(wide[k] = tfu_state_result(s->kind, states[i + k], s->all));
    if (s->y->dtype == TFU_F64) tfu_store_f64(s->y->data, s->y->dtype, at + i, m, wide);
    else tfu_store_f32(s->y->data, s->y->dtype, at + i, m, narrow);
  }
}

static inline float widened(uint16_t bf16) {
  const uint32_t bits = (uint32_t)bf16 << 16;
  float v;
  memcpy(&v, &bits, sizeof v);
  return v;
}

/* Goes through no other memory. */
static double sum_of_bf16(const uint16_t *v, int n) {
  typedef float REAL;
  return TFU_SUM(n, widened(v[i]));
}

static tfu_state line_state(const stage *s, int64_t at, int n) {
  const tfu_tensor *x = s->x;
  float narrow[TFU_CHUNK];
  if (s->dtype == TFU_BF16 && s->group == TFU_SUMS && s->kind != TFU_REDUCE_L2)
    return (tfu_state){.a = sum_of_bf16((const uint16_t *)x->data + at, n)};
  if (s->dtype >= TFU_FLOATS) return tfu_line_state_int(s->kind, x, at, n);
  if (s->dtype == TFU_F64) return tfu_line_state_f64(s->kind, s->negated, s->ties, (const double *)x->data + at, n);
  return tfu_line_state_f32(s->kind, s->negated, s->ties, tfu_load_f32(x->data, x->dtype, at, n, narrow), n);
}

static void column_states(const stage *s, int64_t at, int64_t stride, int rows, int n, tfu_state *found) {
  if (s->dtype >= TFU_FLOATS) tfu_column_states_int(s->kind, s->x, at, stride, rows, n, found);
  else if (s->dtype == TFU_F64) tfu_column_states_f64(s->kind, s->negated, s->ties, s->x, at, stride, rows, n, found);
  else tfu_column_states_f32(s->kind, s->negated, s->ties, s->x, at, stride, rows, n, found);
}

/* Parts of rows: each task has some, `per_task`. */
static void reduce_lines(void *arg, int64_t task) {
  const stage *s = arg;
  const int64_t end = least((task + 1) * s->per_task, s->outer * s->parts);
  tfu_state found[TFU_TILE];
  for (int64_t first = task * s->per_task; first < end; first += TFU_TILE) {
    const int n = (int)least(TFU_TILE, end - first);
    for (int i = 0; i < n; i++) {
      const int64_t row = s->parts == 1 ? first + i : (first + i) / s->parts;
      const int64_t begin = (first + i - row * s->parts) * s->share;
      const int64_t length = least(s->share, s->count - begin);
      if (length > 0 && length <= TFU_CHUNK) {
        found[i] = line_state(s, row * s->count + begin, (int)length);
        continue;
      }
      found[i] = tfu_state_none(s->group, s->dtype);
      for (TFU_EACH_CHUNK(at, m, length))
        tfu_state_join(s->group, &found[i], line_state(s, row * s->count + begin + at, (int)m));
    }
    finish(s, first, n, found);
  }
}

/* A strip of columns, and some rows of it. */
static void reduce_columns(void *arg, int64_t task) {
  const stage *s = arg;
  const int64_t strip = task % s->strips, part = task / s->strips % s->parts, outer = task / s->strips / s->parts;
  const int64_t width = s->joined * s->inner, column = strip * TFU_COLUMNS;
  const int n = (int)least(TFU_COLUMNS, width - column);
  const int64_t begin = part * s->share, end = least(begin + s->share, s->count);
  tfu_state found[TFU_COLUMNS];
  for (int i = 0; i < n; i++) found[i] = tfu_state_none(s->group, s->dtype);
  for (int64_t row = begin; row < end;) {
    const int64_t whole = (end - row) / s->joined;
    const int rows = (int)least(TFU_ROWS, whole > 0 ? whole : 1);
    const int m = whole > 0 ? n : (int)((end - row) * s->inner); /* the last joined row may be short */
    column_states(s, (outer * s->count + row) * s->inner + column, width, rows, m, found);
    row += whole > 0 ? rows * s->joined : end - row;
  }
  for (int i = (int)s->inner; s->joined > 1 && i < n; i++) tfu_state_join(s->group, &found[i % s->inner], found[i]);
  finish(s, (outer * s->parts + part) * s->inner + column, s->joined > 1 ? (int)s->inner : n, found);
}

/* States, a run of results for each task. */
static void reduce_states(void *arg, int64_t task) {
  const stage *s = arg;
  const int64_t first = task * TFU_TILE;
  const int n = (int)least(TFU_TILE, s->outer * s->inner - first);
  tfu_state found[TFU_TILE];
  for (int i = 0; i < n; i++) {
    const tfu_state *from = s->states + (first + i) / s->inner * s->count * s->inner + (first + i) % s->inner;
    found[i] = tfu_state_none(s->group, s->dtype);
    for (int64_t k = 0; k < s->count; k++) tfu_state_join(s->group, &found[i], from[k * s->inner]);
  }
  finish(s, first, n, found);
}

/* One axis: values or states become states in scratch memory, or results where it is the last and not cut. */
static tfu_code run_stage(tfu_call *call, stage *s, const tfu_tensor *y, int last) {
  void (*task)(void *, int64_t) = reduce_states;
  s->joined = s->parts = s->strips = 1;
  s->share = s->count;
  if (!s->x) {
    s->tasks = divide_up(s->outer * s->inner, TFU_TILE);
  } else if (s->inner == 1) {
    task = reduce_lines;
    if (s->count > 2 * TASK) s->share = TASK, s->parts = divide_up(s->count, TASK);
    /* How many parts a task has changes no result; few long tasks read memory faster than many short ones. */
    const int64_t few = s->share < TASK ? TASK / (s->share ? s->share : 1) : 1;
    const int64_t dealt = s->outer * s->parts / (TASKS_PER_THREAD * tfu_threads());
    s->per_task = dealt > few ? dealt : few;
    s->tasks = divide_up(s->outer * s->parts, s->per_task);
  } else {
    task = reduce_columns;
    if (s->inner < NARROW && s->count > 1) s->joined = least(s->count, TFU_TILE / s->inner);
    const int64_t width = s->joined * s->inner, rows = divide_up(WIDE_TASK, least(width, TFU_COLUMNS)) * s->joined;
    s->strips = divide_up(width, TFU_COLUMNS);
    if (s->count > 2 * rows) s->share = rows, s->parts = divide_up(s->count, rows);
    s->tasks = s->outer * s->parts * s->strips;
  }
  s->y = last && s->parts == 1 ? y : NULL;
  if (!s->y) TFU_SCRATCH(call, s->outer * s->parts * s->inner, s->to);
  tfu_parallel(s->tasks, task, s);
  s->x = NULL;
  s->states = s->to;
  return TFU_OK;
}

static tfu_code reduce(tfu_call *call, const tfu_tensor *x, const tfu_groups *groups, int kind, const tfu_tensor *y,
                       tfu_state **states) {
  tfu_groups g = *groups;
  stage s = {.x = x,
             .outer = 1,
             .inner = 1,
             .all = 1,
             .kind = kind,
             .negated = kind == TFU_REDUCE_MIN,
             .dtype = x->dtype,
             .ties = !y};
  s.group = tfu_reduce_group(kind, x->dtype);
  if (g.n == 0) g.reduced[g.n++] = g.kept[1] = 1;
  for (int i = 0; i < g.n; i++) s.all *= g.reduced[i];
  if (s.all == 0) { /* what the results of no values are */
    for (int i = 0; i <= g.n; i++) s.outer *= g.kept[i];
    return run_stage(call, &s, y, 1);
  }
  for (int i = 0; i < g.n; i++) s.outer *= g.kept[i] * g.reduced[i];
  s.inner = g.kept[g.n];
  for (int i = g.n - 1; i >= 0; i--) {
    s.count = g.reduced[i];
    s.outer /= s.count;
    do {
      TFU_TRY(run_stage(call, &s, y, i == 0));
      s.count = s.parts;
    } while (s.parts > 1);
    s.outer /= g.kept[i];
    s.inner *= g.kept[i];
  }
  if (states) *states = s.to;
  return TFU_OK;
}

tfu_code tfu_reduce_states(tfu_call *call, const tfu_tensor *x, const tfu_groups *groups, int kind,
                           tfu_state **states) {
  return reduce(call, x, groups, kind, NULL, states);
}

tfu_code tfu_reduce_cpu(tfu_call *call) {
  const tfu_tensor *x = &call->in[0];
  unsigned reduced;
  TFU_TRY(tfu_reduce_check(call));
  TFU_TRY(tfu_reduced_axes(&x->shape, call->attr[1].i, &reduced, call->err));
  const tfu_groups groups = tfu_groups_of(&x->shape, reduced);
  return reduce(call, x, &groups, tfu_reduce_kind(call, &groups), &call->out[0], NULL);
}
