#include "kernels/core/nvidia/cudnn.h"

#include <pthread.h>

#include "kernels/core/gpu/cuda.h"
#include "kernels/core/table.h"

static void ask_version(void *cudnn) { ((tfu_cudnn *)cudnn)->version = (int)((tfu_cudnn *)cudnn)->cudnnGetVersion(); }

const tfu_cudnn *tfu_cudnn_get(const char **why) {
  static const char *const functions[] = {TFU_CUDNN_FUNCTIONS(TFU_NAME) NULL};
  static tfu_cudnn cudnn;
  static tfu_shared library = {.called = "libcudnn.so.9",
                               .names = {"libcudnn.so.9"},
                               .folders = {"nvidia/cudnn/lib"},
                               .functions = functions,
                               .table = &cudnn,
                               .ready = ask_version,
                               .why = "%s is not there: pip install 'tensorflow[and-cuda]' brings it"};
  *why = tfu_shared_open(&library);
  return *why ? NULL : &cudnn;
}

static int allowed;

static void read_environment(void) { allowed = !tfu_switched_off("TFUSE_CUDNN"); }

int tfu_cudnn_allowed(void) {
  static pthread_once_t once = PTHREAD_ONCE_INIT;
  pthread_once(&once, read_environment);
  return allowed;
}

tfu_code tfu_cudnn_code(const tfu_cudnn *dnn, cudnnStatus_t status, const char *what, tfu_error *err) {
  char text[320] = "";
  if (status == CUDNN_STATUS_SUCCESS) return TFU_OK;
  dnn->cudnnGetLastErrorString(text, sizeof text);
  return tfu_fail(err, TFU_INTERNAL, "%s: %s: %s", what, dnn->cudnnGetErrorString(status), text);
}

/* ---- handles ---- */

static tfu_code create(const void *gpu, void *handle, void *dnn_, tfu_error *err) {
  const tfu_cudnn *dnn = dnn_;
  (void)gpu;
  return tfu_cudnn_code(dnn, dnn->cudnnCreate(&((tfu_cudnn_handle *)handle)->handle), "cudnnCreate", err);
}

/* As many of a GPU as threads have used it at the same time. */
static tfu_table handles =
    TFU_TABLE(.value = sizeof(tfu_cudnn_handle), .most = TFU_KEEP_ALL, .exclusive = 1, .make = create);

tfu_code tfu_cudnn_borrow(const tfu_cudnn *dnn, void *stream, tfu_cudnn_handle **out, tfu_error *err) {
  tfu_device device;
  TFU_TRY(tfu_device_now(&device, err));
  void *free = NULL;
  TFU_TRY(tfu_table_get(&handles, &device.ordinal, sizeof device.ordinal, (void *)dnn, &free, err));
  tfu_cudnn_handle *h = free;
  if (h->stream != stream) { /* setting it costs 2.5 us even where it is the same; NULL is a new handle's own */
    const tfu_code code = tfu_cudnn_code(dnn, dnn->cudnnSetStream(h->handle, stream), "cudnnSetStream", err);
    if (code != TFU_OK) {
      tfu_cudnn_return(h);
      return code;
    }
    h->stream = stream;
  }
  *out = h;
  return TFU_OK;
}

void tfu_cudnn_return(tfu_cudnn_handle *h) { tfu_table_put(&handles, h, NULL); }
