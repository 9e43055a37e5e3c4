/* Loads a SavedModel and answers once: every number of every input is 1, and sizes that the model leaves open are 1.
 *
 *   cc serve.c -o serve $(python -m tfuse config --cflags --libs)
 *   ./serve my_model
 */
#include <model.h>
#include <stdio.h>
#include <stdlib.h>

static int failed(const tfu_error *err) {
  fprintf(stderr, "%s\n", err->text);
  return 1;
}

/* An array of ones; of strings, of empty ones. */
static tfu_array ones(const tfu_port *port) {
  static const float f = 1;
  static const double d = 1;
  static const uint16_t half = 0x3c00, bfloat16 = 0x3f80;
  static const int64_t integer = 1; /* its first bytes are a 1 of any size, on machines that TensorFlow runs on */
  const void *one = port->dtype == TFU_TF_FLOAT      ? (const void *)&f
                    : port->dtype == TFU_TF_DOUBLE   ? (const void *)&d
                    : port->dtype == TFU_TF_HALF     ? (const void *)&half
                    : port->dtype == TFU_TF_BFLOAT16 ? (const void *)&bfloat16
                                                     : (const void *)&integer;
  const size_t size = tfu_tf_dtype_size(port->dtype);
  size_t elements = 1;
  tfu_array x = {.dtype = port->dtype, .shape = port->shape};
  if (x.shape.rank == TFU_UNKNOWN) x.shape.rank = 0;
  for (int i = 0; i < x.shape.rank; i++) {
    if (x.shape.dim[i] == TFU_UNKNOWN) x.shape.dim[i] = 1;
    elements *= (size_t)x.shape.dim[i];
  }
  x.data = calloc(elements + 1, size);
  for (size_t i = 0; x.data && port->dtype != TFU_TF_STRING && i < elements * size; i++)
    ((char *)x.data)[i] = ((const char *)one)[i % size];
  return x;
}

int main(int argc, char **argv) {
  tfu_error err;
  tfu_model *model;
  if (argc != 2) return fprintf(stderr, "usage: %s FOLDER, that of a SavedModel\n", argv[0]), 2;
  if (tfu_model_open(argv[1], NULL, &model, &err)) return failed(&err);
  const tfu_signature *s = tfu_model_signature(model, NULL);
  if (!s) return fprintf(stderr, "%s has no signature serving_default\n", argv[1]), 1;

  tfu_array in[s->inputs], out[s->outputs];
  for (int i = 0; i < s->inputs; i++) in[i] = ones(&s->input[i]);
  if (tfu_model_run(model, s, in, out, &err)) return failed(&err);
  for (int i = 0; i < s->outputs; i++) {
    printf("%s: %s, rank %d", s->output[i].name, tfu_tf_dtype_name(out[i].dtype), out[i].shape.rank);
    for (int k = 0; k < out[i].shape.rank; k++) printf(k ? " × %ld" : ", %ld", (long)out[i].shape.dim[k]);
    if (out[i].dtype == TFU_TF_FLOAT && tfu_count(&out[i].shape)) printf("; begins with %.9g", *(float *)out[i].data);
    puts("");
    tfu_array_free(&out[i]);
  }
  for (int i = 0; i < s->inputs; i++) free(in[i].data);
  tfu_model_close(model);
  return 0;
}
