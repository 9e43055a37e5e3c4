/* triton_stand_in.h - a Triton for tests of the backend: what the backend calls, and requests whose answers can be
 * read. It counts what lives, too. */
#ifndef TFUSE_TRITON_STAND_IN_H_
#define TFUSE_TRITON_STAND_IN_H_

#include "serving/triton/triton_api.h"
#include "tests/serving/tensorflow_stand_in.h"

enum { MOST = 8 };

struct TRITONSERVER_Error {
  TRITONSERVER_Error_Code code;
  char text[2000];
};
struct TRITONSERVER_Message {
  char *text;
};
struct TRITONBACKEND_Backend {
  const char *config;
};
struct TRITONBACKEND_Model {
  TRITONBACKEND_Backend *backend;
  const char *folder, *config;
  uint64_t version;
  bool completes;
  char *completed; /* what the backend made of the configuration, or NULL */
  void *state;
};
struct TRITONBACKEND_ModelInstance {
  TRITONBACKEND_Model *model;
  TRITONSERVER_InstanceGroupKind kind;
  void *state;
  int succeeded, failed; /* requests reported */
  uint64_t batches, rows;
};
struct TRITONBACKEND_Input {
  const char *name;
  TRITONSERVER_DataType type;
  int64_t dim[16];
  uint32_t rank;
  const char *data;
  uint64_t bytes, cut; /* in two pieces, where cut is not 0 */
  TRITONSERVER_MemoryType memory;
};
struct TRITONBACKEND_Output {
  char name[64];
  TRITONSERVER_DataType type;
  int64_t dim[16];
  uint32_t rank;
  char *data;
  uint64_t bytes;
};
struct TRITONBACKEND_Request {
  TRITONBACKEND_Input in[MOST];
  int inputs, is_stream; /* is_stream: it may have more than one answer */
  bool is_gone;
  const char *wanted[MOST];
  /* The answer. */
  TRITONBACKEND_Output out[MOST];
  int outputs, answered, released; /* answered: to the end */
  TRITONSERVER_Error_Code code;
  char error[2000];
};
struct TRITONBACKEND_Response {
  TRITONBACKEND_Request *request;
};

TRITONSERVER_Error *TRITONSERVER_ErrorNew(TRITONSERVER_Error_Code code, const char *text) {
  TRITONSERVER_Error *e = alive(sizeof *e);
  e->code = code;
  snprintf(e->text, sizeof e->text, "%s", text);
  return e;
}
void TRITONSERVER_ErrorDelete(TRITONSERVER_Error *e) { dead(e); }
const char *TRITONSERVER_ErrorMessage(TRITONSERVER_Error *e) { return e->text; }

TRITONSERVER_Error *TRITONSERVER_MessageNewFromSerializedJson(TRITONSERVER_Message **m, const char *text, size_t n) {
  *m = alive(sizeof **m);
  (*m)->text = strndup(text, n);
  return NULL;
}
TRITONSERVER_Error *TRITONSERVER_MessageSerializeToJson(TRITONSERVER_Message *m, const char **text, size_t *n) {
  *text = m->text;
  *n = strlen(m->text);
  return NULL;
}
TRITONSERVER_Error *TRITONSERVER_MessageDelete(TRITONSERVER_Message *m) {
  free(m->text);
  dead(m);
  return NULL;
}

static uint32_t api_major = 1;
TRITONSERVER_Error *TRITONBACKEND_ApiVersion(uint32_t *major, uint32_t *minor) {
  *major = api_major;
  *minor = 10;
  return NULL;
}
TRITONSERVER_Error *TRITONBACKEND_BackendConfig(TRITONBACKEND_Backend *b, TRITONSERVER_Message **m) {
  static TRITONSERVER_Message config; /* the server's own */
  config.text = (char *)b->config;
  *m = &config;
  return NULL;
}
TRITONSERVER_Error *TRITONBACKEND_ModelBackend(TRITONBACKEND_Model *m, TRITONBACKEND_Backend **b) {
  *b = m->backend;
  return NULL;
}
TRITONSERVER_Error *TRITONBACKEND_ModelConfig(TRITONBACKEND_Model *m, uint32_t version, TRITONSERVER_Message **config) {
  CHECK(version == 1);
  return TRITONSERVER_MessageNewFromSerializedJson(config, m->config, strlen(m->config));
}
TRITONSERVER_Error *TRITONBACKEND_ModelAutoCompleteConfig(TRITONBACKEND_Model *m, bool *completes) {
  *completes = m->completes;
  return NULL;
}
TRITONSERVER_Error *TRITONBACKEND_ModelSetConfig(TRITONBACKEND_Model *m, uint32_t version,
                                                 TRITONSERVER_Message *config) {
  CHECK(version == 1);
  m->completed = strdup(config->text);
  return NULL;
}
TRITONSERVER_Error *TRITONBACKEND_ModelRepository(TRITONBACKEND_Model *m, TRITONBACKEND_ArtifactType *type,
                                                  const char **folder) {
  *type = TRITONBACKEND_ARTIFACT_FILESYSTEM;
  *folder = m->folder;
  return NULL;
}
TRITONSERVER_Error *TRITONBACKEND_ModelVersion(TRITONBACKEND_Model *m, uint64_t *version) {
  *version = m->version;
  return NULL;
}
TRITONSERVER_Error *TRITONBACKEND_ModelState(TRITONBACKEND_Model *m, void **state) {
  *state = m->state;
  return NULL;
}
TRITONSERVER_Error *TRITONBACKEND_ModelSetState(TRITONBACKEND_Model *m, void *state) {
  m->state = state;
  return NULL;
}
TRITONSERVER_Error *TRITONBACKEND_ModelInstanceKind(TRITONBACKEND_ModelInstance *i,
                                                    TRITONSERVER_InstanceGroupKind *kind) {
  *kind = i->kind;
  return NULL;
}
TRITONSERVER_Error *TRITONBACKEND_ModelInstanceDeviceId(TRITONBACKEND_ModelInstance *i, int32_t *id) {
  (void)i;
  *id = 0;
  return NULL;
}
TRITONSERVER_Error *TRITONBACKEND_ModelInstanceModel(TRITONBACKEND_ModelInstance *i, TRITONBACKEND_Model **m) {
  *m = i->model;
  return NULL;
}
TRITONSERVER_Error *TRITONBACKEND_ModelInstanceState(TRITONBACKEND_ModelInstance *i, void **state) {
  *state = i->state;
  return NULL;
}
TRITONSERVER_Error *TRITONBACKEND_ModelInstanceSetState(TRITONBACKEND_ModelInstance *i, void *state) {
  i->state = state;
  return NULL;
}
TRITONSERVER_Error *TRITONBACKEND_ModelInstanceReportStatistics(TRITONBACKEND_ModelInstance *i,
                                                                TRITONBACKEND_Request *r, bool success, uint64_t a,
                                                                uint64_t b, uint64_t c, uint64_t d) {
  CHECK(a <= b && b <= c && c <= d && !r->released && success == !r->code);
  *(success ? &i->succeeded : &i->failed) += 1;
  return NULL;
}
TRITONSERVER_Error *TRITONBACKEND_ModelInstanceReportBatchStatistics(TRITONBACKEND_ModelInstance *i, uint64_t rows,
                                                                     uint64_t a, uint64_t b, uint64_t c, uint64_t d) {
  CHECK(a <= b && b <= c && c <= d);
  i->batches++;
  i->rows += rows;
  return NULL;
}

TRITONSERVER_Error *TRITONBACKEND_RequestInput(TRITONBACKEND_Request *r, const char *name,
                                               TRITONBACKEND_Input **input) {
  for (int i = 0; i < r->inputs; i++)
    if (!strcmp(r->in[i].name, name)) return *input = &r->in[i], NULL;
  return TRITONSERVER_ErrorNew(TRITONSERVER_ERROR_INVALID_ARG, "unknown request input name");
}
TRITONSERVER_Error *TRITONBACKEND_RequestOutputCount(TRITONBACKEND_Request *r, uint32_t *n) {
  for (*n = 0; *n < MOST && r->wanted[*n];) ++*n;
  return NULL;
}
TRITONSERVER_Error *TRITONBACKEND_RequestOutputName(TRITONBACKEND_Request *r, uint32_t i, const char **name) {
  *name = r->wanted[i];
  return NULL;
}
TRITONSERVER_Error *TRITONBACKEND_RequestRelease(TRITONBACKEND_Request *r, uint32_t flags) {
  CHECK(flags == TRITONSERVER_REQUEST_RELEASE_ALL && r->answered == 1);
  r->released++;
  return NULL;
}
TRITONSERVER_Error *TRITONBACKEND_RequestIsCancelled(TRITONBACKEND_Request *r, bool *is_cancelled) {
  *is_cancelled = r->is_gone;
  return NULL;
}
TRITONSERVER_Error *TRITONBACKEND_InputProperties(TRITONBACKEND_Input *x, const char **name,
                                                  TRITONSERVER_DataType *type, const int64_t **dim, uint32_t *rank,
                                                  uint64_t *bytes, uint32_t *pieces) {
  if (name) *name = x->name;
  *type = x->type;
  *dim = x->dim;
  *rank = x->rank;
  *bytes = x->bytes;
  *pieces = x->cut ? 2 : 1;
  return NULL;
}
static int looked; /* how often bytes of an input were asked for */
TRITONSERVER_Error *TRITONBACKEND_InputBuffer(TRITONBACKEND_Input *x, uint32_t i, const void **data, uint64_t *bytes,
                                              TRITONSERVER_MemoryType *memory, int64_t *id) {
  CHECK(*memory == TRITONSERVER_MEMORY_CPU);
  looked++;
  *data = x->data + (i ? x->cut : 0);
  *bytes = !x->cut ? x->bytes : i ? x->bytes - x->cut : x->cut;
  *memory = x->memory;
  *id = 0;
  return NULL;
}
TRITONSERVER_Error *TRITONBACKEND_ResponseNew(TRITONBACKEND_Response **response, TRITONBACKEND_Request *r) {
  *response = alive(sizeof **response);
  (*response)->request = r;
  return NULL;
}
TRITONSERVER_Error *TRITONBACKEND_ResponseOutput(TRITONBACKEND_Response *response, TRITONBACKEND_Output **output,
                                                 const char *name, TRITONSERVER_DataType type, const int64_t *dim,
                                                 uint32_t rank) {
  TRITONBACKEND_Output *y = *output = &response->request->out[response->request->outputs++];
  snprintf(y->name, sizeof y->name, "%s", name);
  y->type = type;
  y->rank = rank;
  for (uint32_t i = 0; i < rank; i++) y->dim[i] = dim[i];
  return NULL;
}
TRITONSERVER_Error *TRITONBACKEND_OutputBuffer(TRITONBACKEND_Output *y, void **data, uint64_t bytes,
                                               TRITONSERVER_MemoryType *memory, int64_t *id) {
  *data = y->data = malloc(bytes ? bytes : 1);
  y->bytes = bytes;
  *memory = TRITONSERVER_MEMORY_CPU;
  *id = 0;
  return NULL;
}
TRITONSERVER_Error *TRITONBACKEND_ResponseSend(TRITONBACKEND_Response *response, uint32_t flags,
                                               TRITONSERVER_Error *e) {
  TRITONBACKEND_Request *r = response->request;
  CHECK(flags == TRITONSERVER_RESPONSE_COMPLETE_FINAL || (r->is_stream && !flags && !r->answered));
  r->answered += flags == TRITONSERVER_RESPONSE_COMPLETE_FINAL;
  if (e) r->code = e->code, snprintf(r->error, sizeof r->error, "%s", e->text);
  dead(response);
  return NULL;
}

/* ---- requests ---- */

static inline void add_input(TRITONBACKEND_Request *r, const char *name, TRITONSERVER_DataType type, tfu_shape shape,
                             const void *data, size_t bytes) {
  TRITONBACKEND_Input *x = &r->in[r->inputs++];
  *x = (TRITONBACKEND_Input){.name = name, .type = type, .rank = (uint32_t)shape.rank, .data = data, .bytes = bytes};
  memcpy(x->dim, shape.dim, sizeof shape.dim);
}

static inline void clear(TRITONBACKEND_Request *r) {
  for (int i = 0; i < MOST; i++) free(r->out[i].data);
  *r = (TRITONBACKEND_Request){.inputs = 0};
}

#endif
