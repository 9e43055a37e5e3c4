#define _GNU_SOURCE
#include "kernels/jit/compiled.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/core/gpu/driver.h"
#include "kernels/core/table.h"
#include "kernels/jit/cubins.h"

struct jit_compiled {
  jit_variant variant;
  CUlibrary library; /* which has the function */
  tfu_function function;
  const char *origin;
  int registers, local, most_threads;
  atomic_int threads, blocks; /* of the last launch: of a block, and of a multiprocessor */
};

void jit_variant_of(const tfu_call *call, int capability, jit_variant *v) {
  const tfu_lists *l = call->lists;
  memset(v, 0, sizeof *v); /* what lies between members counts too */
  v->source = call->attr[TFU_JIT_SOURCE].s;
  v->name = call->attr[TFU_JIT_KERNEL].s;
  v->kind = (int)call->attr[TFU_JIT_KIND].i;
  v->capability = capability;
  v->inputs = l->inputs, v->outputs = l->outputs;
  for (int i = 0; i < l->inputs; i++) v->in[i] = (unsigned char)l->in[0].at[i].dtype;
  for (int i = 0; i < l->outputs; i++) v->out[i] = (unsigned char)l->out[0].at[i].dtype;
}

/* ---- text ---- */

__attribute__((format(printf, 2, 3))) static void put(FILE *to, const char *format, ...) {
  va_list ap;
  va_start(ap, format);
  vfprintf(to, format, ap);
  va_end(ap);
}

static void write_list(FILE *to, const char *name, const char *before, const char *after, int n) {
  put(to, "#define %s ", name);
  for (int i = 0; i < n; i++) put(to, "%s%s%d%s", i ? ", " : "", before, i, after);
  put(to, "\n");
}

/* Types of tensors and arithmetic, and the numbers of the walk. */
static void write_head(FILE *to, const jit_variant *v) {
  static const char *const types[TFU_MOVED] = {
      [TFU_F32] = "float",   [TFU_F16] = "f16",     [TFU_BF16] = "bf16", [TFU_F64] = "double",
      [TFU_I32] = "int32_t", [TFU_I64] = "int64_t", [TFU_BOOL] = "bool"};
  int wide = 0;
  put(to, "#include \"jit_types.cuh\"\n");
  for (int i = 0; i < v->inputs + v->outputs; i++) {
    const int output = i >= v->inputs, place = output ? i - v->inputs : i;
    const int dtype = output ? v->out[place] : v->in[place];
    put(to, "typedef %s %c%d;\n", types[dtype], "TU"[output], place);
    wide |= dtype == TFU_F64;
  }
  put(to, "typedef %s R;\n", wide ? "double" : "float");
  if (v->kind == TFU_JIT_RAW) return;
  put(to, "#define JIT_CALL_(a, b) a##b\n#define JIT_CALL(a, b) JIT_CALL_(a, b)\n");
  put(to, "#define JIT_ENTRY JIT_CALL(tfuse_jit_, JIT_NAME)\n");
  write_list(to, "JIT_TYPES_IN", "T", "", v->inputs);
  write_list(to, "JIT_TYPES_OUT", "U", "", v->outputs);
  write_list(to, "JIT_ARGS_X", "x[", "]", v->inputs);
  write_list(to, "JIT_ARGS_Y", "y[", "]", v->outputs);
  const struct {
    const char *name;
    int value;
  } numbers[] = {{"N", v->n},         {"SINGLE", v->single},   {"MOVES", v->moves},
                 {"AXES", v->axes},   {"THREADS", v->threads}, {"UNROLL", v->unroll},
                 {"LANES", v->lanes}, {"PACKS", v->packs}};
  for (int i = 0; i < TFU_COUNT(numbers); i++) put(to, "#define JIT_%s %d\n", numbers[i].name, numbers[i].value);
  if (v->small) put(to, "#define JIT_SMALL\n");
  if (v->quick && !wide) put(to, "#define exp(x) __expf(x)\n"); /* off by 1e-5 at most; in few instructions */
}

char *jit_text(const jit_variant *v, char *entry, size_t room) {
  static const char *const walks[] = {"jit_elementwise.cuh", "jit_rows.cuh"};
  char *text = NULL;
  size_t size;
  FILE *to = open_memstream(&text, &size);
  if (!to) return NULL;
  write_head(to, v);
  put(to, "#line 1 \"%s\"\n%s\n", v->name, v->source); /* the user's own lines */
  if (v->kind != TFU_JIT_RAW) put(to, "#line 1 \"tfuse\"\n#include \"%s\"\n", walks[v->kind]);
  snprintf(entry, room, "%s%s", v->kind == TFU_JIT_RAW ? "" : "tfuse_jit_", v->name);
  const int failed = ferror(to);
  if (!fclose(to) && !failed) return text;
  free(text);
  return NULL;
}

/* "float32, int32 -> float32" */
static void describe(const jit_variant *v, char *text, size_t size) {
  int at = 0;
  for (int i = 0; i < v->inputs + v->outputs && at < (int)size; i++)
    at += snprintf(text + at, size - (size_t)at, "%s%s",
                   i == v->inputs ? " -> "
                   : i            ? ", "
                                  : "",
                   tfu_dtype_name(i < v->inputs ? v->in[i] : v->out[i - v->inputs]));
}

/* ---- loading ---- */

static void unload(const tfu_driver *d, jit_compiled *c) {
  if (c->library) d->cuLibraryUnload(c->library); /* what fails here, nobody can mend */
  c->library = NULL;
}

static tfu_code load(const tfu_driver *d, const jit_image *image, jit_compiled *c, tfu_error *err) {
  CUresult r = d->cuLibraryLoadData(&c->library, image->code, NULL, NULL, 0, NULL, NULL, 0);
  if (r) c->library = NULL;
  else r = d->cuLibraryGetKernel((CUkernel *)&c->function.kernel, c->library, image->entry);
  if (r) unload(d, c);
  return tfu_driver_code(d, r, "loading it", err);
}

/* From the cache, or compiled; what the driver does not take from the cache is compiled anew. */
static tfu_code make(const tfu_driver *d, const jit_variant *v, jit_compiled *c, tfu_error *err) {
  char entry[sizeof((jit_image *)0)->entry];
  char *text = jit_text(v, entry, sizeof entry);
  if (!text) return tfu_fail(err, TFU_EXHAUSTED, "out of host memory");
  jit_key key = jit_key_of(text, entry, v->capability);
  jit_image *image = jit_cubin_read(&key);
  if (!image && jit_nvrtc_open()) { /* another NVRTC than it was thought to be */
    key = jit_key_of(text, entry, v->capability);
    image = jit_cubin_read(&key);
  }
  c->origin = "jit kernel, read from the cache";
  if (image && load(d, image, c, err) == TFU_OK) {
    free(image), free(text);
    return TFU_OK;
  }
  if (image) jit_cubin_forget(&key);
  free(image);
  image = NULL;
  c->origin = "jit kernel, compiled";
  tfu_code code = jit_compile(v->name, text, entry, v->capability, v->quick, &image, err);
  key = jit_key_of(text, entry, v->capability); /* of the NVRTC that has compiled it */
  free(text);
  if (code == TFU_OK) code = load(d, image, c, err);
  if (code == TFU_OK) jit_cubin_write(&key, image);
  else if (image) {
    tfu_error own = *err;
    code =
        tfu_fail(err, code,
                 "kernel %s: %.300s. The driver does not take what NVRTC %d.%d compiled: update the driver, or install "
                 "an NVRTC that is not newer than it",
                 v->name, own.text, jit_nvrtc_version() / 100, jit_nvrtc_version() % 100);
  }
  free(image);
  return code;
}

/* What the driver tells of a kernel. */
static tfu_code ask(const tfu_driver *d, jit_compiled *c, tfu_error *err) {
  tfu_device device;
  TFU_TRY(tfu_device_now(&device, err));
  const struct {
    CUfunction_attribute which;
    int *value;
  } questions[] = {{CU_FUNC_ATTRIBUTE_NUM_REGS, &c->registers},
                   {CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES, &c->local},
                   {CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES, &c->function.static_shared},
                   {CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK, &c->most_threads}};
  for (int i = 0; i < TFU_COUNT(questions); i++) {
    const CUresult r =
        d->cuKernelGetAttribute(questions[i].value, questions[i].which, c->function.kernel, device.ordinal);
    TFU_TRY(tfu_driver_code(d, r, c->variant.name, err));
  }
  return TFU_OK;
}

static tfu_code make_and_ask(const jit_variant *v, jit_compiled *c, tfu_error *err) {
  static pthread_mutex_t compiling = PTHREAD_MUTEX_INITIALIZER; /* one at a time */
  const tfu_driver *d;
  TFU_TRY(tfu_driver_get(&d, err));
  pthread_mutex_lock(&compiling);
  /* Loading allocates, and a driver may put it off until it is asked of the code. */
  const int mode = tfu_capture_relax();
  tfu_code code = make(d, v, c, err);
  if (code == TFU_OK) code = ask(d, c, err);
  if (code != TFU_OK) unload(d, c);
  tfu_capture_restore(mode);
  pthread_mutex_unlock(&compiling);
  return code;
}

static tfu_code add(const void *variant, void *compiled, void *with, tfu_error *err) {
  const jit_variant *v = variant;
  jit_compiled *c = compiled;
  (void)with;
  memcpy(&c->variant, v, sizeof *v);
  c->variant.source = tfu_intern(v->source, strlen(v->source)); /* the same pointers, held for the variant */
  c->variant.name = c->function.name = tfu_intern(v->name, strlen(v->name));
  const tfu_code code = make_and_ask(v, c, err);
  if (code == TFU_OK) return TFU_OK;
  char types[300] = "";
  describe(v, types, sizeof types);
  const size_t at = strlen(err->text);
  if (code == TFU_INVALID) snprintf(err->text + at, sizeof err->text - at, "(for %s)", types);
  tfu_drop_text(c->variant.source), tfu_drop_text(c->variant.name);
  return code;
}

/* All are kept: graphs may have captured any of them. */
static tfu_table variants = TFU_TABLE(.value = sizeof(jit_compiled), .most = TFU_KEEP_ALL, .make = add);

tfu_code jit_compiled_get(const jit_variant *v, jit_compiled **compiled, tfu_error *err) {
  void *value = NULL;
  const tfu_code code = tfu_table_get(&variants, v, sizeof *v, NULL, &value, err);
  *compiled = value;
  return code;
}

/* ---- launching ---- */

int jit_parameter(const jit_compiled *c, int i) {
  const tfu_driver *d = tfu_driver_if_any();
  size_t offset, size = 0;
  if (!d || !d->cuKernelGetParamInfo) return -1;
  return d->cuKernelGetParamInfo(c->function.kernel, (size_t)i, &offset, &size) ? 0 : (int)size;
}

static tfu_launch_text show(const jit_launch *l) { return tfu_show_launch(l->grid, l->block, l->shared); }

static tfu_code check_limits(const jit_compiled *c, const tfu_device *device, const jit_launch *l, tfu_error *err) {
  static const int64_t most_blocks[] = {INT32_MAX, 65535, 65535}, most_block[] = {1024, 1024, 64};
  const char *name = c->variant.name;
  int64_t threads = 1;
  for (int i = 0; i < 3; i++) {
    TFU_REQUIRE(err, l->grid[i] >= 1 && l->grid[i] <= most_blocks[i],
                "kernel %s: %s: axis %d of a grid has 1 to %" PRId64 " blocks", name, show(l).text, i, most_blocks[i]);
    TFU_REQUIRE(err, l->block[i] >= 1 && l->block[i] <= most_block[i],
                "kernel %s: %s: axis %d of a block has 1 to %" PRId64 " threads", name, show(l).text, i, most_block[i]);
    threads *= l->block[i];
  }
  TFU_REQUIRE(err, threads <= c->most_threads,
              "kernel %s: %s: a block of this kernel, with %d registers, has at most %d threads, not %" PRId64, name,
              show(l).text, c->registers, c->most_threads, threads);
  TFU_REQUIRE(err, l->shared >= 0 && l->shared + c->function.static_shared <= device->block_shared,
              "kernel %s: %s: this GPU gives a block %d bytes, of which the kernel has %d already", name, show(l).text,
              device->block_shared, c->function.static_shared);
  return TFU_OK;
}

/* How many blocks fit on a multiprocessor, for tfu_jit_info; asked for where the block is another than last time. */
static void note_occupancy(const tfu_driver *d, jit_compiled *c, const jit_launch *l) {
  const int threads = (int)(l->block[0] * l->block[1] * l->block[2]);
  int blocks = 0;
  if (atomic_load(&c->threads) == threads) return;
  if (d->cuOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, (CUfunction)c->function.kernel, threads,
                                                     (size_t)l->shared))
    return;
  atomic_store(&c->blocks, blocks);
  atomic_store(&c->threads, threads);
}

tfu_code jit_start(tfu_call *call, jit_compiled *c, const jit_launch *l, void **parameters) {
  const tfu_driver *d;
  tfu_device device;
  TFU_TRY(tfu_driver_get(&d, call->err));
  TFU_TRY(tfu_device_now(&device, call->err));
  TFU_TRY(check_limits(c, &device, l, call->err));
  call->kernel = c->variant.name;
  if (!call->why) call->why = c->origin;
  const tfu_grid grid = {.x = (unsigned)l->grid[0],
                         .y = (unsigned)l->grid[1],
                         .z = (unsigned)l->grid[2],
                         .threads = (unsigned)l->block[0],
                         .threads_y = (unsigned)l->block[1],
                         .threads_z = (unsigned)l->block[2],
                         .shared = (unsigned)l->shared};
  TFU_TRY(tfu_start(call, &c->function, grid, parameters));
  note_occupancy(d, c, l); /* once the shared memory has been asked for, which it goes by */
  return TFU_OK;
}

/* ---- info ---- */

const char *tfu_jit_status(void) { return jit_nvrtc_missing(); }

typedef struct wanted {
  const char *source, *name;
  int number;
  const jit_compiled *found;
} wanted;

static int is_wanted(const void *variant, void *compiled, void *wanted_) {
  const jit_variant *v = variant;
  wanted *w = wanted_;
  if (v->source == w->source && !strcmp(v->name, w->name) && w->number-- == 0) w->found = compiled;
  return w->found != NULL;
}

int tfu_jit_info(const char *name, const char *source, int number, char *text, size_t size) {
  char types[300] = "";
  wanted w = {.source = tfu_intern(source, strlen(source)), .name = name, .number = number};
  tfu_table_each(&variants, is_wanted, &w);
  tfu_drop_text(w.source);
  const jit_compiled *found = w.found;
  if (!found) return 0;
  describe(&found->variant, types, sizeof types);
  snprintf(
      text, size,
      "types=%s\tcapability=%d\tpack=%d\tregisters=%d\tspilled=%d\tshared=%d\tmost_threads=%d\tthreads=%d\tblocks=%d",
      types, found->variant.capability, found->variant.n, found->registers, found->local, found->function.static_shared,
      found->most_threads, atomic_load(&found->threads), atomic_load(&found->blocks));
  return 1;
}
