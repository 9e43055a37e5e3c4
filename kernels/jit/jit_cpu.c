/* Jit on the CPU: its program, run over blocks of elements, each step a loop over a block. A row's values are reduced
 * in lanes, then the lanes by halves: the order depends on the length of the row alone. */
#ifndef REAL
#include "ops/jit/jit.h"

#include <math.h>

#include "kernels/core/arithmetic.h"
#include "kernels/core/cpu/cpu.h"
#include "kernels/core/cpu/exp_cpu.h"
#include "kernels/jit/jit_args.h"
#include "kernels/jit/program.h"

enum { BLOCK = 256 };

typedef struct job {
  const tfu_lists *lists;
  const jit_program *program;
  jit_args args;
  jit_plan plan;
  int64_t task; /* elements, or rows, of a task */
} job;

/* Where elements at … at + n of an input lie. */
static void places(const jit_args *a, int axes, int input, int64_t at, int n, int64_t *place) {
  int64_t index[JIT_MOST_AXES], offset = 0;
  for (int i = 0; i < axes; i++) {
    index[i] = at % a->size[i];
    at /= a->size[i];
    offset += index[i] * a->stride[input][i];
  }
  for (int k = 0; k < n; k++) {
    place[k] = offset;
    for (int i = 0; i < axes; i++) {
      offset += a->stride[input][i];
      if (++index[i] < a->size[i]) break;
      offset -= a->size[i] * a->stride[input][i];
      index[i] = 0;
    }
  }
}

/* What no integer of the type is becomes the nearest, NaN becomes 0, as on the GPU. */
static int64_t to_integer(double v, int bits) {
  const double most = ldexp(1, bits - 1);
  return v != v      ? 0
         : v >= most ? (int64_t)(((uint64_t)1 << (bits - 1)) - 1)
         : v < -most ? -(int64_t)(most / 2) * 2
                     : (int64_t)v;
}

static float from_bf16(uint16_t bits) { return from_bits((uint32_t)bits << 16); }

#define TFU_SELF "kernels/jit/jit_cpu.c"
#include "kernels/core/cpu/stamp.h"

static int in_double(const tfu_list *list) {
  for (int i = 0; i < list->n; i++)
    if (list->at[i].dtype == TFU_F64) return 1;
  return 0;
}

static tfu_code run_job(tfu_call *call, job *j) {
  const tfu_lists *l = call->lists;
  const int rows = call->attr[TFU_JIT_KIND].i == TFU_JIT_ROWS;
  TFU_REQUIRE(call->err, rows ? j->program->passes : j->program->body.n, "kernel %s: its program is not one of %s",
              call->attr[TFU_JIT_KERNEL].s, rows ? "rows" : "elements");
  j->plan = jit_plan_of(l, rows ? &l->in[0].at[0].shape : &l->out[0].at[0].shape, rows, &j->args);
  const int wide = in_double(&l->in[0]) || in_double(&l->out[0]);
  j->task = rows ? divide_up(1 << 14, j->args.cols + 1) : tfu_task_size(j->args.n, BLOCK);
  tfu_parallel(divide_up(j->args.n, j->task),
               rows ? (wide ? some_rows_f64 : some_rows_f32) : (wide ? some_elements_f64 : some_elements_f32), j);
  return TFU_OK;
}

tfu_code tfu_jit_cpu(tfu_call *call) {
  const tfu_value *attr = call->attr;
  const tfu_lists *l = call->lists;
  job j = {.lists = l};
  if (attr[TFU_JIT_KIND].i == TFU_JIT_RAW)
    return tfu_fail(
        call->err, TFU_UNIMPLEMENTED,
        "kernel %s is CUDA C and needs a GPU, its inputs are on the CPU; elementwise and rows kernels run on "
        "both",
        attr[TFU_JIT_KERNEL].s);
  TFU_REQUIRE(call->err, *attr[TFU_JIT_PROGRAM].s, "kernel %s has no program for the CPU", attr[TFU_JIT_KERNEL].s);
  TFU_TRY(jit_program_of(attr[TFU_JIT_PROGRAM].s, l->inputs, l->outputs, &j.program, call->err));
  call->kernel = attr[TFU_JIT_KERNEL].s;
  call->why = "jit kernel, interpreted";
  const tfu_code code = run_job(call, &j);
  jit_program_back(j.program);
  return code;
}

#else
#define M(name) _Generic((REAL)0, float : name##f, double : name)

/* What a section sees: inputs, results of passes, what reduce joins, and where outputs go. */
typedef struct FN(frame) {
  const REAL *x[JIT_MOST_IN], *a, *b;
  REAL *y[JIT_MOST_OUT], result[JIT_MOST_PASSES], columns;
  REAL (*stack)[BLOCK], (*local)[BLOCK];
} FN(frame);

#define X(name, operands, value)                                                              \
  static void FN(step_##name)(const REAL *p, const REAL *q, const REAL *r, REAL *to, int n) { \
    (void)q, (void)r;                                                                         \
    for (int i = 0; i < n; i++) {                                                             \
      const REAL a = p[i], b = operands > 1 ? q[i] : 0, c = operands > 2 ? r[i] : 0;          \
      (void)b, (void)c;                                                                       \
      to[i] = value;                                                                          \
    }                                                                                         \
  }
JIT_FUNCTIONS(X)
#undef X

static void (*const FN(steps)[])(const REAL *, const REAL *, const REAL *, REAL *, int) = {
#define X(name, operands, value) FN(step_##name),
    JIT_FUNCTIONS(X)
#undef X
};

static const REAL *FN(fill)(REAL *to, REAL value, int n) {
  for (int i = 0; i < n; i++) to[i] = value;
  return to;
}

/* Runs a section over n elements. Its value, of one that gives one, is on the stack or in the first output. */
static const REAL *FN(run)(const jit_section *s, FN(frame) * f, int n) {
  const REAL *at[JIT_MOST_STACK + 3] = {NULL};
  int top = 0;
  for (const jit_step *step = s->step; step < s->step + s->n; step++) {
    REAL *room = top < JIT_MOST_STACK ? f->stack[top] : NULL;
    switch (step->op) {
      case JIT_CONSTANT: at[top++] = FN(fill)(room, (REAL)step->value, n); break;
      case JIT_INPUT: at[top++] = f->x[step->index]; break;
      case JIT_RESULT: at[top++] = FN(fill)(room, f->result[step->index], n); break;
      case JIT_N: at[top++] = FN(fill)(room, f->columns, n); break;
      case JIT_LOCAL: at[top++] = f->local[step->index]; break;
      case JIT_A: at[top++] = f->a; break;
      case JIT_B: at[top++] = f->b; break;
      case JIT_SET_OUTPUT: memmove(f->y[step->index], at[--top], (size_t)n * sizeof(REAL)); break;
      case JIT_SET_LOCAL: memmove(f->local[step->index], at[--top], (size_t)n * sizeof(REAL)); break;
      default:
        top -= jit_operands(step->op);
        FN(steps)[step->op](at[top], at[top + 1], at[top + 2], f->stack[top], n);
        at[top] = f->stack[top];
        top++;
    }
  }
  return top ? at[0] : f->y[0];
}

/* Elements of a tensor as REAL: those at the places, or where there are none, from `first` on. */
static const REAL *FN(load)(const tfu_tensor *x, int64_t first, const int64_t *place, int n, REAL *buffer) {
#define AT(k) (place ? place[k] : first + (k))
#define LOAD(type, convert) \
  for (int k = 0; k < n; k++) buffer[k] = (REAL)convert(((const type *)x->data)[AT(k)])
  if (!place && x->dtype == (sizeof(REAL) == 4 ? TFU_F32 : TFU_F64)) return (const REAL *)x->data + first;
  switch (x->dtype) {
    case TFU_F32: LOAD(float, ); break;
    case TFU_F64: LOAD(double, ); break;
    case TFU_F16: LOAD(_Float16, ); break;
    case TFU_BF16: LOAD(uint16_t, from_bf16); break;
    case TFU_I32: LOAD(int32_t, ); break;
    case TFU_I64: LOAD(int64_t, ); break;
    default: LOAD(uint8_t, ); break;
  }
  return buffer;
#undef LOAD
#undef AT
}

static void FN(store)(const tfu_tensor *y, int64_t first, int n, const REAL *v) {
#define STORE(type, value) \
  for (int k = 0; k < n; k++) ((type *)y->data)[first + k] = (type)(value)
  float narrow[BLOCK];
  switch (y->dtype) {
    case TFU_F64: STORE(double, v[k]); break;
    case TFU_I32: STORE(int32_t, to_integer((double)v[k], 32)); break;
    case TFU_I64: STORE(int64_t, to_integer((double)v[k], 64)); break;
    case TFU_BOOL: STORE(uint8_t, v[k] != 0); break;
    default:
      for (int k = 0; k < n; k++) narrow[k] = (float)v[k];
      tfu_store_f32(y->data, y->dtype, first, n, narrow);
  }
#undef STORE
}

static void FN(some_elements)(void *arg, int64_t task) {
  const job *j = arg;
  const tfu_list *in = &j->lists->in[0], *out = &j->lists->out[0];
  REAL stack[j->program->stack + 1][BLOCK], local[j->program->locals + 1][BLOCK], x[in->n][BLOCK], y[out->n][BLOCK];
  const int64_t end = least(j->args.n, (task + 1) * j->task);
  FN(frame) f = {.stack = stack, .local = local};
  for (int i = 0; i < out->n; i++) f.y[i] = y[i];
  for (int i = 0; i < in->n; i++) /* single numbers stay for all blocks */
    if (tfu_count(&in->at[i].shape) == 1) f.x[i] = FN(fill)(x[i], *FN(load)(&in->at[i], 0, NULL, 1, x[i]), BLOCK);
  for (int64_t at = task * j->task; at < end; at += BLOCK) {
    const int n = (int)least(BLOCK, end - at);
    for (int i = 0; i < in->n; i++) {
      int64_t place[BLOCK];
      const int64_t count = tfu_count(&in->at[i].shape);
      if (count == 1) continue;
      const int dense = count == j->args.n;
      if (!dense) places(&j->args, j->plan.axes, i, at, n, place);
      f.x[i] = FN(load)(&in->at[i], at, dense ? NULL : place, n, x[i]);
    }
    FN(run)(&j->program->body, &f, n);
    for (int i = 0; i < out->n; i++) FN(store)(&out->at[i], at, n, y[i]);
  }
}

/* Columns at … at + n of a row whose elements begin at offset[i] of input i. */
static void FN(load_columns)(const job *j, const int64_t *offset, int64_t at, int n, REAL (*x)[BLOCK], FN(frame) * f) {
  for (int i = 0; i < j->lists->inputs; i++) {
    const tfu_tensor *t = &j->lists->in[0].at[i];
    const int moves = j->plan.moves >> i & 1;
    f->x[i] = FN(load)(t, offset[i] + (moves ? at : 0), NULL, moves ? n : 1, x[i]);
    if (!moves) f->x[i] = FN(fill)(x[i], f->x[i][0], n);
  }
}

static void FN(pass)(const job *j, int pass, const int64_t *offset, REAL (*x)[BLOCK], FN(frame) * f) {
  int lanes = 1;
  while (lanes < BLOCK && lanes < j->args.cols) lanes *= 2;
  REAL sums[BLOCK];
  memcpy(sums, FN(run)(&j->program->identity[pass], f, lanes), (size_t)lanes * sizeof *sums);
  for (int64_t at = 0; at < j->args.cols; at += lanes) {
    const int n = (int)least(lanes, j->args.cols - at);
    FN(load_columns)(j, offset, at, n, x, f);
    REAL mapped[BLOCK];
    memcpy(mapped, FN(run)(&j->program->map[pass], f, n), (size_t)n * sizeof *mapped);
    f->a = sums, f->b = mapped;
    memcpy(sums, FN(run)(&j->program->reduce[pass], f, n), (size_t)n * sizeof *sums);
  }
  while (lanes > 1) {
    lanes /= 2;
    f->a = sums, f->b = sums + lanes;
    memmove(sums, FN(run)(&j->program->reduce[pass], f, lanes), (size_t)lanes * sizeof *sums);
  }
  f->result[pass] = sums[0];
}

static void FN(one_row)(const job *j, int64_t row, REAL (*x)[BLOCK], FN(frame) * f) {
  const jit_program *p = j->program;
  const tfu_list *out = &j->lists->out[0];
  int64_t offset[JIT_MOST_IN];
  for (int i = 0; i < j->lists->inputs; i++) places(&j->args, j->plan.axes, i, row, 1, &offset[i]);
  for (int pass = 0; pass < p->passes; pass++) FN(pass)(j, pass, offset, x, f);
  if (!p->post.n) {
    const REAL y = p->final.n ? FN(run)(&p->final, f, 1)[0] : f->result[p->passes - 1];
    FN(store)(&out->at[0], row, 1, &y);
    return;
  }
  for (int64_t at = 0; at < j->args.cols; at += BLOCK) {
    const int n = (int)least(BLOCK, j->args.cols - at);
    FN(load_columns)(j, offset, at, n, x, f);
    FN(run)(&p->post, f, n);
    for (int i = 0; i < out->n; i++) FN(store)(&out->at[i], row * j->args.cols + at, n, f->y[i]);
  }
}

static void FN(some_rows)(void *arg, int64_t task) {
  const job *j = arg;
  const int inputs = j->lists->inputs, outputs = j->lists->outputs;
  REAL stack[j->program->stack + 1][BLOCK], local[j->program->locals + 1][BLOCK], x[inputs][BLOCK], y[outputs][BLOCK];
  const int64_t end = least(j->args.n, (task + 1) * j->task);
  FN(frame) f = {.stack = stack, .local = local, .columns = (REAL)j->args.cols};
  for (int i = 0; i < outputs; i++) f.y[i] = y[i];
  for (int64_t row = task * j->task; row < end; row++) FN(one_row)(j, row, x, &f);
}
#undef M
#endif
