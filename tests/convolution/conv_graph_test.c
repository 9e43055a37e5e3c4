/* conv_graph_test.c - whether cuDNN takes our graphs of convolutions, without a GPU: it plans for an H200 that is
 * described to it. Says what it lacks, and passes, where cuDNN or the stub of libcuda is not installed. */
#include <dlfcn.h>

#include "kernels/convolution/conv_cudnn.h"
#include "tests/check.h"
#include "tests/cudnn_planning.h"

typedef struct problem {
  const char *name;
  int pass, epilogue, axes; /* spatial axes */
  int64_t batch, groups, c, k, in[3], window[3], stride[3], dilation[3], before[3], after[3];
} problem;

/* A line each. */
/* clang-format off */
static const problem problems[] = {
    {"3x3", CONV_FORWARD, 0, 2, 8, 1, 64, 128, {56, 56}, {3, 3}, {1, 1}, {1, 1}, {1, 1}, {1, 1}},
    {"3x3 SAME of stride 2", CONV_FORWARD, 0, 2, 8, 1, 64, 128, {56, 56}, {3, 3}, {2, 2}, {1, 1}, {0, 0}, {1, 1}},
    {"7x7 of three channels", CONV_FORWARD, 0, 2, 8, 1, 3, 64, {224, 224}, {7, 7}, {2, 2}, {1, 1}, {3, 3}, {3, 3}},
    {"the same in quads", CONV_FORWARD, 0, 2, 8, 1, 16, 64, {115, 115}, {4, 4}, {1, 1}, {1, 1}, {0, 0}, {0, 0}},
    {"1x1", CONV_FORWARD, 0, 2, 8, 1, 256, 64, {56, 56}, {1, 1}, {1, 1}, {1, 1}, {0, 0}, {0, 0}},
    {"dilated", CONV_FORWARD, 0, 2, 8, 1, 64, 128, {56, 56}, {3, 3}, {1, 1}, {2, 2}, {2, 2}, {2, 2}},
    {"groups", CONV_FORWARD, 0, 2, 8, 32, 4, 4, {56, 56}, {3, 3}, {1, 1}, {1, 1}, {1, 1}, {1, 1}},
    {"one axis, causal", CONV_FORWARD, 0, 1, 8, 1, 64, 128, {1000}, {5}, {1}, {2}, {8}, {0}},
    {"three axes", CONV_FORWARD, 0, 3, 2, 1, 32, 64, {16, 28, 28}, {3, 3, 3}, {1, 2, 2}, {1, 1, 1}, {1, 1, 1}, {1, 1, 1}},
    {"odd", CONV_FORWARD, 0, 2, 3, 1, 5, 7, {11, 13}, {3, 2}, {1, 1}, {1, 1}, {1, 0}, {1, 1}},
    {"bias", CONV_FORWARD, CONV_ADDS_BIAS, 2, 8, 1, 64, 128, {56, 56}, {3, 3}, {1, 1}, {1, 1}, {1, 1}, {1, 1}},
    {"bias, relu", CONV_FORWARD, CONV_ADDS_BIAS | CONV_RELU, 2, 8, 1, 64, 128, {56, 56}, {3, 3}, {1, 1}, {1, 1}, {1, 1}, {1, 1}},
    {"all", CONV_FORWARD, CONV_ADDS_RESIDUAL | CONV_ADDS_BIAS | CONV_RELU, 2, 8, 1, 64, 128, {56, 56}, {3, 3}, {1, 1}, {1, 1}, {1, 1}, {1, 1}},
    {"residual", CONV_FORWARD, CONV_ADDS_RESIDUAL, 2, 8, 1, 64, 128, {56, 56}, {3, 3}, {1, 1}, {1, 1}, {1, 1}, {1, 1}},
    {"residual, bias", CONV_FORWARD, CONV_ADDS_RESIDUAL | CONV_ADDS_BIAS, 2, 8, 1, 64, 128, {56, 56}, {3, 3}, {1, 1}, {1, 1}, {1, 1}, {1, 1}},
    {"relu", CONV_FORWARD, CONV_RELU, 2, 8, 1, 64, 128, {56, 56}, {3, 3}, {1, 1}, {1, 1}, {1, 1}, {1, 1}},
    {"residual, relu", CONV_FORWARD, CONV_ADDS_RESIDUAL | CONV_RELU, 2, 8, 1, 64, 128, {56, 56}, {3, 3}, {1, 1}, {1, 1}, {1, 1}, {1, 1}},
    {"data", CONV_DATA, 0, 2, 8, 1, 64, 128, {56, 56}, {3, 3}, {1, 1}, {1, 1}, {1, 1}, {1, 1}},
    {"data, stride 2", CONV_DATA, 0, 2, 8, 1, 64, 128, {56, 56}, {3, 3}, {2, 2}, {1, 1}, {0, 0}, {1, 1}},
    {"data, groups", CONV_DATA, 0, 2, 8, 32, 4, 4, {56, 56}, {3, 3}, {1, 1}, {1, 1}, {1, 1}, {1, 1}},
    {"data, three axes", CONV_DATA, 0, 3, 2, 1, 32, 64, {16, 28, 28}, {3, 3, 3}, {1, 2, 2}, {1, 1, 1}, {1, 1, 1}, {1, 1, 1}},
    {"data, one axis", CONV_DATA, 0, 1, 8, 1, 64, 128, {1000}, {5}, {1}, {2}, {8}, {0}},
    {"filter", CONV_FILTER, 0, 2, 8, 1, 64, 128, {56, 56}, {3, 3}, {1, 1}, {1, 1}, {1, 1}, {1, 1}},
    {"filter, stride 2", CONV_FILTER, 0, 2, 8, 1, 64, 128, {56, 56}, {3, 3}, {2, 2}, {1, 1}, {0, 0}, {1, 1}},
    {"filter, 7x7 of three channels", CONV_FILTER, 0, 2, 8, 1, 3, 64, {224, 224}, {7, 7}, {2, 2}, {1, 1}, {3, 3}, {3, 3}},
    {"filter, the same in quads", CONV_FILTER, 0, 2, 8, 1, 16, 64, {115, 115}, {4, 4}, {1, 1}, {1, 1}, {0, 0}, {0, 0}},
    {"filter, groups", CONV_FILTER, 0, 2, 8, 32, 4, 4, {56, 56}, {3, 3}, {1, 1}, {1, 1}, {1, 1}, {1, 1}},
    {"filter, three axes", CONV_FILTER, 0, 3, 2, 1, 32, 64, {16, 28, 28}, {3, 3, 3}, {1, 2, 2}, {1, 1, 1}, {1, 1, 1}, {1, 1, 1}},
    {"filter, one axis", CONV_FILTER, 0, 1, 8, 1, 64, 128, {1000}, {5}, {1}, {2}, {8}, {0}},
};
static int nvrtc_is_loaded(void) {
  int loaded = 0;
  for (int version = 12; version <= 13; version++) {
    char name[32];
    snprintf(name, sizeof name, "libnvrtc.so.%d", version);
    void *library = dlopen(name, RTLD_NOW | RTLD_NOLOAD);
    if (library) loaded |= version == 12 ? 1 : 2, dlclose(library);
  }
  return loaded;
}

/* clang-format on */

static conv_shape shape_of(const problem *p) {
  conv_shape s = {.batch = p->batch, .groups = p->groups, .c = p->c, .k = p->k};
  const int missing = CONV_AXES - p->axes;
  for (int a = 0; a < CONV_AXES; a++) {
    const int i = a - missing;
    s.in[a] = i < 0 ? 1 : p->in[i], s.window[a] = i < 0 ? 1 : p->window[i];
    s.stride[a] = i < 0 ? 1 : p->stride[i], s.dilation[a] = i < 0 ? 1 : p->dilation[i];
    s.before[a] = i < 0 ? 0 : p->before[i];
    const int64_t reach = (s.window[a] - 1) * s.dilation[a] + 1, after = i < 0 ? 0 : p->after[i];
    s.out[a] = (s.in[a] + s.before[a] + after - reach) / s.stride[a] + 1;
  }
  return s;
}

static conv_key key_of(const problem *p, tfu_dtype dtype, int tf32) {
  static char some[16] __attribute__((aligned(16)));
  conv_key key = {.pass = -1};
  const conv_args a = {.s = shape_of(p),
                       .x = some,
                       .kernel = some,
                       .y = some,
                       .bias = p->epilogue & CONV_ADDS_BIAS ? some : NULL,
                       .residual = p->epilogue & CONV_ADDS_RESIDUAL ? some : NULL,
                       .relu = p->epilogue & CONV_RELU};
  const char *why = tfu_conv_key_of(&a, (conv_pass)p->pass, dtype, tf32, 0, &key);
  CHECK_FOR(!why, "%s: %s", p->name, why ? why : "");
  return key;
}

static int plans(const tfu_cudnn *dnn, cudnnBackendDescriptor_t properties, const conv_key *key, char *text,
                 size_t size) {
  tfu_error err = {""};
  tfu_graph *g = tfu_graph_new(dnn);
  tfu_conv_describe(g, key);
  tfu_code code =
      tfu_graph_ask(g, NULL, properties, TFU_GRAPH_CONFIGS, tfu_conv_avoid(key), tfu_conv_fewest(key), &err);
  const int proposals = g->n_configs;
  int engine = -1, compiled = 0, others = 0;
  for (int i = 1; i < proposals; i++) others += tfu_graph_engine(g, i) != tfu_graph_engine(g, 0);
  CHECK_FOR(!tfu_conv_exact(key) || others, "in exact float32 there is nothing to choose from for product %d",
            key->pass);
  for (int i = 0; code == TFU_OK && i < g->n_configs; i++) {
    engine = tfu_graph_engine(g, i);
    const tfu_code taken = tfu_graph_take(g, NULL, i, &err);
    compiled = strstr(err.text, "cuLibraryLoadData") != NULL;
    if (taken == TFU_OK || compiled) break;
    if (i == g->n_configs - 1) code = taken;
  }
  snprintf(text, size, "%d proposals, engine %d%s, %lld bytes %.500s", proposals, engine, compiled ? " compiled" : "",
           (long long)g->workspace, code == TFU_OK ? "" : err.text);
  const int loaded = nvrtc_is_loaded();
  tfu_graph_free(g);
  CHECK_FOR(loaded == nvrtc_is_loaded(), "with the graph of pass %d cuDNN unloads NVRTC", key->pass);
  return code == TFU_OK;
}

/* Where padding differs before and after x, one engine of the filter gradient is wrong. */
static void test_trusts(void) {
  for (int i = 0; i < TFU_COUNT(problems); i++) {
    const problem *p = &problems[i];
    const conv_key key = key_of(p, TFU_F32, 0);
    int same = 1;
    for (int a = 0; a < p->axes; a++) same &= p->before[a] == p->after[a];
    CHECK_FOR(tfu_conv_trusts(&key, 1) == (p->pass != CONV_FILTER || same), "%s", p->name);
    CHECK_FOR(tfu_conv_trusts(&key, 0), "%s", p->name);
  }
}

int main(int argc, char **argv) {
  cudnnBackendDescriptor_t properties;
  const tfu_cudnn *dnn = open_planning(&properties);
  const int verbose = argc > 1 && argv[1];
  test_trusts();
  if (!dnn) return verdict();
  static const struct {
    tfu_dtype dtype;
    int tf32;
  } kinds[] = {{TFU_F16, 0}, {TFU_BF16, 0}, {TFU_F32, 1}, {TFU_F32, 0}, {TFU_F64, 0}};
  for (int i = 0; i < TFU_COUNT(problems); i++)
    for (int k = 0; k < TFU_COUNT(kinds); k++) {
      char text[600];
      const conv_key key = key_of(&problems[i], kinds[k].dtype, kinds[k].tf32);
      const int planned = plans(dnn, properties, &key, text, sizeof text);
      if (verbose)
        printf("%-32s %s%s: %s\n", problems[i].name, tfu_dtype_name(kinds[k].dtype), kinds[k].tf32 ? " tf32" : "",
               text);
      CHECK_FOR(planned, "%s %s: %s", problems[i].name, tfu_dtype_name(kinds[k].dtype), text);
    }
  return verdict();
}
