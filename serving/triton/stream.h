/* stream.h - generations in Triton, as a decoupled model: a request brings token ids, and a response has one new token.
 * Requests of all instances on a device share an engine (serving/engine.h). */
#ifndef TFUSE_TRITON_STREAM_H_
#define TFUSE_TRITON_STREAM_H_

#include <pthread.h>

#include "serving/engine.h"
#include "serving/triton/request.h"

/* What clients see: not a signature of the model, whose own are steps. */
extern const tfu_signature tfu_stream_signature;

/* Whether the configuration is that of such a model. */
TFU_MUST_USE tfu_code tfu_stream_check(tfu_json config, const tfu_config *c, tfu_error *err);

/* An engine for a model, with its thread. */
TFU_MUST_USE tfu_code tfu_stream_engine(tfu_model *model, const tfu_config *c, tfu_engine **engine, tfu_error *err);

/* The streams of an instance. The server may take an instance away while the model goes on, and streams report to it
 * when they end. */
typedef struct tfu_streams {
  TRITONBACKEND_ModelInstance *instance;
  pthread_mutex_t lock;
  pthread_cond_t fewer;
  int n;
} tfu_streams;

void tfu_streams_open(tfu_streams *streams, TRITONBACKEND_ModelInstance *instance);
/* Waits until all have ended. */
void tfu_streams_close(tfu_streams *streams);

/* Has a request answered, token by token, and then released. One that is wrong is answered with its error. */
void tfu_stream_begin(tfu_streams *streams, TRITONBACKEND_Request *request, const tfu_config *c, tfu_engine *engine);

#endif
