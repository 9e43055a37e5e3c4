/* Fields of ConfigProto, by number: device_count 1, a map; intra_op_parallelism_threads 2; inter_op_parallelism_threads
 * 5; gpu_options 6, of it allow_growth 4 and visible_device_list 5; allow_soft_placement 7; use_per_session_threads 9;
 * graph_options 10, of it optimizer_options 3, of it global_jit_level 5. */
#include "serving/session_config.h"

#include <string.h>

static void put(tfu_bytes *b, uint64_t varint) {
  for (; varint > 127; varint >>= 7) b->at[b->n++] = (uint8_t)(varint | 128);
  b->at[b->n++] = (uint8_t)varint;
}

static void put_number(tfu_bytes *b, int field, uint64_t value) {
  put(b, (uint64_t)field << 3);
  put(b, value);
}

static void put_bytes(tfu_bytes *b, int field, const void *data, size_t n) {
  put(b, (uint64_t)field << 3 | 2);
  put(b, n);
  memcpy(b->at + b->n, data, n);
  b->n += n;
}

tfu_bytes tfu_session_config(const tfu_model_options *o) {
  tfu_bytes all = {.n = 0}, gpu = {.n = 0};
  const char *device = o->device ? o->device : "", *colon = strchr(device, ':');
  if (!strncmp(device, "CPU", 3)) {
    tfu_bytes none = {.n = 0};
    put_bytes(&none, 1, "GPU", 3);
    put_number(&none, 2, 0);
    put_bytes(&all, 1, none.at, none.n);
  }
  if (o->intra_threads > 0) put_number(&all, 2, (uint64_t)o->intra_threads);
  if (o->inter_threads > 0) {
    put_number(&all, 5, (uint64_t)o->inter_threads);
    put_number(&all, 9, 1);
  }
  put_number(&gpu, 4, 1); /* memory as it is needed, and not all at once */
  if (!strncmp(device, "GPU", 3) && colon) put_bytes(&gpu, 5, colon + 1, strnlen(colon + 1, 8));
  put_bytes(&all, 6, gpu.at, gpu.n);
  put_number(&all, 7, 1); /* ops without a kernel for the GPU run on the CPU */
  if (o->xla) {
    tfu_bytes level = {.n = 0}, graph = {.n = 0};
    put_number(&level, 5, 2); /* ON_2 */
    put_bytes(&graph, 3, level.at, level.n);
    put_bytes(&all, 10, graph.at, graph.n);
  }
  return all;
}
