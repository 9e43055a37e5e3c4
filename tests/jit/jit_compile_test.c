/* jit_compile_test.c - jit kernels are compiled by the real NVRTC, and launched on a GPU that is not there: a driver of
 * our own looks at launches and runs none. Skipped where there is no NVRTC (tools/requirements_nvrtc.txt). */
#include <dirent.h>
#include <dlfcn.h>
#include <limits.h>
#include <time.h>

#include "kernels/core/gpu/library.h"
#include "kernels/jit/compiled.h"
#include "kernels/jit/cubins.h"
#include "kernels/jit/jit_args.h"
#include "kernels/jit/nvrtc.h"
#include "tests/jit/jit_calls.h"
#include "tests/stand_in_driver.h"

/* Of NVRTC the first name alone: a system may have another one. */
void *tfu_open_library(const char *const *names, const char *const *folders) {
  (void)folders;
  return dlopen(names[0], RTLD_NOW);
}

/* ---- the driver ---- */

static int loads, launches, parameters = 1, no_kernels, no_attributes;
static CUlaunchConfig last;
static jit_args args;
static double number; /* the fourth parameter of a raw kernel */
static char entry[512];

static CUresult get_kernel(CUkernel *kernel, CUlibrary library, const char *name) {
  (void)library;
  if (no_kernels) return CUDA_ERROR_NOT_FOUND;
  loads++;
  snprintf(entry, sizeof entry, "%s", name);
  *kernel = (CUkernel)&loads;
  return CUDA_SUCCESS;
}

static CUresult kernel_attribute(int *value, CUfunction_attribute which, CUkernel kernel, CUdevice device) {
  (void)kernel, (void)device;
  if (no_attributes) return CUDA_ERROR_INVALID_HANDLE;
  *value = which == CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK ? 512
           : which == CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES   ? 1024
                                                            : 32;
  return CUDA_SUCCESS;
}

static CUresult occupancy(int *blocks, CUfunction f, int threads, size_t shared) {
  (void)f, (void)shared;
  *blocks = 2048 / threads;
  return CUDA_SUCCESS;
}

static CUresult parameter_info(CUkernel kernel, size_t i, size_t *offset, size_t *size) {
  (void)kernel;
  *offset = 8 * i, *size = 8;
  return i < (size_t)parameters ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

static CUresult launch(const CUlaunchConfig *c, CUfunction f, void **parameter, void **extra) {
  (void)f, (void)extra;
  launches++;
  last = *c;
  if (parameters == 1) memcpy(&args, parameter[0], sizeof args);
  if (parameters == 5) memcpy(&number, parameter[4], sizeof number);
  return CUDA_SUCCESS;
}

tfu_code tfu_driver_get(const tfu_driver **driver, tfu_error *err) {
  static const tfu_driver stand_in = {STAND_INS,
                                      .cuLibraryGetKernel = get_kernel,
                                      .cuKernelGetAttribute = kernel_attribute,
                                      .cuKernelGetParamInfo = parameter_info,
                                      .cuOccupancyMaxActiveBlocksPerMultiprocessor = occupancy,
                                      .cuLaunchKernelEx = launch};
  (void)err;
  *driver = &stand_in;
  return TFU_OK;
}

/* ---- kernels ---- */

#define SWISH                                                             \
  "#define JIT_NAME swish\n#define JIT_INPUTS 2\n#define JIT_OUTPUTS 1\n" \
  "static __device__ void swish_body(R x0, R x1, R &y0) {\n  y0 = x0 / (R(1) + exp(-x1 * x0));\n}\n"
#define SOFTMAX                                                                              \
  "#define JIT_NAME sm\n#define JIT_INPUTS 2\n#define JIT_OUTPUTS 1\n#define JIT_PASSES 2\n" \
  "static __device__ R sm_map0(R x0, R x1, R n) { return x0 * x1; }\n"                       \
  "static __device__ R sm_reduce0(R a, R b) { return a > b ? a : b; }\n"                     \
  "static __device__ R sm_identity0() { return R(-1e30); }\n"                                \
  "static __device__ R sm_map1(R r0, R x0, R x1, R n) { return exp(x0 * x1 - r0); }\n"       \
  "static __device__ R sm_reduce1(R a, R b) { return a + b; }\n"                             \
  "static __device__ R sm_identity1() { return R(0); }\n"
#define POST             \
  "#define JIT_POST 1\n" \
  "static __device__ void sm_post(R r0, R r1, R x0, R x1, R n, R &y0) { y0 = exp(x0 * x1 - r0) / r1; }\n"
#define FINAL "#define JIT_POST 0\nstatic __device__ R sm_final(R r0, R r1, R n) { return r0 + log(r1); }\n"

#define HERE ((void *)(uintptr_t)256) /* nobody reads it */
#define UNALIGNED ((void *)(uintptr_t)258)

static void compile(jit_test *t) {
  tfu_error err = {""};
  const int before = launches;
  const tfu_code code = jit_run(t, 1, &err);
  CHECK_FOR(code == TFU_OK && launches == before + 1, "%s", err.text);
}

static void test_elementwise(void) {
  static const struct {
    tfu_dtype in[2], out;
    tfu_shape shape[2];
    void *at;
    unsigned blocks; /* of 256 threads with two packs each */
  } cases[] = {
      {{TFU_F32, TFU_F32}, TFU_F32, {SHAPE(100, 1000), SCALAR}, HERE, 49},
      {{TFU_BF16, TFU_F32}, TFU_BF16, {SHAPE(100, 1000), SCALAR}, HERE, 25},
      {{TFU_F64, TFU_F64}, TFU_F64, {SHAPE(7), SHAPE(7)}, HERE, 1},
      {{TFU_F16, TFU_F16}, TFU_F16, {SHAPE(1001), SHAPE(1001)}, UNALIGNED, 2},
      {{TFU_BF16, TFU_BF16}, TFU_BF16, {SHAPE(100, 1000), SHAPE(1000)}, HERE, 25}, /* packs along the last axis */
      {{TFU_F32, TFU_F32}, TFU_F32, {SHAPE(100, 1001), SHAPE(1001)}, HERE, 196},
      {{TFU_F32, TFU_I64}, TFU_F32, {SHAPE(4, 1, 8), SHAPE(5, 1)}, HERE, 1},
      {{TFU_F32, TFU_BOOL}, TFU_I32, {SHAPE(64), SHAPE(64)}, HERE, 1},
      {{TFU_I32, TFU_F32}, TFU_BOOL, {SCALAR, SCALAR}, HERE, 1},
  };
  for (int i = 0; i < TFU_COUNT(cases); i++) {
    jit_test t = {
        .name = "swish", .source = SWISH, .inputs = 2, .outputs = 1, .out = {{cases[i].at, cases[i].out, SCALAR}}};
    for (int k = 0; k < 2; k++) t.in[k] = (tfu_tensor){cases[i].at, cases[i].in[k], cases[i].shape[k]};
    compile(&t);
    CHECK_FOR(last.gridDimX == cases[i].blocks && last.blockDimX == 256, "case %d: %u blocks", i, last.gridDimX);
    CHECK(args.n == tfu_count(&t.out[0].shape) && args.in[0] == cases[i].at);
  }
  CHECK_TEXT(entry, "tfuse_jit_swish");
  const int before = loads;
  jit_test again = {.name = "swish",
                    .source = SWISH,
                    .inputs = 2,
                    .outputs = 1,
                    .in = {{HERE, TFU_F32, SHAPE(31)}, {HERE, TFU_F32, SCALAR}},
                    .out = {{HERE, TFU_F32, SCALAR}}};
  compile(&again);
  CHECK(loads == before); /* another size is the same code */
  char text[512];
  CHECK(tfu_jit_info("swish", SWISH, 0, text, sizeof text) && strstr(text, "registers=32"));
  CHECK(strstr(text, "threads=256\tblocks=8"));
  CHECK(!tfu_jit_info("swish", SWISH, 99, text, sizeof text) && !tfu_jit_info("other", SWISH, 0, text, sizeof text));
}

static void test_rows(void) {
  static const struct {
    tfu_dtype type;
    int64_t rows, cols;
    unsigned blocks, threads;
  } cases[] = {{TFU_F32, 100, 4, 1, 256},        {TFU_BF16, 100, 64, 4, 256},  {TFU_F32, 100, 513, 100, 256},
               {TFU_BF16, 100, 1024, 13, 256},   {TFU_F32, 10, 4096, 10, 256}, {TFU_F32, 10, 16384, 10, 1024},
               {TFU_F32, 10, 1 << 20, 10, 1024}, {TFU_F64, 3, 33, 1, 256},     {TFU_F16, 5, 0, 1, 256}};
  for (int post = 0; post < 2; post++)
    for (int i = 0; i < TFU_COUNT(cases); i++) {
      jit_test t = {.name = "sm",
                    .kind = TFU_JIT_ROWS,
                    .source = post ? SOFTMAX POST : SOFTMAX FINAL,
                    .shapes = post ? "like 0" : "row",
                    .inputs = 2,
                    .outputs = 1,
                    .in = {{HERE, cases[i].type, SHAPE(cases[i].rows, cases[i].cols)},
                           {HERE, cases[i].type, SHAPE(cases[i].rows, 1)}},
                    .out = {{HERE, cases[i].type, SCALAR}}};
      if (cases[i].threads > 512) continue; /* this driver's kernels have 512 threads at most */
      if (post && !cases[i].cols) continue;
      compile(&t);
      CHECK_FOR(last.gridDimX == cases[i].blocks && last.blockDimX == cases[i].threads,
                "case %d: %u blocks of %u threads", i, last.gridDimX, last.blockDimX);
      CHECK(args.cols == cases[i].cols && args.n == cases[i].rows);
    }
}

#define RAW                                                                                                      \
  "template <typename T>\n__global__ void scale(const T *x, const T *z, U0 *y, int n, R by) {\n  y[0] = x[0] * " \
  "by;\n}\n"

static void test_raw(void) {
  jit_test t = {.name = "scale<T0>",
                .kind = TFU_JIT_RAW,
                .source = RAW,
                .shapes = "like 0",
                .inputs = 2,
                .outputs = 1,
                .launch = "(0.n + 255) / 256, 2; 256; 60000; 0.n, f0x1.8p+0",
                .in = {{HERE, TFU_BF16, SHAPE(1000)}, {HERE, TFU_BF16, SHAPE(1000)}},
                .out = {{HERE, TFU_BF16, SCALAR}}};
  tfu_error err = {""};
  parameters = 5;
  compile(&t);
  CHECK(last.gridDimX == 4 && last.gridDimY == 2 && last.blockDimX == 256 && last.sharedMemBytes == 60000);
  CHECK(number == 1.5 && !strncmp(entry, "_Z5scale", 8)); /* parameters of this driver's kernels have 8 bytes */
  CHECK(asked == 1 && allowed == gpus[0].block_shared - 1024);
  compile(&t);
  CHECK(asked == 1);
  static const struct {
    const char *launch, *error;
  } wrong[] = {{"0; 256; 0; 1, 2",
                "kernel scale<T0>: grid (0, 1, 1), block (256, 1, 1), 0 bytes of shared memory: axis 0 of a grid"},
               {"1, 70000; 256; 0; 1, 2", "axis 1 of a grid has 1 to 65535 blocks"},
               {"1; 1025; 0; 1, 2", "axis 0 of a block has 1 to 1024 threads"},
               {"1; 32, 32; 0; 1, 2", "at most 512 threads, not 1024"},
               {"1; 1, 1, 65; 0; 1, 2", "axis 2 of a block has 1 to 64"},
               {"1; 32; 300000; 1, 2", "this GPU gives a block 232448 bytes, of which the kernel has 1024"},
               {"1; 32; 0; 1", "it is given 4 parameters (2 inputs, 1 outputs, 1 args), and takes more"},
               {"1; 32; 0; 1, 2, 3", "and takes fewer"},
               {"1; 32", "shared is missing"},
               {"1; 5.0; 0", "block: input 5 is named"}};
  for (int i = 0; i < TFU_COUNT(wrong); i++) {
    t.launch = wrong[i].launch;
    const int before = launches;
    CHECK_FOR(jit_run(&t, 1, &err) != TFU_OK && strstr(err.text, wrong[i].error) && launches == before, "%s: %s",
              wrong[i].launch, err.text);
  }
  parameters = 1;
}

/* A thousand conditions, nested as Python writes them, compile in one copy in 1.4 s of a core, where 9 copies took more
 * than 40. */
static void test_a_large_formula(void) {
  enum { EACH = 12, LOCALS = 84 };
  static char body[1 << 18], elementwise_text[1 << 19], rows_text[1 << 19];
  char *end = body;
  end += sprintf(end, "const R t%d = x0;\n", LOCALS);
  for (int i = LOCALS - 1; i >= 0; i--) {
    end += sprintf(end, "const R t%d = ", i);
    for (int k = 0; k < EACH; k++)
      end += sprintf(end, "(R(x0 > R(%d.25)) != 0 ? ((x0 * R(%d.5)) + R(%d.0)) : ", i * EACH + k, i * EACH + k, k);
    end += sprintf(end, "t%d", i + 1);
    for (int k = 0; k < EACH; k++) end += sprintf(end, ")");
    end += sprintf(end, ";\n");
  }
#define LARGE_HEAD "#define JIT_LARGE 1\n#define JIT_NAME large\n#define JIT_INPUTS 1\n#define JIT_OUTPUTS 1\n"
  snprintf(elementwise_text, sizeof elementwise_text,
           LARGE_HEAD "static __device__ void large_body(R x0, R &y0) {\n%sy0 = t0;\n}\n", body);
  snprintf(rows_text, sizeof rows_text,
           LARGE_HEAD
           "#define JIT_PASSES 1\n#define JIT_POST 0\n"
           "static __device__ R large_map0(R x0, R n) {\n%sreturn t0;\n}\n"
           "static __device__ R large_reduce0(R a, R b) { return a + b; }\n"
           "static __device__ R large_identity0() { return R(0); }\n"
           "static __device__ R large_final(R r0, R n) { return r0; }\n",
           body);
  jit_test t = {.name = "large",
                .source = elementwise_text,
                .inputs = 1,
                .outputs = 1,
                .in = {{HERE, TFU_BF16, SHAPE(1000, 100)}},
                .out = {{HERE, TFU_BF16, SCALAR}}};
  const clock_t before = clock();
  compile(&t);
  CHECK_FOR(last.gridDimX == 391 && last.blockDimX == 256, "%u blocks", last.gridDimX); /* an element each */
  t.kind = TFU_JIT_ROWS;
  t.source = rows_text;
  t.shapes = "row";
  t.in[0].shape = (tfu_shape)SHAPE(100, 8000);
  t.out[0].shape = (tfu_shape)SCALAR;
  compile(&t);
  CHECK(last.gridDimX == 100 && last.blockDimX == 256);
  const double seconds = (double)(clock() - before) / CLOCKS_PER_SEC;
  CHECK_FOR(seconds < 20, "%g s", seconds);
}

/* The compiler's words at the user's line, the dtypes, and nothing of ours. */
static void test_errors(void) {
  static const char source[] =
      "#define JIT_NAME bad\n#define JIT_INPUTS 1\n#define JIT_OUTPUTS 1\n"
      "static __device__ void bad_body(R x0, R &y0) {\n  y0 = expo(x0);\n}\n";
  jit_test t = {.name = "bad",
                .source = source,
                .inputs = 1,
                .outputs = 1,
                .in = {{HERE, TFU_BF16, SHAPE(8)}},
                .out = {{HERE, TFU_BF16, SCALAR}}};
  tfu_error err = {""};
  CHECK(jit_run(&t, 1, &err) == TFU_INVALID);
  CHECK_TEXT(err.text,
             "kernel bad does not compile:\nbad(5): error: identifier \"expo\" is undefined\n"
             "    y0 = expo(x0);\n         ^\n\n(for bfloat16 -> bfloat16)");
  jit_test absent = {.name = "nobody",
                     .kind = TFU_JIT_RAW,
                     .source = RAW,
                     .shapes = "like 0",
                     .inputs = 1,
                     .outputs = 1,
                     .launch = "1; 1; 0;",
                     .in = {{HERE, TFU_F32, SHAPE(8)}},
                     .out = {{HERE, TFU_F32, SCALAR}}};
  CHECK(jit_run(&absent, 1, &err) == TFU_INVALID);
  CHECK_FOR(strstr(err.text, "nobody"), "%s", err.text);
}

/* A library whose kernel cannot be had is not kept, whether it was compiled or read from the cache. */
static void test_libraries_are_unloaded(void) {
  static const char source[] =
      "#define JIT_NAME lost\n#define JIT_INPUTS 1\n#define JIT_OUTPUTS 1\n"
      "static __device__ void lost_body(R x0, R &y0) {\n  y0 = x0 + R(1);\n}\n";
  jit_test t = {.name = "lost",
                .source = source,
                .inputs = 1,
                .outputs = 1,
                .in = {{HERE, TFU_F32, SHAPE(8)}},
                .out = {{HERE, TFU_F32, SCALAR}}};
  tfu_error err = {""};
  const int before = libraries;
  no_kernels = 1;
  CHECK(jit_run(&t, 1, &err) != TFU_OK && strstr(err.text, "update the driver") && libraries == before);
  no_kernels = 0, no_attributes = 1;
  for (int i = 0; i < 2; i++)
    CHECK(jit_run(&t, 1, &err) != TFU_OK && libraries == before); /* the second from the cache */
  no_attributes = 0;
  compile(&t);
  CHECK(libraries == before + 1);
  no_kernels = 1;
  t.out[0].dtype = t.in[0].dtype = TFU_F64;
  CHECK(jit_run(&t, 1, &err) != TFU_OK && libraries == before + 1);
  no_kernels = 0;
}

/* A later process reads what this one has compiled; what is damaged is compiled anew. */
static void test_cache(void) {
  jit_variant v = {.source = text_of(SWISH),
                   .name = text_of("swish"),
                   .capability = 90,
                   .inputs = 2,
                   .outputs = 1,
                   .n = 4,
                   .single = 2,
                   .moves = 1,
                   .threads = 256,
                   .unroll = 2};
  char name[512];
  char *text = jit_text(&v, name, sizeof name);
  const jit_key key = jit_key_of(text, name, 90);
  jit_image *image = jit_cubin_read(&key);
  CHECK(image && image->size > 1000 && !memcmp(image->code, "\177ELF", 4));
  free(image);
  free(text);
}

/* The header that users include, as it is, and as tfuse.jit.check has it. */
static void test_header(void) {
  static const char source[] =
      "#define TFU_CHECK 16, 2\n#include \"tfuse.cuh\"\n"
      "extern \"C\" __global__ void k(const T0 *x, U0 *y) {\n"
      "  pack<T0, 8> p;\n  p.load(x);\n  R sum = 0;\n"
      "  for (int i = 0; i < 8; i++) sum += activation<T0>::gelu(p.get<R>(i));\n"
      "  AT(y, 0) = AT(x, 0) + block_sum(sum) + warp_top(sum) + tfu_philox(1, 2).word[0];\n}\n";
  jit_test t = {.name = "k",
                .kind = TFU_JIT_RAW,
                .source = source,
                .shapes = "1",
                .inputs = 1,
                .outputs = 1,
                .launch = "1; 32; 0;",
                .in = {{HERE, TFU_BF16, SHAPE(8)}},
                .out = {{HERE, TFU_BF16, SCALAR}}};
  parameters = 2;
  compile(&t);
  t.source = strchr(source, '\n') + 1;
  compile(&t);
  parameters = 1;
}

/* In a process of its own, which finds NVRTC by LD_LIBRARY_PATH, or has this library already: whether it was loaded for
 * one kernel is what it returns. */
static int one_kernel(const char *library) {
  if (*library) CHECK(dlopen(library, RTLD_NOW));
  jit_test t = {.name = "swish",
                .source = SWISH,
                .inputs = 2,
                .outputs = 1,
                .in = {{HERE, TFU_F32, SHAPE(31)}, {HERE, TFU_F32, SCALAR}},
                .out = {{HERE, TFU_F32, SCALAR}}};
  CHECK(!*jit_nvrtc_missing());
  compile(&t);
  const int loaded = dlopen("libnvrtc.so.12", RTLD_NOW | RTLD_NOLOAD) != NULL;
  return failures ? 100 : loaded;
}

static int in_a_process(const char *library) {
  fflush(stdout);
  const pid_t child = fork();
  if (!child) {
    execl("/proc/self/exe", "jit_compile_test", "one kernel", library, (char *)NULL);
    _exit(101);
  }
  int status = 102 << 8;
  CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status));
  return WEXITSTATUS(status);
}

/* Calls what() with the path of each file of the cache whose name begins so. */
static void with_files(const char *cache, const char *name, void (*what)(const char *)) {
  char path[8192];
  snprintf(path, sizeof path, "%s/jit", cache);
  DIR *all = opendir(path);
  for (struct dirent *e; all && (e = readdir(all));) {
    snprintf(path, sizeof path, "%s/jit/%s", cache, e->d_name);
    if (e->d_name[0] != '.' && !strncmp(e->d_name, name, strlen(name))) what(path);
  }
  if (all) closedir(all);
}
static void cut(const char *path) { CHECK(!truncate(path, 100)); }
static void cut_kernels(const char *path) {
  if (!strstr(path, "/nvrtc-")) cut(path);
}

/* A kernel that is in the cache needs no NVRTC; without a note, or a whole file, it is loaded. */
static void test_note(const char *cache, const char *library) {
  char folder[PATH_MAX], file[PATH_MAX], own[4096 + 8];
  if (!realpath(library, file)) return;
  strcpy(folder, file);
  *strrchr(folder, '/') = 0;
  snprintf(own, sizeof own, "%s.note", cache);
  setenv("LD_LIBRARY_PATH", folder, 1);
  setenv("TFUSE_CACHE", own, 1);
  CHECK(in_a_process("") == 1);
  CHECK(in_a_process("") == 0);
  with_files(own, "nvrtc-", cut);
  CHECK(in_a_process("") == 1);
  CHECK(in_a_process("") == 0);
  with_files(own, "", cut_kernels);
  CHECK(in_a_process("") == 1);
  CHECK(in_a_process("") == 0);
  setenv("LD_LIBRARY_PATH", "/nowhere", 1); /* the note alone says where somebody had loaded it from */
  CHECK(in_a_process(file) == 1);
  CHECK(in_a_process("") == 0);
  with_files(own, "", cut_kernels);
  CHECK(in_a_process("") == 1);
}

int main(int n, char **arguments) {
  char cache[4096], path[512] = "";
  const char *temporary = getenv("TEST_TMPDIR");
  static const char *const places[] = {"../python_env/nvidia", "external/python_env/nvidia", ".venv/nvrtc/nvidia"};
  if (n > 2 && !strcmp(arguments[1], "one kernel")) return one_kernel(arguments[2]);
  for (int i = 0; i < TFU_COUNT(places); i++) { /* opened once, it is found by its name */
    snprintf(path, sizeof path, "%s/cuda_nvrtc/lib/libnvrtc.so.12", places[i]);
    if (dlopen(path, RTLD_NOW)) break;
  }
  if (*jit_nvrtc_missing()) {
    printf("no NVRTC: %s\n", jit_nvrtc_missing());
    return verdict();
  }
  snprintf(cache, sizeof cache, "%s/jit_compile_test.%d", temporary ? temporary : "/tmp", (int)getpid());
  setenv("TFUSE_CACHE", cache, 1);
  CHECK(jit_nvrtc_capability(90) == 90 && jit_nvrtc_capability(89) == 89 && !jit_nvrtc_capability(999));
  test_elementwise();
  test_rows();
  test_raw();
  test_a_large_formula();
  test_errors();
  test_libraries_are_unloaded();
  test_cache();
  test_header();
  test_note(cache, path);
  return verdict();
}
