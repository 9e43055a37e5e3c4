/* triton_backend_test.c - the backend in a Triton and over a TensorFlow that stand in: batches, ragged ones, strings,
 * errors of single requests, what is completed of configurations, models that do not load, and requests of any bytes.
 */
#include "serving/triton/triton_api.h"
#include "tests/serving/saved_model_writer.h"
#include "tests/serving/triton_stand_in.h"

static char home[] = "/tmp/triton_backend_test.XXXXXX";
static TRITONBACKEND_Backend backend = {"{\"cmdline\":{\"default-max-batch-size\":\"4\"}}"};

#define PORT(name, type, dims) "{\"name\":\"" name "\",\"data_type\":\"TYPE_" type "\",\"dims\":[" dims "]}"

/* A model in a folder of its own; its error, which is deleted, or "". */
static const char *load(TRITONBACKEND_Model *model, const char *name, const char *inputs, const char *outputs,
                        const char *config) {
  static char folder[300], text[2000];
  char path[400];
  const proto pb = saved_model_of(inputs, outputs);
  snprintf(folder, sizeof folder, "%s/%s", home, name);
  mkdir(folder, 0755);
  snprintf(path, sizeof path, "%s/3", folder);
  mkdir(path, 0755);
  snprintf(path, sizeof path, "%s/3/model.savedmodel", folder);
  write_saved_model(path, &pb);
  *model =
      (TRITONBACKEND_Model){.backend = &backend, .folder = folder, .config = config, .version = 3, .completes = true};
  TRITONSERVER_Error *error = TRITONBACKEND_ModelInitialize(model);
  snprintf(text, sizeof text, "%s", error ? error->text : "");
  if (error) TRITONSERVER_ErrorDelete(error);
  return text;
}

static void load_well(TRITONBACKEND_Model *model, const char *name, const char *inputs, const char *outputs,
                      const char *config) {
  const char *text = load(model, name, inputs, outputs, config);
  CHECK_TEXT(text, "");
}

static void begin(TRITONBACKEND_ModelInstance *instance, TRITONBACKEND_Model *model) {
  *instance = (TRITONBACKEND_ModelInstance){.model = model, .kind = 1};
  CHECK(!TRITONBACKEND_ModelInstanceInitialize(instance));
}

static void end(TRITONBACKEND_ModelInstance *instance) {
  CHECK(!TRITONBACKEND_ModelInstanceFinalize(instance) && !TRITONBACKEND_ModelFinalize(instance->model));
  free(instance->model->completed);
  CHECK_FOR(living == 0, "%d things live on", living);
}

static void execute(TRITONBACKEND_ModelInstance *instance, TRITONBACKEND_Request *r, uint32_t n) {
  TRITONBACKEND_Request *all[64];
  for (uint32_t i = 0; i < n; i++) all[i] = &r[i];
  CHECK(!TRITONBACKEND_ModelInstanceExecute(instance, all, n));
  for (uint32_t i = 0; i < n; i++) CHECK(r[i].answered == 1 && r[i].released == 1);
}

static int is_out(const TRITONBACKEND_Output *y, const char *name, tfu_shape shape, const void *data, size_t bytes) {
  int same = !strcmp(y->name, name) && (int)y->rank == shape.rank && y->bytes == bytes && !memcmp(y->data, data, bytes);
  for (int i = 0; same && i < shape.rank; i++) same = y->dim[i] == shape.dim[i];
  return same;
}

/* ---- batches ---- */

static void test_requests_are_joined(void) {
  TRITONBACKEND_Model model;
  TRITONBACKEND_ModelInstance instance;
  load_well(&model, "joined", "a:1:-1,2 b:9:-1", "x:1:-1,2 y:9:-1", "{\"name\":\"m\",\"max_batch_size\":0}");
  CHECK_TEXT(model.completed,
             "{\"max_batch_size\":4,\"name\":\"m\",\"input\":[" PORT("a", "FP32", "2") ",{\"name\":\"b\",\"data_type\":"
             "\"TYPE_INT64\",\"dims\":[1],\"reshape\":{\"shape\":[]}}],\"output\":[" PORT("x", "FP32", "2")
             ",{\"name\":\"y\",\"data_type\":\"TYPE_INT64\",\"dims\":[1],\"reshape\":{\"shape\":[]}}],"
             "\"dynamic_batching\":{}}");
  begin(&instance, &model);
  const float a[] = {1, 2, 3, 4, 5, 6, 7, 8};
  const int64_t b[] = {10, 20, 30, 40};
  TRITONBACKEND_Request r[3] = {{.inputs = 0}};
  const int64_t rows[] = {1, 2, 1};
  for (int i = 0, row = 0; i < 3; row += (int)rows[i++]) {
    add_input(&r[i], "b", TRITONSERVER_TYPE_INT64, (tfu_shape)SHAPE(rows[i]), b + row, 8 * (size_t)rows[i]);
    add_input(&r[i], "a", TRITONSERVER_TYPE_FP32, (tfu_shape)SHAPE(rows[i], 2), a + 2 * row, 8 * (size_t)rows[i]);
    r[i].wanted[0] = "y";
    if (i != 2) r[i].wanted[1] = "x";
  }
  r[1].in[1].cut = 4; /* in two pieces */
  runs = 0;
  execute(&instance, r, 3);
  CHECK(runs == 1 && instance.succeeded == 3 && instance.batches == 1 && instance.rows == 4);
  CHECK(is_out(&r[0].out[1], "x", (tfu_shape)SHAPE(1, 2), a, 8) &&
        is_out(&r[0].out[0], "y", (tfu_shape)SHAPE(1), b, 8));
  CHECK(is_out(&r[1].out[1], "x", (tfu_shape)SHAPE(2, 2), a + 2, 16));
  CHECK(is_out(&r[2].out[0], "y", (tfu_shape)SHAPE(1), b + 3, 8) && r[2].outputs == 1);
  for (int i = 0; i < 3; i++) clear(&r[i]);
  end(&instance);
}

/* A name is a string of the configuration, whatever is in it. */
static void test_names_cannot_configure(void) {
  TRITONBACKEND_Model model;
  load_well(&model, "names", "a\"}],\"TFUSE_LIBRARIES\\:1:-1", "\xc3\xa4:1:-1", "{}");
  CHECK(strstr(model.completed, "{\"name\":\"a\\\"}],\\\"TFUSE_LIBRARIES\\\\\",\"data_type\""));
  CHECK(strstr(model.completed, "{\"name\":\"\xc3\xa4\""));
  CHECK(!TRITONBACKEND_ModelFinalize(&model));
  free(model.completed);
  for (const char *const *name = (const char *const[]){"a\nb:1:-1", "\xff:1:-1", "a\xc3:1:-1", "a\x7f:1:-1", NULL};
       *name; name++) {
    const char *text = load(&model, "no_names", *name, "x:1:-1", "{}");
    CHECK_FOR(strstr(text, "has no signature of plain tensors"), "\"%s\"", text);
  }
}

static void test_an_error_is_that_of_one_request(void) {
  TRITONBACKEND_Model model;
  TRITONBACKEND_ModelInstance instance;
  load_well(&model, "single", "a:1:-1,2", "x:1:-1,2", "{\"max_batch_size\":8}");
  begin(&instance, &model);
  float values[] = {1, 2, UNLUCKY, 3, 5, 6, SHORT, 8};
  TRITONBACKEND_Request r[6] = {{.inputs = 0}};
  for (int i = 0; i < 6; i++) {
    add_input(&r[i], i == 2 ? "wrong" : "a", i == 3 ? TRITONSERVER_TYPE_FP64 : TRITONSERVER_TYPE_FP32,
              (tfu_shape)SHAPE(1, 2),
              values + (i == 1   ? 2
                        : i == 5 ? 4
                                 : 0),
              i == 4 ? 4 : 8);
    r[i].wanted[0] = "x";
  }
  runs = 0;
  execute(&instance, r, 6);
  CHECK(runs == 4); /* all good ones together, and then each */
  CHECK(is_out(&r[0].out[0], "x", (tfu_shape)SHAPE(1, 2), values, 8));
  CHECK(is_out(&r[5].out[0], "x", (tfu_shape)SHAPE(1, 2), values + 4, 8));
  CHECK_TEXT(r[1].error, "signature serving_default: an unlucky number");
  CHECK_TEXT(r[2].error, "input a is missing, and the model needs it");
  CHECK_TEXT(r[3].error, "input a: it must be float32, got float64");
  CHECK_TEXT(r[4].error, "input a: shape [1, 2] has 8 bytes, got 4");
  CHECK(r[1].code == TRITONSERVER_ERROR_INVALID_ARG && r[2].code == TRITONSERVER_ERROR_INVALID_ARG);
  CHECK(instance.succeeded == 2 && instance.failed == 4);
  for (int i = 0; i < 6; i++) clear(&r[i]);
  /* A result without a row for each of the batch. */
  for (int i = 0; i < 2; i++) {
    add_input(&r[i], "a", TRITONSERVER_TYPE_FP32, (tfu_shape)SHAPE(1, 2), values + (i ? 6 : 0), 8);
    r[i].wanted[0] = "x";
  }
  execute(&instance, r, 2);
  CHECK(strstr(r[0].error, "the model gives shape [1, 2] for a batch of 2") && r[1].code);
  CHECK(r[0].code == TRITONSERVER_ERROR_INTERNAL); /* no fault of the request */
  for (int i = 0; i < 2; i++) clear(&r[i]);
  /* A GPU's memory, where there is none. */
  add_input(&r[0], "a", TRITONSERVER_TYPE_FP32, (tfu_shape)SHAPE(1, 2), values, 8);
  r[0].in[0].memory = TRITONSERVER_MEMORY_GPU;
  if (access("/dev/nvidia0", F_OK)) {
    execute(&instance, r, 1);
    CHECK_TEXT(r[0].error, "input a: a tensor is in memory of GPU 0, and there is no such GPU here");
  }
  clear(&r[0]);
  end(&instance);
}

static void test_ragged(void) {
  TRITONBACKEND_Model model;
  TRITONBACKEND_ModelInstance instance;
  const char *config =
      "{\"max_batch_size\":8,\"parameters\":{\"TFUSE_RAGGED\":{\"string_value\":\"ids:1, text:1 x:1 y:1\"}}}";
  load_well(&model, "ragged", "ids:3:-1,-1,2 text:7:-1,-1", "x:3:-1,-1,2 y:7:-1,-1", config);
  CHECK(strstr(model.completed, "\"dims\":[-1,2],\"allow_ragged_batch\":true"));
  begin(&instance, &model);
  const int32_t ids[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10};
  const char *short_text = "\1\0\0\0a\2\0\0\0bc", *long_text = "\0\0\0\0\1\0\0\0d\1\0\0\0e";
  TRITONBACKEND_Request r[2] = {{.inputs = 0}};
  /* Two rows of one step, and one of three; the first has its texts as rows of one. */
  add_input(&r[0], "ids", TRITONSERVER_TYPE_INT32, (tfu_shape)SHAPE(2, 1, 2), ids, 16);
  add_input(&r[0], "text", TRITONSERVER_TYPE_BYTES, (tfu_shape)SHAPE(2, 1), short_text, 11);
  add_input(&r[1], "ids", TRITONSERVER_TYPE_INT32, (tfu_shape)SHAPE(1, 3, 2), ids + 4, 24);
  add_input(&r[1], "text", TRITONSERVER_TYPE_BYTES, (tfu_shape)SHAPE(1, 3), long_text, 14);
  for (int i = 0; i < 2; i++) r[i].wanted[0] = "x", r[i].wanted[1] = "y";
  runs = 0;
  execute(&instance, r, 2);
  CHECK(runs == 1 && !r[0].code && !r[1].code);
  CHECK(is_out(&r[0].out[0], "x", (tfu_shape)SHAPE(2, 1, 2), ids, 16));
  CHECK(is_out(&r[0].out[1], "y", (tfu_shape)SHAPE(2, 1), short_text, 11));
  CHECK(is_out(&r[1].out[0], "x", (tfu_shape)SHAPE(1, 3, 2), ids + 4, 24));
  CHECK(is_out(&r[1].out[1], "y", (tfu_shape)SHAPE(1, 3), long_text, 14));
  for (int i = 0; i < 2; i++) clear(&r[i]);
  end(&instance);
}

/* What padding would make much larger, or larger than the limit, is not joined, and no memory is taken for it. */
static void test_padding_has_limits(void) {
  enum { N = 64, LONG = 1 << 18 };
  static TRITONBACKEND_Request r[N];
  static int32_t ids[LONG];
  const struct {
    int n;
    int64_t length;
    const char *limit;
  } cases[] = {{N, LONG, "0"}, {3, 100, "1000"}};
  for (int k = 0; k < TFU_COUNT(cases); k++) {
    TRITONBACKEND_Model model;
    TRITONBACKEND_ModelInstance instance;
    char config[200];
    const int64_t length = cases[k].length;
    snprintf(config, sizeof config,
             "{\"max_batch_size\":64,\"parameters\":{\"TFUSE_RAGGED\":{\"string_value\":\"ids:1 x:1\"},"
             "\"TFUSE_MAX_BYTES\":{\"string_value\":\"%s\"}}}",
             cases[k].limit);
    load_well(&model, "padded", "ids:3:-1,-1", "x:3:-1,-1", config);
    begin(&instance, &model);
    for (int i = 0; i < cases[k].n; i++) {
      ids[i] = i;
      add_input(&r[i], "ids", TRITONSERVER_TYPE_INT32, (tfu_shape)SHAPE(1, i ? 1 : length), ids + i,
                i ? 4 : 4 * (size_t)length);
      r[i].wanted[0] = "x";
    }
    runs = 0;
    largest = 0;
    execute(&instance, r, (uint32_t)cases[k].n);
    CHECK(runs == cases[k].n && largest == 4 * (size_t)length);
    for (int i = 0; i < cases[k].n; i++) {
      CHECK(is_out(&r[i].out[0], "x", (tfu_shape)SHAPE(1, i ? 1 : length), ids + i, i ? 4 : 4 * (size_t)length));
      clear(&r[i]);
    }
    end(&instance);
  }
}

/* What is over the limit is refused before any memory is asked for, whatever it is made of. */
static void test_limit(void) {
  enum { HUGE = 1 << 26 };
  char *zeros = calloc(HUGE, 1), text[4 + 25];
  TRITONBACKEND_Model model;
  TRITONBACKEND_ModelInstance instance;
  load_well(&model, "limited", "a:1:-1 b:7:-1", "x:1:-1 y:7:-1",
            "{\"input\":[" PORT("a", "FP32", "-1") "," PORT("b", "STRING", "-1") "],\"output\":[" PORT(
                "x", "FP32", "-1") "," PORT("y", "STRING", "-1") "],"
            "\"parameters\":{\"TFUSE_MAX_BYTES\":{\"string_value\":\"1000\"}}}");
  begin(&instance, &model);
  memset(text, 'x', sizeof text);
  memcpy(text, "\x19\0\0\0", 4);
  const struct {
    int64_t numbers, strings;
    uint64_t cut;      /* of the numbers, or of the strings where there are no numbers */
    const char *bytes; /* of the strings, which are otherwise empty */
    const char *error; /* NULL: there is none */
  } cases[] = {
      {HUGE / 4, 0, HUGE / 2, NULL, "the inputs are 67108864 bytes, and the limit is 1000"},
      {0, HUGE / 4, 0, NULL, "the inputs are 671088640 bytes, and the limit is 1000"},
      {0, HUGE / 4, 1000, NULL, "the inputs are 671088640 bytes, and the limit is 1000"},
      {250, 0, 500, NULL, NULL},
      {0, 25, 0, NULL, NULL},
      {0, 26, 0, NULL, "the inputs are 1040 bytes, and the limit is 1000"},
      {150, 10, 0, NULL, NULL},
      {151, 10, 0, NULL, "the inputs are 1004 bytes, and the limit is 1000"},
      {233, 1, 0, text, NULL}, /* 932 + 40 + 25 */
      {234, 1, 0, text, "the inputs are 1001 bytes, and the limit is 1000"},
  };
  for (int i = 0; i < TFU_COUNT(cases); i++) {
    TRITONBACKEND_Request r = {.wanted = {"x", "y"}};
    const int64_t n = cases[i].numbers, strings = cases[i].strings;
    add_input(&r, "a", TRITONSERVER_TYPE_FP32, (tfu_shape)SHAPE(n), zeros, 4 * (size_t)n);
    add_input(&r, "b", TRITONSERVER_TYPE_BYTES, (tfu_shape)SHAPE(strings), cases[i].bytes ? cases[i].bytes : zeros,
              cases[i].bytes ? sizeof text : 4 * (size_t)strings);
    r.in[n ? 0 : 1].cut = cases[i].cut;
    looked = 0;
    execute(&instance, &r, 1);
    CHECK_FOR(!strcmp(r.error, cases[i].error ? cases[i].error : ""), "case %d: %s", i, r.error);
    CHECK_FOR(cases[i].error ? !looked && r.code == TRITONSERVER_ERROR_INVALID_ARG : looked > 0, "case %d", i);
    clear(&r);
  }
  end(&instance);
  free(zeros);
}

static void test_without_batches(void) {
  TRITONBACKEND_Model model;
  TRITONBACKEND_ModelInstance instance;
  load_well(&model, "scalar", "a:1: b:1:2", "x:1: y:1:2", "{}");
  CHECK(strstr(model.completed, PORT("a", "FP32", "1")) && strstr(model.completed, "\"max_batch_size\":0"));
  begin(&instance, &model);
  const float a[] = {1, 2, 3};
  TRITONBACKEND_Request r[2] = {{.inputs = 0}};
  for (int i = 0; i < 2; i++) {
    add_input(&r[i], "a", TRITONSERVER_TYPE_FP32, (tfu_shape)SHAPE(1), a + i, 4);
    add_input(&r[i], "b", TRITONSERVER_TYPE_FP32, (tfu_shape)SHAPE(2), a + 1, 8);
    r[i].wanted[0] = "x";
  }
  execute(&instance, r, 2);
  for (int i = 0; i < 2; i++) {
    CHECK(is_out(&r[i].out[0], "x", (tfu_shape)SHAPE(1), a + i, 4));
    clear(&r[i]);
  }
  end(&instance);
  load_well(&model, "other", "a:1:-1", "x:9:-1", "{}"); /* what it gives is not what it says */
  begin(&instance, &model);
  add_input(&r[0], "a", TRITONSERVER_TYPE_FP32, (tfu_shape)SHAPE(1), a, 4);
  r[0].wanted[0] = "x";
  execute(&instance, r, 1);
  CHECK_TEXT(r[0].error, "the model gives float32 for output x, which must be int64");
  CHECK(r[0].code == TRITONSERVER_ERROR_INTERNAL);
  clear(&r[0]);
  end(&instance);
}

/* ---- configurations ---- */

/* A request that is alone is run where it lies, if it is aligned; and it is the server's again when nobody has its
 * memory any more. A model that keeps memory gets copies from then on, and an instance's first run has copies: a
 * warm-up waits for the end of its request. */
static void test_memory_is_lent(void) {
  TRITONBACKEND_Model model;
  TRITONBACKEND_ModelInstance instance;
  _Alignas(64) float values[32] = {1, 2};
  load_well(&model, "lent", "a:1:-1", "x:1:-1", "{\"max_batch_size\":4}");
  begin(&instance, &model);
  for (int i = 0; i < 4; i++) {
    const int at = (const int[]){0, 0, 15, 16}[i], is_lent = i == 1 || i == 3;
    TRITONBACKEND_Request r = {.inputs = 0};
    add_input(&r, "a", TRITONSERVER_TYPE_FP32, (tfu_shape)SHAPE(2), values + at, 8);
    r.wanted[0] = "x";
    execute(&instance, &r, 1);
    CHECK((read_from == values + at) == is_lent && is_out(&r.out[0], "x", (tfu_shape)SHAPE(2), values + at, 8));
    clear(&r);
  }
  values[1] = KEPT;
  TRITONBACKEND_Request r = {.inputs = 0}, *one = &r;
  add_input(&r, "a", TRITONSERVER_TYPE_FP32, (tfu_shape)SHAPE(2), values, 8);
  r.wanted[0] = "x";
  CHECK(!TRITONBACKEND_ModelInstanceExecute(&instance, &one, 1) && r.answered == 1 && !r.released);
  delete_tensor(kept);
  CHECK(r.released == 1);
  clear(&r);
  add_input(&r, "a", TRITONSERVER_TYPE_FP32, (tfu_shape)SHAPE(2), values, 8);
  execute(&instance, &r, 1);
  CHECK(read_from != values);
  delete_tensor(kept);
  clear(&r);
  /* In two pieces it is put together where a run takes it: there is one copy. */
  values[1] = 2;
  add_input(&r, "a", TRITONSERVER_TYPE_FP32, (tfu_shape)SHAPE(2), values, 8);
  r.in[0].cut = 4;
  r.wanted[0] = "x";
  execute(&instance, &r, 1);
  CHECK(read_from != values && is_out(&r.out[0], "x", (tfu_shape)SHAPE(2), values, 8));
  clear(&r);
  end(&instance);
}

static void test_what_is_refused(void) {
  TRITONBACKEND_Model model;
  const struct {
    const char *name, *inputs, *config, *text;
  } cases[] = {
      {"c1", "a:1:-1,2", "{\"input\":[" PORT("b", "FP32", "2") "]}", "the model has no input \"b\""},
      {"c2", "a:1:-1,2", "{\"input\":[" PORT("a", "FP64", "-1,2") "]}", "data_type of input a must be TYPE_FP32"},
      {"c3", "a:1:-1,2", "{\"input\":[" PORT("a", "FP32", "2") "]}", "its dims must be 2, got 1"},
      {"c4", "a:1:1,2", "{\"max_batch_size\":4}",
       "max_batch_size must be 0: the first size of input a, [1, 2], is not open"},
      {"c5", "a:1:? b:1:2", "{}", "the model leaves the rank of input a open"},
      {"c6", "a:1:-1 b:1:2", "{\"input\":[" PORT("a", "FP32", "-1") "]}", "the configuration lacks input b"},
      {"c7", "a:1:-1", "{\"default_model_filename\":\"../other\"}",
       "must be a name in the version's folder, got ../other"},
      {"c8", "a:1:-1", "{\"default_model_filename\":\"other\"}", "/3/other/saved_model.pb: the folder of a SavedModel"},
      {"c9", "a:1:-1", "{\"parameters\":{\"TF_SIGNATURE_DEF\":{\"string_value\":\"s\"}}}",
       "the model has no signature s"},
      {"c10", "a:1:-1", "{\"parameters\":{\"TF_NUM_INTRA_THREADS\":{\"string_value\":\"two\"}}}",
       "must be a whole number, 0 or more, got \"two\""},
      {"c11", "a:1:-1", "{\"parameters\":{\"TFUSE_RAGGED\":{\"string_value\":\"a\"}}}", "must be NAME:AXIS for each"},
      {"c12", "a:1:-1", "{\"parameters\":{\"TFUSE_RAGGED\":{\"string_value\":\"q:1\"}}}", "names q, which the model"},
      {"c13", "a:1:2", "{\"parameters\":{\"TFUSE_RAGGED\":{\"string_value\":\"a:1\"}}}", "needs a max_batch_size"},
      {"c14", "a:1:-1", "{\"max_batch_size\"", "the configuration is not JSON"},
      {"c15", "a:1:-1", "{\"parameters\":{\"TFUSE_QUEUE\":{\"string_value\":\"many\"}}}",
       "TFUSE_QUEUE must be a whole number, 0 or more, got \"many\""},
      {"c16", "a:1:-1", "{\"parameters\":{\"TFUSE_QUEUE_SECONDS\":{\"string_value\":\"9999999999\"}}}",
       "TFUSE_QUEUE_SECONDS must be at most 2147483647, got 9999999999"},
  };
  for (int i = 0; i < TFU_COUNT(cases); i++) {
    const char *text = load(&model, cases[i].name, cases[i].inputs, "x:1:-1,2", cases[i].config);
    CHECK_FOR(strstr(text, cases[i].text), "%s: \"%s\"", cases[i].name, text);
    free(model.completed);
  }
  /* A session that cannot be made: of the variables a part is missing. */
  TRITONBACKEND_ModelInstance instance = {.model = &model, .kind = 1};
  load_well(&model, "broken", "a:1:-1", "x:1:-1", "{}");
  TRITONSERVER_Error *error = TRITONBACKEND_ModelInstanceInitialize(&instance);
  CHECK(error && strstr(error->text, "variables are missing"));
  TRITONSERVER_ErrorDelete(error);
  CHECK(!TRITONBACKEND_ModelFinalize(&model));
  free(model.completed);
  api_major = 2;
  error = TRITONBACKEND_Initialize(&backend);
  CHECK(error && error->code == TRITONSERVER_ERROR_UNSUPPORTED);
  TRITONSERVER_ErrorDelete(error);
  api_major = 1;
  CHECK(!TRITONBACKEND_Initialize(&backend) && living == 0);
}

static void test_loads_and_unloads(void) {
  TRITONBACKEND_Model model;
  TRITONBACKEND_ModelInstance instance[2];
  for (int i = 0; i < 100; i++) {
    load_well(&model, "again", "a:1:-1,2", "x:1:-1,2", "{}");
    begin(&instance[0], &model);
    const int sessions = living;
    begin(&instance[1], &model);
    CHECK(living == sessions); /* they share it */
    CHECK(!TRITONBACKEND_ModelInstanceFinalize(&instance[1]));
    end(&instance[0]);
  }
}

/* ---- requests of any kind ---- */

static void test_any_request(void) {
  static const int64_t sizes[] = {0, 1, 1, 2, 3, -1, INT64_MAX, 1ll << 40, INT64_MIN};
  static const TRITONSERVER_DataType types[] = {TRITONSERVER_TYPE_FP32, TRITONSERVER_TYPE_BYTES};
  TRITONBACKEND_Model model;
  TRITONBACKEND_ModelInstance instance;
  const char *config = "{\"max_batch_size\":64,\"parameters\":{\"TFUSE_RAGGED\":{\"string_value\":\"a:1 x:1\"}}}";
  const int64_t count = fuzz_count(10000);
  load_well(&model, "any", "a:1:-1,-1 b:7:-1", "x:1:-1,-1 y:7:-1", config);
  begin(&instance, &model);
  for (int64_t i = 0; i < count; i++) {
    TRITONBACKEND_Request r[4] = {{.inputs = 0}};
    char *memory[8];
    const uint32_t n = 1 + random_number() % 4;
    for (uint32_t k = 0; k < 2 * n; k++) {
      const uint32_t kind = random_number() % 6;
      const int strings = k % 2;
      tfu_shape shape = {.rank = kind ? 2 - strings : (int)(random_number() % 9)};
      for (int d = 0; d < shape.rank; d++) shape.dim[d] = kind > 1 ? 1 + d : sizes[random_number() % TFU_COUNT(sizes)];
      const size_t bytes = kind > 2 ? (strings ? 5 : 8) : random_number() % 40;
      memory[k] = malloc(bytes ? bytes : 1); /* no more than that: a sanitizer sees what is read beyond */
      memset(memory[k], (int)(random_number() % 4), bytes);
      if (strings && kind > 2) memcpy(memory[k], "\1\0\0\0s", 5);
      TRITONBACKEND_Request *q = &r[k / 2];
      add_input(q,
                kind == 2 && random_number() % 9 == 0 ? "c"
                : strings                             ? "b"
                                                      : "a",
                kind ? types[strings] : random_number() % 20, shape, memory[k], bytes);
      if (random_number() % 5 == 0 && bytes) q->in[strings].cut = random_number() % bytes;
      q->wanted[0] = "x", q->wanted[1] = "y";
    }
    execute(&instance, r, n);
    for (uint32_t k = 0; k < n; k++) {
      CHECK((r[k].code != 0) == (*r[k].error != 0));
      clear(&r[k]);
    }
    for (uint32_t k = 0; k < 2 * n; k++) free(memory[k]);
  }
  printf("%lld batches of any requests: %d answered, %d refused\n", (long long)count, instance.succeeded,
         instance.failed);
  CHECK(instance.succeeded > count / 10 && instance.failed > count / 10);
  end(&instance);
}

int main(void) {
  char command[100];
  CHECK(mkdtemp(home) != NULL);
  test_requests_are_joined();
  test_names_cannot_configure();
  test_an_error_is_that_of_one_request();
  test_ragged();
  test_padding_has_limits();
  test_limit();
  test_without_batches();
  test_memory_is_lent();
  test_what_is_refused();
  test_loads_and_unloads();
  test_any_request();
  snprintf(command, sizeof command, "rm -r %s", home);
  CHECK(system(command) == 0);
  return verdict();
}
