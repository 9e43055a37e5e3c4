/* attr.c - reads a row's attributes, which are in TensorFlow's own notation. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bind.h"
#include "kernels/core/number.h"

static const struct {
  const char *word;
  tfu_attr_kind kind;
} kinds[] = {{"float", TFU_ATTR_FLOAT},
             {"int", TFU_ATTR_INT},
             {"bool", TFU_ATTR_BOOL},
             {"string", TFU_ATTR_STRING},
             {"list", TFU_ATTR_TYPES}};

int tfu_attr_parse(const char *text, tfu_attr *attr) {
  int at = 0;
  char word[16] = "";
  *attr = (tfu_attr){.choices = NULL};
  if (sscanf(text, " %31[^: ] : %n", attr->name, &at) != 1 || !at) return 0;
  if (text[at] == '{') {
    attr->kind = strchr(text + at, '\'') ? TFU_ATTR_ENUM : TFU_ATTR_DTYPE;
    attr->choices = text + at;
    return 1;
  }
  sscanf(text + at, "%15[a-z]", word);
  for (int i = 0; i < TFU_COUNT(kinds); i++)
    if (!strcmp(word, kinds[i].word)) return attr->kind = kinds[i].kind, 1;
  return 0;
}

int tfu_attr_enum(const tfu_attr *attr, const char *word, size_t length) {
  const char *end = strchr(attr->choices, '}');
  int index = 0;
  for (const char *open = strchr(attr->choices, '\''); open && open < end; index++) {
    const char *close = strchr(open + 1, '\'');
    if (!close) return -1;
    if ((size_t)(close - open - 1) == length && !memcmp(open + 1, word, length)) return index;
    open = strchr(close + 1, '\'');
  }
  return -1;
}

tfu_code tfu_attr_word(const tfu_attr *a, const char *word, size_t length, tfu_value *v, tfu_error *err) {
  if (a->kind == TFU_ATTR_STRING)
    return (v->s = tfu_intern(word, length)) ? TFU_OK : tfu_fail(err, TFU_EXHAUSTED, "out of host memory");
  v->i = tfu_attr_enum(a, word, length);
  TFU_REQUIRE(err, v->i >= 0, "attribute %s must be one of %s, got '%.*s'", a->name, a->choices, (int)length, word);
  return TFU_OK;
}

tfu_code tfu_attr_text(const tfu_attr *a, const char *text, size_t length, tfu_value *v, tfu_error *err) {
  if (a->kind == TFU_ATTR_ENUM || a->kind == TFU_ATTR_STRING) return tfu_attr_word(a, text, length, v, err);
  if (a->kind == TFU_ATTR_FLOAT) v->f = (float)tfu_number(text, NULL);
  else if (a->kind == TFU_ATTR_BOOL) v->b = atoi(text);
  else v->i = strtoll(text, NULL, 10);
  return TFU_OK;
}

tfu_code tfu_attrs_read(const tfu_op *op, tfu_attr_reader *read, void *from, tfu_value *values, tfu_error *err) {
  for (int i = 0; op->attr[i]; i++) {
    tfu_attr a;
    if (tfu_attr_parse(op->attr[i], &a) && a.kind != TFU_ATTR_DTYPE) TFU_TRY(read(&a, from, &values[i], err));
  }
  return TFU_OK;
}

void tfu_attrs_drop(const tfu_op *op, const tfu_value *attr) {
  for (int i = 0; op->attr[i]; i++) { /* after every run inside XLA: tfu_attr_parse would take some microseconds */
    const char *kind = strchr(op->attr[i], ':');
    if (kind && !strncmp(kind + 1 + strspn(kind + 1, " "), "string", strlen("string"))) tfu_drop_text(attr[i].s);
  }
}
