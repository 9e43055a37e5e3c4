/* host_kernels.h - of a driver of a test's own: kernels that compute on the host, found by their names, and memory that
 * is the host's. So what launches them is tested as it is. */
#ifndef TFUSE_TESTS_HOST_KERNELS_H_
#define TFUSE_TESTS_HOST_KERNELS_H_

#include "kernels/core/gpu/channels.h"
#include "kernels/core/gpu/walk.h"
#include "kernels/products/linear.h"
#include "tests/check.h"
#include "tests/products/any_dtype.h"
#include "tests/stand_in_driver.h"

typedef struct host_kernel {
  const char *name; /* all that stands before a variant and the dtype */
  void (*run)(void *args, tfu_dtype dtype, const CUlaunchConfig *grid);
} host_kernel;

static const host_kernel *host_kernels; /* those of the test, up to one without a name */
static int launches;                    /* of all but folds, which end what another has begun */
static int dry;                         /* nothing is computed */

/* The kernel of a table with the longest name that fits. */
static CUresult launch_on_host(const CUlaunchConfig *c, CUfunction f, void **args, void **extra) {
  const char *name = (const char *)f, *tag = strrchr(name, '_') + 1;
  const host_kernel *found = NULL;
  tfu_dtype dtype = 0;
  (void)extra;
  while (dtype < TFU_DTYPES && strcmp(tag, tfu_dtype_tag(dtype))) dtype++; /* all of them: it is of "any" */
  for (const host_kernel *k = host_kernels; k && k->name; k++)
    if (!strncmp(name, k->name, strlen(k->name)) && name[strlen(k->name)] == '_' &&
        (!found || strlen(k->name) > strlen(found->name)))
      found = k;
  CHECK_FOR(found && (dtype < TFU_DTYPES || !strcmp(tag, "any")), "%s is not in the table", name);
  launches += strncmp(name, "fold_", 5) != 0;
  if (found && !dry) found->run(args[0], dtype, c);
  return CUDA_SUCCESS;
}

static CUresult fill_bytes(CUdeviceptr to, unsigned char value, size_t n, CUstream stream) {
  (void)stream;
  memset((void *)(uintptr_t)to, value, n);
  return CUDA_SUCCESS;
}

/* These, as members of a tfu_driver. */
#define HOST_KERNEL_STAND_INS \
  .cuLibraryGetKernel = get_named_kernel, .cuLaunchKernelEx = launch_on_host, .cuMemsetD8Async = fill_bytes

/* ---- kernels that several tests have ---- */

static inline double activate(int act, double v, int derivative) {
  const double one = 1, zero = -0.0;
  double out;
  (derivative ? tfu_activations[act].grad_f64 : tfu_activations[act].value_f64)(&out, &v, &one, &zero, 1);
  return out;
}

/* Weight k of element i. */
static inline double weight(const tfu_channels_args *a, int k, tfu_dtype dtype, int64_t i) {
  CHECK(a->count[k] <= 1 || a->count[k] == a->cols);
  return a->count[k] ? at(a->w[k], dtype, i % a->count[k]) : a->absent[k];
}

/* Of linear: the columns of dy summed, and what follows a product. */
static inline void sum_rows(void *args, tfu_dtype dtype, const CUlaunchConfig *c) {
  const linear_sums_args *a = args;
  for (int64_t i = 0; i < a->cols * (int64_t)c->gridDimY; i++) {
    double sum = 0; /* in the first of the blocks */
    for (int64_t row = 0; row < a->rows && i < a->cols; row++) sum += at(a->dy, dtype, row * a->cols + i);
    put(a->partial, tfu_real(dtype), i, sum);
  }
}

static inline void finish_rows(void *args, tfu_dtype dtype, const CUlaunchConfig *c) {
  const tfu_channels_args *a = args;
  (void)c;
  for (int64_t i = 0; i < a->walk.n; i++) {
    const double v = activate(a->activation, at(a->x[0], dtype, i) + weight(a, 0, dtype, i), 0);
    put(a->y[0], dtype, i, v + at(a->x[1], dtype, i));
  }
}

/* act(x * scale + bias) */
static inline void bias_act(void *args, tfu_dtype dtype, const CUlaunchConfig *c) {
  const tfu_channels_args *a = args;
  (void)c;
  for (int64_t i = 0; i < a->walk.n; i++)
    put(a->y[0], dtype, i,
        activate(a->activation, at(a->x[0], dtype, i) * weight(a, 0, dtype, i) + weight(a, 1, dtype, i), 0));
}

/* dy * act'(x), and its sums per channel, which are all in the first of the blocks; of dy * x there are none. */
static inline void act_grad(void *args, tfu_dtype dtype, const CUlaunchConfig *c) {
  const tfu_channels_args *a = args;
  const tfu_dtype real = tfu_real(dtype);
  double *sums = calloc((size_t)a->cols, sizeof *sums);
  (void)c;
  CHECK(!a->count[0] && !a->count[1] && a->sum_width % a->cols == 0);
  for (int64_t i = 0; i < a->walk.n; i++) {
    const double g = at(a->x[0], dtype, i) * activate(a->activation, at(a->x[1], dtype, i), 1);
    sums[i % a->cols] += g;
    put(a->y[0], dtype, i, g);
  }
  for (int64_t i = 0; a->partial && i < a->sum_blocks * 2 * a->sum_width; i++) put(a->partial, real, i, 0);
  for (int64_t i = 0; a->partial && i < a->cols; i++) put(a->partial, real, a->sum_width + i, sums[i]);
  free(sums);
}

static inline void fold(void *args, tfu_dtype dtype, const CUlaunchConfig *c) {
  const tfu_fold_args *a = args;
  (void)c;
  for (int q = 0; q < a->quantities; q++)
    for (int64_t i = 0; i < a->count[q]; i++) {
      double sum = 0;
      for (int64_t b = 0; b < a->blocks; b++)
        for (int64_t k = i; k < a->width; k += a->count[q])
          sum += at(a->from, tfu_real(dtype), (b * a->quantities + q) * a->width + k);
      put(a->out[q], dtype, i, sum);
    }
}

#define HOST_PASSES \
  {"scale_bias_act", bias_act}, {"scale_bias_act_grad", act_grad}, { "fold", fold }

#endif
