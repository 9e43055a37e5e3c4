/* saved_model_writer.h - writes the saved_model.pb of a model that exists in tests alone, field by field. */
#ifndef TFUSE_SAVED_MODEL_WRITER_H_
#define TFUSE_SAVED_MODEL_WRITER_H_

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

typedef struct proto {
  uint8_t at[8192];
  size_t n;
} proto;

static inline void put_varint(proto *p, uint64_t v) {
  for (; v > 127; v >>= 7) p->at[p->n++] = (uint8_t)(v | 128);
  p->at[p->n++] = (uint8_t)v;
}
static inline void put_number(proto *p, int field, uint64_t v) {
  put_varint(p, (uint64_t)field << 3);
  put_varint(p, v);
}
static inline void put_bytes(proto *p, int field, const void *data, size_t n) {
  put_varint(p, (uint64_t)field << 3 | 2);
  put_varint(p, n);
  memcpy(p->at + p->n, data, n);
  p->n += n;
}
static inline void put_text(proto *p, int field, const char *text) { put_bytes(p, field, text, strlen(text)); }
static inline void put_message(proto *p, int field, const proto *m) { put_bytes(p, field, m->at, m->n); }

/* "x:1:-1,4": name, dtype, and sizes, or "?" for an open rank, as an entry of a signature's map; its tensor is name:0.
 */
static inline void put_port(proto *signature, int field, const char *text) {
  char own[256], tensor[300], *state, *name, *dtype, *sizes;
  proto entry = {.n = 0}, info = {.n = 0}, shape = {.n = 0};
  snprintf(own, sizeof own, "%s", text);
  name = strtok_r(own, ":", &state);
  dtype = strtok_r(NULL, ":", &state);
  sizes = strtok_r(NULL, ":", &state);
  snprintf(tensor, sizeof tensor, "%s:0", name);
  for (char *size = sizes && *sizes != '?' ? strtok_r(sizes, ",", &state) : NULL; size;
       size = strtok_r(NULL, ",", &state)) {
    proto dim = {.n = 0};
    put_number(&dim, 1, (uint64_t)atoll(size));
    put_message(&shape, 2, &dim);
  }
  if (sizes && *sizes == '?') put_number(&shape, 3, 1);
  put_text(&info, 1, tensor);
  put_number(&info, 2, (uint64_t)atoi(dtype));
  put_message(&info, 3, &shape);
  put_text(&entry, 1, name);
  put_message(&entry, 2, &info);
  put_message(signature, field, &entry);
}

/* A graph with one signature; ports with spaces between them. */
static inline proto graph_of(const char *tag, const char *signature, const char *inputs, const char *outputs) {
  proto about = {.n = 0}, body = {.n = 0}, entry = {.n = 0}, graph = {.n = 0};
  const char *lists[] = {inputs, outputs};
  put_text(&about, 4, tag);
  for (int i = 0; i < 2; i++) {
    char own[1024], *state;
    snprintf(own, sizeof own, "%s", lists[i]);
    for (char *port = strtok_r(own, " ", &state); port; port = strtok_r(NULL, " ", &state))
      put_port(&body, 1 + i, port);
  }
  put_text(&body, 3, "tensorflow/serving/predict");
  put_text(&entry, 1, signature);
  put_message(&entry, 2, &body);
  put_message(&graph, 1, &about);
  put_message(&graph, 5, &entry);
  return graph;
}

static inline proto saved_model_of(const char *inputs, const char *outputs) {
  proto model = {.n = 0}, graph = graph_of("serve", "serving_default", inputs, outputs);
  put_number(&model, 1, 1);
  put_message(&model, 2, &graph);
  return model;
}

/* Writes folder/saved_model.pb. */
static inline void write_saved_model(const char *folder, const proto *model) {
  char path[4200];
  mkdir(folder, 0755);
  snprintf(path, sizeof path, "%s/saved_model.pb", folder);
  FILE *file = fopen(path, "wb");
  if (!file || fwrite(model->at, 1, model->n, file) != model->n) abort();
  fclose(file);
}

#endif
