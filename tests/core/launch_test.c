/* launch_test.c - kernels as they are found and kept, without a GPU: what one takes before it is launched, and threads
 * that launch it for the first time, all at once. */
#include <pthread.h>
#include <stdatomic.h>

#include "kernels/core/gpu/cuda.h"
#include "tests/stand_in_driver.h"

enum { THREADS = 8, ROUNDS = 50, VARIANTS = 3 };

static pthread_barrier_t all_there;
static atomic_int launches, handles, others, waiting;

/* Every handle is another. The threads wait for each other here, so that each of them has found one. */
static CUresult get_kernel(CUkernel *kernel, CUlibrary library, const char *name) {
  (void)library;
  CHECK_FOR(!strncmp(name, "some_v", 6) && strstr(name, "_f16"), "%s", name);
  *kernel = (CUkernel)(uintptr_t)++handles;
  if (waiting-- > 0) pthread_barrier_wait(&all_there);
  return CUDA_SUCCESS;
}

static _Atomic(CUfunction) last;
static CUresult launch(const CUlaunchConfig *c, CUfunction f, void **args, void **extra) {
  CHECK(c->gridDimX == 3 && c->blockDimX == 64 && *(int *)args[0] == 7 && !extra);
  const CUfunction before = atomic_exchange(&last, f);
  others += before && before != f;
  launches++;
  return CUDA_SUCCESS;
}

tfu_code tfu_driver_get(const tfu_driver **driver, tfu_error *err) {
  static const tfu_driver own = {STAND_INS, .cuLibraryGetKernel = get_kernel, .cuLaunchKernelEx = launch};
  (void)err;
  *driver = &own;
  return TFU_OK;
}

/* A byte, as a .lzma file. */
static const unsigned char code[] = {0xd8, 0x00, 0x00, 0x80, 0x00, 0x01, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00,
                                     0x00, 0x00, 0x00, 0x41, 0xfe, 0xf7, 0xff, 0xff, 0xe0, 0x00, 0x80, 0x00};
static const tfu_image images[] = {{.capability = 90, .bytes = code, .size = sizeof code}, {0}};
static const char *const variants[] = {"v0", "v1", "v2"};

typedef struct job {
  tfu_kernel *kernel;
  int variant;
  const char *label;
} job;

static void *launch_once(void *job_) {
  job *j = job_;
  tfu_error err = {""};
  tfu_call call = {.err = &err};
  int args = 7;
  CHECK_FOR(tfu_launch(&call, j->kernel, j->variant, TFU_F16, (tfu_grid){.x = 3, .threads = 64}, &args) == TFU_OK, "%s",
            err.text);
  j->label = call.kernel;
  return NULL;
}

/* One handle is kept, whoever found it, and all have its label from then on. */
static void test_threads(void) {
  for (int round = 0; round < ROUNDS; round++) {
    static tfu_module module = {.images = images};
    static tfu_kernel kernels[ROUNDS];
    tfu_kernel *kernel = &kernels[round];
    *kernel = (tfu_kernel){.module = &module, .name = "some", .variants = variants};
    for (int variant = 0; variant < VARIANTS; variant++) {
      pthread_t thread[THREADS];
      job jobs[THREADS + 1];
      atomic_store(&last, NULL);
      atomic_store(&waiting, THREADS);
      for (int i = 0; i <= THREADS; i++) jobs[i] = (job){.kernel = kernel, .variant = variant};
      for (int i = 0; i < THREADS; i++) CHECK(!pthread_create(&thread[i], NULL, launch_once, &jobs[i]));
      for (int i = 0; i < THREADS; i++) pthread_join(thread[i], NULL);
      launch_once(&jobs[THREADS]);
      for (int i = 1; i <= THREADS; i++) CHECK(jobs[i].label == jobs[0].label);
      CHECK_FOR(strstr(jobs[0].label, variants[variant]) && strstr(jobs[0].label, "(sm_90)"), "%s", jobs[0].label);
    }
  }
  CHECK(launches == ROUNDS * VARIANTS * (THREADS + 1) && others == 0);
}

int main(void) {
  CHECK_FOR(sizeof(tfu_kernel) <= 128, "every kernel has one, launched or not: %zu bytes", sizeof(tfu_kernel));
  pthread_barrier_init(&all_there, NULL, THREADS);
  test_threads();
  return verdict();
}
