#include "kernels/core/cuda.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>

#include "kernels/core/driver.h"

/* ---- devices ---- */

tfu_code tfu_device_now(tfu_device *device, tfu_error *err) {
  enum { KNOWN = 64 };
  static _Atomic(int64_t) known[KNOWN]; /* capability << 32 | multiprocessors; zero until asked */
  const tfu_driver *d;
  CUdevice ordinal;
  TFU_TRY(tfu_driver_get(&d, err));
  TFU_TRY(tfu_driver_code(d, d->cuCtxGetDevice(&ordinal), "finding the current GPU", err));
  int64_t packed = ordinal < KNOWN ? atomic_load(&known[ordinal]) : 0;
  if (!packed) {
    int major = 0, minor = 0, count = 0;
    CUresult r = d->cuDeviceGetAttribute(&major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, ordinal);
    if (!r) r = d->cuDeviceGetAttribute(&minor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, ordinal);
    if (!r) r = d->cuDeviceGetAttribute(&count, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, ordinal);
    TFU_TRY(tfu_driver_code(d, r, "asking the GPU for its properties", err));
    packed = (int64_t)(major * 10 + minor) << 32 | count;
    if (ordinal < KNOWN) atomic_store(&known[ordinal], packed);
  }
  *device = (tfu_device){.ordinal = ordinal, .capability = (int)(packed >> 32), .multiprocessors = (int)packed};
  return TFU_OK;
}

/* ---- images ---- */

int tfu_image_for(const tfu_image *images, int capability) {
  int best = -1, ptx = -1;
  for (int i = 0; images[i].bytes; i++) {
    if (images[i].capability > capability) continue;
    if (images[i].is_ptx) ptx = i;
    else if (images[i].capability / 10 == capability / 10 &&
             (best < 0 || images[i].capability > images[best].capability))
      best = i;
  }
  return best >= 0 ? best : ptx;
}

static tfu_code load_library(tfu_module *m, int image, void **library, tfu_error *err) {
  static pthread_mutex_t loading = PTHREAD_MUTEX_INITIALIZER;
  const tfu_driver *d;
  TFU_TRY(tfu_driver_get(&d, err));
  pthread_mutex_lock(&loading);
  CUlibrary loaded = atomic_load(&m->library[image]);
  CUresult r = CUDA_SUCCESS;
  if (!loaded) {
    r = d->cuLibraryLoadData(&loaded, m->images[image].bytes, NULL, NULL, 0, NULL, NULL, 0);
    if (!r) atomic_store(&m->library[image], loaded);
  }
  pthread_mutex_unlock(&loading);
  *library = loaded;
  return tfu_driver_code(d, r, "loading tfuse's device code", err);
}

/* ---- kernels ---- */

/* One function of one image; found once, kept for the life of the process. */
typedef struct tfu_loaded {
  CUkernel kernel;
  char label[96]; /* for tfuse.explain() */
} tfu_loaded;

static tfu_code find(tfu_kernel *k, int image, int variant, tfu_dtype dtype, tfu_loaded **out, tfu_error *err) {
  _Atomic(tfu_loaded *) *slot = &k->loaded[image][variant][dtype];
  if ((*out = atomic_load_explicit(slot, memory_order_acquire))) return TFU_OK;

  const tfu_driver *d;
  void *library;
  char name[80];
  tfu_loaded *mine, *theirs = NULL;
  TFU_TRY(tfu_driver_get(&d, err));
  TFU_TRY(load_library(k->module, image, &library, err));
  snprintf(name, sizeof name, "%s%s%s_%s", k->name, k->variants ? "_" : "", k->variants ? k->variants[variant] : "",
           tfu_dtype_tag(dtype));
  if (!(mine = malloc(sizeof *mine))) return tfu_fail(err, TFU_EXHAUSTED, "out of host memory");
  const tfu_code code = tfu_driver_code(d, d->cuLibraryGetKernel(&mine->kernel, library, name), name, err);
  if (code != TFU_OK) {
    free(mine);
    return code;
  }
  const tfu_image *i = &k->module->images[image];
  snprintf(mine->label, sizeof mine->label, "%s (%s_%d)", name, i->is_ptx ? "compute" : "sm", i->capability);
  if (atomic_compare_exchange_strong(slot, &theirs, mine)) {
    *out = mine;
  } else { /* another thread was first */
    free(mine);
    *out = theirs;
  }
  return TFU_OK;
}

tfu_code tfu_launch(tfu_call *call, tfu_kernel *k, int variant, tfu_dtype dtype, tfu_grid g, void *args) {
  tfu_device device;
  tfu_loaded *loaded;
  const tfu_driver *d;
  TFU_TRY(tfu_device_now(&device, call->err));
  const int image = tfu_image_for(k->module->images, device.capability);
  if (image < 0)
    return tfu_fail(call->err, TFU_UNIMPLEMENTED, "no kernels for compute capability %d.%d: 7.0 is the oldest served",
                    device.capability / 10, device.capability % 10);
  TFU_TRY(find(k, image, variant, dtype, &loaded, call->err));
  TFU_TRY(tfu_driver_get(&d, call->err));
  if (!call->kernel) call->kernel = loaded->label; /* the first is the one that names the work */
  const CUresult r = d->cuLaunchKernel((CUfunction)loaded->kernel, g.x ? g.x : 1, g.y ? g.y : 1, 1, g.threads, 1, 1,
                                       g.shared, call->stream, (void *[]){args}, NULL);
  return tfu_driver_code(d, r, loaded->label, call->err);
}
