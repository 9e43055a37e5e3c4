/* attr.c - reads a row's attributes, which are in TensorFlow's own notation. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bind.h"

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
    attr->kind = strchr(text + at, '\'') ? TFU_ATTR_CHOICE : TFU_ATTR_DTYPE;
    attr->choices = text + at;
    return 1;
  }
  sscanf(text + at, "%15[a-z]", word);
  for (int i = 0; i < TFU_COUNT(kinds); i++)
    if (!strcmp(word, kinds[i].word)) return attr->kind = kinds[i].kind, 1;
  return 0;
}

int tfu_attr_choice(const tfu_attr *attr, const char *word, size_t length) {
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

tfu_value tfu_attr_value(const tfu_attr *a, const char *text) {
  switch (a->kind) {
    case TFU_ATTR_FLOAT: return (tfu_value){.f = strtof(text, NULL)};
    case TFU_ATTR_CHOICE: return (tfu_value){.i = tfu_attr_choice(a, text, strlen(text))};
    case TFU_ATTR_STRING: return (tfu_value){.s = tfu_intern(text, strlen(text))};
    case TFU_ATTR_BOOL: return (tfu_value){.b = atoi(text)};
    default: return (tfu_value){.i = strtoll(text, NULL, 10)};
  }
}

void tfu_attrs_drop(const tfu_op *op, const tfu_value *attr) {
  for (int i = 0; op->attr[i]; i++) { /* after every run inside XLA: tfu_attr_parse would take some microseconds */
    const char *kind = strchr(op->attr[i], ':');
    if (kind && !strncmp(kind + 1 + strspn(kind + 1, " "), "string", strlen("string"))) tfu_drop_text(attr[i].s);
  }
}
