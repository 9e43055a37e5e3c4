/* request.h - a request as arrays, and arrays as its response. */
#ifndef TFUSE_TRITON_REQUEST_H_
#define TFUSE_TRITON_REQUEST_H_

#include "serving/triton/config.h"

typedef struct tfu_request {
  TRITONBACKEND_Request *of;
  tfu_array
      *in;    /* of the signature's inputs; of memory that is the request's, where it is the host's and in one piece */
  void **own; /* of each input that is of strings, two pieces of memory to free, or NULL */
  int64_t rows;            /* of the batch; 1 where there are no batches */
  int64_t length;          /* along the ragged axes; -1: it has none */
  int is_copied;           /* whether a run may not take its inputs where they lie */
  struct tfu_lease *lease; /* where its memory is lent to tensors */
  tfu_code code;
  tfu_error err;
} tfu_request;

/* An input by its name; NULL where the request does not have it. */
TRITONBACKEND_Input *tfu_request_input(TRITONBACKEND_Request *request, const char *name);

/* Reads it, with all inputs of the signature; what fails is in r->code and r->err. */
void tfu_request_read(tfu_request *r, const tfu_config *c, const tfu_signature *s);
void tfu_request_free(tfu_request *r, const tfu_signature *s);
/* Has a run take its inputs where they lie, as far as they are aligned. */
void tfu_request_lend(tfu_request *r, const tfu_signature *s);
/* Gives it back to the server, at once or when no tensor has its memory any more; returns whether one has it still,
 * once ours are freed: then the model keeps it. */
int tfu_request_release(tfu_request *r);

/* Sends the rows from `row` on of the results, or the error where r->code is one. Flags are Triton's: whether this is
 * the last answer. */
void tfu_request_answer(tfu_request *r, const tfu_config *c, const tfu_signature *s, const tfu_array *out, int64_t row,
                        int64_t all_rows, uint32_t flags);

/* An error of Triton as ours; it is deleted. NULL is none. */
TFU_MUST_USE tfu_code tfu_triton_code(TRITONSERVER_Error *error, tfu_error *err);
/* And the reverse; NULL for TFU_OK. */
TRITONSERVER_Error *tfu_triton_error(tfu_code code, const tfu_error *err);
/* Deletes one that nothing can be done about: statistics that the server does not take, or a request that it does not
 * take back. */
void tfu_triton_drop(TRITONSERVER_Error *error);

#endif
