/* attention_edges.h - what the launch hands the device; see attention_edges.cu. */
#ifndef TFUSE_ATTENTION_EDGES_H_
#define TFUSE_ATTENTION_EDGES_H_

#include "kernels/attention/attention.h"

typedef struct attention_edges {
  attention_args a;
  int32_t *queries, *keys; /* lengths to write, [batch]; or NULL          */
  float *stats;            /* to write, like a.stats; or NULL             */
  uint16_t lowest;         /* the bits of -infinity in the tensors' type  */
} attention_edges;

#endif
