/* conv_sample.h - some results of a convolution, or of one of its gradients, as sums in double: what an engine of cuDNN
 * loses in float32 is seen by comparing its results with them. */
#ifndef TFUSE_CONV_SAMPLE_H_
#define TFUSE_CONV_SAMPLE_H_

#include "kernels/convolution/conv_own.h"

enum { CONV_SAMPLE_MOST = 64, CONV_SAMPLE_LEAST = 8 /* results */, CONV_SAMPLE_BLOCKS = 1024 };

/* Of float32. The terms of every result are cut into parts, one for a block. */
typedef struct conv_sample_args {
  conv_args a;
  const float *result;
  double *sums, *got;     /* [samples][parts][2], of terms and of their magnitudes; [samples], what `result` has */
  int64_t results, terms; /* of the whole tensor; of one result */
  int32_t pass, samples, parts;
  int32_t transposed; /* the result is a kernel as cuDNN writes it, [outputs, spatial axes, channels] */
} conv_sample_args;

/* Which result the sample's number i is: they are spread evenly, from the first to the last. */
static inline int64_t conv_sample_index(const conv_sample_args *m, int i) {
  return m->samples > 1 ? (m->results - 1) * i / (m->samples - 1) : 0;
}

/* Where result `at`, as our tensors count, lies in `result`. */
static inline int64_t conv_sample_where(const conv_sample_args *m, int64_t at) {
  const int64_t outputs = m->a.s.groups * m->a.s.k;
  return m->transposed ? at % outputs * (m->results / outputs) + at / outputs : at;
}

#ifndef TFU_DEVICE
/* The sums, and the sums of magnitudes, which errors are seen against; 0 where a result cannot be judged. */
typedef struct conv_sample {
  conv_sample_args m;
  double sum[CONV_SAMPLE_MOST], size[CONV_SAMPLE_MOST];
} conv_sample;

/* How many results, by how many parts: with more terms than 2^20 fewer results. */
conv_sample_args tfu_conv_sample_plan(conv_pass pass, const conv_args *a);
/* Takes the sums. The host waits for them, and below for what is queued before. */
TFU_MUST_USE tfu_code tfu_conv_sample_take(tfu_call *call, conv_pass pass, const conv_args *a, const void *result,
                                           conv_sample *sample);
/* The root mean square of (result - sum) / size, as of now. */
TFU_MUST_USE tfu_code tfu_conv_sample_error(tfu_call *call, conv_sample *sample, double *error);
/* An error that no order of additions explains: 64 roundings, and what a chain of all terms of one sign loses. */
double tfu_conv_sample_limit(const conv_sample *sample);
#endif

#endif
