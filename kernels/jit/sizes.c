/* sizes.c - sizes as text: shapes of results and launches of jit kernels. */
#include <ctype.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "ops/jit/jit.h"

static char next(tfu_sizes *s) {
  while (*s->at == ' ' || *s->at == '\n' || *s->at == '\t') s->at++;
  return *s->at;
}

static tfu_code refuse(tfu_sizes *s, const char *wanted) {
  return tfu_fail(s->err, TFU_INVALID, "%s: wants %s at \"%.40s\"", s->what, wanted, s->at);
}

static tfu_code read_number(tfu_sizes *s, int64_t *value) {
  *value = 0;
  if (!isdigit((unsigned char)next(s))) return refuse(s, "a number, INPUT.AXIS or (");
  for (; isdigit((unsigned char)*s->at); s->at++)
    if (__builtin_mul_overflow(*value, 10, value) || __builtin_add_overflow(*value, *s->at - '0', value))
      return refuse(s, "a smaller number");
  return TFU_OK;
}

static tfu_code input(tfu_sizes *s, int64_t number, const tfu_shape **shape) {
  TFU_REQUIRE(s->err, number < s->in->n, "%s: input %" PRId64 " is named, there are %d, counted from 0", s->what,
              number, s->in->n);
  *shape = &s->in->at[number].shape;
  return TFU_OK;
}

/* What follows the point of "1.2". */
static tfu_code size_of(tfu_sizes *s, int64_t number, int64_t *value) {
  const tfu_shape *shape = NULL;
  int64_t axis;
  TFU_TRY(input(s, number, &shape));
  if (*s->at == 'n') {
    s->at++;
    *value = tfu_count(shape);
    return TFU_OK;
  }
  const int from_end = *s->at == '-';
  s->at += from_end;
  TFU_TRY(read_number(s, &axis));
  const int64_t at = from_end ? shape->rank - axis : axis;
  TFU_REQUIRE(s->err, at >= 0 && at < shape->rank, "%s: axis %s%" PRId64 " of input %" PRId64 " is named, which is %s",
              s->what, from_end ? "-" : "", axis, number, tfu_show(shape).text);
  *value = shape->dim[at];
  return TFU_OK;
}

static tfu_code factor(tfu_sizes *s, int64_t *value);

/* What stands behind a sign or an opening parenthesis, of which all around are in our stack. */
static tfu_code nested(tfu_sizes *s, int64_t *value) {
  if (*s->at++ == '-') {
    TFU_TRY(factor(s, value));
    if (__builtin_sub_overflow(0, *value, value)) return refuse(s, "a smaller number before");
    return TFU_OK;
  }
  TFU_TRY(tfu_sizes_expression(s, value));
  if (next(s) != ')') return refuse(s, ")");
  s->at++;
  return TFU_OK;
}

static tfu_code factor(tfu_sizes *s, int64_t *value) {
  if (next(s) == '-' || *s->at == '(') {
    TFU_REQUIRE(s->err, s->depth < TFU_JIT_DEEPEST,
                "%s: signs and parentheses may nest %d deep, and do so deeper at \"%.40s\"", s->what, TFU_JIT_DEEPEST,
                s->at);
    s->depth++;
    TFU_TRY(nested(s, value));
    s->depth--;
    return TFU_OK;
  }
  TFU_TRY(read_number(s, value));
  if (*s->at != '.') return TFU_OK;
  s->at++;
  return size_of(s, *value, value);
}

static tfu_code term(tfu_sizes *s, int64_t *value) {
  TFU_TRY(factor(s, value));
  while (next(s) && strchr("*/%", *s->at)) {
    const char operation = *s->at++;
    int64_t by;
    TFU_TRY(factor(s, &by));
    TFU_REQUIRE(s->err, operation == '*' || by > 0, "%s: division by %" PRId64, s->what, by);
    if (operation == '/') *value /= by;
    else if (operation == '%') *value %= by;
    else if (__builtin_mul_overflow(*value, by, value)) return refuse(s, "a smaller product before");
  }
  return TFU_OK;
}

tfu_code tfu_sizes_expression(tfu_sizes *s, int64_t *value) {
  TFU_TRY(term(s, value));
  while (next(s) == '+' || *s->at == '-') {
    const char sign = *s->at++;
    int64_t by;
    TFU_TRY(term(s, &by));
    if (sign == '+' ? __builtin_add_overflow(*value, by, value) : __builtin_sub_overflow(*value, by, value))
      return refuse(s, "a smaller sum before");
  }
  return TFU_OK;
}

static tfu_code like(tfu_sizes *s, int64_t *values, int most, int *n) {
  const tfu_shape *shape = NULL;
  int64_t number;
  s->at += strlen("like");
  TFU_TRY(read_number(s, &number));
  TFU_TRY(input(s, number, &shape));
  for (int i = 0; i < shape->rank && *n < most; i++) values[(*n)++] = shape->dim[i];
  return TFU_OK;
}

tfu_code tfu_sizes_list(tfu_sizes *s, int64_t *values, int most, int *n) {
  *n = 0;
  while (next(s) && *s->at != ';') {
    TFU_REQUIRE(s->err, *n < most, "%s: at most %d sizes", s->what, most);
    if (!strncmp(s->at, "like", strlen("like"))) TFU_TRY(like(s, values, most, n));
    else TFU_TRY(tfu_sizes_expression(s, &values[(*n)++]));
    if (next(s) == ',') s->at++;
    else if (*s->at && *s->at != ';') return refuse(s, "a comma");
  }
  if (*s->at) s->at++;
  return TFU_OK;
}

const char *tfu_jit_size(const char *text, int64_t *value) {
  static _Thread_local tfu_error err;
  const tfu_list none = {NULL, 0};
  tfu_sizes s = {.at = text, .what = "size", .in = &none, .err = &err};
  tfu_code code = tfu_sizes_expression(&s, value);
  if (code == TFU_OK && next(&s)) code = refuse(&s, "an operator");
  return code == TFU_OK ? "" : err.text;
}
