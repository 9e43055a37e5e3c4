/* trace.c - the last runs of ops: route, device, kernel and shape. Read by tfuse.explain(). Runs that were captured
 * into a CUDA graph are kept apart: they are seen once, and those of the steps that follow would soon push them out. */
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "bind.h"

enum { KEPT = 64 };

/* Adding copies a few words under a lock (some 30 ns); text is made only when somebody asks. */
static struct entry {
  const char *op, *route, *why;
  char kernel[80]; /* a copy: that of a jit kernel may go */
  int64_t number;  /* of all runs */
  void *stream;
  tfu_dtype dtype;
  tfu_shape shape;
  int gpu;
} entries[2][KEPT]; /* of all others, and of captured ones */
static int64_t added[2];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

void tfu_trace(const tfu_call *call, const char *route, int gpu) {
  const tfu_tensor *first = call->lists ? call->lists->in[0].at : call->in;
  const int captured = call->captured != 0;
  pthread_mutex_lock(&lock);
  struct entry *e = &entries[captured][added[captured] % KEPT];
  *e = (struct entry){.op = call->op->name,
                      .number = added[0] + added[1],
                      .route = route,
                      .why = call->why ? call->why : "",
                      .stream = call->stream,
                      .dtype = first->dtype,
                      .shape = first->shape,
                      .gpu = gpu};
  strncpy(e->kernel, call->kernel ? call->kernel : "loop", sizeof e->kernel - 1);
  added[captured]++;
  pthread_mutex_unlock(&lock);
}

/* Writes run `index` of the captured ones, or of the others (0 is the first since the library was loaded), as
 * tab-separated text, and which of all runs it was; returns how many of its kind there have been, so that a caller can
 * ask for the last ones. Runs no longer kept give an empty text. */
TFU_EXPORT int64_t tfu_trace_read(int captured, int64_t index, int64_t *number, char *text, size_t size) {
  pthread_mutex_lock(&lock);
  const int64_t total = added[captured];
  const struct entry e =
      index >= 0 && index < total && index >= total - KEPT ? entries[captured][index % KEPT] : (struct entry){0};
  pthread_mutex_unlock(&lock);
  *number = e.number;
  if (size) text[0] = 0;
  if (e.op)
    snprintf(text, size, "%s\t%s\t%s\t%s\t%s\t%s\t%s", e.op, e.route, e.gpu ? "GPU" : "CPU", e.kernel,
             tfu_dtype_name(e.dtype), tfu_show(&e.shape).text, e.why);
  return total;
}

/* The stream of the last run on a GPU that was not captured, NULL if none: the benchmark records its events there. */
TFU_EXPORT void *tfu_trace_stream(void) {
  void *stream = NULL;
  pthread_mutex_lock(&lock);
  for (int64_t i = added[0] - 1; i >= 0 && i >= added[0] - KEPT && !stream; i--) stream = entries[0][i % KEPT].stream;
  pthread_mutex_unlock(&lock);
  return stream;
}
