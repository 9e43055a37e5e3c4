#include "kernels/core/gpu/cuda.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/core/gpu/driver.h"
#include "kernels/core/gpu/lzma.h"
#include "kernels/core/table.h"

/* ---- devices ---- */

static tfu_code ask(const tfu_driver *d, CUdevice ordinal, tfu_device *device, tfu_error *err) {
  int major = 0, minor = 0;
  const struct {
    CUdevice_attribute which;
    int *value;
  } questions[] = {{CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, &major},
                   {CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, &minor},
                   {CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, &device->multiprocessors},
                   {CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR, &device->shared},
                   {CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN, &device->block_shared}};
  for (int i = 0; i < TFU_COUNT(questions); i++)
    TFU_TRY(tfu_driver_code(d, d->cuDeviceGetAttribute(questions[i].value, questions[i].which, ordinal),
                            "asking the GPU for its properties", err));
  device->ordinal = ordinal;
  device->capability = major * 10 + minor;
  return TFU_OK;
}

tfu_code tfu_device_now(tfu_device *device, tfu_error *err) {
  enum { GPUS = 64 };
  static tfu_device known[GPUS];
  static atomic_int ready[GPUS];
  static pthread_mutex_t asking = PTHREAD_MUTEX_INITIALIZER;
  const tfu_driver *d;
  CUdevice ordinal;
  TFU_TRY(tfu_driver_get(&d, err));
  TFU_TRY(tfu_driver_code(d, d->cuCtxGetDevice(&ordinal), "finding the current GPU", err));
  if (ordinal >= GPUS) return ask(d, ordinal, device, err);
  if (!atomic_load_explicit(&ready[ordinal], memory_order_acquire)) {
    pthread_mutex_lock(&asking);
    /* Not again: others may be reading it. */
    const tfu_code code = atomic_load(&ready[ordinal]) ? TFU_OK : ask(d, ordinal, &known[ordinal], err);
    if (code == TFU_OK) atomic_store_explicit(&ready[ordinal], 1, memory_order_release);
    pthread_mutex_unlock(&asking);
    TFU_TRY(code);
  }
  *device = known[ordinal];
  return TFU_OK;
}

tfu_code tfu_per_gpu(tfu_table *table, const void *with, void **mine, tfu_error *err) {
  tfu_device device;
  void *kept = NULL;
  TFU_TRY(tfu_device_now(&device, err));
  TFU_TRY(tfu_table_get(table, &device.ordinal, sizeof device.ordinal, (void *)with, &kept, err));
  *mine = *(void **)kept;
  return TFU_OK;
}

void tfu_device_name(char *name, int size) {
  const tfu_driver *d = tfu_driver_if_any();
  CUdevice ordinal;
  if (size > 0) name[0] = 0;
  if (!d || d->cuCtxGetDevice(&ordinal)) return;
  if (d->cuDeviceGetName(name, size, ordinal) && size > 0) name[0] = 0;
}

int tfu_aligned(const tfu_call *call, int64_t elements) {
  for (int i = 0; i < TFU_MAX_ARGS; i++) {
    const tfu_tensor *both[] = {&call->in[i], &call->out[i]};
    for (int k = 0; k < 2; k++)
      if (both[k]->data && tfu_count(&both[k]->shape) == elements && (uintptr_t)both[k]->data % 16) return 0;
  }
  return 1;
}

/* ---- images ---- */

enum { OLDEST = 70 };

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

tfu_code tfu_no_image(const tfu_image *images, int capability, tfu_error *err) {
  char names[TFU_MAX_IMAGES * 12] = "none";
  const char *mend = "build it where the GPU is (./run build), or for all GPUs (./run wheel)";
  for (int i = 0, at = 0; images[i].bytes; i++)
    at += snprintf(names + at, sizeof names - (size_t)at, "%s%s_%d", i ? ", " : "", images[i].is_ptx ? "compute" : "sm",
                   images[i].capability);
  if (capability < OLDEST) mend = "7.0 is the oldest that can be";
  return tfu_fail(err, TFU_UNIMPLEMENTED,
                  "a GPU of compute capability %d.%d is not served by this library, which has %s: %s", capability / 10,
                  capability % 10, names, mend);
}

static tfu_code image_now(const tfu_module *m, int *image, tfu_error *err) {
  tfu_device device;
  TFU_TRY(tfu_device_now(&device, err));
  *image = tfu_image_for(m->images, device.capability);
  return *image < 0 ? tfu_no_image(m->images, device.capability, err) : TFU_OK;
}

/* The driver keeps a copy of what it is given. */
static tfu_code load_image(const tfu_driver *d, const tfu_image *image, CUlibrary *library, tfu_error *err) {
  void *code;
  size_t size;
  TFU_TRY(tfu_lzma_decode(image->bytes, image->size, &code, &size, err));
  const int mode = tfu_capture_relax();
  const CUresult r = d->cuLibraryLoadData(library, code, NULL, NULL, 0, NULL, NULL, 0);
  tfu_capture_restore(mode);
  free(code);
  return tfu_driver_code(d, r, "loading tfuse's device code", err);
}

static tfu_code load_library(tfu_module *m, int image, void **library, tfu_error *err) {
  static pthread_mutex_t loading = PTHREAD_MUTEX_INITIALIZER;
  const tfu_driver *d;
  TFU_TRY(tfu_driver_get(&d, err));
  pthread_mutex_lock(&loading);
  CUlibrary loaded = atomic_load(&m->library[image]);
  tfu_code code = TFU_OK;
  if (!loaded) {
    code = load_image(d, &m->images[image], &loaded, err);
    if (!code) atomic_store(&m->library[image], loaded);
  }
  pthread_mutex_unlock(&loading);
  *library = loaded;
  return code;
}

tfu_code tfu_variable(tfu_module *m, const char *name, void **address, size_t *bytes, tfu_error *err) {
  const tfu_driver *d;
  void *library;
  int image;
  CUdeviceptr at = 0;
  TFU_TRY(tfu_driver_get(&d, err));
  TFU_TRY(image_now(m, &image, err));
  TFU_TRY(load_library(m, image, &library, err));
  TFU_TRY(tfu_driver_code(d, d->cuLibraryGetGlobal(&at, bytes, library, name), name, err));
  *address = (void *)(uintptr_t)at;
  return TFU_OK;
}

/* ---- kernels ---- */

/* One function of one image; found once, kept for the life of the process. */
typedef struct tfu_loaded {
  tfu_function function;
  char label[96]; /* for tfuse.explain() */
} tfu_loaded;

/* Those of one image. */
typedef struct tfu_variants {
  _Atomic(void *) of[TFU_MAX_VARIANTS][TFU_MAX_KEYS];
} tfu_variants;

const char *const tfu_bits[] = {"b8", "b16", "b32", "b64"}, *const tfu_any[] = {"any"};

int tfu_bits_of(size_t bytes) { return bytes == 1 ? 0 : bytes == 2 ? 1 : bytes == 4 ? 2 : 3; }

/* What is in the slot: `mine`, or where another thread was first, its own. Mine may be NULL for want of memory. */
static void *publish(_Atomic(void *) *slot, void *mine) {
  void *theirs = NULL;
  if (mine && atomic_compare_exchange_strong(slot, &theirs, mine)) return mine;
  free(mine);
  return theirs;
}

static tfu_code find(tfu_kernel *k, int image, int variant, int key, tfu_loaded **out, tfu_error *err) {
  tfu_variants *all = atomic_load_explicit(&k->loaded[image], memory_order_acquire);
  if (all && (*out = atomic_load_explicit(&all->of[variant][key], memory_order_acquire))) return TFU_OK;

  const tfu_driver *d;
  const tfu_image *i = &k->module->images[image];
  void *library;
  tfu_loaded found = {.function.static_shared = TFU_STATIC_SHARED}, *kept = NULL;
  char name[80];
  TFU_TRY(tfu_driver_get(&d, err));
  TFU_TRY(load_library(k->module, image, &library, err));
  snprintf(name, sizeof name, "%s%s%s_%s", k->name, k->variants ? "_" : "", k->variants ? k->variants[variant] : "",
           k->keys ? k->keys[key] : tfu_dtype_tag((tfu_dtype)key));
  TFU_TRY(tfu_driver_code(d, d->cuLibraryGetKernel((CUkernel *)&found.function.kernel, library, name), name, err));
  snprintf(found.label, sizeof found.label, "%s (%s_%d)", name, i->is_ptx ? "compute" : "sm", i->capability);
  if (!all) all = publish(&k->loaded[image], calloc(1, sizeof *all));
  if (all && (kept = malloc(sizeof *kept))) {
    memcpy(kept, &found, sizeof *kept);
    kept->function.name = kept->label;
    kept = publish(&all->of[variant][key], kept);
  }
  *out = kept;
  return kept ? TFU_OK : tfu_fail(err, TFU_EXHAUSTED, "out of host memory");
}

tfu_launch_text tfu_show_launch(const int64_t g[3], const int64_t b[3], int64_t shared) {
  tfu_launch_text t;
  snprintf(t.text, sizeof t.text,
           "grid (%" PRId64 ", %" PRId64 ", %" PRId64 "), block (%" PRId64 ", %" PRId64 ", %" PRId64 "), %" PRId64
           " bytes of shared memory",
           g[0], g[1], g[2], b[0], b[1], b[2], shared);
  return t;
}

/* More shared memory than 48 KiB, and clusters of more than 8 blocks, have to be asked for, once per kernel and device.
 * So has what kernels need that overlap: blocks of two kernels lie on a multiprocessor at one time only where both
 * divide its memory between shared memory and first cache in the same way, which here is all for the former. */
static tfu_code unleash(const tfu_driver *d, tfu_function *f, const tfu_grid *g, tfu_error *err) {
  enum { FREELY = 48 * 1024, CLUSTER = 8 };
  const int is_large = g->shared + (unsigned)f->static_shared > FREELY || g->cluster > CLUSTER;
  _Atomic(uint64_t) *const done = g->overlap ? &f->overlaps : &f->unleashed;
  tfu_device device;
  if (!is_large && !g->overlap) return TFU_OK;
  TFU_TRY(tfu_device_now(&device, err));
  const uint64_t bit = (uint64_t)1 << (device.ordinal % 64);
  if (atomic_load(done) & bit && device.ordinal < 64) return TFU_OK;
  CUresult r = d->cuKernelSetAttribute(CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES,
                                       device.block_shared - f->static_shared, f->kernel, device.ordinal);
  if (!r && device.capability >= 90)
    r = d->cuKernelSetAttribute(CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED, 1, f->kernel, device.ordinal);
  if (!r && g->overlap)
    r = d->cuKernelSetAttribute(CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT, CU_SHAREDMEM_CARVEOUT_MAX_SHARED,
                                f->kernel, device.ordinal);
  if (!r) atomic_fetch_or(done, bit);
  return tfu_driver_code(d, r, f->name, err);
}

tfu_code tfu_start(tfu_call *call, tfu_function *f, tfu_grid g, void **parameters) {
  const tfu_driver *d;
  TFU_TRY(tfu_driver_get(&d, call->err));
  TFU_TRY(unleash(d, f, &g, call->err));
  CUlaunchAttribute attributes[3];
  unsigned n = 0;
  if (g.cluster > 1)
    attributes[n++] = (CUlaunchAttribute){.id = CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION,
                                          .value.clusterDim = {.x = g.cluster, .y = 1, .z = 1}};
  if (g.together) attributes[n++] = (CUlaunchAttribute){.id = CU_LAUNCH_ATTRIBUTE_COOPERATIVE, .value.cooperative = 1};
  if (g.overlap)
    attributes[n++] = (CUlaunchAttribute){.id = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION,
                                          .value.programmaticStreamSerializationAllowed = 1};
  CUlaunchConfig config = {.gridDimX = g.x ? g.x : 1,
                           .gridDimY = g.y ? g.y : 1,
                           .gridDimZ = g.z ? g.z : 1,
                           .blockDimX = g.threads,
                           .blockDimY = g.threads_y ? g.threads_y : 1,
                           .blockDimZ = g.threads_z ? g.threads_z : 1,
                           .sharedMemBytes = g.shared,
                           .hStream = call->stream,
                           .attrs = attributes,
                           .numAttrs = n};
  if (g.resident && g.cluster > 1) {
    int clusters = 0;
    TFU_TRY(tfu_driver_code(d, d->cuOccupancyMaxActiveClusters(&clusters, (CUfunction)f->kernel, &config), f->name,
                            call->err));
    if (clusters > 0 && (unsigned)clusters < config.gridDimY) config.gridDimY = (unsigned)clusters;
  }
  const CUresult r = d->cuLaunchKernelEx(&config, (CUfunction)f->kernel, parameters, NULL);
  if (!r) return TFU_OK;
  char what[sizeof(tfu_launch_text) + 128];
  const int64_t grid[] = {config.gridDimX, config.gridDimY, config.gridDimZ};
  const int64_t block[] = {config.blockDimX, config.blockDimY, config.blockDimZ};
  snprintf(what, sizeof what, "kernel %.80s: %s", f->name, tfu_show_launch(grid, block, g.shared).text);
  return tfu_driver_code(d, r, what, call->err);
}

tfu_code tfu_resident_blocks(tfu_call *call, tfu_kernel *k, int variant, int key, tfu_grid g, int64_t *blocks) {
  const tfu_driver *d;
  tfu_loaded *loaded;
  tfu_device device;
  int image, n = 0;
  CUresult r;
  TFU_TRY(tfu_driver_get(&d, call->err));
  TFU_TRY(image_now(k->module, &image, call->err));
  TFU_TRY(find(k, image, variant, key, &loaded, call->err));
  TFU_TRY(tfu_device_now(&device, call->err));
  TFU_TRY(unleash(d, &loaded->function, &g, call->err));
  const CUfunction function = (CUfunction)loaded->function.kernel;
  if (g.cluster > 1) {
    CUlaunchAttribute cluster = {.id = CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION,
                                 .value.clusterDim = {.x = g.cluster, .y = 1, .z = 1}};
    const CUlaunchConfig config = {.gridDimX = g.cluster,
                                   .gridDimY = 1,
                                   .gridDimZ = 1,
                                   .blockDimX = g.threads,
                                   .blockDimY = 1,
                                   .blockDimZ = 1,
                                   .sharedMemBytes = g.shared,
                                   .attrs = &cluster,
                                   .numAttrs = 1};
    r = d->cuOccupancyMaxActiveClusters(&n, function, &config);
    *blocks = (int64_t)n * g.cluster;
  } else {
    r = d->cuOccupancyMaxActiveBlocksPerMultiprocessor(&n, function, (int)g.threads, g.shared);
    *blocks = (int64_t)n * device.multiprocessors;
  }
  return tfu_driver_code(d, r, loaded->label, call->err);
}

tfu_code tfu_launch(tfu_call *call, tfu_kernel *k, int variant, int key, tfu_grid grid, void *args) {
  tfu_loaded *loaded;
  int image;
  TFU_TRY(image_now(k->module, &image, call->err));
  TFU_TRY(find(k, image, variant, key, &loaded, call->err));
  if (!call->kernel) call->kernel = loaded->label; /* the first is the one that names the work */
  return tfu_start(call, &loaded->function, grid, (void *[]){args});
}

tfu_code tfu_fill(tfu_call *call, void *memory, uint32_t value, size_t words) {
  const tfu_driver *d;
  TFU_TRY(tfu_driver_get(&d, call->err));
  const CUresult r = d->cuMemsetD32Async((CUdeviceptr)(uintptr_t)memory, value, words, call->stream);
  return tfu_driver_code(d, r, "filling memory", call->err);
}

tfu_code tfu_clear(tfu_call *call, void *memory, size_t bytes) {
  const tfu_driver *d;
  if (!bytes) return TFU_OK;
  TFU_TRY(tfu_driver_get(&d, call->err));
  const CUresult r = d->cuMemsetD8Async((CUdeviceptr)(uintptr_t)memory, 0, bytes, call->stream);
  return tfu_driver_code(d, r, "clearing memory", call->err);
}
