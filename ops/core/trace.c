/* trace.c - the last runs of ops: route, device, kernel and shape. Read by tfuse.explain(). */
#include <pthread.h>
#include <stdio.h>

#include "bind.h"

enum { KEPT = 64 };

/* Adding copies a few words under a lock (some 30 ns); text is made only when somebody asks. */
static struct entry {
  const char *op, *route, *kernel, *why;
  void *stream;
  tfu_dtype dtype;
  tfu_shape shape;
  int gpu;
} entries[KEPT];
static int64_t added;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

void tfu_trace(const tfu_call *call, const char *route, int gpu) {
  const tfu_tensor *first = call->lists ? call->lists->in[0].at : call->in;
  pthread_mutex_lock(&lock);
  entries[added++ % KEPT] = (struct entry){.op = call->op->name,
                                           .route = route,
                                           .kernel = call->kernel ? call->kernel : "loop",
                                           .why = call->why ? call->why : "",
                                           .stream = call->stream,
                                           .dtype = first->dtype,
                                           .shape = first->shape,
                                           .gpu = gpu};
  pthread_mutex_unlock(&lock);
}

/* Writes run number `index` (0 is the first since the library was loaded) as tab-separated text; returns how many runs
 * there have been, so that a caller can ask for the last of them. Runs no longer kept give an empty text. */
TFU_EXPORT int64_t tfu_trace_read(int64_t index, char *text, size_t size) {
  pthread_mutex_lock(&lock);
  const int64_t total = added;
  const struct entry e =
      index >= 0 && index < total && index >= total - KEPT ? entries[index % KEPT] : (struct entry){0};
  pthread_mutex_unlock(&lock);
  if (size) text[0] = 0;
  if (e.op)
    snprintf(text, size, "%s\t%s\t%s\t%s\t%s\t%s\t%s", e.op, e.route, e.gpu ? "GPU" : "CPU", e.kernel,
             tfu_dtype_name(e.dtype), tfu_show(&e.shape).text, e.why);
  return total;
}

/* The stream of the last run on a GPU, NULL if none: the benchmark records its events there. */
TFU_EXPORT void *tfu_trace_stream(void) {
  void *stream = NULL;
  pthread_mutex_lock(&lock);
  for (int64_t i = added - 1; i >= 0 && i >= added - KEPT && !stream; i--) stream = entries[i % KEPT].stream;
  pthread_mutex_unlock(&lock);
  return stream;
}
