/* trial.h - choosing among plans by trial, as autotuning does: each is run, asked whether its relu keeps NaN, compared
 * with what is right, and timed. What was chosen is remembered by tuned.h.
 *
 *   tfu_trial t = {.call = call, .with = &request, .plans = n, .most = 10, .timed = tfu_tuning(), .take = …, .run = …};
 *   const int visited = tfu_trial_run(&t, tried), best = tfu_trial_pick(tried, visited, space, 1);
 *
 * Where the host may not wait for the call's stream, nothing is run: plans are then taken as they are, in their order,
 * but for those that end in relu. Errors of plans are none of the call's. */
#ifndef TFUSE_TRIAL_H_
#define TFUSE_TRIAL_H_

#include "tfuse.h"

typedef struct tfu_tried {
  int plan;            /* its number                   */
  int64_t workspace;   /* bytes that it needs          */
  float microseconds;  /* 0: not timed                 */
  double error;        /* 0: not looked at             */
  const char *why_not; /* static; NULL: it may be taken */
} tfu_tried;

typedef struct tfu_trial {
  tfu_call *call;
  void *with; /* the caller's */
  int plans;  /* that there are, the best ones first, by what is known before */
  int most;   /* that may be taken are enough, where they are timed or compared; */
  /* where they are not, one is that needs no more workspace than this. */
  int64_t enough;
  int timed; /* they are to be */
  int runs;  /* each is run, also where it is neither timed nor compared: a proposal is no promise */
  int dry;   /* nothing may be run for nothing */
  /* Before the first plan, where something is run: makes ready what runs need, or what is right. NULL: all is. Where
   * it fails, nothing is compared. */
  tfu_code (*prepare)(void *with);
  /* Makes plan number tried->plan the one that runs, and says what workspace it needs; NULL, or why it is none. */
  const char *(*take)(void *with, tfu_tried *tried);
  int (*has_workspace)(void *with, int64_t bytes); /* whether it can be had; NULL: it is there */
  tfu_code (*run)(void *with);                     /* queues the plan's work */
  /* NULL, or how far the last run's result is from what is right, and the most that it may be. */
  tfu_code (*error)(void *with, double *error, double *limit);
  /* NULL, or a run of a plan that ends in relu, with this bias of so many channels. relu as max(x, 0) may make 0 of
   * NaN, and which of the two is taken where x is NaN depends on the kernel: so it is asked, by a bias of NaN. */
  tfu_code (*run_biased)(void *with, void *bias);
  tfu_dtype dtype;
  int64_t channels;
  const void *result; /* of which one element is looked at */

  /* What is known after it. */
  int compared, short_of_memory;
  void *nan;
} tfu_trial;

/* Tries plans until there are enough. Writes down each that it came to, at most `plans`, and returns how many. */
int tfu_trial_run(tfu_trial *t, tfu_tried *tried);
/* The fastest of those that may be taken and need at most `space`, and whose error is at most `times` the least of
 * these; of equal ones the first. -1: there is none. */
int tfu_trial_pick(const tfu_tried *tried, int n, int64_t space, double times);

#endif
