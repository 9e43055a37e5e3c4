/* sample.h - what the launch of sample_logits hands the device. */
#ifndef TFUSE_SAMPLE_H_
#define TFUSE_SAMPLE_H_

#include <stdint.h>

enum { SAMPLE_THREADS = 1024 };

typedef struct sample_args {
  const void *logits;
  const float *temperature, *top_p;
  const int64_t *top_k, *seeds, *steps;
  int64_t *ids;
  int64_t words;
} sample_args;

#endif
