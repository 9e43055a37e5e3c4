/* conv_choose.h - a convolution that is asked of cuDNN, its plans, and the choice among cuDNN's engines. */
#ifndef TFUSE_CONV_CHOOSE_H_
#define TFUSE_CONV_CHOOSE_H_

#include "kernels/convolution/conv_cudnn.h"
#include "kernels/convolution/conv_sample.h"
#include "kernels/core/gpu/tuned.h"
#include "kernels/core/nvidia/plan_cache.h"

typedef struct conv_request {
  tfu_call *call;
  const tfu_cudnn *dnn;
  tfu_cudnn_handle *handle;
  const conv_args *a;
  conv_key key;
  void *memory[CONV_SLOTS];
  tfu_graph *trial; /* what is timed */
  void *workspace;
  int64_t space; /* bytes of it */
  int short_of_memory;
  void *nan;           /* a bias of NaN, once it is needed */
  conv_sample *sample; /* what results are compared with; NULL: they are not */
  int unsure;          /* whether their errors, all 0, told nothing */
} conv_request;

/* Places in the list of proposals: the best one, and the best one with a small workspace; negative: none. */
typedef struct conv_choice {
  int32_t best, small;
} conv_choice;
extern const tfu_tuner tfu_conv_tuner; /* which asks with a conv_request */
conv_choice tfu_conv_chosen_of(const tfu_choice *choice);

/* The plan of a proposal, or of the one that needs the least workspace; NULL where there is none. */
enum { CONV_LEAST_SPACE = -1 };
tfu_planned *tfu_conv_plan(conv_request *r, int config);
/* Whether there is so much scratch memory, or so much workspace. What was taken for one plan serves the next. */
int tfu_conv_try_scratch(conv_request *r, int64_t bytes, void **memory);
int tfu_conv_has_workspace(conv_request *r, int64_t bytes);

/* One that was tried. */
typedef struct conv_candidate {
  int32_t config;
  float microseconds;
  double error; /* 0 where none is looked for */
  int64_t workspace;
} conv_candidate;
/* The fastest of those that want at most `space`, and whose error is at most `times` the least of these; -1: none. */
int tfu_conv_pick(const conv_candidate *tried, int n, int64_t space, double times);

#endif
