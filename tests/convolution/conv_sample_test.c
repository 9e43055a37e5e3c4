/* conv_sample_test.c - how engines are told apart by error, without a GPU: against a driver of our own that puts sums
 * and results where kernels would. Which results are looked at, of how many terms; what error comes of them. */
#include <float.h>
#include <math.h>

#include "kernels/convolution/conv_sample.h"
#include "tests/stand_in_driver.h"

/* ---- the driver ---- */

static double sums[CONV_SAMPLE_MOST], sizes[CONV_SAMPLE_MOST]; /* of every sample, put into its last part */
static CUlaunchConfig last;

static CUresult get_kernel(CUkernel *kernel, CUlibrary library, const char *name) {
  (void)library;
  *kernel = (CUkernel)(strcmp(name, "conv_sample_f32") ? "sampled" : "sample");
  return CUDA_SUCCESS;
}

static CUresult launch(const CUlaunchConfig *c, CUfunction f, void **args, void **extra) {
  const conv_sample_args *m = args[0];
  (void)extra;
  last = *c;
  for (int i = 0; i < m->samples; i++) {
    double *part = m->sums + (int64_t)i * m->parts * 2;
    if (!strcmp((const char *)f, "sampled")) {
      m->got[i] = (double)m->result[conv_sample_where(m, conv_sample_index(m, i))];
      continue;
    }
    memset(part, 0, (size_t)m->parts * 2 * sizeof *part);
    part[m->parts * 2 - 2] = sums[i], part[m->parts * 2 - 1] = sizes[i];
  }
  return CUDA_SUCCESS;
}

static CUresult copy(void *to, CUdeviceptr from, size_t bytes, CUstream stream) {
  (void)stream;
  memcpy(to, (const void *)from, bytes);
  return CUDA_SUCCESS;
}

static CUresult create_event(CUevent *event, unsigned flags) {
  (void)flags;
  *event = NULL;
  return CUDA_SUCCESS;
}
static CUresult record_event(CUevent event, CUstream stream) {
  (void)event, (void)stream;
  return CUDA_SUCCESS;
}
static CUresult with_event(CUevent event) {
  (void)event;
  return CUDA_SUCCESS;
}

tfu_code tfu_driver_get(const tfu_driver **driver, tfu_error *err) {
  static const tfu_driver stand_in = {STAND_INS,
                                      .cuLibraryGetKernel = get_kernel,
                                      .cuLaunchKernelEx = launch,
                                      .cuMemcpyDtoHAsync_v2 = copy,
                                      .cuEventCreate = create_event,
                                      .cuEventRecord = record_event,
                                      .cuEventSynchronize = with_event,
                                      .cuEventDestroy_v2 = with_event};
  (void)err;
  *driver = &stand_in;
  return TFU_OK;
}

/* ---- which results ---- */

/* 3 x 3 windows with as much padding as keeps the size. */
static conv_args square(int64_t batch, int64_t size, int64_t groups, int64_t c, int64_t k) {
  return (conv_args){.s = {.batch = batch,
                           .groups = groups,
                           .c = c,
                           .k = k,
                           .in = {1, size, size},
                           .out = {1, size, size},
                           .window = {1, 3, 3},
                           .stride = {1, 1, 1},
                           .dilation = {1, 1, 1},
                           .before = {0, 1, 1}}};
}

static void test_plan(void) {
  static const struct {
    conv_pass pass;
    int64_t batch, size, groups, c, k, results, terms;
    int samples, parts;
  } plans[] = {
      {CONV_FORWARD, 8, 56, 1, 64, 128, 8 * 56 * 56 * 128, 9 * 64, 64, 2},
      {CONV_DATA, 8, 56, 1, 64, 128, 8 * 56 * 56 * 64, 9 * 128, 64, 4},
      {CONV_FILTER, 8, 56, 1, 64, 128, 9 * 64 * 128, 8 * 56 * 56, 64, 16},
      {CONV_FORWARD, 2, 9, 4, 3, 5, 2 * 81 * 20, 27, 64, 1},
      {CONV_DATA, 2, 9, 4, 3, 5, 2 * 81 * 12, 45, 64, 1},
      {CONV_FILTER, 2, 9, 4, 3, 5, 9 * 3 * 20, 2 * 81, 64, 1},
      {CONV_FILTER, 1, 2, 1, 1, 2, 18, 4, 18, 1}, /* fewer results than samples */
      {CONV_FILTER, 1 << 6, 1 << 7, 1, 64, 64, 9 << 12, 1 << 20, 64, 16},
      {CONV_FILTER, 1 << 8, 1 << 7, 1, 64, 64, 9 << 12, 1 << 22, 16, 64},
      {CONV_FILTER, 1 << 15, 1 << 7, 1, 3, 3, 81, 1 << 29, 8, 128},
  };
  for (int i = 0; i < TFU_COUNT(plans); i++) {
    const conv_args a = square(plans[i].batch, plans[i].size, plans[i].groups, plans[i].c, plans[i].k);
    const conv_sample_args m = tfu_conv_sample_plan(plans[i].pass, &a);
    CHECK_FOR(m.results == plans[i].results && m.terms == plans[i].terms, "%d: %lld results of %lld terms", i,
              (long long)m.results, (long long)m.terms);
    CHECK_FOR(m.samples == plans[i].samples && m.parts == plans[i].parts, "%d: %d samples in %d parts", i, m.samples,
              m.parts);
    CHECK(m.samples * m.parts <= CONV_SAMPLE_BLOCKS);
    CHECK(conv_sample_index(&m, 0) == 0 && conv_sample_index(&m, m.samples - 1) == m.results - 1);
    for (int p = 1; p < m.samples; p++) CHECK(conv_sample_index(&m, p) > conv_sample_index(&m, p - 1));
  }
  const conv_args one = square(1, 1, 1, 1, 1);
  CHECK(conv_sample_index(&(conv_sample_args){.a = one, .results = 1, .samples = 1}, 0) == 0);
}

/* cuDNN's kernel is [outputs, taps and channels], ours [taps and channels, outputs]. */
static void test_where(void) {
  const conv_args a = square(2, 9, 2, 3, 4);
  const conv_sample_args filter = tfu_conv_sample_plan(CONV_FILTER, &a), data = tfu_conv_sample_plan(CONV_DATA, &a);
  for (int line = 0; line < 27; line++)
    for (int k = 0; k < 8; k++) CHECK(conv_sample_where(&filter, line * 8 + k) == k * 27 + line);
  CHECK(conv_sample_where(&data, 77) == 77);
}

/* ---- errors ---- */

/* Results that are 1 of 4, and `apart` of that too much; the first sample's sum and size are the given ones. */
static double error_of(conv_pass pass, float apart, double sum, double size, int relu, double *limit) {
  static float result[2 * 81 * 8];
  run *r = start(&tfu_conv_own);
  conv_sample s;
  double error = -1;
  conv_args a = square(2, 9, 2, 3, 4);
  a.relu = relu;
  for (int i = 0; i < TFU_COUNT(result); i++) result[i] = 1 + 4 * apart;
  for (int i = 0; i < CONV_SAMPLE_MOST; i++) sums[i] = i ? 1 : sum, sizes[i] = i ? 4 : size;
  if (relu) result[0] = 0;
  CHECK(tfu_conv_sample_take(&r->call, pass, &a, result, &s) == TFU_OK);
  CHECK(last.gridDimX == (unsigned)s.m.samples && last.gridDimY == (unsigned)s.m.parts && last.blockDimX == 256);
  CHECK(tfu_conv_sample_error(&r->call, &s, &error) == TFU_OK);
  if (limit) *limit = tfu_conv_sample_limit(&s);
  for (int i = 0; i < r->n; i++) free(r->held[i]);
  free(r);
  return error;
}

static void test_error(void) {
  double limit;
  for (int p = 0; p < CONV_PASSES; p++) {
    CHECK(error_of((conv_pass)p, 0, 1, 4, 0, NULL) == 0);
    CHECK(error_of((conv_pass)p, 0x1p-12f, 1, 4, 0, &limit) == 0x1p-12);
    CHECK(limit > 64 * FLT_EPSILON && limit < 0x1p-12);
    CHECK(error_of((conv_pass)p, NAN, 1, 4, 0, NULL) == INFINITY);
    /* One sample of 64 that is wrong. */
    CHECK(error_of((conv_pass)p, 0, -1, 4, 0, &limit) == sqrt(0.25 / 64) && limit < sqrt(0.25 / 64));
    /* What float cannot hold is not judged, nor is what has no terms. */
    CHECK(error_of((conv_pass)p, 0x1p-12f, 1e39, 1e39, 0, NULL) == 0x1p-12);
    CHECK(error_of((conv_pass)p, 0x1p-12f, 1e-40, 1e-40, 0, NULL) == 0x1p-12);
    CHECK(error_of((conv_pass)p, 0x1p-12f, NAN, NAN, 0, NULL) == 0x1p-12);
    CHECK(error_of((conv_pass)p, 0x1p-12f, 0, 0, 0, NULL) == 0x1p-12);
  }
  CHECK(error_of(CONV_FORWARD, 0, -3, 4, 1, NULL) == 0); /* relu makes 0 of it */
}

int main(void) {
  test_plan();
  test_where();
  test_error();
  return verdict();
}
