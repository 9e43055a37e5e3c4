/* triton_stream_test.c - generations in a Triton that stands in: tokens as they come, what is refused, requests that
 * are cancelled, and an instance that goes while they run. */
#include "serving/triton/stream.h"
#include "tests/serving/triton_stand_in.h"

static const tfu_config config = {.max_batch = 0};
static int64_t seeds[2]; /* of the last step */

/* A model whose next token is one more than the last. */
static tfu_code read_words(void *of, int chunk, const int64_t *ints, const int64_t *table, int64_t length,
                           tfu_error *err) {
  (void)of, (void)chunk, (void)ints, (void)table, (void)length, (void)err;
  return TFU_OK;
}
static tfu_code decode(void *of, int rows, int times, const int64_t *ints, const float *floats, const int64_t *table,
                       int64_t *tokens, tfu_error *err) {
  (void)of, (void)times, (void)floats, (void)table, (void)err;
  for (int i = 0; i < rows; i++) {
    seeds[i] = ints[TFU_SEEDS * rows + i];
    tokens[i] = ints[TFU_CURRENT * rows + i] + 1;
  }
  return TFU_OK;
}

static tfu_engine *make_engine(void) {
  const tfu_steps steps = {.page = 4,
                           .room = 32,
                           .words = 100,
                           .rows = {2},
                           .times = {1},
                           .chunks = {4},
                           .read = read_words,
                           .decode = decode};
  tfu_engine *e = NULL;
  tfu_error err;
  CHECK(tfu_engine_new(&steps, 16, &e, &err) == TFU_OK);
  return e;
}

static tfu_streams *open_streams(TRITONBACKEND_ModelInstance *instance) {
  tfu_streams *streams = NULL;
  tfu_error err;
  CHECK(tfu_streams_new(instance, &streams, &err) == TFU_OK);
  return streams;
}

/* A prompt of two words; count is how many new ones it asks for, NULL: it does not say. */
static void ask(TRITONBACKEND_Request *r, const int32_t *prompt, const int32_t *count) {
  *r = (TRITONBACKEND_Request){.is_stream = 1, .wanted = {"token_id"}};
  add_input(r, "token_ids", TRITONSERVER_TYPE_INT32, (tfu_shape)SHAPE(2), prompt, 8);
  if (count) add_input(r, "max_new_tokens", TRITONSERVER_TYPE_INT32, (tfu_shape)SHAPE(1), count, 4);
}

static int has_ended(const TRITONBACKEND_Request *r, TRITONSERVER_Error_Code code) {
  return r->answered == 1 && r->released == 1 && r->code == code;
}

static void test_tokens(void) {
  const int32_t prompt[] = {5, 6}, count = 3;
  TRITONBACKEND_ModelInstance instance = {.kind = 1};
  TRITONBACKEND_Request r[2];
  tfu_engine *e = make_engine();
  tfu_streams *streams = open_streams(&instance);
  for (int i = 0; i < 2; i++) {
    ask(&r[i], prompt, &count);
    tfu_stream_begin(streams, &r[i], &config, e);
  }
  while (tfu_engine_step(e)) continue;
  for (int i = 0; i < 2; i++) {
    CHECK(has_ended(&r[i], 0) && r[i].outputs == 3);
    for (int k = 0; k < r[i].outputs; k++) CHECK(*(const int32_t *)r[i].out[k].data == 7 + k);
    clear(&r[i]);
  }
  CHECK(seeds[0] != seeds[1] && seeds[0] > 1000 && seeds[1] > 1000); /* also after another start of the server */
  CHECK(instance.succeeded == 2 && instance.failed == 0);
  tfu_streams_close(streams);
  tfu_engine_free(e);
  CHECK(living == 0);
}

static void test_what_is_refused(void) {
  static const int32_t prompt[] = {5, 6}, count = 3, stops[TFU_MOST_STOPS + 1];
  TRITONBACKEND_ModelInstance instance = {.kind = 1};
  TRITONBACKEND_Request r;
  tfu_engine *e = make_engine();
  tfu_streams *streams = open_streams(&instance);
  ask(&r, prompt, NULL);
  tfu_stream_begin(streams, &r, &config, e);
  CHECK(has_ended(&r, TRITONSERVER_ERROR_INVALID_ARG));
  CHECK_TEXT(r.error, "input max_new_tokens is missing, and the model needs it");
  ask(&r, prompt, &count);
  add_input(&r, "stop_token_ids", TRITONSERVER_TYPE_INT32, (tfu_shape)SHAPE(TFU_COUNT(stops)), stops, sizeof stops);
  tfu_stream_begin(streams, &r, &config, e);
  CHECK(has_ended(&r, TRITONSERVER_ERROR_INVALID_ARG));
  CHECK_TEXT(r.error, "a request has at most 256 stop tokens, got 257");
  ask(&r, prompt, &count);
  tfu_stream_begin(streams, &r, &(tfu_config){.max_bytes = 11}, e);
  CHECK(has_ended(&r, TRITONSERVER_ERROR_INVALID_ARG));
  CHECK_TEXT(r.error, "the inputs are 12 bytes, and the limit is 11");
  ask(&r, prompt, &count);
  tfu_stream_begin(streams, &r, &config, e);
  tfu_engine_step(e);
  r.is_gone = true;
  tfu_engine_step(e);
  CHECK(has_ended(&r, TRITONSERVER_ERROR_CANCELLED) && r.outputs == 1);
  clear(&r);
  TRITONBACKEND_Request waits;
  tfu_engine_bound(e, 1, 0);
  ask(&waits, prompt, &count);
  ask(&r, prompt, &count);
  tfu_stream_begin(streams, &waits, &config, e);
  tfu_stream_begin(streams, &r, &config, e);
  CHECK(has_ended(&r, TRITONSERVER_ERROR_UNAVAILABLE) && !waits.answered);
  CHECK_TEXT(r.error, "1 requests wait, and no more may: try again later");
  tfu_engine_bound(e, 0, 1);
  tfu_engine_step(e);
  CHECK(has_ended(&waits, TRITONSERVER_ERROR_UNAVAILABLE));
  CHECK_TEXT(waits.error, "the request has waited 1e-09 s, which is as long as one may: try again later");
  CHECK(instance.succeeded == 0 && instance.failed == 6);
  tfu_streams_close(streams);
  tfu_engine_free(e);
  CHECK(living == 0);
}

/* The server takes an instance away while the model goes on: its streams go on, and report to nobody. */
static void test_an_instance_that_goes(void) {
  const int32_t prompt[] = {5, 6}, count = 5;
  TRITONBACKEND_ModelInstance *instance = calloc(1, sizeof *instance);
  TRITONBACKEND_Request r[2];
  tfu_engine *e = make_engine();
  tfu_streams *streams = open_streams(instance);
  for (int i = 0; i < 2; i++) {
    ask(&r[i], prompt, &count);
    tfu_stream_begin(streams, &r[i], &config, e);
  }
  tfu_engine_step(e);
  tfu_streams_close(streams);
  free(instance);
  while (tfu_engine_step(e)) continue;
  for (int i = 0; i < 2; i++) {
    CHECK(has_ended(&r[i], 0) && r[i].outputs == 5);
    clear(&r[i]);
  }
  tfu_engine_free(e);
  CHECK(living == 0);
}

int main(void) {
  test_tokens();
  test_what_is_refused();
  test_an_instance_that_goes();
  return verdict();
}
