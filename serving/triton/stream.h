/* stream.h - generations in Triton, as a decoupled model: a request brings token ids, and a response has one new token.
 * Requests of all instances on a device share an engine (serving/engine.h). */
#ifndef TFUSE_TRITON_STREAM_H_
#define TFUSE_TRITON_STREAM_H_

#include "serving/engine.h"
#include "serving/triton/request.h"

/* What clients see: not a signature of the model, whose own are steps. */
extern const tfu_signature tfu_stream_signature;

/* Whether the configuration is that of such a model. */
TFU_MUST_USE tfu_code tfu_stream_check(tfu_json config, const tfu_config *c, tfu_error *err);

/* An engine for a model, with its thread. */
TFU_MUST_USE tfu_code tfu_stream_engine(tfu_model *model, const tfu_config *c, tfu_engine **engine, tfu_error *err);

/* What the streams of an instance share: they report to it when they end, unless the server has taken it away. It may,
 * while the model goes on; to wait for them then would stop clients that share a thread of the server with the one who
 * asked for that. */
typedef struct tfu_streams tfu_streams;

TFU_MUST_USE tfu_code tfu_streams_new(TRITONBACKEND_ModelInstance *instance, tfu_streams **streams, tfu_error *err);
/* The instance goes; streams go on without it. NULL is fine. */
void tfu_streams_close(tfu_streams *streams);

/* Has a request answered, token by token, and then released. One that is wrong is answered with its error. */
void tfu_stream_begin(tfu_streams *streams, TRITONBACKEND_Request *request, const tfu_config *c, tfu_engine *engine);

#endif
