/* gemm_gpu_test.c - how products are put to cuBLASLt, and how its algorithms are chosen and remembered, without a GPU:
 * against a cuBLASLt of our own that computes on the host. Checked are layouts, batches, alignments, choices, the file
 * they are in, and what runs without cuBLASLt. */
#include <math.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include "kernels/core/gpu/tuned_file.h"
#include "kernels/products/gemm_key.h"
#include "tests/check.h"
#include "tests/products/any_dtype.h"
#include "tests/products/cublaslt_stand_in.h"

/* Whether it was served. */
static int serve(run *r, const tfu_gemm_gpu *g) {
  int served;
  CHECK_FOR(tfu_gemm_gpu_run(&r->call, g, &served) == TFU_OK, "%s", r->err.text);
  return served;
}

/* The fastest, or, where float32 must be exact, the first that runs. */
static void test_choice(void) {
  tfu_gemm_gpu g = {.m = 2,
                    .n = 2,
                    .k = 2,
                    .dtype = TFU_F32,
                    .a = (float[4]){1, 2, 3, 4},
                    .b = (float[4]){1, 0, 0, 1},
                    .d = (float[4]){0}};
  run *r = start(NULL);
  CHECK(serve(r, &g));
  CHECK_TEXT(r->call.kernel, "cuBLASLt, epilogue none, algorithm 2, 20.0 us");
  g.tf32 = 1;
  r->call.kernel = NULL;
  CHECK(serve(r, &g));
  CHECK_TEXT(r->call.kernel, "cuBLASLt, epilogue none, algorithm 3, 10.0 us");
  end_run(r);
}

/* While a stream is captured, a product runs once: by the choice there is, else by the first proposal, which is not
 * remembered: the next one that may be timed is. The first of ours does not run at all. */
static void test_captured(void) {
  const tfu_gemm_gpu g = {.m = 2,
                          .n = 2,
                          .k = 2,
                          .dtype = TFU_F32,
                          .tf32 = 1,
                          .a = (float[4]){1, 2, 3, 4},
                          .b = (float[4]){1, 0, 0, 1},
                          .d = (float[4]){0}};
  for (int timed = 0; timed < 2; timed++) {
    run *r = start(NULL);
    int served;
    forget_choices();
    if (timed) CHECK(serve(r, &g));
    r->call.kernel = NULL;
    captures = 1;
    const int before = products;
    last_algo = 0;
    CHECK((tfu_gemm_gpu_run(&r->call, &g, &served) == TFU_OK) == timed && served);
    CHECK(last_algo == (timed ? 3 : 1) && products == before + timed);
    CHECK_TEXT(r->call.kernel, timed ? "cuBLASLt, epilogue none, algorithm 3, 10.0 us" : "cuBLASLt, untimed");
    captures = 0;
    r->call.kernel = NULL;
    CHECK(serve(r, &g));
    CHECK_TEXT(r->call.kernel, "cuBLASLt, epilogue none, algorithm 3, 10.0 us");
    end_run(r);
  }
}

/* Of the algorithms that have relu, those that make 0 of NaN are passed over, with and without a bias. */
static void test_relu_of_nan(void) {
  static const tfu_dtype dtypes[] = {TFU_F32, TFU_F16, TFU_BF16, TFU_F64};
  for (int i = 0; i < TFU_COUNT(dtypes) * 4 * 2; i++) {
    const tfu_dtype dtype = dtypes[i / 8];
    const int with_bias = i % 2;
    tfu_tensor a = filled(dtype, (tfu_shape)SHAPE(2, 3), 1), b = filled(dtype, (tfu_shape)SHAPE(3, 5), 2),
               bias = filled(dtype, (tfu_shape)SHAPE(5), 3), d = filled(dtype, (tfu_shape)SHAPE(2, 5), 4);
    const tfu_gemm_gpu g = {.a = a.data,
                            .b = b.data,
                            .d = d.data,
                            .m = 2,
                            .n = 5,
                            .k = 3,
                            .dtype = dtype,
                            .tf32 = 1,
                            .epilogue = TFU_EPI_RELU,
                            .bias = with_bias ? bias.data : NULL};
    run *r = start(NULL);
    forget_choices();
    hides_nan = i / 2 % 4; /* 1 does not run at all, 3 is the fastest */
    CHECK_FOR(serve(r, &g) == (hides_nan < 3), "%s %d", tfu_dtype_name(dtype), hides_nan);
    if (hides_nan < 3) {
      CHECK(last_algo == 3);
      for (int e = 0; e < 10; e++) {
        double want = with_bias ? at(bias.data, dtype, e % 5) : 0;
        for (int k = 0; k < 3; k++) want += at(a.data, dtype, e / 5 * 3 + k) * at(b.data, dtype, k * 5 + e % 5);
        CHECK_FOR(fabs(at(d.data, dtype, e) - fmax(want, 0)) <= 0.02 * fabs(want), "%s", tfu_dtype_name(dtype));
      }
    }
    end_run(r);
    drop(a.data), drop(b.data), drop(bias.data), drop(d.data);
  }
  hides_nan = 0;
}

/* ---- addresses and files ---- */

enum { OF_A, OF_B, OF_C, OF_D, OF_BIAS, ADDRESSES };

/* One product whose tensors begin so many bytes past a multiple of 256; whether it was served. */
static int ask(const int past[ADDRESSES]) {
  static _Alignas(256) char block[ADDRESSES][512];
  run *r = start(NULL);
  const tfu_gemm_gpu g = {.a = block[OF_A] + past[OF_A],
                          .b = block[OF_B] + past[OF_B],
                          .c = block[OF_C] + past[OF_C],
                          .d = block[OF_D] + past[OF_D],
                          .bias = block[OF_BIAS] + past[OF_BIAS],
                          .m = 2,
                          .n = 3,
                          .k = 4,
                          .dtype = TFU_BF16};
  const int served = serve(r, &g);
  end_run(r);
  return served;
}

static const int nowhere_past[ADDRESSES];

static int lines_in_file(void) {
  tfu_tuned_lines lines = {0};
  tfu_tuned_read(tfu_tuned_path(), &lines);
  const int n = lines.n;
  tfu_tuned_release(&lines);
  return n;
}

/* Every address is part of the question, in memory and in the file, as what it is a multiple of; and cuBLASLt is told
 * those of the matrices. Its A is our b, its B our a. */
static void check_alignment(int of, int past, uint32_t aligned) {
  static const int place[ADDRESSES] = {[OF_A] = 1, [OF_B] = 0, [OF_C] = 2, [OF_D] = 3, [OF_BIAS] = -1};
  const int refused = of == OF_BIAS && aligned < 16, is_new = aligned != 256 && !refused;
  int moved[ADDRESSES] = {0};
  moved[of] = past;
  forget_choices();
  proposals = 0;
  CHECK(ask(nowhere_past) && proposals == 1);
  for (int i = 0; i < 4; i++) CHECK_FOR(wished[i] == 256, "%d: %u", i, wished[i]);
  CHECK_FOR(ask(moved) == !refused && proposals == 1 + is_new, "of %d by %d: %d", of, past, proposals);
  for (int i = 0; i < 4; i++) CHECK_FOR(wished[i] == (i == place[of] ? aligned : 256), "of %d by %d", of, past);
  CHECK_FOR(lines_in_file() == 1 + is_new, "of %d by %d", of, past);
  tfu_tuned_forget();
  CHECK(ask(nowhere_past) && ask(moved) == !refused && proposals == 1 + is_new);
}

static void test_alignment(void) {
  static const uint32_t steps[][2] = {{2, 2}, {4, 4}, {6, 2}, {8, 8}, {16, 16}, {32, 16}, {128, 16}, {256, 256}};
  for (int of = 0; of < ADDRESSES; of++)
    for (int i = 0; i < TFU_COUNT(steps); i++) check_alignment(of, (int)steps[i][0], steps[i][1]);
}

static _Alignas(256) char room[7][1024];

/* A choice for the one is none for the other, neither in memory nor in the file. */
static void check_apart(int line, const tfu_gemm_gpu *one, const tfu_gemm_gpu *other) {
  run *r = start(NULL);
  forget_choices();
  proposals = 0;
  for (int round = 0; round < 2; round++) {
    const int served = serve(r, one) && serve(r, other);
    check(served && proposals == 2, __FILE__, line, "two questions", "asked %d times", proposals);
    check(lines_in_file() == 2, __FILE__, line, "two questions", "are %d lines", lines_in_file());
    tfu_tuned_forget();
  }
  end_run(r);
}

/* APART(assignments to g, one more that makes it another question) */
#define APART(first, second)                                     \
  do {                                                           \
    tfu_gemm_gpu g = {.a = room[0], .b = room[1], .d = room[2]}; \
    g.m = 2, g.n = 8, g.k = 4, g.dtype = TFU_BF16;               \
    first;                                                       \
    const tfu_gemm_gpu one = g;                                  \
    second;                                                      \
    check_apart(__LINE__, &one, &g);                             \
  } while (0)
#define SEVERAL g.batch = 2, g.a_stride = 8, g.b_stride = 32, g.c_stride = g.d_stride = 16

/* Whatever an algorithm may depend on. */
static void test_questions(void) {
  APART((void)g, g.m = 3);
  APART((void)g, g.n = 16);
  APART((void)g, g.k = 5);
  APART((void)g, g.a_transposed = 1);
  APART((void)g, g.b_transposed = 1);
  APART(g.a_row = 8, g.a_row = 16);
  APART((void)g, g.dtype = TFU_F16);
  APART(g.dtype = TFU_F32, g.tf32 = 1);
  APART((void)g, g.wide = 1);
  APART((void)g, g.c = room[3]);
  APART((void)g, g.bias = room[4]);
  APART((void)g, g.epilogue = TFU_EPI_RELU);
  APART(g.epilogue = TFU_EPI_RELU, g.epilogue = TFU_EPI_GELU);
  APART((g.aux = room[5], g.epilogue = TFU_EPI_GELU_AUX), g.aux = room[5] + 16);
  APART((g.sums = room[6], g.epilogue = TFU_EPI_SUM_B), g.sums = room[6] + 16);
  APART((SEVERAL), g.batch = 3);
  APART((SEVERAL), g.a_stride = 0);
  APART((SEVERAL), g.b_stride = 0);
  APART((SEVERAL, g.c = room[3]), g.c_stride = 0);
  APART((SEVERAL), g.d_stride = 24);
}

/* Puts another choice in the file's only line, whose checksum is right again. */
static void rewrite(uint64_t algo, uint64_t workspace) {
  const tfu_gemm_choice choice = {.algo.data = {algo}, .workspace = workspace};
  tfu_tuned_lines lines = {0};
  tfu_tuned_read(tfu_tuned_path(), &lines);
  CHECK(lines.n == 1);
  if (lines.n == 1) memcpy(lines.line[0].choice.data, &choice, sizeof choice);
  tfu_tuned_write(tfu_tuned_path(), &lines);
  tfu_tuned_release(&lines);
  tfu_tuned_forget();
}

/* The file is believed where cuBLASLt knows the algorithm and its workspace is enough, and not too much; else the
 * choice is made again, and written down. */
static void test_foreign_choices(void) {
  static const struct {
    uint64_t algo, workspace;
    int taken;
  } files[] = {{3, 4096, 1}, {2, 0, 1},          {3, 8192, 1}, {77, 0, 0},
               {0, 0, 0},    {UINT64_MAX, 0, 0}, {3, 0, 0},    {2, TFU_GEMM_WORKSPACE + 1, 0}};
  for (int i = 0; i < TFU_COUNT(files); i++) {
    forget_choices();
    CHECK(ask(nowhere_past) && last_algo == 3);
    rewrite(files[i].algo, files[i].workspace);
    proposals = products = 0;
    CHECK_FOR(ask(nowhere_past) && proposals == !files[i].taken, "file %d", i);
    CHECK_FOR(last_algo == (files[i].taken ? (int)files[i].algo : 3), "file %d: algorithm %d", i, last_algo);
    tfu_tuned_forget();
    proposals = products = 0;
    CHECK_FOR(ask(nowhere_past) && proposals == 0 && products == 1, "file %d", i);
  }
}

/* A layer's product with so many rows: which algorithm it got. */
static int algo_of(int64_t rows, int64_t inputs, int summed, int tf32) {
  const int64_t m = summed ? 2 : rows, k = summed ? rows : inputs;
  tfu_tensor a = filled(TFU_F32, (tfu_shape)SHAPE(m * k), 1), b = filled(TFU_F32, (tfu_shape)SHAPE(k * 3), 2);
  float *d = aligned_alloc(256, (size_t)(m * 3 / 64 + 1) * 256);
  const tfu_gemm_gpu g = {.a = a.data, .b = b.data, .d = d, .m = m, .n = 3, .k = k, .dtype = TFU_F32, .tf32 = tf32};
  run *r = start(NULL);
  CHECK(serve(r, &g));
  end_run(r);
  drop(a.data), drop(b.data), free(d);
  return last_algo;
}

/* Of a layer that gets other rows in every step, some numbers of rows are timed; the rest take what is nearest, with as
 * much workspace as they need. Other layers, and other sums, are timed for themselves. Exact float32 takes the first
 * proposal that runs, as always, and has it timed no more often. */
static void test_like_sizes(void) {
  for (int summed = 0; summed < 2; summed++)
    for (int tf32 = 0; tf32 < 2; tf32++) {
      forget_choices();
      for (int i = 0; i < TFU_TUNED_KIND; i++) CHECK(algo_of(20 + i, 4, summed, tf32) == 2 + tf32);
      const int before = lines_in_file();
      CHECK_FOR(before == TFU_TUNED_KIND, "%d", before);
      proposals = products = 0;
      for (int i = 0; i < 5; i++) CHECK(algo_of(36 + i, 4, summed, tf32) == 2 + tf32);
      CHECK_FOR(tf32 ? proposals == 0 && products == 5 : products == 10, "%d %d", proposals, products);
      CHECK(lines_in_file() == before);
      algo_of(36, summed ? 4 : 5, summed, tf32);
      algo_of(100, 4, summed, tf32);
      CHECK_FOR(lines_in_file() == before + (summed ? 1 : 2), "%d", lines_in_file());
    }
}

/* What is in a file that can only be read is taken; what is new is remembered here, and nothing is left behind. The
 * folder's mode stops a user, the limit root: files then cannot grow. */
static void test_unwritable(void) {
  const int moved[ADDRESSES] = {[OF_A] = 2};
  struct rlimit was, none;
  forget_choices();
  CHECK(ask(nowhere_past) && lines_in_file() == 1);
  CHECK(!getrlimit(RLIMIT_FSIZE, &was) && !chmod(cache, 0500));
  none = was;
  none.rlim_cur = 0;
  void (*handler)(int) = signal(SIGXFSZ, SIG_IGN);
  CHECK(!setrlimit(RLIMIT_FSIZE, &none));
  tfu_tuned_forget();
  proposals = 0;
  CHECK(ask(nowhere_past) && proposals == 0 && last_algo == 3);
  CHECK(ask(moved) && proposals == 1 && ask(moved) && proposals == 1);
  CHECK(!setrlimit(RLIMIT_FSIZE, &was) && signal(SIGXFSZ, handler) == SIG_IGN && !chmod(cache, 0700));
  CHECK(lines_in_file() == 1);
  forget_choices();
  CHECK(!rmdir(cache) && !mkdir(cache, 0700)); /* no temporary file was in it */
}

/* ---- products by themselves ---- */

/* Three products with one b, -2 times that plus c, into float32 that is apart by more than a matrix. */
static void test_batch(void) {
  enum { M = 2, N = 3, K = 4, BATCH = 3, C_APART = 7, D_APART = 10 };
  const tfu_tensor a = filled(TFU_BF16, (tfu_shape)SHAPE(BATCH, M, K), 1),
                   b = filled(TFU_BF16, (tfu_shape)SHAPE(N, K), 2);
  const tfu_tensor c = filled(TFU_F32, (tfu_shape)SHAPE(BATCH, C_APART), 3);
  float d[BATCH * D_APART];
  const tfu_gemm_gpu g = {.a = a.data,
                          .b = b.data,
                          .c = c.data,
                          .d = d,
                          .m = M,
                          .n = N,
                          .k = K,
                          .b_transposed = 1,
                          .dtype = TFU_BF16,
                          .wide = 1,
                          .scale = &(double){-2},
                          .batch = BATCH,
                          .a_stride = M * K,
                          .c_stride = C_APART,
                          .d_stride = D_APART};
  run *r = start(NULL);
  for (int i = 0; i < TFU_COUNT(d); i++) d[i] = 77;
  CHECK(serve(r, &g));
  for (int z = 0; z < BATCH; z++) {
    for (int i = 0; i < M; i++)
      for (int j = 0; j < N; j++) {
        double want = at(c.data, TFU_F32, z * C_APART + i * N + j);
        for (int k = 0; k < K; k++)
          want -= 2 * at(a.data, TFU_BF16, (z * M + i) * K + k) * at(b.data, TFU_BF16, j * K + k);
        CHECK_FOR(d[z * D_APART + i * N + j] == (float)want, "%d %d %d: %g, not %g", z, i, j,
                  d[z * D_APART + i * N + j], want);
      }
    for (int i = M * N; i < D_APART; i++) CHECK(d[z * D_APART + i] == 77);
  }
  end_run(r);
  drop(a.data), drop(b.data), drop(c.data);
}

/* d = d + a^T b in float32, of columns 2 and 3 of a; nothing is tried out on what is to be added to,
 * unless that is asked for. */
static void test_sums_in_place(void) {
  run *r = start(NULL);
  tfu_tensor a = filled(TFU_BF16, (tfu_shape)SHAPE(3, 4), 1), b = filled(TFU_BF16, (tfu_shape)SHAPE(3, 2), 2);
  float d[4], microseconds;
  const tfu_gemm_gpu g = {.a = (char *)a.data + 4,
                          .b = b.data,
                          .c = d,
                          .d = d,
                          .m = 2,
                          .n = 2,
                          .k = 3,
                          .a_transposed = 1,
                          .a_row = 4,
                          .dtype = TFU_BF16,
                          .wide = 1};
  int served;
  CHECK(tfu_gemm_gpu_time(&r->call, &g, &served, &microseconds) == TFU_OK && served &&
        fabsf(microseconds - 10) < 0.01f);
  const int before = products;
  for (int i = 0; i < 4; i++) d[i] = (float)i + 1;
  CHECK(serve(r, &g) && products == before + 1);
  for (int i = 0; i < 4; i++) {
    double want = i + 1;
    for (int k = 0; k < 3; k++) want += at(a.data, TFU_BF16, k * 4 + 2 + i / 2) * at(b.data, TFU_BF16, k * 2 + i % 2);
    CHECK_FOR(fabs(d[i] - want) < 1e-5, "%g, not %g", d[i], want);
  }
  forget_choices();
  CHECK(tfu_gemm_gpu_run(&r->call, &g, &served) != TFU_OK && products == before + 1); /* the first proposal, untried */
  end_run(r);
  drop(a.data), drop(b.data);
}

/* Without cuBLASLt our own product serves, and explain() says why. It is not timed, and what has an epilogue is not
 * run: passes do that. */
static void test_without_cublaslt(void) {
  missing = 1;
  own_products = 0;
  run *r = start(NULL);
  float d[4] = {1, 2, 3, 4}, microseconds;
  tfu_gemm_gpu g = {.m = 2,
                    .n = 2,
                    .k = 3,
                    .dtype = TFU_F32,
                    .scale = &(double){2},
                    .a_transposed = 1,
                    .a_row = 4,
                    .a = (float[12]){1, 2, 0, 0, 3, 4, 0, 0, 5, 6, 0, 0},
                    .b = (float[6]){1, 0, 0, 1, 1, 1},
                    .c = d,
                    .d = d};
  int served;
  CHECK(tfu_gemm_gpu_time(&r->call, &g, &served, &microseconds) == TFU_OK && served && microseconds == 0 && d[0] == 1);
  CHECK(serve(r, &g));
  CHECK_FOR(d[0] == 13 && d[1] == 18 && d[2] == 19 && d[3] == 24, "%g %g %g %g", d[0], d[1], d[2], d[3]);
  CHECK_FOR(own_products == 1 && strstr(r->call.kernel, "matmul_tiled_f32"), "%s", r->call.kernel);
  CHECK_TEXT(r->call.why, "no cuBLASLt");
  g.epilogue = TFU_EPI_RELU;
  CHECK(!serve(r, &g) && d[0] == 13);
  end_run(r);
  missing = 0;
}

/* cuBLASLt does not look at factors that it is to scale by 0. */
static void test_scale_of_0(void) {
  own_products = 0;
  run *r = start(NULL);
  float d[4];
  const tfu_gemm_gpu g = {.m = 2,
                          .n = 2,
                          .k = 1,
                          .dtype = TFU_F32,
                          .scale = &(double){0},
                          .a = (float[2]){1, 2},
                          .b = (float[2]){3, INFINITY},
                          .d = d};
  CHECK(serve(r, &g));
  CHECK_FOR(d[0] == 0 && isnan(d[1]) && d[2] == 0 && isnan(d[3]), "%g %g %g %g", d[0], d[1], d[2], d[3]);
  CHECK_FOR(own_products == 1 && strstr(r->call.kernel, "matmul_tiled_f32"), "%s", r->call.kernel);
  CHECK(strstr(r->call.why, "scaled by 0"));
  end_run(r);
}

int main(void) {
  if (!open_cache()) return 1;
  test_choice();
  test_captured();
  test_relu_of_nan();
  test_alignment();
  test_questions();
  test_foreign_choices();
  test_like_sizes();
  test_unwritable();
  test_batch();
  test_sums_in_place();
  test_without_cublaslt();
  test_scale_of_0();
  close_cache();
  return verdict();
}
