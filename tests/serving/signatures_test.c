/* signatures_test.c - what is read of saved_model.pb, and that no bytes whatever do harm. */
#include "serving/signatures.h"
#include "tests/check.h"
#include "tests/serving/saved_model_writer.h"

static tfu_error err;

static void test_ports(void) {
  tfu_signatures found;
  const proto model = saved_model_of("x:1:-1,4 ids:9:? flag:10:", "z:7:-1 y:14:2,3,-1");
  CHECK(tfu_signatures_parse(model.at, model.n, "serve", &found, &err) == TFU_OK);
  CHECK(found.n == 1);
  const tfu_signature *s = tfu_signatures_find(&found, NULL);
  CHECK(s && s->inputs == 3 && s->outputs == 2);
  CHECK_TEXT(s->name, "serving_default");
  CHECK_TEXT(s->input[0].name, "flag"); /* by name */
  CHECK_TEXT(s->input[1].name, "ids");
  CHECK_TEXT(s->input[2].tensor, "x:0");
  const tfu_shape x = SHAPE(_, 4), y = SHAPE(2, 3, _);
  CHECK(s->input[0].shape.rank == 0 && s->input[1].shape.rank == TFU_UNKNOWN && same_shape(&s->input[2].shape, &x));
  CHECK(s->input[1].dtype == TFU_TF_INT64 && same_shape(&s->output[0].shape, &y));
  CHECK(s->output[1].dtype == TFU_TF_STRING);
  CHECK(!tfu_signatures_find(&found, "other") && tfu_signatures_find(&found, "serving_default") == s);
  tfu_signatures_free(&found);
  CHECK(!found.at && !found.n);
}

static void test_which_graph(void) {
  tfu_signatures found;
  proto model = {.n = 0}, train = graph_of("train", "a", "x:1:1", "y:1:1"),
        serve = graph_of("serve", "b", "x:1:1", "y:1:1");
  put_message(&model, 2, &train);
  put_message(&model, 2, &serve);
  CHECK(tfu_signatures_parse(model.at, model.n, "serve", &found, &err) == TFU_OK);
  CHECK_TEXT(found.at[0].name, "b");
  tfu_signatures_free(&found);
  CHECK(tfu_signatures_parse(model.at, model.n, "serve,gpu", &found, &err) == TFU_INVALID);
  CHECK_TEXT(err.text, "saved_model.pb has no graph with the tags \"serve,gpu\"");
}

static void test_what_is_left_out(void) {
  tfu_signatures found;
  const char *ports[] = {"x:20:1", "x:1:1,1,1,1,1,1,1,1,1"}; /* a resource; a rank of 9 */
  for (int i = 0; i < TFU_COUNT(ports); i++) {
    const proto model = saved_model_of(ports[i], "y:1:1");
    CHECK(tfu_signatures_parse(model.at, model.n, "serve", &found, &err) == TFU_INVALID);
    CHECK(strstr(err.text, "no signature of plain tensors"));
  }
}

static void test_damage(void) {
  tfu_signatures found;
  const proto model = saved_model_of("x:1:-1,4", "y:1:-1,4");
  for (size_t n = 0; n < model.n; n++) { /* of each length on its own memory, which a sanitizer watches */
    uint8_t *part = malloc(n + 1);
    memcpy(part, model.at, n);
    uint8_t *exact = realloc(part, n ? n : 1);
    CHECK_FOR(tfu_signatures_parse(exact, n, "serve", &found, &err) == TFU_INVALID, "after %zu bytes", n);
    free(exact);
  }
}

static void test_any_bytes(void) {
  const proto model = saved_model_of("x:1:-1,4 ids:9:? flag:10:", "z:7:-1 y:14:2,3,-1");
  const char *given = getenv("TFUSE_FUZZ");
  const int64_t count = given ? atoll(given) : 100000;
  uint64_t state = 1;
  int64_t read = 0;
  for (int64_t i = 0; i < count; i++) {
    tfu_signatures found;
    uint8_t *bytes = malloc(model.n);
    memcpy(bytes, model.at, model.n);
    for (int k = 0; k < 1 + (int)(i % 4); k++) {
      state = state * 6364136223846793005u + 1442695040888963407u;
      bytes[(state >> 33) % model.n] = (uint8_t)(state >> 20);
    }
    if (tfu_signatures_parse(bytes, model.n, "serve", &found, &err) == TFU_OK) {
      read++;
      for (int s = 0; s < found.n; s++)
        for (int p = 0; p < found.at[s].inputs; p++) CHECK(tfu_tf_dtype_size(found.at[s].input[p].dtype));
      tfu_signatures_free(&found);
    }
    free(bytes);
  }
  printf("%lld damaged models, of which %lld could be read\n", (long long)count, (long long)read);
  CHECK(read > 0 && read < count);
}

static void test_files(void) {
  tfu_signatures found;
  char folder[] = "/tmp/signatures_test.XXXXXX", path[100];
  const proto model = saved_model_of("x:1:1", "y:1:1"), empty = {.n = 0};
  CHECK(mkdtemp(folder) != NULL);
  CHECK(tfu_signatures_read(folder, "serve", &found, &err) == TFU_INVALID);
  CHECK(strstr(err.text, "No such file"));
  write_saved_model(folder, &empty);
  CHECK(tfu_signatures_read(folder, "serve", &found, &err) == TFU_INVALID);
  write_saved_model(folder, &model);
  CHECK(tfu_signatures_read(folder, "serve", &found, &err) == TFU_OK);
  tfu_signatures_free(&found);
  snprintf(path, sizeof path, "%s/saved_model.pb", folder);
  remove(path);
  remove(folder);
}

int main(void) {
  test_ports();
  test_which_graph();
  test_what_is_left_out();
  test_damage();
  test_any_bytes();
  test_files();
  return verdict();
}
