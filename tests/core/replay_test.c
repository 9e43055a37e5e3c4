/* replay_test.c - when a chain is captured and when its graph is launched, without a GPU: against a driver of our own,
 * whose graphs count launches. */
#include <pthread.h>
#include <stdatomic.h>

#include "kernels/core/gpu/replay.h"
#include "ops/core/chain.h"
#include "tests/stand_in_driver.h"

static atomic_int capturing, captures, launches;

static CUresult create_stream(CUstream *stream, unsigned flags) {
  (void)flags;
  *stream = (CUstream)&capturing;
  return CUDA_SUCCESS;
}

/* As the driver's: a stream that is captured already cannot be captured again. */
static CUresult begin(CUstream stream, CUstreamCaptureMode mode) {
  (void)stream, (void)mode;
  return atomic_exchange(&capturing, 1) ? CUDA_ERROR_ILLEGAL_STATE : CUDA_SUCCESS;
}

static CUresult end(CUstream stream, CUgraph *graph) {
  (void)stream;
  captures++;
  *graph = (CUgraph)&captures;
  capturing = 0;
  return CUDA_SUCCESS;
}

static CUresult instantiate(CUgraphExec *exec, CUgraph graph, unsigned long long flags) {
  (void)flags;
  *exec = (CUgraphExec)graph;
  return CUDA_SUCCESS;
}

static CUresult launch(CUgraphExec exec, CUstream stream) {
  (void)exec, (void)stream;
  launches++;
  return CUDA_SUCCESS;
}

static CUresult destroy(CUgraph graph) { return (void)graph, CUDA_SUCCESS; }
static CUresult destroy_exec(CUgraphExec exec) { return (void)exec, CUDA_SUCCESS; }
static CUresult clear(CUdeviceptr at, unsigned char value, size_t bytes, CUstream stream) {
  return (void)at, (void)value, (void)bytes, (void)stream, CUDA_SUCCESS;
}
static CUresult is_capturing(CUstream stream, CUstreamCaptureStatus *status) {
  (void)stream;
  *status = CU_STREAM_CAPTURE_STATUS_NONE;
  return CUDA_SUCCESS;
}
static CUresult make_event(CUevent *event, unsigned flags) {
  return (void)flags, *event = (CUevent)&launches, CUDA_SUCCESS;
}
static CUresult record(CUevent event, CUstream stream) { return (void)event, (void)stream, CUDA_SUCCESS; }
static CUresult query(CUevent event) { return (void)event, CUDA_SUCCESS; }
static CUresult destroy_event(CUevent event) { return (void)event, CUDA_SUCCESS; }

static const tfu_driver driver = {STAND_INS,
                                  .cuStreamCreate = create_stream,
                                  .cuStreamBeginCapture_v2 = begin,
                                  .cuStreamEndCapture = end,
                                  .cuStreamIsCapturing = is_capturing,
                                  .cuGraphInstantiateWithFlags = instantiate,
                                  .cuGraphLaunch = launch,
                                  .cuGraphDestroy = destroy,
                                  .cuGraphExecDestroy = destroy_exec,
                                  .cuMemsetD8Async = clear,
                                  .cuEventCreate = make_event,
                                  .cuEventRecord = record,
                                  .cuEventQuery = query,
                                  .cuEventDestroy_v2 = destroy_event};

tfu_code tfu_driver_get(const tfu_driver **out, tfu_error *err) {
  (void)err;
  *out = &driver;
  return TFU_OK;
}

/* ---- chains ---- */

/* Runs a chain of no ops, whose second input is x, and says how often it was captured. */
static int captured(const char *text, const tfu_tensor *x) {
  static float memory, done;
  tfu_error err = {""};
  tfu_shape shape;
  tfu_tensor in[] = {{.data = &memory, .dtype = TFU_U8, .shape = SHAPE(sizeof memory)}, *x};
  tfu_tensor out = {.data = &done, .dtype = TFU_F32, .shape = SCALAR};
  tfu_lists lists = {.in = {{in, 2}}, .out = {{&out, 1}}, .inputs = 2, .outputs = 1, .shapes = &shape};
  tfu_call call = {.op = &tfu_chain, .err = &err, .lists = &lists, .attr = {{.s = text}, {.i = 1}}};
  const int before = captures;
  CHECK_FOR(tfu_chain_gpu(&call) == TFU_OK, "%s", err.text);
  return captures - before;
}

/* A graph is for the same tensors: memory may be given to others, of another shape or dtype. */
static void test_keys(void) {
  static float data[16];
  const tfu_tensor kinds[] = {{data, TFU_F16, SHAPE(2, 8)},
                              {data, TFU_F16, SHAPE(4, 4)},
                              {data, TFU_F16, SHAPE(16)},
                              {data, TFU_BF16, SHAPE(2, 8)},
                              {data + 1, TFU_F16, SHAPE(2, 8)}};
  for (int i = 0; i < TFU_COUNT(kinds); i++) {
    const int first = captured("", &kinds[i]), second = captured("", &kinds[i]), third = captured("", &kinds[i]);
    CHECK_FOR(first == 0 && second == 1 && third == 0, "tensor %d", i);
  }
  CHECK(captured("", &kinds[0]) == 0);
  CHECK(captured("invariant\n", &kinds[0]) == 0 && captured("invariant\n", &kinds[0]) == 1);
  CHECK(captured("", &kinds[0]) == 0);
}

/* ---- threads ---- */

enum { THREADS = 4, KEYS = 12 };

static tfu_code slowly(tfu_call *call, void *with) {
  (void)with;
  if (call->captured) usleep(1000);
  return TFU_OK;
}

static void *replay_some(void *number) {
  for (int64_t key[] = {(intptr_t)number, 0}; key[1] < KEYS; key[1]++)
    for (int run = 0; run < 3; run++) {
      tfu_error err = {""};
      tfu_call call = {.err = &err};
      CHECK_FOR(tfu_replay(&call, key, sizeof key, 1, slowly, NULL) == TFU_OK, "%s", err.text);
      CHECK_FOR(!call.why, "%s", call.why);
    }
  return NULL;
}

/* Threads that capture at the same time wait for each other. */
static void test_threads(void) {
  pthread_t thread[THREADS];
  const int before = captures, launched = launches;
  for (intptr_t i = 0; i < THREADS; i++) CHECK(!pthread_create(&thread[i], NULL, replay_some, (void *)i));
  for (int i = 0; i < THREADS; i++) pthread_join(thread[i], NULL);
  CHECK(captures - before == THREADS * KEYS && launches - launched == 2 * THREADS * KEYS);
}

int main(void) {
  test_keys();
  test_threads();
  return verdict();
}
