#include "serving/triton/stream.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "serving/generator.h"
#include "serving/triton/batch.h"

#define NUMBER \
  { .rank = 0 }
#define LIST           \
  {                    \
    1, { TFU_UNKNOWN } \
  }

enum { MAX_NEW_TOKENS, SEED, STOP_TOKEN_IDS, TEMPERATURE, TOKEN_IDS, TOP_K, TOP_P, PORTS };

static const tfu_port inputs[PORTS] = {[MAX_NEW_TOKENS] = {"max_new_tokens", TFU_TF_INT32, NUMBER, ""},
                                       [SEED] = {"seed", TFU_TF_INT64, NUMBER, ""},
                                       [STOP_TOKEN_IDS] = {"stop_token_ids", TFU_TF_INT32, LIST, ""},
                                       [TEMPERATURE] = {"temperature", TFU_TF_FLOAT, NUMBER, ""},
                                       [TOKEN_IDS] = {"token_ids", TFU_TF_INT32, LIST, ""},
                                       [TOP_K] = {"top_k", TFU_TF_INT32, NUMBER, ""},
                                       [TOP_P] = {"top_p", TFU_TF_FLOAT, NUMBER, ""}};
static const tfu_port output = {"token_id", TFU_TF_INT32, NUMBER, ""};
const tfu_signature tfu_stream_signature = {"generate", PORTS, 1, inputs, &output};

tfu_code tfu_stream_check(tfu_json config, const tfu_config *c, tfu_error *err) {
  const tfu_json decoupled = tfu_json_get(tfu_json_get(config, "model_transaction_policy"), "decoupled");
  TFU_REQUIRE(err, decoupled.at && *decoupled.at == 't' && !c->max_batch,
              "a model that generates needs the config.pbtxt that python -m tfuse export --generate writes: with "
              "model_transaction_policy { decoupled: true }, and max_batch_size 0");
  return tfu_config_check(config, c, &tfu_stream_signature, err);
}

tfu_code tfu_stream_engine(tfu_model *model, const tfu_config *c, tfu_engine **engine, tfu_error *err) {
  tfu_steps steps;
  int64_t pages = c->pages;
  TFU_TRY(tfu_generator_steps(model, &pages, &steps, err));
  TFU_TRY(tfu_engine_new(&steps, pages, engine, err));
  tfu_engine_bound(*engine, c->queue, c->queue_seconds * 1000000000);
  tfu_code code = tfu_engine_warm_up(*engine, err);
  if (code == TFU_OK) code = tfu_engine_start(*engine, err);
  if (code != TFU_OK) {
    tfu_engine_free(*engine);
    *engine = NULL;
  }
  return code;
}

/* ---- those of an instance ---- */

struct tfu_streams {
  pthread_mutex_t lock;
  TRITONBACKEND_ModelInstance *instance; /* NULL: it is gone */
  int users;                             /* streams, and the instance */
};

tfu_code tfu_streams_new(TRITONBACKEND_ModelInstance *instance, tfu_streams **streams, tfu_error *err) {
  tfu_streams *s = *streams = malloc(sizeof *s);
  if (!s) return tfu_fail(err, TFU_EXHAUSTED, "out of host memory");
  *s = (tfu_streams){.instance = instance, .users = 1};
  pthread_mutex_init(&s->lock, NULL);
  return TFU_OK;
}

static void join(tfu_streams *s) {
  pthread_mutex_lock(&s->lock);
  s->users++;
  pthread_mutex_unlock(&s->lock);
}

static void leave(tfu_streams *s) {
  pthread_mutex_lock(&s->lock);
  const int left = --s->users;
  pthread_mutex_unlock(&s->lock);
  if (left) return;
  pthread_mutex_destroy(&s->lock);
  free(s);
}

void tfu_streams_close(tfu_streams *s) {
  if (!s) return;
  pthread_mutex_lock(&s->lock);
  s->instance = NULL;
  pthread_mutex_unlock(&s->lock);
  leave(s);
}

/* ---- a request ---- */

typedef struct stream {
  tfu_request request;
  tfu_streams *streams;
  const tfu_config *config;
  uint64_t begin;
} stream;

static void send(stream *s, int32_t token, int ended, tfu_code code, const tfu_error *why) {
  const tfu_array out = {.dtype = TFU_TF_INT32, .data = &token};
  s->request.code = code;
  if (why) s->request.err = *why;
  tfu_request_answer(&s->request, s->config, &tfu_stream_signature, &out, 0, 0,
                     ended ? TRITONSERVER_RESPONSE_COMPLETE_FINAL : 0);
  if (!ended) return;
  const uint64_t now = tfu_nanoseconds();
  pthread_mutex_lock(&s->streams->lock); /* so long the instance is there */
  if (s->streams->instance)
    tfu_triton_drop(TRITONBACKEND_ModelInstanceReportStatistics(
        s->streams->instance, s->request.of, s->request.code == TFU_OK, s->begin, s->begin, now, now));
  pthread_mutex_unlock(&s->streams->lock);
  leave(s->streams);
  tfu_triton_drop(TRITONBACKEND_RequestRelease(s->request.of, TRITONSERVER_REQUEST_RELEASE_ALL));
}

static void tell(void *user, int32_t token, int ended, tfu_code code, const tfu_error *why) {
  send(user, token, ended, code, why);
  if (ended) free(user);
}

static int is_gone(void *user) {
  bool gone = false;
  if (TRITONBACKEND_RequestIsCancelled)
    tfu_triton_drop(TRITONBACKEND_RequestIsCancelled(((stream *)user)->request.of, &gone));
  return gone;
}

/* What a request brings: of each input its numbers, and how many; -1 where it is not there. */
typedef struct brought {
  tfu_request request;
  tfu_port there[PORTS];
  tfu_signature signature; /* of those inputs that are there */
  const void *data[PORTS];
  int64_t n[PORTS];
} brought;

static tfu_code read_inputs(brought *b, const tfu_config *c, tfu_error *err) {
  int of[PORTS];
  b->signature.input = b->there;
  for (int i = 0; i < PORTS; i++) {
    b->n[i] = -1;
    if (i != TOKEN_IDS && i != MAX_NEW_TOKENS && !tfu_request_input(b->request.of, inputs[i].name)) continue;
    of[b->signature.inputs] = i;
    b->there[b->signature.inputs++] = inputs[i];
  }
  tfu_request_read(&b->request, c, &b->signature);
  if (b->request.code != TFU_OK) *err = b->request.err;
  TFU_TRY(b->request.code);
  for (int i = 0; i < b->signature.inputs; i++) {
    const tfu_array *x = &b->request.in[i];
    const int64_t n = tfu_count(&x->shape);
    TFU_REQUIRE(err, b->there[i].shape.rank || n == 1, "input %s must be one number, got %lld", b->there[i].name,
                (long long)n);
    const size_t size = tfu_tf_dtype_size(x->dtype), bytes = (size_t)n * size;
    void *aligned = (uintptr_t)x->data % size ? b->request.own[2 * i + 1] = malloc(bytes) : x->data;
    if (bytes && !aligned) return tfu_fail(err, TFU_EXHAUSTED, "out of host memory");
    if (aligned != x->data) memcpy(aligned, x->data, bytes);
    b->data[of[i]] = aligned;
    b->n[of[i]] = n;
  }
  return TFU_OK;
}

/* The seed of a request that brings none. */
static int64_t any_seed(void) {
  int64_t seed;
  const int drawn = syscall(SYS_getrandom, &seed, sizeof seed, 0) == sizeof seed; /* glibc's own is newer than some */
  return drawn ? seed & INT64_MAX : (int64_t)tfu_nanoseconds();
}

/* From here on the stream is the engine's, unless this fails. */
static tfu_code add(stream *s, tfu_engine *engine, brought *b, tfu_error *err) {
  TFU_TRY(read_inputs(b, s->config, err));
  const void *const *in = b->data;
  const tfu_generation asked = {.prompt = in[TOKEN_IDS],
                                .prompt_length = b->n[TOKEN_IDS],
                                .new_tokens = *(const int32_t *)in[MAX_NEW_TOKENS],
                                .stops = b->n[STOP_TOKEN_IDS] >= 0 ? in[STOP_TOKEN_IDS] : s->config->stops,
                                .n_stops = b->n[STOP_TOKEN_IDS] >= 0 ? b->n[STOP_TOKEN_IDS] : s->config->n_stops,
                                .temperature = in[TEMPERATURE] ? *(const float *)in[TEMPERATURE] : 0,
                                .top_p = in[TOP_P] ? *(const float *)in[TOP_P] : 1,
                                .top_k = in[TOP_K] ? *(const int32_t *)in[TOP_K] : 0,
                                .seed = in[SEED] ? *(const int64_t *)in[SEED] : any_seed(),
                                .user = s,
                                .is_gone = is_gone,
                                .tell = tell};
  return tfu_engine_add(engine, &asked, err);
}

void tfu_stream_begin(tfu_streams *streams, TRITONBACKEND_Request *request, const tfu_config *c, tfu_engine *engine) {
  tfu_error err;
  brought b = {.request = {.of = request}};
  stream begun = {.request = {.of = request}, .streams = streams, .config = c, .begin = tfu_nanoseconds()};
  stream *s = malloc(sizeof *s);
  join(streams);
  if (!s) {
    const tfu_code code = tfu_fail(&err, TFU_EXHAUSTED, "out of host memory");
    send(&begun, -1, 1, code, &err);
    return;
  }
  *s = begun;
  const tfu_code code = add(s, engine, &b, &err);
  tfu_request_free(&b.request, &b.signature);
  if (code != TFU_OK) tell(s, -1, 1, code, &err);
}
