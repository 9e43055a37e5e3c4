/* tensorflow_stand_in.h - a TensorFlow for tests of what calls it. Its only model gives each output what the input of
 * the same place has. A float that is UNLUCKY makes a run fail, one that is SHORT takes away a row of the first output,
 * and for one that is KEPT it keeps the first input, as a model with a state may. It counts what lives, so that nothing
 * is left over unseen. */
#ifndef TFUSE_TENSORFLOW_STAND_IN_H_
#define TFUSE_TENSORFLOW_STAND_IN_H_

#include <stdatomic.h>

#include "serving/tensorflow.h"
#include "tests/check.h"

#define UNLUCKY 13.0f
#define SHORT 17.0f
#define KEPT 1e30f

static atomic_int living, runs, loads;
static atomic_size_t largest; /* bytes of a tensor */

struct TF_Status {
  int code;
  char text[200];
};
struct TF_Tensor {
  TF_DataType type;
  int rank;
  int64_t dim[16];
  void *data;
  size_t bytes;
  void (*release)(void *, size_t, void *);
  void *argument;
  int more; /* who has it besides the one who made it */
};
static TF_Tensor *kept;
static const void *_Atomic read_from; /* the first input of the last run */

static void *alive(size_t bytes) {
  living++;
  return calloc(1, bytes);
}
static void dead(void *p) {
  living--;
  free(p);
}
static void set(TF_Status *s, int code, const char *text) {
  s->code = code;
  snprintf(s->text, sizeof s->text, "%s", text);
}

static const char *version(void) { return "2.21.0-stand-in"; }
static TF_Status *new_status(void) { return alive(sizeof(TF_Status)); }
static void delete_status(TF_Status *s) { dead(s); }
static TF_Code get_code(const TF_Status *s) { return (TF_Code)s->code; }
static const char *message(const TF_Status *s) { return s->text; }
static TF_Library *load_library(const char *path, TF_Status *s) {
  loads++;
  set(s, strstr(path, "missing") ? 5 : 0, "no such library");
  return s->code ? NULL : alive(1);
}
static void delete_library(TF_Library *l) { dead(l); }
static TF_SessionOptions *new_options(void) { return alive(1); }
static void set_config(TF_SessionOptions *o, const void *proto, size_t n, TF_Status *s) {
  (void)o, (void)proto;
  set(s, n > 0 && n < 256 ? 0 : 3, "no ConfigProto");
}
static void delete_options(TF_SessionOptions *o) { dead(o); }
static TF_Graph *new_graph(void) { return alive(1); }
static void delete_graph(TF_Graph *g) { dead(g); }

/* An operation is any but "nowhere". */
static char an_operation;
static TF_Operation *by_name(TF_Graph *g, const char *name) {
  (void)g;
  return strcmp(name, "nowhere") ? (TF_Operation *)&an_operation : NULL;
}
static int num_outputs(TF_Operation *o) { return (void)o, 1; }

static TF_Session *load_session(const TF_SessionOptions *o, const TF_Buffer *r, const char *folder,
                                const char *const *tags, int n, TF_Graph *g, TF_Buffer *meta, TF_Status *s) {
  (void)o, (void)r, (void)g, (void)meta, (void)tags;
  if (strstr(folder, "custom")) set(s, 5, "Op type not registered 'Tfuse>Square' in binary");
  else set(s, n == 1 && !strstr(folder, "broken") ? 0 : 3, "variables are missing");
  return s->code ? NULL : alive(1);
}
static void close_session(TF_Session *session, TF_Status *s) { (void)session, set(s, 0, ""); }
static void delete_session(TF_Session *session, TF_Status *s) { set(s, 0, ""), dead(session); }

/* The CPU alone. */
static TF_DeviceList *list_devices(TF_Session *session, TF_Status *s) {
  (void)session, set(s, 0, "");
  return alive(1);
}
static int count_devices(const TF_DeviceList *l) { return (void)l, 1; }
static const char *device_type(const TF_DeviceList *l, int i, TF_Status *s) {
  (void)l, (void)i, set(s, 0, "");
  return "CPU";
}
static void delete_devices(TF_DeviceList *l) { dead(l); }

static TF_Tensor *new_tensor(TF_DataType type, const int64_t *dim, int rank, void *data, size_t bytes,
                             void (*release)(void *, size_t, void *), void *argument) {
  TF_Tensor *t = alive(sizeof *t);
  *t = (TF_Tensor){type, rank, {0}, data, bytes, release, argument, 0};
  size_t elements = 1;
  for (int i = 0; i < rank; i++) elements *= (size_t)(t->dim[i] = dim[i]);
  CHECK(bytes == elements * (type == TFU_TF_STRING ? sizeof(TF_TString) : tfu_tf_dtype_size((int)type)));
  CHECK((uintptr_t)data % 64 == 0);
  if (bytes > largest) largest = bytes;
  return t;
}
static void delete_tensor(TF_Tensor *t) {
  if (t->more-- > 0) return;
  t->release(t->data, t->bytes, t->argument);
  dead(t);
}
static TF_DataType tensor_type(const TF_Tensor *t) { return t->type; }
static int num_dims(const TF_Tensor *t) { return t->rank; }
static int64_t dim_of(const TF_Tensor *t, int i) { return t->dim[i]; }
static size_t byte_size(const TF_Tensor *t) { return t->bytes; }
static void *data_of(const TF_Tensor *t) { return t->data; }

/* A string: its memory and its length. */
static void string_init(TF_TString *s) { *s = (TF_TString){{0}}; }
static void string_copy(TF_TString *s, const char *text, size_t n) {
  char *own = alive(n + 1);
  memcpy(own, text, n);
  *s = (TF_TString){{(uintptr_t)own, n}};
}
static const char *string_data(const TF_TString *s) { return (const char *)(uintptr_t)s->words[0]; }
static size_t string_size(const TF_TString *s) { return s->words[1]; }
static void string_free(TF_TString *s) {
  if (s->words[0]) dead((void *)(uintptr_t)s->words[0]);
  string_init(s);
}

static void free_copy(void *data, size_t bytes, void *strings) {
  for (size_t i = 0; strings && i < bytes / sizeof(TF_TString); i++) string_free((TF_TString *)data + i);
  free(data);
}

static TF_Tensor *copy_of(const TF_Tensor *t, int64_t rows_less) {
  void *data;
  const int strings = t->type == TFU_TF_STRING;
  int64_t dim[16];
  memcpy(dim, t->dim, sizeof dim);
  size_t bytes = t->bytes;
  if (rows_less && t->rank && dim[0] > 1) bytes = bytes / (size_t)dim[0] * (size_t)(dim[0] - 1), dim[0]--;
  if (posix_memalign(&data, 64, bytes + 1)) abort();
  if (strings) {
    const TF_TString *from = t->data;
    for (size_t i = 0; i < bytes / sizeof *from; i++) {
      string_init((TF_TString *)data + i);
      string_copy((TF_TString *)data + i, from[i].words[0] ? string_data(&from[i]) : "", string_size(&from[i]));
    }
  } else {
    memcpy(data, t->data, bytes);
  }
  return new_tensor(t->type, dim, t->rank, data, bytes, free_copy, strings ? (void *)1 : NULL);
}

static int has(TF_Tensor *const *in, int n, float wanted) {
  for (int i = 0; i < n; i++)
    for (size_t k = 0; in[i]->type == TFU_TF_FLOAT && k < in[i]->bytes / 4; k++)
      if (((const float *)in[i]->data)[k] == wanted) return 1;
  return 0;
}

static void session_run(TF_Session *session, const TF_Buffer *options, const TF_Output *at, TF_Tensor *const *in, int n,
                        const TF_Output *to, TF_Tensor **out, int m, const TF_Operation *const *targets, int targeted,
                        TF_Buffer *meta, TF_Status *s) {
  (void)session, (void)options, (void)at, (void)to, (void)targets, (void)targeted, (void)meta;
  runs++;
  read_from = n ? in[0]->data : NULL;
  if (has(in, n, KEPT)) (kept = in[0])->more++;
  if (has(in, n, UNLUCKY)) return set(s, 3, "an unlucky number");
  set(s, 0, "");
  for (int i = 0; i < m; i++) out[i] = copy_of(in[i % n], i == 0 && has(in, n, SHORT));
}

tfu_code tfu_tensorflow_find(const char *folder, tfu_tensorflow *tf, tfu_error *err) {
  (void)folder, (void)err;
  *tf = (tfu_tensorflow){version,        new_status,  delete_status,  get_code,       message,        load_library,
                         delete_library, new_options, set_config,     delete_options, new_graph,      delete_graph,
                         by_name,        num_outputs, load_session,   close_session,  delete_session, list_devices,
                         count_devices,  device_type, delete_devices, session_run,    new_tensor,     delete_tensor,
                         tensor_type,    num_dims,    dim_of,         byte_size,      data_of,        string_init,
                         string_copy,    string_data, string_size,    string_free};
  return TFU_OK;
}

/* Numbers that come again in every run. */
static inline uint32_t random_number(void) {
  static uint64_t state = 88172645463325252u;
  state ^= state << 13, state ^= state >> 7, state ^= state << 17;
  return (uint32_t)(state >> 16);
}

/* How often: TFUSE_FUZZ, or what a test of seconds can afford. */
static inline int64_t fuzz_count(int64_t otherwise) {
  const char *given = getenv("TFUSE_FUZZ");
  return given ? atoll(given) : otherwise;
}

#endif
