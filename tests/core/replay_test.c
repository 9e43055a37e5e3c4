/* replay_test.c - what a chain queues for its runs on a GPU: which of them graphs have, and what an op may read ahead;
 * without a GPU, against a driver of our own that counts graphs. */
#include "kernels/core/gpu/replay.h"
#include "tests/stand_in_driver.h"

/* ---- the driver ---- */

static int captures, launches, capturing, breaks; /* breaks: captures fail */
static CUstream own_stream = (CUstream)&capturing;

static CUresult create_stream(CUstream *stream, unsigned flags) {
  (void)flags;
  *stream = own_stream;
  return CUDA_SUCCESS;
}
static CUresult is_capturing(CUstream stream, CUstreamCaptureStatus *status) {
  (void)stream;
  *status = CU_STREAM_CAPTURE_STATUS_ACTIVE; /* always: so nobody asks for events */
  return CUDA_SUCCESS;
}
static CUresult begin(CUstream stream, CUstreamCaptureMode mode) {
  (void)mode;
  CHECK(stream == own_stream && !capturing);
  capturing = 1;
  return CUDA_SUCCESS;
}
static CUresult end(CUstream stream, CUgraph *graph) {
  CHECK(stream == own_stream && capturing);
  capturing = 0;
  *graph = (CUgraph)&captures;
  return breaks ? CUDA_ERROR_STREAM_CAPTURE_INVALIDATED : CUDA_SUCCESS;
}
static CUresult instantiate(CUgraphExec *made, CUgraph graph, unsigned long long flags) {
  (void)flags;
  CHECK(graph == (CUgraph)&captures);
  *made = (CUgraphExec)&captures;
  captures++;
  return CUDA_SUCCESS;
}
static CUresult launch(CUgraphExec graph, CUstream stream) {
  CHECK(graph == (CUgraphExec)&captures && stream != own_stream);
  launches++;
  return CUDA_SUCCESS;
}
static CUresult drop(CUgraph graph) {
  CHECK(graph == (CUgraph)&captures);
  return CUDA_SUCCESS;
}
static CUresult drop_made(CUgraphExec graph) {
  CHECK(graph == (CUgraphExec)&captures);
  return CUDA_SUCCESS;
}
static CUresult clear(CUdeviceptr to, unsigned char value, size_t n, CUstream stream) {
  (void)to, (void)value, (void)n, (void)stream;
  return CUDA_SUCCESS;
}

tfu_code tfu_driver_get(const tfu_driver **driver, tfu_error *err) {
  static const tfu_driver stand_in = {STAND_INS,
                                      .cuStreamCreate = create_stream,
                                      .cuStreamIsCapturing = is_capturing,
                                      .cuStreamBeginCapture_v2 = begin,
                                      .cuStreamEndCapture = end,
                                      .cuGraphInstantiateWithFlags = instantiate,
                                      .cuGraphLaunch = launch,
                                      .cuGraphDestroy = drop,
                                      .cuGraphExecDestroy = drop_made,
                                      .cuMemsetD8Async = clear};
  (void)err;
  *driver = &stand_in;
  return TFU_OK;
}

/* ---- an op that notes how it is called ---- */

static char seen[256];

static tfu_code probe_gpu(tfu_call *call) {
  const size_t n = strlen(seen);
  CHECK(n + 3 < sizeof seen && call->captured == capturing);
  snprintf(seen + n, sizeof seen - n, "%s%u", call->captured ? "c" : "q", call->constant);
  return TFU_OK;
}
static tfu_code probe_cpu(tfu_call *call) { return (void)call, TFU_OK; }
static tfu_code probe_shape(const tfu_shape *in, tfu_shape *out, const tfu_value *attr, tfu_error *err) {
  (void)attr, (void)err;
  return out[0] = in[0], TFU_OK;
}
static const tfu_op probe = {.name = "Probe",
                             .in = {"x: T"},
                             .out = {"y: T"},
                             .attr = {"T: {float}"},
                             .shape = probe_shape,
                             .cpu = probe_cpu,
                             .gpu = probe_gpu};

const tfu_entry *tfu_find(const char *called) {
  static const tfu_entry entry = {.op = &probe, .stem = "probe"};
  return !strcmp(called, "probe") ? &entry : NULL;
}

/* ---- */

extern const tfu_op tfu_chain;

/* Runs the chain that many times, and checks how its ops were called, and how many graphs were made and launched. */
static void check_runs(const char *text, int64_t times, const char *want, int made, int launched) {
  static float numbers[2][4];
  static char memory[4096];
  tfu_tensor inputs[] = {{.data = memory, .dtype = TFU_U8, .shape = SHAPE(sizeof memory)},
                         {.data = numbers[0], .dtype = TFU_F32, .shape = SHAPE(4)},
                         {.data = numbers[1], .dtype = TFU_F32, .shape = SHAPE(4)}};
  tfu_tensor done = {.data = numbers, .dtype = TFU_F32};
  tfu_lists lists = {.in = {{.at = inputs, .n = TFU_COUNT(inputs)}}, .out = {{.at = &done, .n = 1}}};
  tfu_error err = {""};
  tfu_call call = {.op = &tfu_chain, .err = &err, .lists = &lists, .attr = {{.s = text}, {.i = times}}};
  seen[0] = 0, captures = 0, launches = 0;
  CHECK_FOR(tfu_chain.gpu(&call) == TFU_OK, "%s", err.text);
  CHECK_TEXT(seen, want);
  CHECK_FOR(captures == made && launches == launched, "%s: %d graphs made, %d launched", text, captures, launches);
}

int main(void) {
  /* Two ops, of which the first reads what the second one writes: never ahead. */
  static const char written[] = "probe t0 = i1 |\nprobe i1 = i2 |", broken[] = "probe t0 = i2 |\nprobe t1 = i2 |";
  check_runs(written, 1, "q0q0", 0, 0);
  check_runs(written, 1, "c0c1", 1, 1);
  check_runs(written, 9, "c0c1c0c1c0c1c0c1", 1, 3); /* two of four, and the one there was */
  check_runs(written, 3, "", 0, 3);
  check_runs(written, 0, "", 0, 0);
  breaks = 1;
  check_runs(broken, 6, "q0q0c0c1c0c1c0c1c0c1q0q0q0q0q0q0q0q0q0q0", 0, 0);
  return failures != 0;
}
