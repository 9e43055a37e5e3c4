/* samples.h - calls of any op without TensorFlow: a row says what its inputs look like, a sample is a call of it on
 * some shape, and an outcome what came of that. */
#ifndef TFUSE_TESTS_SAMPLES_H_
#define TFUSE_TESTS_SAMPLES_H_

#include "kernels/core/arithmetic.h"
#include "tests/check.h"

/* How to call an op on any shape x. Of each input, the axes, by letters (see size_of) and digits, which are sizes; ""
 * is a number, "0" an input that is not given. Then may come "+", for numbers above 0, "<" and a size, for integers
 * below it, or "^" and a size, for splits up to it. A list has "|" between the shapes of its tensors. `set` gives
 * attributes, and dtypes that are letters, other values than their defaults. What comes of nothing is a sum, and 0,
 * unless "rest" there says that more does: where x has no columns, or wherever it is empty ("any"). */
typedef struct row {
  const tfu_op *op;
  const char *in[TFU_MAX_ARGS], *set;
} row;

/* One call of a row; everything that a test may vary. */
typedef struct sample {
  const row *row;
  tfu_dtype dtype;
  tfu_shape x;
  int64_t offset; /* elements from an aligned address to each tensor */
  int in_place;   /* what may be is */
  int refused;    /* the allocation that fails, from 0 on; negative: none */
  char before;    /* what is in outputs and scratch */
} sample;

#define SAMPLE_TEXT(s) "%s %s %s %s", (s).row->op->name, (s).row->set, tfu_dtype_name((s).dtype), tfu_show(&(s).x).text

static sample sample_of(const row *w, tfu_dtype dtype, tfu_shape x) {
  return (sample){.row = w, .dtype = dtype, .x = x, .refused = -1, .before = 0x5a};
}

static int64_t size_of(const sample *s, char letter) {
  const int64_t n = tfu_rows(&s->x), c = tfu_cols(&s->x);
  switch (letter) {
    case 'n': return n;
    case 'c': return c;
    case 'w': return 2 * c;
    case 'q': return n < 67 ? n : 67;
    case 'm': return 2 * size_of(s, 'q') / 3;
    case 'd': return c < 40 ? c : 40;
    case 'e': return 2 * size_of(s, 'd');
    case 'h': return 100;
    case 't': return 16;                                                        /* rows of a tile of QuantizedLinear */
    case 'b': return 1024;                                                      /* and its bytes */
    case 's': return divide_up(n * c * (int64_t)tfu_dtype_size(s->dtype), 128); /* words of a batch norm's signs */
    default: return letter - '0';
  }
}

/* 'x' is all axes of x, 'r' all but the last. */
static tfu_shape shape_of(const sample *s, const char *text) {
  tfu_shape shape = SCALAR;
  for (; *text && !strchr("+<^|", *text); text++) {
    if (*text == 'x') shape = s->x;
    else if (*text == 'r') shape = tfu_leading(&s->x);
    else shape = tfu_append(&shape, size_of(s, *text));
  }
  return shape;
}

/* What follows "name=" in a row's settings, or NULL. */
static const char *setting(const row *w, const char *name) {
  const size_t n = strlen(name);
  for (const char *at = w->set; *at; at += strcspn(at, " "), at += strspn(at, " "))
    if (!strncmp(at, name, n) && at[n] == '=') return at + n + 1;
  return NULL;
}

/* Of an argument "x: T" or "x: N * T". */
static tfu_dtype dtype_of(const sample *s, const char *argument) {
  const char *type = strrchr(argument, ' ') + 1, *set = setting(s->row, type);
  if (!strcmp(type, "S") || (set && !strncmp(set, "real", 4))) return tfu_real(s->dtype);
  if (!strcmp(type, "float") || (set && !strncmp(set, "float", 5))) return TFU_F32;
  if (!strcmp(type, "Q") || (set && !strncmp(set, "int8", 4))) return TFU_I8;
  if (!strcmp(type, "uint8") || (set && !strncmp(set, "uint8", 5))) return TFU_U8;
  if (!strcmp(type, "bool") || (!strcmp(type, "M") && !set)) return TFU_BOOL;
  if (!strcmp(type, "int64") || (strchr("LP", *type) && !set)) return TFU_I64;
  return !strcmp(type, "int32") || (set && !strncmp(set, "int32", 5)) ? TFU_I32 : s->dtype;
}

static void set_attributes(const row *w, tfu_value *value) {
  for (int i = 0; w->op->attr[i]; i++) {
    tfu_attr a;
    CHECK(tfu_attr_parse(w->op->attr[i], &a));
    const char *equals = strrchr(w->op->attr[i], '='), *text = setting(w, a.name);
    if (!text) text = equals ? equals + 1 + strspn(equals + 1, " '") : "";
    switch (a.kind) {
      case TFU_ATTR_DTYPE:
      case TFU_ATTR_TYPES:
      case TFU_ATTR_STRING: continue;
      case TFU_ATTR_FLOAT: value[i].f = strtof(text, NULL); break;
      case TFU_ATTR_INT: value[i].i = strtoll(text, NULL, 10); break;
      case TFU_ATTR_BOOL: value[i].b = *text == 't'; break;
      case TFU_ATTR_ENUM: value[i].i = tfu_attr_enum(&a, text, strcspn(text, " '")); break;
    }
    CHECK_FOR(*text && (a.kind != TFU_ATTR_ENUM || value[i].i >= 0), "%s: %s", w->op->name, a.name);
  }
}

static void fill(const sample *s, const tfu_tensor *t, const char *text, unsigned seed) {
  if (t->dtype == TFU_C64 || t->dtype == TFU_C128) {
    fill(s, &(tfu_tensor){t->data, tfu_real(t->dtype), tfu_append(&t->shape, 2)}, text, seed);
    return;
  }
  const char *how = text + strcspn(text, "+<^|");
  const int64_t count = tfu_count(&t->shape), most = *how == '<' || *how == '^' ? size_of(s, how[1]) : 1000;
  for (int64_t at = 0; at < count; at += TFU_TILE) {
    const int n = count - at < TFU_TILE ? (int)(count - at) : TFU_TILE;
    float values[TFU_TILE];
    double wide[TFU_TILE];
    for (int i = 0; i < n; i++) {
      const unsigned drawn = (seed = seed * 1664525 + 1013904223) >> 8;
      values[i] = *how == '+' ? (float)drawn * 0x1p-25f + 0.25f : (float)drawn * 0x1p-22f - 2;
      wide[i] = values[i] * 1.000000001;
      if (t->dtype < TFU_FLOATS) continue;
      const int64_t whole = *how == '^' ? most * (at + i) / (count - 1) : most ? drawn % most : 0;
      if (t->dtype == TFU_I32) ((int32_t *)t->data)[at + i] = (int32_t)whole;
      else if (t->dtype == TFU_I64) ((int64_t *)t->data)[at + i] = whole;
      else ((uint8_t *)t->data)[at + i] = drawn >> 23;
    }
    if (t->dtype == TFU_F64) tfu_store_f64(t->data, t->dtype, at, n, wide);
    else if (t->dtype < TFU_FLOATS) tfu_store_f32(t->data, t->dtype, at, n, values);
  }
}

/* ---- runs ---- */

/* A call, and all its memory. */
typedef struct trial {
  tfu_call call;
  tfu_error err;
  const sample *sample;
  void *blocks[64];
  int n, asked; /* for scratch, so often */
} trial;

/* Without a byte to spare. A tensor without elements has no data: nobody may touch it. */
static void place(trial *t, tfu_tensor *tensor) {
  const size_t size = tfu_dtype_size(tensor->dtype);
  const int64_t count = tfu_count(&tensor->shape);
  if (count == 0) return;
  char *block = malloc((size_t)(count + t->sample->offset) * size);
  tensor->data = block + t->sample->offset * (int64_t)size;
  memset(tensor->data, t->sample->before, (size_t)count * size);
  t->blocks[t->n++] = block;
}

static void *allocate_used(tfu_call *call, size_t bytes) {
  trial *t = call->binding;
  if (t->asked++ == t->sample->refused || t->n == TFU_COUNT(t->blocks)) return NULL;
  return memset(t->blocks[t->n++] = malloc(bytes), t->sample->before, bytes);
}

/* The tensors of a list take the shapes of its text in turn. */
static void place_inputs(trial *t) {
  const tfu_op *op = t->sample->row->op;
  int n, at = 0;
  tfu_tensor *in = tfu_inputs(&t->call, &n);
  for (int i = 0; op->in[i]; i++) {
    const char *first = t->sample->row->in[i], *text = first;
    for (int left = t->call.lists ? t->call.lists->in[i].n : 1; left > 0; left--, at++) {
      in[at] = (tfu_tensor){.dtype = dtype_of(t->sample, op->in[i]), .shape = shape_of(t->sample, text)};
      place(t, &in[at]);
      fill(t->sample, &in[at], text, (unsigned)at + 1);
      text = strchr(text, '|') ? strchr(text, '|') + 1 : first;
    }
  }
}

static void place_outputs(trial *t, const tfu_shape *shapes) {
  int n, inputs;
  tfu_call *call = &t->call;
  const tfu_tensor *in = tfu_inputs(call, &inputs);
  tfu_tensor *out = tfu_outputs(call, &n);
  const int shared = !t->sample->in_place ? 0 : call->lists ? call->lists->out[0].n : 1;
  for (int i = 0; i < n; i++) {
    out[i] = (tfu_tensor){.dtype = dtype_of(t->sample, tfu_output_name(call, i)), .shape = shapes[i]};
    if (i < shared) out[i].data = in[i].data;
    else place(t, &out[i]);
  }
}

typedef struct outcome {
  tfu_code code;
  int refused;      /* an allocation */
  int64_t elements; /* of all outputs: where there are none, nothing runs */
  uint64_t hash;    /* of their bytes */
  int zero;         /* all of them */
} outcome;

/* A function for each word, with a stack of its own, would be most of the time under a sanitizer. */
static void read_outputs(trial *t, outcome *o) {
  int n;
  const tfu_tensor *out = tfu_outputs(&t->call, &n);
  for (int i = 0; i < n; i++) {
    const size_t bytes = (size_t)tfu_count(&out[i].shape) * tfu_dtype_size(out[i].dtype);
    const char *data = out[i].data;
    for (size_t at = 0; at < bytes; at += 8) {
      uint64_t word = 0;
      if (at + 8 <= bytes) memcpy(&word, data + at, 8);
      else memcpy(&word, data + at, bytes - at);
      o->hash = (o->hash ^ word) * 0x100000001b3u;
      o->hash ^= o->hash >> 29;
      o->zero &= word == 0;
    }
  }
}

static outcome run_sample(const sample *s) {
  trial t = {.sample = s};
  t.call = (tfu_call){.op = s->row->op, .err = &t.err, .allocate = allocate_used, .binding = &t};
  tfu_lists lists;
  tfu_shape shapes[TFU_MAX_ARGS];
  outcome o = {.hash = 0xcbf29ce484222325u, .zero = 1};
  set_attributes(s->row, t.call.attr);
  CHECK(tfu_lists_open(&t.call, &lists) == TFU_OK);
  place_inputs(&t);
  o.code = tfu_infer(&t.call, shapes, &o.elements);
  if (o.code == TFU_OK) place_outputs(&t, t.call.lists ? t.call.lists->shapes : shapes);
  if (o.code == TFU_OK && o.elements > 0) o.code = tfu_execute(&t.call, "test", 0);
  if (o.code == TFU_OK) read_outputs(&t, &o);
  o.refused = s->refused >= 0 && t.asked > s->refused;
  const int said = o.refused && o.code == TFU_EXHAUSTED && strstr(t.err.text, "out of memory allocating");
  CHECK_FOR(o.code == TFU_OK || said, "%s: %s", s->row->op->name, t.err.text);
  while (t.n > 0) free(t.blocks[--t.n]);
  tfu_lists_close(&t.call);
  return o;
}

static int same(const outcome *a, const outcome *b) {
  return a->code == TFU_OK && b->code == TFU_OK && a->elements == b->elements && a->hash == b->hash;
}

#endif
