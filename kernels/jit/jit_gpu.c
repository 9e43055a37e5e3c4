/* Jit on the GPU: plans the walk of an elementwise or rows kernel, or reads the launch of a raw one, and launches what
 * compiled.h has for it. */
#include <stdlib.h>
#include <string.h>

#include "kernels/core/arithmetic.h"
#include "kernels/core/number.h"
#include "kernels/jit/compiled.h"
#include "kernels/jit/jit_args.h"

enum { THREADS = 256, WARP = 32, MOST_THREADS = 1024 };

/* How many elements of each tensor make a pack: 16 bytes of the narrowest, at most 8. One, where packs of a row, or of
 * the last axis, would not be whole, or a tensor does not begin where packs do. `moves` are the inputs that have one.
 */
static int pack_of(const tfu_lists *l, unsigned moves, int64_t cols, int per_element) {
  size_t least_size = 8;
  int n = 8;
  for (int pass = 0; pass < 2; pass++) {
    for (int i = 0; i < l->inputs + l->outputs; i++) {
      const int output = i >= l->inputs;
      const tfu_tensor *t = output ? &l->out[0].at[i - l->inputs] : &l->in[0].at[i];
      const size_t size = tfu_dtype_size(t->dtype), bytes = (size_t)n * size;
      if (output ? !per_element : !(moves >> i & 1)) continue;
      if (pass == 0 && size < least_size) least_size = size;
      if (pass == 1 && (uintptr_t)t->data % (bytes < 16 ? bytes : 16)) return 1;
    }
    n = least_size < 2 ? 8 : (int)(16 / least_size);
    if (cols % n) return 1;
  }
  return n;
}

/* Whether all results are of 16 bits. */
static int is_quick(const tfu_list *out) {
  for (int i = 0; i < out->n; i++)
    if (out->at[i].dtype != TFU_F16 && out->at[i].dtype != TFU_BF16) return 0;
  return 1;
}

/* Whether it has so many instructions that several copies of them would take long to compile (_cuda.py): the first line
 * says so. Each thread then has one element at a time, which for such a kernel is not slower: what it computes takes
 * longer than what it reads. */
static int is_large(const jit_variant *v) {
  static const char line[] = "#define JIT_LARGE";
  return !strncmp(v->source, line, sizeof line - 1);
}

static int count(unsigned bits) { return __builtin_popcount(bits); }

static tfu_code start(tfu_call *call, const jit_variant *v, int64_t blocks, jit_args *args) {
  jit_compiled *compiled = NULL;
  TFU_TRY(jit_compiled_get(v, &compiled, call->err));
  const jit_launch launch = {.grid = {blocks, 1, 1}, .block = {v->threads, 1, 1}};
  return jit_start(call, compiled, &launch, (void *[]){args});
}

static tfu_code elementwise(tfu_call *call, jit_variant *v) {
  const tfu_lists *l = call->lists;
  jit_args args;
  const jit_plan plan = jit_plan_of(l, &l->out[0].at[0].shape, 0, &args);
  const int strided = plan.axes > 1;
  v->single = (int)plan.single;
  v->moves = (int)(plan.moves & ~plan.single);
  v->axes = strided ? plan.axes : 0;
  v->small = strided && args.n <= INT32_MAX;
  v->n = is_large(v) ? 1 : pack_of(l, (unsigned)v->moves, strided ? args.size[0] : 8, 1);
  v->threads = THREADS;
  v->unroll = count((unsigned)v->moves) <= 2 && !is_large(v) ? 2 : 1;
  const int64_t packs = divide_up(args.n, v->n);
  return start(call, v, divide_up(packs, (int64_t)THREADS * v->unroll), &args);
}

/* A row stays in registers where its packs, of all inputs that have some, are at most this many of a thread. */
static void deal_out(jit_variant *v, int64_t cols) {
  const int inputs = v->moves ? count((unsigned)v->moves) : 1, room = (v->n == 1 ? 16 : 8) / inputs;
  const int most = room >= 8 ? 8 : room >= 4 ? 4 : room >= 2 ? 2 : 1, some = most < 4 ? most : 4;
  const int64_t packs = divide_up(cols, v->n);
  v->threads = THREADS;
  v->lanes = power_above(packs);
  v->packs = 1;
  if (packs <= WARP) return;
  v->lanes = WARP;
  v->packs = power_above(divide_up(packs, WARP));
  if (v->packs <= some) return;
  v->lanes = v->threads = (int)least(power_above(divide_up(packs, some)), MOST_THREADS);
  v->packs = (int)least(power_above(divide_up(packs, v->lanes)), 2 * most);
  if (v->packs > most) v->packs = 0;
}

/* An element at a time: those of a long row are read again in each pass. */
static void deal_out_large(jit_variant *v, int64_t cols) {
  v->threads = THREADS;
  v->lanes = (int)least(power_above(cols), THREADS);
  v->packs = v->lanes >= cols;
}

static tfu_code rows(tfu_call *call, jit_variant *v) {
  const tfu_lists *l = call->lists;
  jit_args args;
  const jit_plan plan = jit_plan_of(l, &l->in[0].at[0].shape, 1, &args);
  const int post = tfu_count(&l->out[0].at[0].shape) == args.n * args.cols;
  v->single = (int)(plan.single & ~plan.moves);
  v->moves = (int)plan.moves;
  v->axes = plan.axes;
  v->small = plan.axes > 1 && args.n <= INT32_MAX;
  v->n = is_large(v) ? 1 : pack_of(l, plan.moves, args.cols, post);
  v->unroll = 1;
  (is_large(v) ? deal_out_large : deal_out)(v, args.cols);
  return start(call, v, divide_up(args.n, v->threads / v->lanes), &args);
}

/* ---- raw ---- */

enum { MOST_ARGUMENTS = 32 };
typedef union argument {
  int64_t i;
  float f;
  double d;
} argument;

static tfu_code read_sizes(tfu_sizes *s, const char *what, int64_t *to, int most) {
  int n = 0;
  s->what = what;
  TFU_TRY(tfu_sizes_list(s, to, most, &n));
  TFU_REQUIRE(s->err, n > 0, "%s is missing", what);
  return TFU_OK;
}

/* "f1.5" is a number of the type that the kernel takes, anything else a whole number. */
static tfu_code read_argument(tfu_sizes *s, int bytes, argument *a) {
  while (*s->at == ' ') s->at++;
  if (*s->at != 'f') {
    TFU_TRY(tfu_sizes_expression(s, &a->i));
  } else {
    char *end;
    const double value = tfu_number(s->at + 1, &end);
    s->at = end;
    if (bytes == sizeof(double)) a->d = value;
    else a->f = (float)value;
  }
  while (*s->at == ' ' || *s->at == ',') s->at++;
  return TFU_OK;
}

static tfu_code raw(tfu_call *call, jit_variant *v) {
  const tfu_lists *l = call->lists;
  const int tensors = l->inputs + l->outputs;
  jit_compiled *compiled = NULL;
  jit_launch launch = {.grid = {1, 1, 1}, .block = {1, 1, 1}};
  tfu_sizes s = {.at = call->attr[TFU_JIT_LAUNCH].s, .in = &l->in[0], .err = call->err};
  TFU_TRY(read_sizes(&s, "grid", launch.grid, 3));
  TFU_TRY(read_sizes(&s, "block", launch.block, 3));
  TFU_TRY(read_sizes(&s, "shared", &launch.shared, 1));
  TFU_TRY(jit_compiled_get(v, &compiled, call->err));
  void *data[2 * TFU_JIT_MOST_RAW], *parameter[2 * TFU_JIT_MOST_RAW + 2 * MOST_ARGUMENTS];
  argument arguments[MOST_ARGUMENTS] = {{0}}, none = {0};
  int n = 0;
  for (int i = 0; i < tensors; i++, n++) {
    data[i] = i < l->inputs ? l->in[0].at[i].data : l->out[0].at[i - l->inputs].data;
    parameter[n] = &data[i];
  }
  s.what = "args";
  for (int i = 0; *s.at; i++, n++) {
    TFU_REQUIRE(call->err, i < MOST_ARGUMENTS, "at most %d args", MOST_ARGUMENTS);
    TFU_TRY(read_argument(&s, jit_parameter(compiled, n), &arguments[i]));
    parameter[n] = &arguments[i];
  }
  for (int i = n; i < TFU_COUNT(parameter); i++) parameter[i] = &none; /* for a driver that cannot count them */
  TFU_REQUIRE(call->err, jit_parameter(compiled, n) <= 0 && (!n || jit_parameter(compiled, n - 1) != 0),
              "kernel %s: it is given %d parameters (%d inputs, %d outputs, %d args), and takes %s", v->name, n,
              l->inputs, l->outputs, n - tensors, jit_parameter(compiled, n) > 0 ? "more" : "fewer");
  return jit_start(call, compiled, &launch, parameter);
}

tfu_code tfu_jit_gpu(tfu_call *call) {
  static tfu_code (*const kinds[])(tfu_call *, jit_variant *) = {elementwise, rows, raw};
  tfu_device device;
  jit_variant v;
  TFU_TRY(tfu_device_now(&device, call->err));
  jit_variant_of(call, device.capability, &v);
  v.quick = v.kind != TFU_JIT_RAW && is_quick(&call->lists->out[0]);
  return kinds[v.kind](call, &v);
}
