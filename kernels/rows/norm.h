/* norm.h - what the launch hands the device. Not given is NULL. */
#ifndef TFUSE_KERNELS_NORM_H_
#define TFUSE_KERNELS_NORM_H_

#include "kernels/core/gpu/rows.h"

/* Elements of a row that a thread has at most, with their weights and sums, before registers run out. */
#define TFU_NORM_ELEMENTS 32
#define TFU_NORM_THREADS 512
#define TFU_NORM_ALONE_THREADS 1024
#define TFU_NORM_GRAD_ELEMENTS 16
#define TFU_NORM_GRAD_THREADS 512

typedef struct norm_args {
  tfu_row_plan rows;
  void *y, *sum, *stats;
  const void *x, *residual, *gamma, *beta, *seed;
  int period; /* rows with their own weights; those of row r begin at column r % period * cols */
  int rms;    /* for kernels that serve both kinds */
  float epsilon, rate;
} norm_args;

typedef struct norm_grad_args {
  tfu_row_plan rows;
  void *dx, *dresidual;
  void *partial; /* [seats / period][quantities][period * cols]: sums of dy * normalised x, of dy; NULL: not wanted */
  const void *dy, *dsum, *x, *gamma, *stats, *seed;
  int period, rms;
  int joined; /* a block adds the sums of its rows up: a seat is a block, else a row of a block */
  float rate;
} norm_grad_args;

#endif
