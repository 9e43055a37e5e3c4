/* selective_scan.h - arguments of SelectiveScan, as kernels see them. */
#ifndef TFUSE_SELECTIVE_SCAN_H_
#define TFUSE_SELECTIVE_SCAN_H_

enum {
  TFU_SELECT_X,
  TFU_SELECT_DELTA,
  TFU_SELECT_A,
  TFU_SELECT_B,
  TFU_SELECT_C,
  TFU_SELECT_SKIP,
  TFU_SELECT_INITIAL,
  TFU_SELECT_INPUTS
};
enum { TFU_SELECT_Y, TFU_SELECT_LAST };

/* Of the gradient, whose inputs from x on are those of SelectiveScan, in their order, as are its outputs. */
enum { TFU_SELGRAD_DY, TFU_SELGRAD_DLAST, TFU_SELGRAD_X };

/* States of a channel, at most: so many are in a thread's registers. */
enum { TFU_SELECT_STATES = 16 };

#endif
