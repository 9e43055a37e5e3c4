#include "kernels/core/gpu/replay.h"

#include "kernels/core/gpu/cuda.h"
#include "kernels/core/gpu/driver.h"
#include "kernels/core/table.h"

enum { KEPT = 64 }; /* works, whose graphs take up to some megabytes of the GPU's memory */

/* How often a graph has the work: from one graph to the next an H200 takes some 20 us, from one kernel to the next of a
 * graph one or two. */
static const int copies[] = {4, 1};

typedef struct replayed {
  const tfu_driver *driver;
  CUgraphExec graph[TFU_COUNT(copies)]; /* NULL: there is none yet */
  int queued;  /* once, as it is: code is loaded and choices are made, which a capture forbids */
  int refused; /* it cannot be captured */
} replayed;

static void release(void *value) {
  replayed *r = value;
  for (int i = 0; i < TFU_COUNT(copies); i++)
    if (r->graph[i]) r->driver->cuGraphExecDestroy(r->graph[i]);
}

static tfu_code create(const void *gpu, void *stream, void *driver, tfu_error *err) {
  const tfu_driver *d = driver;
  (void)gpu;
  return tfu_driver_code(d, d->cuStreamCreate(stream, CU_STREAM_NON_BLOCKING), "creating a stream to capture", err);
}

/* The graph of what work() queues, so many times over, on a stream that nobody else queues on. */
static tfu_code capture(tfu_call *call, replayed *r, int which, tfu_code (*work)(tfu_call *, void *), void *with) {
  static tfu_table streams = TFU_PER_GPU(create);
  const tfu_driver *d = r->driver;
  if (!d->cuStreamBeginCapture_v2 || !d->cuStreamEndCapture || !d->cuGraphInstantiateWithFlags || !d->cuGraphLaunch ||
      !d->cuGraphDestroy || !d->cuGraphExecDestroy)
    return tfu_fail(call->err, TFU_UNIMPLEMENTED, "the driver has no CUDA graphs");
  void *own = call->stream, *stream;
  CUgraph graph = NULL;
  TFU_TRY(tfu_per_gpu(&streams, d, &stream, call->err));
  TFU_TRY(tfu_driver_code(d, d->cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL), "capturing",
                          call->err));
  call->stream = stream;
  call->captured = 1;
  tfu_code code = TFU_OK;
  for (int i = 0; i < copies[which] && code == TFU_OK; i++) code = work(call, with);
  call->captured = 0;
  call->stream = own;
  CUresult result = d->cuStreamEndCapture(stream, &graph);
  if (code == TFU_OK && !result) result = d->cuGraphInstantiateWithFlags(&r->graph[which], graph, 0);
  if (graph) d->cuGraphDestroy(graph);
  return code != TFU_OK ? code : tfu_driver_code(d, result, "making a CUDA graph", call->err);
}

static tfu_code queue(tfu_call *call, replayed *r, int64_t times, tfu_code (*work)(tfu_call *, void *), void *with) {
  while (times > 0) {
    int which = 0;
    while (copies[which] > times) which++;
    if (r->queued && !r->graph[which] && !r->refused) {
      tfu_error ignored, *err = call->err;
      call->err = &ignored; /* what cannot be captured is queued as it is, and says then what is wrong */
      r->refused = capture(call, r, which, work, with) != TFU_OK;
      call->err = err;
    }
    if (r->graph[which]) {
      TFU_TRY(tfu_driver_code(r->driver, r->driver->cuGraphLaunch(r->graph[which], call->stream),
                              "launching a CUDA graph", call->err));
      times -= copies[which];
    } else {
      TFU_TRY(work(call, with));
      times--;
    }
    if (r->refused) call->why = "its ops cannot be captured into a CUDA graph";
    r->queued = 1;
  }
  return TFU_OK;
}

tfu_code tfu_replay(tfu_call *call, const void *key, size_t bytes, int64_t times, tfu_code (*work)(tfu_call *, void *),
                    void *with) {
  /* One holder at a time: a graph that one thread captures or launches is no other's. */
  static tfu_table graphs = TFU_TABLE(.value = sizeof(replayed), .most = KEPT, .exclusive = 1, .release = release);
  void *mine;
  TFU_TRY(tfu_table_get(&graphs, key, bytes, NULL, &mine, call->err));
  replayed *r = mine;
  tfu_code code = tfu_driver_get(&r->driver, call->err);
  if (code == TFU_OK) code = queue(call, r, times, work, with);
  tfu_table_put(&graphs, mine, call);
  return code;
}
