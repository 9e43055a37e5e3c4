/* chain.c - runs a chain (chain.h). */
#include "chain.h"

#include <string.h>

#include "kernels/core/gpu/cuda.h"
#include "kernels/core/gpu/replay.h"
#include "kernels/core/table.h"

enum { TEXT, TIMES }; /* attributes */
enum { ALIGN = 256 }; /* of what lies in the memory */

static size_t aligned(size_t bytes) { return (bytes + ALIGN - 1) / ALIGN * ALIGN; }
static size_t bytes_of(const tfu_tensor *t) { return (size_t)tfu_count(&t->shape) * tfu_dtype_size(t->dtype); }

/* ---- types ---- */

static const char *type_in(const char *argument) {
  const char *type = strchr(argument, ':') + 1;
  return type + strspn(type, " ");
}

/* The type of an argument of a row: its own, or that of another input which is declared alike, or of the first. */
static tfu_dtype declared_type(const tfu_op *op, const char *argument, const tfu_tensor *in) {
  static const struct {
    const char *word;
    tfu_dtype dtype;
  } fixed[] = {{"float", TFU_F32}, {"half", TFU_F16},  {"bfloat16", TFU_BF16}, {"double", TFU_F64},
               {"int32", TFU_I32}, {"int64", TFU_I64}, {"bool", TFU_BOOL},     {"uint8", TFU_U8}};
  const char *type = type_in(argument);
  for (int i = 0; i < TFU_COUNT(fixed); i++)
    if (!strcmp(type, fixed[i].word)) return fixed[i].dtype;
  if (!strcmp(type, "S")) return tfu_real(in[0].dtype);
  for (int i = 0; op->in[i]; i++)
    if (op->in[i] != argument && !strcmp(type_in(op->in[i]), type) && in[i].shape.rank >= 0) return in[i].dtype;
  return in[0].dtype;
}

/* ---- one run ---- */

/* The tensors of a run; in a rehearsal, which only asks for sizes, nothing has memory. */
typedef struct chain {
  const tfu_chain_steps *steps;
  const tfu_tensor *inputs;
  int n; /* inputs */
  int rehearsal, gpu;
  tfu_tensor temps[TFU_CHAIN_TEMPS];
  size_t temp_bytes[TFU_CHAIN_TEMPS], room; /* the largest of each, and of scratch */
  char *scratch;
} chain;

static tfu_code find(chain *s, const tfu_operand *operand, tfu_tensor *t, tfu_error *err) {
  const int temp = operand->kind == TFU_TEMPORARY;
  TFU_REQUIRE(err, temp || operand->number < s->n, "there are %d inputs, got i%d", s->n, operand->number);
  *t = temp ? s->temps[operand->number] : s->inputs[operand->number];
  TFU_REQUIRE(err, !temp || t->shape.rank >= 0, "t%d is read before it is written", operand->number);
  if (!operand->seen) return TFU_OK;
  TFU_REQUIRE(err, tfu_count(&operand->shape) == tfu_count(&t->shape), "%c%d of shape %s cannot be seen as %s",
              temp ? 't' : 'i', operand->number, tfu_show(&t->shape).text, tfu_show(&operand->shape).text);
  t->shape = operand->shape;
  return TFU_OK;
}

static tfu_code take(chain *s, const tfu_step *step, tfu_call *call) {
  for (int i = 0; step->op->in[i]; i++) {
    call->in[i] = (tfu_tensor){.shape.rank = TFU_UNKNOWN};
    if (step->in[i].kind != TFU_NOT_GIVEN) TFU_TRY(find(s, &step->in[i], &call->in[i], call->err));
  }
  for (int i = 0; step->op->in[i]; i++)
    if (step->in[i].kind == TFU_NOT_GIVEN)
      call->in[i] = (tfu_tensor){.dtype = declared_type(step->op, step->op->in[i], call->in), .shape = {.rank = 1}};
  return TFU_OK;
}

static tfu_code give(chain *s, const tfu_step *step, tfu_call *call, const tfu_shape *shapes) {
  for (int i = 0; step->op->out[i]; i++) {
    const tfu_operand *to = &step->out[i];
    tfu_tensor t = {.dtype = declared_type(step->op, step->op->out[i], call->in), .shape = shapes[i]};
    TFU_REQUIRE(call->err, to->kind != TFU_NOT_GIVEN || !tfu_count(&t.shape), "output %s of shape %s must be kept",
                step->op->out[i], tfu_show(&t.shape).text);
    if (to->kind == TFU_INPUT) {
      tfu_tensor there;
      TFU_TRY(find(s, &(tfu_operand){.kind = TFU_INPUT, .number = to->number}, &there, call->err));
      TFU_REQUIRE(call->err, there.dtype == t.dtype && tfu_count(&there.shape) == tfu_count(&t.shape),
                  "output %s is %s%s, and i%d, which it is written to, is %s%s", step->op->out[i],
                  tfu_dtype_name(t.dtype), tfu_show(&t.shape).text, to->number, tfu_dtype_name(there.dtype),
                  tfu_show(&there.shape).text);
      t.data = there.data;
    } else if (to->kind == TFU_TEMPORARY) {
      if (s->rehearsal && bytes_of(&t) > s->temp_bytes[to->number]) s->temp_bytes[to->number] = bytes_of(&t);
      t.data = s->temps[to->number].data;
      s->temps[to->number] = t;
    }
    call->out[i] = t;
  }
  return TFU_OK;
}

/* What an op has for scratch: the end of the memory, anew with each op, as they run one after the other. Trials, which
 * a captured call does not make, may want more: that is the caller's. */
typedef struct scratch {
  char *memory;
  tfu_call *all;
} scratch;

static void *allocate(tfu_call *call, size_t bytes) {
  scratch *s = call->binding;
  if (aligned(bytes) > call->room) return call->captured ? NULL : s->all->allocate(s->all, bytes);
  char *memory = s->memory;
  s->memory += aligned(bytes);
  call->room -= aligned(bytes);
  return memory;
}

static tfu_code run_step(chain *s, const tfu_step *step, tfu_call *all) {
  tfu_shape shapes[TFU_MAX_ARGS];
  int64_t elements;
  scratch mine = {.memory = s->scratch, .all = all};
  tfu_call call = {.op = step->op,
                   .stream = all->stream,
                   .err = all->err,
                   .captured = all->captured,
                   .constant = all->captured ? step->constant : 0,
                   .invariant = s->steps->invariant,
                   .allocate = allocate,
                   .binding = &mine};
  memcpy(call.attr, step->attr, sizeof call.attr);
  TFU_TRY(take(s, step, &call));
  TFU_TRY(tfu_infer(&call, shapes, &elements));
  TFU_TRY(give(s, step, &call, shapes));
  const size_t room = step->op->room + (step->op->more_room ? step->op->more_room(&call) : 0);
  if (s->rehearsal && room > s->room) s->room = room;
  if (s->rehearsal || !elements) return TFU_OK;
  call.room = s->room;
  return tfu_execute(&call, "chain", s->gpu);
}

static tfu_code run_steps(tfu_call *call, void *with) {
  chain *s = with;
  for (int i = 0; i < TFU_CHAIN_TEMPS; i++) s->temps[i].shape.rank = TFU_UNKNOWN;
  for (int i = 0; i < s->steps->n; i++) {
    tfu_error err = {.text = ""};
    tfu_call one = *call;
    one.err = &err;
    const tfu_code code = run_step(s, &s->steps->step[i], &one);
    if (code != TFU_OK) return tfu_fail(call->err, code, "op %d, %s: %s", i, s->steps->step[i].op->name, err.text);
  }
  return TFU_OK;
}

/* ---- the op ---- */

static tfu_code parse(const void *key, void *value, void *with, tfu_error *err) {
  (void)key;
  const tfu_code code = tfu_chain_parse(with, value, err);
  if (code != TFU_OK) tfu_chain_free(value);
  return code;
}

static void drop(void *value) { tfu_chain_free(value); }

/* The rehearsal: how large the memory must be. */
static tfu_code rehearse(chain *s, tfu_call *call, size_t *bytes) {
  s->rehearsal = 1;
  TFU_TRY(run_steps(call, s));
  s->rehearsal = 0;
  *bytes = aligned(s->room);
  for (int i = 0; i < TFU_CHAIN_TEMPS; i++) *bytes += aligned(s->temp_bytes[i]);
  return TFU_OK;
}

static tfu_table texts = TFU_TABLE(.value = sizeof(tfu_chain_steps), .most = 64, .make = parse, .release = drop);

static tfu_code place(chain *s, tfu_call *call) {
  size_t bytes;
  const tfu_tensor *memory = &s->inputs[0];
  TFU_TRY(rehearse(s, call, &bytes));
  TFU_REQUIRE(call->err, bytes_of(memory) >= bytes, "the memory has %zu bytes, and %zu are wanted", bytes_of(memory),
              bytes);
  char *at = memory->data;
  for (int i = 0; i < TFU_CHAIN_TEMPS; at += aligned(s->temp_bytes[i++])) s->temps[i].data = at;
  s->scratch = at;
  return TFU_OK;
}

static tfu_code on_cpu(chain *s, tfu_call *call, int64_t times) {
  for (int64_t i = 0; i < times; i++) TFU_TRY(run_steps(call, s));
  return TFU_OK;
}

/* A number for each dtype and shape: of two that differ, sizes that memory can hold do not make up for such a factor.
 */
static uint64_t kind_of(const tfu_tensor *t) {
  uint64_t kind = (uint64_t)t->dtype * (TFU_MAX_RANK + 1) + (uint64_t)t->shape.rank;
  for (int i = 0; i < t->shape.rank; i++) kind = kind * 0x9e3779b97f4a7c15u + (uint64_t)t->shape.dim[i];
  return kind;
}

/* The steps, and of all inputs where they lie, their dtypes and their shapes: the work depends on nothing else. */
static tfu_code on_gpu(chain *s, tfu_call *call, int64_t times) {
  enum { MOST = 4096 }; /* inputs; a decoder has 11 to 18 for each of its layers */
  uint64_t key[1 + 2 * MOST];
  size_t n = 0;
  TFU_REQUIRE(call->err, s->n <= MOST, "a chain has at most %d inputs, got %d", MOST, s->n);
  key[n++] = s->steps->serial;
  for (int i = 0; i < s->n; i++) {
    key[n++] = (uintptr_t)s->inputs[i].data;
    key[n++] = kind_of(&s->inputs[i]);
  }
  return tfu_replay(call, key, n * sizeof *key, times, run_steps, s);
}

static tfu_code run(tfu_call *call, int gpu) {
  void *steps;
  const char *text = call->attr[TEXT].s;
  const int64_t times = call->attr[TIMES].i;
  TFU_TRY(tfu_table_get(&texts, text, strlen(text) + 1, (void *)(uintptr_t)text, &steps, call->err));
  chain s = {.steps = steps, .inputs = call->lists->in[0].at, .n = call->lists->in[0].n, .gpu = gpu};
  tfu_code code = place(&s, call);
  if (code == TFU_OK) code = gpu ? on_gpu(&s, call, times) : on_cpu(&s, call, times);
  tfu_table_put(&texts, steps, NULL); /* what is queued has copies of all that it needs */
  return code;
}

tfu_code tfu_chain_cpu(tfu_call *call) {
  TFU_TRY(run(call, 0));
  *(float *)call->lists->out[0].at->data = 0;
  return TFU_OK;
}

tfu_code tfu_chain_gpu(tfu_call *call) {
  TFU_TRY(run(call, 1));
  return tfu_clear(call, call->lists->out[0].at->data, sizeof(float));
}

static tfu_code rule(tfu_lists *l, const tfu_value *attr, tfu_error *err) {
  TFU_REQUIRE(err, l->in[0].at->dtype == TFU_U8, "the first input must be the memory, of uint8, got %s",
              tfu_dtype_name(l->in[0].at->dtype));
  TFU_REQUIRE(err, attr[TIMES].i >= 0, "times must be at least 0, got %lld", (long long)attr[TIMES].i);
  l->shapes[0] = (tfu_shape){.rank = 0};
  return TFU_OK;
}

const tfu_op tfu_chain = {
    .name = "Chain",
    .doc = "Runs ops one after the other, `times` times over; what they write in place is their result.",
    .in = {"x: In"},
    .out = {"done: float"},
    .attr = {[TEXT] = "text: string", [TIMES] = "times: int = 1", "In: list(type)"},
    .lists = rule,
    TFU_KERNELS(chain),
    .stateful = 1,
};

tfu_code tfu_chain_room(const char *text, const tfu_tensor *inputs, int n, size_t *bytes, tfu_error *err) {
  tfu_chain_steps steps;
  tfu_call call = {.op = &tfu_chain, .err = err};
  tfu_code code = tfu_chain_parse(text, &steps, err);
  chain s = {.steps = &steps, .inputs = inputs, .n = n};
  if (code == TFU_OK) code = rehearse(&s, &call, bytes);
  tfu_chain_free(&steps);
  return code;
}
