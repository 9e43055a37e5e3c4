/* attention_served_test.c - what cuDNN is asked for: the table of attention_served.c by options and versions. */
#include <stddef.h>

#include "kernels/attention/attention_cudnn.h"
#include "ops/attention/attention.h"
#include "tests/check.h"

static const float somewhere[8] __attribute__((aligned(16)));
static const int64_t lengths[2];
static const uint8_t mask[1];
static const uint64_t seed[1];

/* A plain problem that every version serves; the cases below change a little of it. */
static attention_args plain(void) {
  return (attention_args){.query = somewhere,
                          .key = somewhere,
                          .value = somewhere,
                          .batch = 2,
                          .heads = 4,
                          .key_heads = 2,
                          .head_dim = 64,
                          .value_dim = 64,
                          .queries = 256,
                          .keys = 512,
                          .left = -1,
                          .right = -1,
                          .scale = 1};
}

static tfu_attention_request plain_request(int backward) {
  return (tfu_attention_request){.dtype = TFU_BF16, .backward = backward, .capability = 90};
}

static const char *refusal(const attention_args *a, int version, tfu_attention_request *r) {
  r->a = a;
  tfu_attention_ask(r, 0);
  return tfu_attention_refusal(r, version);
}

static const char *asked(const attention_args *a, int backward, int version, tfu_attention_request *r) {
  *r = plain_request(backward);
  return refusal(a, version, r);
}

static void expect(int line, const attention_args *a, tfu_attention_request *r, int version, const char *part) {
  const char *why = refusal(a, version, r);
  const int right = part ? why && strstr(why, part) : !why;
  check(right, __FILE__, line, "refusal", "is \"%s\", not \"%s\"", why ? why : "none", part ? part : "none");
}

/* EXPECT(backward, version, a part of the refusal or NULL, assignments to a and r) */
#define EXPECT(backward, version, part, ...)           \
  do {                                                 \
    attention_args a = plain();                        \
    tfu_attention_request r = plain_request(backward); \
    __VA_ARGS__;                                       \
    expect(__LINE__, &a, &r, version, part);           \
  } while (0)

#define BIAS(...) a.bias = somewhere, memcpy(a.bias_step, (int64_t[4]){__VA_ARGS__}, sizeof a.bias_step)

static void test_options(void) {
  for (int backward = 0; backward < 2; backward++) {
    EXPECT(backward, 91900, NULL, (void)a);
    EXPECT(backward, 90000, NULL, a.right = 0);
    EXPECT(backward, 91900, NULL, a.query_lengths = lengths, a.right = 0);
    EXPECT(backward, 91900, NULL, a.key_lengths = lengths, a.align = TFU_ALIGN_LAST, a.left = 9);
    EXPECT(backward, 91900, NULL, BIAS(0, 0, 0, 1));
    EXPECT(backward, 91900, NULL, BIAS(0, 0, 0, 0), a.keys = 1);
    EXPECT(backward, 91900, "for every key", BIAS(0, 0, 0, 0));
    EXPECT(backward, 91900, "last steps", BIAS(0, 0, 0, 1), a.align = TFU_ALIGN_LAST, a.right = 0);
    EXPECT(backward, 91900, "soft cap", a.soft_cap = 50);
    EXPECT(backward, 91900, "boolean mask", a.mask = mask);
    EXPECT(backward, 91900, "random numbers", a.seed = seed);
    EXPECT(backward, 91900, "ragged", a.ragged = 1);
    EXPECT(backward, 91900, "pages", a.table = lengths);
    EXPECT(backward, 91900, "float16 and bfloat16", r.dtype = TFU_F32);
    EXPECT(backward, 91900, "float16 and bfloat16", r.dtype = TFU_F64);
    EXPECT(backward, 91900, NULL, r.dtype = TFU_F16, r.capability = 80);
    EXPECT(backward, 91900, "capability 8.0", r.capability = 75);
    EXPECT(backward, 91900, "no key", a.queries = 513, a.align = TFU_ALIGN_LAST, a.right = 0);
    EXPECT(backward, 91900, "no key", a.queries = 513, a.left = 100);
    EXPECT(backward, 91900, NULL, a.queries = 512, a.left = 100);
    EXPECT(backward, 91900, NULL, a.queries = 513, a.right = 0);
  }
  EXPECT(1, 91900, "gradient of the bias", BIAS(0, 0, 0, 1), a.dbias = (void *)somewhere);
  EXPECT(1, 91900, "gradient of stats", a.dstats = somewhere);
  EXPECT(1, 91900, "one query and one key", a.queries = a.keys = 1);
  EXPECT(0, 91900, NULL, a.queries = a.keys = 1);
  EXPECT(1, 91900, NULL, a.queries = 1);
  EXPECT(1, 91900, NULL, a.keys = 1);
}

static void test_sizes(void) {
  EXPECT(0, 91900, "nothing", a.batch = 0);
  EXPECT(0, 91900, "nothing", a.heads = 0);
  EXPECT(0, 91900, "nothing", a.queries = 0);
  EXPECT(0, 91900, "nothing", a.keys = 0);
  EXPECT(0, 91900, "nothing", a.head_dim = 0);
  EXPECT(0, 91900, "nothing", a.value_dim = 0);
  EXPECT(0, 91900, "multiples of 8", a.head_dim = 60);
  EXPECT(0, 91900, "multiples of 8", a.value_dim = 60);
  EXPECT(0, 91900, "at most 256", a.head_dim = 264);
  EXPECT(0, 91900, "at most 256", a.value_dim = 264);
  EXPECT(0, 91900, NULL, a.head_dim = a.value_dim = 256);
  /* 2 * 4 heads, of so many steps of so many numbers. */
  EXPECT(0, 91900, "2^31", a.queries = 1 << 22);
  EXPECT(0, 91900, "2^31", a.keys = 1 << 22);
  EXPECT(0, 91900, "2^31", a.keys = 1 << 20, a.head_dim = 256, a.value_dim = 8);
  EXPECT(0, 91900, "2^31", a.keys = 1 << 20, a.head_dim = 8, a.value_dim = 256);
  EXPECT(0, 91900, NULL, a.keys = (1 << 20) - 1, a.head_dim = 256);
  EXPECT(0, 91900, "2^31", a.batch = 1 << 20, a.heads = 1 << 4); /* the rows alone, 2^33, are more than an int has */
  EXPECT(0, 91900, NULL, a.queries = a.keys = 1 << 14);
  EXPECT(0, 91900, "2^31", a.queries = a.keys = 1 << 14, BIAS(1, 1, 1, 1));
  EXPECT(0, 91900, "2^31", a.queries = a.keys = 1 << 15, BIAS(1, 1, 1, 1));
  for (int axis = 0; axis < 3; axis++)
    EXPECT(0, 91900, NULL, a.queries = a.keys = 1 << 14, BIAS(axis != 0, axis != 1, axis != 2, 1));
}

/* Each of the tensors, 8 bytes past a multiple of 16. */
static void test_addresses(void) {
  static const size_t places[] = {offsetof(attention_args, query),   offsetof(attention_args, key),
                                  offsetof(attention_args, value),   offsetof(attention_args, bias),
                                  offsetof(attention_args, output),  offsetof(attention_args, stats),
                                  offsetof(attention_args, doutput), offsetof(attention_args, dquery),
                                  offsetof(attention_args, dkey),    offsetof(attention_args, dvalue)};
  const char *past = (const char *)somewhere + 8;
  for (int i = 0; i < TFU_COUNT(places); i++)
    EXPECT(1, 91900, "16-byte", BIAS(0, 0, 0, 1), memcpy((char *)&a + places[i], &past, sizeof past));
}

static void test_versions(void) {
  static const struct {
    int version, left, right, align, refused;
  } cases[] = {{90500, -1, 0, 1, 1},  {90600, -1, 0, 1, 0}, {90900, 9, 0, 0, 0},   {90900, 9, 0, 1, 1},
               {90900, 9, -1, 0, 1},  {90900, -1, 3, 0, 1}, {91002, 9, -1, 0, 0},  {91002, -1, 3, 0, 0},
               {91000, -1, -1, 0, 1}, {91001, -1, 0, 0, 1}, {90900, -1, -1, 0, 0}, {91002, 9, 0, 1, 0},
               {91400, 9, 0, 1, 0},   {91400, 9, -1, 0, 1}, {91400, 9, 3, 0, 1},   {91401, 9, 3, 1, 0}};
  for (int i = 0; i < TFU_COUNT(cases); i++) {
    attention_args a = plain();
    tfu_attention_request r;
    a.left = cases[i].left;
    a.right = cases[i].right;
    a.align = cases[i].align;
    CHECK_FOR(!asked(&a, i % 2, cases[i].version, &r) == !cases[i].refused, "case %d", i);
  }
  EXPECT(1, 91100, "9.11 and 9.12", a.head_dim = a.value_dim = 256);
  EXPECT(1, 91200, "9.11 and 9.12", a.head_dim = 192, a.value_dim = 192);
  EXPECT(1, 91201, "9.11 and 9.12", a.head_dim = 256, a.value_dim = 128);
  EXPECT(1, 91200, NULL, a.head_dim = 192, a.value_dim = 128);
  EXPECT(1, 91200, NULL, a.head_dim = a.value_dim = 128);
  EXPECT(0, 91200, NULL, a.head_dim = a.value_dim = 256);
  EXPECT(1, 91002, NULL, a.head_dim = a.value_dim = 256);
  EXPECT(1, 91300, NULL, a.head_dim = a.value_dim = 256);
  EXPECT(0, 90900, "more than one query", a.queries = 1);
  EXPECT(0, 91002, NULL, a.queries = 1);
  EXPECT(0, 90900, "9.0 only", a.head_dim = 136, r.capability = 80);
  EXPECT(0, 90900, NULL, a.head_dim = 128, r.capability = 80);
  EXPECT(0, 90900, NULL, a.head_dim = 136);
  EXPECT(0, 91002, NULL, a.head_dim = 136, r.capability = 80);
  EXPECT(0, 90900, "window with bias", BIAS(0, 0, 0, 1), a.left = 9, a.right = 0);
  EXPECT(0, 90900, NULL, BIAS(0, 0, 0, 1), a.right = 0);
  EXPECT(0, 91002, NULL, BIAS(0, 0, 0, 1), a.left = 9, a.right = 0);
}

static void test_deterministic(void) {
  const attention_args a = plain();
  tfu_attention_request r = {.a = &a, .dtype = TFU_F16, .capability = 80, .deterministic = 1};
  tfu_attention_ask(&r, 0);
  CHECK(!tfu_attention_refusal(&r, 91900)); /* the forward pass always repeats */
  r.backward = 1;
  CHECK(tfu_attention_refusal(&r, 91900));
  r.deterministic = 0;
  CHECK(!tfu_attention_refusal(&r, 91900));
}

/* Bands that hold nothing back are not asked for; a gradient of odd sizes has lengths; keys compare as bytes. */
static void test_keys(void) {
  tfu_attention_request r, s;
  attention_args a = plain();
  a.align = TFU_ALIGN_LAST; /* a shift of 256 */
  a.right = 255;
  a.left = 511;
  CHECK(!asked(&a, 0, 91900, &r) && r.key.left < 0 && r.key.right < 0 && !r.key.align && !r.key.lengths);
  a.right = 254;
  a.left = 510;
  CHECK(!asked(&a, 0, 91900, &r) && r.key.left == 510 && r.key.right == 254 && r.key.align);
  a.keys = a.queries; /* no shift, unless lengths make one */
  a.left = -1;
  a.right = 0;
  CHECK(!asked(&a, 1, 91900, &r) && !r.key.align && !r.key.lengths);
  a.key_lengths = lengths;
  CHECK(!asked(&a, 0, 91900, &r) && r.key.align && r.key.lengths && r.given_lengths);
  a.key_lengths = NULL;
  a.queries = 255;
  CHECK(!asked(&a, 0, 91900, &r) && !r.key.lengths);
  CHECK(!asked(&a, 1, 91900, &s) && s.key.lengths && !s.given_lengths);
  CHECK(memcmp(&r.key, &s.key, sizeof r.key));
  CHECK(!asked(&a, 0, 91900, &s) && !memcmp(&r.key, &s.key, sizeof r.key));
  a.queries = 256;
  CHECK(!asked(&a, 1, 91900, &s) && !s.key.lengths);
  a.keys = 511;
  CHECK(!asked(&a, 1, 91900, &s) && s.key.lengths && !s.given_lengths);
}

/* Where sequences have lengths and are aligned at their last steps, each has a shift of its own: what limits nothing in
 * the longest may do so in another. */
static void test_lengths(void) {
  tfu_attention_request r;
  attention_args a = plain();
  a.left = 600;
  a.right = 600;
  a.query_lengths = lengths;
  CHECK(!asked(&a, 0, 91900, &r) && r.key.left < 0 && r.key.right < 0 && !r.key.align);
  CHECK(r.key.lengths && r.given_lengths);
  a.align = TFU_ALIGN_LAST;
  CHECK(!asked(&a, 0, 91900, &r) && r.key.left == 600 && r.key.right == 600 && r.key.align);
  a.query_lengths = NULL;
  CHECK(!asked(&a, 0, 91900, &r) && r.key.left < 0 && r.key.right < 0 && !r.key.align && !r.given_lengths);
  a.left = 100;
  CHECK(!asked(&a, 0, 91900, &r) && r.key.left == 100 && r.key.right < 0 && r.key.align);
}

int main(void) {
  test_options();
  test_sizes();
  test_addresses();
  test_versions();
  test_deterministic();
  test_keys();
  test_lengths();
  return verdict();
}
