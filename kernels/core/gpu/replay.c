#include "kernels/core/gpu/replay.h"

#include "kernels/core/gpu/cuda.h"
#include "kernels/core/gpu/driver.h"
#include "kernels/core/table.h"

enum { KEPT = 64 }; /* graphs, each of some hundred kilobytes of the GPU's memory */

typedef struct replayed {
  const tfu_driver *driver;
  CUgraphExec graph; /* NULL: there is none yet */
  int queued;        /* once, as it is: code is loaded and choices are made, which a capture forbids */
  int refused;       /* it cannot be captured */
} replayed;

static void release(void *value) {
  replayed *r = value;
  if (r->graph) r->driver->cuGraphExecDestroy(r->graph);
}

/* The graph of what work() queues, on a stream that nobody else queues on. */
static tfu_code capture_on(void *stream, tfu_call *call, replayed *r, tfu_code (*work)(tfu_call *, void *),
                           void *with) {
  const tfu_driver *d = r->driver;
  void *own = call->stream;
  CUgraph graph = NULL;
  TFU_TRY(tfu_driver_code(d, d->cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL), "capturing",
                          call->err));
  call->stream = stream;
  call->captured = 1;
  tfu_code code = work(call, with);
  call->captured = 0;
  call->stream = own;
  CUresult result = d->cuStreamEndCapture(stream, &graph);
  if (code == TFU_OK && !result) result = d->cuGraphInstantiateWithFlags(&r->graph, graph, 0);
  if (graph) d->cuGraphDestroy(graph);
  return code != TFU_OK ? code : tfu_driver_code(d, result, "making a CUDA graph", call->err);
}

static tfu_code capture(tfu_call *call, replayed *r, tfu_code (*work)(tfu_call *, void *), void *with) {
  static tfu_table streams = TFU_PER_GPU(tfu_create_stream);
  static pthread_mutex_t capturing = PTHREAD_MUTEX_INITIALIZER; /* a stream captures one graph at a time */
  const tfu_driver *d = r->driver;
  void *stream;
  if (!d->cuStreamBeginCapture_v2 || !d->cuStreamEndCapture || !d->cuGraphInstantiateWithFlags || !d->cuGraphLaunch ||
      !d->cuGraphDestroy || !d->cuGraphExecDestroy)
    return tfu_fail(call->err, TFU_UNIMPLEMENTED, "the driver has no CUDA graphs");
  TFU_TRY(tfu_per_gpu(&streams, d, &stream, call->err));
  pthread_mutex_lock(&capturing);
  const tfu_code code = capture_on(stream, call, r, work, with);
  pthread_mutex_unlock(&capturing);
  return code;
}

static tfu_code queue(tfu_call *call, replayed *r, int64_t times, tfu_code (*work)(tfu_call *, void *), void *with) {
  for (int64_t i = 0; i < times; i++) {
    if (r->queued && !r->graph && !r->refused) {
      tfu_error ignored, *err = call->err;
      call->err = &ignored; /* what cannot be captured is queued as it is, and says then what is wrong */
      r->refused = capture(call, r, work, with) != TFU_OK;
      call->err = err;
    }
    if (r->graph)
      TFU_TRY(tfu_driver_code(r->driver, r->driver->cuGraphLaunch(r->graph, call->stream), "launching a CUDA graph",
                              call->err));
    else TFU_TRY(work(call, with));
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
