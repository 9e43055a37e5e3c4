/* capture_test.c - how the end of a captured call leaves its graph, and when the host may wait, without a GPU: against
 * a driver of our own that counts nodes. */
#include "kernels/core/gpu/cuda.h"
#include "kernels/core/gpu/driver.h"
#include "kernels/core/hash.h"
#include "tests/check.h"

static int capturing, broken;
static size_t nodes;

static CUresult is_capturing(CUstream stream, CUstreamCaptureStatus *status) {
  (void)stream;
  *status = capturing ? CU_STREAM_CAPTURE_STATUS_ACTIVE : CU_STREAM_CAPTURE_STATUS_NONE;
  return broken ? CUDA_ERROR_INVALID_HANDLE : CUDA_SUCCESS;
}

static CUresult capture_info(CUstream stream, CUstreamCaptureStatus *status, cuuint64_t *id, CUgraph *graph,
                             const CUgraphNode **dependencies, size_t *n) {
  (void)id, (void)dependencies, (void)n;
  if (capturing) *graph = (CUgraph)&nodes;
  return is_capturing(stream, status);
}

static CUresult get_nodes(CUgraph graph, CUgraphNode *list, size_t *n) {
  CHECK(graph == (CUgraph)&nodes && !list);
  *n = nodes;
  return CUDA_SUCCESS;
}

static CUresult add_empty(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies, size_t n) {
  CHECK(node && graph == (CUgraph)&nodes && !dependencies && n == 0);
  nodes++;
  return CUDA_SUCCESS;
}

static CUstreamCaptureMode mode_now = CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
static CUresult exchange_mode(CUstreamCaptureMode *mode) {
  const CUstreamCaptureMode before = mode_now;
  mode_now = *mode;
  *mode = before;
  return CUDA_SUCCESS;
}

static CUresult error_text(CUresult error, const char **text) {
  (void)error;
  *text = "broken";
  return CUDA_SUCCESS;
}

static const tfu_driver stand_in = {.cuStreamIsCapturing = is_capturing,
                                    .cuStreamGetCaptureInfo_v2 = capture_info,
                                    .cuGraphGetNodes = get_nodes,
                                    .cuGraphAddEmptyNode = add_empty,
                                    .cuThreadExchangeStreamCaptureMode = exchange_mode,
                                    .cuGetErrorName = error_text,
                                    .cuGetErrorString = error_text};

tfu_code tfu_driver_get(const tfu_driver **driver, tfu_error *err) {
  (void)err;
  *driver = &stand_in;
  return TFU_OK;
}

static void test_wait(void) {
  const tfu_call call = {.stream = NULL};
  CHECK(tfu_may_wait(&call));
  capturing = 1;
  CHECK(!tfu_may_wait(&call));
  capturing = 0, broken = 1;
  CHECK(!tfu_may_wait(&call)); /* what cannot be told is not risked */
  broken = 0;
}

/* A graph gets a node where it has none, and only there. */
static void test_nodes(void) {
  tfu_error err = {""};
  const tfu_call call = {.err = &err};
  capturing = 1;
  for (size_t before = 0; before < 3; before++) {
    nodes = before;
    CHECK(tfu_capture_close(&call) == TFU_OK && nodes == (before ? before : 1));
  }
  capturing = 0, nodes = 0;
  CHECK(tfu_capture_close(&call) == TFU_OK && nodes == 0);
  broken = 1;
  CHECK(tfu_capture_close(&call) == TFU_INTERNAL);
  CHECK_TEXT(err.text, "ending a captured call: broken (broken)");
  broken = 0;
}

/* What was forbidden is allowed for a while, and then forbidden as before. */
static void test_mode(void) {
  const int mode = tfu_capture_relax();
  CHECK(mode_now == CU_STREAM_CAPTURE_MODE_RELAXED);
  tfu_capture_restore(mode);
  CHECK(mode_now == CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);
}

/* What is captured has its room and no more; what is not has all there is. */
static void test_room(void) {
  tfu_call call = {.room = 256};
  CHECK(tfu_has_scratch(&call, 257));
  call.captured = 1;
  CHECK(tfu_has_scratch(&call, 0) && tfu_has_scratch(&call, 256) && !tfu_has_scratch(&call, 257));
}

/* Calls are remembered in chains by the lower bits of a hash: sizes of many multiples of a power of two must not be in
 * one. */
static void test_hash(void) {
  for (int bits = 0; bits <= 24; bits++) {
    int at[4096] = {0}, most = 0;
    for (int64_t i = 1; i <= 200; i++) {
      const int64_t dims[] = {64, i << bits};
      const int n = ++at[tfu_hash(TFU_HASH_START, dims, sizeof dims) % 4096];
      if (n > most) most = n;
    }
    CHECK(most <= 8);
  }
}

int main(void) {
  test_hash();
  test_wait();
  test_nodes();
  test_mode();
  test_room();
  return verdict();
}
