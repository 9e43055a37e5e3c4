/* model_test.c - models from C, with a TensorFlow that stands in: runs, errors, threads, and tensors of any kind. */
#include <pthread.h>

#include "serving/model.h"
#include "tests/serving/saved_model_writer.h"
#include "tests/serving/tensorflow_stand_in.h"

static tfu_error err;
static char home[] = "/tmp/model_test.XXXXXX";

static const char *folder_of(const char *name, const char *inputs, const char *outputs) {
  static char folder[200];
  const proto model = saved_model_of(inputs, outputs);
  snprintf(folder, sizeof folder, "%s/%s", home, name);
  write_saved_model(folder, &model);
  return folder;
}

static tfu_model *open_model(const char *inputs, const char *outputs) {
  tfu_model *model = NULL;
  CHECK(tfu_model_open(folder_of("model", inputs, outputs), NULL, &model, &err) == TFU_OK);
  return model;
}

static void test_run(void) {
  tfu_model *model = open_model("a:1:-1,2 b:7:-1", "x:1:-1,2 y:7:-1");
  const tfu_signature *s = tfu_model_signature(model, NULL);
  float numbers[] = {1, 2, 3, 4};
  tfu_text texts[] = {{"one", 3}, {NULL, 0}, {"a\0b", 3}};
  tfu_array in[] = {{.dtype = TFU_TF_FLOAT, .shape = SHAPE(2, 2), .data = numbers},
                    {.dtype = TFU_TF_STRING, .shape = SHAPE(3), .data = texts}},
            out[2];
  CHECK(s == tfu_model_signature_at(model, 0) && tfu_model_signatures(model) == 1 && !tfu_model_signature_at(model, 1));
  CHECK(tfu_model_run(model, s, in, out, &err) == TFU_OK);
  CHECK(same_shape(&out[0].shape, &in[0].shape) && !memcmp(out[0].data, numbers, sizeof numbers));
  const tfu_text *got = out[1].data;
  CHECK(got[0].bytes == 3 && !memcmp(got[0].data, "one", 3) && !got[1].bytes && !memcmp(got[2].data, "a\0b", 3));
  for (int i = 0; i < 2; i++) tfu_array_free(&out[i]), tfu_array_free(&out[i]);
  /* Memory of the model's own is not copied. */
  tfu_array own;
  CHECK(tfu_array_new(TFU_TF_FLOAT, &in[0].shape, &own, &err) == TFU_OK);
  memcpy(own.data, numbers, sizeof numbers);
  const int before = living;
  in[0] = own;
  CHECK(tfu_model_run(model, s, in, out, &err) == TFU_OK && !memcmp(out[0].data, numbers, sizeof numbers));
  for (int i = 0; i < 2; i++) tfu_array_free(&out[i]);
  CHECK(living == before);
  tfu_array_free(&own);
  tfu_model_close(model);
  CHECK(living == 0);
}

static void test_what_is_refused(void) {
  tfu_model *model = open_model("a:1:-1,2", "x:1:-1,2");
  const tfu_signature *s = tfu_model_signature(model, NULL);
  float numbers[8] = {0};
  tfu_array out;
  const struct {
    tfu_array in;
    tfu_code code;
    const char *text;
  } cases[] = {
      {{TFU_TF_INT32, SHAPE(2, 2), numbers, NULL}, TFU_INVALID, "input a must be float32, got int32"},
      {{99, SHAPE(2, 2), numbers, NULL}, TFU_INVALID, "input a must be float32, got an unknown dtype"},
      {{TFU_TF_FLOAT, SHAPE(2, 3), numbers, NULL}, TFU_INVALID, "input a must have shape [?, 2], got [2, 3]"},
      {{TFU_TF_FLOAT, SHAPE(4), numbers, NULL}, TFU_INVALID, "input a must have shape [?, 2], got [4]"},
      {{TFU_TF_FLOAT, SHAPE(-3, 2), numbers, NULL}, TFU_INVALID, "size 0 of shape [-3, 2] is negative"},
      {{TFU_TF_FLOAT, SHAPE(INT64_MAX, 2), numbers, NULL}, TFU_EXHAUSTED, NULL},
      {{TFU_TF_FLOAT, {.rank = 9}, numbers, NULL}, TFU_INVALID, "the rank must be 0 to 8, got 9"},
      {{TFU_TF_FLOAT, SHAPE(2, 2), NULL, NULL}, TFU_INVALID, "shape [2, 2] has no data"},
  };
  for (int i = 0; i < TFU_COUNT(cases); i++) {
    CHECK_FOR(tfu_model_run(model, s, &cases[i].in, &out, &err) == cases[i].code, "case %d: %s", i, err.text);
    if (cases[i].text) CHECK_TEXT(err.text, cases[i].text);
  }
  numbers[1] = UNLUCKY;
  const tfu_array in = {.dtype = TFU_TF_FLOAT, .shape = SHAPE(2, 2), .data = numbers};
  CHECK(tfu_model_run(model, s, &in, &out, &err) == TFU_INVALID);
  CHECK_TEXT(err.text, "signature serving_default: an unlucky number");
  tfu_model_close(model);
  CHECK(living == 0);
}

static void test_limit(void) {
  tfu_model *model;
  const tfu_model_options options = {.most_bytes = 16};
  tfu_array out;
  float numbers[5] = {0};
  CHECK(tfu_model_open(folder_of("limit", "a:1:-1", "x:1:-1"), &options, &model, &err) == TFU_OK);
  tfu_array in = {.dtype = TFU_TF_FLOAT, .shape = SHAPE(4), .data = numbers};
  CHECK(tfu_model_run(model, tfu_model_signature(model, NULL), &in, &out, &err) == TFU_OK);
  tfu_array_free(&out);
  in.shape.dim[0] = 5;
  CHECK(tfu_model_run(model, tfu_model_signature(model, NULL), &in, &out, &err) == TFU_INVALID);
  CHECK_TEXT(err.text, "the inputs are 20 bytes, and the limit is 16");
  tfu_model_close(model);
  /* A string takes more than its characters. Sums do not overflow. */
  const tfu_model_options more = {.most_bytes = 1000};
  const struct {
    int64_t n;
    size_t bytes; /* of the first one */
    const char *error;
  } cases[] = {{25, 0, NULL},
               {26, 0, "the inputs are 1040 bytes, and the limit is 1000"},
               {24, 40, NULL},
               {24, 41, "the inputs are 1001 bytes, and the limit is 1000"},
               {2, SIZE_MAX / 2, "the inputs are 9223372036854775887 bytes, and the limit is 1000"},
               {2, SIZE_MAX, "the inputs are 18446744073709551615 bytes, and the limit is 1000"}};
  CHECK(tfu_model_open(folder_of("strings", "a:7:-1", "x:7:-1"), &more, &model, &err) == TFU_OK);
  for (int i = 0; i < TFU_COUNT(cases); i++) {
    tfu_text texts[26] = {{"a text of more than a few characters, of which", cases[i].bytes}};
    in = (tfu_array){.dtype = TFU_TF_STRING, .shape = SHAPE(cases[i].n), .data = texts};
    err = (tfu_error){""};
    const tfu_code code = tfu_model_run(model, tfu_model_signature(model, NULL), &in, &out, &err);
    CHECK_FOR(
        code == (cases[i].error ? TFU_INVALID : TFU_OK) && !strcmp(err.text, cases[i].error ? cases[i].error : ""),
        "case %d: %s", i, err.text);
    if (code == TFU_OK) tfu_array_free(&out);
  }
  tfu_model_close(model);
}

static void test_models_that_do_not_open(void) {
  tfu_model *model = (tfu_model *)&err;
  const tfu_model_options missing = {.libraries = "/a.so:/missing.so"}, tags = {.tags = "train"};
  CHECK(tfu_model_open(folder_of("broken", "a:1:1", "x:1:1"), NULL, &model, &err) == TFU_INVALID && !model);
  CHECK(strstr(err.text, "broken: variables are missing"));
  CHECK(tfu_model_open(folder_of("custom", "a:1:1", "x:1:1"), NULL, &model, &err) == (tfu_code)5 && !model);
  CHECK(strstr(err.text, "needs tfuse's ops: TFUSE_LIBRARY should name libtfuse.so"));
  CHECK(tfu_model_open(folder_of("graph", "nowhere:1:1", "x:1:1"), NULL, &model, &err) == TFU_INVALID && !model);
  CHECK_TEXT(err.text, "the model's graph has no tensor nowhere:0, which its signature names");
  CHECK(tfu_model_open(folder_of("libraries", "a:1:1", "x:1:1"), &missing, &model, &err) == (tfu_code)5 && !model);
  CHECK_TEXT(err.text, "/missing.so: no such library");
  CHECK(tfu_model_open(folder_of("tags", "a:1:1", "x:1:1"), &tags, &model, &err) == TFU_INVALID && !model);
  const tfu_model_options gpu = {.device = "GPU:1"};
  CHECK(tfu_model_open(folder_of("gpu", "a:1:1", "x:1:1"), &gpu, &model, &err) == TFU_PRECONDITION && !model);
  CHECK(strstr(err.text, "GPU:1 was asked for, and TensorFlow 2.21.0-stand-in sees none"));
  CHECK(tfu_model_open("/nowhere", NULL, &model, &err) == TFU_INVALID && !model);
  tfu_model_close(NULL);
  CHECK(living == 0);
}

static void *run_often(void *model) {
  float numbers[4];
  for (int i = 0; i < 500; i++) {
    tfu_array in = {.dtype = TFU_TF_FLOAT, .shape = SHAPE(4), .data = numbers}, out;
    tfu_error mine;
    for (int k = 0; k < 4; k++) numbers[k] = (float)(i * 4 + k);
    const int unlucky = i == 3; /* which has 13 */
    const tfu_code code = tfu_model_run(model, tfu_model_signature(model, NULL), &in, &out, &mine);
    if ((code != TFU_OK) != unlucky || (!unlucky && i != 4 && memcmp(out.data, numbers, sizeof numbers))) return model;
    if (code == TFU_OK) tfu_array_free(&out);
  }
  return NULL;
}

static void test_threads(void) {
  pthread_t threads[8];
  tfu_model *model = open_model("a:1:-1", "x:1:-1");
  for (int i = 0; i < TFU_COUNT(threads); i++) pthread_create(&threads[i], NULL, run_often, model);
  for (int i = 0; i < TFU_COUNT(threads); i++) {
    void *wrong;
    pthread_join(threads[i], &wrong);
    CHECK(!wrong);
  }
  tfu_model_close(model);
  CHECK(living == 0);
}

/* Tensors of any dtype and shape, of which most are refused: a code and a text, and nothing else. */
static void test_any_tensor(void) {
  static const int64_t sizes[] = {0, 1, 2, 3, 5, -1, -7, INT64_MAX, INT64_MIN, 1ll << 31, 1ll << 62, 4};
  tfu_model *model = open_model("a:1:-1,2 b:7:-1 c:3:?", "x:1:-1,2 y:7:-1 z:3:?");
  const tfu_signature *s = tfu_model_signature(model, NULL);
  const int dtypes[] = {TFU_TF_FLOAT, TFU_TF_STRING, TFU_TF_INT32};
  const int64_t count = fuzz_count(30000);
  int64_t answered = 0;
  for (int64_t i = 0; i < count; i++) {
    tfu_array in[3], out[3];
    for (int k = 0; k < 3; k++) {
      size_t elements, bytes;
      const uint32_t kind = random_number() % 8;
      in[k] = (tfu_array){.dtype = kind ? dtypes[k] : (int)random_number() % 40 - 4};
      in[k].shape.rank = kind > 1 ? (k == 1 ? 1 : 2) : (int)random_number() % 12 - 1;
      for (int d = 0; d < TFU_MAX_RANK; d++)
        in[k].shape.dim[d] = kind > 2 ? (d == 1 ? 2 : random_number() % 4) : sizes[random_number() % TFU_COUNT(sizes)];
      /* As much memory as it says, where that can be: a sanitizer sees what is read beyond. */
      if (tfu_array_size(in[k].dtype, &in[k].shape, &elements, &bytes, &err) || bytes > 1 << 16) continue;
      in[k].data = malloc(bytes ? bytes : 1);
      memset(in[k].data, (int)(i % 100), bytes);
      for (size_t e = 0; in[k].dtype == TFU_TF_STRING && e < elements; e++)
        ((tfu_text *)in[k].data)[e] = (tfu_text){"some text", random_number() % 10};
    }
    *err.text = 0;
    if (tfu_model_run(model, s, in, out, &err) == TFU_OK) {
      answered++;
      for (int k = 0; k < 3; k++) tfu_array_free(&out[k]);
    } else {
      CHECK(*err.text);
    }
    for (int k = 0; k < 3; k++) free(in[k].data);
  }
  tfu_model_close(model);
  printf("%lld tensors of any kind in %lld runs, of which %lld were answered\n", (long long)count * 3, (long long)count,
         (long long)answered);
  CHECK(answered > 0 && answered < count && living == 0);
}

int main(void) {
  CHECK(mkdtemp(home) != NULL);
  setenv("TFUSE_LIBRARY", "/libtfuse.so", 1);
  test_run();
  test_what_is_refused();
  test_limit();
  test_models_that_do_not_open();
  test_threads();
  test_any_tensor();
  CHECK(loads > 0);
  char command[100];
  snprintf(command, sizeof command, "rm -r %s", home);
  CHECK(system(command) == 0);
  return verdict();
}
