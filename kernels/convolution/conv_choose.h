/* conv_choose.h - a convolution that is asked of cuDNN: its plans (conv_plans.c), the trial of them (conv_trial.c), and
 * the choice, which is remembered (conv_choose.c). */
#ifndef TFUSE_CONV_CHOOSE_H_
#define TFUSE_CONV_CHOOSE_H_

#include "kernels/convolution/conv_cudnn.h"
#include "kernels/convolution/conv_sample.h"
#include "kernels/core/gpu/trial.h"
#include "kernels/core/gpu/tuned.h"
#include "ops/convolution/conv.h"

typedef struct conv_request {
  tfu_call *call;
  const tfu_cudnn *dnn;
  tfu_cudnn_handle *handle;
  const conv_args *a;
  conv_key key;
  void *memory[CONV_SLOTS];
  void *workspace;
  int64_t space; /* bytes of it */
  int short_of_memory;
  int unsure; /* whether errors, all 0, told nothing */
  /* While they are tried: the graph with the proposals, and what results are compared with. */
  tfu_graph *trial;
  conv_sample *sample;
} conv_request;

/* ---- plans ---- */

/* Most engines want next to nothing. Those that pad channels or copy tensors want as much as these take: for 256 images
 * of 224 x 224 in three channels 104 MiB. The small one is what is there for a captured call, beside a bias of zeros
 * and a kernel of up to as much. */
#define CONV_MOST_WORKSPACE ((int64_t)256 << 20)
enum { CONV_SMALL_WORKSPACE = TFU_CONV_ROOM / 8 * 3 };

/* The graph with cuDNN's proposals; NULL where there are none. */
tfu_graph *tfu_conv_ask(const conv_request *r, const conv_key *key, tfu_error *err);
/* The plan of a proposal, or of the one that needs the least workspace; NULL where there is none. It is held until it
 * is put back, with the call that ran it (table.h). */
enum { CONV_LEAST_SPACE = -1 };
tfu_planned *tfu_conv_plan(conv_request *r, int config);
void tfu_conv_plan_put(tfu_planned *planned, const tfu_call *ran);
/* Whether there is so much scratch memory, or so much workspace. What was taken for one plan serves the next. */
int tfu_conv_try_scratch(conv_request *r, int64_t bytes, void **memory);
int tfu_conv_has_workspace(conv_request *r, int64_t bytes);

/* ---- trial and choice ---- */

/* Places in the list of proposals: the best one, and the best one with a small workspace; negative: none. */
typedef struct conv_choice {
  int32_t best, small;
} conv_choice;
/* The choice among g's proposals, by trial; where none is to be timed or compared, the first ones. 0: none serves, or
 * tfuse's own kernel serves better. */
int tfu_conv_try(conv_request *r, tfu_graph *g, int timed, conv_choice *choice, tfu_tried *best);

extern const tfu_tuner tfu_conv_tuner; /* which asks with a conv_request */
conv_choice tfu_conv_chosen_of(const tfu_choice *choice);

#endif
