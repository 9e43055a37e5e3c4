/* chain_parse.c - reads the text of a chain: chain.h has an example. */
#include <ctype.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "chain.h"

#pragma weak tfu_find /* C tests have rows, and nothing that registers them */

static const char *skip(const char *at) { return at + strspn(at, " "); }

/* Whether the next word is this one; then `at` moves after it. */
static int is_next(const char **at, char mark) {
  const char *c = skip(*at);
  if (*c != mark) return 0;
  *at = c + 1;
  return 1;
}

static tfu_code read_operand(const char **at, tfu_operand *operand, tfu_error *err) {
  const char *c = skip(*at);
  char *end;
  *operand = (tfu_operand){.kind = TFU_NOT_GIVEN};
  if (*c == '-') return *at = c + 1, TFU_OK;
  TFU_REQUIRE(err, (*c == 'i' || *c == 't') && isdigit((unsigned char)c[1]),
              "expected i and a number, t and a number, or -, got \"%.20s\"", c);
  operand->kind = *c == 'i' ? TFU_INPUT : TFU_TEMPORARY;
  const long number = strtol(c + 1, &end, 10), most = *c == 'i' ? INT_MAX : TFU_CHAIN_TEMPS - 1;
  TFU_REQUIRE(err, number <= most, "there is nothing beyond %c%ld, got \"%.20s\"", *c, most, c);
  operand->number = (int)number;
  if (*end == ':') {
    operand->seen = 1;
    for (tfu_shape *s = &operand->shape; *end == ':' || *end == 'x';) {
      TFU_REQUIRE(err, s->rank < TFU_MAX_RANK && isdigit((unsigned char)end[1]), "no shape: \"%.20s\"", c);
      s->dim[s->rank++] = strtoll(end + 1, &end, 10);
    }
  }
  return *at = end, TFU_OK;
}

static tfu_code read_operands(const char **at, const char *const *declared, tfu_operand *operand, tfu_error *err) {
  for (int i = 0; declared[i]; i++) TFU_TRY(read_operand(at, &operand[i], err));
  return TFU_OK;
}

/* The attribute's value in "a=1 b=2" up to the line's end; NULL: it has none there. */
static const char *value_in(const char *line, const char *name, size_t *length) {
  const size_t n = strlen(name);
  for (const char *c = skip(line); *c && *c != '\n'; c = skip(c + strcspn(c, " \n")))
    if (!strncmp(c, name, n) && c[n] == '=') return *length = strcspn(c + n + 1, " \n"), c + n + 1;
  return NULL;
}

static tfu_code read_attribute(const tfu_attr *a, void *line, tfu_value *value, tfu_error *err) {
  size_t length;
  const char *text = value_in(line, a->name, &length);
  TFU_REQUIRE(err, text, "attribute %s is missing", a->name);
  return tfu_attr_text(a, text, length, value, err);
}

static tfu_code read_line(const char *at, tfu_step *step, tfu_error *err) {
  char stem[64];
  const size_t n = strcspn(at, " \n");
  TFU_REQUIRE(err, n > 0 && n < sizeof stem, "no op: \"%.20s\"", at);
  memcpy(stem, at, n);
  stem[n] = 0;
  const tfu_entry *entry = tfu_find(stem);
  TFU_REQUIRE(err, entry && entry->op->shape, "there is no op %s that a chain can have", stem);
  step->op = entry->op;
  at += n;
  TFU_TRY(read_operands(&at, step->op->out, step->out, err));
  TFU_REQUIRE(err, is_next(&at, '='), "%s has %d outputs: expected = after them, got \"%.20s\"", stem,
              tfu_args(step->op->out), skip(at));
  TFU_TRY(read_operands(&at, step->op->in, step->in, err));
  const int end = is_next(&at, '|');
  TFU_REQUIRE(err, end || !*skip(at) || *skip(at) == '\n', "%s has %d inputs: expected | after them, got \"%.20s\"",
              stem, tfu_args(step->op->in), skip(at));
  return tfu_attrs_read(step->op, read_attribute, (void *)(uintptr_t)at, step->attr, err);
}

/* Whether one of the first n steps writes an input of the chain. */
static int is_written(const tfu_chain_steps *steps, int n, int input) {
  for (int i = 0; i < n; i++)
    for (int o = 0; steps->step[i].op->out[o]; o++)
      if (steps->step[i].out[o].kind == TFU_INPUT && steps->step[i].out[o].number == input) return 1;
  return 0;
}

static void find_constants(tfu_chain_steps *steps) {
  for (int i = 0; i < steps->n; i++)
    for (int a = 0; steps->step[i].op->in[a]; a++) {
      const tfu_operand *in = &steps->step[i].in[a];
      if (in->kind == TFU_INPUT && !is_written(steps, i, in->number)) steps->step[i].constant |= 1u << a;
    }
}

tfu_code tfu_chain_parse(const char *text, tfu_chain_steps *steps, tfu_error *err) {
  static const char invariant[] = "invariant\n";
  static uint64_t parsed;
  int lines = 1;
  for (const char *c = text; *c; c++) lines += *c == '\n';
  *steps = (tfu_chain_steps){.step = calloc((size_t)lines, sizeof *steps->step),
                             .serial = __atomic_add_fetch(&parsed, 1, __ATOMIC_RELAXED)};
  if (!steps->step) return tfu_fail(err, TFU_EXHAUSTED, "out of host memory");
  steps->invariant = !strncmp(text, invariant, strlen(invariant));
  for (const char *line = text + (steps->invariant ? strlen(invariant) : 0); *line; line += *line == '\n') {
    if (*line != '\n') {
      const tfu_code code = read_line(line, &steps->step[steps->n], err);
      steps->n++; /* also of one that failed: its attributes are dropped with the others */
      TFU_TRY(code);
    }
    line += strcspn(line, "\n");
  }
  find_constants(steps);
  return TFU_OK;
}

void tfu_chain_free(tfu_chain_steps *steps) {
  for (int i = 0; i < steps->n; i++)
    if (steps->step[i].op) tfu_attrs_drop(steps->step[i].op, steps->step[i].attr);
  free(steps->step);
  *steps = (tfu_chain_steps){.step = NULL};
}
