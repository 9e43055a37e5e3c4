#include "serving/model.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "serving/array.h"
#include "serving/session_config.h"
#include "serving/signatures.h"

struct tfu_model {
  const tfu_tensorflow *tf;
  tfu_signatures signatures;
  TF_Output **at; /* of each signature: where its inputs and then its outputs are in the graph */
  TF_Graph *graph;
  TF_Session *session;
  size_t most_bytes;
};

void tfu_model_close(tfu_model *m) {
  if (!m) return;
  if (m->session) {
    TF_Status *status = m->tf->TF_NewStatus(); /* what fails here, nobody can mend */
    m->tf->TF_CloseSession(m->session, status);
    m->tf->TF_DeleteSession(m->session, status);
    m->tf->TF_DeleteStatus(status);
  }
  if (m->graph) m->tf->TF_DeleteGraph(m->graph);
  for (int i = 0; m->at && i < m->signatures.n; i++) free(m->at[i]);
  free(m->at);
  tfu_signatures_free(&m->signatures);
  free(m);
}

/* ---- open ---- */

static tfu_code load(tfu_model *m, const char *folder, const tfu_model_options *o, const char *tags, tfu_error *err) {
  enum { MOST_TAGS = 8 };
  char *words = strdup(tags), *state;
  const char *each[MOST_TAGS];
  int n = 0;
  if (!words) return tfu_fail(err, TFU_EXHAUSTED, "out of host memory");
  for (char *word = strtok_r(words, ",", &state); word && n < MOST_TAGS; word = strtok_r(NULL, ",", &state))
    each[n++] = word;
  TF_Status *status = m->tf->TF_NewStatus();
  TF_SessionOptions *options = m->tf->TF_NewSessionOptions();
  const tfu_bytes config = tfu_session_config(o);
  m->tf->TF_SetConfig(options, config.at, config.n, status);
  m->graph = m->tf->TF_NewGraph();
  if (m->tf->TF_GetCode(status) == TFU_OK)
    m->session = m->tf->TF_LoadSessionFromSavedModel(options, NULL, folder, each, n, m->graph, NULL, status);
  m->tf->TF_DeleteSessionOptions(options);
  free(words);
  const tfu_code code = tfu_tensorflow_code(m->tf, status, folder, err);
  if (code != TFU_OK && strstr(err->text, "not registered 'Tfuse>"))
    return tfu_fail(err, code, "%s needs tfuse's ops: TFUSE_LIBRARY should name libtfuse.so", folder);
  return code;
}

/* Without a GPU TensorFlow would run everything on the CPU, whoever asked for one. */
static tfu_code check_device(tfu_model *m, const char *device, tfu_error *err) {
  int gpus = 0;
  if (!device || strncmp(device, "GPU", 3)) return TFU_OK;
  TF_Status *status = m->tf->TF_NewStatus(), *ignored = m->tf->TF_NewStatus();
  TF_DeviceList *list = m->tf->TF_SessionListDevices(m->session, status);
  for (int i = 0; list && i < m->tf->TF_DeviceListCount(list); i++) {
    const char *type = m->tf->TF_DeviceListType(list, i, ignored);
    gpus += type && !strcmp(type, "GPU");
  }
  if (list) m->tf->TF_DeleteDeviceList(list);
  m->tf->TF_DeleteStatus(ignored);
  TFU_TRY(tfu_tensorflow_code(m->tf, status, device, err));
  if (gpus) return TFU_OK;
  return tfu_fail(err, TFU_PRECONDITION,
                  "%s was asked for, and TensorFlow %s sees none: serve it on the CPU, or see what "
                  "python -m tfuse doctor says",
                  device, m->tf->TF_Version());
}

/* "name:2" is output 2 of an operation; without a number it is 0. */
static tfu_code locate(tfu_model *m, const tfu_port *port, TF_Output *at, tfu_error *err) {
  char name[1024];
  const char *colon = strrchr(port->tensor, ':');
  const size_t length = colon ? (size_t)(colon - port->tensor) : strlen(port->tensor);
  char *end = "";
  const long index = colon ? strtol(colon + 1, &end, 10) : 0;
  const int wanted = snprintf(name, sizeof name, "%.*s", (int)length, port->tensor);
  at->oper = wanted < (int)sizeof name && !*end ? m->tf->TF_GraphOperationByName(m->graph, name) : NULL;
  at->index = (int)index;
  TFU_REQUIRE(err, at->oper && index >= 0 && index < m->tf->TF_OperationNumOutputs(at->oper),
              "the model's graph has no tensor %s, which its signature names", port->tensor);
  return TFU_OK;
}

static tfu_code locate_all(tfu_model *m, tfu_error *err) {
  m->at = calloc((size_t)m->signatures.n, sizeof *m->at);
  if (!m->at) return tfu_fail(err, TFU_EXHAUSTED, "out of host memory");
  for (int i = 0; i < m->signatures.n; i++) {
    const tfu_signature *s = &m->signatures.at[i];
    TF_Output *at = m->at[i] = calloc((size_t)(s->inputs + s->outputs), sizeof *at);
    if (!at) return tfu_fail(err, TFU_EXHAUSTED, "out of host memory");
    for (int k = 0; k < s->inputs; k++) TFU_TRY(locate(m, &s->input[k], at++, err));
    for (int k = 0; k < s->outputs; k++) TFU_TRY(locate(m, &s->output[k], at++, err));
  }
  return TFU_OK;
}

static tfu_code fill(tfu_model *m, const char *folder, const tfu_model_options *o, tfu_error *err) {
  const char *tags = o->tags ? o->tags : "serve";
  m->most_bytes = o->most_bytes;
  TFU_TRY(tfu_signatures_read(folder, tags, &m->signatures, err));
  TFU_TRY(tfu_tensorflow_get(o->tensorflow, &m->tf, err));
  TFU_TRY(tfu_load_ops(m->tf, o->library, o->libraries, err));
  TFU_TRY(load(m, folder, o, tags, err));
  TFU_TRY(check_device(m, o->device, err));
  return locate_all(m, err);
}

tfu_code tfu_model_open(const char *folder, const tfu_model_options *options, tfu_model **model, tfu_error *err) {
  const tfu_model_options none = {0};
  tfu_model *m = *model = calloc(1, sizeof *m);
  if (!m) return tfu_fail(err, TFU_EXHAUSTED, "out of host memory");
  const tfu_code code = fill(m, folder, options ? options : &none, err);
  if (code != TFU_OK) {
    tfu_model_close(m);
    *model = NULL;
  }
  return code;
}

int tfu_model_signatures(const tfu_model *m) { return m->signatures.n; }

const tfu_signature *tfu_model_signature_at(const tfu_model *m, int i) {
  return i >= 0 && i < m->signatures.n ? &m->signatures.at[i] : NULL;
}

const tfu_signature *tfu_model_signature(const tfu_model *m, const char *name) {
  return tfu_signatures_find(&m->signatures, name);
}

/* ---- run ---- */

static tfu_code check(const tfu_model *m, const tfu_signature *s, const tfu_array *in, tfu_error *err) {
  size_t elements, bytes, all = 0;
  for (int i = 0; i < s->inputs; i++) {
    const tfu_port *port = &s->input[i];
    const char *wanted = tfu_tf_dtype_name(port->dtype), *got = tfu_tf_dtype_name(in[i].dtype);
    TFU_REQUIRE(err, in[i].dtype == port->dtype, "input %s must be %s, got %s", port->name, wanted,
                got ? got : "an unknown dtype");
    TFU_TRY(tfu_array_size(in[i].dtype, &in[i].shape, &elements, &bytes, err));
    int same = port->shape.rank == TFU_UNKNOWN || port->shape.rank == in[i].shape.rank;
    for (int k = 0; same && k < port->shape.rank; k++)
      same = port->shape.dim[k] == TFU_UNKNOWN || port->shape.dim[k] == in[i].shape.dim[k];
    TFU_REQUIRE(err, same, "input %s must have shape %s, got %s", port->name, tfu_show(&port->shape).text,
                tfu_show(&in[i].shape).text);
    const tfu_text *texts = port->dtype == TFU_TF_STRING ? in[i].data : NULL;
    all = tfu_add_bytes(all, tfu_array_counted(port->dtype, elements));
    for (size_t k = 0; texts && k < elements; k++) all = tfu_add_bytes(all, texts[k].bytes);
  }
  return tfu_check_limit(all, m->most_bytes, err);
}

static tfu_code run(tfu_model *m, const tfu_signature *s, const tfu_array *in, tfu_array *out, TF_Tensor **tensor,
                    int *owned, tfu_error *err) {
  const TF_Output *at = m->at[s - m->signatures.at];
  TF_Tensor **result = tensor + s->inputs;
  char what[200];
  for (int i = 0; i < s->inputs; i++) {
    const tfu_code code = tfu_array_to_tensor(m->tf, &in[i], &tensor[i], &owned[i], err);
    if (code != TFU_OK) return code;
  }
  TF_Status *status = m->tf->TF_NewStatus();
  m->tf->TF_SessionRun(m->session, NULL, at, tensor, s->inputs, at + s->inputs, result, s->outputs, NULL, 0, NULL,
                       status);
  snprintf(what, sizeof what, "signature %s", s->name);
  TFU_TRY(tfu_tensorflow_code(m->tf, status, what, err));
  for (int i = 0; i < s->outputs; i++) {
    TF_Tensor *mine = result[i];
    result[i] = NULL; /* the array's, or deleted */
    TFU_TRY(tfu_array_of_tensor(m->tf, mine, &out[i], err));
  }
  return TFU_OK;
}

tfu_code tfu_model_run(tfu_model *m, const tfu_signature *s, const tfu_array *in, tfu_array *out, tfu_error *err) {
  memset(out, 0, sizeof *out * (size_t)s->outputs);
  TFU_TRY(check(m, s, in, err));
  const size_t tensors = (size_t)(s->inputs + s->outputs);
  TF_Tensor **tensor = calloc(tensors, sizeof *tensor);
  int *owned = calloc(tensors, sizeof *owned);
  tfu_code code =
      tensor && owned ? run(m, s, in, out, tensor, owned, err) : tfu_fail(err, TFU_EXHAUSTED, "out of host memory");
  for (int i = 0; tensor && owned && i < (int)tensors; i++)
    if (tensor[i] && (i >= s->inputs || owned[i])) m->tf->TF_DeleteTensor(tensor[i]);
  for (int i = 0; code != TFU_OK && i < s->outputs; i++) tfu_array_free(&out[i]);
  free(tensor);
  free(owned);
  return code;
}
