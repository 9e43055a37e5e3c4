/* attention_graph_test.c - whether cuDNN takes our graphs of attention, without a GPU: it plans for an H200 that is
 * described to it (cudnn_planning.h), and compiles its kernels: that far they must come. Says what it lacks, and
 * passes, where cuDNN or the stub is not installed. */
#include "kernels/attention/attention_cudnn.h"
#include "tests/check.h"
#include "tests/cudnn_planning.h"

/* Together they have every operation and every mask. */
static const tfu_attention_key keys[] = {
    {.dtype = TFU_BF16,
     .batch = 2,
     .heads = 4,
     .key_heads = 4,
     .head_dim = 64,
     .value_dim = 64,
     .queries = 256,
     .keys = 256,
     .left = -1,
     .right = 0,
     .scale = 1},
    {.dtype = TFU_F16,
     .batch = 2,
     .heads = 4,
     .key_heads = 2,
     .head_dim = 128,
     .value_dim = 128,
     .queries = 200,
     .keys = 333,
     .align = 1,
     .left = 31,
     .right = 16,
     .scale = 1},
    {.dtype = TFU_BF16,
     .batch = 2,
     .heads = 4,
     .key_heads = 2,
     .head_dim = 128,
     .value_dim = 128,
     .queries = 200,
     .keys = 333,
     .align = 1,
     .left = 31,
     .right = 0,
     .lengths = 1,
     .scale = 1,
     .backward = 1},
    {.dtype = TFU_F16,
     .batch = 2,
     .heads = 4,
     .key_heads = 4,
     .head_dim = 64,
     .value_dim = 64,
     .queries = 256,
     .keys = 256,
     .left = 31,
     .right = 0,
     .bias = 1,
     .bias_along = {0, 1, 1, 1},
     .scale = 1,
     .backward = 1},
};

static void test_plans(const tfu_cudnn *dnn, cudnnBackendDescriptor_t properties) {
  for (int i = 0; i < TFU_COUNT(keys); i++) {
    tfu_error err = {""};
    tfu_graph *g = tfu_graph_new(dnn);
    tfu_attention_describe(g, &keys[i]);
    const tfu_code code = tfu_graph_plan(g, NULL, properties, INT64_MAX, &err);
    CHECK_FOR(code == TFU_OK || strstr(err.text, "cuLibraryLoadData"), "graph %d: %s", i, err.text);
    tfu_graph_free(g);
  }
}

/* What cuDNN has no engine for is an error with a text, and not asked twice. */
static void test_refused(const tfu_cudnn *dnn, cudnnBackendDescriptor_t properties) {
  tfu_attention_key wide = keys[3];
  tfu_error err = {""};
  tfu_graph *g = tfu_graph_new(dnn);
  wide.head_dim = wide.value_dim = 1024;
  tfu_attention_describe(g, &wide);
  CHECK(tfu_graph_plan(g, NULL, properties, INT64_MAX, &err) != TFU_OK && err.text[0]);
  tfu_graph_free(g);
}

int main(void) {
  cudnnBackendDescriptor_t properties;
  const tfu_cudnn *dnn = open_planning(&properties);
  if (!dnn) return 0;
  test_plans(dnn, properties);
  test_refused(dnn, properties);
  return verdict();
}
