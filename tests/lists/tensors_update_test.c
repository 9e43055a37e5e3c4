/* tensors_update_test.c - a step of an optimizer on the CPU, with new values in memory of their own or in that of what
 * they replace. */
#include "ops/lists/rules.h"
#include "tests/check.h"

static void fill(tfu_tensor *t, unsigned seed) {
  for (int64_t i = 0, n = tfu_count(&t->shape); i < n; i++) {
    const float value = (float)((seed = seed * 1664525 + 1013904223) >> 8) * 0x1p-22f - 2;
    const double wide = value * 1.000000001;
    if (t->dtype == TFU_F64) tfu_store_f64(t->data, t->dtype, i, 1, &wide);
    else tfu_store_f32(t->data, t->dtype, i, 1, &value);
  }
}

/* Where an optimizer's new weights lie: by themselves, where the gradients do, or where the old weights do, beside new
 * slots that lie where the old ones do. */
typedef enum place { APART, IN_GRADIENTS, IN_OLD, PLACES } place;

enum { UPDATED = 3 };
static const int64_t updated[UPDATED] = {5, 40000, 1}; /* elements of each tensor; the second is several tasks */
static const int slots_of[TFU_RULE_COUNT] = {
#define X(name, slots) [TFU_RULE_##name] = slots,
    TFU_RULES(X)
#undef X
};

/* The first step, from slots that are zero; appends the new weights' and slots' bytes to `result`. */
static tfu_code run_update(int rule, tfu_dtype dtype, place where, char *result) {
  static const double wide[] = {0.125, 0.0625, 1.5, 0.75, 0.875, 0.25, 0.125, 1e-7, 0, 3, 300, 1, 8};
  const int changed = UPDATED * (1 + slots_of[rule]), double_too = tfu_real(dtype) == TFU_F64;
  float narrow[TFU_COUNT(wide)];
  int64_t step = 0, elements;
  tfu_shape unused[TFU_MAX_ARGS];
  tfu_lists lists;
  run *r = start(&tfu_tensors_update);
  r->call.attr[TFU_UPDATE_RULE].i = rule;
  r->call.attr[2].i = UPDATED;
  r->call.attr[3].i = changed - UPDATED;
  CHECK(tfu_lists_open(&r->call, &lists) == TFU_OK);
  tfu_tensor *old = lists.in[1].at, *new = lists.out[0].at, *gradients = lists.in[0].at; /* slots follow the weights */
  for (int i = 0; i < UPDATED + changed; i++) {
    gradients[i] =
        (tfu_tensor){calloc((size_t)updated[i % UPDATED], tfu_dtype_size(dtype)), dtype, SHAPE(updated[i % UPDATED])};
    if (i < 2 * UPDATED) fill(&gradients[i], (unsigned)i + 1);
  }
  for (int i = 0; i < changed; i++) {
    new[i] = (where == IN_GRADIENTS && i < UPDATED ? gradients : old)[i];
    if (where == APART || (where == IN_GRADIENTS && i >= UPDATED))
      new[i].data = malloc((size_t)updated[i % UPDATED] * tfu_dtype_size(dtype));
  }
  for (int i = 0; i < TFU_COUNT(wide); i++) narrow[i] = (float)wide[i];
#define NUMBERS(at, ...) (tfu_tensor){double_too ? (void *)&wide[at] : &narrow[at], tfu_real(dtype), __VA_ARGS__}
  lists.in[3].at[0] = NUMBERS(0, SCALAR);
  lists.in[4].at[0] = (tfu_tensor){&step, TFU_I64, SCALAR};
  lists.in[5].at[0] = NUMBERS(1, SHAPE(TFU_HYPERS));
  lists.in[6].at[0] = NUMBERS(1 + TFU_HYPERS, SHAPE(UPDATED));
  lists.in[7].at[0] = NUMBERS(1 + TFU_HYPERS + UPDATED, SCALAR);
#undef NUMBERS
  tfu_code code = tfu_infer(&r->call, unused, &elements);
  if (code == TFU_OK) code = tfu_execute(&r->call, "test", 0);
  for (int i = 0; i < changed; i++) {
    const size_t bytes = (size_t)updated[i % UPDATED] * tfu_dtype_size(dtype);
    memcpy(result, new[i].data, bytes);
    result += bytes;
    if (new[i].data != old[i].data &&new[i].data != gradients[i].data) free(new[i].data);
  }
  for (int i = 0; i < UPDATED + changed; i++) free(gradients[i].data);
  while (r->n > 0) free(r->held[--r->n]);
  tfu_lists_close(&r->call);
  free(r);
  return code;
}

/* Memory that is shared changes no bit of a step. */
static void test_updates_in_place(void) {
  CHECK(tfu_tensors_update.in_place); /* what out[0] shares in a graph is in[0] */
  for (int i = 0; i < TFU_RULE_COUNT * TFU_FLOATS; i++) {
    const int rule = i / TFU_FLOATS;
    const tfu_dtype dtype = i % TFU_FLOATS;
    size_t bytes = 0;
    for (int k = 0; k < UPDATED; k++)
      bytes += (size_t)updated[k] * tfu_dtype_size(dtype) * (size_t)(1 + slots_of[rule]);
    char *results = calloc(PLACES, bytes);
    for (int where = 0; where < PLACES; where++) {
      CHECK(run_update(rule, dtype, where, results + (size_t)where * bytes) == TFU_OK);
      CHECK_FOR(!memcmp(results, results + (size_t)where * bytes, bytes), "rule %d %s, place %d", rule,
                tfu_dtype_name(dtype), where);
    }
    free(results);
  }
}

int main(void) {
  setenv("TFUSE_NUM_THREADS", "3", 1); /* more than one, however many cores there are */
  test_updates_in_place();
  return verdict();
}
