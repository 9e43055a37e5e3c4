#define _GNU_SOURCE
#include "kernels/jit/nvrtc.h"

#include <dlfcn.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "kernels/core/nvidia/library.h"

typedef void *program; /* nvrtcProgram */

static struct {
  int (*nvrtcVersion)(int *major, int *minor);
  const char *(*nvrtcGetErrorString)(int result);
  int (*nvrtcGetNumSupportedArchs)(int *n);
  int (*nvrtcGetSupportedArchs)(int *archs);
  int (*nvrtcCreateProgram)(program *, const char *text, const char *name, int headers, const char *const *texts,
                            const char *const *names);
  int (*nvrtcAddNameExpression)(program, const char *name);
  int (*nvrtcCompileProgram)(program, int options, const char *const *option);
  int (*nvrtcGetLoweredName)(program, const char *name, const char **lowered);
  int (*nvrtcGetProgramLogSize)(program, size_t *);
  int (*nvrtcGetProgramLog)(program, char *);
  int (*nvrtcGetCUBINSize)(program, size_t *);
  int (*nvrtcGetCUBIN)(program, char *);
  int (*nvrtcDestroyProgram)(program *);
} nvrtc;
static int version;
static char missing[256];

enum { MOST_OPTIONS = 16 };
static char options[8 * PATH_MAX]; /* one line each */

static void add_option(const char *format, const char *value) {
  const size_t at = strlen(options);
  snprintf(options + at, sizeof options - at, format, value);
  strncat(options, "\n", sizeof options - strlen(options) - 1);
}

/* CUDA's own headers, for sources that include them: as pip lays them out beside NVRTC, lib/../../cuda_runtime/include,
 * or for CUDA 13 and a toolkit lib/../include. */
static void add_headers(void) {
  static const char *const places[] = {"../../cuda_runtime/include", "../../cuda_cccl/include", "../include",
                                       "../include/cccl"};
  Dl_info file;
  char path[PATH_MAX], real[PATH_MAX];
  if (!dladdr(*(void **)&nvrtc.nvrtcVersion, &file) || !file.dli_fname) return;
  const char *end = strrchr(file.dli_fname, '/');
  for (int i = 0; end && i < TFU_COUNT(places); i++) {
    const int n = snprintf(path, sizeof path, "%.*s/%s", (int)(end - file.dli_fname), file.dli_fname, places[i]);
    if (n < (int)sizeof path && realpath(path, real) && !access(real, R_OK)) add_option("-I%s", real);
  }
}

static void open_nvrtc(void) {
  static const char *const names[] = {"libnvrtc.so.12", "libnvrtc.so.13", NULL};
  static const char *const folders[] = {"nvidia/cuda_nvrtc/lib", "nvidia/cu13/lib", NULL};
  void *library = tfu_open_library(names, folders);
  const char *absent = library ? NULL : "libnvrtc.so.12 or .13";
  int major = 0, minor = 0;
#define FIND(name)                                            \
  if (library) *(void **)&nvrtc.name = dlsym(library, #name); \
  if (library && !nvrtc.name) absent = #name;
  FIND(nvrtcVersion)
  FIND(nvrtcGetErrorString)
  FIND(nvrtcGetNumSupportedArchs)
  FIND(nvrtcGetSupportedArchs)
  FIND(nvrtcCreateProgram)
  FIND(nvrtcAddNameExpression)
  FIND(nvrtcCompileProgram)
  FIND(nvrtcGetLoweredName)
  FIND(nvrtcGetProgramLogSize)
  FIND(nvrtcGetProgramLog)
  FIND(nvrtcGetCUBINSize)
  FIND(nvrtcGetCUBIN)
  FIND(nvrtcDestroyProgram)
#undef FIND
  if (absent || nvrtc.nvrtcVersion(&major, &minor)) {
    snprintf(
        missing, sizeof missing,
        "kernels are compiled by NVRTC, and there is no %s: pip install nvidia-cuda-nvrtc-cu12 (tensorflow[and-cuda] "
        "has it), or put its folder into LD_LIBRARY_PATH",
        absent ? absent : "version");
    return;
  }
  version = major * 100 + minor;
  add_option("--std=c++1%s", "7");
  add_option("--device-as-default-execution-space%s", "");
  add_option("-DTFU_DEVICE%s", "");
  add_headers();
}

static void ready(void) {
  static pthread_once_t once = PTHREAD_ONCE_INIT;
  pthread_once(&once, open_nvrtc);
}

const char *jit_nvrtc_missing(void) {
  ready();
  return missing;
}

int jit_nvrtc_version(void) {
  ready();
  return version;
}

const char *jit_nvrtc_options(void) {
  ready();
  return options;
}

int jit_nvrtc_capability(int capability) {
  int n = 0, best = 0, known[64];
  ready();
  if (!version || nvrtc.nvrtcGetNumSupportedArchs(&n) || n > TFU_COUNT(known) || nvrtc.nvrtcGetSupportedArchs(known))
    return 0;
  for (int i = 0; i < n; i++)
    if (known[i] <= capability && known[i] / 10 == capability / 10 && known[i] > best) best = known[i];
  return best;
}

static tfu_code check(int result, const char *what, tfu_error *err) {
  if (!result) return TFU_OK;
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
  char lines[sizeof options], arch[40], *rest = NULL;
  int n = 0;
  ready();
  if (*missing) return tfu_fail(err, TFU_PRECONDITION, "%s", missing);
  const int own = jit_nvrtc_capability(capability);
  TFU_REQUIRE(err, own, "NVRTC %d.%d does not know GPUs of compute capability %d.%d: install %s NVRTC", version / 100,
              version % 100, capability / 10, capability % 10, capability < 80 ? "an older" : "a newer");
  snprintf(arch, sizeof arch, "--gpu-architecture=sm_%d", own);
  strcpy(lines, options);
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
