/* stream.c - the CUstream that TensorFlow's built-in GPU device runs a kernel on, without a line of C++.
 *
 * OpKernelContext::eigen_device<GpuDevice>() is exported by every TensorFlow from 2.16 on. A GpuDevice begins with a
 * pointer to its StreamInterface, whose third virtual function (after two destructors) returns a pointer to the
 * stream. Should a later TensorFlow no longer export it, or TFUSE_STREAM=fence ask for it, the work runs on a stream
 * of our own between two fences (kernels/core/gpu/fence.c). */
#include <stdlib.h>
#include <string.h>

#include "bind.h"
#include "kernels/core/gpu/cuda.h"
#include "kernels/core/gpu/library.h"

#define SYMBOL "_ZNK10tensorflow15OpKernelContext12eigen_deviceIN5Eigen9GpuDeviceEEERKT_v"

typedef struct stream_interface {
  const struct stream_vtable *table;
} stream_interface;
struct stream_vtable {
  void (*destroy)(stream_interface *), (*destroy_and_free)(stream_interface *);
  void *const *(*stream)(const stream_interface *);
};
typedef struct gpu_device {
  const stream_interface *interface;
} gpu_device;

static const gpu_device *(*device_of)(void *ctx);

__attribute__((constructor)) static void find(void) {
  const char *forced = getenv("TFUSE_STREAM");
  if (!forced || strcmp(forced, "fence")) *(void **)&device_of = tfu_of_tensorflow(SYMBOL);
}

TFU_EXPORT const char *tfu_stream_route(void) {
  return device_of ? "TensorFlow's own stream" : "a stream of tfuse's between two event fences";
}

tfu_code tfu_stream_open(void *ctx, tfu_stream *s, tfu_error *err) {
  *s = (tfu_stream){.fenced = !device_of};
  if (s->fenced) return tfu_fence_open(&s->stream, err);
  const stream_interface *i = device_of(ctx)->interface;
  s->stream = *i->table->stream(i);
  return TFU_OK;
}

tfu_code tfu_stream_close(const tfu_stream *s, tfu_error *err) {
  return s->fenced ? tfu_fence_close(s->stream, err) : TFU_OK;
}
