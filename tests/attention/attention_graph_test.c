/* attention_graph_test.c - whether cuDNN takes our graphs of attention, without a GPU: it plans for an H200 that is
 * described to it. The toolkit's stub of libcuda lets it compile its kernels and not load them, and that far they must
 * come. Says what it lacks, and passes, where cuDNN or the stub is not installed. */
#include <dlfcn.h>
#include <glob.h>

#include "kernels/attention/attention_cudnn.h"
#include "tests/check.h"

static const char h200[] =
    "{\"maxGridSize\": [2147483647, 65535, 65535], \"maxBlockSize\": [1024, 1024, 64], \"regsPerBlock\": 65536, "
    "\"multiProcessorCount\": 132, \"smClockRateKHz\": 1980000, \"memClockRateKHz\": 3201000, \"l2CacheSize\": "
    "62914560, \"warpSize\": 32, \"maxSharedMemoryPerBlock\": 49152, \"maxSharedMemoryPerBlockOptin\": 232448, "
    "\"reservedSharedMemoryPerBlock\": 1024, \"maxRegistersPerSM\": 65536, \"maxCtasPerSM\": 32, "
    "\"maxThreadsPerBlock\": 1024, \"maxThreadsPerSM\": 2048, \"isTccDriver\": 0, \"supportCoopLaunch\": 1, "
    "\"deviceVer\": 900, \"driverVer\": 13000, \"cudaDeviceId\": 0, \"totalGlobalMem\": 150754820096, "
    "\"pciDeviceId\": 0, \"deviceName\": \"NVIDIA H200\", \"name\": \"NVIDIA H200\", \"deviceId\": 0, "
    "\"cudnnVersion\": 91900, \"schemaVersion\": 1}";

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

static void *open_stub(void) {
  glob_t found;
  void *stub = NULL;
  if (!glob("/usr/local/cuda*/lib*/stubs/libcuda.so", 0, NULL, &found))
    for (size_t i = 0; i < found.gl_pathc && !stub; i++) stub = dlopen(found.gl_pathv[i], RTLD_NOW | RTLD_GLOBAL);
  globfree(&found);
  return stub;
}

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
  const char *why;
  cudnnBackendDescriptor_t properties;
  if (!open_stub()) { /* first: cuDNN then finds it by its name */
    puts("SKIPPED: no /usr/local/cuda*/lib*/stubs/libcuda.so");
    return 0;
  }
  const tfu_cudnn *dnn = tfu_cudnn_get(&why);
  if (!dnn || dnn->version < 91900) {
    printf("SKIPPED: %s\n", dnn ? "cuDNN is older than 9.19, which is the one this was tried with" : why);
    return 0;
  }
  CHECK(!dnn->cudnnBackendCreateDescriptor(CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR, &properties));
  CHECK(!dnn->cudnnBackendSetAttribute(properties, CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION, CUDNN_TYPE_CHAR,
                                       sizeof h200 - 1, h200));
  CHECK(!dnn->cudnnBackendFinalize(properties));
  test_plans(dnn, properties);
  test_refused(dnn, properties);
  return verdict();
}
