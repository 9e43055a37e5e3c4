/* graph_test.c - what a graph tells cuDNN, without it: against functions of our own that count descriptors and look at
 * their attributes. Whichever call fails, planning says so, and nothing is left behind. */
#include "kernels/core/nvidia/graph.h"
#include "tests/check.h"

enum { MOST = 512 };

static int made, open_ones, calls, fails_at; /* fails_at: the call that does; -1: none */
static unsigned type_of[MOST], last_names[16], last_types[16];
static int finalized[MOST], n_last;
static double last_numbers[16];

static cudnnStatus_t result(void) { return calls++ == fails_at; }
static int number_of(cudnnBackendDescriptor_t d) { return (int)(intptr_t)d; }

static cudnnStatus_t create(cudnnBackendDescriptorType_t type, cudnnBackendDescriptor_t *d) {
  CHECK(made + 1 < MOST);
  if (result()) return 1;
  type_of[++made] = type;
  finalized[made] = n_last = 0;
  open_ones++;
  *d = (void *)(intptr_t)made;
  return 0;
}
static cudnnStatus_t destroy(cudnnBackendDescriptor_t d) {
  CHECK(number_of(d) > 0 && type_of[number_of(d)] != ~0u);
  type_of[number_of(d)] = ~0u; /* not twice */
  open_ones--;
  return 0;
}
static cudnnStatus_t finalize(cudnnBackendDescriptor_t d) {
  CHECK(!finalized[number_of(d)]);
  return result() ? 1 : (finalized[number_of(d)] = 1, 0);
}
/* What is made of another descriptor comes when that is finalized. */
static cudnnStatus_t set(cudnnBackendDescriptor_t d, cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type,
                         int64_t count, const void *values) {
  const int mine = type == CUDNN_TYPE_BACKEND_DESCRIPTOR && name != CUDNN_ATTR_ENGINEHEUR_DEVICEPROP;
  CHECK(!finalized[number_of(d)] && values && count > 0);
  for (int64_t i = 0; mine && i < count; i++) {
    const int part = number_of(((const cudnnBackendDescriptor_t *)values)[i]);
    CHECK_FOR(finalized[part] || type_of[part] == CUDNN_BACKEND_ENGINECFG_DESCRIPTOR, "attribute %u", name);
  }
  if (n_last < TFU_COUNT(last_names)) {
    last_names[n_last] = name, last_types[n_last] = type;
    if (type == CUDNN_TYPE_FLOAT) last_numbers[n_last] = *(const float *)values;
    if (type == CUDNN_TYPE_DOUBLE) last_numbers[n_last] = *(const double *)values;
    n_last++;
  }
  return result();
}
static cudnnStatus_t get(cudnnBackendDescriptor_t d, cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type,
                         int64_t count, int64_t *found, void *values) {
  (void)d, (void)type, (void)values;
  *found = name == CUDNN_ATTR_ENGINEHEUR_RESULTS && count >= 2 ? 2 : 0;
  return result();
}
static const char *error_string(cudnnStatus_t s) { return s ? "some error" : ""; }
static void last_error(char *text, size_t size) { snprintf(text, size, "its text"); }

static const tfu_cudnn dnn = {.cudnnBackendCreateDescriptor = create,
                              .cudnnBackendDestroyDescriptor = destroy,
                              .cudnnBackendFinalize = finalize,
                              .cudnnBackendSetAttribute = set,
                              .cudnnBackendGetAttribute = get,
                              .cudnnGetErrorString = error_string,
                              .cudnnGetLastErrorString = last_error};

static void describe(tfu_graph *g) {
  const int64_t dim[] = {2, 3, 4, 5};
  const tfu_graph_window window = {.axes = 2, .stride = {1, 1}, .dilation = {1, 1}};
  int64_t stride[4];
  tfu_graph_packed(4, dim, stride);
  const tfu_node a = tfu_graph_real(g, 3, CUDNN_DATA_HALF, 4, dim, stride), b = tfu_graph_float(g, 4, 1.5f);
  const tfu_node c = tfu_graph_virtual_like(g, CUDNN_DATA_FLOAT, &a), d = tfu_graph_int(g, 4, 7);
  tfu_graph_pointwise(g, CUDNN_POINTWISE_GEN_INDEX, CUDNN_DATA_INT32, 2, &a, NULL, NULL, &c);
  tfu_graph_pointwise(g, CUDNN_POINTWISE_BINARY_SELECT, CUDNN_DATA_FLOAT, -1, &a, &b, &d, &c);
  tfu_graph_reduce(g, CUDNN_REDUCE_TENSOR_MAX, &a, &b);
  tfu_graph_matmul(g, &a, &b, &c, NULL, &d, NULL);
  tfu_graph_reshape(g, &a, &c);
  for (int kind = 0; kind < 3; kind++) tfu_graph_conv(g, kind, CUDNN_DATA_FLOAT, &window, &a, &b, &c);
}

/* Returns the calls that it took. */
static int plan(int failing, tfu_code *code, tfu_error *err) {
  fails_at = failing;
  made = open_ones = calls = 0;
  tfu_graph *g = tfu_graph_new(&dnn);
  describe(g);
  *code = tfu_graph_plan(g, failing % 2 ? (cudnnHandle_t)&made : NULL, (void *)1, 1 << 20, err);
  const int taken = calls;
  tfu_graph_free(g);
  CHECK_FOR(open_ones == 0, "%d descriptors are left where call %d fails", open_ones, failing);
  return taken;
}

static void test_failures(void) {
  tfu_code code;
  tfu_error err;
  const int all = plan(-1, &code, &err);
  CHECK(code == TFU_OK && all > 100);
  for (int i = 0; i < all; i++) {
    plan(i, &code, &err);
    /* The last ones are those of a proposal, for which there is another. */
    CHECK_FOR(code == TFU_INTERNAL ? strstr(err.text, "some error: its text") != NULL : i > all - 10, "call %d", i);
  }
}

/* Of each convolution the type, and all its attributes. */
static void test_convolutions(void) {
  static const struct {
    unsigned type, window, x, w, y, alpha, beta;
  } want[] = {[TFU_GRAPH_FORWARD] = {10, 702, 704, 703, 705, 700, 701},
              [TFU_GRAPH_BACKWARD_DATA] = {12, 708, 710, 709, 711, 706, 707},
              [TFU_GRAPH_BACKWARD_FILTER] = {11, 714, 716, 715, 717, 712, 713}};
  const int64_t dim[] = {2, 3, 4, 5};
  const tfu_graph_window window = {.axes = 2, .stride = {1, 1}, .dilation = {1, 1}};
  for (int i = 0; i < 6; i++) {
    const int wide = i > 2;
    fails_at = -1, made = 0;
    tfu_graph *g = tfu_graph_new(&dnn);
    const tfu_node x = tfu_graph_real(g, 0, CUDNN_DATA_FLOAT, 4, dim, dim), w = x, y = x;
    tfu_graph_conv(g, i % 3, wide ? CUDNN_DATA_DOUBLE : CUDNN_DATA_FLOAT, &window, &x, &w, &y);
    const unsigned names[] = {want[i % 3].window, want[i % 3].x,     want[i % 3].w,
                              want[i % 3].y,      want[i % 3].alpha, want[i % 3].beta};
    CHECK(g->code == TFU_OK && g->n_ops == 1 && type_of[made] == want[i % 3].type && n_last == TFU_COUNT(names));
    CHECK(!memcmp(last_names, names, sizeof names));
    CHECK(last_types[4] == (wide ? CUDNN_TYPE_DOUBLE : CUDNN_TYPE_FLOAT) && last_types[5] == last_types[4]);
    CHECK(last_numbers[4] == 1 && last_numbers[5] == 0);
    tfu_graph_free(g);
  }
}

int main(void) {
  test_failures();
  test_convolutions();
  return verdict();
}
