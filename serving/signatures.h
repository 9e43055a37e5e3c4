/* signatures.h - what a SavedModel says of itself, read from its saved_model.pb without TensorFlow. */
#ifndef TFUSE_SIGNATURES_H_
#define TFUSE_SIGNATURES_H_

#include "serving/model.h"

typedef struct tfu_signatures {
  tfu_signature *at;
  int n;
} tfu_signatures;

/* The signatures of the graph that has exactly these tags (commas between them), in the order of their names. Such as
 * have an input or output that is no plain tensor of rank 8 or less are left out. */
TFU_MUST_USE tfu_code tfu_signatures_read(const char *folder, const char *tags, tfu_signatures *found, tfu_error *err);
/* The same of the bytes of a saved_model.pb. */
TFU_MUST_USE tfu_code tfu_signatures_parse(const void *bytes, size_t n, const char *tags, tfu_signatures *found,
                                           tfu_error *err);
void tfu_signatures_free(tfu_signatures *found);
const tfu_signature *tfu_signatures_find(const tfu_signatures *in, const char *name); /* as tfu_model_signature */

#endif
