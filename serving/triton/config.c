#include "serving/triton/config.h"

#include <stdlib.h>
#include <string.h>

static const struct {
  TRITONSERVER_DataType type;
  const char *name;
} types[] = {
    [TFU_TF_FLOAT] = {TRITONSERVER_TYPE_FP32, "TYPE_FP32"},
    [TFU_TF_DOUBLE] = {TRITONSERVER_TYPE_FP64, "TYPE_FP64"},
    [TFU_TF_INT32] = {TRITONSERVER_TYPE_INT32, "TYPE_INT32"},
    [TFU_TF_UINT8] = {TRITONSERVER_TYPE_UINT8, "TYPE_UINT8"},
    [TFU_TF_INT16] = {TRITONSERVER_TYPE_INT16, "TYPE_INT16"},
    [TFU_TF_INT8] = {TRITONSERVER_TYPE_INT8, "TYPE_INT8"},
    [TFU_TF_STRING] = {TRITONSERVER_TYPE_BYTES, "TYPE_STRING"},
    [TFU_TF_INT64] = {TRITONSERVER_TYPE_INT64, "TYPE_INT64"},
    [TFU_TF_BOOL] = {TRITONSERVER_TYPE_BOOL, "TYPE_BOOL"},
    [TFU_TF_BFLOAT16] = {TRITONSERVER_TYPE_BF16, "TYPE_BF16"},
    [TFU_TF_UINT16] = {TRITONSERVER_TYPE_UINT16, "TYPE_UINT16"},
    [TFU_TF_HALF] = {TRITONSERVER_TYPE_FP16, "TYPE_FP16"},
    [TFU_TF_UINT32] = {TRITONSERVER_TYPE_UINT32, "TYPE_UINT32"},
    [TFU_TF_UINT64] = {TRITONSERVER_TYPE_UINT64, "TYPE_UINT64"},
};

TRITONSERVER_DataType tfu_triton_dtype(int dtype) { return types[dtype].type; }

int tfu_triton_dtype_of(TRITONSERVER_DataType type) {
  int dtype = TFU_COUNT(types);
  while (--dtype > 0 && types[dtype].type != type) continue;
  return dtype;
}

int tfu_config_axis(const tfu_config *c, const char *name) {
  for (int i = 0; i < c->n_ragged; i++)
    if (!strcmp(c->ragged[i].name, name)) return c->ragged[i].axis;
  return 0;
}

/* ---- read ---- */

/* Where nobody says: a queue that 32 rows work off in some minutes, and no longer a wait than clients have patience. */
enum { QUEUE = 1024, QUEUE_SECONDS = 300 };

static tfu_json parameter(tfu_json config, const char *name) {
  return tfu_json_get(tfu_json_get(tfu_json_get(config, "parameters"), name), "string_value");
}

static tfu_code read_text(tfu_json config, const char *name, char *text, size_t size, tfu_error *err) {
  const tfu_json value = parameter(config, name);
  TFU_REQUIRE(err, !value.at || tfu_json_text(value, text, size), "parameter %s is too long", name);
  return TFU_OK;
}

/* Where nothing is said, the number stays as it is. */
static tfu_code read_number(tfu_json config, const char *name, int64_t *number, tfu_error *err) {
  const tfu_json value = parameter(config, name);
  *number = tfu_json_integer(value, value.at ? -1 : *number);
  TFU_REQUIRE(err, *number >= 0, "parameter %s must be a whole number, 0 or more, got %.*s", name,
              (int)(value.end - value.at), value.at);
  return TFU_OK;
}

/* "ids:1 mask:1": names and axes, with spaces or commas between them. */
static tfu_code read_ragged(tfu_json config, tfu_config *c, tfu_error *err) {
  char all[sizeof c->ragged] = "", *state;
  TFU_TRY(read_text(config, "TFUSE_RAGGED", all, sizeof all, err));
  for (char *word = strtok_r(all, ", ", &state); word; word = strtok_r(NULL, ", ", &state)) {
    char *colon = strrchr(word, ':'), *end = word;
    const long axis = colon ? strtol(colon + 1, &end, 10) : 0;
    TFU_REQUIRE(err, colon && !*end && axis > 0 && axis < TFU_MAX_RANK && c->n_ragged < TFU_MAX_RAGGED,
                "parameter TFUSE_RAGGED must be NAME:AXIS for each, where an axis is 1 to %d and axis 0 is that of the "
                "batch, got %s",
                TFU_MAX_RANK - 1, word);
    tfu_ragged *r = &c->ragged[c->n_ragged++];
    *colon = 0;
    TFU_REQUIRE(err, snprintf(r->name, sizeof r->name, "%s", word) < (int)sizeof r->name, "name %s is too long", word);
    r->axis = (int)axis;
  }
  return TFU_OK;
}

/* "2, 32000": ids, with spaces or commas between them. */
static tfu_code read_stops(tfu_json config, tfu_config *c, tfu_error *err) {
  char all[16 * TFU_MAX_STOPS] = "", *state, *end;
  TFU_TRY(read_text(config, "TFUSE_STOP_TOKEN_IDS", all, sizeof all, err));
  for (char *word = strtok_r(all, ", ", &state); word; word = strtok_r(NULL, ", ", &state)) {
    const long id = strtol(word, &end, 10);
    TFU_REQUIRE(err, !*end && id >= 0 && id <= INT32_MAX && c->n_stops < TFU_MAX_STOPS,
                "parameter TFUSE_STOP_TOKEN_IDS must be at most %d ids, got %s", TFU_MAX_STOPS, word);
    c->stops[c->n_stops++] = (int32_t)id;
  }
  return TFU_OK;
}

tfu_code tfu_config_read(tfu_json config, tfu_config *c, tfu_error *err) {
  *c = (tfu_config){.tags = "serve",
                    .max_batch = tfu_json_integer(tfu_json_get(config, "max_batch_size"), 0),
                    .queue = QUEUE,
                    .queue_seconds = QUEUE_SECONDS};
  const tfu_json file = tfu_json_get(config, "default_model_filename");
  TFU_REQUIRE(err, !file.at || tfu_json_text(file, c->file, sizeof c->file), "default_model_filename is too long");
  TFU_REQUIRE(err, !strchr(c->file, '/') && strcmp(c->file, "..") && strcmp(c->file, "."),
              "default_model_filename must be a name in the version's folder, got %s", c->file);
  TFU_TRY(read_text(config, "TF_SIGNATURE_DEF", c->signature, sizeof c->signature, err));
  TFU_TRY(read_text(config, "TF_GRAPH_TAG", c->tags, sizeof c->tags, err));
  TFU_TRY(read_text(config, "TFUSE_LIBRARIES", c->libraries, sizeof c->libraries, err));
  TFU_TRY(read_number(config, "TF_NUM_INTER_THREADS", &c->inter_threads, err));
  TFU_TRY(read_number(config, "TF_NUM_INTRA_THREADS", &c->intra_threads, err));
  TFU_TRY(read_number(config, "TFUSE_XLA", &c->xla, err));
  TFU_TRY(read_number(config, "TFUSE_MAX_BYTES", &c->max_bytes, err));
  TFU_TRY(read_number(config, "TFUSE_PAGES", &c->pages, err));
  TFU_TRY(read_number(config, "TFUSE_QUEUE", &c->queue, err));
  TFU_TRY(read_number(config, "TFUSE_QUEUE_SECONDS", &c->queue_seconds, err));
  TFU_REQUIRE(err, c->queue_seconds <= INT32_MAX, "parameter TFUSE_QUEUE_SECONDS must be at most %d, got %lld",
              INT32_MAX, (long long)c->queue_seconds);
  TFU_TRY(read_stops(config, c, err));
  return read_ragged(config, c, err);
}

/* ---- check ---- */

static const tfu_port *find(const tfu_port *port, int n, tfu_json name) {
  for (int i = 0; i < n; i++)
    if (tfu_json_is(name, port[i].name)) return &port[i];
  return NULL;
}

static int has_batch(const tfu_port *port) {
  return port->shape.rank == TFU_UNKNOWN || (port->shape.rank > 0 && port->shape.dim[0] == TFU_UNKNOWN);
}

static tfu_code check_ports(tfu_json list, const tfu_config *c, const tfu_port *port, int n, const char *what,
                            tfu_error *err) {
  for (tfu_json key, v = {NULL, NULL}; tfu_json_next(list, &key, &v);) {
    const tfu_json name = tfu_json_get(v, "name"), type = tfu_json_get(v, "data_type"), dims = tfu_json_get(v, "dims");
    const tfu_port *p = find(port, n, name);
    TFU_REQUIRE(err, p, "the model has no %s %.*s", what, (int)(name.end - name.at), name.at);
    TFU_REQUIRE(err, tfu_json_is(type, types[p->dtype].name), "data_type of %s %s must be %s, got %.*s", what, p->name,
                types[p->dtype].name, (int)(type.end - type.at), type.at);
    int rank = c->max_batch > 0;
    for (tfu_json none, d = {NULL, NULL}; tfu_json_next(dims, &none, &d);) rank++;
    const int wanted =
        p->shape.rank || c->max_batch ? p->shape.rank : 1; /* a scalar is a tensor of one element there */
    TFU_REQUIRE(err, tfu_json_get(v, "reshape").at || p->shape.rank == TFU_UNKNOWN || wanted == rank,
                "%s %s has shape %s in the model%s: its dims must be %d, got %d", what, p->name,
                tfu_show(&p->shape).text, c->max_batch ? ", of which the first size is that of the batch" : "",
                wanted - (c->max_batch > 0), rank - (c->max_batch > 0));
  }
  for (int i = 0; c->max_batch && i < n; i++)
    TFU_REQUIRE(err, has_batch(&port[i]), "max_batch_size must be 0: the first size of %s %s, %s, is not open", what,
                port[i].name, tfu_show(&port[i].shape).text);
  return TFU_OK;
}

tfu_code tfu_config_check(tfu_json config, const tfu_config *c, const tfu_signature *s, tfu_error *err) {
  const tfu_json inputs = tfu_json_get(config, "input");
  TFU_TRY(check_ports(inputs, c, s->input, s->inputs, "input", err));
  TFU_TRY(check_ports(tfu_json_get(config, "output"), c, s->output, s->outputs, "output", err));
  for (int i = 0; i < s->inputs; i++) {
    int there = 0;
    for (tfu_json key, v = {NULL, NULL}; tfu_json_next(inputs, &key, &v);)
      there |= tfu_json_is(tfu_json_get(v, "name"), s->input[i].name);
    TFU_REQUIRE(err, there, "the configuration lacks input %s, which the model needs", s->input[i].name);
  }
  TFU_REQUIRE(err, !c->n_ragged || c->max_batch, "parameter TFUSE_RAGGED needs a max_batch_size: it is for batches");
  for (int i = 0; i < c->n_ragged; i++) {
    int there = 0;
    for (int k = 0; k < s->inputs; k++) there |= !strcmp(s->input[k].name, c->ragged[i].name);
    for (int k = 0; k < s->outputs; k++) there |= !strcmp(s->output[k].name, c->ragged[i].name);
    TFU_REQUIRE(err, there, "parameter TFUSE_RAGGED names %s, which the model does not have", c->ragged[i].name);
  }
  return TFU_OK;
}

/* ---- complete ---- */

static int is_empty(tfu_json list) {
  tfu_json key, v = {NULL, NULL};
  return !tfu_json_next(list, &key, &v);
}

static tfu_code write_ports(FILE *file, const char *what, const tfu_config *c, const tfu_port *port, int n,
                            tfu_error *err) {
  const int first = c->max_batch > 0;
  fprintf(file, ",\"%s\":[", what);
  for (int i = 0; i < n; i++) {
    TFU_REQUIRE(err, port[i].shape.rank != TFU_UNKNOWN,
                "the model leaves the rank of %s %s open: give all inputs and outputs in config.pbtxt", what,
                port[i].name);
    fprintf(file, "%s{\"name\":", i ? "," : "");
    tfu_json_write(file, port[i].name);
    fprintf(file, ",\"data_type\":\"%s\",\"dims\":[", types[port[i].dtype].name);
    for (int k = first; k < port[i].shape.rank; k++)
      fprintf(file, "%s%lld", k > first ? "," : "", (long long)port[i].shape.dim[k]);
    /* Triton has no tensors without sizes: clients see a size of 1. In batches it takes it away by itself, else we do.
     */
    fprintf(file, port[i].shape.rank > first ? "]" : first ? "1],\"reshape\":{\"shape\":[]}" : "1]");
    if (*what == 'i' && tfu_config_axis(c, port[i].name)) fprintf(file, ",\"allow_ragged_batch\":true");
    fprintf(file, "}");
  }
  fprintf(file, "]");
  return TFU_OK;
}

static tfu_code write_config(FILE *file, tfu_json config, const tfu_config *c, const tfu_signature *s, tfu_error *err) {
  const int inputs = is_empty(tfu_json_get(config, "input")), outputs = is_empty(tfu_json_get(config, "output"));
  int scheduled = 0;
  fprintf(file, "{\"max_batch_size\":%lld", (long long)c->max_batch);
  for (tfu_json key, v = {NULL, NULL}; tfu_json_next(config, &key, &v);) {
    if (tfu_json_is(key, "max_batch_size") || (inputs && tfu_json_is(key, "input")) ||
        (outputs && tfu_json_is(key, "output")))
      continue;
    scheduled |= tfu_json_is(key, "dynamic_batching") || tfu_json_is(key, "sequence_batching");
    fprintf(file, ",%.*s:%.*s", (int)(key.end - key.at), key.at, (int)(v.end - v.at), v.at);
  }
  if (inputs) TFU_TRY(write_ports(file, "input", c, s->input, s->inputs, err));
  if (outputs) TFU_TRY(write_ports(file, "output", c, s->output, s->outputs, err));
  if (!scheduled && c->max_batch > 1) fprintf(file, ",\"dynamic_batching\":{}");
  fprintf(file, "}");
  return TFU_OK;
}

tfu_code tfu_config_complete(tfu_json config, tfu_config *c, const tfu_signature *s, int64_t default_batch, char **text,
                             size_t *n, tfu_error *err) {
  const int inputs = is_empty(tfu_json_get(config, "input")), outputs = is_empty(tfu_json_get(config, "output"));
  *text = NULL;
  if (!inputs && !outputs) return TFU_OK;
  int batch = inputs && outputs && !c->max_batch;
  for (int i = 0; i < s->inputs; i++) batch &= has_batch(&s->input[i]);
  for (int i = 0; i < s->outputs; i++) batch &= has_batch(&s->output[i]);
  if (batch && s->inputs && default_batch > 0) c->max_batch = default_batch;
  FILE *file = open_memstream(text, n);
  if (!file) return tfu_fail(err, TFU_EXHAUSTED, "out of host memory");
  tfu_code code = write_config(file, config, c, s, err);
  if (fclose(file) && code == TFU_OK) code = tfu_fail(err, TFU_EXHAUSTED, "out of host memory");
  if (code != TFU_OK) {
    free(*text);
    *text = NULL;
  }
  return code;
}
