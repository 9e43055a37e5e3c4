/* Strings travel as bytes: for each its length, as 4 bytes, the lowest first, and then its characters. */
#include "serving/triton/request.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "serving/array.h"
#include "serving/engine.h"
#include "serving/triton/memory.h"

tfu_code tfu_triton_code(TRITONSERVER_Error *error, tfu_error *err) {
  if (!error) return TFU_OK;
  (void)!tfu_fail(err, TFU_INTERNAL, "%s", TRITONSERVER_ErrorMessage(error));
  TRITONSERVER_ErrorDelete(error);
  return TFU_INTERNAL;
}

TRITONSERVER_Error *tfu_triton_error(tfu_code code, const tfu_error *err) {
  switch ((int)code) {
    case TFU_OK: return NULL;
    case TFU_CANCELLED: /* servers that never cancel do not know it */
      return TRITONSERVER_ErrorNew(
          TRITONBACKEND_RequestIsCancelled ? TRITONSERVER_ERROR_CANCELLED : TRITONSERVER_ERROR_INTERNAL, err->text);
    case TFU_INVALID: return TRITONSERVER_ErrorNew(TRITONSERVER_ERROR_INVALID_ARG, err->text);
    case 5: return TRITONSERVER_ErrorNew(TRITONSERVER_ERROR_NOT_FOUND, err->text);
    case TFU_EXHAUSTED: return TRITONSERVER_ErrorNew(TRITONSERVER_ERROR_UNAVAILABLE, err->text);
    case TFU_UNIMPLEMENTED: return TRITONSERVER_ErrorNew(TRITONSERVER_ERROR_UNSUPPORTED, err->text);
    default: return TRITONSERVER_ErrorNew(TRITONSERVER_ERROR_INTERNAL, err->text);
  }
}

void tfu_triton_drop(TRITONSERVER_Error *error) {
  if (error) TRITONSERVER_ErrorDelete(error);
}

/* ---- in ---- */

/* Where an input's bytes are: in one piece of host memory, which is the request's, or nowhere (NULL). */
static tfu_code one_piece(TRITONBACKEND_Input *input, uint64_t bytes, uint32_t pieces, void **data, tfu_error *err) {
  TRITONSERVER_MemoryType type = TRITONSERVER_MEMORY_CPU;
  int64_t id = 0;
  const void *piece;
  uint64_t n;
  *data = NULL;
  if (pieces != 1) return TFU_OK;
  TFU_TRY(tfu_triton_code(TRITONBACKEND_InputBuffer(input, 0, &piece, &n, &type, &id), err));
  if (n == bytes && type != TRITONSERVER_MEMORY_GPU) *data = (void *)piece;
  return TFU_OK;
}

/* Copies an input's pieces, one after the other. */
static tfu_code gather(TRITONBACKEND_Input *input, uint64_t bytes, uint32_t pieces, char *to, tfu_error *err) {
  uint64_t done = 0;
  for (uint32_t i = 0; i < pieces; i++) {
    const void *piece;
    uint64_t n;
    TRITONSERVER_MemoryType type = TRITONSERVER_MEMORY_CPU;
    int64_t id = 0;
    TFU_TRY(tfu_triton_code(TRITONBACKEND_InputBuffer(input, i, &piece, &n, &type, &id), err));
    TFU_REQUIRE(err, n <= bytes - done, "its parts have more bytes than it has");
    TFU_TRY(tfu_memory_copy(to + done, piece, n, type, id, err));
    done += n;
  }
  TFU_REQUIRE(err, done == bytes, "its parts have %llu bytes, and it has %llu", (unsigned long long)done,
              (unsigned long long)bytes);
  return TFU_OK;
}

static tfu_code texts_of(const char *data, size_t bytes, size_t elements, tfu_text **texts, tfu_error *err) {
  tfu_text *text = *texts = malloc(elements * sizeof *text + 1);
  if (!text) return tfu_fail(err, TFU_EXHAUSTED, "out of host memory");
  for (size_t i = 0; i < elements; i++) {
    uint8_t n[4];
    TFU_REQUIRE(err, bytes >= 4, "the bytes end before string %zu of %zu", i, elements);
    memcpy(n, data, 4);
    const size_t length = n[0] | (size_t)n[1] << 8 | (size_t)n[2] << 16 | (size_t)n[3] << 24;
    TFU_REQUIRE(err, length <= bytes - 4, "string %zu has %zu bytes, and %zu are left", i, length, bytes - 4);
    text[i] = (tfu_text){data + 4, length};
    data += 4 + length;
    bytes -= 4 + length;
  }
  TFU_REQUIRE(err, !bytes, "%zu bytes are left after the last string", bytes);
  return TFU_OK;
}

TRITONBACKEND_Input *tfu_request_input(TRITONBACKEND_Request *request, const char *name) {
  TRITONBACKEND_Input *input = NULL;
  TRITONSERVER_Error *error = TRITONBACKEND_RequestInput(request, name, &input);
  tfu_triton_drop(error);
  return error ? NULL : input;
}

/* What an input is said to be: its dtype and shape, and how many bytes of how many pieces it has. */
typedef struct head {
  TRITONBACKEND_Input *input;
  uint64_t given;
  uint32_t pieces;
  size_t elements, bytes;
} head;

/* Checks what is said of an input. No memory is asked for, nor any byte of it read. */
static tfu_code read_head(tfu_request *r, const tfu_config *c, const tfu_port *port, head *h, tfu_array *x,
                          tfu_error *err) {
  TRITONSERVER_DataType type;
  const int64_t *dim;
  uint32_t rank;
  TFU_TRY(
      tfu_triton_code(TRITONBACKEND_InputProperties(h->input, NULL, &type, &dim, &rank, &h->given, &h->pieces), err));
  const char *got = tfu_tf_dtype_name(tfu_triton_dtype_of(type));
  TFU_REQUIRE(err, type == tfu_triton_dtype(port->dtype), "it must be %s, got %s", tfu_tf_dtype_name(port->dtype),
              got ? got : "an unknown dtype");
  TFU_REQUIRE(err, rank <= TFU_MAX_RANK, "its rank must be at most %d, got %u", TFU_MAX_RANK, rank);
  *x = (tfu_array){.dtype = port->dtype, .shape = {.rank = (int)rank}};
  for (uint32_t i = 0; i < rank; i++) x->shape.dim[i] = dim[i];
  if (!port->shape.rank && rank == 1 && dim[0] == 1) x->shape.rank = 0; /* a scalar, as Triton has it */
  TFU_TRY(tfu_array_size(x->dtype, &x->shape, &h->elements, &h->bytes, err));
  if (port->dtype == TFU_TF_STRING)
    TFU_REQUIRE(err, h->elements <= h->given / 4, "%zu strings have at least %zu bytes, got %zu", h->elements,
                h->elements * 4, (size_t)h->given);
  else
    TFU_REQUIRE(err, h->given == h->bytes, "shape %s has %zu bytes, got %llu", tfu_show(&x->shape).text, h->bytes,
                (unsigned long long)h->given);
  TFU_REQUIRE(err, !c->max_batch || rank > 0, "it must have an axis for the batch");
  if (c->max_batch) {
    TFU_REQUIRE(err, r->rows < 0 || r->rows == dim[0], "its batch is %lld, and that of another input %lld",
                (long long)dim[0], (long long)r->rows);
    r->rows = dim[0];
  }
  const int axis = tfu_config_axis(c, port->name);
  if (!axis) return TFU_OK;
  TFU_REQUIRE(err, axis < (int)rank, "it has no axis %d", axis);
  TFU_REQUIRE(err, r->length < 0 || r->length == dim[axis], "its length is %lld, and that of another input %lld",
              (long long)dim[axis], (long long)r->length);
  r->length = dim[axis];
  return TFU_OK;
}

static size_t counted(const head *h, int dtype) {
  return tfu_add_bytes(tfu_array_counted(dtype, h->elements), dtype == TFU_TF_STRING ? h->given - 4 * h->elements : 0);
}

static tfu_code read_data(const head *h, tfu_array *x, void **own, tfu_error *err) {
  void *data;
  TFU_TRY(one_piece(h->input, h->given, h->pieces, &data, err));
  if (x->dtype != TFU_TF_STRING) {
    x->data = data;
    if (data || !h->bytes) return TFU_OK;
    const tfu_shape shape = x->shape;
    TFU_TRY(tfu_array_new(x->dtype, &shape, x, err)); /* which a run takes as it is */
    return gather(h->input, h->given, h->pieces, x->data, err);
  }
  if (!data) {
    data = own[0] = malloc(h->given + 1);
    if (!data) return tfu_fail(err, TFU_EXHAUSTED, "out of host memory");
    TFU_TRY(gather(h->input, h->given, h->pieces, data, err));
  }
  const tfu_code code = texts_of(data, h->given, h->elements, (tfu_text **)&own[1], err);
  x->data = own[1];
  return code;
}

/* All heads first: no input takes memory before all are known to be right, and within the limit. */
static tfu_code read_inputs(tfu_request *r, const tfu_config *c, const tfu_signature *s, head *h, tfu_error *err) {
  tfu_error why;
  size_t all = 0;
  for (int i = 0; i < s->inputs; i++) {
    const char *name = s->input[i].name;
    h[i].input = tfu_request_input(r->of, name);
    TFU_REQUIRE(err, h[i].input, "input %s is missing, and the model needs it", name);
    const tfu_code code = read_head(r, c, &s->input[i], &h[i], &r->in[i], &why);
    if (code != TFU_OK) return tfu_fail(err, code, "input %s: %s", name, why.text);
    all = tfu_add_bytes(all, counted(&h[i], s->input[i].dtype));
  }
  TFU_TRY(tfu_check_limit(all, (size_t)c->max_bytes, err));
  for (int i = 0; i < s->inputs; i++) {
    const tfu_code code = read_data(&h[i], &r->in[i], &r->own[2 * i], &why);
    if (code != TFU_OK) return tfu_fail(err, code, "input %s: %s", s->input[i].name, why.text);
  }
  return TFU_OK;
}

void tfu_request_read(tfu_request *r, const tfu_config *c, const tfu_signature *s) {
  r->rows = -1;
  r->length = -1;
  r->in = calloc((size_t)s->inputs + 1, sizeof *r->in);
  r->own = calloc(2 * (size_t)s->inputs + 1, sizeof *r->own);
  head *h = calloc((size_t)s->inputs + 1, sizeof *h);
  r->code =
      r->in && r->own && h ? read_inputs(r, c, s, h, &r->err) : tfu_fail(&r->err, TFU_EXHAUSTED, "out of host memory");
  free(h);
  if (r->rows < 0) r->rows = 1;
}

/* ---- memory that is lent ---- */

/* Releases a request when we and all tensors of its memory are done with it. */
struct tfu_lease {
  atomic_int users;
  TRITONBACKEND_Request *of;
};

/* Whether others use it still. */
static int leave(struct tfu_lease *l) {
  if (atomic_fetch_sub(&l->users, 1) > 1) return 1;
  tfu_triton_drop(TRITONBACKEND_RequestRelease(l->of, TRITONSERVER_REQUEST_RELEASE_ALL));
  free(l);
  return 0;
}

static void tensor_leaves(void *lease) { (void)leave(lease); }

void tfu_request_lend(tfu_request *r, const tfu_signature *s) {
  struct tfu_lease *l = r->lease = malloc(sizeof *l);
  if (!l) return; /* it is copied */
  l->of = r->of;
  atomic_init(&l->users, 1);
  for (int i = 0; i < s->inputs; i++) {
    atomic_fetch_add(&l->users, 1);
    if (!tfu_array_lend(&r->in[i], tensor_leaves, l)) atomic_fetch_sub(&l->users, 1);
  }
}

int tfu_request_release(tfu_request *r) {
  if (r->lease) return leave(r->lease);
  tfu_triton_drop(TRITONBACKEND_RequestRelease(r->of, TRITONSERVER_REQUEST_RELEASE_ALL));
  return 0;
}

void tfu_request_free(tfu_request *r, const tfu_signature *s) {
  for (int i = 0; r->own && i < 2 * s->inputs; i++) free(r->own[i]);
  for (int i = 0; r->in && i < s->inputs; i++) tfu_array_free(&r->in[i]);
  free(r->own);
  free(r->in);
  r->own = NULL;
  r->in = NULL;
}

/* ---- out ---- */

/* Rows of a result, of which those along the ragged axis may be fewer than it has. */
typedef struct part {
  tfu_shape shape;
  const char *begin;
  size_t blocks, block, stride; /* so many, of so many bytes, so far apart */
} part;

/* Of what the model gives: that it is not as wanted is no fault of the request. */
#define EXPECT(err, condition, ...)                                      \
  do {                                                                   \
    if (!(condition)) return tfu_fail((err), TFU_INTERNAL, __VA_ARGS__); \
  } while (0)

static tfu_code part_of(const tfu_request *r, const tfu_config *c, const tfu_port *port, const tfu_array *out,
                        int64_t row, int64_t all_rows, part *p, tfu_error *err) {
  const int axis = tfu_config_axis(c, port->name);
  const size_t size = tfu_tf_dtype_size(out->dtype);
  *p = (part){.shape = out->shape, .begin = out->data};
  EXPECT(err, !axis || axis < out->shape.rank, "the model gives shape %s, which has no axis %d",
         tfu_show(&out->shape).text, axis);
  int64_t each = 1, kept = 1; /* elements of a block, in the result and of those in the response */
  for (int i = axis; i < out->shape.rank; i++) each *= out->shape.dim[i];
  kept = each;
  if (c->max_batch) {
    EXPECT(err, out->shape.rank > 0 && out->shape.dim[0] == all_rows,
           "the model gives shape %s for a batch of %lld: its first size must be that of the batch, or "
           "max_batch_size 0",
           tfu_show(&out->shape).text, (long long)all_rows);
    p->shape.dim[0] = r->rows;
    int64_t of_row = 1;
    for (int i = 1; i < out->shape.rank; i++) of_row *= out->shape.dim[i];
    p->begin += (size_t)(row * of_row) * size;
    if (!axis) each = kept = each / (all_rows ? all_rows : 1) * r->rows;
  }
  if (axis && r->length >= 0) {
    EXPECT(err, r->length <= out->shape.dim[axis], "the model gives shape %s for a length of %lld along axis %d",
           tfu_show(&out->shape).text, (long long)r->length, axis);
    kept = out->shape.dim[axis] ? each / out->shape.dim[axis] * r->length : 0;
    p->shape.dim[axis] = r->length;
  }
  p->blocks = 1;
  for (int i = 0; i < axis; i++) p->blocks *= (size_t)p->shape.dim[i];
  p->block = (size_t)kept * size;
  p->stride = (size_t)each * size;
  return TFU_OK;
}

static size_t bytes_of(const part *p, int dtype) {
  if (dtype != TFU_TF_STRING) return p->blocks * p->block;
  size_t bytes = 0;
  for (size_t i = 0; i < p->blocks; i++) {
    const tfu_text *text = (const tfu_text *)(p->begin + i * p->stride);
    for (size_t k = 0; k < p->block / sizeof *text; k++) bytes += 4 + text[k].bytes;
  }
  return bytes;
}

static void write_part(const part *p, int dtype, char *to) {
  for (size_t i = 0; i < p->blocks; i++) {
    const char *from = p->begin + i * p->stride;
    if (dtype != TFU_TF_STRING) {
      memcpy(to, from, p->block);
      to += p->block;
      continue;
    }
    const tfu_text *text = (const tfu_text *)from;
    for (size_t k = 0; k < p->block / sizeof *text; k++) {
      const size_t n = text[k].bytes;
      const uint8_t head[4] = {(uint8_t)n, (uint8_t)(n >> 8), (uint8_t)(n >> 16), (uint8_t)(n >> 24)};
      memcpy(to, head, 4);
      if (n) memcpy(to + 4, text[k].data, n);
      to += 4 + n;
    }
  }
}

static tfu_code write_output(TRITONBACKEND_Response *response, const tfu_port *port, const part *p, tfu_error *err) {
  TRITONBACKEND_Output *output;
  TRITONSERVER_MemoryType type = TRITONSERVER_MEMORY_CPU;
  int64_t id = 0;
  void *memory = NULL;
  const size_t bytes = bytes_of(p, port->dtype);
  const int64_t one = 1; /* a scalar, as Triton has it */
  TFU_TRY(tfu_triton_code(
      TRITONBACKEND_ResponseOutput(response, &output, port->name, tfu_triton_dtype(port->dtype),
                                   p->shape.rank ? p->shape.dim : &one, p->shape.rank ? (uint32_t)p->shape.rank : 1),
      err));
  TFU_TRY(tfu_triton_code(TRITONBACKEND_OutputBuffer(output, &memory, bytes, &type, &id), err));
  if (!bytes) return TFU_OK;
  if (type != TRITONSERVER_MEMORY_GPU) return write_part(p, port->dtype, memory), TFU_OK;
  char *own = malloc(bytes);
  if (!own) return tfu_fail(err, TFU_EXHAUSTED, "out of host memory");
  write_part(p, port->dtype, own);
  const tfu_code code = tfu_memory_copy(memory, own, bytes, type, id, err);
  free(own);
  return code;
}

static tfu_code write_outputs(tfu_request *r, TRITONBACKEND_Response *response, const tfu_config *c,
                              const tfu_signature *s, const tfu_array *out, int64_t row, int64_t all_rows,
                              tfu_error *err) {
  uint32_t n;
  TFU_TRY(tfu_triton_code(TRITONBACKEND_RequestOutputCount(r->of, &n), err));
  for (uint32_t i = 0; i < n; i++) {
    const char *name;
    int k = 0;
    part p;
    TFU_TRY(tfu_triton_code(TRITONBACKEND_RequestOutputName(r->of, i, &name), err));
    while (k < s->outputs && strcmp(s->output[k].name, name)) k++;
    TFU_REQUIRE(err, k < s->outputs, "the model has no output %s", name);
    const char *got = tfu_tf_dtype_name(out[k].dtype);
    EXPECT(err, out[k].dtype == s->output[k].dtype, "the model gives %s for output %s, which must be %s",
           got ? got : "an unknown dtype", name, tfu_tf_dtype_name(s->output[k].dtype));
    TFU_TRY(part_of(r, c, &s->output[k], &out[k], row, all_rows, &p, err));
    TFU_TRY(write_output(response, &s->output[k], &p, err));
  }
  return TFU_OK;
}

void tfu_request_answer(tfu_request *r, const tfu_config *c, const tfu_signature *s, const tfu_array *out, int64_t row,
                        int64_t all_rows, uint32_t flags) {
  TRITONBACKEND_Response *response;
  tfu_error why;
  TRITONSERVER_Error *error = TRITONBACKEND_ResponseNew(&response, r->of);
  if (error) { /* then there is nothing to answer with */
    r->code = tfu_triton_code(error, &r->err);
    return;
  }
  if (r->code == TFU_OK) {
    r->code = write_outputs(r, response, c, s, out, row, all_rows, &why);
    if (r->code != TFU_OK) r->err = why;
  }
  TRITONSERVER_Error *mine = tfu_triton_error(r->code, &r->err);
  error = TRITONBACKEND_ResponseSend(response, flags, mine); /* which copies it */
  if (mine) TRITONSERVER_ErrorDelete(mine);
  tfu_triton_drop(error); /* who asked is gone */
}
