#define _GNU_SOURCE
#include "kernels/jit/nvrtc.h"

#include <dlfcn.h>
#include <limits.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "kernels/core/gpu/library.h"
#include "kernels/jit/nvrtc_note.h"

typedef void *program; /* nvrtcProgram */

#define FUNCTIONS(X)                                                                                                  \
  X(int, nvrtcVersion, (int *major, int *minor))                                                                      \
  X(const char *, nvrtcGetErrorString, (int result))                                                                  \
  X(int, nvrtcGetNumSupportedArchs, (int *n))                                                                         \
  X(int, nvrtcGetSupportedArchs, (int *archs))                                                                        \
  X(int, nvrtcCreateProgram,                                                                                          \
    (program *, const char *text, const char *name, int headers, const char *const *texts, const char *const *names)) \
  X(int, nvrtcAddNameExpression, (program, const char *name))                                                         \
  X(int, nvrtcCompileProgram, (program, int options, const char *const *option))                                      \
  X(int, nvrtcGetLoweredName, (program, const char *name, const char **lowered))                                      \
  X(int, nvrtcGetProgramLogSize, (program, size_t *))                                                                 \
  X(int, nvrtcGetProgramLog, (program, char *))                                                                       \
  X(int, nvrtcGetCUBINSize, (program, size_t *))                                                                      \
  X(int, nvrtcGetCUBIN, (program, char *))                                                                            \
  X(int, nvrtcDestroyProgram, (program *))

static struct { FUNCTIONS(TFU_POINTER) } nvrtc;
static const char *const functions[] = {FUNCTIONS(TFU_NAME) NULL};
static tfu_shared library = {
    .called = "libnvrtc.so.12 or .13",
    .names = {"libnvrtc.so.12", "libnvrtc.so.13"},
    .folders = {"nvidia/cuda_nvrtc/lib", "nvidia/cu13/lib"},
    .functions = functions,
    .table = &nvrtc,
    .why =
        "kernels are compiled by NVRTC, and there is no %s: pip install nvidia-cuda-nvrtc-cu12 (tensorflow[and-cuda] "
        "has it), or put its folder into LD_LIBRARY_PATH"};

enum { MOST_OPTIONS = 16, OPTIONS = 8 * PATH_MAX };

/* What is known: from a note, then of the library itself. Neither changes once it is `known`. */
typedef struct knowledge {
  jit_nvrtc_facts facts;
  char missing[256], options[OPTIONS]; /* one line each */
} knowledge;
static knowledge noted, opened;
static _Atomic(const knowledge *) known;

static void add_option(knowledge *k, const char *format, const char *value) {
  char *options = k->options;
  const size_t at = strlen(options);
  snprintf(options + at, OPTIONS - at, format, value);
  strncat(options, "\n", OPTIONS - strlen(options) - 1);
}

/* CUDA's own headers, for sources that include them: as pip lays them out beside NVRTC, lib/../../cuda_runtime/include,
 * or for CUDA 13 and a toolkit lib/../include. */
static void add_headers(knowledge *k) {
  static const char *const places[] = {"../../cuda_runtime/include", "../../cuda_cccl/include", "../include",
                                       "../include/cccl"};
  char path[PATH_MAX], real[PATH_MAX];
  const char *own = k->facts.path, *end = strrchr(own, '/');
  for (int i = 0; end && i < TFU_COUNT(places); i++) {
    const int n = snprintf(path, sizeof path, "%.*s/%s", (int)(end - own), own, places[i]);
    if (n < (int)sizeof path && realpath(path, real) && !access(real, R_OK)) add_option(k, "-I%s", real);
  }
}

static void know(knowledge *k) {
  add_option(k, "--std=c++1%s", "7");
  add_option(k, "--device-as-default-execution-space%s", "");
  add_option(k, "-DTFU_DEVICE%s", "");
  add_headers(k);
  atomic_store(&known, k);
}

static void open_nvrtc(void) {
  jit_nvrtc_facts *facts = &opened.facts;
  int major = 0, minor = 0;
  if (*noted.facts.path)
    library.path = noted.facts.path; /* somebody else may have loaded it, from where only that says */
  const char *missing = tfu_shared_open(&library);
  if (missing) snprintf(opened.missing, sizeof opened.missing, "%s", missing);
  else if (nvrtc.nvrtcVersion(&major, &minor)) snprintf(opened.missing, sizeof opened.missing, library.why, "version");
  if (*opened.missing) {
    jit_note_forget(); /* or the next process would hope in vain, too */
    atomic_store(&known, &opened);
    return;
  }
  facts->version = major * 100 + minor;
  if (nvrtc.nvrtcGetNumSupportedArchs(&facts->archs) || facts->archs < 0 || facts->archs > JIT_MOST_ARCHS ||
      nvrtc.nvrtcGetSupportedArchs(facts->arch))
    facts->archs = 0;
  Dl_info file;
  if (dladdr(*(void **)&nvrtc.nvrtcVersion, &file) && file.dli_fname)
    snprintf(facts->path, sizeof facts->path, "%s", file.dli_fname);
  know(&opened);
  if (memcmp(&noted.facts, facts, sizeof *facts)) jit_note_write(facts);
}

static void open_once(void) {
  static pthread_once_t once = PTHREAD_ONCE_INIT;
  pthread_once(&once, open_nvrtc);
}

/* Opens what somebody has loaded already, and otherwise reads the note. */
static void begin(void) {
  void *loaded = tfu_opened_library(library.names);
  if (!loaded && jit_note_read(&noted.facts)) know(&noted);
  else open_once();
  if (loaded) dlclose(loaded);
}

static const knowledge *ready(void) {
  static pthread_once_t once = PTHREAD_ONCE_INIT;
  pthread_once(&once, begin);
  return atomic_load(&known);
}

int jit_nvrtc_open(void) {
  const knowledge *before = ready();
  open_once();
  return before == &noted &&
         (memcmp(&noted.facts, &opened.facts, sizeof noted.facts) || strcmp(noted.options, opened.options));
}

const char *jit_nvrtc_missing(void) { return ready()->missing; }

int jit_nvrtc_version(void) { return ready()->facts.version; }

const char *jit_nvrtc_options(void) { return ready()->options; }

int jit_nvrtc_capability(int capability) {
  const jit_nvrtc_facts *facts = &ready()->facts;
  int best = 0;
  for (int i = 0; i < facts->archs; i++) {
    const int arch = facts->arch[i];
    if (arch <= capability && arch / 10 == capability / 10 && arch > best) best = arch;
  }
  return best;
}

static tfu_code check(int result, const char *what, tfu_error *err) {
  if (!result) return TFU_OK;
  const int version = opened.facts.version;
  return tfu_fail(err, TFU_INTERNAL, "NVRTC %d.%d, %s: %s", version / 100, version % 100, what,
                  nvrtc.nvrtcGetErrorString(result));
}

static tfu_code create(const char *name, const char *text, const char *entry, program *p, tfu_error *err) {
  enum { MOST = 64 };
  const char *texts[MOST], *names[MOST];
  int n = 0;
  for (; n < MOST && jit_headers[n].name; n++) names[n] = jit_headers[n].name, texts[n] = jit_headers[n].text;
  TFU_TRY(check(nvrtc.nvrtcCreateProgram(p, text, name, n, texts, names), "beginning", err));
  return check(nvrtc.nvrtcAddNameExpression(*p, entry), "naming the kernel", err);
}

/* The compiler's log, from its first error on, less what it says in the end. */
static tfu_code log_of(program p, const char *name, tfu_error *err) {
  size_t size = 0;
  nvrtc.nvrtcGetProgramLogSize(p, &size);
  char *log = calloc(1, size + 1);
  if (!log || nvrtc.nvrtcGetProgramLog(p, log)) {
    free(log);
    return tfu_fail(err, TFU_INVALID, "kernel %s does not compile", name);
  }
  char *from = strstr(log, "error"), *end = strstr(log, " detected in the compilation");
  while (from && from > log && from[-1] != '\n') from--;
  while (end && end > log && end[-1] != '\n') end--;
  if (end) *end = 0;
  const tfu_code code = tfu_fail(err, TFU_INVALID, "kernel %s does not compile:\n%s", name, from ? from : log);
  free(log);
  return code;
}

static tfu_code take(program p, const char *entry, jit_image **image, tfu_error *err) {
  size_t size = 0;
  const char *lowered = NULL;
  TFU_TRY(check(nvrtc.nvrtcGetLoweredName(p, entry, &lowered), entry, err));
  TFU_REQUIRE(err, strlen(lowered) < sizeof(*image)->entry, "the name %.100s… is too long", lowered);
  TFU_TRY(check(nvrtc.nvrtcGetCUBINSize(p, &size), "asking for the code", err));
  jit_image *made = calloc(1, sizeof *made + size);
  if (!made) return tfu_fail(err, TFU_EXHAUSTED, "out of host memory");
  made->size = size;
  strcpy(made->entry, lowered);
  const tfu_code code = check(nvrtc.nvrtcGetCUBIN(p, (char *)made->code), "taking the code", err);
  if (code == TFU_OK) *image = made;
  else free(made);
  return code;
}

tfu_code jit_compile(const char *name, const char *text, const char *entry, int capability, int quick,
                     jit_image **image, tfu_error *err) {
  const char *option[MOST_OPTIONS];
  char lines[OPTIONS], arch[40], *rest = NULL;
  int n = 0;
  (void)jit_nvrtc_open();
  if (*opened.missing) return tfu_fail(err, TFU_PRECONDITION, "%s", opened.missing);
  const int own = jit_nvrtc_capability(capability), version = opened.facts.version;
  TFU_REQUIRE(err, own, "NVRTC %d.%d does not know GPUs of compute capability %d.%d: install %s NVRTC", version / 100,
              version % 100, capability / 10, capability % 10, capability < 80 ? "an older" : "a newer");
  snprintf(arch, sizeof arch, "--gpu-architecture=sm_%d", own);
  strcpy(lines, opened.options);
  option[n++] = arch;
  if (quick) option[n++] = "--prec-div=false", option[n++] = "--prec-sqrt=false";
  for (char *o = strtok_r(lines, "\n", &rest); o && n < MOST_OPTIONS; o = strtok_r(NULL, "\n", &rest)) option[n++] = o;
  program p = NULL;
  tfu_code code = create(name, text, entry, &p, err);
  if (code == TFU_OK)
    code = nvrtc.nvrtcCompileProgram(p, n, option) ? log_of(p, name, err) : take(p, entry, image, err);
  if (p) nvrtc.nvrtcDestroyProgram(&p);
  return code;
}
