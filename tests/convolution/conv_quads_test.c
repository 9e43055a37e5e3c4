/* conv_quads_test.c - whether a convolution in quads is the same convolution: x and kernel are arranged here as the
 * device does it, by the same conv_quads_source, and both are summed in double. */
#include "kernels/convolution/conv_quads.h"
#include "tests/check.h"

enum { MOST = 1 << 14 };

/* [batch, height, width, c] by a kernel [window_h, window_w, c, k]. */
typedef struct sample {
  int64_t batch, c, k, in[2], window[2], before[2], out[2];
} sample;

static conv_args args_of(const sample *s) {
  conv_args a = {.s = {.batch = s->batch, .groups = 1, .c = s->c, .k = s->k}};
  for (int i = 0; i < CONV_AXES; i++) {
    a.s.in[i] = i ? s->in[i - 1] : 1, a.s.out[i] = i ? s->out[i - 1] : 1, a.s.window[i] = i ? s->window[i - 1] : 1;
    a.s.before[i] = i ? s->before[i - 1] : 0, a.s.stride[i] = i ? 2 : 1, a.s.dilation[i] = 1;
  }
  return a;
}

static double number(int64_t i) { return (double)(i * 7919 % 101) - 50; }

/* Element `unit` of the tensor in quads, as a position in the other one; negative where it is 0. */
static int64_t source(const conv_quads_args *a, int64_t unit) {
  const int64_t inner = unit % a->inner, quad = unit / a->inner / CONV_QUAD_HALF;
  const int e = (int)(unit / a->inner % CONV_QUAD_HALF), half = (int)(quad % 2);
  const int64_t position = quad / 2 / a->quad_cols, batch = position / a->quad_rows;
  const int64_t at =
      conv_quads_source(a, (uint32_t)(position % a->quad_rows), (uint32_t)(quad / 2 % a->quad_cols), half, e);
  return at < 0 ? -1 : ((batch * a->rows * a->cols) + at) * a->inner + inner;
}

static void arrange(const conv_quads_args *a, int64_t elements, const double *from, double *to) {
  CHECK(elements <= MOST);
  for (int64_t unit = 0; unit < elements; unit++) to[unit] = source(a, unit) < 0 ? 0 : from[source(a, unit)];
}

/* Calls each(x, kernel, y) with the positions of every product. */
typedef void product_fn(void *with, int64_t x, int64_t kernel, int64_t y);
static void go_through(const conv_shape *s, product_fn *each, void *with) {
  for (int64_t n = 0; n < s->batch; n++)
    for (int64_t p = 0; p < s->out[1]; p++)
      for (int64_t q = 0; q < s->out[2]; q++)
        for (int64_t r = 0; r < s->window[1]; r++)
          for (int64_t t = 0; t < s->window[2]; t++) {
            const int64_t h = p * s->stride[1] + r - s->before[1], w = q * s->stride[2] + t - s->before[2];
            if (h < 0 || h >= s->in[1] || w < 0 || w >= s->in[2]) continue;
            for (int64_t c = 0; c < s->c; c++)
              for (int64_t k = 0; k < s->k; k++)
                each(with, ((n * s->in[1] + h) * s->in[2] + w) * s->c + c,
                     ((r * s->window[2] + t) * s->c + c) * s->k + k, ((n * s->out[1] + p) * s->out[2] + q) * s->k + k);
          }
}

typedef struct tensors {
  double x[MOST], kernel[MOST], y[MOST];
} tensors;
static void add_to_y(void *t_, int64_t x, int64_t kernel, int64_t y) {
  tensors *t = t_;
  t->y[y] += t->x[x] * t->kernel[kernel];
}
static void add_to_kernel(void *t_, int64_t x, int64_t kernel, int64_t y) {
  tensors *t = t_;
  t->kernel[kernel] += t->x[x] * t->y[y];
}

static void check_sample(const sample *s) {
  static tensors plain, quads;
  const conv_args a = args_of(s);
  conv_args made;
  conv_quads_args image, kernel;
  const int64_t n_x = s->batch * s->in[0] * s->in[1] * s->c, n_kernel = s->window[0] * s->window[1] * s->c * s->k,
                n_y = s->batch * s->out[0] * s->out[1] * s->k;
  CHECK(n_x <= MOST && n_kernel <= MOST && n_y <= MOST);
  for (int i = 0; i < MOST; i++) plain.x[i] = number(i), plain.kernel[i] = number(3 * i + 1);

  memset(plain.y, 0, sizeof plain.y), memset(quads.y, 0, sizeof quads.y);
  CHECK(tfu_conv_in_quads(CONV_FORWARD, TFU_BF16, &a, &made, &image, &kernel) && !kernel.back);
  arrange(&image, (int64_t)image.units * CONV_QUAD_HALF, plain.x, quads.x);
  arrange(&kernel, kernel.units, plain.kernel, quads.kernel);
  go_through(&a.s, add_to_y, &plain);
  go_through(&made.s, add_to_y, &quads);
  CHECK_FOR(!memcmp(plain.y, quads.y, sizeof plain.y), "%lld channels, window %lld", (long long)s->c,
            (long long)s->window[0]);

  for (int i = 0; i < MOST; i++) plain.y[i] = quads.y[i] = number(5 * i + 2);
  memset(plain.kernel, 0, sizeof plain.kernel), memset(quads.kernel, 0, sizeof quads.kernel);
  CHECK(tfu_conv_in_quads(CONV_FILTER, TFU_F16, &a, &made, &image, &kernel) && kernel.back);
  go_through(&a.s, add_to_kernel, &plain);
  go_through(&made.s, add_to_kernel, &quads);
  int64_t found = 0;
  for (int64_t unit = 0; unit < kernel.units; unit++) {
    const int64_t at = source(&kernel, unit);
    found += at >= 0;
    CHECK(at < 0 || plain.kernel[at] == quads.kernel[unit]);
  }
  CHECK(found == n_kernel); /* each is written, once */
}

static int takes(conv_pass pass, tfu_dtype dtype, const conv_args *a) {
  conv_args made;
  conv_quads_args image, kernel;
  return tfu_conv_in_quads(pass, dtype, a, &made, &image, &kernel);
}

int main(void) {
  static const sample samples[] = {
      {2, 3, 5, {20, 18}, {7, 7}, {3, 3}, {10, 9}}, {1, 3, 4, {15, 17}, {7, 7}, {3, 3}, {8, 9}},
      {2, 3, 4, {16, 16}, {3, 3}, {0, 0}, {8, 8}},  {2, 3, 4, {15, 9}, {3, 3}, {1, 1}, {8, 5}},
      {2, 1, 3, {9, 12}, {2, 5}, {0, 4}, {4, 6}},   {1, 4, 2, {7, 6}, {4, 3}, {2, 0}, {5, 2}},
      {3, 2, 1, {5, 5}, {5, 2}, {6, 1}, {8, 4}},    {1, 3, 2, {1, 1}, {3, 3}, {1, 1}, {1, 1}},
  };
  for (int i = 0; i < TFU_COUNT(samples); i++) check_sample(&samples[i]);

  const conv_args good = args_of(&samples[0]);
  CHECK(takes(CONV_FORWARD, TFU_F16, &good) && takes(CONV_FILTER, TFU_BF16, &good));
  CHECK(!takes(CONV_DATA, TFU_F16, &good) && !takes(CONV_FORWARD, TFU_F32, &good) &&
        !takes(CONV_FORWARD, TFU_F64, &good));
  for (int i = 0; i < 7; i++) {
    conv_args a = good;
    int64_t *const changed[] = {&a.s.c,           &a.s.groups,    &a.s.stride[1], &a.s.stride[2],
                                &a.s.dilation[1], &a.s.window[0], &a.s.batch};
    static const int64_t to[] = {5, 2, 1, 3, 2, 3, 1 << 24};
    *changed[i] = to[i];
    CHECK_FOR(!takes(CONV_FORWARD, TFU_F16, &a), "%d", i);
  }
  return failures != 0;
}
