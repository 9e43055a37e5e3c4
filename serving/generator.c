#include "serving/generator.h"

#include <stdio.h>
#include <string.h>

int tfu_generator_is(const tfu_signature *s, int n) {
  int found = 0;
  for (int i = 0; i < n; i++) found |= !strcmp(s[i].name, "about") ? 1 : !strncmp(s[i].name, "decode_", 7) ? 2 : 0;
  return found == 3;
}

/* Runs a signature, whose only output is of int64 and goes to `out`. Inputs are in the order of their names. */
static tfu_code run(tfu_model *model, const char *name, const tfu_array *in, int n, int64_t *out, int64_t elements,
                    tfu_error *err) {
  tfu_array y;
  const tfu_signature *s = tfu_model_signature(model, name);
  TFU_REQUIRE(err, s && s->inputs == n && s->outputs == 1, "the model's signature %s is not that of a generation",
              name);
  TFU_TRY(tfu_model_run(model, s, in, &y, err));
  const int right = !out || (y.dtype == TFU_TF_INT64 && tfu_count(&y.shape) == elements);
  if (out && right) memcpy(out, y.data, (size_t)elements * sizeof *out);
  tfu_array_free(&y);
  TFU_REQUIRE(err, right, "the model's signature %s does not give %lld numbers", name, (long long)elements);
  return TFU_OK;
}

static tfu_array array(int dtype, const void *data, int64_t rows, int64_t columns) {
  return (tfu_array){.dtype = dtype, .shape = {2, {rows, columns}}, .data = (void *)data};
}

/* Pages of a row. The table of any signature says it. */
static int64_t columns(tfu_model *model, const char *name) {
  const tfu_signature *s = tfu_model_signature(model, name);
  for (int i = 0; s && i < s->inputs; i++)
    if (!strcmp(s->input[i].name, "table")) return s->input[i].shape.dim[1];
  return 0;
}

static tfu_code read_words(void *model, int chunk, const int64_t *ints, const int64_t *table, int64_t length,
                           tfu_error *err) {
  char name[32];
  snprintf(name, sizeof name, "read_%d", chunk);
  const tfu_array in[] = {array(TFU_TF_INT64, ints, TFU_READ_INTS, chunk),
                          {.dtype = TFU_TF_INT64, .shape = {1, {1}}, .data = &length},
                          array(TFU_TF_INT64, table, 1, columns(model, name))};
  return run(model, name, in, TFU_COUNT(in), NULL, 0, err);
}

static tfu_code decode(void *model, int rows, int times, const int64_t *ints, const float *floats, const int64_t *table,
                       int64_t *tokens, tfu_error *err) {
  char name[32];
  snprintf(name, sizeof name, "decode_%d_%d", rows, times);
  const tfu_array in[] = {array(TFU_TF_FLOAT, floats, TFU_ROW_FLOATS, rows),
                          array(TFU_TF_INT64, ints, TFU_ROW_INTS, rows),
                          array(TFU_TF_INT64, table, rows, columns(model, name))};
  return run(model, name, in, TFU_COUNT(in), tokens, (int64_t)rows * times, err);
}

/* Keeps sizes in ascending order, each once. */
static tfu_code insert(int *sizes, int size, tfu_error *err) {
  int i = 0;
  while (i < TFU_MOST_SIZES && sizes[i] && sizes[i] < size) i++;
  if (i < TFU_MOST_SIZES && sizes[i] == size) return TFU_OK;
  TFU_REQUIRE(err, size > 0 && i < TFU_MOST_SIZES && !sizes[TFU_MOST_SIZES - 1],
              "the model has too many sizes of steps");
  memmove(sizes + i + 1, sizes + i, (size_t)(TFU_MOST_SIZES - 1 - i) * sizeof *sizes);
  sizes[i] = size;
  return TFU_OK;
}

tfu_code tfu_generator_steps(tfu_model *model, int64_t *pages, tfu_steps *steps, tfu_error *err) {
  tfu_array about[3] = {{.dtype = 0}};
  const tfu_signature *s = tfu_model_signature(model, "about"); /* page, room and words, in this order */
  int64_t there;
  *steps = (tfu_steps){.of = model, .read = read_words, .decode = decode};
  TFU_REQUIRE(err, s && !s->inputs && s->outputs == TFU_COUNT(about),
              "the model's signature about is not that of a generation");
  for (int i = 0; i < s->outputs; i++)
    TFU_REQUIRE(err, s->output[i].dtype == TFU_TF_INT64 && !s->output[i].shape.rank,
                "signature about: %s must be a number", s->output[i].name);
  TFU_TRY(tfu_model_run(model, s, NULL, about, err));
  int64_t *const to[] = {&steps->page, &steps->room, &steps->words};
  for (int i = 0; i < TFU_COUNT(about); i++) {
    *to[i] = *(const int64_t *)about[i].data;
    tfu_array_free(&about[i]);
  }
  for (int i = 0; i < tfu_model_signatures(model); i++) {
    int rows, times, chunk;
    const char *name = tfu_model_signature_at(model, i)->name;
    if (sscanf(name, "decode_%d_%d", &rows, &times) == 2) {
      TFU_TRY(insert(steps->rows, rows, err));
      TFU_TRY(insert(steps->times, times, err));
    } else if (sscanf(name, "read_%d", &chunk) == 1) {
      TFU_TRY(insert(steps->chunks, chunk, err));
    }
  }
  TFU_REQUIRE(err, steps->page > 0 && steps->room > 0 && steps->times[0] == 1 && steps->chunks[0],
              "the model lacks signatures of a generation: export it anew");
  if (!*pages)
    for (int i = 0; i < TFU_MOST_SIZES && steps->rows[i]; i++)
      *pages = steps->rows[i] * ((steps->room + steps->page - 1) / steps->page);
  const tfu_array wanted = {.dtype = TFU_TF_INT64, .data = pages};
  return run(model, "reset", &wanted, 1, &there, 1, err);
}
