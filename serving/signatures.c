/* Protocol buffers' wire format: a message is a row of fields, each a key (number << 3 | type) and a value. Of
 * saved_model.pb we follow
 *
 *   SavedModel.meta_graphs (2) -> MetaGraphDef.meta_info_def (1).tags (4)
 *                                 MetaGraphDef.signature_def (5), a map: key (1), value (2) -> SignatureDef
 *   SignatureDef.inputs (1), outputs (2), maps: key (1), value (2) -> TensorInfo
 *   TensorInfo.name (1), dtype (2), tensor_shape (3) -> TensorShapeProto.dim (2).size (1), unknown_rank (3)
 *
 * and skip all else. Every length is checked against what is left of the message around it. */
#define _GNU_SOURCE
#include "serving/signatures.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct bytes {
  const uint8_t *at, *end;
} bytes;

typedef struct field {
  uint32_t number;
  int is_bytes; /* then `inside`, else `value` */
  uint64_t value;
  bytes inside;
} field;

static int varint(bytes *b, uint64_t *value) {
  *value = 0;
  for (int shift = 0; shift < 64 && b->at < b->end; shift += 7) {
    const uint8_t byte = *b->at++;
    *value |= (uint64_t)(byte & 127) << shift;
    if (byte < 128) return 1;
  }
  return 0;
}

/* The next field: 1; at the end 0; -1 where this is no message. */
static int next(bytes *b, field *f) {
  uint64_t key, length = 0;
  if (b->at == b->end) return 0;
  if (!varint(b, &key) || key >> 32) return -1;
  *f = (field){.number = (uint32_t)(key >> 3), .is_bytes = (key & 7) == 2};
  switch (key & 7) {
    case 0: return varint(b, &f->value) ? 1 : -1;
    case 1: length = 8; break;
    case 2:
      if (!varint(b, &length)) return -1;
      break;
    case 5: length = 4; break;
    default: return -1; /* groups: none in these messages */
  }
  if (length > (size_t)(b->end - b->at)) return -1;
  f->inside = (bytes){b->at, b->at + length};
  b->at += length;
  return 1;
}

/* The last field of this number that holds bytes, as the format has it; none: empty. */
static bytes only(bytes message, uint32_t number) {
  field f;
  bytes found = {NULL, NULL};
  while (next(&message, &f) > 0)
    if (f.number == number && f.is_bytes) found = f.inside;
  return found;
}

static size_t length(bytes b) { return (size_t)(b.end - b.at); }

static char *text(bytes b) {
  char *copy = calloc(1, length(b) + 1);
  if (copy && length(b)) memcpy(copy, b.at, length(b));
  return copy;
}

/* Whether it is text that a configuration and a request can carry: UTF-8 without control characters. */
static int is_name(bytes b) {
  for (const uint8_t *p = b.at; p < b.end;) {
    const int more = *p < 128 ? 0 : *p >> 5 == 6 ? 1 : *p >> 4 == 14 ? 2 : *p >> 3 == 30 ? 3 : -1;
    if (more < 0 || *p < 32 || *p == 127 || b.end - p <= more) return 0;
    for (int i = 1; i <= more; i++)
      if (p[i] >> 6 != 2) return 0;
    p += 1 + more;
  }
  return b.at != b.end;
}

/* ---- a port ---- */

static int read_shape(bytes message, tfu_shape *shape) {
  field f, size;
  int more;
  *shape = (tfu_shape){0};
  while ((more = next(&message, &f)) > 0) {
    if (f.number == 3 && !f.is_bytes && f.value) {
      shape->rank = TFU_UNKNOWN;
      return 1;
    }
    if (f.number != 2 || !f.is_bytes) continue;
    if (shape->rank == TFU_MAX_RANK) return 0;
    int64_t *dim = &shape->dim[shape->rank++];
    while (next(&f.inside, &size) > 0)
      if (size.number == 1 && !size.is_bytes) *dim = (int64_t)size.value;
    if (*dim < 0) *dim = TFU_UNKNOWN;
  }
  return more == 0;
}

/* 1; 0 where it is no plain tensor that we know; -1 without memory. */
static int read_port(bytes entry, tfu_port *port) {
  bytes info = only(entry, 2);
  field f;
  int known = is_name(only(entry, 1)), more;
  port->shape.rank = TFU_UNKNOWN;
  port->name = text(only(entry, 1));
  port->tensor = text(only(info, 1));
  if (!port->name || !port->tensor) return -1;
  while ((more = next(&info, &f)) > 0) {
    if (f.number == 2 && !f.is_bytes && f.value < 1000) port->dtype = (int)f.value;
    if (f.number == 3 && f.is_bytes) known &= read_shape(f.inside, &port->shape);
  }
  /* A sparse or ragged tensor has other fields, and no name. */
  return more == 0 && known && *port->tensor && tfu_tf_dtype_size(port->dtype);
}

static int by_name(const void *a, const void *b) {
  return strcmp(((const tfu_port *)a)->name, ((const tfu_port *)b)->name);
}

static int read_ports(bytes signature, uint32_t number, const tfu_port **ports, int *n) {
  field f;
  int count = 0, outcome = 1;
  for (bytes all = signature; next(&all, &f) > 0;) count += f.number == number && f.is_bytes;
  tfu_port *port = calloc((size_t)count + 1, sizeof *port);
  if (!port) return -1;
  *ports = port;
  for (bytes all = signature; outcome > 0 && next(&all, &f) > 0;)
    if (f.number == number && f.is_bytes) outcome = read_port(f.inside, &port[(*n)++]);
  if (outcome <= 0) return outcome;
  qsort(port, (size_t)count, sizeof *port, by_name);
  for (int i = 1; i < count; i++)
    if (!strcmp(port[i - 1].name, port[i].name)) return 0;
  return 1;
}

/* ---- signatures ---- */

static void free_ports(const tfu_port *port, int n) {
  for (int i = 0; port && i < n; i++) {
    free((void *)port[i].name);
    free((void *)port[i].tensor);
  }
  free((void *)port);
}

static void free_signature(tfu_signature *s) {
  free_ports(s->input, s->inputs);
  free_ports(s->output, s->outputs);
  free((void *)s->name);
  *s = (tfu_signature){0};
}

void tfu_signatures_free(tfu_signatures *found) {
  for (int i = 0; i < found->n; i++) free_signature(&found->at[i]);
  free(found->at);
  *found = (tfu_signatures){0};
}

static int signature_by_name(const void *a, const void *b) {
  return strcmp(((const tfu_signature *)a)->name, ((const tfu_signature *)b)->name);
}

static tfu_code read_signatures(bytes graph, tfu_signatures *found, tfu_error *err) {
  field f;
  int count = 0;
  for (bytes all = graph; next(&all, &f) > 0;) count += f.number == 5 && f.is_bytes;
  found->at = calloc((size_t)count + 1, sizeof *found->at);
  if (!found->at) return tfu_fail(err, TFU_EXHAUSTED, "out of host memory");
  for (bytes all = graph; next(&all, &f) > 0;) {
    if (f.number != 5 || !f.is_bytes) continue;
    tfu_signature *s = &found->at[found->n];
    const bytes body = only(f.inside, 2);
    s->name = text(only(f.inside, 1));
    int outcome = s->name ? is_name(only(f.inside, 1)) : -1;
    if (outcome > 0) outcome = read_ports(body, 1, &s->input, &s->inputs);
    if (outcome > 0) outcome = read_ports(body, 2, &s->output, &s->outputs);
    if (outcome > 0 && s->outputs) {
      found->n++;
    } else {
      free_signature(s); /* such as that of __saved_model_init_op, which is no signature that one runs */
      if (outcome < 0) return tfu_fail(err, TFU_EXHAUSTED, "out of host memory");
    }
  }
  qsort(found->at, (size_t)found->n, sizeof *found->at, signature_by_name);
  return TFU_OK;
}

/* Whether a graph has all of these tags, and no others. */
static int has_tags(bytes graph, const char *tags) {
  bytes about = only(graph, 1);
  field f;
  int has = 0, wanted = *tags ? 1 : 0;
  for (const char *c = tags; *c; c++) wanted += *c == ',';
  while (next(&about, &f) > 0) {
    if (f.number != 4 || !f.is_bytes) continue;
    int one = 0;
    for (const char *begin = tags; *begin;) {
      const char *end = strchrnul(begin, ',');
      one |= (size_t)(end - begin) == length(f.inside) && !memcmp(begin, f.inside.at, length(f.inside));
      begin = *end ? end + 1 : end;
    }
    if (!one) return 0;
    has++;
  }
  return has == wanted;
}

tfu_code tfu_signatures_parse(const void *data, size_t n, const char *tags, tfu_signatures *found, tfu_error *err) {
  bytes model = {data, (const uint8_t *)data + n};
  field f;
  int more;
  tfu_code code = TFU_OK;
  *found = (tfu_signatures){0};
  bytes graph = {NULL, NULL};
  while ((more = next(&model, &f)) > 0)
    if (f.number == 2 && f.is_bytes && !graph.at && has_tags(f.inside, tags)) graph = f.inside;
  if (more < 0) return tfu_fail(err, TFU_INVALID, "saved_model.pb is damaged, or was not written to its end");
  if (!graph.at) return tfu_fail(err, TFU_INVALID, "saved_model.pb has no graph with the tags \"%s\"", tags);
  code = read_signatures(graph, found, err);
  if (code == TFU_OK && !found->n)
    code = tfu_fail(err, TFU_INVALID, "saved_model.pb has no signature of plain tensors: export it with signatures");
  if (code != TFU_OK) tfu_signatures_free(found);
  return code;
}

/* All of a file, which is read and not mapped: one that gets shorter meanwhile is no reason to die. */
static tfu_code read_file(const char *path, char **data, size_t *n, tfu_error *err) {
  FILE *file = fopen(path, "rbe");
  if (!file) return tfu_fail(err, TFU_INVALID, "%s cannot be opened: %s", path, strerror(errno));
  const long size = fseek(file, 0, SEEK_END) ? -1 : ftell(file);
  const int right = size >= 0 && size < INT32_MAX && !fseek(file, 0, SEEK_SET); /* the format ends at 2 GiB */
  *n = right ? (size_t)size : 0;
  *data = malloc(*n + 1);
  const int whole = right && *data && fread(*data, 1, *n, file) == *n;
  fclose(file);
  if (whole) return TFU_OK;
  free(*data);
  return tfu_fail(err, TFU_INVALID, "%s cannot be read to its end", path);
}

tfu_code tfu_signatures_read(const char *folder, const char *tags, tfu_signatures *found, tfu_error *err) {
  char path[4096], *data = NULL;
  size_t n = 0;
  *found = (tfu_signatures){0};
  const int wanted = snprintf(path, sizeof path, "%s/saved_model.pb", folder);
  if (wanted >= (int)sizeof path) return tfu_fail(err, TFU_INVALID, "the folder's path is too long");
  TFU_TRY(read_file(path, &data, &n, err));
  const tfu_code code = tfu_signatures_parse(data, n, tags, found, err);
  free(data);
  return code;
}

const tfu_signature *tfu_signatures_find(const tfu_signatures *in, const char *name) {
  for (int i = 0; i < in->n; i++)
    if (!strcmp(in->at[i].name, name ? name : "serving_default")) return &in->at[i];
  return !name && in->n == 1 ? in->at : NULL;
}
