/* conv_choose.c - which of cuDNN's engines computes a convolution is decided by timing and, in exact float32, by error,
 * with timing switched off too, once (tuned.h). What is remembered is a position in the list of proposals that cuDNN
 * makes for the shape, the same for one version and GPU. */
#include "kernels/convolution/conv_choose.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "kernels/core/gpu/cuda.h"

_Static_assert(sizeof(conv_key) <= TFU_TUNED_KEY, "tuned.h has room for it");

static const char *const passes[CONV_PASSES] = {
    [CONV_FORWARD] = "convolution", [CONV_DATA] = "data gradient", [CONV_FILTER] = "filter gradient"};

static void describe(const void *key, void *request_, char *text, size_t size) {
  const conv_request *r = request_;
  const conv_key *k = key;
  snprintf(text, size,
           "cuDNN %d, %s %s%s epilogue %d, %d x %dx%dx%d to %dx%dx%d, window %dx%dx%d, groups %d of %d to %d, stride "
           "%dx%dx%d, dilation %dx%dx%d, before %dx%dx%d",
           r->dnn->version, passes[k->pass], tfu_dtype_name((tfu_dtype)k->dtype),
           k->tf32             ? " as tf32"
           : tfu_conv_exact(k) ? " exact"
                               : "",
           k->epilogue, k->batch, k->in[0], k->in[1], k->in[2], k->out[0], k->out[1], k->out[2], k->window[0],
           k->window[1], k->window[2], k->groups, k->c, k->k, k->stride[0], k->stride[1], k->stride[2], k->dilation[0],
           k->dilation[1], k->dilation[2], k->before[0], k->before[1], k->before[2]);
}

conv_choice tfu_conv_chosen_of(const tfu_choice *choice) {
  conv_choice c;
  memcpy(&c, choice->data, sizeof c);
  return c;
}

static int plans(conv_request *r, int config, int64_t most) {
  if (config < 0 || config >= TFU_GRAPH_CONFIGS) return 0;
  tfu_planned *p = tfu_conv_plan(r, config);
  const int fits = p && p->graph->workspace <= most;
  if (p) tfu_conv_plan_put(p, NULL);
  return fits;
}

static int usable(const void *key, void *request_, const tfu_choice *choice) {
  (void)key;
  const conv_choice c = tfu_conv_chosen_of(choice);
  return plans(request_, c.best, CONV_MOST_WORKSPACE) &&
         (c.small < 0 || plans(request_, c.small, CONV_SMALL_WORKSPACE));
}

static int choose_among(conv_request *r, int timed, tfu_choice *choice) {
  tfu_error ignored;
  conv_choice c;
  tfu_tried best;
  tfu_graph *g = tfu_conv_ask(r, &r->key, &ignored);
  *choice = (tfu_choice){.none = !g || !tfu_conv_try(r, g, timed, &c, &best)};
  if (!choice->none) {
    choice->microseconds = best.microseconds;
    memcpy(choice->data, &c, sizeof c);
    tfu_choice_label(choice, "cuDNN %s%s, engine %d", passes[r->key.pass], r->key.epilogue ? " with epilogue" : "",
                     tfu_graph_engine(g, c.best));
  }
  tfu_graph_free(g);
  return !choice->none;
}

static tfu_chosen choose(const void *key, void *request_, tfu_choice *choice) {
  (void)key;
  conv_request *r = request_;
  const int can_time = tfu_may_wait(r->call), relu = r->key.epilogue & CONV_RELU;
  choose_among(r, tfu_tuning() && can_time, choice);
  if (choice->none && r->short_of_memory) return TFU_CHOSEN_ONCE; /* another time there may be more */
  if (r->short_of_memory) choice->microseconds = 0;               /* nor is the file to have what was left of them */
  if (r->unsure) return TFU_CHOSEN_ONCE;                          /* as data of zeros leaves it */
  return can_time || !(tfu_tuning() || relu || tfu_conv_exact(&r->key)) ? TFU_CHOSEN : TFU_CHOSEN_ONCE;
}

/* Sizes that change with the data: the batch, and those of images. */
double tfu_conv_apart(const void *key, const void *other) {
  const conv_key *a = key;
  conv_key b = *(const conv_key *)other;
  double sum = fabs(log2((double)a->batch / (double)b.batch));
  for (int i = 0; i < CONV_AXES; i++) {
    sum += fabs(log2((double)a->in[i] / (double)b.in[i]));
    b.in[i] = a->in[i], b.out[i] = a->out[i], b.before[i] = a->before[i];
  }
  b.batch = a->batch;
  return memcmp(a, &b, sizeof b) ? -1 : sum;
}

/* Another size has other proposals: cuDNN's first is taken, or the first of the most exact; nothing is timed. */
static int adopt(const void *key, const void *other, void *request_, tfu_choice *choice) {
  (void)key, (void)other;
  return choose_among(request_, 0, choice);
}

const tfu_tuner tfu_conv_tuner = {.bytes = sizeof(conv_key),
                                  .describe = describe,
                                  .usable = usable,
                                  .choose = choose,
                                  .apart = tfu_conv_apart,
                                  .adopt = adopt};
