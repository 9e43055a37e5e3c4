/* libtriton_tfuse.so - TensorFlow in Triton: what the server calls.
 *
 * A model's instances on one device share a session, which runs as many batches at a time as there are instances. A
 * folder that has a SavedModel and no configuration gets one that is made of its signature. */
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "serving/generator.h"
#include "serving/triton/batch.h"
#include "serving/triton/stream.h"

enum { MAX_DEVICES = 17 }; /* the CPU and 16 GPUs */

typedef struct served {
  char folder[PATH_MAX]; /* of the SavedModel */
  tfu_config config;
  tfu_signatures signatures;
  const tfu_signature *signature;
  tfu_model *on[MAX_DEVICES]; /* 0: the CPU, 1 + i: GPU i; opened by the first instance there */
  int generates;              /* token by token: each of these has an engine */
  tfu_engine *engine[MAX_DEVICES];
  pthread_mutex_t opening;
  atomic_int keeps; /* whether the model has kept an input, as in a variable: from then on inputs are copied, or
                       requests, and with them the model, would not end */
} served;

typedef struct instance {
  served *of;
  tfu_model *model;
  const tfu_signature *signature; /* of this model */
  tfu_engine *engine;             /* where it generates */
  tfu_streams *streams;
  int has_run; /* The first run is the warm-up's, which waits until its request has ended: inputs of that are copied. */
} instance;

/* ---- models ---- */

/* The folder in that of a version, under the name that the configuration has, else the usual one, else the version's
 * own. */
static tfu_code find_folder(TRITONBACKEND_Model *model, const char *name, char folder[PATH_MAX], tfu_error *err) {
  TRITONBACKEND_ArtifactType type;
  const char *home;
  uint64_t version;
  char path[PATH_MAX];
  const char *names[] = {*name ? name : "model.savedmodel", *name ? NULL : "."};
  TFU_TRY(tfu_triton_code(TRITONBACKEND_ModelRepository(model, &type, &home), err));
  TFU_TRY(tfu_triton_code(TRITONBACKEND_ModelVersion(model, &version), err));
  TFU_REQUIRE(err, type == TRITONBACKEND_ARTIFACT_FILESYSTEM, "models are served from folders alone");
  for (int i = 0; i < TFU_COUNT(names) && names[i]; i++) {
    const int n = snprintf(folder, PATH_MAX, "%s/%llu/%s", home, (unsigned long long)version, names[i]);
    TFU_REQUIRE(err, n < PATH_MAX && snprintf(path, PATH_MAX, "%s/saved_model.pb", folder) < PATH_MAX,
                "the model's path is too long");
    if (!access(path, R_OK)) return TFU_OK;
  }
  return tfu_fail(err, (tfu_code)5, "there is no %s/%llu/%s/saved_model.pb: the folder of a SavedModel is wanted there",
                  home, (unsigned long long)version, names[0]);
}

/* How many requests are joined where nobody says: what the server's command line has, which is 4 if it has nothing. */
static int64_t default_batch(TRITONBACKEND_Model *model) {
  TRITONBACKEND_Backend *backend;
  TRITONSERVER_Message *message;
  tfu_error err;
  const char *text;
  size_t n;
  if (tfu_triton_code(TRITONBACKEND_ModelBackend(model, &backend), &err) ||
      tfu_triton_code(TRITONBACKEND_BackendConfig(backend, &message), &err) ||
      tfu_triton_code(TRITONSERVER_MessageSerializeToJson(message, &text, &n), &err))
    return 0;
  const tfu_json given = tfu_json_get(tfu_json_read(text, n), "cmdline");
  return tfu_json_integer(tfu_json_get(given, "default-max-batch-size"), 0);
}

/* Reads the configuration; completes it where the server lets us, and checks it. */
static tfu_code configure(TRITONBACKEND_Model *model, served *m, tfu_json config, tfu_error *err) {
  bool may_complete;
  char *text;
  size_t n;
  tfu_config *c = &m->config;
  TFU_TRY(tfu_config_read(config, c, err));
  TFU_TRY(find_folder(model, c->file, m->folder, err));
  TFU_TRY(tfu_signatures_read(m->folder, c->tags, &m->signatures, err));
  m->generates = tfu_generator_is(m->signatures.at, m->signatures.n);
  if (m->generates) return tfu_stream_check(config, c, err);
  m->signature = tfu_signatures_find(&m->signatures, *c->signature ? c->signature : NULL);
  TFU_REQUIRE(err, m->signature, "the model has no signature %s: parameter TF_SIGNATURE_DEF names another",
              *c->signature ? c->signature : "serving_default");
  TFU_TRY(tfu_triton_code(TRITONBACKEND_ModelAutoCompleteConfig(model, &may_complete), err));
  if (!may_complete) return tfu_config_check(config, c, m->signature, err);
  TFU_TRY(tfu_config_complete(config, c, m->signature, default_batch(model), &text, &n, err));
  if (!text) return tfu_config_check(config, c, m->signature, err);
  TRITONSERVER_Message *message = NULL;
  tfu_code code = tfu_config_check(tfu_json_read(text, n), c, m->signature, err);
  if (code == TFU_OK) code = tfu_triton_code(TRITONSERVER_MessageNewFromSerializedJson(&message, text, n), err);
  if (code == TFU_OK) code = tfu_triton_code(TRITONBACKEND_ModelSetConfig(model, 1, message), err);
  if (message) code = tfu_triton_code(TRITONSERVER_MessageDelete(message), code ? &(tfu_error){0} : err) ?: code;
  free(text);
  return code;
}

static void free_served(served *m) {
  for (int i = 0; i < MAX_DEVICES; i++) {
    tfu_engine_free(m->engine[i]);
    tfu_model_close(m->on[i]);
  }
  tfu_signatures_free(&m->signatures);
  pthread_mutex_destroy(&m->opening);
  free(m);
}

static tfu_code initialize(TRITONBACKEND_Model *model, served *m, tfu_error *err) {
  TRITONSERVER_Message *message;
  const char *text;
  size_t n;
  TFU_TRY(tfu_triton_code(TRITONBACKEND_ModelConfig(model, 1, &message), err));
  tfu_code code = tfu_triton_code(TRITONSERVER_MessageSerializeToJson(message, &text, &n), err);
  if (code == TFU_OK) {
    const tfu_json config = tfu_json_read(text, n);
    code = config.at ? configure(model, m, config, err) : tfu_fail(err, TFU_INVALID, "the configuration is not JSON");
  }
  TRITONSERVER_Error *error = TRITONSERVER_MessageDelete(message);
  if (error) TRITONSERVER_ErrorDelete(error);
  return code ?: tfu_triton_code(TRITONBACKEND_ModelSetState(model, m), err);
}

TRITONSERVER_Error *TRITONBACKEND_Initialize(TRITONBACKEND_Backend *backend) {
  uint32_t major, minor;
  (void)backend;
  TRITONSERVER_Error *error = TRITONBACKEND_ApiVersion(&major, &minor);
  if (!error && major != 1)
    error = TRITONSERVER_ErrorNew(TRITONSERVER_ERROR_UNSUPPORTED,
                                  "tfuse is for version 1 of Triton's backend API, and this server has another");
  return error;
}

TRITONSERVER_Error *TRITONBACKEND_ModelInitialize(TRITONBACKEND_Model *model) {
  tfu_error err;
  served *m = calloc(1, sizeof *m);
  if (!m) return TRITONSERVER_ErrorNew(TRITONSERVER_ERROR_UNAVAILABLE, "out of host memory");
  pthread_mutex_init(&m->opening, NULL);
  const tfu_code code = initialize(model, m, &err);
  if (code != TFU_OK) free_served(m);
  return tfu_triton_error(code, &err);
}

TRITONSERVER_Error *TRITONBACKEND_ModelFinalize(TRITONBACKEND_Model *model) {
  void *state = NULL;
  TRITONSERVER_Error *error = TRITONBACKEND_ModelState(model, &state);
  if (state) free_served(state);
  return error;
}

/* ---- instances ---- */

static tfu_code open_on(served *m, int device, instance *i, tfu_error *err) {
  char name[32] = "CPU";
  if (device) snprintf(name, sizeof name, "GPU:%d", device - 1);
  const tfu_config *c = &m->config;
  const tfu_model_options options = {.device = name,
                                     .tags = c->tags,
                                     .libraries = c->libraries,
                                     .inter_threads = (int)c->inter_threads,
                                     .intra_threads = (int)c->intra_threads,
                                     .xla = c->xla != 0,
                                     .most_bytes = m->generates ? 0 : (size_t)c->max_bytes}; /* not of its steps */
  tfu_code code = TFU_OK;
  pthread_mutex_lock(&m->opening);
  if (!m->on[device]) code = tfu_model_open(m->folder, &options, &m->on[device], err);
  if (code == TFU_OK && m->generates && !m->engine[device])
    code = tfu_stream_engine(m->on[device], c, &m->engine[device], err);
  i->model = m->on[device];
  i->engine = m->engine[device];
  pthread_mutex_unlock(&m->opening);
  return code;
}

static tfu_code initialize_instance(TRITONBACKEND_ModelInstance *of, instance *i, tfu_error *err) {
  TRITONBACKEND_Model *model;
  TRITONSERVER_InstanceGroupKind kind;
  int32_t id;
  void *state;
  TFU_TRY(tfu_triton_code(TRITONBACKEND_ModelInstanceModel(of, &model), err));
  TFU_TRY(tfu_triton_code(TRITONBACKEND_ModelState(model, &state), err));
  TFU_TRY(tfu_triton_code(TRITONBACKEND_ModelInstanceKind(of, &kind), err));
  TFU_TRY(tfu_triton_code(TRITONBACKEND_ModelInstanceDeviceId(of, &id), err));
  const int device = kind == TRITONSERVER_INSTANCEGROUPKIND_GPU ? 1 + id : 0;
  TFU_REQUIRE(err, device >= 0 && device < MAX_DEVICES, "GPU %d is more than can be served", id);
  i->of = state;
  TFU_TRY(open_on(i->of, device, i, err));
  if (i->engine) TFU_TRY(tfu_streams_new(of, &i->streams, err));
  if (i->engine) return tfu_triton_code(TRITONBACKEND_ModelInstanceSetState(of, i), err);
  i->signature = tfu_model_signature(i->model, i->of->signature->name);
  TFU_REQUIRE(err,
              i->signature && i->signature->inputs == i->of->signature->inputs &&
                  i->signature->outputs == i->of->signature->outputs,
              "the model's files have changed while it was loaded");
  return tfu_triton_code(TRITONBACKEND_ModelInstanceSetState(of, i), err);
}

static void free_instance(instance *i) {
  tfu_streams_close(i->streams);
  free(i);
}

TRITONSERVER_Error *TRITONBACKEND_ModelInstanceInitialize(TRITONBACKEND_ModelInstance *of) {
  tfu_error err;
  instance *i = calloc(1, sizeof *i);
  if (!i) return TRITONSERVER_ErrorNew(TRITONSERVER_ERROR_UNAVAILABLE, "out of host memory");
  const tfu_code code = initialize_instance(of, i, &err);
  if (code != TFU_OK) free_instance(i);
  return tfu_triton_error(code, &err);
}

TRITONSERVER_Error *TRITONBACKEND_ModelInstanceFinalize(TRITONBACKEND_ModelInstance *of) {
  void *state = NULL;
  TRITONSERVER_Error *error = TRITONBACKEND_ModelInstanceState(of, &state);
  if (state) free_instance(state);
  return error;
}

TRITONSERVER_Error *TRITONBACKEND_ModelInstanceExecute(TRITONBACKEND_ModelInstance *of,
                                                       TRITONBACKEND_Request **requests, uint32_t n) {
  void *state;
  uint64_t begin = tfu_nanoseconds(), run_begin, run_end;
  TRITONSERVER_Error *error = TRITONBACKEND_ModelInstanceState(of, &state);
  if (error) return error;
  instance *i = state;
  const tfu_config *c = &i->of->config;
  for (uint32_t k = 0; i->engine && k < n; k++) tfu_stream_begin(i->streams, requests[k], c, i->engine);
  if (i->engine) return NULL;
  tfu_request *r = calloc(n + 1, sizeof *r);
  /* Requests are the server's until they are released, and so it answers them in this case. */
  if (!r) return TRITONSERVER_ErrorNew(TRITONSERVER_ERROR_UNAVAILABLE, "out of host memory");
  for (uint32_t k = 0; k < n; k++) {
    r[k].of = requests[k];
    r[k].is_copied = !i->has_run || atomic_load(&i->of->keeps);
    tfu_request_read(&r[k], c, i->signature);
  }
  i->has_run = 1;
  const int64_t rows = tfu_batch_run(i->model, c, i->signature, r, n, &run_begin, &run_end);
  const uint64_t end = tfu_nanoseconds();
  for (uint32_t k = 0; k < n; k++) {
    tfu_request_free(&r[k], i->signature);
    tfu_triton_drop(TRITONBACKEND_ModelInstanceReportStatistics(of, requests[k], r[k].code == TFU_OK, begin, run_begin,
                                                                run_end, end));
    if (tfu_request_release(&r[k])) atomic_store(&i->of->keeps, 1);
  }
  if (rows)
    tfu_triton_drop(
        TRITONBACKEND_ModelInstanceReportBatchStatistics(of, (uint64_t)rows, begin, run_begin, run_end, end));
  free(r);
  return NULL;
}
