/* rnn.h - arguments and attributes of Rnn, as kernels see them. */
#ifndef TFUSE_RNN_H_
#define TFUSE_RNN_H_

enum { TFU_RNN_CELL, TFU_RNN_TF32 };
#define TFU_RNN_ATTRS "cell: {'lstm', 'gru'} = 'lstm'", "tf32: bool = false"

enum {
  TFU_RNN_X,
  TFU_RNN_KERNEL,
  TFU_RNN_RECURRENT,
  TFU_RNN_BIAS,
  TFU_RNN_RECURRENT_BIAS,
  TFU_RNN_H,
  TFU_RNN_C,
  TFU_RNN_KEEP
};
enum { TFU_RNN_Y, TFU_RNN_LAST, TFU_RNN_KEPT };

/* Of the gradient, whose inputs from x on are those of Rnn up to keep, in their order, as are its outputs. */
enum { TFU_RNNGRAD_DY, TFU_RNNGRAD_DLAST, TFU_RNNGRAD_X };
enum { TFU_RNNGRAD_Y = TFU_RNNGRAD_X + TFU_RNN_KEEP, TFU_RNNGRAD_KEPT };

/* Units that kept has of each step: what Recurrence keeps has room there, and so has what cuDNN 9.19 reserves, 5 units
 * of an LSTM and 6 of a GRU, and 256 bytes. Where that is more, as of a layer of some ten units and steps, cuDNN does
 * not serve. */
enum { TFU_RNN_KEPT_UNITS = 8 };

#endif
