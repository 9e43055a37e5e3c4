#include "kernels/products/linear_way.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "activations.h"
#include "kernels/core/gpu/cuda.h"
#include "kernels/core/gpu/tuned.h"

_Static_assert(sizeof(linear_way_key) == 3 * sizeof(int64_t) + 6 * sizeof(int32_t), "a gap would be compared too");

static const char *const acts[TFU_ACTS] = TFU_ACTIVATION_NAMES;
static const char *const biases[] = {"", "+bias", "+bias at an odd place"};
static const char *const kinds[] = {"", "+pre", " gradient", " of float8", "+pre of float8"};

enum { IN_ONE = 1, IN_TWO };

typedef struct question {
  tfu_call *call;
  linear_ways ways;
  tfu_code code; /* of what went wrong while choosing */
} question;

static void describe_way(const void *key_, void *with, char *text, size_t size) {
  (void)with;
  const linear_way_key *k = key_;
  snprintf(text, size, "linear %lldx%lldx%lld %s%s %s%s%s", (long long)k->rows, (long long)k->outputs,
           (long long)k->inputs, tfu_dtype_name((tfu_dtype)k->dtype), k->tf32 ? " as tf32" : "", acts[k->act],
           biases[k->bias], kinds[k->kind]);
}

static int way_usable(const void *key, void *with, const tfu_choice *choice) {
  (void)key, (void)with;
  return choice->data[0] == IN_ONE || choice->data[0] == IN_TWO;
}

static tfu_code compare(const linear_way_key *key, const question *q, tfu_choice *choice) {
  const linear_ways *w = &q->ways;
  float one = 0, two = 0, after = 0;
  int served_one, served_two;
  choice->data[0] = IN_TWO;
  TFU_TRY(tfu_gemm_gpu_time(q->call, w->one, &served_one, &one));
  if (!served_one) return TFU_OK;
  choice->data[0] = IN_ONE;
  if (one == 0) return TFU_OK;
  TFU_TRY(tfu_gemm_gpu_time(q->call, w->bare, &served_two, &two));
  if (!served_two || two == 0 || !tfu_may_wait(q->call)) return TFU_OK;
  TFU_TRY(tfu_time(q->call, w->pass, w->with, &after));
  if (two + after < one) choice->data[0] = IN_TWO;
  choice->microseconds = choice->data[0] == IN_ONE ? one : two + after;
  snprintf(choice->label, sizeof choice->label, "%s by an epilogue %.1f us, by a product and a pass %.1f us",
           key->kind == LINEAR_GRADIENT ? "sums" : acts[key->act], one, two + after);
  return TFU_OK;
}

static tfu_chosen choose_way(const void *key, void *question_, tfu_choice *choice) {
  question *q = question_;
  const char *kernel = q->call->kernel; /* what is timed is not what runs */
  *choice = (tfu_choice){.none = 0};
  q->code = compare(key, q, choice);
  q->call->kernel = kernel;
  return q->code != TFU_OK || (tfu_tuning() && !tfu_may_wait(q->call)) ? TFU_CHOSEN_ONCE : TFU_CHOSEN;
}

/* Layers are told apart by all but how many rows they get. */
static double way_apart(const void *key, const void *other) {
  const linear_way_key *a = key;
  linear_way_key b = *(const linear_way_key *)other;
  const double ratio = (double)a->rows / (double)b.rows;
  b.rows = a->rows;
  return memcmp(a, &b, sizeof b) ? -1 : fabs(log2(ratio));
}

static int adopt_way(const void *key, const void *other, void *with, tfu_choice *choice) {
  (void)with;
  choice->microseconds *= (float)((const linear_way_key *)key)->rows / (float)((const linear_way_key *)other)->rows;
  return 1;
}

static const tfu_tuner way_tuner = {.bytes = sizeof(linear_way_key),
                                    .describe = describe_way,
                                    .usable = way_usable,
                                    .choose = choose_way,
                                    .apart = way_apart,
                                    .adopt = adopt_way};

tfu_code tfu_linear_way(tfu_call *call, linear_way_key key, linear_ways ways, int *in_one) {
  question q = {.call = call, .ways = ways};
  tfu_device device;
  tfu_choice choice;
  TFU_TRY(tfu_device_now(&device, call->err));
  key.ordinal = device.ordinal;
  tfu_tuned_get(&way_tuner, &key, &q, &choice);
  *in_one = choice.data[0] == IN_ONE;
  return q.code;
}
