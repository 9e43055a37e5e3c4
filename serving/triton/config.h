/* config.h - a model's configuration in Triton: what it says, whether the model agrees, and what it leaves open. */
#ifndef TFUSE_TRITON_CONFIG_H_
#define TFUSE_TRITON_CONFIG_H_

#include <limits.h>

#include "serving/signatures.h"
#include "serving/triton/json.h"
#include "serving/triton/triton_api.h"

enum { TFU_MAX_RAGGED = 32, TFU_MAX_STOPS = 32 };

/* A port whose sizes along this axis may differ between the requests of a batch. */
typedef struct tfu_ragged {
  char name[128];
  int axis; /* in the tensor, whose axis 0 is that of the batch */
} tfu_ragged;

typedef struct tfu_config {
  int64_t max_batch; /* 0: requests are not joined, and tensors have no axis for it */
  char file[256];    /* of the SavedModel's folder, in that of the version; "": it is looked for */
  char signature[256], tags[256], libraries[PATH_MAX];
  int64_t inter_threads, intra_threads, xla, max_bytes;
  tfu_ragged ragged[TFU_MAX_RAGGED];
  int n_ragged;
  /* Of models that generate: */
  int64_t pages;                /* of the cache; 0: as many as all rows may need */
  int64_t queue, queue_seconds; /* requests that may wait, and for how long; 0: no bound */
  int32_t stops[TFU_MAX_STOPS];
  int n_stops; /* tokens that end a request which names none */
} tfu_config;

/* Reads what we need of the configuration. */
TFU_MUST_USE tfu_code tfu_config_read(tfu_json config, tfu_config *found, tfu_error *err);

/* Whether what the configuration says of inputs, outputs and batches agrees with the signature. */
TFU_MUST_USE tfu_code tfu_config_check(tfu_json config, const tfu_config *c, const tfu_signature *s, tfu_error *err);

/* The configuration with what it leaves open, as text to free; *text is NULL where it leaves nothing open. Where inputs
 * and outputs are missing, and all of them have an open first size, requests are joined: up to default_batch of them.
 */
TFU_MUST_USE tfu_code tfu_config_complete(tfu_json config, tfu_config *c, const tfu_signature *s, int64_t default_batch,
                                          char **text, size_t *n, tfu_error *err);

int tfu_config_axis(const tfu_config *c, const char *name); /* the ragged axis of a port; 0: none */

TRITONSERVER_DataType tfu_triton_dtype(int dtype);   /* of a number of TensorFlow's */
int tfu_triton_dtype_of(TRITONSERVER_DataType type); /* and the reverse; 0: TensorFlow has none */

#endif
